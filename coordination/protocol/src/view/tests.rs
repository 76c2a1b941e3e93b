//! Unit tests of the view.

use super::*;
use crate::rounds::{Member, RoundStep};

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

fn delete(key: &str, revision: u64) -> Event {
    Event::Delete { key: format!("/segue/default/{key}"), mod_revision: revision.into() }
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
    let batch = Batch { revision: Revision::new(4), events: vec![delete("pods/w", 4)] };
    assert_eq!(seen.apply(batch), ViewDelta::default());
    assert_eq!(seen.pods.len(), 1);
}

#[test]
fn old_changes_in_a_newer_batch_change_nothing_deletions_included() {
    let mut seen = view(vec![entry("pods/w", POD, 14, 14)], 15);
    let events = vec![
        delete("pods/w", 13),
        Event::Put(entry("pods/w", "{", 10, 12)),
        Event::Put(entry("pods/x", POD, 17, 17)),
        delete("pods/x", 16),
    ];
    seen.apply(Batch { revision: Revision::new(17), events });
    assert_eq!((seen.pods.len(), seen.malformed.len(), seen.revision), (1, 0, Revision::new(17)));
    seen.apply(Batch { revision: Revision::new(18), events: vec![delete("pods/w", 18)] });
    assert_eq!(seen.pods.len(), 0);
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
    seen.apply(Batch { revision: Revision::new(4), events: vec![delete("routers/r", 4)] });
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
    let entries = vec![entry("~acks/handoff_drains/0/r", ack, 11, 11), entry("~acks/handoff_acks/0/r", "{", 12, 12)];
    let mut seen = view(entries, 12);
    seen.apply(Batch { revision: Revision::new(13), events: vec![delete("~acks/handoff_drains/0/r", 13)] });
    assert_eq!(seen, view(vec![entry("~acks/handoff_acks/0/r", "{", 12, 12)], 13));
    assert!(seen.acks.contains_key(&P0));
    seen.apply(Batch { revision: Revision::new(14), events: vec![delete("~acks/handoff_acks/0/r", 14)] });
    assert_eq!(seen, view(Vec::new(), 14));
}

#[test]
fn settings_stay_known_until_others_are_read() {
    let mut seen = view(vec![entry("config", r#"{"partitions":8}"#, 3, 3)], 3);
    seen.apply(Batch { revision: Revision::new(4), events: vec![Event::Put(entry("config", "{", 3, 4))] });
    assert_eq!((seen.config.is_some(), seen.partitions()), (false, 8));
    seen.resync(view(vec![entry("config", "{", 3, 4)], 5));
    assert_eq!((seen.config.is_some(), seen.partitions()), (false, 8));
    seen.apply(Batch { revision: Revision::new(6), events: vec![delete("config", 6)] });
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
    seen.apply(Batch { revision: Revision::new(6), events: vec![delete("pods/w", 6)] });
    assert_eq!((seen.life("w", I3), seen.life("w", Incarnation::NONE)), (PodLife::Over, PodLife::Over));
}

#[test]
fn numbers_that_nobody_could_go_on_from_are_malformed() {
    for (epoch, readable) in [(1 << 53, true), ((1 << 53) + 1, false), (u64::MAX, false)] {
        let record = format!(r#"{{"partition":0,"owner":"w","incarnation":3,"epoch":{epoch}}}"#);
        let seen = view(vec![entry("assignments/0", &record, 4, 4)], 4);
        assert_eq!((seen.is_malformed(P0), seen.assignments.len()), (!readable, usize::from(readable)), "{epoch}");
    }
    for (partitions, readable) in [(65_536, true), (65_537, false), (u32::MAX, false)] {
        let seen = view(vec![entry("config", &format!(r#"{{"partitions":{partitions}}}"#), 4, 4)], 4);
        assert_eq!((seen.config.is_some(), seen.malformed.is_empty()), (readable, readable), "{partitions}");
    }
}

#[test]
fn an_ack_of_another_handoff_is_no_ack() {
    let ack = r#"{"router_name":"r","partition":0,"handoff":10}"#;
    let seen = view(vec![entry("~acks/handoff_drains/0/r", ack, 11, 11)], 11);
    assert!(seen.drained_ack(P0, "r", H10).is_some());
    assert!(seen.drained_ack(P0, "r", H12).is_none());
}

#[test]
fn a_pods_registration_affects_its_partitions_and_handoffs_and_no_others() {
    let owned = |partition: u32, owner: &str, incarnation: u64| {
        let text = format!(r#"{{"partition":{partition},"owner":"{owner}","incarnation":{incarnation},"epoch":1}}"#);
        entry(&format!("assignments/{partition}"), &text, 4, 4)
    };
    let handoff = r#"{"partition":7,"old_owner":"x","old_incarnation":9,"new_owner":"y","new_incarnation":9,
        "phase":"Ready","epoch":9,"mode":"barrier","started_at":1,"phase_entered_at":1,"reason":""}"#;
    let mut entries: Vec<_> = (0..1000).map(|partition| owned(partition, "x", 2)).collect();
    entries[3] = owned(3, "w", 3);
    entries[5] = owned(5, "w", 2);
    entries.extend([entry("pods/w", POD, 3, 3), entry("handoffs/7", handoff, 4, 4)]);
    let mut seen = view(entries, 4);
    assert_eq!((seen.assigned_count("w"), seen.assigned_count("x"), seen.live_owners()), (2, 998, 1));
    let mut apply = |revision: u64, event: Event| {
        let delta = seen.apply(Batch { revision: revision.into(), events: vec![event] });
        delta.affected(&seen).map(|affected| affected.into_iter().map(PartitionId::get).collect::<Vec<_>>())
    };
    assert_eq!(apply(5, Event::Put(entry("pods/w", POD, 3, 5))), Some(vec![3, 5, 7]));
    assert_eq!(apply(6, delete("pods/w", 6)), Some(vec![3, 5, 7]), "also those of its earlier life");
    assert_eq!(apply(7, Event::Put(entry("routers/r", "{}", 7, 7))), Some(vec![7]), "handoffs wait for routers");
    assert_eq!(apply(8, delete("assignments/3", 8)), Some(vec![3]));
    assert_eq!(apply(9, Event::Put(KeyValue { mod_revision: 9.into(), ..owned(5, "x", 2) })), Some(vec![5]));
    assert_eq!(apply(10, Event::Put(entry("pods/w", POD, 10, 10))), Some(vec![7]), "nothing is assigned to it");
    assert_eq!(apply(11, Event::Put(entry("config", r#"{"partitions":8}"#, 11, 11))), None);
}

fn ids(partitions: impl IntoIterator<Item = PartitionId>) -> Vec<u32> {
    partitions.into_iter().map(PartitionId::get).collect()
}

fn handoff_of(partition: u32, old: &str, new: &str, phase: &str, create: u64, modified: u64) -> KeyValue {
    let text = format!(
        r#"{{"partition":{partition},"old_owner":{old},"old_incarnation":3,"new_owner":"{new}","new_incarnation":3,
        "phase":"{phase}","epoch":9,"mode":"barrier","started_at":1,"phase_entered_at":1,"reason":""}}"#
    );
    entry(&format!("handoffs/{partition}"), &text, create, modified)
}

fn said(partition: u32, pod: &str, kind: &str, revision: u64) -> KeyValue {
    let text = format!(r#"{{"pod_name":"{pod}","partition":{partition},"handoff":10,"ack":"{kind}"}}"#);
    entry(&format!("pod_acks/{partition}/{pod}/{kind}"), &text, revision, revision)
}

#[test]
fn a_pods_view_leaves_out_the_acks_of_handoffs_between_others() {
    let handoffs = vec![
        handoff_of(0, r#""x""#, "y", "Ready", 10, 11),
        handoff_of(1, r#""w""#, "y", "Ready", 10, 11),
        handoff_of(2, "null", "w", "Ready", 10, 11),
        entry("handoffs/3", "{", 10, 11),
    ];
    let acks: Vec<_> = (0..5).map(|partition| said(partition, "x", "drained", 12)).collect();
    // The second one belongs to a record that cannot be read, and the last one to none: either may be the pod's own.
    let kept = vec![1, 2, 3, 4];
    let together = acks.iter().chain(&handoffs).cloned().collect();
    let from_snapshot = view(together, 12).of_pod("w");
    assert_eq!(ids(from_snapshot.acks.keys().copied()), kept);
    let mut watched = view(handoffs, 11).of_pod("w");
    let events = acks.into_iter().map(Event::Put).collect();
    assert_eq!(ids(watched.apply(Batch { revision: Revision::new(12), events }).partitions), kept);
    assert_eq!(watched, from_snapshot);
    let of_others = vec![delete("pod_acks/0/x/drained", 13)];
    let delta = watched.apply(Batch { revision: Revision::new(13), events: of_others });
    assert_eq!(delta, ViewDelta::default(), "nothing that the view has is gone");
    let ended = ["handoffs/1", "pod_acks/1/x/drained", "pod_acks/4/x/drained"].map(|key| delete(key, 14)).to_vec();
    let delta = watched.apply(Batch { revision: Revision::new(14), events: ended });
    assert_eq!((ids(delta.partitions), ids(watched.acks.keys().copied())), (vec![1, 4], vec![2, 3]));
}

#[test]
fn a_pod_decides_by_its_own_view_as_by_a_whole_one() {
    let registered = |name: &str, capabilities: &str| {
        let text = format!(r#"{{"pod_name":"{name}","address":"a:1","capabilities":{capabilities}}}"#);
        KeyValue { lease: Some(L1), ..entry(&format!("pods/{name}"), &text, 3, 3) }
    };
    let all = r#"["sync","drained","released","fence"]"#;
    let assigned = |partition: u32, owner: &str, revision: u64| {
        let text = format!(r#"{{"partition":{partition},"owner":"{owner}","incarnation":3,"epoch":9}}"#);
        entry(&format!("assignments/{partition}"), &text, 4, revision)
    };
    let router = KeyValue { lease: Some(L1), ..entry("routers/r", "{}", 3, 3) };
    let mut start: Vec<_> = ["v", "w", "x"].map(|pod| registered(pod, all)).into();
    start.extend([router, assigned(0, "v", 4), assigned(1, "v", 4)]);
    // Partition 0 moves between v and x, partition 1 from v to w, at the same time.
    let moves = |phase: &str, revision: u64| {
        [("x", 0), ("w", 1)].map(|(new, partition)| handoff_of(partition, r#""v""#, new, phase, 10, revision))
    };
    let both = |of: &dyn Fn(u32) -> KeyValue| [of(0), of(1)];
    let puts = [
        moves("Warming", 10),
        moves("Ready", 11),
        moves("Syncing", 12),
        both(&|partition| said(partition, "v", "drained", 13)),
        [said(0, "x", "synced", 14), said(1, "w", "synced", 14)],
        moves("Switching", 15),
        [assigned(0, "x", 16), assigned(1, "w", 16)],
        moves("Complete", 17),
    ];
    for me in ["v", "w", "x"] {
        let mut whole = view(start.clone(), 9);
        let mut own = whole.clone().of_pod(me);
        for (revision, events) in (10..).zip(&puts) {
            let batch = Batch { revision: Revision::new(revision), events: events.clone().map(Event::Put).into() };
            whole.apply(batch.clone());
            own.apply(batch);
            for partition in [P0, P1] {
                let duty = |view: &View| crate::handoff::pod::duty(view, me, I3, partition);
                assert_eq!(duty(&own), duty(&whole), "{me} about {partition} at {revision}");
                let ack = crate::records::PodAck::new(me, partition, H10, PodAckKind::Released);
                let txn = |view: &View| {
                    let ack = crate::handoff::advance::Ack::Pod(ack.clone());
                    crate::handoff::advance::acknowledge(view, &ack, view.keys().pod(me), I3, 1)
                };
                let takes_part = whole.handoffs.get(&partition).is_some_and(|handoff| {
                    handoff.value.new_owner == me || handoff.value.old_owner.as_deref() == Some(me)
                });
                assert!(!takes_part || txn(&own) == txn(&whole), "{me} about {partition} at {revision}");
            }
        }
        assert_eq!(own.acks.len(), whole.acks.len() - usize::from(me != "v"), "each takes part in one move, v in both");
        let takes_part = |partition: &PartitionId| me == "v" || (me == "w") == (*partition == P1);
        let (read, all) = (ids(own.handoffs.keys().copied()), whole.handoffs.keys().copied().filter(takes_part));
        assert_eq!(read, ids(all), "{me} reads the handoffs that name it");
    }
}

#[test]
fn acks_of_routers_are_shown_in_a_view_that_does_not_follow_them_until_the_next_ones() {
    let ack = |key: &str, value: &str| entry(&format!("~acks/handoff_drains/0/{key}"), value, 11, 11);
    let drained = r#"{"router_name":"r","partition":0,"handoff":10}"#;
    let followed = view(vec![said(0, "x", "drained", 12)], 12);
    let mut shown = followed.clone();
    shown.show_router_acks(vec![ack("r", drained), ack("s", "{"), entry("assignments/0", OWNED, 4, 4)]);
    assert!(shown.drained_ack(P0, "r", H10).is_some() && shown.malformed.len() == 1 && shown.assignments.is_empty());
    shown.show_router_acks(Vec::new());
    assert_eq!(shown, followed);
}

#[test]
fn a_pod_reads_the_assignment_that_its_handoff_started_from_and_whatever_replaces_what_names_it() {
    let assigned = |owner: &str, revision: u64| {
        let text = format!(r#"{{"partition":0,"owner":"{owner}","incarnation":3,"epoch":9}}"#);
        entry("assignments/0", &text, 4, revision)
    };
    let mut own = view(Vec::new(), 3).of_pod("w");
    let apply = |view: &mut View, revision: u64, event: Event| {
        view.apply(Batch { revision: Revision::new(revision), events: vec![event] })
    };
    // Of no interest: another pod's partition, and a move between others.
    assert_eq!(apply(&mut own, 4, Event::Put(assigned("v", 4))), ViewDelta::default());
    assert_eq!(apply(&mut own, 5, Event::Put(handoff_of(0, r#""v""#, "x", "Ready", 5, 5))), ViewDelta::default());
    assert!(own.assignments.is_empty() && own.handoffs.is_empty());
    assert_eq!(apply(&mut own, 6, delete("handoffs/0", 6)), ViewDelta::default());
    // A move to the pod itself.
    assert!(apply(&mut own, 7, Event::Put(handoff_of(0, r#""v""#, "w", "Ready", 7, 7))).partitions.contains(&P0));
    assert_eq!(own.assignments[&P0].value.owner, "v");
    apply(&mut own, 8, Event::Put(assigned("w", 8)));
    apply(&mut own, 9, delete("handoffs/0", 9));
    // Garbage over its own assignment, and over a handoff of its partition.
    for (key, revision) in [("assignments/0", 10), ("handoffs/0", 20)] {
        apply(&mut own, revision, Event::Put(assigned("w", revision)));
        assert!(!own.is_malformed(P0));
        apply(&mut own, revision + 1, Event::Put(entry(key, "{", 4, revision + 1)));
        assert!(own.is_malformed(P0), "{key}");
        apply(&mut own, revision + 2, delete("handoffs/0", revision + 2));
    }
    // An operator gives the partition to another pod.
    apply(&mut own, 32, Event::Put(assigned("w", 32)));
    assert!(apply(&mut own, 33, Event::Put(assigned("v", 33))).partitions.contains(&P0));
    assert_eq!(own.assigned_to("w").count(), 0);
    assert_eq!(apply(&mut own, 34, Event::Put(assigned("x", 34))), ViewDelta::default());
    assert_eq!(apply(&mut own, 35, delete("assignments/0", 35)), ViewDelta::default());
}

#[test]
fn what_the_participants_of_a_round_hold_back_is_added_up() {
    let participant = |name: &str, created: u64, held: &str| {
        let value = format!(r#"{{"name":"{name}","round":4,"held":[{held}]}}"#);
        KeyValue { lease: Some(L1), ..entry(&format!("participants/{name}"), &value, created, created) }
    };
    let held = |to: &str, number: u32, why: &str| {
        format!(r#"{{"to":"{to}","incarnation":3,"partitions":{number},"why":"{why}"}}"#)
    };
    let round = entry("rounds/current", r#"{"number":4,"participants":{"a":3,"b":4,"d":6}}"#, 8, 8);
    let (three, two) = ([held("w", 1, "rest"), held("w", 2, "roll")].join(","), held("w", 2, "rest"));
    let entries = vec![
        round,
        participant("a", 3, &three),
        participant("b", 4, &two),
        participant("late", 5, &two),
        // Another life than the one that takes part.
        participant("d", 7, &two),
    ];
    let told = |view: &View| view.held().into_iter().map(|it| (it.why, it.partitions)).collect::<Vec<_>>();
    let mut seen = view(entries, 8);
    assert_eq!(told(&seen), [("rest".to_owned(), 3), ("roll".to_owned(), 2)]);
    let leader = format!(r#"{{"holder":"c","held":[{}]}}"#, held("v", 7, "place"));
    let led = Event::Put(entry("coordinator/leader", &leader, 9, 9));
    seen.apply(Batch { revision: Revision::new(9), events: vec![led] });
    assert_eq!(told(&seen), [("place".to_owned(), 7)]);
}

#[test]
fn a_round_whose_number_nobody_could_follow_cannot_be_read() {
    let participant = |name: &str, created: u64, round: u64| {
        let value = format!(r#"{{"name":"{name}","round":{round}}}"#);
        KeyValue { lease: Some(L1), ..entry(&format!("participants/{name}"), &value, created, created) }
    };
    let next = |number: u64, joined: u64| {
        let round = format!(r#"{{"number":{number},"participants":{{"a":3,"b":4}}}}"#);
        let entries = vec![entry("rounds/current", &round, 8, 8), participant("a", 3, 4), participant("b", 4, joined)];
        let member = Member { name: "a".to_owned(), incarnation: I3, lease: L1 };
        let seen = view(entries, 8);
        (member.next_step(&seen), seen.malformed.len())
    };
    assert_eq!(next(4, 4), (Some(RoundStep::Open(5)), 0), "the heartbeat has passed");
    assert_eq!(next(4, u64::MAX), (Some(RoundStep::Open(5)), 1));
    for unreadable in [u64::MAX, 1 << 53] {
        assert_eq!(next(unreadable, 4), (Some(RoundStep::Close(4)), 1), "that of those who have joined it replaces it");
    }
    assert_eq!(next((1 << 53) - 1, 4), (Some(RoundStep::Open(1)), 0), "they begin anew");
}
