//! Requests on their way through a router: the gate, the stash, and the outcome of an exchange.
//!
//! The partition's state machine is production's own. This file does what the table does around it: it counts requests
//! in flight and sends those that may start.
//!
//! # Invariants
//!
//! * A request leaves for a pod only through an open gate or out of the stash.

use std::sync::Arc;

use segue_proxy::routing::gate::GateState;
use segue_proxy::routing::partition_state::PartitionState;
use segue_proxy::routing::stash::{Arrival, QueuePosition};

use crate::cluster::Cluster;
use crate::rules::Rule;
use crate::state::{Exchange, Gate, Part, Pod, Reached, Request, Router, Stage, State, Target, Violation};

/// As in the default configuration.
const FLUSH_CONCURRENCY: usize = 64;

/// Behind everybody who can be there.
const LAST: Arrival = Arrival { at: u64::MAX, worker: 0 };

impl Gate {
    pub(crate) fn closed() -> Self {
        Gate { position: GateState::Closed, target: None, waiting: Arc::default(), backing_off: false }
    }

    fn state(&mut self) -> &mut PartitionState<u8> {
        Arc::make_mut(&mut self.waiting)
    }

    fn settle(&mut self, inside: u32) {
        if let Some(settled) = self.position.settled(inside) {
            self.position = settled;
        }
    }
}

impl State {
    pub(crate) fn gate(&mut self, router: u8, partition: u8) -> &mut Gate {
        &mut self.router(router).gates[usize::from(partition)]
    }

    pub(crate) fn router(&mut self, router: u8) -> &mut Router {
        Arc::make_mut(&mut self.routers[usize::from(router)])
    }

    pub(crate) fn pod(&mut self, pod: u8) -> &mut Pod {
        Arc::make_mut(&mut self.pods[usize::from(pod)])
    }

    pub(crate) fn part(&mut self, pod: u8, partition: u8) -> &mut Part {
        &mut self.pod(pod).parts[usize::from(partition)]
    }
}

impl Cluster {
    /// How many requests of a partition a router counts as in flight.
    pub(crate) fn inside(state: &State, router: u8, partition: u8, cluster: &Cluster) -> u32 {
        let is_inside = |exchange: &&Exchange| {
            exchange.router == router && exchange.is_counted && cluster.partition_of(exchange.request) == partition
        };
        state.exchanges.iter().filter(is_inside).count() as u32
    }

    pub(crate) fn partition_of(&self, request: u8) -> u8 {
        self.scenario.requests[usize::from(request)].partition
    }

    pub(crate) fn stop(&self, state: &mut State, router: u8, partition: u8) {
        let inside = Self::inside(state, router, partition, self);
        let gate = state.gate(router, partition);
        let position = gate.position;
        if let Some(stopped) = gate.state().stop(position) {
            gate.position = stopped;
            gate.settle(inside);
        }
    }

    pub(crate) fn switch(&self, state: &mut State, router: u8, partition: u8, target: Target) {
        let ignores_drain = self.without(Rule::SnapshotIsCutover);
        let gate = state.gate(router, partition);
        if ignores_drain && gate.position == GateState::Draining {
            gate.position = GateState::Closed;
        }
        let (position, leads_there) = (gate.position, gate.target == Some(target));
        if let Some(switched) = gate.state().switch(position, leads_there, FLUSH_CONCURRENCY) {
            gate.target = Some(target);
            gate.backing_off = false;
            gate.position = switched;
            if gate.waiting.stash().waiting() > 0 {
                self.reach(Reached::Flushed);
            }
            self.flush(state, router, partition);
        }
    }

    /// Sends the requests that may start, and opens the gate when none waits.
    pub(crate) fn flush(&self, state: &mut State, router: u8, partition: u8) {
        loop {
            let gate = state.gate(router, partition);
            if gate.position != GateState::Flushing {
                return;
            }
            if self.without(Rule::FlushFirst) {
                gate.position = GateState::Open;
                return;
            }
            let (position, target) = (gate.position, gate.target);
            match (gate.state().start_next(position), target) {
                (Some((place, request)), Some(target)) => {
                    // A request is started and sent in one step here. The stash's own tests have newcomers in between.
                    gate.state().sent(place);
                    self.send(state, router, request, target, true);
                }
                _ => break,
            }
        }
        let gate = state.gate(router, partition);
        let position = gate.position;
        if let Some(open) = gate.state().open(position) {
            gate.position = open;
        }
    }

    /// A request comes to its router.
    pub(crate) fn take(&self, state: &mut State, request: u8) {
        let planned = self.scenario.requests[usize::from(request)];
        let gate = state.gate(planned.router, planned.partition);
        match (gate.position, gate.target) {
            (GateState::Open, Some(target)) => self.send(state, planned.router, request, target, false),
            _ => {
                gate.state().wait(self.place_of(request), 1, request);
                state.requests[usize::from(request)] = Request::Held;
                self.flush(state, planned.router, planned.partition);
            }
        }
    }

    pub(crate) fn send(&self, state: &mut State, router: u8, request: u8, target: Target, is_tried: bool) {
        if self.line_before(request).any(|earlier| matches!(state.requests[usize::from(earlier)], Request::Held)) {
            state.violate(Violation::NoOvertaking);
        }
        if !is_tried {
            let is_beside = |earlier: &u8| {
                state.exchanges.iter().any(|it| it.request == *earlier && it.target == target && it.is_counted)
            };
            state.beside[usize::from(request)] =
                self.line_before(request).filter(is_beside).fold(0, |set, earlier| set | 1 << earlier);
        }
        let stage = if state.pods[usize::from(target.pod)].is_up { Stage::Sent } else { Stage::NotSent };
        state.requests[usize::from(request)] = Request::Going;
        let exchange = Exchange { request, router, target, is_tried, stage, is_counted: true };
        let index = state.exchanges.partition_point(|it| it.request < request);
        state.exchanges.insert(index, exchange);
    }

    /// Where it stands among those of its key: requests arrive in the order of their numbers.
    pub(crate) fn place_of(&self, request: u8) -> QueuePosition {
        let key = self.scenario.requests[usize::from(request)].key;
        QueuePosition::new(Some(key), Arrival { at: u64::from(request), worker: 0 })
    }

    /// The requests of the same key that the router took before this one.
    pub(crate) fn line_before(&self, request: u8) -> impl Iterator<Item = u8> {
        let mine = self.scenario.requests[usize::from(request)];
        (0..request).filter(move |earlier| {
            let other = self.scenario.requests[usize::from(*earlier)];
            other.router == mine.router && other.key == mine.key && other.partition == mine.partition
        })
    }

    /// An exchange is over, for its router and for its pod.
    pub(crate) fn end(&self, state: &mut State, index: usize) {
        let exchange = state.exchanges.remove(index);
        self.count_out(state, exchange);
    }

    /// The connection is gone, and nobody knows how far the exchange came: its client gets an error, it is never sent
    /// again, and the pod may go on with it.
    pub(crate) fn cut(&self, state: &mut State, index: usize) {
        let exchange = state.exchanges[index];
        match exchange.stage {
            Stage::NotSent => drop(state.exchanges.remove(index)),
            Stage::Sent | Stage::Working => state.exchanges[index].is_counted = false,
        }
        self.has_failed(state, exchange.request);
        self.count_out(state, exchange);
    }

    /// The exchange has failed for good, at both ends.
    pub(crate) fn fail(&self, state: &mut State, index: usize) {
        self.has_failed(state, state.exchanges[index].request);
        self.end(state, index);
    }

    pub(crate) fn has_failed(&self, state: &mut State, request: u8) {
        let request = &mut state.requests[usize::from(request)];
        if request.is_open() {
            *request = Request::Failed;
        }
    }

    /// Its router counts an exchange out, and the next of its key may go.
    pub(crate) fn count_out(&self, state: &mut State, exchange: Exchange) {
        if !exchange.is_counted {
            return;
        }
        let (router, partition) = (exchange.router, self.partition_of(exchange.request));
        if exchange.is_tried {
            state.gate(router, partition).state().finish(self.place_of(exchange.request));
            self.flush(state, router, partition);
        }
        self.settle(state, router, partition);
    }

    /// Stops counting a request as soon as its client is gone, whatever its pod does. Only where that rule is removed.
    pub(crate) fn forget(&self, state: &mut State, index: usize) {
        let exchange = state.exchanges[index];
        state.exchanges[index].is_counted = false;
        self.count_out(state, exchange);
    }

    /// Looks whether the gate's drain is over, and what to do then.
    pub(crate) fn settle(&self, state: &mut State, router: u8, partition: u8) {
        let inside = Self::inside(state, router, partition, self);
        state.gate(router, partition).settle(inside);
        self.reconcile_router(state, router);
    }

    /// No pod has acted on the request: back to its place in its line.
    pub(crate) fn put_back(&self, state: &mut State, index: usize) {
        let exchange = state.exchanges.remove(index);
        let (router, request, partition) = (exchange.router, exchange.request, self.partition_of(exchange.request));
        let was_passing = matches!(state.gate(router, partition).position, GateState::Open | GateState::Flushing);
        self.stop(state, router, partition);
        let gate = state.gate(router, partition);
        gate.backing_off |= was_passing;
        let key = self.scenario.requests[usize::from(request)].key;
        match self.without(Rule::PutBack) {
            true => {
                gate.state().wait(QueuePosition::new(Some(key), LAST), 1, request);
                if exchange.is_tried {
                    gate.state().finish(self.place_of(request));
                }
            }
            false => gate.state().put_back(self.place_of(request), 0, 1, Some(request), exchange.is_tried),
        }
        state.requests[usize::from(request)] = Request::Held;
        self.reach(Reached::PutBack);
        self.settle(state, router, partition);
    }

    /// Ends every exchange of a partition as far as this router is concerned.
    pub(crate) fn sever(&self, state: &mut State, router: u8, partition: u8) {
        while let Some(index) = state.exchanges.iter().position(|exchange| {
            exchange.router == router && exchange.is_counted && self.partition_of(exchange.request) == partition
        }) {
            self.cut(state, index);
            self.reach(Reached::Severed);
        }
    }

    /// A request that waits no longer.
    pub(crate) fn give_up(&self, state: &mut State, request: u8) {
        let planned = self.scenario.requests[usize::from(request)];
        state.gate(planned.router, planned.partition).state().give_up(self.place_of(request));
        state.requests[usize::from(request)] = Request::Failed;
        self.flush(state, planned.router, planned.partition);
    }

    /// No request of one key may reach a pod before an earlier one that its router took, unless both were under way
    /// through the open gate at one time.
    pub(crate) fn check_order(&self, state: &mut State, exchange: Exchange) {
        let beside = state.beside[usize::from(exchange.request)];
        let overtakes = |earlier: u8| match state.requests[usize::from(earlier)] {
            Request::Held => true,
            Request::Going => state.exchanges.iter().any(|it| it.request == earlier && it.stage != Stage::Working),
            _ => false,
        };
        if self.line_before(exchange.request).any(|earlier| beside & (1 << earlier) == 0 && overtakes(earlier)) {
            state.violate(Violation::NoOvertaking);
        }
    }
}
