//! The shells of routers, coordinators and pods over the embedded store, under a paused clock.

mod cut_off;
mod drains;
mod foreign_writes;
pub(crate) mod goes_back;
mod held_moves;
mod many_partitions;
mod refused_writes;
mod several_keyspaces;
mod slow_store;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use segue_coordination::coordinator::{
    CoordinatorObserver, CoordinatorSettings, CoordinatorStatus, HandoffResult, run_coordinator,
};
use segue_coordination::store::{Store, StoreError};
use segue_protocol::ids::PartitionId;
use segue_protocol::keys::Keyspace;
use segue_protocol::planning::{Policy, RoundCause};
use segue_protocol::records::Phase;
use segue_protocol::view::View;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub(crate) fn keys() -> Keyspace {
    Keyspace::new("/segue/", "test")
}

/// Runs a coordinator of four partitions for ever.
pub(crate) async fn coordinator(store: Arc<dyn Store>, name: &str, lease_ttl: Duration, views: Arc<ViewCount>) {
    let settings = CoordinatorSettings {
        name: name.to_owned(),
        lease_ttl,
        policy: Policy {
            partitions: 4,
            settle: Duration::from_millis(100),
            settle_max: Duration::from_secs(1),
            min_interval: Duration::from_millis(200),
            heartbeat: Duration::from_secs(5),
            warm_timeout: Duration::from_secs(30),
            phase_timeout: Duration::from_secs(20),
            max_concurrent_handoffs: 8,
            cool_down: Duration::ZERO,
            ..Policy::default()
        },
    };
    let (status, _) = watch::channel(CoordinatorStatus::default());
    run_coordinator(store, keys(), settings, views, status, CancellationToken::new()).await;
}

/// Counts how often the leader's view changes, which is how often its loop comes round.
#[derive(Default)]
pub(crate) struct ViewCount(AtomicU32);

impl CoordinatorObserver for ViewCount {
    fn leads(&self, _: bool) {}
    fn round(&self, _: RoundCause) {}
    fn phase_ended(&self, _: Phase, _: Duration) {}
    fn handoff_ended(&self, _: PartitionId, _: HandoffResult) {}
    fn resync(&self, _: &StoreError) {}

    fn view_changed(&self, _: &View) {
        // Under a paused clock a loop that spins would never end.
        assert!(self.0.fetch_add(1, SeqCst) < 1_000, "the leader spins");
    }
}
