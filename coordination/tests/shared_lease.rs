//! Participants of one process that share a lease, with the embedded store under a paused clock and with a real etcd.
//!
//! Not here: the times of each holder (`segue_protocol::holders`), and whole clusters under faults (`tests/simulation`).

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use futures_util::future::join_all;
use segue_coordination::session::{Claim, Leases, Registration, lease_now, register};
use segue_coordination::store::{
    EtcdOptions, EtcdStore, Fault, FaultyStore, MemoryStore, Store, StoreCall, StoreError,
};
use segue_protocol::ids::{Incarnation, LeaseId};
use segue_protocol::keys::Keyspace;
use segue_protocol::txn::{KeyValue, Keys, Op, Txn};
use segue_tests::etcd::Etcd;
use tokio::time::{Instant, sleep, timeout};

const TTL: Duration = Duration::from_secs(3);
/// With etcd, a busy machine may stop the test for seconds, which must not cost a lease.
const ETCD_TTL: Duration = Duration::from_secs(6);
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

static ETCD: LazyLock<Etcd> = LazyLock::new(Etcd::start);
static PREFIXES: AtomicUsize = AtomicUsize::new(0);

/// A store whose calls are counted, and names of participants that no other test has.
struct Shared {
    store: Arc<FaultyStore>,
    /// The store itself, for what the test reads and writes.
    uncounted: Arc<dyn Store>,
    prefix: String,
    ttl: Duration,
}

impl Shared {
    fn memory() -> Self {
        Self::new(Arc::new(MemoryStore::new()), TTL)
    }

    fn etcd() -> Self {
        Self::new(Arc::new(EtcdStore::connect(EtcdOptions::new([ETCD.endpoint()])).unwrap()), ETCD_TTL)
    }

    fn new(uncounted: Arc<dyn Store>, ttl: Duration) -> Self {
        let prefix = format!("/shared-{}/", PREFIXES.fetch_add(1, SeqCst));
        Shared { store: Arc::new(FaultyStore::new(uncounted.clone())), uncounted, prefix, ttl }
    }

    fn leases(&self) -> Leases {
        Leases::from(self.store.clone())
    }

    /// Returns the numbers of snapshots, grants, commits, renewals, revocations and other calls.
    fn counts(&self) -> [usize; 6] {
        let kind = |call: &StoreCall| match call {
            StoreCall::Snapshot(_) => 0,
            StoreCall::Grant => 1,
            StoreCall::Commit(_) => 2,
            StoreCall::KeepAlive => 3,
            StoreCall::Revoke => 4,
            StoreCall::Survey(_) | StoreCall::Watch(_) => 5,
        };
        [0, 1, 2, 3, 4, 5].map(|counted| self.store.count(|call| kind(call) == counted))
    }

    fn grants(&self) -> usize {
        self.counts()[1]
    }

    fn renewals(&self) -> usize {
        self.counts()[3]
    }

    fn revocations(&self) -> usize {
        self.counts()[4]
    }

    /// Lets this become of the next write.
    fn next_write(&self, verdict: fn() -> Fault) {
        self.store.next(1, |call| matches!(call, StoreCall::Commit(_)), verdict);
    }

    fn key(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    fn claim(&self, name: &str) -> Claim {
        Claim::new(&Keyspace::new("/segue/", "default"), self.key(name), self.ttl)
    }

    /// Returns how long something may take that takes `longest` on an idle machine. Only the embedded store's clock waits for
    /// the test.
    fn at_most(&self, longest: Duration) -> Duration {
        if self.ttl == TTL { longest } else { TEST_TIMEOUT }
    }

    /// Reads without being counted.
    async fn get(&self, name: &str) -> Option<KeyValue> {
        self.uncounted.snapshot(&Keys::One(self.key(name))).await.unwrap().entries.pop()
    }

    /// Returns the names of the keys below the prefix, and their leases.
    async fn keys(&self) -> BTreeMap<String, Option<LeaseId>> {
        let snapshot = self.uncounted.snapshot(&Keys::Prefix(self.prefix.clone())).await.unwrap();
        snapshot.entries.into_iter().map(|entry| (entry.key[self.prefix.len()..].to_owned(), entry.lease)).collect()
    }

    async fn delete(&self, name: &str) {
        let delete = Op::Delete(Keys::One(self.key(name)));
        self.uncounted.commit(Txn::guarded([], [delete])).await.unwrap();
    }
}

/// Lets the loops of these participants make progress until `until` has happened.
async fn alive(participants: &[&Registration], until: impl Future<Output = ()>) {
    let progress = async {
        loop {
            participants.iter().for_each(|it| it.lease.made_progress());
            sleep(TTL / 20).await;
        }
    };
    tokio::select! {
        () = progress => {}
        ended = timeout(TEST_TIMEOUT, until) => ended.expect("it happens in time"),
    }
}

/// Returns once the store has the keys of these names and no others.
async fn only(store: &Shared, names: &[&str]) {
    while !store.keys().await.keys().eq(names) {
        sleep(TTL / 100).await;
    }
}

async fn lost(registration: &Registration) {
    registration.lease.state().wait_for(|state| state.lost).await.unwrap();
}

fn is_lost(registration: &Registration) -> bool {
    registration.lease.state().borrow().lost
}

async fn all(leases: &Leases, store: &Shared, names: [&str; 3], ended: [Incarnation; 3]) -> [Registration; 3] {
    let claims: Vec<Claim> = names.iter().zip(ended).map(|(name, ended)| store.claim(name).after(ended)).collect();
    let registered = join_all(claims.iter().map(|claim| register(leases, claim, |_| Vec::new()))).await;
    registered.try_into().unwrap()
}

async fn three(store: &Shared) -> (Leases, [Registration; 3]) {
    let leases = store.leases();
    let registered = all(&leases, store, ["a", "b", "c"], [Incarnation::NONE; 3]).await;
    (leases, registered)
}

async fn they_share_a_lease_and_its_renewals_and_the_last_one_revokes_it(store: Shared) {
    let (_leases, [a, b, c]) = three(&store).await;
    let (before, since) = (store.renewals(), Instant::now());
    let (lease, ttl) = (a.lease.id(), store.ttl);
    assert_eq!(store.keys().await, BTreeMap::from(["a", "b", "c"].map(|name| (name.to_owned(), Some(lease)))));
    alive(&[&a, &b, &c], sleep(ttl * 2)).await;
    // One at each sixth of the TTL, as a single participant has it.
    let renewed = store.renewals() - before;
    let most = since.elapsed().div_duration_f64(ttl / 6) as usize + 1;
    assert!((1..=most).contains(&renewed), "{renewed} renewals, of {most} at most");
    for (leaves, left) in [(a, &["b", "c"][..]), (b, &["c"])] {
        leaves.withdraw().await.unwrap();
        only(&store, left).await;
        alive(&[&c], sleep(ttl * 5 / 4)).await;
        assert!(!is_lost(&c));
    }
    assert_eq!((store.grants(), store.revocations()), (1, 0));
    c.withdraw().await.unwrap();
    assert!(store.keys().await.is_empty());
    assert_eq!(store.revocations(), 1);
    assert!(matches!(store.uncounted.keep_alive(lease).await, Err(StoreError::LeaseNotFound)));
}

async fn a_lease_that_another_revokes_is_lost_to_all_and_they_register_anew_under_one(store: Shared) {
    let (leases, first) = three(&store).await;
    let [a, b, c] = &first;
    let old = a.lease.id();
    store.uncounted.revoke(old).await.unwrap();
    alive(&[a, b, c], async {
        join_all([lost(a), lost(b), lost(c)]).await;
    })
    .await;
    let ended = first.each_ref().map(|it| it.incarnation);
    for registration in first {
        registration.withdraw().await.unwrap();
    }
    let next = all(&leases, &store, ["a", "b", "c"], ended).await;
    let lease = next[0].lease.id();
    assert_ne!(lease, old);
    assert_eq!(store.keys().await, BTreeMap::from(["a", "b", "c"].map(|name| (name.to_owned(), Some(lease)))));
    assert_eq!(store.grants(), 2);
    assert!(next.iter().zip(ended).all(|(next, ended)| next.incarnation > ended), "new lives");
}

async fn a_registration_under_a_lease_that_has_ended_tells_the_others(store: Shared) {
    let (leases, [a, b, c]) = three(&store).await;
    let (old, ended) = (a.lease.id(), c.incarnation);
    // Before any renewal could show it.
    store.uncounted.revoke(old).await.unwrap();
    c.withdraw().await.unwrap();
    let again = register(&leases, &store.claim("c").after(ended), |_| Vec::new()).await;
    assert_ne!(again.lease.id(), old);
    assert!(is_lost(&a) && is_lost(&b) && !is_lost(&again));
    assert_eq!(store.grants(), 2);
}

async fn a_stuck_participant_alone_loses_its_key_when_its_own_lease_would_have_ended(store: Shared) {
    let (leases, [a, b, c]) = three(&store).await;
    let stuck_at = Instant::now();
    a.lease.made_progress();
    alive(&[&b, &c], only(&store, &["b", "c"])).await;
    let after = stuck_at.elapsed();
    // Renewals go on for half the TTL after the last progress.
    assert!((store.ttl..store.at_most(store.ttl * 5 / 2)).contains(&after), "after {after:?}");
    assert!(is_lost(&a) && !is_lost(&b) && !is_lost(&c));
    let ended = a.incarnation;
    a.withdraw().await.unwrap();
    let again = register(&leases, &store.claim("a").after(ended), |_| Vec::new()).await;
    assert_eq!(again.lease.id(), b.lease.id());
    alive(&[&again, &b, &c], sleep(store.ttl * 5 / 4)).await;
    only(&store, &["a", "b", "c"]).await;
}

async fn a_participant_whose_key_was_deleted_registers_anew_under_the_same_lease(store: Shared) {
    let (leases, [a, b, c]) = three(&store).await;
    let (lease, ended) = (a.lease.id(), a.incarnation);
    store.delete("a").await;
    a.withdraw().await.unwrap();
    let again = register(&leases, &store.claim("a").after(ended), |_| Vec::new()).await;
    assert_eq!(again.lease.id(), lease);
    assert!(again.incarnation > ended, "another life");
    alive(&[&again, &b, &c], sleep(store.ttl * 5 / 4)).await;
    assert!(!is_lost(&again) && !is_lost(&b));
    assert_eq!((store.grants(), store.revocations()), (1, 0));
}

async fn a_dropped_participants_keys_go_and_not_before_its_lease_would_have_ended(store: Shared) {
    let (_leases, [a, b, c]) = three(&store).await;
    let dropped_at = Instant::now();
    drop(c);
    alive(&[&a, &b], only(&store, &["a", "b"])).await;
    let after = dropped_at.elapsed();
    assert!((store.ttl / 2..store.at_most(store.ttl * 2)).contains(&after), "after {after:?}");
    assert!(!is_lost(&a) && !is_lost(&b));
}

async fn a_stop_in_the_middle_of_a_registration_leaves_no_key(store: Shared) {
    let (leases, [a, b, c]) = three(&store).await;
    store.next_write(|| Fault::hold_answer(pending()));
    let claim = store.claim("d");
    {
        let mut stopped = std::pin::pin!(register(&leases, &claim, |_| Vec::new()));
        let put = async {
            while store.get("d").await.is_none() {
                sleep(TTL / 100).await;
            }
        };
        let others = [&a, &b, &c];
        tokio::select! {
            _ = &mut stopped => panic!("no response has come"),
            () = alive(&others, put) => {}
        }
    }
    alive(&[&a, &b, &c], only(&store, &["a", "b", "c"])).await;
    assert!(![a, b, c].iter().any(is_lost));
}

async fn a_registration_whose_response_was_lost_is_made_again_under_the_same_lease(store: Shared) {
    let (leases, [a, b, c]) = three(&store).await;
    store.next_write(|| Fault::LoseAnswer);
    let began = Instant::now();
    let d = register(&leases, &store.claim("d"), |_| Vec::new()).await;
    assert!(began.elapsed() < store.at_most(store.ttl / 2), "it does not wait for its own key to vanish");
    let key = store.get("d").await.unwrap();
    assert_eq!((key.create_revision, key.lease), (d.incarnation.revision(), Some(a.lease.id())));
    alive(&[&a, &b, &c, &d], sleep(store.ttl * 5 / 4)).await;
    only(&store, &["a", "b", "c", "d"]).await;
    assert!(!is_lost(&d));
}

macro_rules! on_both_stores {
    ($($case:ident,)*) => {
        mod memory {
            $(
                #[tokio::test(start_paused = true)]
                async fn $case() {
                    super::$case(super::Shared::memory()).await;
                }
            )*
        }
        mod etcd {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    super::$case(super::Shared::etcd()).await;
                }
            )*
        }
    };
}

on_both_stores! {
    they_share_a_lease_and_its_renewals_and_the_last_one_revokes_it,
    a_lease_that_another_revokes_is_lost_to_all_and_they_register_anew_under_one,
    a_registration_under_a_lease_that_has_ended_tells_the_others,
    a_stuck_participant_alone_loses_its_key_when_its_own_lease_would_have_ended,
    a_participant_whose_key_was_deleted_registers_anew_under_the_same_lease,
    a_dropped_participants_keys_go_and_not_before_its_lease_would_have_ended,
    a_stop_in_the_middle_of_a_registration_leaves_no_key,
    a_registration_whose_response_was_lost_is_made_again_under_the_same_lease,
}

#[tokio::test(start_paused = true)]
async fn a_participant_alone_makes_the_requests_of_a_lease_of_its_own() {
    let store = Shared::memory();
    let only = register(&store.leases(), &store.claim("only"), |_| Vec::new()).await;
    assert_eq!(store.counts(), [2, 1, 1, 0, 0, 0]);
    // A renewal at each sixth of the TTL.
    alive(&[&only], sleep(TTL + TTL / 12)).await;
    only.withdraw().await.unwrap();
    assert_eq!(store.counts(), [2, 1, 2, 6, 1, 0]);
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_expires_while_the_store_is_out_is_lost_to_all() {
    let memory = MemoryStore::new();
    let store = Shared::new(Arc::new(memory.clone()), TTL);
    let (_leases, [a, b, c]) = three(&store).await;
    memory.set_available(false);
    alive(&[&a, &b, &c], sleep(TTL * 2)).await;
    assert!(![&a, &b, &c].into_iter().any(is_lost), "nobody has said so");
    memory.set_available(true);
    alive(&[&a, &b, &c], async {
        join_all([lost(&a), lost(&b), lost(&c)]).await;
    })
    .await;
    assert!(store.keys().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_deletion_without_a_response_holds_up_no_confirmation() {
    let store = Shared::memory();
    let (_leases, [a, b, c]) = three(&store).await;
    drop(c);
    store.next_write(|| Fault::hold_answer(pending()));
    alive(&[&a, &b], only(&store, &["a", "b"])).await;
    // The renewal beside the deletion was sent since `only` looked the last time.
    let stands_until = a.lease.state().borrow().stands_until;
    assert!(stands_until > lease_now() + TTL - TTL / 50, "the share is {:?}", stands_until - lease_now());
}

#[tokio::test(start_paused = true)]
async fn a_name_that_a_participant_of_the_same_process_has_is_taken() {
    let store = Shared::memory();
    let (leases, [a, _b, _c]) = three(&store).await;
    let claim = store.claim("a");
    let second = register(&leases, &claim, |_| Vec::new());
    let waits = async { assert!(timeout(TTL * 2, second).await.is_err(), "two lives of one name") };
    alive(&[&a], waits).await;
    assert_eq!(store.get("a").await.unwrap().create_revision, a.incarnation.revision());
}
