//! Registration: a key of one's own that stands as long as one's lease, and whose `create_revision` is this life's name.
//!
//! Create-only. A key that stands already belongs to another life: one that has not ended yet, or another process of the
//! same name. Nobody's key is ever replaced or deleted here; one waits until it vanishes with its lease.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;
use tracing::{info, warn};

use super::{BackOff, KeptLease};
use crate::store::data::{Compare, Keys, LeaseId, Op, Revision, Txn};
use crate::store::{Store, StoreError};

/// A standing registration.
#[derive(Debug)]
pub struct Registration {
    /// The key.
    pub key: String,
    /// This life's name: the key's `create_revision`.
    pub incarnation: Revision,
    /// The lease that it stands with.
    pub lease: KeptLease,
}

/// Registers under `key` with the value that `value` makes of the lease, waiting as long as the store is out of reach or another life's key stands. Cancel-safe: a
/// lease that was granted on the way ends by itself.
pub async fn register(
    store: &Arc<dyn Store>,
    key: &str,
    value: impl Fn(LeaseId) -> Vec<u8>,
    ttl: Duration,
) -> Registration {
    let mut back_off = BackOff::default();
    let mut told = false;
    loop {
        match try_register(store, key, &value, ttl).await {
            Ok(Some(registration)) => {
                info!(key, incarnation = registration.incarnation, "registered");
                return registration;
            }
            Ok(None) => {
                if !std::mem::replace(&mut told, true) {
                    info!(key, "an earlier life's registration still stands: waiting until its lease ends");
                }
                if let Err(error) = vanished(store, key, ttl).await {
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

async fn try_register(
    store: &Arc<dyn Store>,
    key: &str,
    value: impl Fn(LeaseId) -> Vec<u8>,
    ttl: Duration,
) -> Result<Option<Registration>, StoreError> {
    let one = Keys::One(key.to_owned());
    // A standing key would cost a lease for nothing.
    if !store.snapshot(&one).await?.entries.is_empty() {
        return Ok(None);
    }
    let lease = KeptLease::grant(store.clone(), ttl).await?;
    let txn = Txn {
        when: vec![Compare::created_at(key, 0)],
        then: vec![Op::Put { key: key.to_owned(), value: value(lease.id()), lease: Some(lease.id()) }],
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
        return Ok(None);
    }
    lease.made_progress();
    Ok(Some(Registration { key: key.to_owned(), incarnation: outcome.revision, lease }))
}

/// Returns once the key is gone, or after a while to look again.
async fn vanished(store: &Arc<dyn Store>, key: &str, ttl: Duration) -> Result<(), StoreError> {
    let one = Keys::One(key.to_owned());
    let snapshot = store.snapshot(&one).await?;
    if snapshot.entries.is_empty() {
        return Ok(());
    }
    let mut watch = store.watch(&one, snapshot.revision + 1).await?;
    match tokio::time::timeout(ttl.max(Duration::from_secs(1)), watch.next()).await {
        Ok(batch) => batch.map(drop),
        Err(_) => Ok(()),
    }
}
