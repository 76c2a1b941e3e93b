//! The rules that make a handoff safe, one by one: each decision, and the store's refusal of its transaction once the view
//! is outdated. Over the embedded store, without tasks or clocks.
mod bounds;
mod costs;
mod guards;
mod phases;
mod routers;
mod unreadable;

use std::time::Duration;

use segue_coordination::store::{MemoryStore, Store as _};
use segue_protocol::handoff::advance::{Ack, acknowledge, advance};
use segue_protocol::handoff::router::{HoldCause, Route, Target, Trust, route};
use segue_protocol::ids::{Epoch, HandoffId, Incarnation, LeaseId, PartitionId, Revision};
use segue_protocol::keys::Keyspace;
use segue_protocol::records::{
    Assignment, Capabilities, Handoff, HistoryEntry, KeyspaceConfig, Mode, Phase, PodAck, PodAckKind, PodRecord,
    RouterCutoverAck, RouterDrainedAck, RouterRecord, encode,
};
use segue_protocol::txn::{Keys, Op, Txn};
use segue_protocol::view::View;

const I1: Incarnation = Incarnation::registered_at(Revision::new(1));
const E1: Epoch = Epoch::new(1);
const E4: Epoch = Epoch::new(4);
const E5: Epoch = Epoch::new(5);
const P0: PartitionId = PartitionId::new(0);

const NO_SYNC: Capabilities = Capabilities { sync: false, ..Capabilities::ALL };
const NONE: Capabilities =
    Capabilities { sync: false, drained: false, released: false, fence: false, checkpoint: false };

/// A keyspace with one partition, whose records the test writes.
struct Fixture {
    store: MemoryStore,
    keys: Keyspace,
    /// The lease of every registration.
    lease: LeaseId,
}

impl Fixture {
    /// Returns a keyspace in which pod `a` owns partition 0 at epoch 4, with pod `b` and these routers registered.
    async fn new(old: Capabilities, new: Capabilities, routers: &[&str]) -> Self {
        let store = MemoryStore::new();
        let lease = store.grant(Duration::from_secs(3600)).await.unwrap();
        let fixture = Fixture { store, keys: Keyspace::new("/segue/", "test"), lease };
        fixture.put(fixture.keys.config(), encode(&KeyspaceConfig::new(1))).await;
        let a = fixture.pod("a", old).await;
        fixture.pod("b", new).await;
        for router in routers {
            fixture.router(router).await;
        }
        let owned = Assignment::new(P0, "a", a, E4);
        fixture.put(fixture.keys.assignment(P0), encode(&owned)).await;
        fixture
    }

    async fn put(&self, key: String, value: Vec<u8>) -> Revision {
        self.commit(Txn::guarded([], [Op::put(key, value)])).await.unwrap()
    }

    /// Writes a record under the lease, as its owner does.
    async fn register(&self, key: String, value: Vec<u8>) -> Incarnation {
        let put = Op::put_leased(key, value, self.lease);
        let created = self.commit(Txn::guarded([], [put])).await.unwrap();
        Incarnation::registered_at(created)
    }

    async fn delete(&self, key: String) {
        self.commit(Txn::guarded([], [Op::Delete(Keys::One(key))])).await.unwrap();
    }

    /// Returns the revision of a transaction, or `None` if the store refused it.
    async fn commit(&self, txn: Txn) -> Option<Revision> {
        let outcome = self.store.commit(txn).await.unwrap();
        outcome.committed().then_some(outcome.revision)
    }

    async fn pod(&self, name: &str, capabilities: Capabilities) -> Incarnation {
        self.bounded_pod(name, capabilities, None).await
    }

    async fn bounded_pod(
        &self,
        name: &str,
        capabilities: Capabilities,
        work_ends_within_ms: Option<u64>,
    ) -> Incarnation {
        let record = PodRecord { capabilities, work_ends_within_ms, ..PodRecord::new(name, "127.0.0.1:1") };
        self.register(self.keys.pod(name), encode(&record)).await
    }

    async fn router(&self, name: &str) -> Incarnation {
        let record = RouterRecord::new(name);
        self.register(self.keys.router(name), encode(&record)).await
    }

    async fn view(&self) -> View {
        let snapshot = self.store.snapshot(&Keys::Prefix(self.keys.root().into())).await.unwrap();
        View::from_snapshot(self.keys.clone(), snapshot)
    }

    /// Begins the handoff from `a` to `b` at this phase. Returns its identity.
    async fn handoff(&self, phase: Phase, mode: Mode) -> HandoffId {
        let view = self.view().await;
        let record = Handoff {
            phase,
            mode,
            reason: "test".into(),
            ..Handoff::new(P0, "b", view.incarnation_of("b"), E5).taken_from("a", view.incarnation_of("a"))
        };
        HandoffId::created_at(self.put(self.keys.handoff(P0), encode(&record)).await)
    }

    async fn history(&self) -> Vec<HistoryEntry> {
        let entries = self.store.snapshot(&self.keys.history()).await.unwrap().entries;
        entries.iter().map(|entry| serde_json::from_slice(&entry.value).unwrap()).collect()
    }

    async fn phase(&self) -> Option<Phase> {
        self.view().await.handoffs.get(&P0).map(|handoff| handoff.value.phase)
    }

    /// Has a router or pod acknowledge by its current view, which has no acknowledgements of routers. Returns whether the store
    /// accepted that.
    async fn ack(&self, ack: &Ack) -> bool {
        let snapshot = self.store.snapshot(&self.keys.followed()).await.unwrap();
        self.ack_seen(&View::from_snapshot(self.keys.clone(), snapshot), ack).await
    }

    /// The same, by an earlier view.
    async fn ack_seen(&self, view: &View, ack: &Ack) -> bool {
        let (key, incarnation) = match ack {
            Ack::RouterDrained(RouterDrainedAck { router_name, .. })
            | Ack::RouterCutover(RouterCutoverAck { router_name, .. }) => {
                (self.keys.router(router_name), view.routers[router_name].incarnation())
            }
            Ack::Pod(PodAck { pod_name, .. }) => (self.keys.pod(pod_name), view.incarnation_of(pod_name)),
        };
        self.commit(acknowledge(view, ack, key, incarnation, 0)).await.is_some()
    }

    /// Moves the handoff on by this view. Returns whether there was a move to make and the store accepted it.
    async fn advance_seen(&self, view: &View) -> bool {
        match advance(view, P0, 0) {
            Some(step) => self.commit(step.txn).await.is_some(),
            None => false,
        }
    }
}

fn drained(router: &str, handoff: HandoffId) -> Ack {
    let router_name = router.to_owned();
    Ack::RouterDrained(RouterDrainedAck::new(router_name, P0, handoff))
}

fn cut_over(router: &str, handoff: HandoffId) -> Ack {
    Ack::RouterCutover(RouterCutoverAck::new(router, P0, handoff))
}

fn says(pod: &str, ack: PodAckKind, handoff: HandoffId) -> Ack {
    Ack::Pod(PodAck::new(pod, P0, handoff, ack))
}

fn at(pod: &str, incarnation: Incarnation, epoch: u64) -> Target {
    Target { pod: pod.into(), incarnation, epoch: epoch.into() }
}

fn is_held(view: &View) -> bool {
    matches!(route(view, P0, Trust::Held), Route::Hold(HoldCause::Handoff))
}
