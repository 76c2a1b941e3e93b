//! The JSON of the store between versions: what this one writes it reads back; what an older one leaves out and a newer
//! one adds is read; a view of both decides as a view of its own records would.
use proptest::prelude::*;
use segue_protocol::handoff::advance::{advance, waiting_for};
use segue_protocol::handoff::pod::duty;
use segue_protocol::handoff::router::{Trust, route};
use segue_protocol::ids::{HandoffId, Incarnation, PartitionId, Revision};
use segue_protocol::keys::Keyspace;
use segue_protocol::records::Origin;
use segue_protocol::records::{
    Assignment, AssignmentStatus, Capabilities, Handoff, KeyspaceConfig, Leader, Mode, Partitioner, PastPhase, Phase,
    PodAck, PodAckKind, PodRecord, PodStatus, RouterCutoverAck, RouterDrainedAck, RouterRecord, Thousandths, encode,
};
use segue_protocol::txn::{KeyValue, Snapshot};
use segue_protocol::view::View;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

const I3: Incarnation = Incarnation::registered_at(Revision::new(3));
const P0: PartitionId = PartitionId::new(0);

fn name() -> impl Strategy<Value = String> {
    "[a-z0-9._-]{1,12}|\\PC{0,8}"
}

fn capabilities() -> impl Strategy<Value = Capabilities> {
    any::<[bool; 5]>().prop_map(|[sync, drained, released, fence, checkpoint]| Capabilities {
        sync,
        drained,
        released,
        fence,
        checkpoint,
    })
}

prop_compose! {
    fn pod()(
        pod_name in name(), address in name(), draining: bool, nothing_to_warm: bool, times: (u64, u64), weight: u32,
        zone in prop::option::of(name()), load in prop::option::of(any::<u32>()), capabilities in capabilities(),
        admin in prop::option::of(name()), version in prop::option::of(name()),
        work_ends_within_ms in prop::option::of(any::<u64>()), lease_ttl_ms in prop::option::of(any::<u64>()),
    ) -> PodRecord {
        PodRecord {
            pod_name, address, status: if draining { PodStatus::Draining } else { PodStatus::Ready },
            registered_at: times.0, last_heartbeat: times.1, weight: Thousandths(weight), zone,
            load: load.map(Thousandths), capabilities, admin, version, work_ends_within_ms, lease_ttl_ms,
            resume_digest: None, gives_way: draining, nothing_to_warm,
        }
    }
}

fn life(revision: u64) -> Incarnation {
    Incarnation::registered_at(Revision::new(revision))
}

prop_compose! {
    fn past()(phase in prop::sample::select(&Phase::ALL[..]), ms: u64) -> PastPhase {
        PastPhase { phase, ms }
    }
}

prop_compose! {
    fn handoff()(
        partition: u32, old_owner in prop::option::of(name()), numbers: [u64; 5], new_owner in name(),
        phase in prop::sample::select(&Phase::ALL[..]), independent: bool, reason in "\\PC{0,20}",
        cause in "[a-z_]{0,12}", past in prop::collection::vec(past(), 0..5),
    ) -> Handoff {
        Handoff {
            partition: partition.into(), old_owner, old_incarnation: life(numbers[0]), new_owner, new_incarnation: life(numbers[1]), phase,
            epoch: numbers[2].into(), mode: if independent { Mode::Independent } else { Mode::Barrier },
            started_at: numbers[3], phase_entered_at: numbers[4], reason,
            work_has_ended: independent && numbers[0] % 2 == 0, cause, past,
        }
    }
}

/// Reads back as itself; also with a field that only a later version knows.
fn both_ways<T>(record: &T)
where
    T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug,
{
    let mut value: Value = serde_json::from_slice(&encode(record)).unwrap();
    assert_eq!(&serde_json::from_value::<T>(value.clone()).unwrap(), record);
    value["of_a_later_version"] = json!({"with": ["things", 1, null]});
    assert_eq!(&serde_json::from_value::<T>(value).unwrap(), record);
}

/// Reads back as itself, and what only a later version knows is written again.
fn both_ways_kept(config: &KeyspaceConfig) {
    let value: Value = serde_json::from_slice(&encode(config)).unwrap();
    assert_eq!(&serde_json::from_value::<KeyspaceConfig>(value.clone()).unwrap(), config);
    let mut later = value;
    later["of_a_later_version"] = json!({"with": ["things", 1, null]});
    let read: KeyspaceConfig = serde_json::from_value(later.clone()).unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&encode(&read)).unwrap(), later);
}

#[test]
fn a_mapping_with_more_to_it_than_this_version_knows_is_another_and_kept_whole() {
    for mapping in [json!({"key": "header:x-key", "hash": "murmur2", "seed": 7}), json!({"number": true, "base": 1})] {
        let later = json!({"partitions": 64, "partitioner": mapping});
        let read: KeyspaceConfig = serde_json::from_value(later.clone()).unwrap();
        assert_eq!(read.partitioner, Some(Partitioner::Unknown(mapping)));
        assert_eq!(serde_json::from_slice::<Value>(&encode(&read)).unwrap(), later);
    }
}

proptest! {
    #[test]
    fn every_record_reads_back_as_it_was_written(
        pod in pod(), handoff in handoff(), name in name(), partition: u32, numbers: [u64; 7], flag: bool, lease_id: i64,
    ) {
        let (id, handoff_id) = (PartitionId::new(partition), HandoffId::created_at(Revision::new(numbers[0])));
        both_ways(&pod);
        both_ways(&handoff);
        for partitioner in [
            None,
            Some(Partitioner::NUMBER),
            Some(Partitioner::Key { key: format!("header:{name}"), hash: "murmur2".into() }),
            Some(Partitioner::Unknown(json!({"range": [1, 2]}))),
        ] {
            both_ways_kept(&KeyspaceConfig { partitioner, ..KeyspaceConfig::new(partition) });
        }
        both_ways(&Leader::new(name.clone(), lease_id.into()));
        both_ways(&RouterRecord { router_name: name.clone(), registered_at: numbers[0], last_heartbeat: numbers[1], admin: Some(name.clone()), patience_ms: numbers[0], max_wait_ms: numbers[1] });
        both_ways(&Assignment {
            partition: id, owner: name.clone(), incarnation: life(numbers[0]), status: AssignmentStatus::Active, epoch: numbers[1].into(),
            work_ends_within_ms: flag.then_some(numbers[2]),
        });
        both_ways(&RouterDrainedAck {
            router_name: name.clone(), partition: id, handoff: handoff_id, acked_at: numbers[1], severed: numbers[2],
            gave_up: flag,
        });
        both_ways(&RouterCutoverAck {
            router_name: name.clone(), partition: id, handoff: handoff_id, acked_at: numbers[1], stashed: numbers[2],
            drain_us: numbers[3], pause_us: numbers[4], flush_us: numbers[5],
        });
        for ack in PodAckKind::ALL {
            both_ways(&PodAck {
                pod_name: name.clone(), partition: id, handoff: handoff_id, ack, acked_at: numbers[1],
                reason: flag.then(|| name.clone()),
            });
        }
    }

    #[test]
    fn a_factor_in_thousandths_survives_its_decimal_form(thousandths: u32) {
        let text = serde_json::to_string(&Thousandths(thousandths)).unwrap();
        prop_assert_eq!(serde_json::from_str::<Thousandths>(&text).unwrap(), Thousandths(thousandths));
    }

    #[test]
    fn a_view_of_mixed_versions_decides_like_one_of_a_single_version(
        phase in prop::sample::select(&Phase::ALL[..]), independent: bool, first: bool, can in capabilities(),
        acked: [bool; 4], mixed in prop::collection::vec(0..3u8, 12),
    ) {
        let records = records(phase, independent, first, can, acked);
        let ours = view(&records);
        let mut theirs = records;
        for ((_, value), version) in theirs.iter_mut().zip(mixed) {
            match version {
                0 => older(value),
                1 => value["of_a_later_version"] = json!([1]),
                _ => {}
            }
        }
        let theirs = view(&theirs);
        prop_assert!(theirs.malformed.is_empty(), "{:?}", theirs.malformed);
        prop_assert_eq!(waiting_for(&theirs, P0), waiting_for(&ours, P0));
        prop_assert_eq!(route(&theirs, P0, Trust::Held), route(&ours, P0, Trust::Held));
        for pod in ["a", "b"] {
            prop_assert_eq!(duty(&theirs, pod, I3, P0), duty(&ours, pod, I3, P0));
        }
        let moves = |view: &View| advance(view, P0, 9).map(|advance| (advance.from, advance.to, advance.txn.when));
        prop_assert_eq!(moves(&theirs), moves(&ours));
    }
}

/// Partition 0 on its way from `a` to `b`, with two routers; every timestamp is what an older version leaves out.
fn records(phase: Phase, independent: bool, first: bool, can: Capabilities, acked: [bool; 4]) -> Vec<(String, Value)> {
    let names: Vec<String> = can.into();
    let pod = |pod: &str| (format!("pods/{pod}"), json!({"pod_name": pod, "address": "h:1", "capabilities": names}));
    let router = |router: &str| (format!("routers/{router}"), json!({"router_name": router}));
    let mode = if independent { "independent" } else { "barrier" };
    let mut records = vec![
        ("config".to_owned(), json!({"partitions": 1})),
        pod("a"),
        pod("b"),
        router("r"),
        router("s"),
        (
            "handoffs/0".to_owned(),
            json!({
                "partition": 0, "old_owner": (!first).then_some("a"), "old_incarnation": if first { 0 } else { 3 },
                "new_owner": "b", "new_incarnation": 3, "phase": phase, "epoch": 5, "mode": mode,
                "started_at": 0, "phase_entered_at": 0, "reason": "",
            }),
        ),
    ];
    if !first {
        let assignment = json!({"partition": 0, "owner": "a", "incarnation": 3, "status": "Active", "epoch": 4});
        records.push(("assignments/0".to_owned(), assignment));
    }
    let ack = |router: &str| json!({"router_name": router, "partition": 0, "handoff": 3, "acked_at": 0});
    for (said, kind, router) in [(acked[0], "drains", "r"), (acked[1], "drains", "s"), (acked[2], "acks", "r")] {
        if said {
            records.push((format!("handoff_{kind}/0/{router}"), ack(router)));
        }
    }
    if acked[3] {
        let ack = json!({"pod_name": "a", "partition": 0, "handoff": 3, "ack": "drained", "acked_at": 0});
        records.push(("pod_acks/0/a/drained".to_owned(), ack));
    }
    records
}

/// Leaves out what has a default, where the default is what it says.
fn older(value: &mut Value) {
    let absent = |field: &str, value: &Value| match field {
        "started_at" | "phase_entered_at" | "acked_at" | "reason" | "status" => true,
        "old_incarnation" => *value == json!(0),
        "old_owner" => value.is_null(),
        "mode" => *value == json!("barrier"),
        "capabilities" => *value == json!([]),
        _ => false,
    };
    if let Value::Object(fields) = value {
        fields.retain(|field, value| !absent(field, value));
    }
}

fn view(records: &[(String, Value)]) -> View {
    let entry = |(key, value): &(String, Value)| KeyValue {
        key: format!("/segue/default/{key}"),
        value: value.to_string().into_bytes(),
        create_revision: Revision::new(3),
        mod_revision: Revision::new(3),
        lease: None,
    };
    let entries = records.iter().map(entry).collect();
    View::from_snapshot(Keyspace::new("/segue/", "default"), Snapshot { revision: Revision::new(3), entries })
}

#[test]
fn what_a_record_must_have_is_not_made_up() {
    fn needs<T: DeserializeOwned>(full: Value, required: &[&str]) {
        let Value::Object(fields) = &full else { panic!("an object") };
        assert!(serde_json::from_value::<T>(full.clone()).is_ok(), "{full}");
        for field in fields.keys() {
            let mut less = full.clone();
            less.as_object_mut().unwrap().remove(field);
            let read = serde_json::from_value::<T>(less).is_ok();
            assert_eq!(read, !required.contains(&field.as_str()), "without {field}");
        }
    }
    needs::<KeyspaceConfig>(json!({"partitions": 1}), &["partitions"]);
    needs::<PodRecord>(json!({"pod_name": "w", "address": "h:1", "weight": 1.0}), &["pod_name", "address"]);
    needs::<RouterRecord>(json!({"router_name": "r", "registered_at": 1}), &["router_name"]);
    needs::<Leader>(json!({"holder": "c", "lease_id": 1}), &["holder"]);
    needs::<Assignment>(
        json!({"partition": 0, "owner": "w", "incarnation": 1, "epoch": 1, "status": "Active"}),
        &["partition", "owner", "incarnation", "epoch"],
    );
    needs::<Handoff>(
        json!({"partition": 0, "new_owner": "w", "new_incarnation": 1, "phase": "Ready", "epoch": 1, "reason": ""}),
        &["partition", "new_owner", "new_incarnation", "phase", "epoch"],
    );
    needs::<RouterDrainedAck>(
        json!({"router_name": "r", "partition": 0, "handoff": 1, "severed": 1}),
        &["router_name", "partition", "handoff"],
    );
    needs::<RouterCutoverAck>(
        json!({"router_name": "r", "partition": 0, "handoff": 1, "stashed": 1}),
        &["router_name", "partition", "handoff"],
    );
    needs::<PodAck>(
        json!({"pod_name": "w", "partition": 0, "handoff": 1, "ack": "synced", "acked_at": 1}),
        &["pod_name", "partition", "handoff", "ack"],
    );
}

#[test]
fn a_reason_stays_on_its_line() {
    let origin = Origin { who: "ann".to_owned(), why: "disk\nleader evil\u{1b}[2J".to_owned(), at: 0 };
    assert_eq!(origin.to_string(), "ann (disk\\nleader evil\\u{1b}[2J)");
}
