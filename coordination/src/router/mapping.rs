//! Agrees with the keyspace on how requests map to partitions, before the router registers.

use std::sync::Arc;
use std::time::Duration;

use segue_protocol::ids::PartitionId;
use segue_protocol::keys::Keyspace;
use segue_protocol::mapping::{Agreement, agree, is_shown};
use segue_protocol::records::Partitioner;
use segue_protocol::txn::Keys;
use segue_protocol::view::View;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use super::RouterObserver;
use crate::session::{RepeatedLog, StoreRetry};
use crate::store::{Store, StoreError};

/// Longest time between two checks. A watch may be silent.
const RECHECK_INTERVAL: Duration = Duration::from_secs(1);

/// How a router maps requests to partitions.
pub(super) struct Mapping {
    store: Arc<dyn Store>,
    keys: Keyspace,
    /// `None` if something in front of the router maps.
    own: Option<Partitioner>,
    /// The largest number of partitions that any view has shown; under a key hash the first one.
    partitions: u32,
}

impl Mapping {
    pub(super) fn of(store: Arc<dyn Store>, keys: Keyspace, own: Option<Partitioner>) -> Self {
        Mapping { store, keys, own, partitions: 0 }
    }

    /// Returns the number of partitions. 0 before the first view.
    pub(super) fn partitions(&self) -> u32 {
        self.partitions
    }

    /// Returns all partitions.
    pub(super) fn all(&self) -> impl Iterator<Item = PartitionId> + use<> {
        PartitionId::all(self.partitions)
    }

    /// Returns once the settings contain this router's own mapping; `waits` is told why not until then. The router is not
    /// registered meanwhile, so that no handoff waits for a router that routes nothing. `known` is the last view. Cancel-safe.
    pub(super) async fn agree(&self, known: &View, observer: &dyn RouterObserver, waits: impl Fn(String)) {
        let Some(own) = &self.own else { return };
        let (mut back_off, mut log) = (StoreRetry::default(), RepeatedLog::default());
        let mut other = None;
        loop {
            match self.try_to_agree(own, known, &mut other, &mut log, &waits).await {
                Ok(agrees) => {
                    observer.mapping_differs(!agrees && other.is_some());
                    if agrees {
                        return;
                    }
                    back_off.reset();
                }
                Err(error) => {
                    if let Some(times) = log.note(&error) {
                        warn!(%error, times, "keyspace settings cannot be read; retrying");
                    }
                    waits(format!("the keyspace's settings are not known: {error}"));
                    sleep(back_off.next()).await;
                }
            }
        }
    }

    /// Checks the mapping once. Returns whether it agrees; if it does not, tells why and waits for a change. `other`: another
    /// mapping that this router has seen in the settings.
    async fn try_to_agree(
        &self,
        own: &Partitioner,
        known: &View,
        other: &mut Option<Partitioner>,
        log: &mut RepeatedLog,
        waits: impl Fn(String),
    ) -> Result<bool, StoreError> {
        let config = Keys::One(self.keys.config());
        let snapshot = self.store.snapshot(&config).await?;
        let revision = snapshot.revision;
        // Settings that were known before a registration was lost stay known.
        let mut view = known.clone();
        view.resync(View::from_snapshot(self.keys.clone(), snapshot));
        let standing = view.config.as_ref().and_then(|config| config.value.partitioner.as_ref());
        if let Some(standing) = standing {
            *other = Some(standing).filter(|standing| *standing != own).cloned();
        }
        let reason = match agree(&view, own, self.mapped_to(), other.as_ref()) {
            Agreement::Same => return Ok(true),
            Agreement::Write(txn) => {
                if self.store.commit(txn).await?.committed() {
                    info!("keyspace now maps requests to partitions by {own}");
                }
                // This router or another one has just written the mapping; the next check sees it.
                waits("the keyspace's settings have just been written".to_owned());
                return Ok(false);
            }
            Agreement::Wait(reason) => reason,
        };
        if other.is_some() && log.note_words(&reason).is_some() {
            warn!(reason, "keyspace maps requests to partitions in another way than this router; holding requests");
        }
        waits(reason);
        let mut changes = self.store.watch(&config, revision.next()).await?;
        match timeout(RECHECK_INTERVAL, changes.next()).await {
            Ok(change) => change.map(|_| false),
            Err(_) => Ok(false),
        }
    }

    /// Returns whether the settings contain another mapping than this router's, or none.
    pub(super) fn differs_from(&self, view: &View) -> bool {
        self.own.as_ref().is_some_and(|own| !is_shown(view, own, self.mapped_to()))
    }

    /// Returns the number of partitions by which this router has mapped requests. `None` before its first view.
    fn mapped_to(&self) -> Option<u32> {
        Some(self.partitions).filter(|partitions| *partitions > 0)
    }

    /// Takes the number of partitions of the view, unless that would change how this router maps keys. Settings that cannot
    /// be read leave it unchanged.
    pub(super) fn take_number(&mut self, view: &View) {
        let is_fixed = self.own.as_ref().is_some_and(Partitioner::fixes_number);
        if !is_fixed || self.partitions == 0 {
            self.partitions = self.partitions.max(view.partitions());
        }
    }
}
