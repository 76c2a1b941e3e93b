//! A participant's own key: how it stands, and the transactions that put it back and withdraw it.
//!
//! Pure. A plain put by another hand detaches the key from its lease: it would outlive its process, and no partition
//! would ever be moved away from it. Its writer puts it back under guards that only its own life can meet. Elsewhere:
//! when to look (`participant` of `segue-coordination`), and what a key without a lease means to others
//! ([`View`](crate::view::View)).

use crate::ids::{Incarnation, LeaseId, Revision};
use crate::txn::{Compare, Keys, Op, Txn};
use crate::view::Stamped;

/// How a participant finds its own key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Attachment {
    /// The key goes with this participant's lease.
    Attached,
    /// The record is still this life's, but has no lease or another one. It was last put at this revision.
    Detached(Revision),
    /// The key is gone, or belongs to another life.
    Gone,
}

/// How the key of the life `incarnation` with this lease stands.
pub fn attachment<T>(seen: Option<&Stamped<T>>, incarnation: Incarnation, lease: LeaseId) -> Attachment {
    match seen.filter(|seen| seen.create_revision == incarnation.revision()) {
        None => Attachment::Gone,
        Some(seen) if seen.lease == Some(lease) => Attachment::Attached,
        Some(seen) => Attachment::Detached(seen.mod_revision),
    }
}

/// Puts the key of this life back as it was registered, if nothing has changed since it was last put at `seen`.
pub fn put_back(key: &str, incarnation: Incarnation, seen: Revision, value: Vec<u8>, lease: LeaseId) -> Txn {
    Txn {
        when: vec![Compare::created_at(key, incarnation.revision()), Compare::unchanged_since(key, seen)],
        then: vec![Op::Put { key: key.to_owned(), value, lease: Some(lease) }],
        otherwise: None,
    }
}

/// Deletes the key of this life, if it stands. The participant must have fenced itself before.
pub fn withdraw(key: &str, incarnation: Incarnation) -> Txn {
    Txn {
        when: vec![Compare::created_at(key, incarnation.revision())],
        then: vec![Op::Delete(Keys::One(key.to_owned()))],
        otherwise: None,
    }
}

/// Deletes a key that was last put at `seen`, whoever's it is and whatever lease it stands with. An operator's decision.
pub fn forget(key: &str, seen: Revision) -> Txn {
    Txn {
        when: vec![Compare::unchanged_since(key, seen)],
        then: vec![Op::Delete(Keys::One(key.to_owned()))],
        otherwise: None,
    }
}

/// Deletes a key without a lease that was last put at `seen`, whoever's it is.
pub fn clear(key: &str, seen: Revision) -> Txn {
    Txn {
        when: vec![Compare::without_lease(key), Compare::unchanged_since(key, seen)],
        then: vec![Op::Delete(Keys::One(key.to_owned()))],
        otherwise: None,
    }
}
