//! The store in a real etcd, 3.4 to 3.6, over etcd-client.
//!
//! This module translates and bounds calls. etcd does the rest, and nothing is cached here.
//!
//! # Invariants
//!
//! * Every call ends within `request_timeout`.
//! * A transaction is sent at most once: [`StoreError::Unavailable`] from it means "perhaps", and never "perhaps
//!   twice".
//! * The renewal of a lease counts only if this very call requested it, and not if a member grants it in an earlier raft
//!   term than one seen before: before 3.4.31 and 3.5.13 a deposed leader renews leases without asking its peers.

mod comparison;
mod connection;
mod convert;
mod endpoints;
mod failure;
mod liveness;
mod renewal;
mod seen;
mod tls;
mod token;
mod watch;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use etcd_client::{GetOptions, LeaseKeepAliveResponse};
use segue_protocol::ids::{LeaseId, Revision};
use segue_protocol::txn::{Keys, Snapshot, Txn, TxnOutcome};
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::{Instant, timeout_at};

use self::connection::{Connections, Repeat};
use self::renewal::{NewRenewalStream, RenewalStream};
pub use self::tls::{ClientIdentity, EtcdTls};
pub use self::token::EtcdCredentials;
use super::batches::batches;
use super::{SharedHorizon, Store, StoreError, StoreErrorKind, StoreFailure, Survey, Usage, Watch};

/// Number of transactions of a batch that etcd has to refuse in the same words until it is taken to refuse all of them.
const REFUSED_IN_A_ROW: usize = 3;

/// The endpoints of etcd, and the timeouts of calls to it.
#[derive(Clone)]
pub struct EtcdOptions {
    /// Client URLs of the members: `http://host:port` or `host:port`; with `tls`, all of them `https://host:port`.
    pub endpoints: Vec<String>,
    /// The user, for an etcd with authentication.
    pub credentials: Option<EtcdCredentials>,
    /// The TLS files. `None` for clear text.
    pub tls: Option<EtcdTls>,
    /// Limit of every call, connecting included. A call that exceeds it fails with [`StoreError::Unavailable`].
    pub request_timeout: Duration,
    /// How long one endpoint may take to accept a connection and to respond before the next is tried. Authentication is not
    /// part of that.
    pub connect_timeout: Duration,
}

impl EtcdOptions {
    /// Returns options with these endpoints, no credentials, no TLS, 5 s for a call and 1 s of them for a connection.
    pub fn new(endpoints: impl IntoIterator<Item = impl Into<String>>) -> Self {
        EtcdOptions {
            endpoints: endpoints.into_iter().map(Into::into).collect(),
            credentials: None,
            tls: None,
            request_timeout: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(1),
        }
    }
}

impl fmt::Debug for EtcdOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdOptions")
            .field("endpoints", &self.endpoints)
            .field("credentials", &self.credentials)
            .field("tls", &self.tls)
            .field("request_timeout", &self.request_timeout)
            .field("connect_timeout", &self.connect_timeout)
            .finish()
    }
}

/// The store in etcd. Clones share one connection and the leases that are kept alive.
#[derive(Clone)]
pub struct EtcdStore {
    connections: Arc<Connections>,
    /// One stream for each lease that is kept alive. Locked for a whole renewal.
    keepers: Arc<Mutex<HashMap<LeaseId, KeeperSlot>>>,
}

type KeeperSlot = Arc<AsyncMutex<Option<RenewalStream>>>;

/// The introduction of one endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EtcdMember {
    /// The id of its cluster, if it tells.
    pub cluster: Option<u64>,
    /// Whether it is a learner, which serves no requests.
    pub is_learner: bool,
}

impl EtcdStore {
    /// Returns a store at these endpoints. It connects with the first call, so an etcd that is not up yet is no error
    /// here; invalid endpoints are.
    ///
    /// # Errors
    ///
    /// Refuses an empty list, and an endpoint whose scheme or address does not fit. An etcd that is down is an error of
    /// the first call.
    pub fn connect(options: EtcdOptions) -> Result<Self, StoreError> {
        if options.endpoints.is_empty() {
            return Err(StoreError::Refused("no etcd endpoint is given".into()));
        }
        for endpoint in &options.endpoints {
            let (authority, expected) = match &options.tls {
                Some(_) => (endpoint.strip_prefix("https://"), "https://host:port, as TLS is set"),
                None => {
                    (Some(endpoint.strip_prefix("http://").unwrap_or(endpoint)), "http://host:port, as no TLS is set")
                }
            };
            let is_authority = |authority: &str| {
                !authority.contains("://") && authority.trim_end_matches('/').parse::<http::uri::Authority>().is_ok()
            };
            if !authority.is_some_and(is_authority) {
                return Err(StoreError::Refused(
                    format!("{endpoint:?} is no etcd endpoint; expected {expected}").into(),
                ));
            }
        }
        let connections = Arc::new(Connections::new(options));
        Ok(EtcdStore { connections, keepers: Arc::default() })
    }

    /// Returns a store at the same endpoints as another process has it: nothing is shared.
    #[must_use]
    pub fn with_own_connection(&self) -> Self {
        let connections = Arc::new(Connections::new(self.connections.endpoints.options.clone()));
        EtcdStore { connections, keepers: Arc::default() }
    }

    /// Asks each endpoint to introduce itself. Returns the URLs with the answers.
    pub async fn members(&self) -> Vec<(String, Result<EtcdMember, StoreError>)> {
        let ask = |(number, endpoint): (usize, &String)| {
            let endpoint = endpoint.clone();
            async move {
                let opened = self.connections.endpoints.open(number, &mut None).await;
                let member = opened.map(|opened| EtcdMember { cluster: opened.cluster, is_learner: opened.is_learner });
                (endpoint, member.map_err(StoreError::from))
            }
        };
        futures_util::future::join_all(self.connections.endpoints.urls().iter().enumerate().map(ask)).await
    }

    /// Renews over the stream in `slot`, or over a new one. A caller that gives up half-way, because its lease cannot
    /// wait for the deadline, may give up the connection too: see [`renewal`].
    async fn renew(
        &self,
        lease: LeaseId,
        slot: &mut Option<RenewalStream>,
        deadline: Instant,
    ) -> Result<(), StoreError> {
        if let Some(mut stream) = slot.take()
            && !stream.connection.broken.is_cancelled()
        {
            let Ok(response) = timeout_at(deadline, stream.renew()).await else {
                return Err(self.connections.no_response());
            };
            match response {
                Some(response) if response.ttl() > 0 => return self.count(slot, stream, &response),
                Some(_) => return Err(StoreError::LeaseNotFound),
                // The stream has ended, as streams do when etcd restarts. Renewing again does no harm.
                None => {}
            }
        }
        let open = |connection| RenewalStream::open(connection, lease);
        let NewRenewalStream { stream, response } =
            self.connections.call(deadline, Repeat::AtNextEndpoint, open).await?;
        if response.ttl() > 0 { self.count(slot, stream, &response) } else { Err(StoreError::LeaseNotFound) }
    }

    /// Keeps the stream whose member has renewed a lease, unless the renewal counts for nothing.
    fn count(
        &self,
        slot: &mut Option<RenewalStream>,
        stream: RenewalStream,
        response: &LeaseKeepAliveResponse,
    ) -> Result<(), StoreError> {
        match self.connections.deposed(response.header()) {
            None => {
                stream.connection.liveness().has_renewed();
                *slot = Some(stream);
                Ok(())
            }
            Some(why) => {
                tracing::warn!(endpoint = self.connections.endpoint(&stream.connection), why, "renewal not counted");
                stream.connection.broken.cancel();
                Err(self.connections.unavailable(why))
            }
        }
    }

    /// Commits a batch in one request.
    async fn commit_batch(&self, mut batch: Vec<Txn>) -> Vec<Result<TxnOutcome, StoreError>> {
        if batch.len() == 1 {
            return futures_util::future::join_all(batch.pop().map(|txn| self.commit(txn))).await;
        }
        let txn = convert::together(batch.clone());
        let response = self.connections.call(self.connections.deadline(), Repeat::Never, |connection| {
            let txn = txn.clone();
            async move { connection.kv.clone().txn(txn).await }
        });
        match response.await {
            Ok(response) => convert::outcomes(&response).into_iter().map(Ok).collect(),
            // The request was refused as such, so nothing was applied.
            Err(StoreError::Refused(_)) => self.commit_one_by_one(batch).await,
            Err(error) => vec![Err(error); batch.len()],
        }
    }

    /// Commits the transactions of a batch that was refused. If one is at fault, that is no reason to refuse the others. If
    /// the first ones are all refused in the same words, the others are not sent.
    async fn commit_one_by_one(&self, batch: Vec<Txn>) -> Vec<Result<TxnOutcome, StoreError>> {
        let mut results = Vec::new();
        let mut in_a_row: Vec<StoreFailure> = Vec::new();
        for txn in batch {
            if let [.., why] = &in_a_row[..]
                && in_a_row.len() == REFUSED_IN_A_ROW
                && in_a_row.iter().all(|other| other.words() == why.words())
            {
                results.push(Err(StoreError::Refused(why.clone())));
                continue;
            }
            let result = self.commit(txn).await;
            match &result {
                Err(StoreError::Refused(why)) if in_a_row.len() < REFUSED_IN_A_ROW => in_a_row.push(why.clone()),
                _ => in_a_row.clear(),
            }
            results.push(result);
        }
        results
    }

    fn keepers(&self) -> MutexGuard<'_, HashMap<LeaseId, KeeperSlot>> {
        self.keepers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for EtcdStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("EtcdStore").field(&self.connections.endpoints.options).finish()
    }
}

#[async_trait]
impl Store for EtcdStore {
    async fn snapshot(&self, keys: &Keys) -> Result<Snapshot, StoreError> {
        let response =
            self.connections.call(self.connections.deadline(), Repeat::AtNextEndpoint, |connection| async move {
                let (key, options) = convert::range(keys);
                connection.kv.clone().get(key, Some(options)).await
            });
        let response = response.await?;
        Ok(Snapshot {
            revision: convert::unsigned(response.header().map_or(0, |header| header.revision())),
            entries: response.kvs().iter().filter_map(convert::key_value).collect(),
        })
    }

    async fn survey(&self, keys: &Keys, since: Revision) -> Result<Survey, StoreError> {
        let response =
            self.connections.call(self.connections.deadline(), Repeat::AtNextEndpoint, |connection| async move {
                let (key, options) = convert::survey(keys, since);
                connection.kv.clone().get(key, Some(options)).await
            });
        let response = response.await?;
        Ok(Survey {
            revision: convert::unsigned(response.header().map_or(0, |header| header.revision())),
            // The filter by revision does not change the count.
            keys: usize::try_from(response.count()).unwrap_or(0),
            is_changed: !response.kvs().is_empty(),
        })
    }

    async fn usage(&self, key: &str, since: Revision) -> Result<Option<Usage>, StoreError> {
        let status =
            self.connections.call(self.connections.deadline(), Repeat::AtNextEndpoint, |connection| async move {
                connection.maintenance.clone().status().await
            });
        let status = match status.await {
            // With users, newer versions tell it to administrators alone.
            Err(error) if error.kind() == Some(StoreErrorKind::Permission) => return Ok(None),
            status => status?,
        };
        let read =
            self.connections.call(self.connections.deadline(), Repeat::AtNextEndpoint, |connection| async move {
                let options = GetOptions::new().with_revision(convert::signed(since)).with_count_only();
                connection.kv.clone().get(key, Some(options)).await
            });
        let is_readable = match read.await {
            Ok(_) => true,
            Err(StoreError::Refused(failure)) if failure.words().contains("compacted") => false,
            Err(error) => return Err(error),
        };
        Ok(Some(Usage {
            revision: convert::unsigned(status.header().map_or(0, |header| header.revision())),
            bytes: u64::try_from(status.db_size()).unwrap_or(0),
            // Versions before 3.6 do not tell.
            quota: u64::try_from(status.db_size_quota()).ok().filter(|quota| *quota > 0),
            is_readable,
        }))
    }

    async fn watch(&self, keys: &Keys, from: Revision) -> Result<Watch, StoreError> {
        watch::start(Arc::clone(&self.connections), keys.clone(), from).await.map(Watch::new)
    }

    async fn commit(&self, txn: Txn) -> Result<TxnOutcome, StoreError> {
        let txn = convert::txn(txn);
        let response = self.connections.call(self.connections.deadline(), Repeat::Never, |connection| {
            let txn = txn.clone();
            async move { connection.kv.clone().txn(txn).await }
        });
        Ok(convert::outcome(&response.await?))
    }

    async fn commit_all(&self, txns: Vec<Txn>) -> Vec<Result<TxnOutcome, StoreError>> {
        let batches = batches(txns).into_iter().map(|batch| self.commit_batch(batch));
        futures_util::future::join_all(batches).await.concat()
    }

    async fn grant(&self, ttl: Duration) -> Result<LeaseId, StoreError> {
        let seconds = ttl.as_secs().saturating_add(u64::from(ttl.subsec_nanos() > 0)).max(1);
        let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
        let response = self.connections.call(self.connections.deadline(), Repeat::Never, |connection| async move {
            connection.lease.clone().grant(seconds, None).await
        });
        Ok(LeaseId::new(response.await?.id()))
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<(), StoreError> {
        let deadline = self.connections.deadline();
        let slot = Arc::clone(self.keepers().entry(lease).or_default());
        let Ok(mut keeper) = timeout_at(deadline, slot.lock()).await else {
            return Err(self.connections.no_response());
        };
        let renewed = self.renew(lease, &mut keeper, deadline).await;
        if matches!(renewed, Err(StoreError::LeaseNotFound)) {
            self.keepers().remove(&lease);
        }
        renewed
    }

    fn forget_lease(&self, lease: LeaseId) {
        self.keepers().remove(&lease);
    }

    fn horizon(&self) -> Option<&SharedHorizon> {
        None
    }

    async fn revoke(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.keepers().remove(&lease);
        let response =
            self.connections.call(self.connections.deadline(), Repeat::AtNextEndpoint, |connection| async move {
                connection.lease.clone().revoke(lease.get()).await
            });
        match response.await {
            Ok(_) | Err(StoreError::LeaseNotFound) => Ok(()),
            Err(error) => Err(error),
        }
    }
}
