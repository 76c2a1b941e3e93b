//! Remembers failed moves, and how long partitions and pods rest after them.
//!
//! * **Partition.** After a cancel for a timeout, for a drain that did not end, or by an operator, the partition waits
//!   before it is moved again.
//! * **Pod.** A new owner that was not warm or had not read the tail in time is shunned: it keeps what it has and gets no
//!   more. The back-off belongs to the pod's name. Pods that die are in [`short_lives`](super::short_lives).
//! * **Partition and pod.** A pod that reports that it cannot take a partition is barred from that partition for a
//!   while. The partition does not wait, because another pod is planned at once. A pod that reports this for several
//!   partitions is shunned. A pod is barred likewise if an operator cancels the move to it, or if it warms the partition
//!   without progress while nobody serves it.
//!
//! All waits double with each failure in a row, and a move that reaches `Switching` ends the row, unless the pod died. A
//! pod is shunned for twice as long as its partition waits, so that the next attempt goes to another pod if there is one.
//!
//! # Invariants
//!
//! * One handoff fails once, however often its cancel has to be retried.

use std::collections::BTreeMap;
use std::time::Duration;

use super::actions::{self, CancelReason, PlannedWrite};
use super::failures::{FailureRow, PodFailures, put};
use super::notice::Notice;
use super::short_lives::ShortLives;
use crate::handoff::advance::PendingOn;
use crate::ids::PartitionId;
use crate::records::{BackOffSubject, Handoff};
use crate::view::View;

/// Number of partitions from which a pod is barred at a time before it is shunned. With so many, the cause is not the
/// partition.
const BARRED_BEFORE_SHUNNED: usize = 4;

/// The back-offs of a partition, of a pod, and of both together, at some moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct BackOffSnapshot {
    partition: Option<FailureRow>,
    pod: Option<FailureRow>,
    pair: Option<FailureRow>,
}

/// The back-offs of all partitions and pods.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct BackOffs {
    partitions: BTreeMap<PartitionId, FailureRow>,
    pods: PodFailures,
    short_lives: ShortLives,
}

impl BackOffs {
    /// Records which lives of pods have ended in this view, and whether that says nothing against their pods.
    pub(super) fn observe(&mut self, view: &View, are_blameless: bool, now: Duration) {
        self.short_lives.observe(view, are_blameless, now);
    }

    /// Records a cancelled handoff.
    pub(super) fn note(&mut self, action: &PlannedWrite, now: Duration) {
        let PlannedWrite::Cancel { observed, reason, .. } = action else {
            return;
        };
        let handoff = &observed.handoff.value;
        let new_owner_is_slow = match reason {
            CancelReason::WarmTimeout => true,
            CancelReason::PhaseTimeout { waiting, .. } => {
                waiting.iter().any(|who| matches!(who, PendingOn::PodSynced(_)))
            }
            // The partition is planned again at once, to another pod.
            CancelReason::NewOwnerDead => return self.short_lives.shun(&handoff.new_owner, now),
            CancelReason::NewOwnerFailed { .. } => {
                self.bar(handoff, now);
                if self.pods.resting_with(&handoff.new_owner, now) >= BARRED_BEFORE_SHUNNED {
                    self.shun(&handoff.new_owner, now);
                }
                return;
            }
            // The partition is planned again at once, to another pod.
            CancelReason::NewOwnerSlow => {
                self.bar(handoff, now);
                return self.shun(&handoff.new_owner, now);
            }
            CancelReason::Operator { .. } => {
                self.bar(handoff, now);
                false
            }
            // A store that refuses writes says nothing about the pod.
            CancelReason::GaveUp { .. } | CancelReason::StoreRefused { .. } => false,
            // Planning responds to these at once.
            CancelReason::NewOwnerDraining
            | CancelReason::SecondRouter
            | CancelReason::BeyondConfig
            | CancelReason::AssignmentChanged
            | CancelReason::MoreUrgent => return,
        };
        let partition = self.partitions.entry(handoff.partition).or_insert(FailureRow::NONE);
        partition.fail(now, 1);
        if new_owner_is_slow {
            self.shun(&handoff.new_owner, now);
        }
    }

    /// Returns what is remembered of a partition and of the pod that was to get it.
    pub(super) fn remembered(&self, partition: PartitionId, pod: &str) -> BackOffSnapshot {
        BackOffSnapshot {
            partition: self.partitions.get(&partition).copied(),
            pod: self.pods.pod(pod).copied(),
            pair: self.pods.pair(partition, pod).copied(),
        }
    }

    /// Takes back what has been recorded of them since.
    pub(super) fn restore(&mut self, partition: PartitionId, pod: &str, before: BackOffSnapshot) {
        put(&mut self.partitions, partition, before.partition);
        self.pods.put(partition, pod, (before.pod, before.pair));
    }

    /// Adds to a cancel which back-offs are in force for its partition and for the pod that did not get it.
    pub(super) fn show(&self, action: &mut PlannedWrite, now: Duration) {
        let PlannedWrite::Cancel { observed, back_offs, .. } = action else { return };
        let Handoff { partition, new_owner: pod, .. } = &observed.handoff.value;
        let of = [
            (BackOffSubject::Partition, self.partitions.get(partition)),
            (BackOffSubject::Pod, self.pod(pod)),
            (BackOffSubject::Pair, self.pods.pair(*partition, pod)),
        ];
        let shown = |(of, back_off): (BackOffSubject, Option<&FailureRow>)| {
            let back_off = back_off?;
            let until = back_off.waits(false, now)?;
            Some(actions::DecidedBackOff { of, failures: back_off.failures(), remains: until - now })
        };
        *back_offs = of.into_iter().filter_map(shown).collect();
    }

    /// Returns the back-off of this pod that lasts longer.
    fn pod(&self, pod: &str) -> Option<&FailureRow> {
        self.pods.pod(pod).into_iter().chain(self.short_lives.pod(pod)).max_by_key(|back_off| back_off.until())
    }

    /// Bars the new owner of this handoff from its partition.
    fn bar(&mut self, handoff: &Handoff, now: Duration) {
        self.pods.fail_with(handoff.partition, &handoff.new_owner, now);
    }

    fn shun(&mut self, pod: &str, now: Duration) {
        self.pods.fail(pod, now);
    }

    /// Records that a handoff of the partition to this pod has reached `Switching`.
    pub(super) fn succeeded(&mut self, partition: PartitionId, pod: &str) {
        self.partitions.remove(&partition);
        self.pods.put(partition, pod, (None, None));
    }

    /// Returns until when the partition is not to be moved, if that is later than `now`.
    pub(super) fn partition_waits(&self, partition: PartitionId, urgent: bool, now: Duration) -> Option<Duration> {
        let back_off = self.partitions.get(&partition)?;
        back_off.waits(urgent, now)
    }

    /// Returns until when the partition rests because its owners die one after the other, if that is later than `now`.
    pub(super) fn deaths_rest(&self, partition: PartitionId, now: Duration) -> Option<Duration> {
        self.short_lives.partition_rests(partition, now)
    }

    /// Returns until when this pod is barred from this partition, if that is later than `now`.
    pub(super) fn pair_waits(
        &self,
        partition: PartitionId,
        pod: &str,
        urgent: bool,
        now: Duration,
    ) -> Option<Duration> {
        self.pods.pair(partition, pod)?.waits(urgent, now)
    }

    /// Returns until when another pod is preferred for this partition, if that is later than `now`: this one is barred, or
    /// died soon after it had taken the partition over.
    pub(super) fn avoids(&self, partition: PartitionId, pod: &str, now: Duration) -> Option<Duration> {
        self.pair_waits(partition, pod, false, now).max(self.short_lives.pair_rests(partition, pod, now))
    }

    /// Returns whether another pod than some pod is preferred for this partition.
    pub(super) fn avoids_any(&self, partition: PartitionId, now: Duration) -> bool {
        self.pods.any_rests(partition, now) || self.short_lives.any_rests(partition, now)
    }

    /// Returns whether the pod gets no more partitions for now.
    pub(super) fn is_shunned(&self, pod: &str, now: Duration) -> bool {
        self.pod(pod).is_some_and(|back_off| back_off.waits(false, now).is_some())
    }

    /// Returns when the next pod may be given partitions again.
    pub(super) fn next_pod(&self, now: Duration) -> Option<Duration> {
        self.pods.pods().chain(self.short_lives.pods()).filter_map(|(_, back_off)| back_off.waits(false, now)).min()
    }

    /// Drops old failures.
    pub(super) fn forget_old(&mut self, now: Duration) {
        self.partitions.retain(|_, back_off| !back_off.is_forgotten(now));
        self.pods.retain(|_, back_off| !back_off.is_forgotten(now), |_, _, back_off| !back_off.is_forgotten(now));
    }

    /// Returns whether no failure is remembered.
    #[cfg(test)]
    pub(super) fn is_clear(&self) -> bool {
        self.partitions.is_empty() && self.pods.is_empty() && self.short_lives.is_clear()
    }

    /// Returns a notice for each shunned pod, and for each partition whose owners die.
    pub(super) fn notices(&self, now: Duration) -> impl Iterator<Item = Notice> {
        let shunned = self.pods.pods().filter(move |(_, back_off)| back_off.waits(false, now).is_some());
        let slow = shunned.map(|(pod, back_off)| Notice::Shunned { pod: pod.clone(), failures: back_off.failures() });
        slow.chain(self.short_lives.notices(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Epoch, Incarnation, Revision};
    use crate::planning::actions::ObservedHandoff;
    use crate::planning::failures::{FIRST_BACK_OFF, MAX_BACK_OFF, SHUNNED_SCALE};
    use crate::records::Phase;
    use crate::view::Versioned;

    const E1: Epoch = Epoch::new(1);
    const P0: PartitionId = PartitionId::new(0);

    const POD: (&str, Incarnation) = ("w-1", Incarnation::registered_at(Revision::new(7)));

    /// Returns a cancel of partition 0's move to the pod.
    fn cancel(reason: CancelReason) -> PlannedWrite {
        let handoff = Handoff::new(P0, POD.0, POD.1, E1);
        let handoff = Versioned {
            create_revision: Revision::new(9),
            mod_revision: Revision::new(9),
            lease: None,
            value: handoff,
        };
        let observed = ObservedHandoff { handoff, assignment: Revision::ZERO };
        PlannedWrite::Cancel { observed, reason, back_offs: Vec::new() }
    }

    fn timed_out(who: PendingOn) -> PlannedWrite {
        cancel(CancelReason::PhaseTimeout { phase: Phase::Syncing, waiting: vec![who] })
    }

    #[test]
    fn a_partition_that_nobody_owns_waits_no_longer_than_the_first_time() {
        let mut backoffs = BackOffs::default();
        let mut now = Duration::ZERO;
        for _ in 0..6 {
            backoffs.note(&cancel(CancelReason::GaveUp { router: "r".into() }), now);
            now = backoffs.partition_waits(P0, false, now).unwrap();
        }
        assert_eq!(now, Duration::from_secs(5 + 10 + 20 + 40 + 80 + 160));
        for _ in 0..3 {
            backoffs.note(&cancel(CancelReason::GaveUp { router: "r".into() }), now);
            let until = backoffs.partition_waits(P0, true, now).unwrap();
            assert_eq!(until, now + FIRST_BACK_OFF, "also when it fails while it would otherwise wait");
            now = until;
        }
    }

    #[test]
    fn a_pod_that_does_not_read_the_tail_is_shunned_and_one_that_others_wait_for_is_not() {
        let now = Duration::ZERO;
        for (who, shunned) in [
            (PendingOn::PodSynced("w-1".into()), true),
            (PendingOn::PodDrained("w-0".into()), false),
            (PendingOn::RouterDrained("r".into()), false),
        ] {
            let mut backoffs = BackOffs::default();
            backoffs.note(&timed_out(who), now);
            assert_eq!(backoffs.is_shunned(POD.0, now), shunned);
            assert_eq!(backoffs.partition_waits(P0, false, now), Some(FIRST_BACK_OFF));
        }
    }

    #[test]
    fn a_success_is_forgiven_and_what_was_long_ago_forgotten() {
        let mut backoffs = BackOffs::default();
        backoffs.note(&cancel(CancelReason::WarmTimeout), Duration::ZERO);
        let mut forgotten = backoffs.clone();
        backoffs.succeeded(P0, POD.0);
        assert_eq!(backoffs, BackOffs::default());
        forgotten.forget_old(MAX_BACK_OFF);
        assert!(forgotten != BackOffs::default());
        forgotten.forget_old(MAX_BACK_OFF * 2);
        assert_eq!(forgotten, BackOffs::default());
    }

    #[test]
    fn a_pod_that_dies_over_its_warm_up_is_shunned_and_its_partition_waits_for_nothing() {
        let mut backoffs = BackOffs::default();
        backoffs.note(&cancel(CancelReason::NewOwnerDead), Duration::ZERO);
        assert!(backoffs.is_shunned(POD.0, Duration::ZERO));
        assert_eq!(backoffs.partition_waits(P0, false, Duration::ZERO), None);
    }

    #[test]
    fn a_pod_that_cannot_take_a_partition_is_barred_from_that_one_alone() {
        let (mut backoffs, now) = (BackOffs::default(), Duration::ZERO);
        backoffs.note(&cancel(CancelReason::NewOwnerFailed { reason: "no disk".into(), wish: None }), now);
        assert_eq!(backoffs.pair_waits(P0, POD.0, false, now), Some(FIRST_BACK_OFF * SHUNNED_SCALE));
        assert_eq!(backoffs.pair_waits(P0, POD.0, true, now), Some(FIRST_BACK_OFF), "if nobody owns it");
        assert_eq!(backoffs.pair_waits(P0, "w-2", false, now), None);
        assert_eq!(backoffs.pair_waits(PartitionId::new(1), POD.0, false, now), None);
        assert!(!backoffs.is_shunned(POD.0, now));
        assert_eq!(backoffs.partition_waits(P0, false, now), None);
        backoffs.succeeded(P0, POD.0);
        assert_eq!(backoffs, BackOffs::default());
    }

    #[test]
    fn a_cancel_shows_how_often_the_move_failed_and_for_how_long_it_rests() {
        let (mut backoffs, mut now) = (BackOffs::default(), Duration::ZERO);
        let shown = |backoffs: &BackOffs, mut action: PlannedWrite, now| {
            backoffs.show(&mut action, now);
            let PlannedWrite::Cancel { back_offs, .. } = action else { unreachable!() };
            let seconds = |it: &actions::DecidedBackOff| (it.of, it.failures, it.remains.as_secs());
            back_offs.iter().map(seconds).collect::<Vec<_>>()
        };
        for _ in 0..2 {
            backoffs.note(&cancel(CancelReason::WarmTimeout), now);
            now += Duration::from_secs(2 * 5);
        }
        // The second failure was at 10 s.
        let now = now - Duration::from_secs(1);
        let expected = [(BackOffSubject::Partition, 2, 1), (BackOffSubject::Pod, 2, 11)];
        assert_eq!(shown(&backoffs, cancel(CancelReason::WarmTimeout), now), expected);
        backoffs.note(&cancel(CancelReason::NewOwnerFailed { reason: "no disk".into(), wish: None }), now);
        let rest = shown(&backoffs, cancel(CancelReason::NewOwnerDraining), now);
        assert_eq!(rest[2], (BackOffSubject::Pair, 1, 10));
        assert_eq!(shown(&BackOffs::default(), cancel(CancelReason::NewOwnerDraining), now), []);
    }
}
