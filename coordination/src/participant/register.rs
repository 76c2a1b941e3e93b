//! Registration: a key of one's own that stands as long as one's lease, and whose `create_revision` is this life's name.
//!
//! Create-only. A key that stands already belongs to another life: one that has not ended yet, or another process of the
//! same name. One waits until it vanishes with its lease. Two keys are cleared away: one of this process's own earlier
//! life, which has fenced itself, and a leader's without a lease, because every write of a leader is guarded by it.

use std::sync::Arc;
use std::time::Duration;

use segue_protocol::ids::{Incarnation, LeaseId, Revision};
use segue_protocol::registration::{clear, withdraw};
use segue_protocol::txn::{Compare, Keys, Op, Txn};
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use super::{KeptLease, StoreRetry};
use crate::store::{Store, StoreError};

/// How long the store may take to end a registration.
const WITHDRAW: Duration = Duration::from_secs(2);

/// A key to be registered, and the conditions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    key: String,
    ttl: Duration,
    ended: Incarnation,
    clears_leaseless: bool,
}

impl Claim {
    /// A claim to this key with a lease of this TTL.
    pub fn new(key: impl Into<String>, ttl: Duration) -> Self {
        Claim { key: key.into(), ttl, ended: Incarnation::NONE, clears_leaseless: false }
    }

    /// The same by a process whose earlier life `incarnation` has fenced itself: its key is deleted if it still stands.
    /// 0: there was none.
    pub fn after(self, incarnation: Incarnation) -> Self {
        Claim { ended: incarnation, ..self }
    }

    /// The same to a key that means nothing without a lease: one that stands so is deleted, whoever put it there.
    pub fn clearing_leaseless(self) -> Self {
        Claim { clears_leaseless: true, ..self }
    }
}

/// A standing registration.
#[derive(Debug)]
pub struct Registration {
    /// The key.
    pub key: String,
    /// This life's name: the key's `create_revision`.
    pub incarnation: Incarnation,
    /// The lease that it stands with.
    pub lease: KeptLease,
}

impl Registration {
    /// Ends the registration: the key, even if it stands without its lease, and the lease. The participant must have fenced
    /// itself before. Takes at most 2 s: without the store the lease ends by itself.
    pub async fn withdraw(self) -> Result<(), StoreError> {
        let withdrawn = async {
            let deleted = self.lease.store().commit(withdraw(&self.key, self.incarnation)).await;
            self.lease.revoke().await.and(deleted.map(drop))
        };
        let no_answer = || StoreError::Unavailable(format!("no answer within {WITHDRAW:?}"));
        timeout(WITHDRAW, withdrawn).await.unwrap_or_else(|_| Err(no_answer()))
    }
}

/// Registers with the value that `value` makes of the lease, waiting as long as the store is out of reach or another
/// life's key stands. Cancel-safe: a lease that was granted on the way ends by itself.
pub async fn register(store: &Arc<dyn Store>, claim: &Claim, value: impl Fn(LeaseId) -> Vec<u8>) -> Registration {
    let key = &claim.key;
    let mut back_off = StoreRetry::default();
    let mut told = false;
    loop {
        match try_register(store, claim, &value).await {
            Ok(Attempt::Registered(registration)) => {
                info!(key, incarnation = registration.incarnation.get(), "registered");
                return registration;
            }
            Ok(Attempt::Cleared) => {}
            Ok(Attempt::Taken(lease)) => {
                if !std::mem::replace(&mut told, true) {
                    match lease {
                        Some(_) => {
                            info!(key, "an earlier life's registration still stands: waiting until its lease ends")
                        }
                        None => warn!(
                            key,
                            "a registration stands that never ends by itself: another hand has detached it from its \
                             lease. If its process is gone, delete it with `segue forget`"
                        ),
                    }
                }
                if let Err(error) = vanished(store, key, claim.ttl).await {
                    warn!(key, %error, "cannot watch the earlier registration; trying again");
                    sleep(back_off.next()).await;
                }
            }
            Err(error) => {
                warn!(key, %error, "cannot register; trying again");
                sleep(back_off.next()).await;
            }
        }
    }
}

enum Attempt {
    Registered(Registration),
    /// Something stood in the way and does not any more.
    Cleared,
    /// Another life's key stands, with this lease.
    Taken(Option<LeaseId>),
}

async fn try_register(
    store: &Arc<dyn Store>,
    claim: &Claim,
    value: impl Fn(LeaseId) -> Vec<u8>,
) -> Result<Attempt, StoreError> {
    let key = &claim.key;
    // A standing key would cost a lease for nothing.
    if let Some(standing) = store.snapshot(&Keys::One(key.clone())).await?.entries.into_iter().next() {
        let clear = if standing.create_revision == claim.ended.revision() {
            withdraw(key, claim.ended)
        } else if claim.clears_leaseless && standing.lease.is_none() {
            clear(key, standing.mod_revision)
        } else {
            return Ok(Attempt::Taken(standing.lease));
        };
        store.commit(clear).await?;
        return Ok(Attempt::Cleared);
    }
    let lease = KeptLease::grant(store.clone(), claim.ttl).await?;
    let txn = Txn {
        when: vec![Compare::created_at(key, Revision::ZERO)],
        then: vec![Op::Put { key: key.clone(), value: value(lease.id()), lease: Some(lease.id()) }],
        otherwise: None,
    };
    let outcome = match store.commit(txn).await {
        Ok(outcome) => outcome,
        Err(error) => {
            // Committed or not, this lease's key must not stand in the way of the next try.
            let _ = lease.revoke().await;
            return Err(error);
        }
    };
    if !outcome.committed() {
        let _ = lease.revoke().await;
        return Ok(Attempt::Cleared);
    }
    lease.made_progress();
    Ok(Attempt::Registered(Registration {
        key: key.clone(),
        incarnation: Incarnation::registered_at(outcome.revision),
        lease,
    }))
}

/// Returns once the key is gone, or after a while to look again.
async fn vanished(store: &Arc<dyn Store>, key: &str, ttl: Duration) -> Result<(), StoreError> {
    let one = Keys::One(key.to_owned());
    let snapshot = store.snapshot(&one).await?;
    if snapshot.entries.is_empty() {
        return Ok(());
    }
    let mut watch = store.watch(&one, snapshot.revision.next()).await?;
    match timeout(ttl.max(Duration::from_secs(1)), watch.next()).await {
        Ok(batch) => batch.map(drop),
        Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

    use async_trait::async_trait;
    use segue_protocol::txn::{Snapshot, TxnOutcome};
    use tokio::time::Instant;

    use super::*;
    use crate::store::{MemoryStore, Watch};

    /// A store that may stop answering writes.
    #[derive(Debug, Default)]
    struct Mute {
        store: MemoryStore,
        on: AtomicBool,
    }

    impl Mute {
        async fn answers(&self) {
            if self.on.load(SeqCst) {
                std::future::pending::<()>().await;
            }
        }
    }

    #[async_trait]
    impl Store for Mute {
        async fn snapshot(&self, keys: &Keys) -> Result<Snapshot, StoreError> {
            self.store.snapshot(keys).await
        }
        async fn watch(&self, keys: &Keys, from: Revision) -> Result<Watch, StoreError> {
            self.store.watch(keys, from).await
        }
        async fn commit(&self, txn: Txn) -> Result<TxnOutcome, StoreError> {
            self.answers().await;
            self.store.commit(txn).await
        }
        async fn grant(&self, ttl: Duration) -> Result<LeaseId, StoreError> {
            self.store.grant(ttl).await
        }
        async fn keep_alive(&self, lease: LeaseId) -> Result<(), StoreError> {
            self.store.keep_alive(lease).await
        }
        async fn revoke(&self, lease: LeaseId) -> Result<(), StoreError> {
            self.answers().await;
            self.store.revoke(lease).await
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_does_not_answer_holds_up_no_end() {
        let mute = Arc::new(Mute::default());
        let store: Arc<dyn Store> = mute.clone();
        let registration = register(&store, &Claim::new("/key", Duration::from_secs(15)), |_| Vec::new()).await;
        mute.on.store(true, SeqCst);
        let began = Instant::now();
        let withdrawn = timeout(Duration::from_secs(60), registration.withdraw()).await.expect("it ends");
        assert!(matches!(withdrawn, Err(StoreError::Unavailable(_))), "{withdrawn:?}");
        assert!(began.elapsed() <= Duration::from_secs(2), "after {:?}", began.elapsed());
    }
}
