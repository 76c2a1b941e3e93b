//! A store that goes back to a backup, and the lives of those who have seen more of it.
//!
//! Elsewhere: what shows that it went back (`segue_protocol::horizon`), and a real etcd (`etcd_in_trouble`).

use std::sync::Arc;
use std::time::Duration;

use segue_coordination::pod::{PodHandle, PodSettings, PodState};
use segue_coordination::session::{Leases, count_by_tokio};
use segue_coordination::store::{FaultyStore, MemoryStore, Store};
use segue_protocol::ids::{Epoch, PartitionId, Revision};
use segue_protocol::records::{Drain, KeyspaceConfig, Origin, encode};
use segue_protocol::txn::{Keys, Op, Txn};
use segue_protocol::view::View;
use tokio::time::{sleep, timeout};

use super::foreign_writes::{Router, TTL, by_key, get, until};
use super::{ViewCount, coordinator, keys};

/// A busy machine may take long with a real etcd; a paused clock passes it at once.
const TEST_TIMEOUT: Duration = Duration::from_secs(120);

pub(crate) fn pod(store: Arc<dyn Store>, name: &str) -> PodHandle {
    let settings = PodSettings { lease_ttl: TTL, ..PodSettings::new(name, "127.0.0.1:1") };
    PodHandle::start(Leases::new(store), keys().name(), keys(), settings, Arc::new(()))
}

pub(crate) async fn view(store: &dyn Store) -> Option<View> {
    let snapshot = store.snapshot(&Keys::Prefix(keys().root().into())).await.ok()?;
    Some(View::from_snapshot(keys(), snapshot))
}

pub(crate) async fn put(store: &dyn Store, key: String, value: Vec<u8>) {
    let put = Op::put(key, value);
    assert!(store.commit(Txn::guarded([], [put])).await.unwrap().committed());
}

/// Waits until the store shows this while each partition has a living owner and nothing moves.
pub(crate) async fn settled(store: &dyn Store, what: &str, shows: impl Fn(&View) -> bool) -> View {
    let settled = async {
        loop {
            if let Some(view) = view(store).await {
                let is_owned = |partition| view.live_owner(partition).is_some();
                let is_settled = view.partitions() > 0 && view.handoffs.is_empty() && PartitionId::all(4).all(is_owned);
                if is_settled && shows(&view) {
                    return view;
                }
            }
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(TEST_TIMEOUT, settled).await.unwrap_or_else(|_| panic!("never settled: {what}"))
}

/// Has a pod give its partitions to others. Returns the highest epoch once they own all of them.
pub(crate) async fn hand_over(store: &dyn Store, pod: &str) -> Epoch {
    let drain = Drain { origin: Origin { who: "the test".into(), why: String::new(), at: 0 } };
    put(store, keys().drain(pod), encode(&drain)).await;
    let owns_nothing = |view: &View| view.assignments.values().all(|owned| owned.value.owner != pod);
    let view = settled(store, "others own all", owns_nothing).await;
    view.assignments.values().map(|owned| owned.value.epoch).max().unwrap()
}

/// Writes what concerns nobody, so that the revision grows.
pub(crate) async fn write_others(store: &dyn Store, times: u64) {
    for _ in 0..times {
        put(store, "/others/key".to_owned(), Vec::new()).await;
    }
}

/// Puts the registration of pod `w` by hand, and waits until the pod has restored it. Returns the revision of that.
async fn rewritten(store: &MemoryStore) -> Revision {
    let own = get(store, keys().pod("w")).await.unwrap();
    put(store, keys().pod("w"), own.value).await;
    let restored = async || get(store, keys().pod("w")).await.filter(|entry| entry.lease.is_some());
    until("the registration", restored).await.mod_revision
}

#[tokio::test(start_paused = true)]
async fn a_store_that_goes_back_ends_every_life_and_no_epoch_comes_back() {
    count_by_tokio();
    let store = MemoryStore::new();
    tokio::spawn(coordinator(Arc::new(store.clone()), "c", TTL, Arc::<ViewCount>::default()));
    let router = Router::start(&store, "r", by_key("x-key"));
    let first = pod(Arc::new(store.clone()), "w-0");
    settled(&store, "the first owner", |_| true).await;
    router.ready().await;
    let backup = store.back_up();
    let before = view(&store).await.unwrap();

    // What the backup does not know: another pod owns everything.
    let second = pod(Arc::new(store.clone()), "w-1");
    write_others(&store, 500).await;
    let spent = hand_over(&store, "w-0").await;

    store.restore(&backup);
    let is_over = |view: &View| {
        let is_new = |created: Option<Revision>, old: Revision| created.is_some_and(|created| created != old);
        is_new(view.routers.get("r").map(|it| it.create_revision), before.routers["r"].create_revision)
            && is_new(view.pods.get("w-0").map(|it| it.create_revision), before.pods["w-0"].create_revision)
            && is_new(
                view.leader.as_ref().map(|it| it.create_revision),
                before.leader.as_ref().unwrap().create_revision,
            )
            && view.pods.contains_key("w-1")
    };
    let after = settled(&store, "new lives", is_over).await;
    let floor = after.config.as_ref().unwrap().value.epoch_floor;
    assert!(floor > spent, "{floor} after epoch {spent}");
    assert!(after.assignments.values().all(|owned| owned.value.epoch > floor), "{spent} comes back");
    router.ready().await;
    assert!(Epoch::new(after.revision.get()) < spent, "revisions alone do not tell");
    drop((first, second));
}

#[tokio::test(start_paused = true)]
async fn a_life_that_sees_no_lower_revision_ends_with_the_raised_floor() {
    count_by_tokio();
    let store = MemoryStore::new();
    put(&store, keys().config(), encode(&KeyspaceConfig::new(4))).await;
    let faulty = Arc::new(FaultyStore::new(Arc::new(store.clone())));
    let pod = pod(faulty.clone(), "w");
    let mut status = pod.status();
    let first = status.wait_for(|state| state.not_ready.is_none()).await.unwrap().incarnation;
    let backup = store.back_up();

    faulty.blind();
    store.restore(&backup);
    write_others(&store, 50).await;
    faulty.pass();
    // It follows the store again, from a revision above all that it has seen.
    rewritten(&store).await;
    assert_eq!(status.borrow().incarnation, first, "nothing shows yet that the store went back");
    let raised = KeyspaceConfig { epoch_floor: Epoch::new(1000), ..KeyspaceConfig::new(4) };
    put(&store, keys().config(), encode(&raised)).await;
    let anew = status.wait_for(|state| state.not_ready.is_none() && state.incarnation > first);
    assert!(timeout(TEST_TIMEOUT, anew).await.is_ok_and(|state| state.is_ok()), "its life goes on");
    let kept = view(&store).await.unwrap().config.unwrap().value;
    assert_eq!(kept, raised, "it is high enough");
}

#[tokio::test(start_paused = true)]
async fn a_floor_that_somebody_writes_too_low_is_raised_again() {
    count_by_tokio();
    let store = MemoryStore::new();
    put(&store, keys().config(), encode(&KeyspaceConfig::new(4))).await;
    let pod = pod(Arc::new(store.clone()), "w");
    let mut status = pod.status();
    let is_ready = |state: &PodState| state.not_ready.is_none();
    status.wait_for(is_ready).await.unwrap();
    let backup = store.back_up();
    write_others(&store, 50).await;
    let lost = rewritten(&store).await;
    store.restore(&backup);
    let raised = async || view(&store).await.filter(|view| view.epoch_floor() >= Epoch::new(lost.get()));
    until("the raised floor", raised).await;
    // A restored copy, or an older version, leaves the field out.
    put(&store, keys().config(), encode(&KeyspaceConfig::new(4))).await;
    until("the raised floor again", raised).await;
    let absent = Txn::guarded([], [Op::Delete(Keys::One(keys().config()))]);
    store.commit(absent).await.unwrap();
    until("the pod without settings", async || is_ready(&status.borrow()).then_some(())).await;
    put(&store, keys().config(), encode(&KeyspaceConfig::new(4))).await;
    until("the raised floor in new settings", raised).await;
}
