#![allow(clippy::unwrap_used)]

use segue_protocol::ids::{LeaseId, Revision};
use segue_protocol::keys::{KeyName, Keyspace};
use segue_protocol::txn::{Batch, Event, KeyValue};

use super::*;

const P3: PartitionId = PartitionId::new(3);

#[derive(Clone)]
struct Fixture {
    view: View,
    revision: Revision,
}

impl Fixture {
    /// Partition 3 is on its way from `old` to `new`, routers `a` and `b` are registered; there are no acks.
    fn moving() -> Self {
        let mut fixture = Fixture { view: View::empty(Keyspace::new("/segue/", "default")), revision: Revision::ZERO };
        for router in ["a", "b"] {
            fixture.put(&format!("routers/{router}"), &format!(r#"{{"router_name":"{router}"}}"#));
        }
        for pod in ["old", "new"] {
            let record = r#"{"pod_name":"NAME","address":"h:1","capabilities":["sync","drained","released","fence"]}"#;
            fixture.put(&format!("pods/{pod}"), &record.replace("NAME", pod));
        }
        fixture.put("assignments/3", r#"{"partition":3,"owner":"old","incarnation":3,"epoch":6}"#);
        fixture.put("handoffs/3", Self::HANDOFF);
        fixture
    }

    const HANDOFF: &str = r#"{"partition":3,"old_owner":"old","old_incarnation":3,"new_owner":"new",
        "new_incarnation":4,"phase":"Ready","epoch":7}"#;
    const FLIP: &str = r#"{"partition":3,"owner":"new","incarnation":4,"epoch":7}"#;

    /// Puts a record. Returns its breaches.
    fn put(&mut self, key: &str, value: &str) -> Vec<String> {
        self.revision = self.revision.next();
        let key = format!("/segue/default/{key}");
        let stands = self.view.keys().parse(&key).is_some_and(|name| name == KeyName::Handoff(P3))
            && self.view.handoffs.contains_key(&P3);
        let create_revision = if stands { self.view.handoffs[&P3].create_revision } else { self.revision };
        let lease = ["pods/", "routers/"].iter().any(|it| key.contains(it)).then(|| LeaseId::new(1));
        let (value, mod_revision) = (value.into(), self.revision);
        self.step(Event::Put(KeyValue { key, value, create_revision, mod_revision, lease }))
    }

    /// Puts another record of a pod in the same life.
    fn change(&mut self, key: &str, value: &str) {
        self.revision = self.revision.next();
        let key = format!("/segue/default/{key}");
        let KeyName::Pod(pod) = self.view.keys().parse(&key).unwrap() else { panic!("{key} is no pod's") };
        let (create_revision, lease) = (self.view.pods[&pod].create_revision, Some(LeaseId::new(1)));
        let (value, mod_revision) = (value.into(), self.revision);
        self.step(Event::Put(KeyValue { key, value, create_revision, mod_revision, lease }));
    }

    /// Deletes a record. Returns its breaches.
    fn delete(&mut self, key: &str) -> Vec<String> {
        self.revision = self.revision.next();
        let key = format!("/segue/default/{key}");
        self.step(Event::Delete { key, mod_revision: self.revision })
    }

    fn step(&mut self, event: Event) -> Vec<String> {
        let before = self.view.clone();
        self.view.apply(Batch { revision: self.revision, events: vec![event] });
        breaches(&before, &self.view).into_iter().map(|breach| breach.what).collect()
    }

    /// Writes every ack `but` one. Returns the breaches of the phases' moves on the way.
    fn up_to_the_flip(&mut self, but: &str) -> Vec<String> {
        let mut found = Vec::new();
        for (key, value) in [
            ("~acks/handoff_drains/3/a", r#"{"router_name":"a","partition":3,"handoff":6}"#),
            ("~acks/handoff_drains/3/b", r#"{"router_name":"b","partition":3,"handoff":6}"#),
            ("handoffs/3", &Self::HANDOFF.replace("Ready", "Syncing")),
            ("pod_acks/3/old/drained", r#"{"pod_name":"old","partition":3,"handoff":6,"ack":"drained"}"#),
            ("pod_acks/3/new/synced", r#"{"pod_name":"new","partition":3,"handoff":6,"ack":"synced"}"#),
        ] {
            if key != but {
                found.extend(self.put(key, value));
            }
        }
        found
    }
}

#[test]
fn a_flip_that_everyone_has_acknowledged_keeps_the_contract() {
    let mut fixture = Fixture::moving();
    assert_eq!(fixture.up_to_the_flip(""), [""; 0]);
    assert_eq!(fixture.put("assignments/3", Fixture::FLIP), [""; 0]);
}

#[test]
fn each_missing_ack_is_found() {
    for (but, said) in [
        ("~acks/handoff_drains/3/b", "router b had not drained"),
        ("pod_acks/3/old/drained", "old had not ended"),
        ("pod_acks/3/new/synced", "without having read the tail"),
    ] {
        let mut fixture = Fixture::moving();
        let mut found = fixture.up_to_the_flip(but);
        found.extend(fixture.put("assignments/3", Fixture::FLIP));
        assert!(found.len() == 1 && found[0].contains(said), "{but}: {found:?}");
    }
}

#[test]
fn a_router_that_registers_in_ready_has_to_drain_and_one_that_registers_later_need_not() {
    let mut fixture = Fixture::moving();
    fixture.put("routers/c", r#"{"router_name":"c"}"#);
    let found = fixture.up_to_the_flip("");
    assert!(found.len() == 1 && found[0].contains("router c had not drained"), "{found:?}");

    let mut fixture = Fixture::moving();
    assert_eq!(fixture.up_to_the_flip(""), [""; 0]);
    fixture.put("routers/c", r#"{"router_name":"c"}"#);
    assert_eq!(fixture.put("assignments/3", Fixture::FLIP), [""; 0]);
}

#[test]
fn a_flip_that_skips_a_phase_needs_the_drains_all_the_same() {
    let mut fixture = Fixture::moving();
    fixture.put("~acks/handoff_drains/3/a", r#"{"router_name":"a","partition":3,"handoff":6}"#);
    let found = fixture.put("assignments/3", Fixture::FLIP);
    assert!(found.iter().any(|it| it.contains("router b had not drained")), "{found:?}");
}

#[test]
fn an_owner_whose_registration_is_garbled_lives_and_one_without_registration_does_not() {
    let mut fixture = Fixture::moving();
    fixture.up_to_the_flip("");
    let mut gone = fixture.clone();
    fixture.change("pods/new", "no JSON");
    assert_eq!(fixture.put("assignments/3", Fixture::FLIP), [""; 0]);
    let first = r#"{"partition":4,"owner":"new","incarnation":4,"epoch":8}"#;
    assert_eq!(fixture.put("assignments/4", first), [""; 0]);
    gone.delete("pods/new");
    assert!(gone.clone().put("assignments/3", Fixture::FLIP)[0].contains("although that life of it was over"));
    assert!(gone.put("assignments/4", first)[0].contains("without a handoff"));
}

#[test]
fn a_first_owner_needs_no_handoff_if_it_has_nothing_to_warm() {
    let mut fixture = Fixture::moving();
    let assigned =
        |incarnation: u64| format!(r#"{{"partition":4,"owner":"light","incarnation":{incarnation},"epoch":20}}"#);
    let found = fixture.put("assignments/4", r#"{"partition":4,"owner":"new","incarnation":4,"epoch":19}"#);
    assert!(found[0].contains("without a handoff"), "it has something to warm: {found:?}");
    fixture.delete("assignments/4");
    fixture.put("pods/light", r#"{"pod_name":"light","address":"h:1","nothing_to_warm":true}"#);
    let life = fixture.revision.get();
    let found = fixture.clone().put("assignments/4", &assigned(life - 1));
    assert!(found[0].contains("without a handoff"), "another life: {found:?}");
    assert_eq!(fixture.put("assignments/4", &assigned(life)), [""; 0]);
    let again = assigned(life).replace("20", "21");
    assert!(fixture.put("assignments/4", &again)[0].contains("without a handoff"), "it had an owner");
}

#[test]
fn an_owner_by_hand_an_epoch_again_and_an_overwritten_handoff_are_found() {
    let mut fixture = Fixture::moving();
    fixture.up_to_the_flip("");
    let stolen = fixture.put("assignments/3", r#"{"partition":3,"owner":"thief","incarnation":9,"epoch":7}"#);
    assert!(stolen[0].contains("without a handoff"), "{stolen:?}");
    let again = fixture.put("assignments/3", Fixture::FLIP);
    assert!(again[0].contains("after epoch 7"), "{again:?}");
    let other = Fixture::HANDOFF.replace(r#""epoch":7"#, r#""epoch":8"#);
    assert_eq!(fixture.put("handoffs/3", &other).len(), 1);
    let on = other.replace("Ready", "Switching");
    assert!(fixture.put("handoffs/3", &on).is_empty());
}

#[test]
fn a_handoff_is_neither_completed_without_each_router_nor_cancelled_once_its_owner_serves() {
    for (cutover, what) in [("", "b had not switched"), ("c", "b had not switched"), ("b", "")] {
        let mut fixture = Fixture::moving();
        fixture.up_to_the_flip("");
        assert_eq!(fixture.put("handoffs/3", &Fixture::HANDOFF.replace("Ready", "Switching")), [""; 0]);
        assert_eq!(fixture.put("assignments/3", Fixture::FLIP), [""; 0]);
        for router in ["a", cutover] {
            let ack = format!(r#"{{"router_name":"{router}","partition":3,"handoff":6}}"#);
            assert_eq!(fixture.put(&format!("~acks/handoff_acks/3/{router}"), &ack), [""; 0]);
        }
        let found = fixture.put("handoffs/3", &Fixture::HANDOFF.replace("Ready", "Complete"));
        assert!(found.iter().all(|it| !what.is_empty() && it.contains(what)), "{found:?}");
        assert_eq!(found.is_empty(), what.is_empty());
    }
    let mut fixture = Fixture::moving();
    fixture.up_to_the_flip("");
    fixture.put("handoffs/3", &Fixture::HANDOFF.replace("Ready", "Switching"));
    let found = fixture.delete("handoffs/3");
    assert!(found.len() == 1 && found[0].contains("past the point of no return"), "{found:?}");
}

#[test]
fn a_handoff_ends_without_a_release_only_if_its_old_owner_releases_nothing_and_each_router_has_switched() {
    let releases = r#"{"pod_name":"old","address":"h:1","capabilities":["drained","released"]}"#;
    for (routers, old, what) in [
        (&["a", "b"][..], releases.replace(r#","released""#, ""), ""),
        (&["a"], releases.replace(r#","released""#, ""), "b has not switched"),
        (&["a", "b"], releases.to_owned(), "before its old owner has released"),
    ] {
        let mut fixture = Fixture::moving();
        fixture.up_to_the_flip("");
        fixture.put("handoffs/3", &Fixture::HANDOFF.replace("Ready", "Switching"));
        fixture.put("assignments/3", Fixture::FLIP);
        fixture.change("pods/old", &old);
        for router in routers {
            let ack = format!(r#"{{"router_name":"{router}","partition":3,"handoff":6}}"#);
            fixture.put(&format!("~acks/handoff_acks/3/{router}"), &ack);
        }
        let found = fixture.delete("handoffs/3");
        assert!(found.iter().all(|it| !what.is_empty() && it.contains(what)), "{found:?}");
        assert_eq!(found.is_empty(), what.is_empty());
    }
}

#[test]
fn a_handoff_may_be_cancelled_before_its_owner_serves() {
    let mut fixture = Fixture::moving();
    fixture.up_to_the_flip("");
    assert_eq!(fixture.delete("handoffs/3"), [""; 0]);
}

#[test]
fn acks_of_other_handoffs_checkpoints_of_others_and_values_that_cannot_be_read_are_found() {
    for (key, value, what) in [
        ("~acks/handoff_drains/3/a", r#"{"router_name":"a","partition":3,"handoff":5}"#, "a acknowledges"),
        ("~acks/handoff_drains/4/a", r#"{"router_name":"a","partition":4,"handoff":6}"#, "a acknowledges"),
        (
            "checkpoints/3",
            r#"{"partition":3,"pod_name":"new","epoch":7,"checkpoint":"eA==","taken_at":1}"#,
            "new recorded one",
        ),
        ("assignments/3", "?", "assignments/3 cannot be read"),
    ] {
        let found = Fixture::moving().put(key, value);
        assert!(found.len() == 1 && found[0].contains(what), "{key}: {found:?}");
    }
}

#[test]
fn a_batch_of_several_revisions_has_a_step_for_each() {
    let event = |key: &str, revision| Event::Delete { key: key.to_owned(), mod_revision: Revision::new(revision) };
    let events = vec![event("a", 4), event("b", 4), event("a", 6)];
    let found: Vec<Batch> = steps(&Batch { revision: Revision::new(6), events: events.clone() }).collect();
    assert_eq!(found.iter().map(|step| step.revision.get()).collect::<Vec<_>>(), [4, 6]);
    assert_eq!([&found[0].events[..], &found[1].events[..]].concat(), events);
}
