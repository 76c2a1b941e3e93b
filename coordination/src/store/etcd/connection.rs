//! The connection to etcd: one at a time, to one of the endpoints, replaced when it fails.
//!
//! This is not a load balancer. etcd-client's own spreads calls over all endpoints, whether or not they respond, so a
//! dead member fails every third call while it is dead. Here a failure moves all later calls to the next endpoint.
//!
//! # Invariants
//!
//! * A call that may change something is sent once. It is sent again only if nothing of it was sent, or if etcd refused its
//!   token, which it does before anything is changed. (No lower layer repeats a call either: hyper's HTTP/2 client and tonic's
//!   channel have no retry, and etcd-client has none without a user of its own.)
//! * A call goes to one cluster for the life of the process, as far as etcd tells which one a member belongs to.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::future::Future;
use std::sync::{Arc, Mutex as SyncMutex, MutexGuard, PoisonError};
use std::time::Duration;

use etcd_client::{
    AuthClient, Client, ConnectOptions, Error, GetResponse, KvClient, LeaseClient, LeaseGrantResponse,
    LeaseRevokeResponse, MaintenanceClient, ResponseHeader, StatusResponse, Txn, TxnResponse, WatchClient,
};
use http::HeaderValue;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use super::super::StoreError;
use super::EtcdOptions;
use super::failure::Failure;
use super::seen::{Seen, chosen};
use super::tls::Material;
use super::token::{Authenticator, Held};

/// Interval of HTTP/2 pings on a quiet connection. By default (`--grpc-keepalive-min-time`) etcd disconnects clients
/// that ping more often than every 5 s, or without an open stream.
const PING_INTERVAL: Duration = Duration::from_secs(6);
const PING_TIMEOUT: Duration = Duration::from_secs(3);

/// How long the first connection waits for the other endpoints to say which cluster they belong to. Those that do not are
/// asked when they are used.
const COMPARISON_TIME: Duration = Duration::from_millis(250);

/// Largest response that is read. etcd's default limit for a whole database is 2 GiB. tonic's default of 4 MiB is too
/// small for a keyspace of some thousand partitions.
const MAX_RESPONSE_BYTES: usize = 1 << 30;

/// One connection.
#[derive(Clone)]
pub(super) struct Connection {
    pub(super) kv: KvClient,
    pub(super) watch: WatchClient,
    pub(super) lease: LeaseClient,
    pub(super) maintenance: MaintenanceClient,
    auth: AuthClient,
    endpoint: usize,
    /// Cancelled when the connection has become useless. Its watches end then. On a dead connection they would only be
    /// silent, and a lease that is kept alive over the next connection would keep a deaf participant registered.
    pub(super) broken: CancellationToken,
}

/// Whether a call is sent to another member after a failure that leaves open what the first one did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Repeat {
    /// It changes nothing, or nothing more the second time.
    AtNextEndpoint,
    /// It may have changed something.
    Never,
}

/// A connection to a member, with what the member says of itself.
pub(super) struct Opened {
    connection: Connection,
    /// The id of its cluster, if it tells.
    pub(super) cluster: Option<u64>,
    pub(super) is_learner: bool,
}

/// A response of etcd.
pub(super) trait Response {
    /// Whether a member cannot have responded without a quorum.
    const OF_QUORUM: bool = true;

    fn header(&self) -> Option<&ResponseHeader>;
}

macro_rules! responses {
    ($($response:ident),*) => {
        $(
            impl Response for $response {
                fn header(&self) -> Option<&ResponseHeader> {
                    $response::header(self)
                }
            }
        )*
    };
}

responses!(GetResponse, TxnResponse, LeaseGrantResponse, LeaseRevokeResponse);

impl Response for StatusResponse {
    const OF_QUORUM: bool = false;

    fn header(&self) -> Option<&ResponseHeader> {
        StatusResponse::header(self)
    }
}

/// The current connection to etcd, and what is needed for the next one.
pub(super) struct Connections {
    pub(super) options: EtcdOptions,
    token: Held,
    authenticator: Option<Authenticator>,
    seen: SyncMutex<Seen>,
    current: Mutex<Current>,
}

struct Current {
    connection: Option<Arc<Connection>>,
    endpoint: usize,
    /// The certificates of the last connection.
    material: Option<Material>,
    /// The endpoints that were refused for their cluster since they were last accepted: each is logged once.
    foreign: BTreeSet<usize>,
}

impl Connections {
    /// Returns connections to endpoints that have been validated.
    pub(super) fn new(options: EtcdOptions) -> Self {
        // A random start spreads clients over the members.
        let endpoint = rand::random_range(0..options.endpoints.len());
        let token = Held::default();
        let authenticator =
            options.credentials.clone().map(|credentials| Authenticator::new(credentials, token.clone()));
        let current = Current { connection: None, endpoint, material: None, foreign: BTreeSet::new() };
        Connections { options, token, authenticator, seen: SyncMutex::default(), current: Mutex::new(current) }
    }

    pub(super) fn deadline(&self) -> Instant {
        Instant::now() + self.options.request_timeout
    }

    /// Makes one call, by `deadline`.
    pub(super) async fn call<T, F>(
        &self,
        deadline: Instant,
        repeat: Repeat,
        call: impl Fn(Arc<Connection>) -> F,
    ) -> Result<T, StoreError>
    where
        T: Response,
        F: Future<Output = Result<T, Error>>,
    {
        let mut failed = Vec::new();
        for _ in &self.options.endpoints {
            let connection = match timeout_at(deadline, self.connection()).await {
                Ok(Ok(connection)) => connection,
                Ok(Err(Failure::Answered(error))) => return Err(self.named(error)),
                Ok(Err(Failure::Unauthenticated(text) | Failure::Broken(text) | Failure::NotSent(text))) => {
                    failed.push(text);
                    continue;
                }
                Err(_) => return Err(self.no_response()),
            };
            match self.call_by(&connection, deadline, &call).await {
                Ok(response) => return Ok(response),
                Err(Failure::Answered(error)) => return Err(self.named(error)),
                Err(Failure::Unauthenticated(text)) => return Err(self.named(StoreError::Refused(text))),
                Err(Failure::Broken(text)) => {
                    connection.broken.cancel();
                    if repeat == Repeat::Never || Instant::now() >= deadline {
                        return Err(self.unavailable(text));
                    }
                    failed.push(text);
                }
                Err(Failure::NotSent(text)) => {
                    connection.broken.cancel();
                    failed.push(text);
                }
            }
        }
        Err(self.unavailable(failed.join("; ")))
    }

    /// Makes one call over this connection, with a new token if etcd refuses the one there is.
    async fn call_by<T, F>(
        &self,
        connection: &Arc<Connection>,
        deadline: Instant,
        call: &impl Fn(Arc<Connection>) -> F,
    ) -> Result<T, Failure>
    where
        T: Response,
        F: Future<Output = Result<T, Error>>,
    {
        let Some(authenticator) = &self.authenticator else {
            return self.send(connection, deadline, call).await;
        };
        let token = self.token.get();
        if token.is_some() {
            match self.send(connection, deadline, call).await {
                Err(Failure::Unauthenticated(_)) => {}
                result => return result,
            }
        }
        self.authenticate(authenticator, connection, deadline, token.as_ref()).await?;
        self.send(connection, deadline, call).await
    }

    async fn authenticate(
        &self,
        authenticator: &Authenticator,
        connection: &Connection,
        deadline: Instant,
        refused: Option<&HeaderValue>,
    ) -> Result<(), Failure> {
        let renewed = timeout_at(deadline, authenticator.renew(connection.auth.clone(), refused)).await;
        let cluster = renewed.unwrap_or_else(|_| {
            // It goes on, and so does the connection.
            let text = format!("no response to the authentication within {:?} so far", self.options.request_timeout);
            Err(Failure::Answered(StoreError::Unavailable(text)))
        })?;
        let admitted = cluster.map_or(Ok(()), |cluster| self.seen().admit(cluster));
        admitted.map_err(|why| Failure::NotSent(format!("{} is refused: {why}", self.endpoint(connection))))
    }

    async fn send<T, F>(
        &self,
        connection: &Arc<Connection>,
        deadline: Instant,
        call: &impl Fn(Arc<Connection>) -> F,
    ) -> Result<T, Failure>
    where
        T: Response,
        F: Future<Output = Result<T, Error>>,
    {
        let asked = Instant::now();
        let response = tokio::select! {
            biased;
            response = timeout_at(deadline, call(Arc::clone(connection))) => match response {
                Ok(response) => response.map_err(|error| Failure::of(&error))?,
                Err(_) => return Err(Failure::Broken(self.silence())),
            },
            // Another call has noticed first. Waiting for the deadline would use up the time that a participant can
            // be without sight of the store.
            () = connection.broken.cancelled() => {
                return Err(Failure::Broken("the connection is given up".to_owned()));
            }
        };
        if let Some(header) = response.header() {
            let mut seen = self.seen();
            seen.admit(header.cluster_id()).map_err(Failure::Broken)?;
            seen.record(header, T::OF_QUORUM, asked);
        }
        Ok(response)
    }

    /// Returns the URL of a connection's endpoint.
    pub(super) fn endpoint(&self, connection: &Connection) -> &str {
        &self.options.endpoints[connection.endpoint]
    }

    /// Returns why a renewal counts for nothing, if its member's term has passed.
    pub(super) fn deposed(&self, header: Option<&ResponseHeader>) -> Option<String> {
        self.seen().deposed(header?.raft_term())
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns an error that names the endpoints.
    pub(super) fn unavailable(&self, what: impl Display) -> StoreError {
        self.named(StoreError::Unavailable(what.to_string()))
    }

    fn named(&self, error: StoreError) -> StoreError {
        let name = |what| format!("etcd at {}: {what}", self.options.endpoints.join(", "));
        match error {
            StoreError::Unavailable(what) => StoreError::Unavailable(name(what)),
            StoreError::Refused(what) => StoreError::Refused(name(what)),
            StoreError::Compacted { .. } | StoreError::LeaseNotFound => error,
        }
    }

    pub(super) fn no_response(&self) -> StoreError {
        self.unavailable(self.silence())
    }

    fn silence(&self) -> String {
        format!("no response within {:?}", self.options.request_timeout)
    }

    /// Returns the current connection, or a new one to the next endpoint.
    async fn connection(&self) -> Result<Arc<Connection>, Failure> {
        let mut current = self.current.lock().await;
        if let Some(connection) = current.connection.take() {
            if !connection.broken.is_cancelled() {
                current.connection = Some(Arc::clone(&connection));
                return Ok(connection);
            }
            current.endpoint = connection.endpoint + 1;
        }
        let endpoint = current.endpoint % self.options.endpoints.len();
        // In case this fails, or the caller gives up half-way.
        current.endpoint = endpoint + 1;
        let Opened { connection, cluster, is_learner } = self.open(endpoint, &mut current.material).await?;
        if is_learner {
            return Err(Failure::NotSent(format!("{} is a learner", self.options.endpoints[endpoint])));
        }
        if let Some(cluster) = cluster {
            self.admit(endpoint, cluster, &mut current).await?;
        }
        let connection = Arc::new(connection);
        current.connection = Some(Arc::clone(&connection));
        Ok(connection)
    }

    /// Returns why a member of this cluster is not to be used, if so. Before the first connection the other endpoints are
    /// asked as well, as processes that each believe the first endpoint to respond might follow different clusters.
    async fn admit(&self, endpoint: usize, cluster: u64, current: &mut Current) -> Result<(), Failure> {
        if self.seen().cluster().is_none() {
            let others = (0..self.options.endpoints.len()).filter(|other| *other != endpoint);
            let others = others.map(|other| {
                let mut material = current.material.clone();
                async move {
                    let asked = timeout(COMPARISON_TIME, self.open(other, &mut material)).await;
                    Some((other, asked.ok()?.ok()?.cluster?))
                }
            });
            let others = futures_util::future::join_all(others).await.into_iter().flatten();
            let shown: Vec<(usize, u64)> = others.chain([(endpoint, cluster)]).collect();
            let clusters: Vec<u64> = shown.iter().map(|(_, cluster)| *cluster).collect();
            let Some(chosen) = chosen(self.options.endpoints.len(), &clusters) else {
                let name = |(endpoint, cluster): &(usize, u64)| {
                    format!("{} to cluster {cluster:x}", self.options.endpoints[*endpoint])
                };
                let all: Vec<String> = shown.iter().map(name).collect();
                let text = format!("the endpoints belong to different etcd clusters: {}", all.join(", "));
                if current.foreign.insert(endpoint) {
                    tracing::error!(error = text, "no etcd cluster can be chosen");
                }
                return Err(Failure::Answered(StoreError::Refused(text)));
            };
            self.seen().admit(chosen).map_err(Failure::NotSent)?;
        }
        let admitted = self.seen().admit(cluster);
        match admitted {
            Ok(()) => {
                current.foreign.remove(&endpoint);
                Ok(())
            }
            Err(why) => {
                let text = format!("{} is refused: {why}", self.options.endpoints[endpoint]);
                if current.foreign.insert(endpoint) {
                    tracing::error!(error = text, "an endpoint belongs to another etcd cluster");
                }
                Err(Failure::NotSent(text))
            }
        }
    }

    /// Connects to an endpoint with the certificates in the files, or with `last`, the last usable ones, if the files cannot be
    /// used now.
    pub(super) async fn open(&self, endpoint: usize, last: &mut Option<Material>) -> Result<Opened, Failure> {
        let limit = self.options.connect_timeout;
        timeout(limit, self.open_with_files(endpoint, last)).await.unwrap_or_else(|_| {
            let url = &self.options.endpoints[endpoint];
            Err(Failure::NotSent(format!("{url} did not respond within {limit:?}")))
        })
    }

    async fn open_with_files(&self, endpoint: usize, last: &mut Option<Material>) -> Result<Opened, Failure> {
        let Some(tls) = &self.options.tls else {
            return self.open_with(endpoint, self.connect_options()).await;
        };
        let with = |material: &Material| self.connect_options().with_tls(material.options());
        let failure = match tls.read() {
            Ok(material) => match self.open_with(endpoint, with(&material)).await {
                Ok(opened) => {
                    *last = Some(material);
                    return Ok(opened);
                }
                Err(failure) if last.as_ref().is_none_or(|last| *last == material) => return Err(failure),
                Err(failure) => failure,
            },
            Err(text) => Failure::NotSent(text),
        };
        let Some(material) = last else { return Err(failure) };
        tracing::warn!(?failure, "etcd certificates cannot be used; keeping the previous ones");
        self.open_with(endpoint, with(material)).await
    }

    /// Connects to a member that has responded. The kernel accepts connections for a hanging member too, and its first call
    /// would waste more time than a short lease has.
    async fn open_with(&self, endpoint: usize, options: ConnectOptions) -> Result<Opened, Failure> {
        let url = &self.options.endpoints[endpoint];
        // Sends nothing yet.
        let client = Client::connect_with_balanced_channel([url], Some(options), self.token.clone());
        let client = client.await.map_err(|error| Failure::of(&error))?;
        let (cluster, is_learner) = match introduction(&client).await {
            Ok(introduction) => introduction,
            // Nothing was sent but questions without effect.
            Err(Failure::Broken(text) | Failure::NotSent(text)) => return Err(Failure::NotSent(text)),
            Err(Failure::Answered(_) | Failure::Unauthenticated(_)) => (None, false),
        };
        let connection = Connection {
            kv: client.kv_client().max_decoding_message_size(MAX_RESPONSE_BYTES),
            watch: client.watch_client().max_decoding_message_size(MAX_RESPONSE_BYTES),
            lease: client.lease_client(),
            maintenance: client.maintenance_client(),
            auth: client.auth_client(),
            endpoint,
            broken: CancellationToken::new(),
        };
        Ok(Opened { connection, cluster, is_learner })
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
async fn introduction(client: &Client) -> Result<(Option<u64>, bool), Failure> {
    let cluster = |header: Option<&ResponseHeader>| header.map(ResponseHeader::cluster_id);
    match client.maintenance_client().status().await.map_err(|error| Failure::of(&error)) {
        Ok(status) => Ok((cluster(status.header()), status.is_learner())),
        // Newer versions tell this to administrators alone. An empty transaction needs no permission.
        Err(Failure::Answered(_) | Failure::Unauthenticated(_)) => {
            let response = client.kv_client().txn(Txn::new()).await.map_err(|error| Failure::of(&error))?;
            Ok((cluster(response.header()), false))
        }
        Err(failure) => Err(failure),
    }
}
