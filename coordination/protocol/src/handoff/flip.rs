//! The write that changes a partition's owner.
//!
//! Pure. In a move it is one of the writes that move the phase on ([`advance`](super::advance)). A first placement ends with it:
//! nobody has owned the partition, so there is nothing to drain, no tail to read and nobody who has to release. A router that
//! does not see the assignment yet holds the partition's requests, so no router has to acknowledge.
//!
//! # Invariants
//!
//! * Only the assignment that the handoff started from is changed.
//! * A first owner is assigned after it has warmed, while its life exists and nobody else is assigned.

use super::history::{HandoffEnding, end_without_acks};
use crate::ids::Revision;
use crate::records::{Assignment, Handoff, encode};
use crate::txn::{Compare, Op, Txn};
use crate::view::{Versioned, View};

/// Returns whether the partition's assignment is the one that the handoff started from: the old owner's life, at an
/// epoch below the new one, or none in a first placement. `true` while the assignment cannot be read.
pub(crate) fn starts_from(view: &View, handoff: &Handoff) -> bool {
    let Some(assignment) = view.assignments.get(&handoff.partition) else {
        return handoff.old_owner.is_none() || view.is_malformed(handoff.partition);
    };
    let assigned = &assignment.value;
    handoff.old_owner.as_deref() == Some(&assigned.owner)
        && handoff.old_incarnation == assigned.incarnation
        && handoff.epoch > assigned.epoch
}

/// Returns whether the partition's assignment is the one that the handoff has written.
pub(crate) fn has_flipped(view: &View, handoff: &Handoff) -> bool {
    view.assignments.get(&handoff.partition).map(|assignment| &assignment.value).is_some_and(|assigned| {
        (&assigned.owner, assigned.incarnation, assigned.epoch)
            == (&handoff.new_owner, handoff.new_incarnation, handoff.epoch)
    })
}

/// Returns the write that changes the owner, and the guard that the assignment is still the one that the view shows. A
/// first placement requires that there is no assignment. `None` if the handoff did not start from that assignment: a
/// newer owner would lose the partition to an older epoch.
pub(crate) fn flip(view: &View, handoff: &Handoff) -> Option<(Compare, Op)> {
    if !starts_from(view, handoff) {
        return None;
    }
    let key = view.keys().assignment(handoff.partition);
    let seen = match &handoff.old_owner {
        Some(_) => view.assignment_revision(handoff.partition),
        None => Revision::ZERO,
    };
    let assignment = Assignment {
        work_ends_within_ms: view.live_new_owner(handoff).and_then(|pod| pod.work_ends_within_ms),
        ..Assignment::new(handoff.partition, handoff.new_owner.clone(), handoff.new_incarnation, handoff.epoch)
    };
    Some((Compare::unchanged_since(key.clone(), seen), Op::put(key, encode(&assignment))))
}

/// Returns the transaction that assigns the partition to its first owner, which has warmed, and ends the handoff. `None` if
/// the partition has had an owner, or has one by now. `now` is informational.
pub(super) fn place(view: &View, handoff: &Versioned<Handoff>, now: u64) -> Option<Txn> {
    let (keys, record) = (view.keys(), &handoff.value);
    if record.old_owner.is_some() {
        return None;
    }
    let (unassigned, assign) = flip(view, record)?;
    let when = [
        Compare::unchanged_since(keys.handoff(record.partition), handoff.mod_revision),
        Compare::created_at(keys.pod(&record.new_owner), record.new_incarnation.revision()),
        unassigned,
    ];
    let [delete, put] = end_without_acks(view, handoff, HandoffEnding::COMPLETED, now);
    Some(Txn::guarded(when, [assign, delete, put]))
}
