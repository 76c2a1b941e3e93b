//! Assignment rounds in random lives: processes that take their steps late, die, or live and do nothing; windows,
//! intervals and heartbeats that end at any moment; a leader that comes and goes. The decisions are the real ones, and
//! each write is on its way for any time between its decision and its commit.
//!
//! Checked at every write about a partition: it was decided on a view that shows every earlier write of another process
//! about that partition. So two writers never act in ignorance of each other, as under a leader. Each guard that this
//! depends on is taken out once, and the fault is found. It does not depend on three others, which are taken out as well:
//! that a writer's life still takes part, and that a round opens and closes only over the gathering that was seen. Not
//! taken out is the guard that a round closes after the one before it: two that close at once would only cost a round.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};
use segue_protocol::authority::Authority;
use segue_protocol::ids::{Incarnation, LeaseId, PartitionId, Revision};
use segue_protocol::keys::Keyspace;
use segue_protocol::planning::Policy;
use segue_protocol::records::{Leader, Participant, encode};
use segue_protocol::rounds::{Member, RoundStep, StepDraft};
use segue_protocol::txn::{Compare, KeyValue, Keys, Op, Snapshot, Txn};
use segue_protocol::view::View;

const PROCESSES: usize = 3;
const PARTITIONS: u32 = 3;

/// A guard that is taken out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Without {
    /// Writes require the round.
    Round,
    /// Writes require that there is no leader.
    NoLeader,
    /// A process joins only while the window is open.
    Window,
    /// Writes require the life that takes part.
    OwnLife,
    /// A round opens only if the gathering that was seen stands.
    OpenGathering,
    /// A round closes only if the gathering that was seen stands.
    CloseGathering,
}

#[derive(Debug, Clone, Copy)]
enum Event {
    /// A process decides on its next step.
    Decide(usize),
    /// The step of a process arrives at the store.
    Arrive(usize),
    /// A process decides on a write about a partition.
    Write(usize, u32),
    /// That write arrives at the store.
    WriteArrives(usize),
    /// A process registers, or its life ends if it has registered.
    LiveOrDie(usize),
    WindowEnds,
    IntervalEnds,
    HeartbeatPasses,
    /// A leader is elected, or its lease ends.
    LeaderComesOrGoes,
    /// Another writer puts a leader's key, which then has no lease.
    ForeignLeader,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let process = 0..PROCESSES;
    let event = prop_oneof![
        6 => process.clone().prop_map(Event::Decide),
        6 => process.clone().prop_map(Event::Arrive),
        4 => (process.clone(), 0..PARTITIONS).prop_map(|(process, partition)| Event::Write(process, partition)),
        4 => process.clone().prop_map(Event::WriteArrives),
        2 => process.prop_map(Event::LiveOrDie),
        2 => Just(Event::WindowEnds),
        2 => Just(Event::IntervalEnds),
        2 => Just(Event::HeartbeatPasses),
        1 => Just(Event::LeaderComesOrGoes),
        1 => Just(Event::ForeignLeader),
    ];
    prop::collection::vec(event, 1..120)
}

#[derive(Debug, Default)]
struct Process {
    member: Option<Member>,
    step: Option<(RoundStep, StepDraft)>,
    write: Option<(PartitionId, Revision, Txn)>,
}

struct World {
    keys: Keyspace,
    revision: Revision,
    entries: BTreeMap<String, KeyValue>,
    leases: u64,
    processes: Vec<Process>,
    /// The last write about each partition: who, and at which revision.
    written: BTreeMap<PartitionId, (usize, Revision)>,
    without: Option<Without>,
    /// How many writes the store has accepted.
    accepted: u32,
}

impl World {
    fn new(without: Option<Without>) -> Self {
        World {
            keys: Keyspace::new("/segue/", "k"),
            revision: Revision::ZERO,
            entries: BTreeMap::new(),
            leases: 0,
            processes: (0..PROCESSES).map(|_| Process::default()).collect(),
            written: BTreeMap::new(),
            without,
            accepted: 0,
        }
    }

    fn view(&self) -> View {
        let entries = self.entries.values().cloned().collect();
        View::from_snapshot(self.keys.clone(), Snapshot { revision: self.revision, entries })
    }

    fn lease(&mut self) -> LeaseId {
        self.leases += 1;
        LeaseId::new(i64::try_from(self.leases).unwrap())
    }

    fn holds(&self, compare: &Compare) -> bool {
        let Keys::One(key) = &compare.keys else { panic!("a range: {compare:?}") };
        compare.holds_for(self.entries.get(key))
    }

    fn commit(&mut self, txn: &Txn) -> bool {
        if !txn.when.iter().all(|compare| self.holds(compare)) {
            return false;
        }
        self.revision = self.revision.next();
        for op in &txn.then {
            match op {
                Op::Put { key, value, lease } => {
                    let create_revision = self.entries.get(key).map_or(self.revision, |was| was.create_revision);
                    let (key, value, lease, mod_revision) = (key.clone(), value.clone(), *lease, self.revision);
                    self.entries.insert(key.clone(), KeyValue { key, value, create_revision, mod_revision, lease });
                }
                Op::Delete(Keys::One(key)) => drop(self.entries.remove(key)),
                Op::Delete(keys) => panic!("{keys:?}"),
            }
        }
        true
    }

    fn delete(&mut self, key: String) {
        self.commit(&Txn::guarded([], [Op::Delete(Keys::One(key))]));
    }

    fn strike(&self, process: usize, txn: &mut Txn, step: Option<RoundStep>) {
        let key = match (self.without, step) {
            (Some(Without::Round), None) => self.keys.round(),
            (Some(Without::NoLeader), None) => self.keys.leader(),
            (Some(Without::Window), Some(RoundStep::Join(_)))
            | (Some(Without::OpenGathering), Some(RoundStep::Open(_)))
            | (Some(Without::CloseGathering), Some(RoundStep::Close(_))) => self.keys.gathering(),
            (Some(Without::OwnLife), None) => self.keys.participant(&format!("p{process}")),
            _ => return,
        };
        txn.when.retain(|compare| compare.keys != Keys::One(key.clone()));
    }

    fn decide(&mut self, process: usize) {
        let (view, policy) = (self.view(), Policy::default());
        let it = &mut self.processes[process];
        let Some(member) = it.member.as_ref().filter(|_| it.step.is_none()) else { return };
        let step = member.next_step(&view);
        it.step = step.map(|step| (step, member.draft(&view, step, &policy)));
    }

    fn arrive(&mut self, process: usize) -> Result<(), String> {
        let Some((step, draft)) = self.processes[process].step.take() else { return Ok(()) };
        let mut txn = draft.txn;
        for leased in draft.leased {
            let lease = Some(self.lease());
            txn.then.push(Op::Put { key: leased.key, value: leased.value, lease });
        }
        let window_is_open = self.entries.contains_key(&self.keys.gathering());
        self.strike(process, &mut txn, Some(step));
        let joined = self.commit(&txn) && matches!(step, RoundStep::Join(_));
        if joined && !window_is_open { Err("joined after the window".to_owned()) } else { Ok(()) }
    }

    /// Returns the step that a process takes at once.
    fn take_step(&mut self, process: usize) -> Option<RoundStep> {
        self.decide(process);
        let step = self.processes[process].step.as_ref().map(|(step, _)| *step);
        self.arrive(process).unwrap();
        step
    }

    fn write(&mut self, process: usize, partition: u32) {
        let (view, partition) = (self.view(), PartitionId::new(partition));
        let it = &self.processes[process];
        let Some(member) = it.member.as_ref().filter(|_| it.write.is_none()) else { return };
        let Some(authority) = member.authority(&view).filter(|it| it.acts_for(Some(partition))) else { return };
        let mut txn = Txn { when: authority.guards(&self.keys), ..Txn::default() };
        self.strike(process, &mut txn, None);
        self.processes[process].write = Some((partition, view.revision, txn));
    }

    fn write_arrives(&mut self, process: usize) -> Result<(), String> {
        let Some((partition, seen, txn)) = self.processes[process].write.take() else { return Ok(()) };
        if !self.commit(&txn) {
            return Ok(());
        }
        self.note(process, partition, seen)
    }

    /// Notes a write about a partition that was decided on the view at `seen`.
    fn note(&mut self, process: usize, partition: PartitionId, seen: Revision) -> Result<(), String> {
        self.accepted += 1;
        match self.written.insert(partition, (process, self.revision)) {
            Some((other, at)) if other != process && at > seen => {
                Err(format!("{process} wrote about {partition} by a view of {seen}, and {other} had written at {at}"))
            }
            _ => Ok(()),
        }
    }

    fn live_or_die(&mut self, process: usize) {
        let name = format!("p{process}");
        let key = self.keys.participant(&name);
        if self.processes[process].member.take().is_some() {
            // Its writes stay on their way.
            return self.delete(key);
        }
        let lease = self.lease();
        let value = encode(&Participant::new(&name, None));
        let put = Op::put_leased(key, value, lease);
        self.commit(&Txn::guarded([], [put]));
        let incarnation = Incarnation::registered_at(self.revision);
        self.processes[process].member = Some(Member { name, incarnation, lease });
    }

    fn foreign_leader(&mut self) {
        let key = self.keys.leader();
        if !self.entries.contains_key(&key) {
            let put = Op::Put { key, value: b"{".to_vec(), lease: None };
            self.commit(&Txn::guarded([], [put]));
        }
    }

    fn leader(&mut self) -> Result<(), String> {
        let key = self.keys.leader();
        if self.entries.get(&key).is_some_and(|leader| leader.lease.is_none()) {
            // As a candidate does before it is elected.
            self.delete(key);
            return Ok(());
        }
        if let Some(leader) = self.entries.get(&key) {
            // As in `coordinator`: a leader ends the rounds before it goes.
            let guards = Authority::Leader { term: leader.create_revision }.guards(&self.keys);
            let then = vec![Op::Delete(Keys::One(self.keys.round()))];
            assert!(self.commit(&Txn::guarded(guards, then)));
            self.leader_writes()?;
            self.delete(key);
            return Ok(());
        }
        let lease = self.lease();
        let value = encode(&Leader::new("c", lease));
        self.commit(&Txn::guarded([], [Op::put_leased(key, value, lease)]));
        self.leader_writes()
    }

    fn leader_writes(&mut self) -> Result<(), String> {
        PartitionId::all(PARTITIONS).try_for_each(|partition| self.note(PROCESSES, partition, self.revision))
    }

    fn happen(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Decide(process) => self.decide(process),
            Event::Arrive(process) => self.arrive(process)?,
            Event::Write(process, partition) => self.write(process, partition),
            Event::WriteArrives(process) => self.write_arrives(process)?,
            Event::LiveOrDie(process) => self.live_or_die(process),
            Event::WindowEnds => self.delete(self.keys.gathering()),
            Event::IntervalEnds => self.delete(self.keys.round_interval()),
            Event::HeartbeatPasses => self.delete(self.keys.round_heartbeat()),
            Event::LeaderComesOrGoes => self.leader()?,
            Event::ForeignLeader => self.foreign_leader(),
        }
        Ok(())
    }

    /// Lets every process but `stuck` act, and every lease of a round end. Returns whether each partition gets an actor
    /// among them.
    fn recovers(&mut self, stuck: usize) -> bool {
        if self.entries.get(&self.keys.leader()).is_some_and(|leader| leader.lease.is_some()) {
            self.leader().unwrap();
        }
        for _ in 0..12 {
            for process in (0..PROCESSES).filter(|process| *process != stuck) {
                for _ in 0..3 {
                    self.arrive(process).unwrap();
                    self.decide(process);
                }
            }
            for event in [Event::WindowEnds, Event::IntervalEnds, Event::HeartbeatPasses] {
                self.happen(event).unwrap();
            }
        }
        let view = self.view();
        let live: Vec<usize> =
            (0..PROCESSES).filter(|it| *it != stuck && self.processes[*it].member.is_some()).collect();
        let acts = |process: &usize, partition| {
            let authority = self.processes[*process].member.as_ref().unwrap().authority(&view);
            authority.is_some_and(|authority| authority.acts_for(Some(partition)))
        };
        let actors = |partition| live.iter().filter(|process| acts(process, partition)).count();
        live.is_empty() || PartitionId::all(PARTITIONS).all(|partition| actors(partition) == 1)
    }
}

fn lives(cases: u32, without: Option<Without>) -> Result<(), TestError<Vec<Event>>> {
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    TestRunner::new_with_rng(config, rng).run(&events(), |events| {
        let mut world = World::new(without);
        world.live_or_die(0);
        for event in events {
            world.happen(event).map_err(TestCaseError::fail)?;
        }
        Ok(())
    })
}

#[test]
fn no_two_processes_act_for_a_partition_in_ignorance_of_each_other() {
    lives(5_000, None).unwrap();
}

#[test]
fn each_guard_is_needed() {
    for without in [Without::Round, Without::NoLeader, Without::Window] {
        let found = lives(20_000, Some(without));
        assert!(matches!(found, Err(TestError::Fail(..))), "without {without:?}: {found:?}");
    }
}

#[test]
fn the_other_guards_only_spare_the_store_rounds_and_the_writes_of_the_dead() {
    for without in [Without::OwnLife, Without::OpenGathering, Without::CloseGathering] {
        lives(2_000, Some(without)).unwrap();
    }
}

#[test]
fn a_participant_whose_life_has_ended_writes_nothing_although_its_round_is_in_force() {
    for (without, accepted) in [(None, 0), (Some(Without::OwnLife), 1)] {
        let mut world = World::new(without);
        world.live_or_die(0);
        assert_eq!((world.take_step(0), world.take_step(0)), (Some(RoundStep::Open(1)), Some(RoundStep::Close(1))));
        world.write(0, 0);
        world.live_or_die(0);
        world.write_arrives(0).unwrap();
        assert_eq!(world.accepted, accepted, "{without:?}");
    }
}

#[test]
fn a_round_waits_for_everybody_who_is_registered_until_its_window_ends() {
    let mut world = World::new(None);
    (0..2).for_each(|process| world.live_or_die(process));
    assert_eq!((world.take_step(0), world.take_step(0)), (Some(RoundStep::Open(1)), None), "the other has not joined");
    world.happen(Event::WindowEnds).unwrap();
    assert_eq!(world.take_step(0), Some(RoundStep::Close(1)));
    let round = |world: &World| world.view().rounds.current.unwrap().value;
    assert_eq!(round(&world).participants.into_keys().collect::<Vec<_>>(), ["p0"]);
    // A late participant asks for the next round, and takes part in it.
    world.happen(Event::IntervalEnds).unwrap();
    assert_eq!((world.take_step(1), world.take_step(0)), (Some(RoundStep::Open(2)), Some(RoundStep::Join(2))));
    assert_eq!((world.take_step(0), round(&world).participants.len()), (Some(RoundStep::Close(2)), 2));
}

#[test]
fn whatever_has_happened_every_partition_gets_an_actor_that_acts() {
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let config = Config { cases: 2_000, failure_persistence: None, ..Config::default() };
    let stuck = 0..=PROCESSES;
    let run = TestRunner::new_with_rng(config, rng).run(&(events(), stuck), |(events, stuck)| {
        let mut world = World::new(None);
        for event in events {
            world.happen(event).map_err(TestCaseError::fail)?;
        }
        prop_assert!(world.recovers(stuck), "{:?}", world.view().rounds);
        Ok(())
    });
    run.unwrap();
}

#[test]
fn a_process_alone_holds_a_round_at_once_and_the_next_one_waits_for_the_interval() {
    let mut world = World::new(None);
    world.live_or_die(0);
    assert_eq!(
        [world.take_step(0), world.take_step(0), world.take_step(0)],
        [Some(RoundStep::Open(1)), Some(RoundStep::Close(1)), None]
    );
    world.live_or_die(1);
    assert_eq!((world.take_step(0), world.take_step(1)), (None, None), "too soon");
    world.happen(Event::IntervalEnds).unwrap();
    assert_eq!((world.take_step(1), world.take_step(1)), (Some(RoundStep::Open(2)), None));
    assert_eq!((world.take_step(0), world.take_step(0)), (Some(RoundStep::Join(2)), Some(RoundStep::Close(2))));
    let times =
        world.processes[0].member.as_ref().unwrap().draft(&world.view(), RoundStep::Close(3), &Policy::default());
    let times: Vec<Duration> = times.leased.into_iter().map(|leased| leased.ttl).collect();
    assert_eq!(times, [Policy::default().min_interval, Policy::default().heartbeat]);
    // A participant that dies is replaced without waiting.
    world.live_or_die(0);
    assert_eq!((world.take_step(1), world.take_step(1)), (Some(RoundStep::Open(3)), Some(RoundStep::Close(3))));
}
