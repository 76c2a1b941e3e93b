//! Decides what a pod must do with a partition, and which epoch's requests it may accept.
//!
//! Pure and level-triggered, like [`router`](super::router): a shell compares the [`Duty`] with what it is doing and
//! makes the two agree.
//!
//! # Invariants
//!
//! * At any revision at most one pod is told to serve a partition.
//! * An old owner is told to refuse before a new one is told to serve.
//! * A new owner is told to read the tail, or to serve before the flip, only while the assignment is the one that its
//!   handoff started from.

use super::advance::{in_need_of_repair, old_confirms, pending_bound};
use super::flip::{place, starts_from};
use crate::ids::{Epoch, HandoffId, Incarnation, PartitionId};
use crate::records::{Handoff, Mode, Phase, PodAckKind};
use crate::txn::{Compare, Op, Txn};
use crate::view::{PodLife, View};

/// A pod's current task for a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Duty {
    /// Nothing: the pod does not own the partition and is not about to. State that it still has can be released.
    Idle,
    /// Copy the state, then move the handoff to `Ready` ([`warmed`]).
    Warm {
        /// The handoff.
        handoff: HandoffId,
        /// The epoch that the pod will have.
        epoch: Epoch,
    },
    /// Keep the copied state; other participants are at work.
    Stand {
        /// The handoff.
        handoff: HandoffId,
        /// The epoch that the pod will have.
        epoch: Epoch,
    },
    /// The log is at rest: read what is missing, then acknowledge `synced`.
    Sync {
        /// The handoff.
        handoff: HandoffId,
        /// The epoch that the pod will have.
        epoch: Epoch,
    },
    /// Accept requests that carry this epoch.
    Serve {
        /// The epoch.
        epoch: Epoch,
    },
    /// Refuse new requests, let those in flight end, then acknowledge `drained`.
    Drain {
        /// The handoff.
        handoff: HandoffId,
        /// The epoch that ends.
        epoch: Epoch,
    },
    /// Release the state, then acknowledge `released`.
    Release {
        /// The handoff.
        handoff: HandoffId,
    },
}

/// Returns the duty of the pod `me`, in the life `incarnation`, for a partition.
pub fn duty(view: &View, me: &str, incarnation: Incarnation, partition: PartitionId) -> Duty {
    let Some(record) = view.live_pod(me, incarnation) else {
        return Duty::Idle;
    };
    if view.is_malformed(partition) {
        return Duty::Idle;
    }
    let assigned = view
        .assignments
        .get(&partition)
        .map(|assignment| &assignment.value)
        .filter(|assignment| assignment.owner == me && assignment.incarnation == incarnation);
    let Some(standing) = view.handoffs.get(&partition) else {
        return assigned.map_or(Duty::Idle, |assignment| Duty::Serve { epoch: assignment.epoch });
    };
    let (handoff, value) = (standing.id(), &standing.value);
    let epoch = value.epoch;
    let is_new = value.new_owner == me && value.new_incarnation == incarnation;
    let is_old = value.old_owner.as_deref() == Some(me) && value.old_incarnation == incarnation;
    let said = |kind| view.pod_ack(partition, me, kind, handoff).is_some();
    match (value.phase, value.mode) {
        (Phase::Warming, _) if is_new => Duty::Warm { handoff, epoch },
        // The pod reads the tail itself before its first request. Planning creates no such move to a pod with the
        // capability `sync`.
        (Phase::Ready, Mode::Independent) if is_new && value.old_owner.is_some() && starts_from(view, value) => {
            Duty::Serve { epoch }
        }
        (Phase::Syncing, _) if is_new => {
            let reads = record.capabilities.sync && !said(PodAckKind::Synced) && starts_from(view, value);
            let due = reads && log_at_rest(view, value, handoff);
            if due { Duty::Sync { handoff, epoch } } else { Duty::Stand { handoff, epoch } }
        }
        (Phase::Ready, _) if is_new => Duty::Stand { handoff, epoch },
        (Phase::Syncing, _) if is_old && record.capabilities.drained => match assigned {
            Some(assignment) => Duty::Drain { handoff, epoch: assignment.epoch },
            None => Duty::Idle,
        },
        (Phase::Switching, _) if is_old => Duty::Stand { handoff, epoch },
        (Phase::Complete, _) if is_old && record.capabilities.released && !said(PodAckKind::Released) => {
            Duty::Release { handoff }
        }
        _ => assigned.map_or(Duty::Idle, |assignment| Duty::Serve { epoch: assignment.epoch }),
    }
}

/// Returns the handoff by which routers stop sending the partition's requests to the pod `me`, and the epoch that ends,
/// while they do so: from `Ready` until they have drained. The pod goes on serving, and should end its own streams.
pub fn leaving(view: &View, me: &str, incarnation: Incarnation, partition: PartitionId) -> Option<(HandoffId, Epoch)> {
    if view.is_malformed(partition) {
        return None;
    }
    let (standing, assignment) = (view.handoffs.get(&partition)?, &view.assignments.get(&partition)?.value);
    let record = &standing.value;
    let is_old = record.old_owner.as_deref() == Some(me) && record.old_incarnation == incarnation;
    let owns = assignment.owner == me && assignment.incarnation == incarnation;
    (record.phase == Phase::Ready && is_old && owns).then_some((standing.id(), assignment.epoch))
}

/// Returns the transaction by which a new owner reports that it is warm: `Warming` → `Ready`. A first placement ends with it
/// (`place`). `None` if there is no such handoff, or if one of its parties cannot be read.
pub fn warmed(
    view: &View,
    me: &str,
    incarnation: Incarnation,
    handoff: HandoffId,
    partition: PartitionId,
    now: u64,
) -> Option<Txn> {
    let record = view.handoffs.get(&partition).filter(|record| record.id() == handoff)?;
    if record.value.phase != Phase::Warming || !in_need_of_repair(view, &record.value).is_empty() {
        return None;
    }
    if record.value.old_owner.is_none() {
        return place(view, record, now);
    }
    let ready = record.value.clone().entering(Phase::Ready, now);
    let key = view.keys().handoff(partition);
    let mut when = vec![
        Compare::unchanged_since(key.clone(), record.mod_revision),
        Compare::created_at(view.keys().pod(me), incarnation.revision()),
    ];
    if record.value.mode == Mode::Independent {
        // A router that registers later would still send to the old owner after the first router has switched. The
        // coordinator cancels such a move.
        when.push(Compare::none_created_after(view.keys().routers(), handoff.revision()));
    }
    Some(Txn::guarded(when, [Op::put(key, crate::records::encode(&ready))]))
}

/// Returns whether the partition's log is at rest: the old owner has acknowledged, cannot acknowledge, or is dead and
/// has no work left.
fn log_at_rest(view: &View, handoff: &Handoff, id: HandoffId) -> bool {
    let Some(old) = handoff.old_owner.as_deref() else {
        return true;
    };
    if view.pod_ack(handoff.partition, old, PodAckKind::Drained, id).is_some() {
        return true;
    }
    match view.life(old, handoff.old_incarnation) {
        PodLife::Over => pending_bound(view, handoff.partition).is_none(),
        PodLife::Unreadable => false,
        PodLife::Registered(_) | PodLife::Leaseless(_) => !old_confirms(view, handoff),
    }
}
