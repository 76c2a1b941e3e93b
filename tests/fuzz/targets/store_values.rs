//! Fuzzes the values of the store, as any version or operator may have written them. A history of puts and deletes
//! gives the same view as a snapshot of its end. Values that cannot be read are kept apart. On no view does a decision
//! panic or write a key twice.

use std::collections::BTreeMap;
use std::time::Duration;

use arbitrary::{Arbitrary, Unstructured};
use segue_protocol::authority::Authority;
use segue_protocol::handoff::advance::{Ack, acknowledge, advance, waiting_for};
use segue_protocol::handoff::pod::{duty, warmed};
use segue_protocol::handoff::router::{
    GateStage, HoldCause, OnDrainTimeout, OnStoreLoss, Route, RouteStep, Target, Trust, drain_timed_out, next_step,
    route,
};
use segue_protocol::ids::{HandoffId, Incarnation, PartitionId, Revision};
use segue_protocol::keys::Keyspace;
use segue_protocol::planning::{Memory, Policy, Strategy, plan, txn};
use segue_protocol::records::{Mode, Phase, PodAck, PodAckKind, RouterCutoverAck, RouterDrainedAck};
use segue_protocol::txn::{Batch, Event, KeyValue, Op, Snapshot, Txn};
use segue_protocol::view::View;
use serde_json::{Value, json};

use crate::Outcome;

/// There are few names, so that records refer to each other.
const PARTITIONS: u32 = 3;
const PODS: [&str; 3] = ["w-0", "w-1", "w-2"];
const ROUTERS: [&str; 2] = ["r-0", "r-1"];

#[derive(Debug, Arbitrary)]
struct Input<'a> {
    changes: Vec<Change<'a>>,
    strategy: u8,
    independent: bool,
    /// Time from the first plan to the second, in seconds.
    later: u16,
}

#[derive(Debug, Arbitrary)]
struct Change<'a> {
    key: Key,
    /// The value. `None` is a delete.
    value: Option<Content<'a>>,
    /// Whether the revision advances, so that the next change belongs to another transaction.
    commit: bool,
    /// Whether the batch ends here.
    flush: bool,
}

#[derive(Debug, Clone, Copy, Arbitrary)]
enum Key {
    Config,
    Leader,
    Pod(u8),
    Router(u8),
    Assignment(u8),
    Handoff(u8),
    Drained(u8, u8),
    Cutover(u8, u8),
    PodAck(u8, u8, u8),
    Unknown(u8),
}

#[derive(Debug, Arbitrary)]
enum Content<'a> {
    /// A record that fits the key.
    Record(Fields),
    /// The same with changes that another version or an operator could make.
    Changed(Fields, Vec<Edit<'a>>),
    /// The same, cut off.
    Truncated(Fields, u8),
    Bytes(&'a [u8]),
}

/// The fields of records.
#[derive(Debug, Clone, Copy, Arbitrary)]
struct Fields {
    /// Selects the earlier change whose revision is the incarnation or the handoff.
    incarnation: u8,
    other: u8,
    pod: u8,
    phase: u8,
    epoch: Number,
    partitions: Number,
    flags: u8,
}

#[derive(Debug, Clone, Copy, Arbitrary)]
enum Number {
    Small(u8),
    Any(u64),
    Largest(u8),
}

impl Number {
    fn get(self) -> u64 {
        match self {
            Number::Small(number) => u64::from(number % 8),
            Number::Any(number) => number,
            Number::Largest(below) => u64::MAX - u64::from(below),
        }
    }
}

#[derive(Debug, Arbitrary)]
enum Edit<'a> {
    Remove(u8),
    Null(u8),
    Number(u8, f64),
    Text(u8, &'a str),
    List(u8),
    Add(&'a str, u64),
}

pub fn run(data: &[u8]) -> Outcome {
    let Ok(input) = Input::arbitrary_take_rest(Unstructured::new(data)) else { return Outcome::NoInput };
    replay(&input);
    Outcome::Checked
}

fn replay(input: &Input<'_>) {
    let keys = Keyspace::new("/segue/", "default");
    let mut history = History {
        keys: keys.clone(),
        revision: Revision::new(2),
        entries: BTreeMap::new(),
        revisions: vec![Revision::ZERO],
    };
    let mut view = View::from_snapshot(keys.clone(), Snapshot { revision: Revision::new(1), entries: Vec::new() });
    let mut memory = Memory::default();
    let policy = policy(input);
    let mut events = Vec::new();
    for change in &input.changes {
        if change.commit {
            history.revision = history.revision.next();
        }
        events.extend(history.change(change));
        if change.flush {
            history.revision = history.revision.next();
            view.apply(Batch {
                revision: Revision::new(history.revision.get() - 1),
                events: std::mem::take(&mut events),
            });
            decide(&view, &policy, &mut memory, Duration::from_secs(100));
        }
    }
    history.revision = history.revision.next();
    let batch = Batch { revision: history.revision, events };
    view.apply(batch.clone());
    // A batch that arrives twice changes nothing.
    let once = view.clone();
    view.apply(batch);
    assert_eq!(view, once);

    let entries = history.entries.values().cloned().collect();
    let fresh = View::from_snapshot(keys, Snapshot { revision: history.revision, entries });
    // A running router keeps the settings that it read last. A router that starts does not know them.
    let mut snapshot = view.clone();
    snapshot.resync(fresh);
    assert_eq!(view, snapshot, "batch by batch, and all at once");
    for (key, entry) in &history.entries {
        apart(&view, key, entry);
    }
    decide(&view, &policy, &mut memory, Duration::from_secs(100));
    decide(&view, &policy, &mut memory, Duration::from_secs(101 + u64::from(input.later)));
}

/// Checks that a value that is not a JSON object is never in the view as if it had been read.
fn apart(view: &View, key: &str, entry: &KeyValue) {
    let readable = serde_json::from_slice::<Value>(&entry.value).is_ok_and(|value| value.is_object());
    let known = view.keys().parse(key).is_some();
    assert!(readable || !known || view.malformed.contains_key(key), "{key} was taken for readable");
    for partition in PartitionId::all(PARTITIONS) {
        let (assignment, handoff) = (view.keys().assignment(partition), view.keys().handoff(partition));
        let broken = view.malformed.contains_key(&assignment) || view.malformed.contains_key(&handoff);
        assert_eq!(view.is_malformed(partition), broken);
        assert!(!view.malformed.contains_key(&assignment) || !view.assignments.contains_key(&partition));
        assert!(!view.malformed.contains_key(&handoff) || !view.handoffs.contains_key(&partition));
    }
}

/// The part of a store that is needed to know its content.
struct History {
    keys: Keyspace,
    revision: Revision,
    entries: BTreeMap<String, KeyValue>,
    revisions: Vec<Revision>,
}

impl History {
    fn change(&mut self, change: &Change<'_>) -> Option<Event> {
        let key = self.key(change.key);
        let Some(content) = &change.value else {
            return self.entries.remove(&key).map(|_| Event::Delete { key, mod_revision: self.revision });
        };
        let value = self.bytes(change.key, content);
        let create_revision = self.entries.get(&key).map_or(self.revision, |entry| entry.create_revision);
        let entry = KeyValue { key: key.clone(), value, create_revision, mod_revision: self.revision, lease: None };
        self.revisions.push(create_revision);
        self.entries.insert(key, entry.clone());
        Some(Event::Put(entry))
    }

    fn key(&self, key: Key) -> String {
        let keys = &self.keys;
        match key {
            Key::Config => keys.config(),
            Key::Leader => keys.leader(),
            Key::Pod(pod) => keys.pod(name(&PODS, pod)),
            Key::Router(router) => keys.router(name(&ROUTERS, router)),
            Key::Assignment(partition) => keys.assignment(number(partition)),
            Key::Handoff(partition) => keys.handoff(number(partition)),
            Key::Drained(partition, router) => keys.router_drained(number(partition), name(&ROUTERS, router)),
            Key::Cutover(partition, router) => keys.router_cutover(number(partition), name(&ROUTERS, router)),
            Key::PodAck(partition, pod, kind) => {
                keys.pod_ack(number(partition), name(&PODS, pod), ACKS[usize::from(kind) % ACKS.len()])
            }
            Key::Unknown(kind) => format!("{}news/{kind}", keys.root()),
        }
    }

    fn bytes(&self, key: Key, content: &Content<'_>) -> Vec<u8> {
        match content {
            Content::Record(fields) => self.record(key, *fields).to_string().into_bytes(),
            Content::Changed(fields, edits) => {
                let mut record = self.record(key, *fields);
                edits.iter().for_each(|edit| change(&mut record, edit));
                record.to_string().into_bytes()
            }
            Content::Truncated(fields, length) => {
                let mut bytes = self.record(key, *fields).to_string().into_bytes();
                bytes.truncate(usize::from(*length));
                bytes
            }
            Content::Bytes(bytes) => bytes.to_vec(),
        }
    }

    fn record(&self, key: Key, fields: Fields) -> Value {
        let some_revision = |index: u8| self.revisions[usize::from(index) % self.revisions.len()];
        let flag = |bit: u8| fields.flags & (1 << bit) != 0;
        let handoff = some_revision(fields.incarnation);
        match key {
            Key::Config => json!({"partitions": fields.partitions.get()}),
            Key::Leader => json!({"holder": "c", "lease_id": 7}),
            Key::Pod(pod) => {
                let has = ["sync", "drained", "released", "fence"].into_iter().zip(0..);
                let capabilities: Vec<&str> = has.filter(|(_, bit)| flag(*bit)).map(|(name, _)| name).collect();
                json!({
                    "pod_name": name(&PODS, pod), "address": "127.0.0.1:1", "capabilities": capabilities,
                    "status": if flag(4) { "Draining" } else { "Ready" }, "weight": f64::from(fields.phase) / 8.0,
                    "zone": flag(5).then_some("x"),
                })
            }
            Key::Router(router) => json!({"router_name": name(&ROUTERS, router)}),
            Key::Assignment(partition) => json!({
                "partition": number(partition), "owner": name(&PODS, fields.pod), "incarnation": handoff,
                "status": "Active", "epoch": fields.epoch.get(),
            }),
            Key::Handoff(partition) => json!({
                "partition": number(partition), "old_owner": flag(0).then(|| name(&PODS, fields.other)),
                "old_incarnation": some_revision(fields.other), "new_owner": name(&PODS, fields.pod),
                "new_incarnation": handoff, "epoch": fields.epoch.get(),
                "phase": Phase::ALL[usize::from(fields.phase) % 5],
                "mode": if flag(1) { "independent" } else { "barrier" }, "reason": "fuzz",
            }),
            Key::Drained(partition, router) => json!({
                "router_name": name(&ROUTERS, router), "partition": number(partition), "handoff": handoff,
                "gave_up": flag(0),
            }),
            Key::Cutover(partition, router) => json!({
                "router_name": name(&ROUTERS, router), "partition": number(partition), "handoff": handoff,
            }),
            Key::PodAck(partition, pod, kind) => json!({
                "pod_name": name(&PODS, pod), "partition": number(partition), "handoff": handoff,
                "ack": ACKS[usize::from(kind) % ACKS.len()].as_str(),
            }),
            Key::Unknown(_) => json!({}),
        }
    }
}

const ACKS: [PodAckKind; 4] = PodAckKind::ALL;

fn name(names: &[&'static str], index: u8) -> &'static str {
    names[usize::from(index) % names.len()]
}

fn number(partition: u8) -> PartitionId {
    PartitionId::new(u32::from(partition) % PARTITIONS)
}

fn change(record: &mut Value, edit: &Edit<'_>) {
    let Value::Object(fields) = record else { return };
    let mut nth = |index: u8, value: Option<Value>| {
        let Some(key) = fields.keys().nth(usize::from(index) % fields.len().max(1)).cloned() else { return };
        match value {
            Some(value) => drop(fields.insert(key, value)),
            None => drop(fields.remove(&key)),
        }
    };
    match edit {
        Edit::Remove(index) => nth(*index, None),
        Edit::Null(index) => nth(*index, Some(Value::Null)),
        Edit::Number(index, number) => nth(*index, Some(json!(number))),
        Edit::Text(index, text) => nth(*index, Some(json!(text))),
        Edit::List(index) => nth(*index, Some(json!([]))),
        Edit::Add(key, value) => drop(fields.insert((*key).to_owned(), json!(value))),
    }
}

fn policy(input: &Input<'_>) -> Policy {
    Policy {
        partitions: PARTITIONS,
        strategy: Strategy::NAMES[usize::from(input.strategy) % Strategy::NAMES.len()].1,
        mode: if input.independent { Mode::Independent } else { Mode::Barrier },
        phase_timeout: Duration::from_secs(60),
        max_concurrent_handoffs: 2,
        max_warming_per_pod: 1,
        ..Policy::default()
    }
}

/// Makes all decisions that depend on a view.
fn decide(view: &View, policy: &Policy, memory: &mut Memory, now: Duration) {
    for partition in PartitionId::all(PARTITIONS + 1) {
        let waits = waiting_for(view, partition);
        if let Some(advance) = advance(view, partition, 1) {
            assert!(waits.is_empty() && !view.is_malformed(partition));
            check(&advance.txn);
        }
        steps(view, partition);
        for (pod, record) in &view.pods {
            duty(view, pod, record.incarnation(), partition);
        }
        if let Some(handoff) = view.handoffs.get(&partition) {
            acks(view, partition, handoff.id());
            let new = &handoff.value;
            let ready = warmed(view, &new.new_owner, new.new_incarnation, handoff.id(), partition, 1);
            ready.iter().for_each(check);
        }
        for policy in [OnDrainTimeout::Auto, OnDrainTimeout::Sever, OnDrainTimeout::Cancel] {
            drain_timed_out(view, partition, policy, false);
        }
    }
    let term = view.leader.as_ref().map_or(Revision::ZERO, |leader| leader.create_revision);
    let authority = Authority::Leader { term };
    let plan = plan(view, policy, &authority, memory, now);
    assert!(plan.next_wake.is_none_or(|wake| wake > now), "a wake in the past");
    for action in &plan.actions {
        assert!(!action.to_string().is_empty());
        if view.leader.is_some() {
            let txn = txn(view, action, &authority, 1).expect("the leader may act");
            check(&txn);
        }
        // Cancellations continue even if records cannot be read.
        let is_cancel = matches!(action, segue_protocol::planning::PlannedWrite::Cancel { .. });
        assert!(is_cancel || action.partition().is_none_or(|partition| !view.is_malformed(partition)), "{action}");
    }
}

/// Checks that a router that follows its steps comes to rest in the state that the view asks for.
fn steps(view: &View, partition: PartitionId) {
    for trust in [Trust::Held, Trust::RunOut(OnStoreLoss::Auto), Trust::RunOut(OnStoreLoss::Serve), Trust::Gone] {
        let elsewhere =
            Target { pod: "elsewhere".to_owned(), incarnation: Incarnation::registered_at(1.into()), epoch: 1.into() };
        let mut stage = GateStage::Open(elsewhere);
        let mut turns = 0;
        loop {
            turns += 1;
            assert!(turns < 10, "a router that never rests");
            stage = match next_step(view, partition, trust, &stage, false) {
                Some(RouteStep::Stop) => GateStage::Closed,
                Some(RouteStep::Switch(target)) => GateStage::Open(target),
                Some(RouteStep::AckDrained(_) | RouteStep::AckCutover(_)) | None => break,
            };
        }
        match route(view, partition, trust) {
            Route::To(target) => assert_eq!(stage, GateStage::Open(target)),
            Route::Hold(HoldCause::NoOwner | HoldCause::Handoff | HoldCause::Fenced) => {
                assert_eq!(stage, GateStage::Closed)
            }
        }
    }
}

fn acks(view: &View, partition: PartitionId, handoff: HandoffId) {
    for (name, record) in &view.routers {
        let (key, incarnation) = (view.keys().router(name), record.incarnation());
        let drained = RouterDrainedAck::new(name.clone(), partition, handoff);
        let cutover = RouterCutoverAck::new(name.clone(), partition, handoff);
        check(&acknowledge(view, &Ack::RouterDrained(drained), key.clone(), incarnation, 1));
        check(&acknowledge(view, &Ack::RouterCutover(cutover), key, incarnation, 1));
    }
    for (name, record) in &view.pods {
        for ack in ACKS {
            let said = PodAck::new(name.clone(), partition, handoff, ack);
            check(&acknowledge(view, &Ack::Pod(said), view.keys().pod(name), record.incarnation(), 1));
        }
    }
}

/// Checks a transaction: etcd refuses one that writes a key twice, and every write must have a guard.
fn check(txn: &Txn) {
    assert!(!txn.when.is_empty() && !txn.then.is_empty());
    let puts: Vec<&String> =
        txn.then.iter().filter_map(|op| if let Op::Put { key, .. } = op { Some(key) } else { None }).collect();
    for (index, key) in puts.iter().enumerate() {
        assert!(!puts[..index].contains(key), "{key} is put twice");
        let deleted = txn.then.iter().any(|op| matches!(op, Op::Delete(keys) if keys.contains(key)));
        assert!(!deleted, "{key} is put and deleted");
    }
    if let Some(otherwise) = &txn.otherwise {
        check(otherwise);
    }
}
