//! Handoffs in flight: how long each has been in its phase, and which are cancelled.
//!
//! Time in a phase counts from when this planner first saw the record in it, never from a timestamp in the record.
//! `Ready` and `Syncing` count together. The patience of the registered routers is added, as far as `Ready` has lasted: with
//! its end every router has stopped. The wait for a dead owner's bound does not count. Not here: moving a phase on ([`advance`](crate::handoff::advance)).
//!
//! # Invariants
//!
//! * Nothing is cancelled past the point of no return, unless somebody has written the assignment that would be flipped.
//! * A record is deleted together with its acks or not at all.

use std::collections::BTreeMap;
use std::time::Duration;

use super::actions::{CancelReason, ObservedHandoff, PlannedWrite};
use super::backoff::{BackOffSnapshot, BackOffs};
use super::notice::Notice;
use super::wishes::failed_move;
use super::{Policy, is_dead};
use crate::handoff::advance::{PendingOn, pending_bound, waiting_for};
use crate::handoff::flip::{has_flipped, starts_from};
use crate::ids::{Epoch, HandoffId, Incarnation, PartitionId, Revision};
use crate::records::{Handoff, Mode, Phase, PodAckKind};
use crate::view::{Versioned, View};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct PhaseTimer {
    id: HandoffId,
    mod_revision: Revision,
    phase: Phase,
    since: Duration,
    /// How long it has been in `Ready`, once it has left it.
    ready_for: Duration,
    /// The back-offs of its partition and its new owner before its cancel was decided, once it has been.
    given_up: Option<BackOffSnapshot>,
    /// The epoch of the new ownership.
    epoch: Epoch,
    new_incarnation: Incarnation,
    has_old_owner: bool,
}

impl PhaseTimer {
    /// Returns the timer of a handoff that is seen for the first time, at the beginning of time.
    fn new(handoff: &Versioned<Handoff>) -> Self {
        let record = &handoff.value;
        PhaseTimer {
            id: handoff.id(),
            mod_revision: handoff.mod_revision,
            phase: record.phase,
            since: Duration::ZERO,
            ready_for: Duration::ZERO,
            given_up: None,
            epoch: record.epoch,
            new_incarnation: record.new_incarnation,
            has_old_owner: record.old_owner.is_some(),
        }
    }
}

/// Changes to the handoffs in flight since the last call.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct PhaseChanges {
    /// Whether a handoff has ended.
    pub(super) ended: bool,
    /// Whether a handoff has ended before its new owner took over.
    pub(super) failed: bool,
    /// The lives of pods to which a handoff has left `Warming` or `Syncing`.
    pub(super) warmed: Vec<Incarnation>,
    /// The partitions that new owners take over from others.
    pub(super) moved: Vec<PartitionId>,
}

/// The handoffs in flight, and since when each has been in its phase.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct PhaseTimeouts {
    seen: BTreeMap<PartitionId, PhaseTimer>,
    /// When the store was last known to refuse writes.
    refused: Option<Duration>,
}

/// Longest pause before a write that the store has refused is tried again.
const LONGEST_RETRY: Duration = Duration::from_secs(30);

impl PhaseTimeouts {
    /// Records the handoffs in flight.
    pub(super) fn observe(&mut self, view: &View, backoffs: &mut BackOffs, now: Duration) -> PhaseChanges {
        let mut progress = PhaseChanges::default();
        self.seen.retain(|partition, seen| {
            let stands = view.handoffs.get(partition).is_some_and(|handoff| handoff.id() == seen.id);
            progress.ended |= !stands;
            // Several phases may pass between two views.
            let assignment = view.assignments.get(partition).map(|assignment| &assignment.value);
            let passed_unseen = !stands && seen.phase < Phase::Switching;
            match assignment.filter(|is| is.epoch == seen.epoch) {
                Some(is) if passed_unseen => {
                    backoffs.succeeded(*partition, &is.owner);
                    progress.moved.extend(seen.has_old_owner.then_some(*partition));
                    progress.warmed.push(seen.new_incarnation);
                }
                Some(_) => {}
                None => progress.failed |= passed_unseen,
            }
            stands
        });
        for (partition, handoff) in &view.handoffs {
            let known = self.seen.get(partition).copied();
            if known.is_some_and(|seen| seen.mod_revision == handoff.mod_revision) {
                continue;
            }
            let record = &handoff.value;
            if record.phase >= Phase::Switching {
                backoffs.succeeded(*partition, &record.new_owner);
                progress.moved.extend(record.old_owner.is_some().then_some(*partition));
            }
            let has_left = |phase| matches!(phase, Phase::Warming | Phase::Syncing) && record.phase > phase;
            if has_left(known.map_or(Phase::Warming, |seen| seen.phase)) {
                progress.warmed.push(record.new_incarnation);
            }
            let pauses = |phase| matches!(phase, Phase::Ready | Phase::Syncing);
            let goes_on = known.filter(|seen| pauses(seen.phase) && pauses(record.phase));
            let seen = PhaseTimer {
                since: goes_on.map_or(now, |seen| seen.since),
                ready_for: goes_on.map_or(Duration::ZERO, |seen| match seen.phase {
                    Phase::Ready => now.saturating_sub(seen.since),
                    _ => seen.ready_for,
                }),
                ..PhaseTimer::new(handoff)
            };
            self.seen.insert(*partition, seen);
        }
        progress
    }

    /// Takes in a handoff that has ended. Its end counts also if no view has shown it.
    pub(super) fn has_ended(&mut self, handoff: &Versioned<Handoff>) {
        let known = self.seen.get(&handoff.value.partition).filter(|seen| seen.id == handoff.id());
        if known.is_none() {
            self.seen.insert(handoff.value.partition, PhaseTimer::new(handoff));
        }
    }

    /// Returns whether the partition's handoff has been in its phase for longer than it may.
    pub(super) fn is_overdue(&self, view: &View, policy: &Policy, record: &Handoff, now: Duration) -> bool {
        let seen = self.seen.get(&record.partition);
        seen.is_some_and(|seen| now.saturating_sub(seen.since) >= self.limit(view, policy, record, seen))
    }

    /// Returns how long a handoff may be in its phase. A router may stop later only while the old owner lives, and all of them
    /// have had only so long for that as it was in `Ready`. If the store refused writes, it is their acks that are missing.
    fn limit(&self, view: &View, policy: &Policy, record: &Handoff, seen: &PhaseTimer) -> Duration {
        let lives = || view.live_old_owner(record).is_some();
        match record.phase {
            Phase::Warming => policy.warm_timeout,
            Phase::Ready if lives() && !self.was_refused(record.partition) => policy.phase_timeout + patience(view),
            Phase::Syncing if lives() => policy.phase_timeout + patience(view).min(seen.ready_for),
            _ => policy.phase_timeout,
        }
    }

    /// Returns since when the partition's handoff has been in its phase.
    pub(super) fn begun(&self, partition: PartitionId) -> Option<Duration> {
        self.seen.get(&partition).map(|seen| seen.since)
    }

    /// Returns how long the partition's handoff has been in its phase.
    pub(super) fn age(&self, partition: PartitionId, now: Duration) -> Duration {
        self.seen.get(&partition).map_or(Duration::ZERO, |seen| now.saturating_sub(seen.since))
    }

    /// Starts the time in the phase anew.
    pub(super) fn restart(&mut self, partition: PartitionId, now: Duration) {
        if let Some(seen) = self.seen.get_mut(&partition) {
            seen.since = now;
        }
    }

    /// Marks the partition's handoff as given up, with what was remembered before. Returns `false` if it already was.
    pub(super) fn gives_up(&mut self, partition: PartitionId, before: BackOffSnapshot) -> bool {
        let Some(seen) = self.seen.get_mut(&partition) else {
            return false;
        };
        let is_first = seen.given_up.is_none();
        seen.given_up.get_or_insert(before);
        is_first
    }

    /// Records that the store refuses writes: nobody can say that a partition is warm, and no cancel that was decided has
    /// been carried out as it was.
    pub(super) fn store_refuses(&mut self, view: &View, backoffs: &mut BackOffs, now: Duration) {
        self.refused = Some(now);
        for (partition, seen) in &mut self.seen {
            if seen.phase == Phase::Warming {
                seen.since = now;
            }
            let handoff = view.handoffs.get(partition);
            if let (Some(before), Some(handoff)) = (seen.given_up.take(), handoff) {
                backoffs.restore(*partition, &handoff.value.new_owner, before);
            }
        }
    }

    /// Returns whether the store refused writes while the partition's handoff was in its phase. Writers may try again as late
    /// as [`LONGEST_RETRY`] after the store accepts writes.
    pub(super) fn was_refused(&self, partition: PartitionId) -> bool {
        let begun = self.begun(partition);
        self.refused.is_some_and(|refused| begun.is_some_and(|begun| begun <= refused + LONGEST_RETRY))
    }

    /// Returns when the next phase reaches its limit.
    pub(super) fn next_wake(&self, view: &View, policy: &Policy, now: Duration) -> Option<Duration> {
        let due = |(partition, seen): (&PartitionId, &PhaseTimer)| {
            Some(seen.since + self.limit(view, policy, &view.handoffs.get(partition)?.value, seen))
        };
        self.seen.iter().filter_map(due).filter(|due| *due > now).min()
    }
}

/// Returns the longest time for which a registered router may go on routing in a planned move.
fn patience(view: &View) -> Duration {
    Duration::from_millis(view.routers.values().map(|router| router.value.patience_ms).max().unwrap_or_default())
}

/// Returns whether the handoff waits for nothing but the bound of its dead old owner. The new owner reads the tail only
/// after that.
pub(super) fn waits_for_bound(view: &View, handoff: &Versioned<Handoff>) -> bool {
    let partition = handoff.value.partition;
    pending_bound(view, partition).is_some()
        && waiting_for(view, partition)
            .iter()
            .all(|wait| matches!(wait, PendingOn::WorkEnds(_) | PendingOn::PodSynced(_)))
}

/// What to do about a handoff.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TimeoutVerdict {
    /// Cancel, abandon or delete it.
    End(PlannedWrite),
    /// Report that it has waited too long: there is no way back.
    Overdue(Notice),
}

/// Returns what to do about a handoff that has been in its phase for longer than it may, or not. `None` to let it continue.
pub(super) fn verdict(
    view: &View,
    partitions: Option<u32>,
    handoff: &Versioned<Handoff>,
    overdue: bool,
) -> Option<TimeoutVerdict> {
    let record = &handoff.value;
    let observed =
        || ObservedHandoff { handoff: handoff.clone(), assignment: view.assignment_revision(record.partition) };
    if record.is_past_no_return() {
        // An unreadable assignment has an owner that this version cannot know, so it is not overwritten.
        let may_end = !view.is_malformed(record.partition);
        if may_end && is_dead(view, &record.new_owner, record.new_incarnation) {
            return Some(TimeoutVerdict::End(PlannedWrite::Abandon { observed: observed() }));
        }
        // In `independent` mode the flip comes last, and this one never comes. In `Switching` routers follow the assignment and
        // so never acknowledge the new owner.
        let goes_on = match record.phase {
            Phase::Complete => true,
            Phase::Switching => has_flipped(view, record) || !may_end,
            _ => starts_from(view, record),
        };
        if !goes_on {
            let reason = CancelReason::AssignmentChanged;
            return Some(TimeoutVerdict::End(PlannedWrite::Cancel {
                observed: observed(),
                reason,
                back_offs: Vec::new(),
            }));
        }
        let waiting = if overdue { waiting_for(view, record.partition) } else { Vec::new() };
        return match record.phase {
            _ if waiting.is_empty() => None,
            Phase::Complete if may_end => {
                Some(TimeoutVerdict::End(PlannedWrite::Delete { observed: observed(), waiting }))
            }
            phase => Some(TimeoutVerdict::Overdue(Notice::Overdue { partition: record.partition, phase, waiting })),
        };
    }
    cancel_reason(view, partitions, handoff, overdue)
        .map(|reason| TimeoutVerdict::End(PlannedWrite::Cancel { observed: observed(), reason, back_offs: Vec::new() }))
}

fn cancel_reason(
    view: &View,
    partitions: Option<u32>,
    handoff: &Versioned<Handoff>,
    overdue: bool,
) -> Option<CancelReason> {
    let record = &handoff.value;
    let warming = record.phase == Phase::Warming;
    if is_dead(view, &record.new_owner, record.new_incarnation) {
        return Some(CancelReason::NewOwnerDead);
    }
    if partitions.is_some_and(|partitions| record.partition.get() >= partitions) {
        return Some(CancelReason::BeyondConfig);
    }
    if !starts_from(view, record) {
        return Some(CancelReason::AssignmentChanged);
    }
    if warming && view.live_new_owner(record).is_some() && view.is_draining(&record.new_owner) {
        return Some(CancelReason::NewOwnerDraining);
    }
    if let Some(reason) = failed(view, handoff) {
        let wish = failed_move(view, record, &reason).map(Box::new);
        return Some(CancelReason::NewOwnerFailed { reason, wish });
    }
    if warming && record.mode == Mode::Independent && record.old_owner.is_some() {
        // The new owner could never report that it is warm, even if the new router has replaced the first one.
        let registered_since = view.routers.values().any(|router| router.create_revision > handoff.create_revision);
        if registered_since {
            return Some(CancelReason::SecondRouter);
        }
    }
    if let Some(router) = gave_up(view, handoff) {
        return Some(CancelReason::GaveUp { router });
    }
    match record.phase {
        _ if !overdue => None,
        Phase::Warming => Some(CancelReason::WarmTimeout),
        phase => {
            // If nothing is waited for, the phase is about to move on: no timeout may race that.
            let waiting = waiting_for(view, record.partition);
            (!waiting.is_empty()).then_some(CancelReason::PhaseTimeout { phase, waiting })
        }
    }
}

/// Returns why the new owner cannot take the partition, if it has reported that.
fn failed(view: &View, handoff: &Versioned<Handoff>) -> Option<String> {
    let record = &handoff.value;
    let ack = view.pod_ack(record.partition, &record.new_owner, PodAckKind::Failed, handoff.id())?;
    Some(ack.reason.clone().unwrap_or_else(|| "it gave no reason".to_owned()))
}

/// Returns a registered router whose ack for this handoff says that it cannot drain.
fn gave_up(view: &View, handoff: &Versioned<Handoff>) -> Option<String> {
    let acks = &view.acks.get(&handoff.value.partition)?.drained;
    let said = |(router, ack): &(&String, &crate::records::RouterDrainedAck)| {
        ack.gave_up && ack.handoff == handoff.id() && view.routers.contains_key(*router)
    };
    acks.iter().find(said).map(|(router, _)| router.clone())
}

/// Returns a sweep for each partition that has acks but no handoff: its record was deleted by hand.
pub(super) fn sweep(view: &View) -> impl Iterator<Item = PlannedWrite> {
    let left = view.acks.keys().filter(|partition| !view.handoffs.contains_key(partition));
    left.filter(|partition| !view.is_malformed(**partition))
        .map(|partition| PlannedWrite::Sweep { partition: *partition })
}
