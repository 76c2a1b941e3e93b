//! Heartbeats, searched exhaustively: which moves follow from the pods' load, and none from heartbeats that are missing.
//!
//! Production plans, with the memory of a leader. Modelled are the store and a clock that ticks once for each heartbeat:
//! at each tick the moves that have begun are completed, the pods send their heartbeats or do not, and the leader plans.
//! Two pods have two partitions each, so that every move from a living owner is one for load. What an overload is, for how
//! many heartbeats it lasts and how long a partition rests is counted here once more.
//!
//! There are no routers and no requests: the rest of the model has those. The search ends after a number of ticks.

mod step;

use std::time::{Duration, Instant};

use segue_protocol::authority::Authority;
use segue_protocol::ids::{Incarnation, LeaseId, PartitionId, Revision};
use segue_protocol::keys::Keyspace;
use segue_protocol::planning::{
    MISSED_BEFORE_SUSPECTED, Memory, MoveCause, OVERLOADS_BEFORE_MOVE, PlannedWrite, Policy, plan, txn,
};
use segue_protocol::records::{
    Assignment, Handoff, Leader, PartitionLoad, PodLoad, PodRecord, PodStatus, Thousandths, encode,
};
use segue_protocol::registration::heartbeat;
use segue_protocol::txn::{Keys, Op, Txn};
use segue_protocol::view::View;
use stateright::{Checker as _, HasDiscoveries, Model, Property};

use self::step::{Hot, Step};
use crate::scenario::Size;
use crate::search::{Outcome, outcome};
use crate::store::{Store, StoreRef};

const PODS: [&str; 2] = ["a", "b"];
const PARTITIONS: u32 = 4;
const LEASE: LeaseId = LeaseId::new(1);
/// The time between two heartbeats.
const TICK: Duration = Duration::from_secs(5);
/// Ticks of a partition's cool-down.
const COOL_DOWN: u8 = 6;
/// Ticks until the partitions of a dead owner have another one.
const FAILOVER: u8 = 3;

/// A rule of planning that can be taken out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rule {
    /// A pod that misses heartbeats keeps its partitions.
    SuspectedKeeps,
    /// A partition that has moved rests.
    CoolDown,
    /// An overload lasts for several heartbeats before a partition moves.
    Hysteresis,
    /// A heartbeat of an earlier life says nothing.
    PresentLife,
}

/// A search, with what may happen in it.
pub(crate) struct Search {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) size: Size,
    ticks: u8,
    faults: Faults,
}

/// What may still happen, and how often.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Faults {
    silences: u8,
    boasts: u8,
    ghosts: u8,
    lease_ends: u8,
    elections: u8,
}

const NO_FAULT: Faults = Faults { silences: 0, boasts: 0, ghosts: 0, lease_ends: 0, elections: 0 };

pub(crate) fn all() -> Vec<Search> {
    let search = |name, about, size, ticks, faults| Search { name, about, size, ticks, faults };
    vec![
        search(
            "heartbeats-load",
            "heartbeats: the load swings, a pod reports too much, the leader changes",
            Size::Quick,
            9,
            Faults { boasts: 1, elections: 1, ..NO_FAULT },
        ),
        search(
            "heartbeats-silent",
            "heartbeats: they are missing, come from an earlier life, and a lease ends",
            Size::Usual,
            8,
            Faults { silences: 5, ghosts: 1, lease_ends: 1, ..NO_FAULT },
        ),
    ]
}

/// The rules, each with the search in which its absence shows.
pub(crate) fn mutants() -> Vec<(Rule, Search)> {
    let places = [
        (Rule::SuspectedKeeps, "heartbeats-silent"),
        (Rule::CoolDown, "heartbeats-load"),
        (Rule::Hysteresis, "heartbeats-load"),
        (Rule::PresentLife, "heartbeats-silent"),
    ];
    let of = |name| all().into_iter().find(|search| search.name == name);
    places.into_iter().filter_map(|(rule, name)| Some((rule, of(name)?))).collect()
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct State {
    now: StoreRef,
    memory: Memory,
    tick: u8,
    /// Heartbeats in a row with which each pod was overloaded, since partitions last moved.
    overloads: [u8; 2],
    /// Ticks without a heartbeat of each pod.
    silence: [u8; 2],
    /// Ticks since each partition moved.
    rested: [u8; PARTITIONS as usize],
    /// When the lease of the second pod ended.
    lost_at: Option<u8>,
    faults: Faults,
    /// The rule that is broken.
    violated: Option<&'static str>,
}

/// The keyspace that is searched.
pub(crate) struct Heartbeats {
    store: Store,
    without: Option<Rule>,
    ticks: u8,
    faults: Faults,
}

/// Searches all states, with one of the rules taken out if there is one.
pub(crate) fn search(of: &Search, without: Option<Rule>, most: usize) -> Outcome {
    let keys = Keyspace::new("/segue/", "model");
    let model = Heartbeats { store: Store::new(keys, Vec::new()), without, ticks: of.ticks, faults: of.faults };
    let begun = Instant::now();
    let builder = model.checker().finish_when(HasDiscoveries::AnyFailures).target_state_count(most);
    // With one thread the search for a violation is in order of depth.
    let threads = if without.is_some() { 1 } else { 2 };
    let outcome = outcome(&builder.threads(threads).spawn_bfs().join(), most);
    Outcome { took: begun.elapsed(), ..outcome }
}

impl Model for Heartbeats {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![self.placed()]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        if state.violated.is_some() || state.tick == self.ticks {
            return;
        }
        let Faults { silences, boasts, ghosts, lease_ends, elections } = state.faults;
        let mut tick = |hot, silent, boasts| steps.push(Step::Tick { hot, silent, boasts });
        for hot in [Hot::None, Hot::Even, Hot::Middle] {
            tick(hot, None, None);
            (0..2).filter(|_| boasts > 0).for_each(|pod| tick(hot, None, Some(pod)));
        }
        (0..2).filter(|_| silences > 0).for_each(|pod| tick(Hot::Even, Some(pod), None));
        steps.extend((0..2).filter(|_| ghosts > 0).map(|pod| Step::Ghost { pod }));
        steps.extend((lease_ends > 0).then_some(Step::EndLease));
        steps.extend((elections > 0).then_some(Step::Elect));
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let mut state = last.clone();
        self.take(&mut state, step);
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("suspected_keeps", |_, state: &State| state.violated != Some("suspected_keeps")),
            Property::always("cool_down", |_, state: &State| state.violated != Some("cool_down")),
            Property::always("hysteresis", |_, state: &State| state.violated != Some("hysteresis")),
            Property::always("one_exchange", |_, state: &State| state.violated != Some("one_exchange")),
            Property::always("owner_lives", |_, state: &State| state.violated != Some("owner_lives")),
        ]
    }
}

impl Heartbeats {
    fn policy(&self) -> Policy {
        let cool_down = if self.without == Some(Rule::CoolDown) { Duration::ZERO } else { TICK * u32::from(COOL_DOWN) };
        Policy {
            partitions: PARTITIONS,
            settle: Duration::ZERO,
            settle_max: Duration::ZERO,
            min_interval: Duration::ZERO,
            heartbeat: TICK,
            cool_down,
            balance_load: true,
            ..Policy::default()
        }
    }

    /// A keyspace at rest: each pod has two partitions.
    fn placed(&self) -> State {
        let mut state = State {
            now: self.store.empty(),
            memory: Memory::default(),
            tick: 0,
            overloads: [0; 2],
            silence: [0; 2],
            rested: [u8::MAX; PARTITIONS as usize],
            lost_at: None,
            faults: self.faults,
            violated: None,
        };
        self.elect(&mut state);
        for pod in PODS {
            self.put(&mut state, self.store.keys.pod(pod), encode(&PodRecord::new(pod, "pod:80")));
        }
        self.lead(&mut state);
        self.complete(&mut state);
        // A first placement is no move.
        state.rested = [u8::MAX; PARTITIONS as usize];
        self.lead(&mut state);
        state
    }

    fn take(&self, state: &mut State, step: Step) {
        match step {
            Step::Tick { hot, silent, boasts } => self.tick(state, hot, silent, boasts),
            Step::Ghost { pod } => {
                state.faults.ghosts -= 1;
                let name = PODS[usize::from(pod)];
                let load = PodLoad {
                    total: Thousandths(u32::MAX),
                    ..PodLoad::new(Incarnation::registered_at(Revision::new(1)), TICK.as_millis() as u64, [].into())
                };
                self.put(state, self.store.keys.load(name), encode(&load));
                // It replaces the heartbeat of the present life.
                (state.overloads[usize::from(pod)], state.silence[usize::from(pod)]) = (0, 0);
                self.lead(state);
            }
            Step::EndLease => {
                state.faults.lease_ends -= 1;
                let keys = [self.store.keys.pod(PODS[1]), self.store.keys.load(PODS[1])];
                let then = keys.map(|key| Op::Delete(Keys::One(key))).into();
                self.commit(state, Txn { then, ..Txn::default() });
                (state.silence[1], state.lost_at) = (0, Some(state.tick));
            }
            Step::Elect => {
                state.faults.elections -= 1;
                self.elect(state);
                let view = self.store.view(state.now);
                // It counts the heartbeats that it finds, and does not know what has moved.
                state.rested = [u8::MAX; PARTITIONS as usize];
                state.overloads = [0, 1].map(|pod| u8::from(is_over(view, pod)));
                self.lead(state);
            }
        }
    }

    fn tick(&self, state: &mut State, hot: Hot, silent: Option<u8>, boasts: Option<u8>) {
        state.tick += 1;
        state.faults.silences -= u8::from(silent.is_some());
        state.faults.boasts -= u8::from(boasts.is_some());
        state.rested.iter_mut().for_each(|ticks| *ticks = ticks.saturating_add(1));
        let has_moved = self.complete(state);
        let speaks = |pod: u8| silent != Some(pod);
        for pod in (0..2).filter(|pod| speaks(*pod)) {
            self.beat(state, usize::from(pod), hot, boasts == Some(pod));
        }
        let view = self.store.view(state.now);
        for pod in 0..2u8 {
            let at = usize::from(pod);
            let lives = view.pods.contains_key(PODS[at]);
            state.silence[at] = if speaks(pod) || !lives { 0 } else { state.silence[at] + 1 };
            if speaks(pod) {
                state.overloads[at] = if is_over(view, at) { state.overloads[at] + 1 } else { 0 };
            }
        }
        if has_moved {
            state.overloads = [0; 2];
        }
        self.lead(state);
        let view = self.store.view(state.now);
        let is_alone = |partition| view.live_owner(partition).is_none();
        let is_late = state.lost_at.is_some_and(|lost_at| state.tick > lost_at + FAILOVER);
        if is_late && PartitionId::all(PARTITIONS).any(is_alone) {
            state.violated = Some("owner_lives");
        }
    }

    fn beat(&self, state: &mut State, pod: usize, hot: Hot, boasts: bool) {
        let view = self.store.view(state.now);
        let life = view.incarnation_of(PODS[pod]);
        let is_hot = |partition: PartitionId| match hot {
            Hot::None => false,
            Hot::Even => partition.get().is_multiple_of(2),
            Hot::Middle => (1..3).contains(&partition.get()),
        };
        let load = |partition| PartitionLoad {
            load: Thousandths(if is_hot(partition) { 40_000 } else { 10_000 }),
            keys: None,
        };
        let owned = view.assignments.values().map(|it| &it.value);
        let owned = owned.filter(|it| (it.owner.as_str(), it.incarnation) == (PODS[pod], life));
        let partitions = owned.map(|it| (it.partition, load(it.partition))).collect();
        let mut record = PodLoad::new(life, TICK.as_millis() as u64, partitions);
        if boasts {
            record.total = Thousandths(u32::MAX);
        }
        self.commit(state, heartbeat(&self.store.keys, PODS[pod], LEASE, &record));
    }

    /// Completes the moves that have begun. Returns whether there were any.
    fn complete(&self, state: &mut State) -> bool {
        let handoffs: Vec<Handoff> = self.store.view(state.now).handoffs.values().map(|it| it.value.clone()).collect();
        for Handoff { partition, new_owner, new_incarnation, epoch, .. } in &handoffs {
            let assignment = Assignment::new(*partition, new_owner.clone(), *new_incarnation, *epoch);
            let put = Op::Put { key: self.store.keys.assignment(*partition), value: encode(&assignment), lease: None };
            let end = Op::Delete(Keys::One(self.store.keys.handoff(*partition)));
            self.commit(state, Txn { then: vec![put, end], ..Txn::default() });
            state.rested[partition.index()] = 0;
        }
        !handoffs.is_empty()
    }

    fn elect(&self, state: &mut State) {
        let leader = self.store.keys.leader();
        self.commit(state, Txn { then: vec![Op::Delete(Keys::One(leader.clone()))], ..Txn::default() });
        self.put(state, leader, encode(&Leader::new("coordinator", LEASE)));
        state.memory = Memory::default();
    }

    /// Plans until there is nothing more to do at this moment.
    fn lead(&self, state: &mut State) {
        let now = TICK * (100 + u32::from(state.tick));
        let mut repeats = if self.without == Some(Rule::Hysteresis) { OVERLOADS_BEFORE_MOVE } else { 1 };
        for turn in 0..8 {
            let view = self.store.view(state.now);
            let Some(term) = view.leader.as_ref().map(|leader| leader.create_revision) else { return };
            let authority = Authority::Leader { term };
            let seen = self.falsified(view, state, turn);
            let plan = plan(&seen, &self.policy(), &authority, &mut state.memory, now);
            repeats -= u32::from(repeats > 0);
            if plan.actions.is_empty() && repeats == 0 {
                return;
            }
            for action in &plan.actions {
                self.judge(state, action);
                if let Some(txn) = txn(self.store.view(state.now), action, &authority, 0) {
                    self.commit(state, txn);
                }
            }
        }
    }

    /// What a leader sees that ignores the rule that is taken out.
    fn falsified(&self, view: &View, state: &State, turn: u32) -> View {
        let mut view = view.clone();
        let lives: Vec<Incarnation> = PODS.iter().map(|pod| view.incarnation_of(pod)).collect();
        for (pod, name) in PODS.iter().enumerate() {
            match self.without {
                Some(Rule::SuspectedKeeps) if u32::from(state.silence[pod]) >= MISSED_BEFORE_SUSPECTED => {
                    view.pods.entry((*name).to_owned()).and_modify(|pod| pod.value.status = PodStatus::Draining);
                }
                Some(Rule::PresentLife) => {
                    view.loads.entry((*name).to_owned()).and_modify(|load| load.value.incarnation = lives[pod]);
                }
                // Each heartbeat looks like several.
                Some(Rule::Hysteresis) => {
                    let again = |load: Revision| Revision::new(load.get() + (u64::from(turn) << 32));
                    view.loads
                        .entry((*name).to_owned())
                        .and_modify(|load| load.mod_revision = again(load.mod_revision));
                }
                _ => {}
            }
        }
        view
    }

    /// Judges a move from a living owner.
    fn judge(&self, state: &mut State, action: &PlannedWrite) {
        let PlannedWrite::Create { handoff, cause, .. } = action else { return };
        let view = self.store.view(state.now);
        if view.live_old_owner(handoff).is_none() {
            return;
        }
        let suspected = |pod: usize| u32::from(state.silence[pod]) >= MISSED_BEFORE_SUSPECTED;
        let gets = PODS.iter().position(|pod| *pod == handoff.new_owner).is_some_and(suspected);
        let is_first = view.handoffs.is_empty();
        let overloads = state.overloads.into_iter().max().unwrap_or(0);
        if *cause != MoveCause::Load || gets {
            state.violated = Some("suspected_keeps");
        } else if state.rested[handoff.partition.index()] < COOL_DOWN {
            state.violated = Some("cool_down");
        } else if is_first && u32::from(overloads) < OVERLOADS_BEFORE_MOVE {
            state.violated = Some("hysteresis");
        } else if view.handoffs.len() > 1 {
            state.violated = Some("one_exchange");
        }
    }

    fn put(&self, state: &mut State, key: String, value: Vec<u8>) {
        self.commit(state, Txn { then: vec![Op::Put { key, value, lease: Some(LEASE) }], ..Txn::default() });
    }

    fn commit(&self, state: &mut State, txn: Txn) {
        state.now = self.store.commit(state.now, self.store.txn(txn)).unwrap_or(state.now);
    }
}

/// Whether the pod's heartbeat shows a quarter more than half of all load, or than all if the other pod has shown none.
fn is_over(view: &View, pod: usize) -> bool {
    let total = |pod: &&str| view.load(pod).map(|load| u64::from(load.total.0));
    let loads: Vec<u64> = PODS.iter().filter_map(total).collect();
    let due = loads.iter().sum::<u64>() / loads.len().max(1) as u64;
    total(&PODS[pod]).is_some_and(|load| load * 100 > due * 125)
}
