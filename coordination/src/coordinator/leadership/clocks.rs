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

use segue_protocol::ids::{Incarnation, Revision};
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
    compared: BTreeMap<Role, BTreeMap<String, ComparedClock>>,
}

/// The kind of a registration. A pod and a router may have the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Role {
    Pod,
    Router,
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
        self.take_registrations(view, None);
        for acks in view.acks.values() {
            let routers = acks.drained.keys().chain(acks.cutover.keys());
            for who in routers.chain(acks.pods.keys().map(|(pod, _)| pod)) {
                self.take_acks(view, acks, who, None);
            }
        }
    }

    /// Compares what these changes have brought. `now` is in Unix milliseconds.
    pub(super) fn compare(&mut self, view: &View, delta: &ViewDelta, now: u64) {
        if delta.membership {
            self.take_registrations(view, Some(now));
        }
        for (partition, who) in &delta.acks {
            let Some(acks) = view.acks.get(partition) else { continue };
            self.take_acks(view, acks, who, Some(now));
        }
    }

    fn take_registrations(&mut self, view: &View, now: Option<u64>) {
        for (role, clocks) in &mut self.compared {
            clocks.retain(|name, clock| life(view, *role, name) == Some(clock.life));
        }
        let seen = std::mem::replace(&mut self.seen, view.revision);
        for (name, pod) in view.pods.iter().filter(|(_, pod)| is_new(pod, seen)) {
            let life = Incarnation::registered_at(pod.create_revision);
            self.take(Role::Pod, name, life, pod.value.registered_at, now);
        }
        for (name, router) in view.routers.iter().filter(|(_, router)| is_new(router, seen)) {
            let life = Incarnation::registered_at(router.create_revision);
            self.take(Role::Router, name, life, router.value.registered_at, now);
        }
    }

    /// Takes the times that this participant has written into these acks.
    fn take_acks(&mut self, view: &View, acks: &Acks, who: &str, now: Option<u64>) {
        let drained = acks.drained.get(who).map(|ack| (Role::Router, ack.acked_at));
        let cutover = acks.cutover.get(who).map(|ack| (Role::Router, ack.acked_at));
        let pods = acks.pods_of(who).map(|ack| (Role::Pod, ack.acked_at));
        for (role, at) in drained.into_iter().chain(cutover).chain(pods) {
            if let Some(life) = life(view, role, who) {
                self.take(role, who, life, at, now);
            }
        }
    }

    fn take(&mut self, role: Role, name: &str, life: Incarnation, written: u64, now: Option<u64>) {
        let clocks = self.compared.entry(role).or_default();
        let known = clocks.get(name).copied();
        // 0: the process does not tell. Anything not later than before may have been written long ago.
        if written == 0 || known.is_some_and(|known| known.written >= written) {
            return;
        }
        let offset_ms = now.map(|now| written as i64 - now as i64).or(known.and_then(|known| known.offset_ms));
        clocks.insert(name.to_owned(), ComparedClock { life, written, offset_ms });
    }

    /// Returns by how many milliseconds each clock that was compared is ahead of this process's. Of a pod and a router of one
    /// name the one that is further off counts.
    pub(super) fn offsets(&self) -> BTreeMap<String, i64> {
        let mut offsets = BTreeMap::new();
        for (name, clock) in self.compared.values().flatten() {
            let Some(offset) = clock.offset_ms else { continue };
            let entry: &mut i64 = offsets.entry(name.clone()).or_default();
            if offset.abs() > entry.abs() {
                *entry = offset;
            }
        }
        offsets
    }

    /// Returns those that are wrong, unless this process's own is.
    pub(super) fn wrong(&self) -> Vec<ClockOffset> {
        let wrong = self.offsets().into_iter().filter(|(_, offset)| *offset > MAX_AHEAD_MS || *offset < -MAX_BEHIND_MS);
        let seconds = |offset: i64| (offset as f64 / 1_000.0).round() as i64;
        wrong.map(|(name, offset)| ClockOffset { name, seconds: seconds(offset) }).collect()
    }
}

/// Returns whether a registration has come after `seen`. One that somebody has put back has an old time.
fn is_new<T>(record: &Versioned<T>, seen: Revision) -> bool {
    record.create_revision > seen && record.mod_revision == record.create_revision
}

fn life(view: &View, role: Role, name: &str) -> Option<Incarnation> {
    let created = match role {
        Role::Pod => view.pods.get(name)?.create_revision,
        Role::Router => view.routers.get(name)?.create_revision,
    };
    Some(Incarnation::registered_at(created))
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
            let delta = put(&mut view, revision, "~acks/handoff_drains/0/r", ack(NOW));
            clocks.compare(&view, &delta, now);
            assert_eq!(clocks.offsets(), BTreeMap::from([("r".to_owned(), 0)]));
        }
        assert!(clocks.wrong().is_empty());
        // A snapshot is of unknown age.
        let mut later = Clocks::default();
        later.resync(&view);
        let delta = put(&mut view, 8, "~acks/handoff_drains/0/r", ack(NOW));
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

    #[test]
    fn a_pod_and_a_router_of_one_name_have_two_clocks() {
        let (mut view, mut clocks) = (View::empty(Keyspace::new("/segue/", "test")), Clocks::default());
        let delta = put(&mut view, 5, "routers/r", router(NOW + 5_000));
        clocks.compare(&view, &delta, NOW);
        let pod = format!(r#"{{"pod_name":"r","address":"127.0.0.1:1","registered_at":{NOW}}}"#);
        let delta = put(&mut view, 6, "pods/r", pod);
        clocks.compare(&view, &delta, NOW);
        assert_eq!(view.pods.len(), 1);
        assert_eq!(clocks.offsets(), BTreeMap::from([("r".to_owned(), 5_000)]));
        assert_eq!(clocks.wrong().len(), 1);
    }
}
