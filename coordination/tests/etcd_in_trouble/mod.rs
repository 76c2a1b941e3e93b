//! The store's client against an etcd with users, of two clusters, with a learner, or that answers what none should.
//!
//! A real etcd where it can be brought into that state, and a [`scripted`] one otherwise.

mod clusters;
mod goes_back;
mod refusals;
mod responses;
mod scripted;
mod users;

use segue_protocol::txn::{Keys, Op, Txn};

fn put(key: &str) -> Txn {
    let then = vec![Op::put(key, b"1".to_vec())];
    Txn::guarded([], then)
}

fn all() -> Keys {
    Keys::Prefix("/segue/".to_owned())
}
