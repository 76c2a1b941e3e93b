//! A keyspace in a map: a store that behaves as etcd documents, participants that carry out their duties, and a leader
//! that plans and commits. No threads and no clock: the test sets the time.

use std::cell::RefCell;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::authority::Authority;
use crate::handoff::advance::{Ack, acknowledge, advance};
use crate::handoff::pod::warmed;
use crate::ids::{HandoffId, Incarnation, LeaseId, PartitionId, Revision};
use crate::keys::Keyspace;
use crate::planning::{Memory, Notice, Plan, PlannedWrite, Policy, RoundCause, plan, stored, txn};
use crate::records::*;
use crate::txn::{Compare, Field, KeyValue, Keys, Op, Relation, Snapshot, Txn};
use crate::view::View;

const L1: LeaseId = LeaseId::new(1);

pub(super) const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Returns the defaults of the configuration file, for few partitions and with longer phases.
pub(super) fn policy(partitions: u32) -> Policy {
    Policy { partitions, phase_timeout: secs(60), config_wins: true, ..Policy::default() }
}

/// A simple implementation of the store.
#[derive(Debug, Clone, Default)]
pub(super) struct Store {
    pub(super) revision: Revision,
    pub(super) entries: BTreeMap<String, KeyValue>,
}

impl Store {
    fn holds(&self, compare: &Compare) -> bool {
        let found: Vec<&KeyValue> = self.entries.values().filter(|entry| compare.keys.contains(&entry.key)).collect();
        let is = |order: Ordering| match compare.relation {
            Relation::Equal => order.is_eq(),
            Relation::NotEqual => order.is_ne(),
            Relation::Less => order.is_lt(),
            Relation::Greater => order.is_gt(),
        };
        let relation = |left: Revision, right: Revision| is(left.cmp(&right));
        let one = |entry: Option<&KeyValue>| match &compare.field {
            Field::CreateRevision(revision) => {
                relation(entry.map_or(Revision::ZERO, |entry| entry.create_revision), *revision)
            }
            Field::ModRevision(revision) => {
                relation(entry.map_or(Revision::ZERO, |entry| entry.mod_revision), *revision)
            }
            Field::Lease(lease) => is(entry.and_then(|entry| entry.lease).unwrap_or(LeaseId::NONE).cmp(lease)),
            Field::Value(value) => entry.is_some_and(|entry| is(entry.value.cmp(value))),
        };
        if found.is_empty() { one(None) } else { found.into_iter().all(|entry| one(Some(entry))) }
    }

    /// Commits a transaction. Returns whether it, or its `otherwise`, was applied.
    pub(super) fn commit(&mut self, txn: &Txn) -> bool {
        if !txn.when.iter().all(|compare| self.holds(compare)) {
            return txn.otherwise.as_ref().is_some_and(|otherwise| self.commit(otherwise));
        }
        self.revision = self.revision.next();
        let deleted = |key: &str| {
            let deletes = |op: &Op| matches!(op, Op::Delete(keys) if keys.contains(key));
            txn.then.iter().any(deletes)
        };
        let mut written = BTreeSet::new();
        for op in &txn.then {
            if let Op::Put { key, .. } = op {
                assert!(written.insert(key) && !deleted(key), "{key} is written twice in one transaction");
            }
        }
        for op in &txn.then {
            match op {
                Op::Delete(keys) => self.entries.retain(|key, _| !keys.contains(key)),
                Op::Put { key, value, lease } => {
                    let create = self.entries.get(key).map_or(self.revision, |entry| entry.create_revision);
                    let entry = KeyValue {
                        key: key.clone(),
                        value: value.clone(),
                        create_revision: create,
                        mod_revision: self.revision,
                        lease: *lease,
                    };
                    self.entries.insert(key.clone(), entry);
                }
            }
        }
        true
    }

    pub(super) fn put(&mut self, key: String, value: Vec<u8>) {
        let op = Op::put(key, value);
        self.commit(&Txn::guarded([], [op]));
    }

    /// Puts a key with a lease, as its own writer does.
    pub(super) fn put_leased(&mut self, key: String, value: Vec<u8>) {
        let op = Op::put_leased(key, value, L1);
        self.commit(&Txn::guarded([], [op]));
    }

    pub(super) fn delete(&mut self, key: String) {
        self.commit(&Txn::guarded([], [Op::Delete(Keys::One(key))]));
    }
}

/// A keyspace with its participants and a leader.
#[derive(Debug, Clone)]
pub(super) struct World {
    pub(super) store: Store,
    pub(super) keys: Keyspace,
    pub(super) policy: Policy,
    pub(super) memory: Memory,
    pub(super) now: Duration,
    pub(super) term: Revision,
    /// When the leader asked to be called again.
    pub(super) wake: Option<Duration>,
    /// Pods and routers that do nothing.
    pub(super) silent: BTreeSet<String>,
    /// Routers that cannot drain.
    pub(super) stuck: BTreeSet<String>,
    /// The last view of the leader.
    pub(super) last: RefCell<View>,
}

impl World {
    pub(super) fn new(policy: Policy) -> Self {
        let mut world = World {
            store: Store::default(),
            keys: Keyspace::new("/segue/", "default"),
            policy,
            memory: Memory::default(),
            now: secs(100),
            term: Revision::ZERO,
            wake: None,
            silent: BTreeSet::new(),
            stuck: BTreeSet::new(),
            last: RefCell::new(View::empty(Keyspace::new("/segue/", "default"))),
        };
        world.elect();
        world
    }

    /// Returns a keyspace in which `pods` pods own all partitions and nothing moves.
    pub(super) fn settled(policy: Policy, pods: &[&str]) -> Self {
        let mut world = World::new(policy);
        world.join_router("r-0");
        for pod in pods {
            world.join_pod(pod);
        }
        world.run_until_quiet();
        world
    }

    pub(super) fn authority(&self) -> Authority {
        Authority::Leader { term: self.term }
    }

    pub(super) fn elect(&mut self) {
        self.store.delete(self.keys.leader());
        let leader = Leader::new("c", LeaseId::NONE);
        self.store.put_leased(self.keys.leader(), encode(&leader));
        self.term = self.store.revision;
        *self.last.borrow_mut() = View::empty(self.keys.clone());
        self.memory = Memory::default();
    }

    pub(super) fn join_pod(&mut self, name: &str) {
        self.put_pod(name, PodStatus::Ready, 1000, None);
    }

    pub(super) fn put_pod(&mut self, name: &str, status: PodStatus, weight: u32, zone: Option<&str>) {
        let pod = PodRecord {
            status,
            weight: Thousandths(weight),
            zone: zone.map(str::to_owned),
            // In `independent` mode no move leads to a pod with the capability `sync`.
            capabilities: Capabilities { sync: self.policy.mode == Mode::Barrier, ..Capabilities::ALL },
            ..PodRecord::new(name, format!("{name}:1"))
        };
        self.store.put_leased(self.keys.pod(name), encode(&pod));
    }

    /// Registers a pod of a version, or changes its status.
    pub(super) fn put_pod_of(&mut self, name: &str, status: PodStatus, version: Option<&str>) {
        self.put_pod(name, status, 1000, None);
        let record = PodRecord { version: version.map(str::to_owned), ..self.view().pods[name].value.clone() };
        self.store.put_leased(self.keys.pod(name), encode(&record));
    }

    pub(super) fn drain_pod(&mut self, name: &str) {
        self.put_pod(name, PodStatus::Draining, 1000, None);
    }

    pub(super) fn kill_pod(&mut self, name: &str) {
        self.store.delete(self.keys.pod(name));
    }

    pub(super) fn restart_pod(&mut self, name: &str) {
        self.kill_pod(name);
        self.join_pod(name);
    }

    pub(super) fn join_router(&mut self, name: &str) {
        let router = RouterRecord::new(name);
        self.store.put_leased(self.keys.router(name), encode(&router));
        self.say_mapping();
    }

    /// Writes, where there is no mapping yet, that requests name their partition.
    pub(super) fn say_mapping(&mut self) {
        let view = self.view();
        let Some(config) = view.config.filter(|_| !view.routers.is_empty()) else { return };
        if config.value.partitioner.is_none() {
            let config = KeyspaceConfig { partitioner: Some(Partitioner::NUMBER), ..config.value };
            self.store.put(self.keys.config(), encode(&config));
        }
    }

    pub(super) fn kill_router(&mut self, name: &str) {
        self.store.delete(self.keys.router(name));
    }

    pub(super) fn view(&self) -> View {
        let snapshot =
            Snapshot { revision: self.store.revision, entries: self.store.entries.values().cloned().collect() };
        let mut last = self.last.borrow_mut();
        last.resync(View::from_snapshot(self.keys.clone(), snapshot));
        last.clone()
    }

    pub(super) fn handoff(&self, partition: PartitionId) -> Handoff {
        self.view().handoffs[&partition].value.clone()
    }

    pub(super) fn handoff_id(&self, partition: PartitionId) -> HandoffId {
        self.view().handoffs[&partition].id()
    }

    pub(super) fn owner(&self, partition: PartitionId) -> String {
        self.view().assignments[&partition].value.owner.clone()
    }

    /// Returns how many partitions each registered pod owns.
    pub(super) fn balance(&self) -> BTreeMap<String, usize> {
        let view = self.view();
        let mut balance: BTreeMap<String, usize> = view.pods.keys().map(|pod| (pod.clone(), 0)).collect();
        for partition in view.assignments.keys() {
            if let Some((assignment, _)) = view.live_owner(*partition) {
                *balance.get_mut(&assignment.owner).unwrap() += 1;
            }
        }
        balance
    }

    /// Puts the policy in force, as a leader whose file wins does.
    fn write_policy(&mut self) {
        let Some(config) = self.view().config.filter(|_| self.policy.config_wins) else { return };
        let planning = Some(stored(&self.policy));
        if config.value.planning != planning {
            self.store.put(self.keys.config(), encode(&KeyspaceConfig { planning, ..config.value }));
        }
    }

    pub(super) fn plan(&mut self) -> Plan {
        self.write_policy();
        let plan = plan(&self.view(), &self.policy, &self.authority(), &mut self.memory, self.now);
        if let Some(wake) = plan.next_wake {
            assert!(wake > self.now, "a wake in the past");
        }
        self.wake = plan.next_wake;
        plan
    }

    pub(super) fn carry_out(&mut self, action: &PlannedWrite) -> bool {
        match txn(&self.view(), action, &self.authority(), 1_700_000_000_000) {
            Some(txn) => self.store.commit(&txn),
            None => false,
        }
    }

    /// Plans and commits, as the shell does.
    pub(super) fn lead(&mut self) -> Plan {
        let plan = self.plan();
        for action in &plan.actions {
            self.carry_out(action);
        }
        self.say_mapping();
        plan
    }

    /// Leads at every moment that the leader has asked for, until `span` has passed.
    pub(super) fn wait(&mut self, span: Duration) -> Vec<Plan> {
        let end = self.now + span;
        let mut plans = vec![self.lead()];
        while let Some(wake) = self.wake.filter(|wake| *wake <= end) {
            self.now = wake;
            plans.push(self.lead());
        }
        self.now = end;
        plans
    }

    /// Leads at the next moment that the leader has asked for.
    pub(super) fn wait_for_wake(&mut self) -> Plan {
        self.now = self.wake.expect("a leader always wakes again");
        self.lead()
    }

    /// Lets each participant of a partition's handoff do one due thing. Returns whether anything happened.
    pub(super) fn participate(&mut self, partition: PartitionId) -> bool {
        let view = self.view();
        let Some(stamped) = view.handoffs.get(&partition) else { return false };
        let (id, handoff) = (stamped.id(), &stamped.value);
        let before = self.store.revision;
        let speaks = |name: &String| !self.silent.contains(name);
        let new_owner = view.live_new_owner(handoff).filter(|_| speaks(&handoff.new_owner));
        let mut txns = Vec::new();
        if new_owner.is_some() {
            txns.extend(warmed(&view, &handoff.new_owner, handoff.new_incarnation, id, partition, 0));
        }
        let drains = handoff.phase == Phase::Ready && handoff.mode == Mode::Barrier && handoff.old_owner.is_some();
        let cuts_over = handoff.phase == Phase::Switching
            || (handoff.phase == Phase::Ready && handoff.mode == Mode::Independent && handoff.old_owner.is_some());
        let mut acks = Vec::new();
        for (router, stamp) in view.routers.iter().filter(|(router, _)| speaks(router)) {
            let (key, incarnation) = (self.keys.router(router), stamp.incarnation());
            if drains && view.drained_ack(partition, router, id).is_none() {
                let ack = RouterDrainedAck {
                    gave_up: self.stuck.contains(router),
                    ..RouterDrainedAck::new(router.clone(), partition, id)
                };
                acks.push((Ack::RouterDrained(ack), key, incarnation));
            } else if cuts_over && view.cutover_ack(partition, router, id).is_none() {
                let ack = RouterCutoverAck::new(router.clone(), partition, id);
                acks.push((Ack::RouterCutover(ack), key, incarnation));
            }
        }
        let old = handoff.old_owner.iter().map(|pod| (pod, handoff.old_incarnation));
        let says = match handoff.phase {
            Phase::Syncing => vec![PodAckKind::Drained, PodAckKind::Synced],
            Phase::Complete => vec![PodAckKind::Released],
            _ => Vec::new(),
        };
        for kind in says {
            let speakers: Vec<(&String, Incarnation)> = if kind == PodAckKind::Synced {
                vec![(&handoff.new_owner, handoff.new_incarnation)]
            } else {
                old.clone().collect()
            };
            for (pod, incarnation) in speakers {
                let lives = view.live_pod(pod, incarnation).is_some() && speaks(pod);
                if lives && view.pod_ack(partition, pod, kind, id).is_none() {
                    let ack = PodAck::new(pod.clone(), partition, id, kind);
                    acks.push((Ack::Pod(ack), self.keys.pod(pod), incarnation));
                }
            }
        }
        txns.extend(acks.into_iter().map(|(ack, key, incarnation)| acknowledge(&view, &ack, key, incarnation, 0)));
        txns.extend(advance(&view, partition, 0).map(|advance| advance.txn));
        for txn in txns {
            self.store.commit(&txn);
        }
        self.store.revision > before
    }

    /// Lets every participant do what it can, once.
    pub(super) fn participate_all(&mut self) -> bool {
        let partitions: Vec<PartitionId> = self.view().handoffs.keys().copied().collect();
        let happened: Vec<bool> = partitions.into_iter().map(|partition| self.participate(partition)).collect();
        happened.contains(&true)
    }

    /// Leads and participates until two heartbeats have passed without a write. Returns the number of moves begun.
    pub(super) fn run_until_quiet(&mut self) -> usize {
        let (mut begun, mut heartbeats) = (0, 0);
        for _ in 0..5_000 {
            let before = self.store.revision;
            let plan = self.lead();
            begun += plan.actions.iter().filter(|action| matches!(action, PlannedWrite::Create { .. })).count();
            if self.participate_all() || self.store.revision > before {
                heartbeats = 0;
                continue;
            }
            // A back-off can be longer than a heartbeat: a move that still waits for one is not at rest.
            let is_rest = |notice: &Notice| matches!(notice, Notice::Shunned { .. } | Notice::DiesEarly { .. });
            let rests = plan.waiting == 0 && !plan.notices.iter().any(is_rest);
            heartbeats += u32::from(rests && plan.round == Some(RoundCause::Heartbeat));
            if heartbeats == 2 {
                return begun;
            }
            self.now = self.wake.expect("a leader always wakes again");
        }
        panic!("the keyspace never gets quiet: {:#?}", self.view());
    }
}
