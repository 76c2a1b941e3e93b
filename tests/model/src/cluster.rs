//! What all parts of the model share during a search: the scenario, the store's contents, and memoized decisions.
//!
//! The production functions are pure, so their results are memoized by their arguments: the content of the store, the
//! participant, and its situation. A search asks the same few thousand questions millions of times.

use std::cell::RefCell;
use std::hash::Hash;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use dashmap::DashMap;
use rustc_hash::{FxBuildHasher, FxHashMap};
use segue_protocol::handoff::pod::Duty;
use segue_protocol::handoff::pod_reconcile::{LocalState, PodReport};
use segue_protocol::ids::{Epoch, HandoffId, Incarnation, Revision};
use segue_protocol::keys::Keyspace;
use segue_protocol::records::Capabilities;
use segue_protocol::view::View;
use segue_proxy::routing::gate::GateState;

use crate::action::{Author, Process};
use crate::canonical::Numbers;
use crate::checkpoints::Asked;
use crate::leader::Planned;
use crate::rounds::Standing;
use crate::rules::{Rule, falsify};
use crate::scenario::Scenario;
use crate::state::{Clock, Reached, Target};
use crate::store::{Store, StoreRef, TxnRef};

/// A step of a router as the model names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RouterStep {
    Stop,
    Switch(Target),
    Acknowledge(TxnRef),
}

/// What a router's next step depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct RouterAsks {
    pub(crate) view: (u32, u32),
    pub(crate) router: u8,
    pub(crate) incarnation: Incarnation,
    pub(crate) partition: u8,
    pub(crate) clock: Option<Clock>,
    pub(crate) position: GateState,
    pub(crate) target: Option<Target>,
    pub(crate) backing_off: bool,
}

/// What a pod's duty depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct PodAsks {
    pub(crate) view: u32,
    pub(crate) pod: u8,
    pub(crate) incarnation: Incarnation,
    pub(crate) partition: u8,
}

/// The parts of a search that do not change from state to state.
pub(crate) struct Cluster {
    pub(crate) scenario: Scenario,
    pub(crate) store: Store,
    pub(crate) router_names: Vec<String>,
    pub(crate) pod_names: Vec<String>,
    falsified: DashMap<(u32, u32), &'static View, FxBuildHasher>,
    /// What was reached, as a set of [`Reached`]. Not part of a state: how it was come by makes no difference to its future.
    reached: AtomicU64,
    number: u64,
}

thread_local! {
    static MEMORY: RefCell<(u64, Memory)> = RefCell::default();
}

/// A report that a pod wants to write, and the handoff that it is about.
pub(crate) type ReportWrite = (TxnRef, HandoffId, PodReport);

#[derive(Default)]
pub(crate) struct Memory {
    pub(crate) router_steps: FxHashMap<RouterAsks, Option<RouterStep>>,
    pub(crate) plans: FxHashMap<(u32, Author, bool), Vec<Planned>>,
    pub(crate) standings: FxHashMap<(u32, Author), Option<Standing>>,
    pub(crate) round_steps: FxHashMap<(u32, u8), Option<TxnRef>>,
    pub(crate) duties: FxHashMap<PodAsks, (Duty, Option<Epoch>, bool)>,
    pub(crate) asked: FxHashMap<PodAsks, Asked>,
    pub(crate) reports: FxHashMap<(PodAsks, LocalState), Option<ReportWrite>>,
    pub(crate) advances: FxHashMap<(u32, Author, u8, bool), Option<TxnRef>>,
    pub(crate) renumbered: FxHashMap<(u32, Numbers), StoreRef>,
}

impl Cluster {
    pub(crate) fn new(scenario: Scenario) -> Self {
        static SEARCHES: AtomicU64 = AtomicU64::new(1);
        let router_names: Vec<String> = (0..scenario.routers).map(|index| format!("router-{index}")).collect();
        let pod_names: Vec<String> = (0..scenario.pods.len()).map(|index| format!("pod-{index}")).collect();
        let keys = Keyspace::new("/segue/", "model");
        let processes =
            router_names.iter().map(|name| keys.router(name)).chain(pod_names.iter().map(|name| keys.pod(name)));
        let leases = processes.chain([keys.leader()]).collect();
        let keeps_ends = scenario.participants > 0;
        Cluster {
            scenario,
            store: Store::new(keys, leases).keeping_ends(keeps_ends),
            router_names,
            pod_names,
            falsified: DashMap::default(),
            reached: AtomicU64::new(0),
            number: SEARCHES.fetch_add(1, Relaxed),
        }
    }

    pub(crate) fn reach(&self, reached: Reached) {
        let bit = 1 << reached as u8;
        if self.reached.load(Relaxed) & bit == 0 {
            self.reached.fetch_or(bit, Relaxed);
        }
    }

    pub(crate) fn has_reached(&self, reached: Reached) -> bool {
        self.reached.load(Relaxed) & (1 << reached as u8) != 0
    }

    pub(crate) fn without(&self, rule: Rule) -> bool {
        self.scenario.is_without(rule)
    }

    pub(crate) fn capabilities(&self, pod: u8) -> Capabilities {
        self.scenario.pods[usize::from(pod)]
    }

    /// The view as the decisions of those see it who plan.
    pub(crate) fn view(&self, at: StoreRef) -> &View {
        self.as_decided(self.store.view(at), (at.id(), at.id()))
    }

    /// The view as the decisions of routers and pods see it.
    pub(crate) fn followed(&self, at: StoreRef) -> &View {
        self.as_decided(self.store.followed(at), (at.id(), u32::MAX))
    }

    fn as_decided<'a>(&'a self, view: &'a View, key: (u32, u32)) -> &'a View {
        match self.scenario.without {
            Some(
                rule @ (Rule::Incarnation
                | Rule::AckIdentity
                | Rule::Barrier
                | Rule::UnreadableIsNotAbsent
                | Rule::CheckpointNamesHandoff),
            ) => self.falsified(key, || falsify(view, rule).unwrap_or_else(|| view.clone())),
            _ => view,
        }
    }

    /// Which life of a process's registration stands in the store; 0: none.
    pub(crate) fn stands(&self, at: StoreRef, who: Process) -> Incarnation {
        let index = match who {
            Process::Router(router) => usize::from(router),
            Process::Pod(pod) => self.router_names.len() + usize::from(pod),
        };
        Incarnation::registered_at(self.store.get(at).lives[index])
    }

    /// Which leadership stands in the store; 0: none.
    pub(crate) fn leads(&self, at: StoreRef) -> Revision {
        *self.store.get(at).lives.last().unwrap_or(&Revision::ZERO)
    }

    /// What somebody sees who watches assignments by themselves.
    pub(crate) fn merged(&self, at: StoreRef, assignments: StoreRef) -> &View {
        self.falsified((at.id(), assignments.id()), || {
            let mut view = self.store.followed(at).clone();
            view.assignments = self.store.view(assignments).assignments.clone();
            view
        })
    }

    /// Few, and only in the search for a broken rule: kept for good.
    fn falsified(&self, key: (u32, u32), make: impl FnOnce() -> View) -> &View {
        *self.falsified.entry(key).or_insert_with(|| Box::leak(Box::new(make())))
    }

    /// The answer remembered by this thread, or computed now.
    pub(crate) fn remember<K: Hash + Eq + Copy, V: Clone>(
        &self,
        table: impl Fn(&mut Memory) -> &mut FxHashMap<K, V>,
        key: K,
        compute: impl FnOnce() -> V,
    ) -> V {
        let known = MEMORY.with_borrow_mut(|(number, memory)| {
            if *number != self.number {
                (*number, *memory) = (self.number, Memory::default());
            }
            table(memory).get(&key).cloned()
        });
        known.unwrap_or_else(|| {
            let value = compute();
            MEMORY.with_borrow_mut(|(_, memory)| table(memory).insert(key, value.clone()));
            value
        })
    }

    pub(crate) fn pod_number(&self, name: &str) -> u8 {
        self.pod_names.iter().position(|known| known == name).map_or(u8::MAX, |index| index as u8)
    }
}
