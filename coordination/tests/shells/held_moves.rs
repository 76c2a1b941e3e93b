//! Moves that a coordinator holds back, as others see them.

use std::sync::Arc;
use std::time::Duration;

use segue_coordination::coordinator::{CoordinatorSettings, CoordinatorStatus, run_coordinator};
use segue_coordination::store::{MemoryStore, Store};
use segue_protocol::planning::{Coordination, Policy, ROLL_PATIENCE};
use segue_protocol::records::{PodRecord, Round, encode};
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::foreign_writes::until;
use super::refused_writes::{Coordinator, Site};
use super::{ViewCount, keys};

impl Site {
    /// Registers the first pod of a version: the next ones may drain into it.
    async fn roll(&self) {
        for (pod, version) in [("old", "v1"), ("new", "v2")] {
            let record = PodRecord { version: Some(version.to_owned()), ..PodRecord::new(pod, "127.0.0.1:1") };
            self.put_leased(self.keys.pod(pod), encode(&record)).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_says_in_its_key_what_it_holds_back_until_it_does_not() {
    let store = Arc::new(MemoryStore::new());
    let site = Site::new(store.clone()).await;
    let _coordinator = Coordinator::leading(store).await;
    site.roll().await;
    let held = async || site.view().await.leader.unwrap().value.held;
    let first = until("what it holds back", async || held().await.pop()).await;
    assert_eq!((first.to.as_str(), first.partitions), ("new", 1));
    assert_eq!(first.why, "pods restart one by one");
    assert_eq!(first.incarnation, site.view().await.incarnation_of("new"));
    sleep(ROLL_PATIENCE).await;
    until("nothing", async || held().await.is_empty().then_some(())).await;
    assert_eq!(site.view().await.handoffs.len(), 1, "it has begun");
}

/// Takes part in assignment rounds for ever.
fn participant(store: Arc<dyn Store>, name: &str) {
    let policy = Policy {
        partitions: 2,
        coordination: Coordination::Rounds,
        settle: Duration::from_millis(50),
        min_interval: Duration::from_millis(100),
        heartbeat: Duration::from_secs(5),
        cool_down: Duration::ZERO,
        ..Policy::default()
    };
    let settings = CoordinatorSettings { name: name.to_owned(), lease_ttl: Duration::from_secs(60), policy };
    let (status, _) = watch::channel(CoordinatorStatus::default());
    let views = Arc::new(ViewCount::default());
    tokio::spawn(run_coordinator(store, keys(), settings, views, status, CancellationToken::new()));
}

#[tokio::test(start_paused = true)]
async fn participants_of_rounds_say_what_they_hold_back_until_they_do_not() {
    let store = Arc::new(MemoryStore::new());
    let site = Site::new(store.clone()).await;
    for name in ["a", "b"] {
        participant(store.clone(), name);
    }
    let is_of_both = |round: &Round| round.participants.keys().map(String::as_str).eq(["a", "b"]);
    let round = async || site.view().await.rounds.current.map(|round| round.value);
    until("a round of both", async || round().await.filter(is_of_both)).await;
    site.roll().await;
    let first = until("what they hold back", async || site.view().await.held().pop()).await;
    assert_eq!((first.to.as_str(), first.partitions), ("new", 1));
    assert_eq!(first.incarnation, site.view().await.incarnation_of("new"));

    // Later rounds take nothing of it away, not even for a moment.
    let begun = round().await.unwrap().number;
    let later = async || {
        assert_eq!(site.view().await.held().len(), 1);
        round().await.filter(|round| round.number > begun + 3)
    };
    until("later rounds", later).await;
    sleep(ROLL_PATIENCE).await;
    until("nothing", async || site.view().await.held().is_empty().then_some(())).await;
    assert_eq!(site.view().await.handoffs.len(), 1, "it has begun");
}
