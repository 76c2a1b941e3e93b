//! Since when a handoff waits for whom, by what the store says. For people and tools only: no decision reads it.
//!
//! The times come from the wall clocks of the participants that wrote the records, so every reader of the store gets the
//! same ones. What the store does not say has no time: when a registration vanished, or when a key became unreadable.

use super::advance::{PendingOn, old_confirms, waiting_for};
use crate::ids::PartitionId;
use crate::records::{Handoff, PodAckKind};
use crate::view::{Versioned, View};

/// Something that a handoff waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandoffWait {
    /// What is waited for.
    pub on: PendingOn,
    /// Since when, in Unix milliseconds. `None` if the store does not say.
    pub since: Option<u64>,
}

/// Returns what the partition's handoff is waiting for, as [`waiting_for`] does, with the beginning of each wait.
pub fn waits(view: &View, partition: PartitionId) -> Vec<HandoffWait> {
    let Some(handoff) = view.handoffs.get(&partition) else { return Vec::new() };
    let waits = waiting_for(view, partition).into_iter();
    waits.map(|on| HandoffWait { since: since(view, handoff, &on).filter(|at| *at > 0), on }).collect()
}

fn since(view: &View, handoff: &Versioned<Handoff>, on: &PendingOn) -> Option<u64> {
    let record = &handoff.value;
    let entered = record.phase_entered_at;
    match on {
        PendingOn::Warm(_) | PendingOn::Checkpoint(_) | PendingOn::PodDrained(_) | PendingOn::PodReleased(_) => {
            Some(entered)
        }
        // A router that registers in the midst of a phase is waited for from then on.
        PendingOn::RouterDrained(router) | PendingOn::RouterCutover(router) => {
            view.routers.get(router).map(|router| router.value.registered_at.max(entered))
        }
        PendingOn::RouterGaveUp(router) => {
            view.drained_ack(record.partition, router, handoff.id()).map(|ack| ack.acked_at.max(entered))
        }
        // The tail has no end before the old owner's work has one.
        PendingOn::PodSynced(_) => {
            let confirms = record.old_owner.as_deref().filter(|_| old_confirms(view, record));
            let ack = confirms.and_then(|old| view.pod_ack(record.partition, old, PodAckKind::Drained, handoff.id()));
            Some(ack.map_or(entered, |ack| ack.acked_at.max(entered)))
        }
        PendingOn::NewOwner(_) | PendingOn::WorkEnds(_) | PendingOn::Repair(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{LeaseId, Revision};
    use crate::keys::Keyspace;
    use crate::txn::{KeyValue, Snapshot};

    /// A move of partition 0 from `a` to `b`. It entered its phase at 1000 and is the handoff 5.
    fn view(phase: &str, more: &[(&str, &str)]) -> View {
        let pod =
            |name| format!(r#"{{"pod_name":"{name}","address":"h:1","capabilities":["sync","drained","released"]}}"#);
        let handoff = format!(
            r#"{{"partition":0,"old_owner":"a","old_incarnation":2,"new_owner":"b","new_incarnation":2,"epoch":4,
            "phase":"{phase}","phase_entered_at":1000}}"#
        );
        let (a, b) = (pod("a"), pod("b"));
        let known = [
            ("config", r#"{"partitions":1}"#),
            ("pods/a", a.as_str()),
            ("pods/b", b.as_str()),
            ("assignments/0", r#"{"partition":0,"owner":"a","incarnation":2,"epoch":1}"#),
            ("handoffs/0", handoff.as_str()),
        ];
        let entry = |(key, value): &(&str, &str)| KeyValue {
            key: format!("/segue/default/{key}"),
            value: value.as_bytes().to_vec(),
            create_revision: Revision::new(if key.starts_with("handoffs") { 5 } else { 2 }),
            mod_revision: Revision::new(6),
            lease: (key.starts_with("pods/") || key.starts_with("routers/")).then(|| LeaseId::new(1)),
        };
        let entries = known.iter().chain(more).map(entry).collect();
        View::from_snapshot(Keyspace::new("/segue/", "default"), Snapshot { revision: Revision::new(9), entries })
    }

    fn shown(view: &View) -> Vec<(String, Option<u64>)> {
        waits(view, PartitionId::new(0)).into_iter().map(|wait| (wait.on.to_string(), wait.since)).collect()
    }

    fn one(text: &str, since: u64) -> (String, Option<u64>) {
        (text.to_owned(), Some(since))
    }

    #[test]
    fn a_router_is_waited_for_since_the_phase_began_or_since_it_registered() {
        let routers = [
            ("routers/early", r#"{"router_name":"early","registered_at":500}"#),
            ("routers/late", r#"{"router_name":"late","registered_at":1700}"#),
        ];
        let expected = [one("router early to drain", 1000), one("router late to drain", 1700)];
        assert_eq!(shown(&view("Ready", &routers)), expected);
        let expected = [one("router early to cut over", 1000), one("router late to cut over", 1700)];
        assert_eq!(shown(&view("Switching", &routers)), expected);
    }

    #[test]
    fn a_cancel_is_waited_for_since_the_router_gave_up() {
        let gave_up = r#"{"handoff":5,"gave_up":true,"router_name":"r","partition":0,"acked_at":1300}"#;
        let keys = [("routers/r", r#"{"router_name":"r"}"#), ("~acks/handoff_drains/0/r", gave_up)];
        assert_eq!(shown(&view("Ready", &keys)), [one("a cancel: router r could not drain", 1300)]);
    }

    #[test]
    fn the_new_owner_is_waited_for_once_the_old_one_has_ended_its_work() {
        let both = [one("pod a to drain", 1000), one("pod b to read the tail", 1000)];
        assert_eq!(shown(&view("Syncing", &[])), both);
        let drained = r#"{"pod_name":"a","partition":0,"handoff":5,"ack":"drained","acked_at":1400}"#;
        let after = view("Syncing", &[("pod_acks/0/a/drained", drained)]);
        assert_eq!(shown(&after), [one("pod b to read the tail", 1400)]);
    }

    #[test]
    fn the_store_does_not_say_since_when_a_pod_is_dead() {
        let gone = r#"{"partition":0,"new_owner":"c","new_incarnation":2,"epoch":4,"phase":"Warming","phase_entered_at":1000}"#;
        let view = view("Warming", &[("handoffs/0", gone)]);
        assert_eq!(shown(&view), [("the coordinator: pod c is dead".to_owned(), None)]);
    }
}
