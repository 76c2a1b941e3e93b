//! Handoffs in flight: how long each has been in its phase, and which are given up.
//!
//! Time in a phase is measured from when this planner first saw the record's `mod_revision`, never from a timestamp in it.
//! Must stay true: nothing is cancelled past the point of no return, and a record goes together with its acks or not
//! at all. Moving a phase on is [`advance`](crate::protocol::advance)'s.

use std::collections::BTreeMap;
use std::time::Duration;

use super::actions::{Action, CancelReason, Standing};
use super::backoff::BackOffs;
use super::notice::Notice;
use super::{Policy, is_dead};
use crate::protocol::advance::waiting_for;
use crate::protocol::records::{Handoff, Mode, Phase, PodStatus};
use crate::protocol::view::{Stamped, View};
use crate::store::data::Revision;
use crate::store::keys::Partition;

/// Whether requests may have reached the new owner, so that there is no way back to the old one.
pub fn past_no_return(handoff: &Handoff) -> bool {
    match handoff.mode {
        Mode::Barrier => handoff.phase >= Phase::Switching,
        Mode::Independent => handoff.phase >= Phase::Ready,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Seen {
    id: Revision,
    mod_revision: Revision,
    phase: Phase,
    since: Duration,
    given_up: bool,
}

/// Since when each handoff has been as it is.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct Flights {
    seen: BTreeMap<Partition, Seen>,
}

impl Flights {
    /// Takes note of what is in flight. Whether a handoff has ended since the last call.
    pub(super) fn observe(&mut self, view: &View, backoffs: &mut BackOffs, now: Duration) -> bool {
        let before = self.seen.len();
        self.seen.retain(|partition, seen| {
            let stands = view.handoffs.get(partition);
            stands.is_some_and(|handoff| handoff.create_revision == seen.id)
        });
        let ended = self.seen.len() < before;
        for (partition, handoff) in &view.handoffs {
            let same = self.seen.get(partition).is_some_and(|seen| seen.mod_revision == handoff.mod_revision);
            if same {
                continue;
            }
            let record = &handoff.value;
            if record.phase >= Phase::Switching {
                backoffs.succeeded(*partition, &record.new_owner, record.new_incarnation);
            }
            let seen = Seen {
                id: handoff.create_revision,
                mod_revision: handoff.mod_revision,
                phase: record.phase,
                since: now,
                given_up: false,
            };
            self.seen.insert(*partition, seen);
        }
        ended
    }

    /// For how long the partition's handoff has been as it is.
    pub(super) fn age(&self, partition: Partition, now: Duration) -> Duration {
        self.seen.get(&partition).map_or(Duration::ZERO, |seen| now.saturating_sub(seen.since))
    }

    /// Marks the partition's handoff as given up; whether that is new.
    pub(super) fn gives_up(&mut self, partition: Partition) -> bool {
        let Some(seen) = self.seen.get_mut(&partition) else {
            return false;
        };
        !std::mem::replace(&mut seen.given_up, true)
    }

    /// When the next phase has lasted too long.
    pub(super) fn next_wake(&self, policy: &Policy, now: Duration) -> Option<Duration> {
        let due = |seen: &Seen| seen.since + limit(policy, seen.phase);
        self.seen.values().map(due).filter(|due| *due > now).min()
    }
}

fn limit(policy: &Policy, phase: Phase) -> Duration {
    match phase {
        Phase::Warming => policy.warm_timeout,
        _ => policy.phase_timeout,
    }
}

/// What is to be done about a handoff.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is given up or tidied away.
    End(Action),
    /// It has waited for too long, but there is no way back.
    Overdue(Notice),
}

/// What is to be done about a handoff that has been as it is for `age`. `None`: let it go on.
pub(super) fn verdict(
    view: &View,
    policy: &Policy,
    partitions: Option<u32>,
    handoff: &Stamped<Handoff>,
    age: Duration,
) -> Option<Verdict> {
    let record = &handoff.value;
    if view.is_malformed(record.partition) {
        return None;
    }
    let standing = || Standing {
        handoff: handoff.clone(),
        assignment: view.assignments.get(&record.partition).map_or(0, |assignment| assignment.mod_revision),
    };
    let overdue = age >= limit(policy, record.phase);
    if past_no_return(record) {
        if is_dead(view, &record.new_owner, record.new_incarnation) {
            return Some(Verdict::End(Action::Abandon { standing: standing() }));
        }
        let waiting = if overdue { waiting_for(view, record.partition) } else { Vec::new() };
        return match record.phase {
            _ if waiting.is_empty() => None,
            Phase::Complete => Some(Verdict::End(Action::Delete { standing: standing(), waiting })),
            phase => Some(Verdict::Overdue(Notice::Overdue { partition: record.partition, phase, waiting })),
        };
    }
    cancel_reason(view, partitions, handoff, overdue)
        .map(|reason| Verdict::End(Action::Cancel { standing: standing(), reason }))
}

fn cancel_reason(
    view: &View,
    partitions: Option<u32>,
    handoff: &Stamped<Handoff>,
    overdue: bool,
) -> Option<CancelReason> {
    let record = &handoff.value;
    let warming = record.phase == Phase::Warming;
    if is_dead(view, &record.new_owner, record.new_incarnation) {
        return Some(CancelReason::NewOwnerDead);
    }
    if partitions.is_some_and(|partitions| record.partition >= partitions) {
        return Some(CancelReason::BeyondConfig);
    }
    if belies(view, record) {
        return Some(CancelReason::AssignmentChanged);
    }
    let new_owner = view.live_new_owner(record);
    if warming && new_owner.is_some_and(|pod| pod.status == PodStatus::Draining) {
        return Some(CancelReason::NewOwnerDraining);
    }
    if warming && record.mode == Mode::Independent && record.old_owner.is_some() && view.routers.len() > 1 {
        return Some(CancelReason::SecondRouter);
    }
    if let Some(router) = gave_up(view, handoff) {
        return Some(CancelReason::GaveUp { router });
    }
    match record.phase {
        _ if !overdue => None,
        Phase::Warming => Some(CancelReason::WarmTimeout),
        phase => {
            // With nobody to wait for the phase is about to move on: no timeout may race it.
            let waiting = waiting_for(view, record.partition);
            (!waiting.is_empty()).then_some(CancelReason::PhaseTimeout { phase, waiting })
        }
    }
}

/// Whether the assignment is not the one that the handoff was made from: somebody wrote it by hand.
fn belies(view: &View, handoff: &Handoff) -> bool {
    view.assignments.get(&handoff.partition).is_some_and(|assignment| {
        let assigned = &assignment.value;
        handoff.old_owner.as_deref() != Some(&assigned.owner)
            || handoff.old_incarnation != assigned.incarnation
            || handoff.epoch <= assigned.epoch
    })
}

/// A registered router that says that it cannot drain.
fn gave_up(view: &View, handoff: &Stamped<Handoff>) -> Option<String> {
    let acks = &view.acks.get(&handoff.value.partition)?.drained;
    let said = |(router, ack): &(&String, &crate::protocol::records::RouterDrainedAck)| {
        ack.gave_up && ack.handoff == handoff.create_revision && view.routers.contains_key(*router)
    };
    acks.iter().find(said).map(|(router, _)| router.clone())
}

/// The acks whose handoff is gone: somebody deleted its record by hand.
pub(super) fn sweep(view: &View) -> impl Iterator<Item = Action> {
    let left = view.acks.keys().filter(|partition| !view.handoffs.contains_key(partition));
    left.filter(|partition| !view.is_malformed(**partition)).map(|partition| Action::Sweep { partition: *partition })
}
