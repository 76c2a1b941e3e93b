//! The result of judging an order by a view: what to write, and what to tell the operator.

use segue_protocol::ids::Revision;
use segue_protocol::txn::{Compare, Keys, Op, Txn};

use super::order::ActionOutcome;

/// An outcome, and the transaction that brings it about. Without writes the keyspace is as it should be.
pub(super) type ChangeDecision = (Txn, ActionOutcome);

/// Leaves the keyspace as it is.
pub(super) fn unchanged(outcome: ActionOutcome) -> ChangeDecision {
    (Txn::default(), outcome)
}

/// Deletes a key that is as the view showed it.
pub(super) fn deleting(key: String, seen: Revision, outcome: ActionOutcome) -> ChangeDecision {
    let when = vec![Compare::unchanged_since(&key, seen)];
    (Txn { when, then: vec![Op::Delete(Keys::One(key))], otherwise: None }, outcome)
}
