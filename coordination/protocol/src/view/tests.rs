//! Unit tests of the view.

use super::*;

const L1: LeaseId = LeaseId::new(1);
const I2: Incarnation = Incarnation::registered_at(Revision::new(2));
const I3: Incarnation = Incarnation::registered_at(Revision::new(3));
const H10: HandoffId = HandoffId::created_at(Revision::new(10));
const H12: HandoffId = HandoffId::created_at(Revision::new(12));
const P0: PartitionId = PartitionId::new(0);
const P1: PartitionId = PartitionId::new(1);

fn entry(key: &str, value: &str, create: u64, modified: u64) -> KeyValue {
    KeyValue {
        key: format!("/segue/default/{key}"),
        value: value.as_bytes().to_vec(),
        create_revision: create.into(),
        mod_revision: modified.into(),
        lease: None,
    }
}

fn view(entries: Vec<KeyValue>, revision: u64) -> View {
    let revision = revision.into();
    View::from_snapshot(Keyspace::new("/segue/", "default"), Snapshot { revision, entries })
}

const POD: &str = r#"{"pod_name":"w","address":"127.0.0.1:1"}"#;
const OWNED: &str = r#"{"partition":0,"owner":"w","incarnation":3,"epoch":1}"#;

#[test]
fn a_pod_of_the_same_name_with_another_incarnation_is_not_the_owner() {
    let seen = view(vec![entry("pods/w", POD, 3, 3), entry("assignments/0", OWNED, 4, 4)], 4);
    assert!(seen.live_owner(P0).is_some());
    let seen = view(vec![entry("pods/w", POD, 9, 9), entry("assignments/0", OWNED, 4, 4)], 9);
    assert!(seen.live_owner(P0).is_none());
}

#[test]
fn a_repeated_batch_changes_nothing() {
    let mut seen = view(vec![entry("pods/w", POD, 3, 3)], 5);
    let batch =
        Batch { revision: Revision::new(4), events: vec![Event::Delete { key: "/segue/default/pods/w".into() }] };
    assert_eq!(seen.apply(batch), ViewDelta::default());
    assert_eq!(seen.pods.len(), 1);
}

#[test]
fn a_value_that_cannot_be_read_is_kept_apart_and_not_taken_for_absent() {
    let mut seen = view(vec![entry("assignments/0", OWNED, 4, 4)], 4);
    let batch = Batch { revision: Revision::new(5), events: vec![Event::Put(entry("assignments/0", "{", 4, 5))] };
    let touched = seen.apply(batch);
    assert!(touched.partitions.contains(&P0));
    assert!(seen.is_malformed(P0) && seen.assignments.is_empty());
    seen.apply(Batch { revision: Revision::new(6), events: vec![Event::Put(entry("assignments/0", OWNED, 4, 6))] });
    assert!(!seen.is_malformed(P0) && seen.assignments.len() == 1);
}

#[test]
fn a_router_whose_registration_cannot_be_read_is_still_there() {
    let mut seen = view(vec![entry("routers/r", "[]", 3, 3)], 3);
    assert_eq!(seen.routers["r"].create_revision, Revision::new(3));
    assert_eq!(seen.malformed.len(), 1);
    seen.apply(Batch {
        revision: Revision::new(4),
        events: vec![Event::Delete { key: "/segue/default/routers/r".into() }],
    });
    assert!(seen.routers.is_empty() && seen.malformed.is_empty());
}

#[test]
fn a_pod_whose_registration_cannot_be_read_has_its_incarnation_and_is_no_owner() {
    let seen = view(vec![entry("pods/w", "[]", 3, 3), entry("assignments/0", OWNED, 4, 4)], 4);
    assert_eq!(seen.incarnation_of("w"), I3);
    assert!(seen.live_owner(P0).is_none());
}

#[test]
fn a_record_that_names_another_partition_than_its_key_is_malformed() {
    let seen = view(vec![entry("assignments/1", OWNED, 4, 4)], 4);
    assert!(seen.is_malformed(P1) && seen.assignments.is_empty());
}

#[test]
fn an_unreadable_ack_is_still_to_be_swept_when_the_last_readable_one_is_gone() {
    let ack = r#"{"router_name":"r","partition":0,"handoff":10}"#;
    let entries = vec![entry("handoff_drains/0/r", ack, 11, 11), entry("handoff_acks/0/r", "{", 12, 12)];
    let mut seen = view(entries, 12);
    let delete = |key: &str| vec![Event::Delete { key: format!("/segue/default/{key}") }];
    seen.apply(Batch { revision: Revision::new(13), events: delete("handoff_drains/0/r") });
    assert_eq!(seen, view(vec![entry("handoff_acks/0/r", "{", 12, 12)], 13));
    assert!(seen.acks.contains_key(&P0));
    seen.apply(Batch { revision: Revision::new(14), events: delete("handoff_acks/0/r") });
    assert_eq!(seen, view(Vec::new(), 14));
}

#[test]
fn settings_stay_known_until_others_are_read() {
    let mut seen = view(vec![entry("config", r#"{"partitions":8}"#, 3, 3)], 3);
    seen.apply(Batch { revision: Revision::new(4), events: vec![Event::Put(entry("config", "{", 3, 4))] });
    assert_eq!((seen.config.is_some(), seen.partitions()), (false, 8));
    seen.resync(view(vec![entry("config", "{", 3, 4)], 5));
    assert_eq!((seen.config.is_some(), seen.partitions()), (false, 8));
    seen.apply(Batch {
        revision: Revision::new(6),
        events: vec![Event::Delete { key: "/segue/default/config".into() }],
    });
    seen.resync(view(Vec::new(), 7));
    assert_eq!(seen.partitions(), 8);
    seen.resync(view(vec![entry("config", r#"{"partitions":16}"#, 8, 8)], 8));
    assert_eq!(seen.partitions(), 16);
}

#[test]
fn a_life_of_a_pod_is_over_only_when_no_key_of_it_stands() {
    let leased = KeyValue { lease: Some(L1), ..entry("pods/w", POD, 3, 3) };
    let mut seen = view(vec![leased], 3);
    assert!(matches!(seen.life("w", I3), PodLife::Registered(_)));
    assert_eq!(seen.life("w", I2), PodLife::Over);
    seen.apply(Batch { revision: Revision::new(4), events: vec![Event::Put(entry("pods/w", POD, 3, 4))] });
    assert!(matches!(seen.life("w", I3), PodLife::Leaseless(_)));
    assert!(seen.leaseless().eq(["/segue/default/pods/w"]));
    seen.apply(Batch { revision: Revision::new(5), events: vec![Event::Put(entry("pods/w", "{", 3, 5))] });
    assert_eq!((seen.life("w", I3), seen.life("w", I2)), (PodLife::Unreadable, PodLife::Over));
    assert_eq!(seen.pod_revision("w"), Revision::new(5));
    seen.apply(Batch {
        revision: Revision::new(6),
        events: vec![Event::Delete { key: "/segue/default/pods/w".into() }],
    });
    assert_eq!((seen.life("w", I3), seen.life("w", Incarnation::NONE)), (PodLife::Over, PodLife::Over));
}

#[test]
fn numbers_that_nobody_could_go_on_from_are_malformed() {
    let last = r#"{"partition":0,"owner":"w","incarnation":3,"epoch":18446744073709551615}"#;
    let seen = view(vec![entry("assignments/0", last, 4, 4)], 4);
    assert!(seen.is_malformed(P0) && seen.assignments.is_empty());
    for (partitions, readable) in [(65_536, true), (65_537, false), (u32::MAX, false)] {
        let seen = view(vec![entry("config", &format!(r#"{{"partitions":{partitions}}}"#), 4, 4)], 4);
        assert_eq!((seen.config.is_some(), seen.malformed.is_empty()), (readable, readable), "{partitions}");
    }
}

#[test]
fn an_ack_of_another_handoff_is_no_ack() {
    let ack = r#"{"router_name":"r","partition":0,"handoff":10}"#;
    let seen = view(vec![entry("handoff_drains/0/r", ack, 11, 11)], 11);
    assert!(seen.drained_ack(P0, "r", H10).is_some());
    assert!(seen.drained_ack(P0, "r", H12).is_none());
}
