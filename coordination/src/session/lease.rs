//! A lease that is kept alive while its holders' loops make progress, and what each holder may presume about it.
//!
//! Keepalives run in a task of their own, so a slow store call in a holder's loop costs no lease. They are sent only
//! while a loop has recently reported progress: a stuck holder loses its lease instead of blocking every handoff. If
//! others go on, the task deletes the stuck holder's key when a lease of its own would have ended. An unreachable store
//! is not a lost lease. Keepalives continue until the store says that the lease is gone; meanwhile the times limit what
//! the holder may presume. Once they have run out, the lease is trusted again only if the store has not gone back meanwhile.
//!
//! Elsewhere: who holds which lease ([`leases`](super::leases)), the times of each holder ([`holders`](segue_protocol::holders)).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::try_join_all;
use segue_protocol::holders::{HolderId, Holders, KeyState, LeftOver, RenewalTurn};
use segue_protocol::ids::{Incarnation, LeaseId};
use segue_protocol::keys::Keyspace;
use segue_protocol::lease::keepalive_interval;
use segue_protocol::registration::{OwnKeys, end};
use segue_protocol::txn::Keys;
use segue_protocol::view::View;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::task::AbortOnDropHandle;
use tracing::{debug, info, warn};

use super::clock::lease_now;
use super::shares::{LeaseHolders, LeaseState};
use crate::store::{SharedHorizon, Store, StoreError};

/// A lease that the store has granted, together with the task that keeps it alive. Dropping it stops the task and lets
/// the lease expire.
#[derive(Debug)]
pub(super) struct ProcessLease {
    id: LeaseId,
    store: Arc<dyn Store>,
    shares: Arc<LeaseHolders>,
    horizon: SharedHorizon,
    /// How often the store had gone back when the lease was asked for.
    times: u64,
    /// The keyspaces of the participants that have shared the lease.
    keyspaces: Arc<Mutex<Vec<Keyspace>>>,
    _keeper: AbortOnDropHandle<()>,
}

impl ProcessLease {
    /// Obtains a lease of `ttl` and keeps it alive, until the store goes back.
    pub(super) async fn grant(
        store: Arc<dyn Store>,
        horizon: SharedHorizon,
        ttl: Duration,
    ) -> Result<Arc<Self>, StoreError> {
        let (base, times) = (lease_now(), horizon.times());
        let id = store.grant(ttl).await?;
        let shares = Arc::new(LeaseHolders::new(base, ttl));
        let keyspaces = Arc::<Mutex<Vec<Keyspace>>>::default();
        let keeper = LeaseTask {
            store: store.clone(),
            id,
            ttl,
            shares: shares.clone(),
            horizon: horizon.clone(),
            times,
            keyspaces: keyspaces.clone(),
        };
        let went_back = horizon.clone();
        let keeper = async move {
            tokio::select! {
                biased;
                // Keys that a participant cannot delete end with the lease, which is renewed no more.
                () = went_back.beyond(times) => keeper.shares.decide(Holders::lose),
                () = keeper.run() => {}
            }
        };
        let keeper = AbortOnDropHandle::new(tokio::spawn(keeper));
        Ok(Arc::new(ProcessLease { id, store, shares, horizon, times, keyspaces, _keeper: keeper }))
    }

    /// Returns whether the store has gone back since this lease was asked for.
    pub(super) fn is_past(&self) -> bool {
        self.horizon.times() > self.times
    }

    /// Returns whether an attempt of this process has put this key under this lease without learning of it.
    pub(super) fn has_forgotten(&self, key: &str, lease: LeaseId) -> bool {
        lease == self.id && !self.shares.decide(|holders| holders.has(key))
    }
}

/// A participant's share in a lease. Dropping it ends the share: the participant's key is deleted when a lease of its
/// own would have ended.
#[derive(Debug)]
pub struct KeptLease {
    lease: Arc<ProcessLease>,
    holder: HolderId,
    state: watch::Receiver<LeaseState>,
}

impl KeptLease {
    /// Joins the holders of a lease, as a participant in this keyspace. `None` if the lease is over.
    pub(super) fn join(lease: Arc<ProcessLease>, keyspace: &Keyspace, keys: OwnKeys) -> Option<Self> {
        let mut keyspaces = lock(&lease.keyspaces);
        if !keyspaces.contains(keyspace) {
            keyspaces.push(keyspace.clone());
        }
        drop(keyspaces);
        let (holder, state) = lease.shares.join(keys)?;
        Some(KeptLease { lease, holder, state })
    }

    /// Returns the store's identifier of the lease.
    pub fn id(&self) -> LeaseId {
        self.lease.id
    }

    /// Returns the store that granted the lease.
    pub(super) fn store(&self) -> &Arc<dyn Store> {
        &self.lease.store
    }

    /// Returns what the process has seen of that store.
    pub(super) fn horizon(&self) -> &SharedHorizon {
        &self.lease.horizon
    }

    /// Returns how often the store had gone back when the lease was asked for.
    pub(super) fn times(&self) -> u64 {
        self.lease.times
    }

    /// Returns whether the store has gone back since then.
    pub(crate) fn is_past(&self) -> bool {
        self.lease.is_past()
    }

    /// Reports that the holder's loop has made progress.
    pub fn made_progress(&self) {
        self.lease.shares.made_progress(self.holder);
    }

    /// Reports that the holder's loop turns: it makes progress if it is `sighted`, and otherwise waits for the store.
    pub(crate) fn turns(&self, sighted: bool) {
        match sighted {
            true => self.made_progress(),
            false => self.lease.shares.waits_for_the_store(self.holder),
        }
    }

    /// Returns a channel with the known state of the lease.
    pub fn state(&self) -> watch::Receiver<LeaseState> {
        self.state.clone()
    }

    /// Records whether the participant's key exists.
    pub(super) fn set_registered(&self, registered: KeyState) {
        self.lease.shares.decide(|holders| holders.set_registered(self.holder, registered));
    }

    /// Records that the store has ended the lease.
    pub(super) fn is_gone(&self) {
        self.lease.shares.decide(|holders| holders.end());
    }

    /// Ends the share, and the lease if nobody else has one. The caller must have fenced itself before. A key that it
    /// could not delete is deleted with the lease, or by the task that keeps the lease alive.
    pub(super) async fn leave(self) -> Result<(), StoreError> {
        let shares = &self.lease.shares;
        let is_last = shares.decide(|holders| holders.leave(self.holder, shares.micros(lease_now())));
        if is_last { self.lease.store.revoke(self.lease.id).await } else { Ok(()) }
    }
}

impl Drop for KeptLease {
    fn drop(&mut self) {
        self.lease.shares.decide(|holders| holders.drop_out(self.holder));
    }
}

/// The task that keeps a lease alive.
struct LeaseTask {
    store: Arc<dyn Store>,
    id: LeaseId,
    ttl: Duration,
    shares: Arc<LeaseHolders>,
    horizon: SharedHorizon,
    times: u64,
    keyspaces: Arc<Mutex<Vec<Keyspace>>>,
}

fn lock(keyspaces: &Mutex<Vec<Keyspace>>) -> MutexGuard<'_, Vec<Keyspace>> {
    keyspaces.lock().unwrap_or_else(PoisonError::into_inner)
}

impl LeaseTask {
    async fn run(&self) {
        let interval = Duration::from_micros(keepalive_interval(self.ttl.as_micros() as u64));
        // A response later than the next turn would confirm no more than that turn's does.
        let patience = interval.max(Duration::from_millis(500));
        let mut due = Instant::now() + interval;
        let mut known_stuck: Vec<String> = Vec::new();
        loop {
            sleep_until(due).await;
            let sent = self.shares.micros(lease_now());
            // The interval counts from when this keepalive is sent, so that an unanswered one is followed by the next
            // at once. If the wait for the response were added, two lost keepalives would cost the trust.
            due = Instant::now() + interval;
            let RenewalTurn { renewed, stuck, left } = self.shares.decide(|holders| holders.turn(sent));
            for key in stuck.iter().filter(|key| !known_stuck.contains(key)) {
                warn!(lease = self.id.get(), key, "control loop makes no progress; lease not renewed");
            }
            known_stuck = stuck;
            // A deletion without a response holds up no confirmation.
            let deletions = timeout(patience, self.delete_all(left));
            let renewal = async { !renewed.is_empty() && self.renew(sent, &renewed, patience).await };
            let (is_over, _) = tokio::join!(renewal, deletions);
            if is_over {
                return;
            }
        }
    }

    /// Renews the lease. Returns whether it is over.
    async fn renew(&self, sent: u64, renewed: &[HolderId], patience: Duration) -> bool {
        if self.shares.decide(|holders| holders.trust_is_over(sent)) {
            match timeout(patience, self.went_back()).await {
                Ok(Ok(false)) => {}
                Ok(Ok(true)) => {
                    self.shares.decide(Holders::lose);
                    return false;
                }
                Ok(Err(error)) => {
                    debug!(%error, "store cannot be asked whether it went back; lease not renewed");
                    return false;
                }
                Err(_) => return false,
            }
        }
        match timeout(patience, self.store.keep_alive(self.id)).await {
            Ok(Ok(())) => self.shares.decide(|holders| holders.confirm(sent, renewed)),
            Ok(Err(StoreError::LeaseNotFound)) => {
                self.shares.decide(|holders| holders.end());
                return true;
            }
            Ok(Err(error)) => debug!(%error, "keepalive failed"),
            Err(_) => debug!("keepalive unanswered"),
        }
        false
    }

    /// Returns whether the store went back while it was away. A store that is restored brings leases back, and with a lease
    /// that is trusted again a pod would accept what it owned before, until its view is up to date.
    async fn went_back(&self) -> Result<bool, StoreError> {
        let keyspaces: Vec<Keyspace> = lock(&self.keyspaces).clone();
        // Together: a process may have many keyspaces, and the lease does not wait.
        let views = try_join_all(keyspaces.into_iter().map(|keyspace| async {
            let config = self.store.snapshot(&Keys::One(keyspace.config())).await?;
            Ok::<View, StoreError>(View::from_snapshot(keyspace, config))
        }));
        let views: Vec<View> = views.await?;
        let is_raised = |view| self.horizon.lock().is_raised(view);
        Ok(self.horizon.times() > self.times || views.iter().any(is_raised))
    }

    async fn delete_all(&self, left: Vec<LeftOver>) {
        for left in left {
            match self.delete(&left).await {
                Ok(()) => {
                    info!(key = left.keys.key, "registration of a participant that has ended deleted");
                    self.shares.decide(|holders| holders.set_deleted(&left));
                }
                Err(error) => {
                    warn!(key = left.keys.key, %error, "registration of a participant that has ended cannot be deleted; retrying");
                }
            }
        }
    }

    async fn delete(&self, left: &LeftOver) -> Result<(), StoreError> {
        let incarnation = match left.registered {
            KeyState::No => return Ok(()),
            KeyState::Since(incarnation) => incarnation,
            KeyState::Perhaps => {
                let seen = self.store.snapshot(&Keys::One(left.keys.key.clone())).await?;
                let put_by_us = seen.entries.into_iter().find(|entry| entry.lease == Some(self.id));
                match put_by_us {
                    // The next attempt may have begun meanwhile, and the key may be its own.
                    Some(entry) if self.shares.decide(|holders| holders.is_left_over(left)) => {
                        Incarnation::registered_at(entry.create_revision)
                    }
                    _ => return Ok(()),
                }
            }
        };
        self.store.commit(end(&left.keys, incarnation)).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use segue_protocol::txn::{Op, Txn};
    use tokio::sync::mpsc;
    use tokio::time::sleep;

    use super::*;
    use crate::session::{count_by_tokio, suspend};
    use crate::store::{Fault, FaultyStore, HorizonStore, MemoryStore, StoreCall};

    async fn own_lease(store: Arc<dyn Store>, ttl: Duration) -> KeptLease {
        let keys = OwnKeys { key: "/key".to_owned(), also: Vec::new() };
        let store = Arc::new(HorizonStore::new(store));
        let horizon = store.shared().clone();
        let keyspace = Keyspace::new("/segue/", "test");
        KeptLease::join(ProcessLease::grant(store, horizon, ttl).await.unwrap(), &keyspace, keys).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn two_renewals_without_an_answer_cost_no_trust() {
        for ttl in [3, 15].map(Duration::from_secs) {
            let store = Arc::new(FaultyStore::new(Arc::new(MemoryStore::new())));
            store.next(2, |call| matches!(call, StoreCall::KeepAlive), || Fault::Silence);
            let lease = own_lease(store, ttl).await;
            let granted = Instant::now();
            while granted.elapsed() < ttl * 2 {
                lease.made_progress();
                assert!(lease_now() < lease.state().borrow().trusted_until, "after {:?}", granted.elapsed());
                sleep(ttl / 100).await;
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn trust_counts_from_when_a_renewal_was_sent_and_does_not_outlast_a_suspension() {
        count_by_tokio();
        let ttl = Duration::from_secs(15);
        let lease = own_lease(Arc::new(MemoryStore::new()), ttl).await;
        let state = lease.state();
        assert!(lease_now() < state.borrow().trusted_until);
        suspend(ttl * 2 / 3);
        assert!(lease_now() >= state.borrow().trusted_until, "no time has passed on any other clock");
        // The next renewal is answered, and counts from after the suspension.
        lease.made_progress();
        sleep(ttl / 5).await;
        assert!(lease_now() < state.borrow().trusted_until);
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_that_was_not_confirmed_for_long_is_not_trusted_again_if_the_store_went_back() {
        count_by_tokio();
        let (ttl, keyspace) = (Duration::from_secs(15), Keyspace::new("/segue/", "test"));
        let settings = |epoch_floor: u64| {
            let value = format!(r#"{{"partitions":4,"epoch_floor":{epoch_floor}}}"#).into_bytes();
            Txn::guarded([], [Op::put(keyspace.config(), value)])
        };
        for others_have_seen_it in [false, true] {
            let memory = MemoryStore::new();
            let faulty = Arc::new(FaultyStore::new(Arc::new(memory.clone())));
            let lease = own_lease(faulty.clone(), ttl).await;
            let backup = memory.back_up();
            lease.store().commit(settings(0)).await.unwrap();
            let seen = lease.store().snapshot(&keyspace.followed()).await.unwrap();
            lease.horizon().lock().saw_floor(&View::from_snapshot(keyspace.clone(), seen));
            faulty.set_rule(|_| Fault::Fail);
            let away = Instant::now();
            while away.elapsed() < ttl * 4 / 5 {
                lease.made_progress();
                sleep(ttl / 100).await;
            }
            memory.restore(&backup);
            if others_have_seen_it {
                for floor in [0, 100] {
                    memory.commit(settings(floor)).await.unwrap();
                }
            }
            faulty.pass();
            let state = lease.state();
            while !state.borrow().lost {
                lease.made_progress();
                sleep(ttl / 100).await;
                assert!(lease_now() >= state.borrow().trusted_until, "seen by others: {others_have_seen_it}");
            }
        }
    }

    /// Returns the trusted and the valid end of a lease that was confirmed by a request sent at this moment.
    fn believed(sent: Instant, ttl: Duration) -> (Instant, Instant) {
        (sent + ttl / 3 * 2, sent + ttl)
    }

    #[tokio::test(start_paused = true)]
    async fn the_lease_clock_counts_from_when_a_request_was_sent_and_not_from_its_answer() {
        count_by_tokio();
        let ttl = Duration::from_secs(15);
        let takes = Duration::from_secs(2);
        let slow = Arc::new(FaultyStore::new(Arc::new(MemoryStore::new())));
        let (asks, mut asked) = mpsc::unbounded_channel();
        slow.set_rule(move |_| {
            asks.send(Instant::now()).unwrap();
            Fault::hold_answer(sleep(takes))
        });
        let lease = own_lease(slow, ttl).await;
        let sent = asked.recv().await.unwrap();
        let known = *lease.state().borrow();
        assert_eq!((known.trusted_until, known.stands_until), believed(sent, ttl), "the grant");
        let mut state = lease.state();
        for renewal in 0..5 {
            lease.made_progress();
            state.changed().await.unwrap();
            let known = *state.borrow();
            let sent = asked.recv().await.unwrap();
            assert!(Instant::now() >= sent + takes);
            assert_eq!((known.trusted_until, known.stands_until), believed(sent, ttl), "renewal {renewal}");
        }
    }
}
