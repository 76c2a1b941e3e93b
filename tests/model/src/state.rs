//! A state of the modelled cluster: what the store holds and has held, what every process knows and does, where every
//! request is, and which faults may still happen.
//!
//! Plain data, compared and hashed as a whole. The processes are in [`router`](crate::router), [`pod`](crate::pod),
//! [`leader`](crate::leader) and [`gate_model`](crate::gate_model).

use std::sync::Arc;

use segue_protocol::handoff::epoch_fence::EpochFence;
use segue_protocol::handoff::pod_reconcile::LocalState;
use segue_protocol::ids::{Epoch, HandoffId, Incarnation, PartitionId, Revision};
use segue_proxy::routing::gate::GateState;
use segue_proxy::routing::partition_state::PartitionState;

use crate::action::Process;
use crate::checkpoints::Taken;
use crate::store::{StoreRef, TxnRef};

/// A set of requests.
pub(crate) type Requests = u8;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct State {
    /// The contents of the store from the oldest that somebody still sees to the newest, a revision apart.
    pub(crate) history: Vec<StoreRef>,
    /// Shared with the states before, as long as nothing changes about them.
    pub(crate) routers: Vec<Arc<Router>>,
    pub(crate) pods: Vec<Arc<Pod>>,
    pub(crate) requests: Vec<Request>,
    /// For each request the earlier ones of its key that were on their way to the same target when it passed the open
    /// gate. They are concurrent: no order of their arrival is promised.
    pub(crate) beside: Vec<Requests>,
    /// Requests under way between a router and a pod, in the order in which they were sent.
    pub(crate) exchanges: Vec<Exchange>,
    /// Writes that are on their way.
    pub(crate) slow: Vec<SlowWrite>,
    pub(crate) ledgers: Vec<Ledger>,
    pub(crate) coordinators: Coordinators,
    pub(crate) budget: Budget,
    /// What went wrong, as a set of [`Violation`]s.
    pub(crate) violated: u16,
    /// The leader has itself seen the key of the bounded owner gone for as long as its work may last.
    pub(crate) bound_passed: bool,
}

/// Why and how far a process may trust its lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Clock {
    Held,
    RunOut,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Router {
    pub(crate) is_up: bool,
    /// Its registration, as it believes; 0: none.
    pub(crate) incarnation: Incarnation,
    pub(crate) clock: Clock,
    /// What it has seen of the store; `None` until its first snapshot of this registration.
    pub(crate) view: Option<StoreRef>,
    /// It sees the assignments of another revision than the rest. Only where one revision for all is not demanded.
    pub(crate) assignments: Option<StoreRef>,
    pub(crate) gates: Vec<Gate>,
}

/// Where a partition's requests go: which life of which pod, and the epoch that they are stamped with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Target {
    pub(crate) pod: u8,
    pub(crate) incarnation: Incarnation,
    pub(crate) epoch: Epoch,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Gate {
    pub(crate) position: GateState,
    pub(crate) target: Option<Target>,
    pub(crate) waiting: Arc<PartitionState<u8>>,
    /// Its pod has just refused.
    pub(crate) backing_off: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Pod {
    pub(crate) is_up: bool,
    /// Its registration, as it believes; 0: none.
    pub(crate) incarnation: Incarnation,
    pub(crate) clock: Clock,
    pub(crate) view: Option<StoreRef>,
    /// Its service answers no request for a checkpoint.
    pub(crate) hangs: bool,
    pub(crate) parts: Vec<Part>,
}

/// What a pod does with a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Part {
    pub(crate) local: LocalState,
    pub(crate) fence: EpochFence,
    /// It has been told to drain and not to serve again since. What a pod without `fence` goes by.
    pub(crate) refuses: bool,
    /// The writes that its copy of the state contains.
    pub(crate) state: Requests,
    /// The checkpoint that it has made and does not see recorded.
    pub(crate) made: Option<Taken>,
    /// The handoff for which it has waited in vain for a checkpoint.
    pub(crate) waited: Option<HandoffId>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Request {
    /// The client has not sent it yet.
    Unsent,
    /// In its router's stash.
    Held,
    /// On its way to a pod, or back.
    Going,
    /// Answered: done.
    Acked,
    /// Answered with an error, or the connection broke, or the client hung up: it does not know.
    Failed,
}

impl Request {
    pub(crate) fn is_open(self) -> bool {
        matches!(self, Request::Held | Request::Going)
    }
}

/// How far a request is at a pod. That it has taken effect and its answer, or that it was refused and came back, are one
/// moment here: until then the pod may be as slow as it likes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Stage {
    /// There is no connection to the pod: nothing was sent.
    NotSent,
    /// On the wire.
    Sent,
    /// The pod works on it.
    Working,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Exchange {
    pub(crate) request: u8,
    pub(crate) router: u8,
    pub(crate) target: Target,
    /// It comes out of the stash, and the next of its key waits for its outcome.
    pub(crate) is_tried: bool,
    pub(crate) stage: Stage,
    /// The router counts it as in flight.
    pub(crate) is_counted: bool,
}

/// The participants of assignment rounds, as sets of bits. All else about them is in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Coordinators {
    /// They run.
    pub(crate) up: u8,
    /// They keep their registrations and do nothing else.
    pub(crate) stuck: u8,
}

/// A coordinator's write about a partition, as it was decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Decided {
    /// The leadership or the participant's life.
    pub(crate) by: Revision,
    /// The round that was in force.
    pub(crate) round: Option<Revision>,
    pub(crate) partition: PartitionId,
    /// Another coordinator has written about the partition since.
    pub(crate) is_ignorant: bool,
}

/// A write that has not reached the store yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct SlowWrite {
    pub(crate) txn: TxnRef,
    /// What is judged by if a coordinator decided it.
    pub(crate) decided: Option<Decided>,
    /// Who waits for its outcome before writing the like again, about which partition. `None`: its writer takes it for
    /// failed, but it may still happen.
    pub(crate) writer: Option<(Process, u8)>,
}

/// What is remembered of a partition to judge what happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Ledger {
    /// The newest epoch under which anything was accepted, and by which life of which pod.
    pub(crate) owner: Option<Target>,
    /// Every write that has taken effect.
    pub(crate) log: Requests,
    /// The newest epoch that a handoff was given. Only with rounds.
    pub(crate) given: Epoch,
}

/// Which faults may still happen, and how often.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Budget {
    pub(crate) pod_crashes: u8,
    pub(crate) pod_starts: u8,
    /// A pod's lease clock runs out; its lease may end while it continues.
    pub(crate) pod_clocks: u8,
    pub(crate) router_crashes: u8,
    pub(crate) router_starts: u8,
    pub(crate) router_clocks: u8,
    /// The leader loses its lease.
    pub(crate) leader_losses: u8,
    /// A write is slow, and its writer may take it for failed before it happens.
    pub(crate) delays: u8,
    /// A connection between router and pod breaks.
    pub(crate) breaks: u8,
    pub(crate) hang_ups: u8,
    /// A held request has waited as long as it may.
    pub(crate) expiries: u8,
    pub(crate) drain_timeouts: u8,
    pub(crate) phase_timeouts: u8,
    /// An operator deletes a handoff by hand.
    pub(crate) deletions: u8,
    /// Another hand puts garbage over a pod's registration, and so detaches it from its lease.
    pub(crate) detachments: u8,
    /// A participant loses its registration, and what it has decided may still be accepted.
    pub(crate) participant_crashes: u8,
    pub(crate) participant_starts: u8,
    /// A participant keeps its registration and does nothing else.
    pub(crate) stuck_participants: u8,
    /// The window of a round ends before all have joined.
    pub(crate) windows: u8,
    /// The heartbeat of the rounds passes.
    pub(crate) heartbeats: u8,
    /// A coordinator that follows other settings becomes the leader of a keyspace with rounds.
    pub(crate) leaders: u8,
    /// Another hand puts a leader's key, without a lease.
    pub(crate) foreign_leaders: u8,
    /// The interval between checkpoints passes for a partition.
    pub(crate) intervals: u8,
    /// A pod makes no more checkpoints.
    pub(crate) hangs: u8,
}

/// The invariants of the protocol, by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Violation {
    SingleWriter = 0,
    NoLostRequest = 1,
    NoOvertaking = 2,
    NoDoubleApply = 3,
    EpochsGrow = 4,
    Converges = 5,
    /// Of the rules rather than the invariants: a partition is given to a life that stands.
    OwnerLives = 6,
    /// Of the rounds: no two coordinators decide about a partition in ignorance of each other.
    OneActor = 7,
    /// Of checkpoints: one that is not of the owner, or that does not answer the handoff.
    Checkpoint = 8,
}

/// What a search must have seen to be worth anything, by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Reached {
    Completed = 0,
    Flushed = 1,
    Cancelled = 2,
    PutBack = 3,
    Severed = 4,
    GaveUp = 5,
    Fenced = 6,
    Abandoned = 7,
    Refused = 8,
    BoundPassed = 9,
    PutBackKey = 10,
    /// A round has closed after the first one.
    Rounds = 11,
    /// A new owner starts from a checkpoint that was made for it.
    StartedFromCheckpoint = 12,
    /// A new owner has waited for a checkpoint as long as it may.
    WaitedInVain = 13,
}

impl State {
    pub(crate) fn now(&self) -> StoreRef {
        // The newest content is never dropped.
        *self.history.last().expect("the store has a content")
    }

    pub(crate) fn violate(&mut self, violation: Violation) {
        self.violated |= 1 << violation as u8;
    }

    pub(crate) fn has_violated(&self, violation: Violation) -> bool {
        self.violated & (1 << violation as u8) != 0
    }

    /// Every revision by which something is known to a process or judged.
    pub(crate) fn change_identities(&mut self, change: impl Fn(Revision) -> Revision) {
        let life = |of: &mut Incarnation| *of = Incarnation::registered_at(change(of.revision()));
        let handoff = |of: &mut HandoffId| *of = HandoffId::created_at(change(of.revision()));
        for router in self.routers.iter_mut().map(Arc::make_mut) {
            life(&mut router.incarnation);
            router.gates.iter_mut().filter_map(|gate| gate.target.as_mut()).for_each(|to| life(&mut to.incarnation));
        }
        for pod in self.pods.iter_mut().map(Arc::make_mut) {
            life(&mut pod.incarnation);
            for part in &mut pod.parts {
                part.local.loaded.iter_mut().for_each(|loaded| handoff(&mut loaded.handoff));
                part.local.drained.iter_mut().for_each(handoff);
                part.waited.iter_mut().for_each(handoff);
            }
        }
        self.exchanges.iter_mut().for_each(|exchange| life(&mut exchange.target.incarnation));
        self.ledgers.iter_mut().filter_map(|it| it.owner.as_mut()).for_each(|owner| life(&mut owner.incarnation));
    }

    /// Every epoch that is known to a process or judged by.
    pub(crate) fn change_epochs(&mut self, each: &mut impl FnMut(&mut Epoch)) {
        for router in self.routers.iter_mut().map(Arc::make_mut) {
            router.gates.iter_mut().filter_map(|gate| gate.target.as_mut()).for_each(|to| each(&mut to.epoch));
        }
        for part in self.pods.iter_mut().map(Arc::make_mut).flat_map(|pod| &mut pod.parts) {
            part.local.loaded.iter_mut().for_each(|loaded| each(&mut loaded.epoch));
            part.fence.accepted.iter_mut().for_each(&mut *each);
            part.made.iter_mut().for_each(|made| each(&mut made.epoch));
            each(&mut part.fence.known);
            each(&mut part.fence.last);
        }
        self.exchanges.iter_mut().for_each(|exchange| each(&mut exchange.target.epoch));
        self.ledgers.iter_mut().filter_map(|it| it.owner.as_mut()).for_each(|owner| each(&mut owner.epoch));
        self.ledgers.iter_mut().for_each(|it| each(&mut it.given));
    }

    /// The epochs, to look at.
    pub(crate) fn each_epoch(&self, each: &mut impl FnMut(Epoch)) {
        for router in &self.routers {
            router.gates.iter().filter_map(|gate| gate.target).for_each(|to| each(to.epoch));
        }
        for part in self.pods.iter().flat_map(|pod| &pod.parts) {
            part.local.loaded.iter().for_each(|loaded| each(loaded.epoch));
            part.fence.accepted.iter().for_each(|epoch| each(*epoch));
            part.made.iter().for_each(|made| each(made.epoch));
            each(part.fence.known);
            each(part.fence.last);
        }
        self.exchanges.iter().for_each(|exchange| each(exchange.target.epoch));
        self.ledgers.iter().filter_map(|it| it.owner).for_each(|owner| each(owner.epoch));
        self.ledgers.iter().for_each(|it| each(it.given));
    }

    /// The identities, to look at.
    pub(crate) fn each_identity(&self, each: &mut impl FnMut(Revision)) {
        for router in &self.routers {
            each(router.incarnation.revision());
            router.gates.iter().filter_map(|gate| gate.target).for_each(|to| each(to.incarnation.revision()));
        }
        for pod in &self.pods {
            each(pod.incarnation.revision());
            for part in &pod.parts {
                part.local.loaded.iter().for_each(|loaded| each(loaded.handoff.revision()));
                part.local.drained.iter().for_each(|handoff| each(handoff.revision()));
                part.waited.iter().for_each(|handoff| each(handoff.revision()));
            }
        }
        self.exchanges.iter().for_each(|exchange| each(exchange.target.incarnation.revision()));
        self.ledgers.iter().filter_map(|it| it.owner).for_each(|owner| each(owner.incarnation.revision()));
    }

    /// Drops the state that no participant can see any more.
    pub(crate) fn tidy(&mut self) {
        let seen = self.routers.iter().flat_map(|router| [router.view, router.assignments]);
        let seen: Vec<StoreRef> = seen.chain(self.pods.iter().map(|pod| pod.view)).flatten().collect();
        let oldest = self.history.iter().position(|content| seen.contains(content));
        self.history.drain(..oldest.unwrap_or(self.history.len() - 1));
    }
}
