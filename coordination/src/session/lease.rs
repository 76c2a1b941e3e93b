//! A lease that is kept alive while its holder's loop makes progress, and what the holder may presume about it.
//!
//! Keepalives run in a task of their own, so a slow store call in the holder's loop costs no lease. They are sent only
//! while that loop has recently reported progress: a stuck holder loses its lease instead of blocking every handoff. An
//! unreachable store is not a lost lease. Keepalives continue until the store says that the lease is gone; meanwhile
//! the times limit what the holder may presume.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use segue_protocol::ids::LeaseId;
use segue_protocol::lease::{LeaseTimes, has_made_progress, keepalive_interval};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::task::AbortOnDropHandle;
use tracing::{debug, warn};

use super::clock::lease_now;
use crate::store::{Store, StoreError};

/// The known state of a lease. Its moments are on the clock of [`lease_now`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseState {
    /// New work may begin before this moment.
    pub trusted_until: Instant,
    /// The lease is valid at least until this moment.
    pub stands_until: Instant,
    /// The store has said that the lease is gone. An unreachable store leaves this `false` for ever; the times above
    /// then limit what may be presumed.
    pub lost: bool,
}

/// A lease together with the task that keeps it alive. Dropping it stops the task and lets the lease expire.
#[derive(Debug)]
pub struct KeptLease {
    id: LeaseId,
    store: Arc<dyn Store>,
    state: watch::Receiver<LeaseState>,
    progress: Arc<AtomicU64>,
    base: Instant,
    _keeper: AbortOnDropHandle<()>,
}

impl KeptLease {
    /// Obtains a lease of `ttl` and keeps it alive.
    pub async fn grant(store: Arc<dyn Store>, ttl: Duration) -> Result<Self, StoreError> {
        let base = lease_now();
        let id = store.grant(ttl).await?;
        let (sender, state) = watch::channel(state_of(base, 0, ttl));
        let progress = Arc::new(AtomicU64::new(0));
        let keeper = tokio::spawn(keep(store.clone(), id, ttl, base, progress.clone(), sender));
        Ok(KeptLease { id, store, state, progress, base, _keeper: AbortOnDropHandle::new(keeper) })
    }

    /// Returns the store's identifier of the lease.
    pub fn id(&self) -> LeaseId {
        self.id
    }

    /// Returns the store that granted the lease.
    pub(crate) fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Reports that the holder's loop has made progress.
    pub fn made_progress(&self) {
        self.progress.store(micros(self.base, lease_now()), Relaxed);
    }

    /// Returns a channel with the known state of the lease.
    pub fn state(&self) -> watch::Receiver<LeaseState> {
        self.state.clone()
    }

    /// Ends the lease and deletes its keys. The caller must have fenced itself before.
    pub async fn revoke(self) -> Result<(), StoreError> {
        self.store.revoke(self.id).await
    }
}

async fn keep(
    store: Arc<dyn Store>,
    id: LeaseId,
    ttl: Duration,
    base: Instant,
    progress: Arc<AtomicU64>,
    state: watch::Sender<LeaseState>,
) {
    let ttl_micros = ttl.as_micros() as u64;
    let interval = Duration::from_micros(keepalive_interval(ttl_micros));
    let mut due = Instant::now() + interval;
    loop {
        sleep_until(due).await;
        let sent = micros(base, lease_now());
        let now = Instant::now();
        // The interval counts from when this keepalive is sent, so that an unanswered one is followed by the next at
        // once. If the wait for the response were added, two lost keepalives would cost the trust.
        due = now + interval;
        let mut known = *state.borrow();
        if has_made_progress(sent, progress.load(Relaxed), ttl_micros) {
            // A response later than the next turn would confirm no more than that turn's does.
            match timeout(interval.max(Duration::from_millis(500)), store.keep_alive(id)).await {
                Ok(Ok(())) => {
                    state.send_replace(state_of(base, sent, ttl));
                    continue;
                }
                Ok(Err(StoreError::LeaseNotFound)) => known.lost = true,
                Ok(Err(error)) => debug!(%error, "keepalive failed"),
                Err(_) => debug!("keepalive unanswered"),
            }
        } else {
            warn!(lease = id.get(), "control loop makes no progress; lease not renewed");
        }
        if known.lost {
            state.send_replace(known);
            return;
        }
    }
}

fn micros(base: Instant, at: Instant) -> u64 {
    at.saturating_duration_since(base).as_micros() as u64
}

fn state_of(base: Instant, sent: u64, ttl: Duration) -> LeaseState {
    let times = LeaseTimes::confirmed(sent, ttl.as_micros() as u64);
    LeaseState {
        trusted_until: base + Duration::from_micros(times.trusted_until),
        stands_until: base + Duration::from_micros(times.stands_until),
        lost: false,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::AtomicU32;

    use async_trait::async_trait;
    use segue_protocol::ids::Revision;
    use segue_protocol::txn::{Keys, Snapshot, Txn, TxnOutcome};
    use tokio::time::sleep;

    use super::*;
    use crate::session::{count_by_tokio, suspend};
    use crate::store::{MemoryStore, Watch};

    /// A store with slow lease responses.
    #[derive(Debug, Default)]
    struct Slow {
        store: MemoryStore,
        /// Number of renewals that get no response.
        unanswered: AtomicU32,
        /// The delay of each response. The grant or renewal itself takes effect at once.
        takes: Duration,
        /// The arrival times of renewals.
        renewals: Mutex<Vec<Instant>>,
    }

    #[async_trait]
    impl Store for Slow {
        async fn snapshot(&self, keys: &Keys) -> Result<Snapshot, StoreError> {
            self.store.snapshot(keys).await
        }
        async fn watch(&self, keys: &Keys, from: Revision) -> Result<Watch, StoreError> {
            self.store.watch(keys, from).await
        }
        async fn commit(&self, txn: Txn) -> Result<TxnOutcome, StoreError> {
            self.store.commit(txn).await
        }
        async fn grant(&self, ttl: Duration) -> Result<LeaseId, StoreError> {
            let lease = self.store.grant(ttl).await;
            sleep(self.takes).await;
            lease
        }
        async fn keep_alive(&self, lease: LeaseId) -> Result<(), StoreError> {
            self.renewals.lock().unwrap().push(Instant::now());
            if self.unanswered.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok() {
                std::future::pending::<()>().await;
            }
            let renewed = self.store.keep_alive(lease).await;
            sleep(self.takes).await;
            renewed
        }
        async fn revoke(&self, lease: LeaseId) -> Result<(), StoreError> {
            self.store.revoke(lease).await
        }
    }

    #[tokio::test(start_paused = true)]
    async fn two_renewals_without_an_answer_cost_no_trust() {
        for ttl in [3, 15].map(Duration::from_secs) {
            let store: Arc<dyn Store> = Arc::new(Slow { unanswered: AtomicU32::new(2), ..Slow::default() });
            let lease = KeptLease::grant(store, ttl).await.unwrap();
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
        let lease = KeptLease::grant(Arc::new(MemoryStore::new()), ttl).await.unwrap();
        let state = lease.state();
        assert!(lease_now() < state.borrow().trusted_until);
        suspend(ttl * 2 / 3);
        assert!(lease_now() >= state.borrow().trusted_until, "no time has passed on any other clock");
        // The next renewal is answered, and counts from after the suspension.
        lease.made_progress();
        sleep(ttl / 5).await;
        assert!(lease_now() < state.borrow().trusted_until);
    }

    /// Returns the trusted and the valid end of a lease that was confirmed by a request sent at this moment.
    fn believed(sent: Instant, ttl: Duration) -> (Instant, Instant) {
        (sent + ttl / 3 * 2, sent + ttl)
    }

    #[tokio::test(start_paused = true)]
    async fn the_lease_clock_counts_from_when_a_request_was_sent_and_not_from_its_answer() {
        count_by_tokio();
        let ttl = Duration::from_secs(15);
        let slow = Arc::new(Slow { takes: Duration::from_secs(2), ..Slow::default() });
        let asked = Instant::now();
        let lease = KeptLease::grant(slow.clone(), ttl).await.unwrap();
        let known = *lease.state().borrow();
        assert_eq!((known.trusted_until, known.stands_until), believed(asked, ttl), "the grant");
        let mut state = lease.state();
        for renewal in 0..5 {
            lease.made_progress();
            state.changed().await.unwrap();
            let known = *state.borrow();
            let sent = slow.renewals.lock().unwrap()[renewal];
            assert!(Instant::now() >= sent + slow.takes);
            assert_eq!((known.trusted_until, known.stands_until), believed(sent, ttl), "renewal {renewal}");
        }
    }
}
