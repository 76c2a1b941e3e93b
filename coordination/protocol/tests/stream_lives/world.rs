//! Two pods by streams, the instances that serve them, and their store, changed step by step.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use segue_protocol::handoff::advance::advance;
use segue_protocol::handoff::checkpoint::Waits;
use segue_protocol::handoff::parties::Parties;
use segue_protocol::handoff::pod_reconcile::Callback;
use segue_protocol::handoff::remote_pod::{PodMessages, RemotePod, RemoteTask, ReportVerdict, TaskReport, judge};
use segue_protocol::ids::{Epoch, HandoffId, Incarnation, LeaseId, PartitionId, Revision};
use segue_protocol::keys::Keyspace;
use segue_protocol::records::{Capabilities, Handoff, Phase, PodAckKind, PodRecord, encode};
use segue_protocol::txn::{KeyValue, Keys, Op, Snapshot, Txn};
use segue_protocol::view::{Versioned, View};

use super::{PARTITIONS, PODS, Step};

/// The state of a partition that a pod has: the epoch that it was warmed for, and the number of writes.
type Held = BTreeMap<PartitionId, (Epoch, u64)>;

/// The knowledge of a pod's process.
#[derive(Debug, Clone, Default)]
pub(super) struct Client {
    pub(super) owned: BTreeMap<PartitionId, Epoch>,
    held: Held,
    /// For each partition the tasks to do, in order: a release, and what follows it.
    tasks: BTreeMap<PartitionId, VecDeque<RemoteTask>>,
    pub(super) acks: Vec<TaskReport>,
    /// Acknowledgements that have got their outcome, and may arrive once more.
    done: Vec<(Incarnation, TaskReport)>,
}

/// A stream, with the events that are on their way. The first one is full.
#[derive(Debug, Clone)]
pub(super) struct Stream {
    instance: usize,
    server: RemotePod,
    events: VecDeque<(bool, PodMessages)>,
}

/// Two pods, the store, and two instances that serve the pods' streams.
#[derive(Debug, Clone)]
pub(super) struct World {
    keys: Keyspace,
    revision: Revision,
    pub(super) entries: BTreeMap<String, KeyValue>,
    /// The views of the instances.
    pub(super) views: [View; 2],
    pub(super) clients: [Client; 2],
    pub(super) streams: [Option<Stream>; 2],
    /// Writes of each partition, and the epoch of the last one.
    pub(super) logs: BTreeMap<PartitionId, (Epoch, u64)>,
    /// The fault of the service: an acknowledgement counts for the present handoff, whichever it names.
    pub(super) takes_late_acks: bool,
}

impl World {
    pub(super) fn new() -> Self {
        let keys = Keyspace::new("/segue/", "test");
        let views = [View::empty(keys.clone()), View::empty(keys.clone())];
        let mut world = World {
            keys,
            revision: Revision::ZERO,
            entries: BTreeMap::new(),
            views,
            clients: Default::default(),
            streams: [None, None],
            logs: BTreeMap::new(),
            takes_late_acks: false,
        };
        (0..PODS.len()).for_each(|pod| world.register(pod));
        world
    }

    fn register(&mut self, pod: usize) {
        let record = PodRecord { capabilities: Capabilities::ALL, ..PodRecord::new(PODS[pod], "127.0.0.1:1") };
        let key = self.keys.pod(PODS[pod]);
        self.write(Op::put_leased(key, encode(&record), LeaseId::new(1)));
    }

    fn write(&mut self, op: Op) {
        assert!(self.commit(&Txn::guarded([], [op])));
    }

    fn commit(&mut self, txn: &Txn) -> bool {
        let holds = txn.when.iter().all(|compare| {
            let mut found = self.entries.values().filter(|entry| compare.keys.contains(&entry.key)).peekable();
            if found.peek().is_none() { compare.holds_for(None) } else { found.all(|it| compare.holds_for(Some(it))) }
        });
        if !holds {
            return txn.otherwise.as_ref().is_some_and(|otherwise| self.commit(otherwise));
        }
        self.revision = self.revision.next();
        for op in &txn.then {
            match op {
                Op::Delete(keys) => self.entries.retain(|key, _| !keys.contains(key)),
                Op::Put { key, value, lease } => {
                    let create_revision = self.entries.get(key).map_or(self.revision, |entry| entry.create_revision);
                    let (key, value, lease, mod_revision) = (key.clone(), value.clone(), *lease, self.revision);
                    self.entries.insert(key.clone(), KeyValue { key, value, create_revision, mod_revision, lease });
                }
            }
        }
        true
    }

    pub(super) fn view(&self) -> View {
        let entries = self.entries.values().cloned().collect();
        View::from_snapshot(self.keys.clone(), Snapshot { revision: self.revision, entries })
    }

    fn incarnation(&self, pod: usize) -> Incarnation {
        self.view().incarnation_of(PODS[pod])
    }

    /// Begins a handoff from the owner to the other pod, or from a dead owner to anybody.
    fn plan(&mut self, partition: PartitionId, dice: usize) {
        let view = self.view();
        if view.handoffs.contains_key(&partition) {
            return;
        }
        let owner = view.assignments.get(&partition).map(|assignment| assignment.value.clone());
        let lives = owner.as_ref().is_some_and(|owner| view.live_pod(&owner.owner, owner.incarnation).is_some());
        let to = match &owner {
            Some(owner) if lives => PODS.iter().position(|pod| *pod != owner.owner).unwrap(),
            _ => dice % PODS.len(),
        };
        let epoch = owner.as_ref().map_or(0, |owner| owner.epoch.get() + 1).max(view.revision.get());
        let mut record = Handoff::new(partition, PODS[to], self.incarnation(to), Epoch::new(epoch));
        if let Some(owner) = owner {
            record = record.taken_from(owner.owner, owner.incarnation);
        }
        self.write(Op::put(self.keys.handoff(partition), encode(&record)));
    }

    /// Ends a handoff before the point of no return, or one whose new owner is dead.
    fn cancel(&mut self, partition: PartitionId, only_if_needed: bool) {
        let view = self.view();
        let Some(record) = view.handoffs.get(&partition) else { return };
        let failed = view.pod_ack(partition, &record.value.new_owner, PodAckKind::Failed, record.id()).is_some();
        let is_dead = view.live_new_owner(&record.value).is_none();
        let can = record.value.phase < Phase::Switching;
        if is_dead || (can && (failed || !only_if_needed)) {
            self.write(Op::Delete(Keys::One(self.keys.handoff(partition))));
            for prefix in self.keys.acks_of(partition) {
                self.write(Op::Delete(Keys::Prefix(prefix)));
            }
        }
    }

    fn advance(&mut self, partition: PartitionId) {
        if let Some(next) = advance(&self.view(), partition, 0) {
            self.commit(&next.txn);
        }
    }

    /// An instance sees the present, and tells its streams.
    fn catch_up(&mut self, instance: usize) {
        self.views[instance] = self.view();
        let view = &self.views[instance];
        for stream in self.streams.iter_mut().flatten().filter(|stream| stream.instance == instance) {
            let concerned = stream.server.concerned(&Parties::of(view));
            let changes = stream.server.update(view, concerned, Duration::ZERO, &mut Waits::default());
            if !changes.is_empty() {
                stream.events.push_back((false, changes));
            }
        }
    }

    fn connect(&mut self, pod: usize, instance: usize) {
        // The instance marks the present and waits until its view shows it.
        self.catch_up(instance);
        let view = &self.views[instance];
        let holdings = self.clients[pod].held.iter().map(|(partition, (epoch, _))| (*partition, *epoch));
        let mut server = RemotePod::new(view, PODS[pod], view.incarnation_of(PODS[pod]), holdings);
        let concerned = server.concerned(&Parties::of(view));
        let events = VecDeque::from([(true, server.update(view, concerned, Duration::ZERO, &mut Waits::default()))]);
        self.streams[pod] = Some(Stream { instance, server, events });
    }

    fn deliver(&mut self, pod: usize) {
        let event = self.streams[pod].as_mut().and_then(|stream| stream.events.pop_front());
        let Some((is_full, changes)) = event else { return };
        let client = &mut self.clients[pod];
        if is_full {
            client.owned.clear();
            // A report that is no longer due is not repeated.
            client.tasks.clear();
        }
        changes.gone.iter().for_each(|partition| _ = client.owned.remove(partition));
        client.owned.extend(changes.owned);
        for (partition, handoff) in changes.dropped {
            client.tasks.entry(partition).or_default().retain(|task| task.handoff != handoff);
        }
        for task in changes.tasks {
            let tasks = client.tasks.entry(task.partition).or_default();
            tasks.retain(|before| before.callback == Callback::Release && *before != task);
            tasks.push_back(task);
        }
    }

    fn work(&mut self, pod: usize, partition: PartitionId, fails: bool) {
        let client = &mut self.clients[pod];
        let Some(task) = client.tasks.get_mut(&partition).and_then(VecDeque::pop_front) else { return };
        let RemoteTask { callback, handoff, epoch, .. } = task;
        let report = TaskReport { partition, handoff, callback, failure: None };
        if fails && report.can_fail() {
            return client.acks.push(TaskReport { failure: Some("no disk".to_owned()), ..report });
        }
        let log = self.logs.get(&partition).map_or(0, |(_, log)| *log);
        match callback {
            Callback::Warm if client.held.get(&partition).is_some_and(|(held, _)| *held == epoch) => {}
            Callback::Warm => _ = client.held.insert(partition, (epoch, log)),
            Callback::Sync => client.held.get_mut(&partition).unwrap().1 = log,
            Callback::Drain => assert!(!client.owned.contains_key(&partition), "it was told to refuse"),
            // The state of a later epoch comes from a Warm of an earlier stream that has ended since this stream began.
            Callback::Release => {
                let is_later = |held| epoch != Epoch::default() && held > epoch;
                client.held.retain(|at, (held, _)| *at != partition || is_later(*held));
            }
            Callback::Leaving | Callback::Checkpoint => unreachable!("these pods are told none"),
        }
        client.acks.push(report);
    }

    fn acknowledge(&mut self, pod: usize, instance: usize, ack: usize) {
        if self.clients[pod].acks.is_empty() {
            return;
        }
        let ack = ack % self.clients[pod].acks.len();
        let report = self.clients[pod].acks[ack].clone();
        let incarnation = self.incarnation(pod);
        if self.judged(pod, incarnation, instance, &report) {
            let view = self.view();
            let warms = |it: &&Versioned<Handoff>| (it.id(), it.value.phase) == (report.handoff, Phase::Warming);
            if report.failure.is_some() && view.handoffs.get(&report.partition).is_some_and(|it| warms(&it)) {
                let said = view.pod_ack(report.partition, PODS[pod], PodAckKind::Failed, report.handoff);
                assert_eq!(said.unwrap().reason, report.failure, "the coordinator learns of it");
            }
            self.clients[pod].acks.remove(ack);
            self.clients[pod].done.push((incarnation, report));
        }
    }

    /// Returns whether the acknowledgement has got its outcome.
    fn judged(&mut self, pod: usize, incarnation: Incarnation, instance: usize, report: &TaskReport) -> bool {
        if report.handoff == HandoffId::NONE {
            let stream = self.streams[pod].as_mut().filter(|stream| stream.instance == instance);
            if report.callback == Callback::Warm
                && let Some(stream) = stream
            {
                stream.server.warmed_by_hand(report.partition);
                self.catch_up(instance);
                return true;
            }
            return report.callback != Callback::Warm;
        }
        let present = self.views[instance].handoffs.get(&report.partition).map(|record| record.id());
        let handoff = present.filter(|_| self.takes_late_acks).unwrap_or(report.handoff);
        let report = &TaskReport { handoff, ..report.clone() };
        match judge(&self.views[instance], PODS[pod], incarnation, report, 0) {
            ReportVerdict::Commit(txn) => {
                let committed = self.commit(&txn);
                if committed && report.callback == Callback::Warm && report.failure.is_none() {
                    // A first placement ends with this report.
                    let (view, at) = (self.view(), &report.partition);
                    let ready = view.handoffs.get(at).map(|handoff| handoff.value.epoch);
                    let epoch = ready.unwrap_or_else(|| view.assignments[at].value.epoch);
                    let held = self.clients[pod].held.get(&report.partition).map(|(held, _)| *held);
                    assert_eq!(held, Some(epoch), "it is ready without the state");
                }
                committed
            }
            ReportVerdict::Known | ReportVerdict::Stale => true,
            ReportVerdict::TooEarly => false,
        }
    }

    /// A write, if the pod accepts it.
    pub(super) fn accept(&mut self, pod: usize, partition: PartitionId) {
        let view = self.view();
        let client = &mut self.clients[pod];
        let Some(epoch) = client.owned.get(&partition) else { return };
        let drained = |id| view.pod_ack(partition, PODS[pod], PodAckKind::Drained, id).is_some();
        assert!(!view.handoffs.get(&partition).is_some_and(|it| drained(it.id())), "the log was said to be at rest");
        let (held, state) = client.held.get_mut(&partition).expect("it serves what it has");
        let (last, log) = self.logs.entry(partition).or_default();
        assert_eq!(held, epoch, "the state is of another epoch");
        assert!(*last <= *epoch, "a later owner has written");
        assert_eq!(state, log, "earlier writes are missing");
        (*last, *log, *state) = (*epoch, *log + 1, *log + 1);
    }

    fn restart(&mut self, pod: usize) {
        self.streams[pod] = None;
        let late = std::mem::take(&mut self.clients[pod].done);
        self.clients[pod] = Client { done: late, ..Client::default() };
        self.write(Op::Delete(Keys::One(self.keys.pod(PODS[pod]))));
        self.register(pod);
    }

    pub(super) fn take(&mut self, step: &Step) {
        let number = |partition: u8| PartitionId::new(partition.into());
        match *step {
            Step::Plan(partition) => self.plan(number(partition), usize::from(partition)),
            Step::Cancel(partition) => self.cancel(number(partition), false),
            Step::Advance(partition) => self.advance(number(partition)),
            Step::CatchUp(instance) => self.catch_up(instance.into()),
            Step::Deliver(pod) => self.deliver(pod.into()),
            Step::Work(pod, partition) => self.work(pod.into(), number(partition), false),
            Step::FailForGood(pod, partition) => self.work(pod.into(), number(partition), true),
            Step::Acknowledge(pod, instance, ack) => self.acknowledge(pod.into(), instance.into(), ack.into()),
            Step::Repeat(pod, ack) => {
                let done = &self.clients[usize::from(pod)].done;
                if let Some((life, report)) = done.get(usize::from(ack) % done.len().max(1)).cloned()
                    && report.handoff != HandoffId::NONE
                {
                    self.judged(pod.into(), life, usize::from(ack) % 2, &report);
                }
            }
            Step::Write(pod, partition) => self.accept(pod.into(), number(partition)),
            Step::Connect(pod, instance) => self.connect(pod.into(), instance.into()),
            Step::Break(pod) => self.streams[usize::from(pod)] = None,
            Step::Restart(pod) => self.restart(pod.into()),
        }
        for client in &self.clients {
            for (partition, epoch) in &client.owned {
                assert_eq!(client.held.get(partition).map(|(held, _)| held), Some(epoch), "{partition} is served");
            }
        }
    }

    /// Lets everybody do what is due, without faults.
    pub(super) fn settle(&mut self) {
        for pod in 0..PODS.len() {
            self.connect(pod, pod % 2);
        }
        for _ in 0..60 {
            for partition in (0..PARTITIONS).map(PartitionId::new) {
                self.cancel(partition, true);
                let view = self.view();
                if view.live_owner(partition).is_none() {
                    self.plan(partition, 0);
                }
                self.advance(partition);
            }
            for pod in 0..PODS.len() {
                self.catch_up(pod % 2);
                while self.streams[pod].as_ref().is_some_and(|stream| !stream.events.is_empty()) {
                    self.deliver(pod);
                }
                for partition in (0..PARTITIONS).map(PartitionId::new) {
                    while self.clients[pod].tasks.get(&partition).is_some_and(|tasks| !tasks.is_empty()) {
                        self.work(pod, partition, false);
                    }
                }
                for ack in (0..self.clients[pod].acks.len()).rev() {
                    self.acknowledge(pod, pod % 2, ack);
                }
            }
        }
    }

    pub(super) fn is_settled(&self) {
        let view = self.view();
        assert!(view.handoffs.is_empty(), "{:?}", view.handoffs);
        for partition in (0..PARTITIONS).map(PartitionId::new) {
            let (owner, _) = view.live_owner(partition).expect("it has an owner");
            for (pod, client) in PODS.iter().zip(&self.clients) {
                let expected = (owner.owner == *pod).then_some(&owner.epoch);
                assert_eq!(client.owned.get(&partition), expected, "{pod} and {partition}");
                assert_eq!(client.held.get(&partition).map(|(epoch, _)| epoch), expected, "{pod} and {partition}");
            }
        }
        assert!(self.clients.iter().all(|client| client.acks.is_empty()), "{:?}", self.clients);
    }
}
