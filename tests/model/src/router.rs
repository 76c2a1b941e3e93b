//! A router of the model, as far as the protocol goes: `next_step` decides, and the decision is carried out at once.
//!
//! Mirrors `run_router` of `segue-coordination`: after every change of the view, of the lease clock or of a gate the
//! router does all that it can do without the store. Requests are in [`gate_model`](crate::gate_model).

use segue_protocol::handoff::advance::{Ack, acknowledge};
use segue_protocol::handoff::router::{self as protocol, DrainTimeout, OnDrainTimeout, RouteStep, Trust};
use segue_protocol::ids::{HandoffId, Incarnation, PartitionId};
use segue_protocol::records::{PodRecord, RouterCutoverAck, RouterDrainedAck};
use segue_protocol::txn::Txn;
use segue_protocol::view::View;
use segue_proxy::routing::gate::GateState;

use crate::cluster::{Cluster, RouterAsks, RouterStep};
use crate::rules::{Rule, strike};
use crate::state::{Clock, Gate, Request, Router, Stage, State, Target};
use crate::store::TxnRef;

impl Router {
    pub(crate) fn down(partitions: u8) -> Self {
        let gates = (0..partitions).map(|_| Gate::closed()).collect();
        Router {
            is_up: false,
            incarnation: Incarnation::NONE,
            clock: Clock::Held,
            view: None,
            assignments: None,
            gates,
        }
    }
}

impl Cluster {
    fn router_sees<'a>(&'a self, router: &Router) -> Option<(&'a View, (u32, u32))> {
        let at = router.view?;
        Some(match router.assignments {
            Some(assignments) => (self.merged(at, assignments), (at.id(), assignments.id())),
            None => (self.followed(at), (at.id(), at.id())),
        })
    }

    /// Does all that is to be done without the store.
    pub(crate) fn reconcile_router(&self, state: &mut State, router: u8) {
        for partition in 0..self.scenario.partitions {
            while let Some(step) = self.router_step(state, router, partition) {
                match step {
                    RouterStep::Stop => self.stop(state, router, partition),
                    RouterStep::Switch(target) => self.switch(state, router, partition, target),
                    RouterStep::Acknowledge(_) => break,
                }
            }
        }
    }

    pub(crate) fn router_step(&self, state: &State, router: u8, partition: u8) -> Option<RouterStep> {
        let it = &state.routers[usize::from(router)];
        let (view, seen) = self.router_sees(it).filter(|_| it.is_up)?;
        let gate = &it.gates[usize::from(partition)];
        let asks = RouterAsks {
            view: seen,
            router,
            incarnation: it.incarnation,
            partition,
            clock: (it.incarnation != Incarnation::NONE).then_some(it.clock),
            position: gate.position,
            target: gate.target,
            backing_off: gate.backing_off,
        };
        self.remember(|memory| &mut memory.router_steps, asks, || self.decide(view, asks))
    }

    fn decide(&self, view: &View, asks: RouterAsks) -> Option<RouterStep> {
        let me = &self.router_names[usize::from(asks.router)];
        let partition = PartitionId::new(asks.partition.into());
        let trust = match asks.clock {
            None => Trust::Gone,
            Some(Clock::Held) => Trust::Held,
            Some(Clock::RunOut) => Trust::RunOut(self.scenario.on_store_loss),
        };
        let at = asks.target.map(|target| self.named(target));
        let stage = match (asks.position, at) {
            (GateState::Open, Some(at)) => protocol::GateStage::Open(at),
            (GateState::Draining, Some(at)) => protocol::GateStage::Draining(at),
            (GateState::Flushing, Some(at)) => protocol::GateStage::Flushing(at),
            _ => protocol::GateStage::Closed,
        };
        if self.without(Rule::SnapshotIsCutover)
            && !view.handoffs.contains_key(&partition)
            && matches!(stage, protocol::GateStage::Draining(_))
            && let protocol::Route::To(to) = protocol::route(view, partition, trust)
        {
            return Some(RouterStep::Switch(self.numbered(&to)));
        }
        match protocol::next_step(view, partition, trust, &stage, asks.backing_off)? {
            RouteStep::Stop => Some(RouterStep::Stop),
            RouteStep::Switch(target) => Some(RouterStep::Switch(self.numbered(&target))),
            RouteStep::AckDrained(handoff) => {
                let ack = self.drained(asks.router, partition, handoff, false);
                Some(RouterStep::Acknowledge(self.acknowledgement(view, asks.router, asks.incarnation, &ack)))
            }
            RouteStep::AckCutover(handoff) => {
                let ack = Ack::RouterCutover(RouterCutoverAck::new(me.clone(), partition, handoff));
                Some(RouterStep::Acknowledge(self.acknowledgement(view, asks.router, asks.incarnation, &ack)))
            }
        }
    }

    fn drained(&self, router: u8, partition: PartitionId, handoff: HandoffId, gave_up: bool) -> Ack {
        let router_name = self.router_names[usize::from(router)].clone();
        Ack::RouterDrained(RouterDrainedAck { gave_up, ..RouterDrainedAck::new(router_name, partition, handoff) })
    }

    fn acknowledgement(&self, view: &View, router: u8, incarnation: Incarnation, ack: &Ack) -> TxnRef {
        let writer = view.keys().router(&self.router_names[usize::from(router)]);
        let txn = acknowledge(view, ack, writer, incarnation, 0);
        self.store.txn(self.struck(txn, view, false))
    }

    pub(crate) fn struck(&self, txn: Txn, view: &View, is_leaders: bool) -> Txn {
        strike(txn, self.scenario.without, view, is_leaders)
    }

    fn named(&self, target: Target) -> protocol::Target {
        let pod = self.pod_names[usize::from(target.pod)].clone();
        protocol::Target { pod, incarnation: target.incarnation, epoch: target.epoch }
    }

    fn numbered(&self, target: &protocol::Target) -> Target {
        Target { pod: self.pod_number(&target.pod), incarnation: target.incarnation, epoch: target.epoch }
    }

    /// The acknowledgement that a router wants to write and that does not stand yet.
    pub(crate) fn router_write(&self, state: &State, router: u8, partition: u8) -> Option<TxnRef> {
        match self.router_step(state, router, partition)? {
            RouterStep::Acknowledge(txn) if !self.has_acknowledged(state, router, partition) => Some(txn),
            _ => None,
        }
    }

    /// Whether what a router wants to say about the handoff that it sees stands in the store already: a router remembers what
    /// it has written.
    fn has_acknowledged(&self, state: &State, router: u8, partition: u8) -> bool {
        let it = &state.routers[usize::from(router)];
        let me = &self.router_names[usize::from(router)];
        let partition = PartitionId::new(partition.into());
        let Some((view, _)) = self.router_sees(it) else { return false };
        let Some(handoff) = view.handoffs.get(&partition).map(|handoff| handoff.id()) else { return false };
        let now = self.view(state.now());
        let is_open = it.gates[partition.index()].position == GateState::Open;
        match is_open {
            true => now.cutover_ack(partition, me, handoff).is_some(),
            false => now.drained_ack(partition, me, handoff).is_some_and(|ack| !ack.gave_up),
        }
    }

    /// Returns the step of a router whose drain has lasted too long, unless it continues to wait.
    pub(crate) fn drain_timed_out(&self, state: &State, router: u8, partition: u8) -> Option<DrainEnd> {
        let it = &state.routers[usize::from(router)];
        let gate = &it.gates[usize::from(partition)];
        let (view, _) = self.router_sees(it).filter(|_| it.is_up && it.incarnation != Incarnation::NONE)?;
        if gate.position != GateState::Draining || gate.backing_off {
            return None;
        }
        let had_fence = gate.target.is_some_and(|target| self.capabilities(target.pod).fence);
        let partition = PartitionId::new(partition.into());
        match protocol::drain_timed_out(view, partition, OnDrainTimeout::Auto, had_fence) {
            DrainTimeout::Sever => Some(DrainEnd::Sever),
            DrainTimeout::GiveUp => {
                let me = &self.router_names[usize::from(router)];
                let handoff = view.handoffs.get(&partition)?.id();
                if self.view(state.now()).drained_ack(partition, me, handoff).is_some() {
                    return None;
                }
                let ack = self.drained(router, partition, handoff, true);
                Some(DrainEnd::Write(self.acknowledgement(view, router, it.incarnation, &ack)))
            }
            DrainTimeout::Wait => None,
        }
    }

    /// A router's process is gone, with all that it held.
    pub(crate) fn crash_router(&self, state: &mut State, router: u8) {
        state.exchanges.retain(|exchange| exchange.router != router || exchange.stage != Stage::NotSent);
        for exchange in state.exchanges.iter_mut().filter(|exchange| exchange.router == router) {
            exchange.is_counted = false;
            exchange.is_tried = false;
        }
        for (planned, request) in self.scenario.requests.iter().zip(&mut state.requests) {
            if planned.router == router && request.is_open() {
                *request = Request::Failed;
            }
        }
        *state.router(router) = Router::down(self.scenario.partitions);
    }

    /// The record of a pod as it registers.
    pub(crate) fn pod_record(&self, pod: u8, status: segue_protocol::records::PodStatus) -> PodRecord {
        PodRecord {
            status,
            capabilities: self.capabilities(pod),
            work_ends_within_ms: self.bound_of(pod),
            nothing_to_warm: self.scenario.nothing_to_warm,
            ..PodRecord::new(self.pod_names[usize::from(pod)].clone(), format!("10.0.0.{pod}:80"))
        }
    }

    /// How long the work of a pod's requests may outlast it. How many milliseconds makes no difference here.
    pub(crate) fn bound_of(&self, pod: u8) -> Option<u64> {
        (self.scenario.is_bounded && pod == 0).then_some(1)
    }
}

/// How a drain that has lasted too long ends.
#[derive(Debug, Clone, Copy)]
pub(crate) enum DrainEnd {
    Sever,
    Write(TxnRef),
}
