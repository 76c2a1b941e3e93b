//! The keyspaces of a worker: finds the one that a request is for.
//!
//! # Invariants
//!
//! * A keyspace has a table, connections to pods, retry budgets and counters of its own. No request waits for another
//!   keyspace.
//! * A request for no keyspace reaches no table. It counts for the listener.

use std::rc::Rc;

use http::Request;

use super::context::WorkerContext;
use crate::message::client_body::ClientBody;
use crate::routing::keyspace_choice::{KeyspaceChoice, NoKeyspace};

/// The keyspaces of a worker, and which requests are for which.
pub(super) struct Keyspaces {
    pub(super) choice: KeyspaceChoice,
    pub(super) each: Vec<Rc<WorkerContext>>,
    /// The state for requests that are for none. Their table is never asked. With an only keyspace there
    /// are none, and this is that keyspace.
    pub(super) none: Rc<WorkerContext>,
}

impl Keyspaces {
    /// Returns the state of the keyspace that a request is for.
    pub(super) fn of(&self, request: &Request<ClientBody>) -> (Rc<WorkerContext>, Option<NoKeyspace>) {
        match self.choice.of(request.uri(), request.headers()) {
            Ok(index) => (self.each[index].clone(), None),
            Err(why) => (self.none.clone(), Some(why)),
        }
    }
}
