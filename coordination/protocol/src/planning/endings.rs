//! Ends the handoffs that have to end, and remembers whose failure it was. Why one has to end is decided in
//! [`phase_timeouts`] and [`slow_warms`](super::slow_warms).

use std::time::Duration;

use super::actions::{CancelReason, ObservedHandoff, PlannedWrite};
use super::phase_timeouts::{self, TimeoutVerdict};
use super::{Memory, Plan, Policy};
use crate::records::Handoff;
use crate::view::{Versioned, View};

/// Cancels and deletes the handoffs that have to end, independently of rounds. Returns whether there were any.
pub(super) fn end_handoffs(view: &View, policy: &Policy, memory: &mut Memory, now: Duration, plan: &mut Plan) -> bool {
    let partitions = memory.number.of(view);
    let mut ending = false;
    for (&partition, handoff) in &view.handoffs {
        if phase_timeouts::waits_for_bound(view, handoff) {
            memory.phase_timeouts.restart(partition, now);
        }
        let overdue = memory.phase_timeouts.is_overdue(view, policy, &handoff.value, now);
        let verdict = phase_timeouts::verdict(view, partitions, handoff, overdue);
        let age = memory.phase_timeouts.age(partition, now);
        match verdict.or_else(|| leaves_slow_pod(view, memory, handoff, age, now)) {
            None => continue,
            Some(TimeoutVerdict::Overdue(notice)) => plan.notices.push(notice),
            Some(TimeoutVerdict::End(mut action)) => {
                without_blame(memory, &mut action);
                note(memory, &mut action, now);
                plan.actions.push(action);
                ending = true;
            }
        }
    }
    ending
}

/// Returns the cancel of a handoff whose partition nobody serves, if another pod may warm it sooner.
fn leaves_slow_pod(
    view: &View,
    memory: &mut Memory,
    handoff: &Versioned<Handoff>,
    age: Duration,
    now: Duration,
) -> Option<TimeoutVerdict> {
    let partition = handoff.value.partition;
    let may_take = |pod: &str| {
        let takes = view.pods.get(pod).is_some_and(|record| record.lease.is_some()) && !view.is_draining(pod);
        let is_avoided = || memory.backoffs.avoids(partition, pod, now).is_some();
        takes && !memory.backoffs.is_shunned(pod, now) && !memory.heartbeats.is_suspected(pod, now) && !is_avoided()
    };
    memory.slow_warms.leaves(view, handoff, age, may_take, now).then(|| {
        let observed = ObservedHandoff { handoff: handoff.clone(), assignment: view.assignment_revision(partition) };
        let reason = CancelReason::NewOwnerSlow;
        TimeoutVerdict::End(PlannedWrite::Cancel { observed, reason, back_offs: Vec::new() })
    })
}

/// Names the store as the reason of a cancel if it refused writes while the phase lasted.
fn without_blame(memory: &Memory, action: &mut PlannedWrite) {
    if let PlannedWrite::Cancel { observed, reason, .. } = action
        && let CancelReason::PhaseTimeout { phase, .. } = *reason
        && memory.phase_timeouts.was_refused(observed.partition())
    {
        *reason = CancelReason::StoreRefused { phase };
    }
}

/// Remembers whose failure the end of a handoff is, and adds to a cancel what rests because of it.
pub(super) fn note(memory: &mut Memory, action: &mut PlannedWrite, now: Duration) {
    let (PlannedWrite::Cancel { observed, .. }
    | PlannedWrite::Abandon { observed }
    | PlannedWrite::Delete { observed, .. }) = &*action
    else {
        return;
    };
    let (partition, pod) = (observed.partition(), &observed.handoff.value.new_owner);
    let before = memory.backoffs.remembered(partition, pod);
    // A pod that was cut off from the store has not died over its warm-up.
    let is_for_a_dead_owner = matches!(action, PlannedWrite::Cancel { reason: CancelReason::NewOwnerDead, .. });
    let is_blameless = is_for_a_dead_owner && memory.departures.are_blameless(now);
    if memory.phase_timeouts.gives_up(partition, before) && !is_blameless {
        memory.backoffs.note(action, now);
    }
    memory.backoffs.show(action, now);
}
