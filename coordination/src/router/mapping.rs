//! Agrees with the keyspace on how requests map to partitions, before the router registers.

use std::time::Duration;

use segue_protocol::mapping::{Agreement, agree, is_shown};
use segue_protocol::records::Partitioner;
use segue_protocol::txn::Keys;
use segue_protocol::view::View;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use super::driver::Router;
use crate::session::{RepeatedLog, StoreRetry};
use crate::store::StoreError;

/// Longest time between two checks. A watch may be silent.
const RECHECK_INTERVAL: Duration = Duration::from_secs(1);

impl Router {
    /// Returns once the settings contain this router's own mapping. Until then the router is not registered, so that no
    /// handoff waits for a router that routes nothing. Cancel-safe.
    pub(super) async fn agree_on_mapping(&self) {
        let Some(own) = &self.settings.partitioner else { return };
        let (mut back_off, mut log) = (StoreRetry::default(), RepeatedLog::default());
        let mut other = None;
        loop {
            match self.try_to_agree(own, &mut other).await {
                Ok(None) => return,
                Ok(Some(reason)) => {
                    back_off.reset();
                    self.publish(Some(reason));
                }
                Err(error) => {
                    if log.is_due(&error) {
                        warn!(%error, "keyspace settings cannot be read; retrying");
                    }
                    self.publish(Some(format!("the keyspace's settings are not known: {error}")));
                    sleep(back_off.next()).await;
                }
            }
        }
    }

    /// Checks the mapping once. Returns `None` if it agrees; otherwise waits for a change and returns the reason. `other`: another
    /// mapping that this router has seen in the settings.
    async fn try_to_agree(
        &self,
        own: &Partitioner,
        other: &mut Option<Partitioner>,
    ) -> Result<Option<String>, StoreError> {
        let config = Keys::One(self.keys.config());
        let snapshot = self.store.snapshot(&config).await?;
        let revision = snapshot.revision;
        // Settings that were known before a registration was lost stay known.
        let mut view = self.view.clone();
        view.resync(View::from_snapshot(self.keys.clone(), snapshot));
        let standing = view.config.as_ref().and_then(|config| config.value.partitioner.as_ref());
        if let Some(standing) = standing {
            *other = Some(standing).filter(|standing| *standing != own).cloned();
        }
        let reason = match agree(&view, own, self.mapped_to(), other.as_ref()) {
            Agreement::Same => return Ok(None),
            Agreement::Write(txn) => {
                if self.store.commit(txn).await?.committed() {
                    info!("keyspace now maps requests to partitions by {own}");
                }
                // This router or another one has just written the mapping; the next check sees it.
                return Ok(Some("the keyspace's settings have just been written".to_owned()));
            }
            Agreement::Wait(reason) => reason,
        };
        self.publish(Some(reason.clone()));
        let mut changes = self.store.watch(&config, revision.next()).await?;
        match timeout(RECHECK_INTERVAL, changes.next()).await {
            Ok(change) => change.map(|_| Some(reason)),
            Err(_) => Ok(Some(reason)),
        }
    }

    /// Returns whether the settings contain another mapping than this router's, or none.
    pub(super) fn maps_otherwise(&self) -> bool {
        self.settings.partitioner.as_ref().is_some_and(|own| !is_shown(&self.view, own, self.mapped_to()))
    }

    /// Returns the number of partitions by which this router has mapped requests. `None` before its first view.
    fn mapped_to(&self) -> Option<u32> {
        Some(self.partitions).filter(|partitions| *partitions > 0)
    }

    /// Takes the number of partitions of the view, unless that would change how this router maps keys. Settings that cannot
    /// be read leave it unchanged.
    pub(super) fn take_number(&mut self) {
        let is_fixed = self.settings.partitioner.as_ref().is_some_and(Partitioner::fixes_number);
        if !is_fixed || self.partitions == 0 {
            self.partitions = self.partitions.max(self.view.partitions());
        }
    }
}
