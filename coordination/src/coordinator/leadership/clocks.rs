//! The clocks of pods and routers against this coordinator's, by the times that they write into registrations and
//! acknowledgements.
//!
//! A time is compared when the watch brings it, so the delay of the store makes a clock look late by as much. Nobody's safety
//! depends on these clocks: only what is shown does.
//!
//! # Invariants
//!
//! * What a snapshot brings is not compared: nobody knows when it was written.

use std::collections::BTreeMap;

use segue_protocol::ids::{Incarnation, PartitionId, Revision};
use segue_protocol::records::ClockOffset;
use segue_protocol::view::{Acks, Versioned, View, ViewDelta};

/// How far a clock may be ahead, and how far it may seem to be behind while the store is slow, in milliseconds.
const MAX_AHEAD_MS: i64 = 2_000;
const MAX_BEHIND_MS: i64 = 10_000;

/// The clocks of a keyspace.
#[derive(Debug, Default)]
pub(super) struct Clocks {
    /// Times up to this revision were compared, or cannot be.
    seen: Revision,
    by_name: BTreeMap<String, ComparedClock>,
}

/// The clock of one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ComparedClock {
    life: Incarnation,
    /// The latest time that the process has written.
    written: u64,
    /// By how much that was ahead of this process's clock. `None` if it came with a snapshot.
    offset_ms: Option<i64>,
}

impl Clocks {
    /// Continues from a snapshot.
    pub(super) fn resync(&mut self, view: &View) {
        self.take(view, view.acks.values(), None);
    }

    /// Compares what these changes have brought. `now` is in Unix milliseconds.
    pub(super) fn compare(&mut self, view: &View, delta: &ViewDelta, now: u64) {
        if delta.membership || !delta.partitions.is_empty() {
            let acks = delta.partitions.iter().filter_map(|partition: &PartitionId| view.acks.get(partition));
            self.take(view, acks, Some(now));
        }
    }

    fn take<'a>(&mut self, view: &'a View, acks: impl Iterator<Item = &'a Acks>, now: Option<u64>) {
        let lives: BTreeMap<&str, Incarnation> = lives(view).collect();
        self.by_name.retain(|name, clock| lives.get(name.as_str()) == Some(&clock.life));
        // A registration that was put back by somebody has an old time.
        let pods = view.pods.iter().filter_map(|(name, pod)| Some((name, self.is_new(pod)?, pod.value.registered_at)));
        let routers =
            view.routers.iter().filter_map(|(name, it)| Some((name, self.is_new(it)?, it.value.registered_at)));
        let acked = acks.flat_map(|acks| {
            let drained = acks.drained.values().map(|ack| (&ack.router_name, ack.acked_at));
            let cutover = acks.cutover.values().map(|ack| (&ack.router_name, ack.acked_at));
            drained.chain(cutover).chain(acks.pods.values().map(|ack| (&ack.pod_name, ack.acked_at)))
        });
        let acked = acked.filter_map(|(name, at)| Some((name, *lives.get(name.as_str())?, at)));
        let times: Vec<(String, Incarnation, u64)> =
            pods.chain(routers).chain(acked).map(|(name, life, at)| (name.clone(), life, at)).collect();
        for (name, life, written) in times {
            let known = self.by_name.get(&name).copied();
            // 0: the process does not tell. Anything not later than before may have been written long ago.
            if written == 0 || known.is_some_and(|known| known.written >= written) {
                continue;
            }
            let offset_ms = now.map(|now| written as i64 - now as i64).or(known.and_then(|known| known.offset_ms));
            self.by_name.insert(name, ComparedClock { life, written, offset_ms });
        }
        self.seen = view.revision;
    }

    /// Returns the life of a registration that has come since the last look, and was put once.
    fn is_new<T>(&self, record: &Versioned<T>) -> Option<Incarnation> {
        let is_new = record.create_revision > self.seen && record.mod_revision == record.create_revision;
        is_new.then(|| Incarnation::registered_at(record.create_revision))
    }

    /// Returns by how many milliseconds each clock that was compared is ahead of this process's.
    pub(super) fn offsets(&self) -> BTreeMap<String, i64> {
        self.by_name.iter().filter_map(|(name, clock)| Some((name.clone(), clock.offset_ms?))).collect()
    }

    /// Returns those that are wrong, unless this process's own is.
    pub(super) fn wrong(&self) -> Vec<ClockOffset> {
        let is_wrong = |offset: &i64| *offset > MAX_AHEAD_MS || *offset < -MAX_BEHIND_MS;
        let wrong = self.by_name.iter().filter_map(|(name, clock)| Some((name, clock.offset_ms.filter(is_wrong)?)));
        let seconds = |offset: i64| (offset as f64 / 1_000.0).round() as i64;
        wrong.map(|(name, offset)| ClockOffset { name: name.clone(), seconds: seconds(offset) }).collect()
    }
}

fn lives(view: &View) -> impl Iterator<Item = (&str, Incarnation)> {
    let pods = view.pods.iter().map(|(name, pod)| (name.as_str(), pod.create_revision));
    let routers = view.routers.iter().map(|(name, router)| (name.as_str(), router.create_revision));
    pods.chain(routers).map(|(name, created)| (name, Incarnation::registered_at(created)))
}

#[cfg(test)]
mod tests {
    use segue_protocol::ids::LeaseId;
    use segue_protocol::keys::Keyspace;
    use segue_protocol::txn::{Batch, Event, KeyValue, Snapshot};

    use super::*;

    const NOW: u64 = 1_000_000_000;

    /// Puts a router's registration or ack that it wrote at this time.
    fn put(view: &mut View, revision: u64, key: &str, value: String) -> ViewDelta {
        let revision = Revision::new(revision);
        let (key, value) = (format!("/segue/test/{key}"), value.into_bytes());
        let entry =
            KeyValue { key, value, create_revision: revision, mod_revision: revision, lease: Some(LeaseId::new(1)) };
        view.apply(Batch { revision, events: vec![Event::Put(entry)] })
    }

    fn router(at: u64) -> String {
        format!(r#"{{"router_name":"r","registered_at":{at}}}"#)
    }

    fn ack(at: u64) -> String {
        format!(r#"{{"handoff":9,"gave_up":false,"router_name":"r","partition":0,"acked_at":{at}}}"#)
    }

    #[test]
    fn a_clock_is_compared_when_its_time_arrives_and_not_when_a_snapshot_brings_it() {
        let (mut view, mut clocks) = (View::empty(Keyspace::new("/segue/", "test")), Clocks::default());
        clocks.resync(&view);
        let delta = put(&mut view, 5, "routers/r", router(NOW - 600_000));
        clocks.compare(&view, &delta, NOW);
        assert_eq!(clocks.offsets(), BTreeMap::from([("r".to_owned(), -600_000)]));
        let words = clocks.wrong().pop().unwrap().to_string();
        assert!(words.starts_with("r: its clock is 600 s behind the leader's"), "{words}");
        // The clock is set right, and the next acknowledgement shows that. The same one says nothing later.
        for (revision, now) in [(6, NOW), (7, NOW + 30_000)] {
            let delta = put(&mut view, revision, "handoff_drains/0/r", ack(NOW));
            clocks.compare(&view, &delta, now);
            assert_eq!(clocks.offsets(), BTreeMap::from([("r".to_owned(), 0)]));
        }
        assert!(clocks.wrong().is_empty());
        // A snapshot is of unknown age.
        let mut later = Clocks::default();
        later.resync(&view);
        let delta = put(&mut view, 8, "handoff_drains/0/r", ack(NOW));
        later.compare(&view, &delta, NOW + 60_000);
        assert!(later.offsets().is_empty());
        // A new life of the name may run elsewhere.
        let delta = put(&mut view, 9, "routers/r", router(NOW + 5_000));
        clocks.compare(&view, &delta, NOW);
        assert_eq!(clocks.offsets()["r"], 5_000);
        assert!(clocks.wrong()[0].to_string().contains("5 s ahead of"));
        clocks.resync(&View::from_snapshot(
            view.keys().clone(),
            Snapshot { revision: Revision::new(10), entries: vec![] },
        ));
        assert!(clocks.offsets().is_empty());
    }
}
