//! The keyspaces of a worker: finds the one that a request is for.
//!
//! # Invariants
//!
//! * A keyspace has a table, connections to pods, retry budgets and counters of its own. No request waits for another
//!   keyspace.
//! * A request for no keyspace reaches no table. It counts for the listener.
//! * A request keeps the keyspace that it was for when it arrived. The list changes between two requests, never during the
//!   choice, as both happen on the worker's thread without an `await`.
//! * What the worker has of a keyspace that was removed is dropped with the last request of that keyspace.

use std::cell::{Ref, RefCell};
use std::rc::{Rc, Weak};

use http::Request;

use super::context::WorkerContext;
use crate::message::client_body::ClientBody;
use crate::routing::keyspace_choice::{KeyspaceMatch, KeyspaceMatches, NoKeyspace};

/// The keyspaces of a worker, and which requests are for which.
pub(super) enum Keyspaces {
    /// An only keyspace, which gets every request.
    Only(Rc<WorkerContext>),
    /// A list of keyspaces, which changes while the worker serves.
    Among(KeyspaceList),
}

/// The list of a worker's keyspaces.
pub(super) struct KeyspaceList {
    listed: RefCell<KeyspaceIndex>,
    /// Keyspaces that were removed. Their requests keep them.
    removed: RefCell<Vec<Weak<WorkerContext>>>,
    /// The state for requests that are for none. Its table is never asked.
    none: Rc<WorkerContext>,
}

#[derive(Default)]
struct KeyspaceIndex {
    matches: KeyspaceMatches,
    each: Vec<IndexedKeyspace>,
}

/// A keyspace, and the requests that are for it.
struct IndexedKeyspace {
    name: String,
    matching: Option<KeyspaceMatch>,
    context: Rc<WorkerContext>,
}

impl Keyspaces {
    /// Returns the state of the keyspace that a request is for.
    pub(super) fn of(&self, request: &Request<ClientBody>) -> (Rc<WorkerContext>, Option<NoKeyspace>) {
        match self {
            Keyspaces::Only(only) => (only.clone(), None),
            Keyspaces::Among(list) => {
                let listed = list.listed.borrow();
                match listed.matches.of(request.uri(), request.headers()) {
                    Ok(index) => (listed.each[index].context.clone(), None),
                    Err(why) => (list.none.clone(), Some(why)),
                }
            }
        }
    }

    /// Returns the state for requests that are for no keyspace, which is that of an only one.
    pub(super) fn none(&self) -> &WorkerContext {
        match self {
            Keyspaces::Only(only) => only,
            Keyspaces::Among(list) => &list.none,
        }
    }

    /// Returns the state of each keyspace, including those that were removed and still have requests.
    pub(super) fn all(&self) -> Vec<Rc<WorkerContext>> {
        match self {
            Keyspaces::Only(only) => vec![only.clone()],
            Keyspaces::Among(list) => {
                let listed = Ref::map(list.listed.borrow(), |listed| &listed.each);
                let removed = list.removed.borrow();
                let listed = listed.iter().map(|keyspace| keyspace.context.clone());
                listed.chain(removed.iter().filter_map(Weak::upgrade)).collect()
            }
        }
    }
}

impl KeyspaceList {
    /// Returns an empty list.
    pub(super) fn new(none: Rc<WorkerContext>) -> Self {
        KeyspaceList { listed: RefCell::default(), removed: RefCell::default(), none }
    }

    /// Has the next request find this keyspace.
    pub(super) fn add(&self, name: String, matching: Option<KeyspaceMatch>, context: Rc<WorkerContext>) {
        let mut listed = self.listed.borrow_mut();
        listed.each.push(IndexedKeyspace { name, matching, context });
        listed.find_matches();
    }

    /// Has no further request find the keyspace of this name.
    pub(super) fn remove(&self, name: &str) {
        let mut listed = self.listed.borrow_mut();
        let Some(index) = listed.each.iter().position(|keyspace| keyspace.name == name) else { return };
        let keyspace = listed.each.remove(index);
        listed.find_matches();
        let mut removed = self.removed.borrow_mut();
        removed.retain(|context| context.strong_count() > 0);
        removed.push(Rc::downgrade(&keyspace.context));
    }
}

impl KeyspaceIndex {
    fn find_matches(&mut self) {
        self.matches = KeyspaceMatches::new(self.each.iter().map(|keyspace| keyspace.matching.as_ref()));
    }
}
