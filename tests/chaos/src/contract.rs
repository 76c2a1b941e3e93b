//! Checks the store's history, event by event, against the contract of the protocol. Clients may be lucky; the history
//! is not.
//!
//! * A handoff leaves `Ready` only once every router that was registered at that very revision has drained. A router
//!   that registers later sees that it must not route to the old owner.
//! * An owner changes only by a handoff that stands. The old owner has said that its work has ended, if it lives and
//!   can say so, and the new one has read the tail.
//! * Epochs grow.
//! * No handoff is overwritten by another.
//!
//! The checker of `tests/simulation` is another one: it has the store before and after each transaction, and its
//! author.

use segue_protocol::ids::{HandoffId, PartitionId, Revision};
use segue_protocol::keys::KeyName;
use segue_protocol::records::{Assignment, Handoff, Phase, PodAckKind};
use segue_protocol::txn::{Batch, Event, KeyValue};
use segue_protocol::view::View;

/// Applies one event of a batch. A view applies whole batches, but each event has to be checked in the state that the
/// previous one has left.
pub(crate) fn apply(view: &mut View, event: Event) {
    let revision = event.mod_revision();
    view.revision = Revision::new(revision.get() - 1);
    view.apply(Batch { revision, events: vec![event] });
}

/// Returns the breaches of the contract by `event`, in words; `view` is the state before it.
pub(crate) fn breaches(view: &View, event: &Event) -> Vec<String> {
    let Event::Put(put) = event else { return Vec::new() };
    match view.keys().parse(&put.key) {
        Some(KeyName::Assignment(_)) => serde_json::from_slice(&put.value).map_or_else(
            |error| vec![format!("an assignment that cannot be read: {error}")],
            |assignment| flip(view, &assignment, put.mod_revision),
        ),
        Some(KeyName::Handoff(_)) => move_on(view, put),
        _ => Vec::new(),
    }
}

fn flip(view: &View, new: &Assignment, revision: Revision) -> Vec<String> {
    let Assignment { partition, owner, incarnation, epoch, .. } = new;
    let mut found = Vec::new();
    let mut broken = |why: String| {
        found.push(format!(
            "{owner} became owner of partition {partition} at epoch {epoch} (revision {revision}) {why}"
        ));
    };
    if let Some(before) = view.assignments.get(partition).filter(|before| *epoch <= before.value.epoch) {
        broken(format!("after epoch {}", before.value.epoch));
    }
    let fits = |handoff: &Handoff| {
        handoff.epoch == *epoch && handoff.new_owner == *owner && handoff.new_incarnation == *incarnation
    };
    let Some(handoff) = view.handoffs.get(partition).filter(|handoff| fits(&handoff.value)) else {
        broken("without a handoff".into());
        return found;
    };
    let (id, record) = (handoff.id(), &handoff.value);
    let Some(old) = &record.old_owner else { return found };
    // Before or after the record's own event in the same transaction.
    if record.phase <= Phase::Ready {
        undrained(view, *partition, id).for_each(|router| broken(format!("although router {router} had not drained")));
    }
    let says = |pod: &str, ack| view.pod_ack(*partition, pod, ack, id).is_some();
    if view.live_old_owner(record).is_some_and(|pod| pod.capabilities.drained) && !says(old, PodAckKind::Drained) {
        broken(format!("although {old} had not ended"));
    }
    match view.live_new_owner(record) {
        None => broken("although that life of it was over".into()),
        Some(pod) if pod.capabilities.sync && !says(owner, PodAckKind::Synced) => {
            broken("without having read the tail".into());
        }
        Some(_) => {}
    }
    found
}

/// Returns the routers that have not acknowledged their drain: a request of theirs could still reach the old owner.
fn undrained(view: &View, partition: PartitionId, handoff: HandoffId) -> impl Iterator<Item = &String> {
    let routers = view.routers.keys();
    routers.filter(move |router| view.drained_ack(partition, router, handoff).is_none_or(|ack| ack.gave_up))
}

fn move_on(view: &View, put: &KeyValue) -> Vec<String> {
    let Ok(new) = serde_json::from_slice::<Handoff>(&put.value) else {
        return vec!["a handoff that cannot be read".into()];
    };
    let Some(standing) = view.handoffs.get(&new.partition) else {
        return Vec::new();
    };
    let old = &standing.value;
    let is_same = (old.epoch, &old.new_owner, old.new_incarnation) == (new.epoch, &new.new_owner, new.new_incarnation);
    if !is_same || old.phase > new.phase {
        return vec![format!("the handoff of partition {} was overwritten", new.partition)];
    }
    if old.phase > Phase::Ready || new.phase <= Phase::Ready || old.old_owner.is_none() {
        return Vec::new();
    }
    let said = |router| {
        let (partition, to, revision) = (new.partition, new.phase, put.mod_revision);
        format!(
            "the handoff of partition {partition} moved on to {to:?} (revision {revision}) although router {router} had not drained"
        )
    };
    undrained(view, new.partition, standing.id()).map(said).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use segue_protocol::keys::Keyspace;

    use super::*;

    const P3: PartitionId = PartitionId::new(3);

    struct Fixture {
        view: View,
        revision: Revision,
    }

    impl Fixture {
        /// Partition 3 is on its way from `old` to `new`, routers `a` and `b` are registered; there are no acks.
        fn moving() -> Self {
            let mut fixture =
                Fixture { view: View::empty(Keyspace::new("/segue/", "default")), revision: Revision::ZERO };
            for router in ["a", "b"] {
                fixture.put(&format!("routers/{router}"), &format!(r#"{{"router_name":"{router}"}}"#));
            }
            for pod in ["old", "new"] {
                let record =
                    r#"{"pod_name":"NAME","address":"h:1","capabilities":["sync","drained","released","fence"]}"#;
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
            let (value, mod_revision, lease) = (value.into(), self.revision, None);
            let event = Event::Put(KeyValue { key, value, create_revision, mod_revision, lease });
            let found = breaches(&self.view, &event);
            apply(&mut self.view, event);
            found
        }

        /// Writes every ack `but` one. Returns the breaches of the phases' moves on the way.
        fn up_to_the_flip(&mut self, but: &str) -> Vec<String> {
            let mut found = Vec::new();
            for (key, value) in [
                ("handoff_drains/3/a", r#"{"router_name":"a","partition":3,"handoff":6}"#),
                ("handoff_drains/3/b", r#"{"router_name":"b","partition":3,"handoff":6}"#),
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
            ("handoff_drains/3/b", "router b had not drained"),
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
        fixture.put("handoff_drains/3/a", r#"{"router_name":"a","partition":3,"handoff":6}"#);
        let found = fixture.put("assignments/3", Fixture::FLIP);
        assert!(found.iter().any(|it| it.contains("router b had not drained")), "{found:?}");
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
}
