//! Opens connections to the endpoints of etcd, one at a time, and asks each member who it is.
//!
//! Elsewhere: which endpoint is used ([`connection`](super::connection)), and whose cluster ([`comparison`](super::comparison)).
//!
//! # Invariants
//!
//! * A connection that is returned has responded.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use etcd_client::{
    AuthClient, Client, ConnectOptions, KvClient, LeaseClient, MaintenanceClient, ResponseHeader, Txn, WatchClient,
};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::EtcdOptions;
use super::failure::EtcdFailure;
use super::liveness::Liveness;
use super::tls::TlsFiles;
use super::token::CurrentToken;
use crate::store::StoreError;

/// Interval of HTTP/2 pings on a quiet connection. By default (`--grpc-keepalive-min-time`) etcd disconnects clients
/// that ping more often than every 5 s, or without an open stream.
const PING_INTERVAL: Duration = Duration::from_secs(6);
const PING_TIMEOUT: Duration = Duration::from_secs(3);

/// Largest response that is read. etcd's default limit for a whole database is 2 GiB. tonic's default of 4 MiB is too
/// small for a keyspace of some thousand partitions.
const MAX_RESPONSE_BYTES: usize = 1 << 30;

/// One connection.
pub(super) struct EtcdConnection {
    pub(super) kv: KvClient,
    pub(super) watch: WatchClient,
    pub(super) lease: LeaseClient,
    pub(super) maintenance: MaintenanceClient,
    pub(super) auth: AuthClient,
    pub(super) endpoint: usize,
    /// Cancelled when the connection has become useless. Its watches end then. On a dead connection they would only be
    /// silent, and a lease that is kept alive over the next connection would keep a deaf participant registered.
    pub(super) broken: CancellationToken,
    liveness: Mutex<Liveness>,
}

impl EtcdConnection {
    /// Returns the record of the member's signs of life.
    pub(super) fn liveness(&self) -> MutexGuard<'_, Liveness> {
        self.liveness.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection to a member, with what the member says of itself.
pub(super) struct OpenedConnection {
    pub(super) connection: EtcdConnection,
    /// The id of its cluster, if it tells.
    pub(super) cluster: Option<u64>,
    pub(super) is_learner: bool,
}

/// The endpoints, and what a connection to one needs.
#[derive(Clone)]
pub(super) struct Endpoints {
    pub(super) options: EtcdOptions,
    pub(super) token: CurrentToken,
    /// Cancelled when none of them may be used any more. Breaks each connection.
    pub(super) refused: CancellationToken,
}

impl Endpoints {
    pub(super) fn urls(&self) -> &[String] {
        &self.options.endpoints
    }

    /// Connects to an endpoint with the certificates in the files, or with `last`, the last usable ones, if the files cannot be
    /// used now.
    pub(super) async fn open(
        &self,
        endpoint: usize,
        last: &mut Option<TlsFiles>,
    ) -> Result<OpenedConnection, EtcdFailure> {
        let limit = self.options.connect_timeout;
        timeout(limit, self.open_with_files(endpoint, last)).await.unwrap_or_else(|_| {
            let url = &self.urls()[endpoint];
            Err(EtcdFailure::NotSent(format!("{url} did not respond within {limit:?}").into()))
        })
    }

    async fn open_with_files(
        &self,
        endpoint: usize,
        last: &mut Option<TlsFiles>,
    ) -> Result<OpenedConnection, EtcdFailure> {
        let Some(tls) = &self.options.tls else {
            return self.open_with(endpoint, self.connect_options()).await;
        };
        let with = |material: &TlsFiles| self.connect_options().with_tls(material.options());
        let failure = match tls.read() {
            Ok(material) => match self.open_with(endpoint, with(&material)).await {
                Ok(opened) => {
                    *last = Some(material);
                    return Ok(opened);
                }
                Err(failure) if last.as_ref().is_none_or(|last| *last == material) => return Err(failure),
                Err(failure) => failure,
            },
            Err(failure) => EtcdFailure::NotSent(failure),
        };
        let Some(material) = last else { return Err(failure) };
        let error = StoreError::from(failure);
        tracing::warn!(%error, "etcd certificates cannot be used; keeping the previous ones");
        self.open_with(endpoint, with(material)).await
    }

    /// Connects to a member that has responded. The kernel accepts connections for a hanging member too, and its first call
    /// would waste more time than a short lease has.
    async fn open_with(&self, endpoint: usize, options: ConnectOptions) -> Result<OpenedConnection, EtcdFailure> {
        let url = &self.urls()[endpoint];
        // Sends nothing yet.
        let client = Client::connect_with_balanced_channel([url], Some(options), self.token.clone());
        let client = client.await.map_err(EtcdFailure::of)?;
        let (cluster, is_learner) = match introduction(&client).await {
            Ok(introduction) => introduction,
            // Only the introduction was sent, which changes nothing, so the call itself was not.
            Err(EtcdFailure::Broken(failure) | EtcdFailure::NotSent(failure)) => {
                return Err(EtcdFailure::NotSent(failure));
            }
            Err(EtcdFailure::Answered(_) | EtcdFailure::Unauthenticated(_)) => (None, false),
        };
        let connection = EtcdConnection {
            kv: client.kv_client().max_decoding_message_size(MAX_RESPONSE_BYTES),
            watch: client.watch_client().max_decoding_message_size(MAX_RESPONSE_BYTES),
            lease: client.lease_client(),
            maintenance: client.maintenance_client(),
            auth: client.auth_client(),
            endpoint,
            broken: self.refused.child_token(),
            liveness: Mutex::default(),
        };
        Ok(OpenedConnection { connection, cluster, is_learner })
    }

    fn connect_options(&self) -> ConnectOptions {
        ConnectOptions::new()
            .with_connect_timeout(self.options.connect_timeout)
            .with_keep_alive(PING_INTERVAL, PING_TIMEOUT)
            .with_keep_alive_while_idle(false)
            // A member that is cut off from its cluster would keep watches open that nothing reaches.
            .with_require_leader(true)
    }
}

/// Returns the id of a member's cluster, and whether it is a learner. Needs no token as a rule.
async fn introduction(client: &Client) -> Result<(Option<u64>, bool), EtcdFailure> {
    let cluster = |header: Option<&ResponseHeader>| header.map(ResponseHeader::cluster_id);
    match client.maintenance_client().status().await.map_err(EtcdFailure::of) {
        Ok(status) => Ok((cluster(status.header()), status.is_learner())),
        // Newer versions tell this to administrators alone. An empty transaction needs no permission.
        Err(EtcdFailure::Answered(_) | EtcdFailure::Unauthenticated(_)) => {
            let response = client.kv_client().txn(Txn::new()).await.map_err(EtcdFailure::of)?;
            Ok((cluster(response.header()), false))
        }
        Err(failure) => Err(failure),
    }
}
