//! A state of the search: the store, what each instance and each pod knows, and what is under way.

use std::collections::VecDeque;
use std::hash::{Hash, Hasher};

use segue_protocol::handoff::remote_pod::{PodMessages, RemotePod, RemoteTask, TaskReport};
use segue_protocol::ids::{Epoch, Incarnation};

use crate::store::StoreRef;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct State {
    pub(super) now: StoreRef,
    /// What each instance sees.
    pub(super) views: [StoreRef; 2],
    pub(super) clients: [Client; 2],
    /// The stream of each pod, which it reads.
    pub(super) streams: [Option<Stream>; 2],
    /// Registrations whose token was never sent, and which their instances have still to end: the pod and its life.
    pub(super) holds: Vec<(usize, Incarnation)>,
    /// The epoch of the last write, and the number of writes.
    pub(super) log: (Epoch, u8),
    pub(super) faults: Faults,
    /// The invariant that is violated.
    pub(super) violated: Option<&'static str>,
}

impl State {
    /// Gives states that cannot be told apart one form.
    pub(super) fn forget_what_has_no_future(&mut self) {
        for client in &mut self.clients {
            if self.faults.repeats == 0 {
                client.done.clear();
            }
            // They arrive in any order.
            client.reports.sort_by_key(|report| (report.handoff, report.callback.as_str()));
        }
        self.holds.sort();
    }
}

/// By its text: what a pod was told has no hash, and all that is in a state has an order.
impl Hash for State {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        format!("{self:?}").hash(hasher);
    }
}

/// A pod's process.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Client {
    /// The registration that its token stands for.
    pub(super) token: Option<Incarnation>,
    /// The epoch at which it serves the partition.
    pub(super) owned: Option<Epoch>,
    /// The state that it has: the epoch that it was warmed for, and the number of writes in it.
    pub(super) held: Option<(Epoch, u8)>,
    /// What it has to do, in order: a release, and what follows it.
    pub(super) tasks: VecDeque<RemoteTask>,
    /// Reports that have no outcome yet.
    pub(super) reports: Vec<TaskReport>,
    /// Reports that have one, and the life that made them. They may arrive once more.
    pub(super) done: Vec<(Incarnation, TaskReport)>,
}

/// A stream, as its instance sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stream {
    pub(super) instance: usize,
    pub(super) life: Incarnation,
    pub(super) server: RemotePod,
    /// On their way to the pod. `true`: the first, which replaces all that the pod knows and carries the token.
    pub(super) events: VecDeque<(bool, PodMessages)>,
    /// The first event has reached the pod.
    pub(super) has_begun: bool,
}

/// What else may still happen, and how often.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Faults {
    pub(super) plans: u8,
    pub(super) cancels: u8,
    pub(super) writes: u8,
    pub(super) breaks: u8,
    pub(super) restarts: u8,
    pub(super) repeats: u8,
}
