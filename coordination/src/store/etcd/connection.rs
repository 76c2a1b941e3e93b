//! The connection to etcd: one at a time, to one of the endpoints, replaced when it fails.
//!
//! This is not a load balancer. etcd-client's own spreads calls over all endpoints, whether or not they respond, so a
//! dead member fails every third call while it is dead. Here a failure moves all later calls to the next endpoint, unless the
//! member is merely slow ([`liveness`](super::liveness)).
//!
//! # Invariants
//!
//! * A call that may change something is sent once. It is sent again only if nothing of it was sent, or if etcd refused its
//!   token, which it does before anything is changed. (No lower layer repeats a call either: hyper's HTTP/2 client and tonic's
//!   channel have no retry, and etcd-client has none without a user of its own.)
//! * A call goes to one cluster for the life of the process, as far as etcd tells which one a member belongs to.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::{Arc, Mutex as SyncMutex, MutexGuard, PoisonError};

use etcd_client::{
    Error, GetResponse, LeaseGrantResponse, LeaseRevokeResponse, ResponseHeader, StatusResponse, TxnResponse,
};
use http::HeaderValue;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use super::super::{StoreError, StoreFailure};
use super::EtcdOptions;
use super::comparison::ClusterComparison;
use super::endpoints::{Endpoints, EtcdConnection, OpenedConnection};
use super::failure::EtcdFailure;
use super::seen::ClusterRecord;
use super::tls::TlsFiles;
use super::token::{Authenticator, CurrentToken};

/// Whether a call is sent to another member after a failure that leaves open what the first one did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Repeat {
    /// It changes nothing, or nothing more the second time.
    AtNextEndpoint,
    /// It may have changed something.
    Never,
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
    pub(super) endpoints: Endpoints,
    authenticator: Option<Authenticator>,
    seen: Arc<SyncMutex<ClusterRecord>>,
    current: Mutex<CurrentEndpoint>,
}

struct CurrentEndpoint {
    connection: Option<Arc<EtcdConnection>>,
    endpoint: usize,
    /// The certificates of the last connection.
    material: Option<TlsFiles>,
    /// The endpoints that were refused for their cluster since they were last accepted: each is logged once.
    foreign: BTreeSet<usize>,
}

impl Connections {
    /// Returns connections to endpoints that have been validated.
    pub(super) fn new(options: EtcdOptions) -> Self {
        // A random start spreads clients over the members.
        let endpoint = rand::random_range(0..options.endpoints.len());
        let endpoints = Endpoints { options, token: CurrentToken::default(), refused: CancellationToken::new() };
        let authenticator = endpoints.options.credentials.clone();
        let authenticator = authenticator.map(|credentials| Authenticator::new(credentials, endpoints.token.clone()));
        let current = CurrentEndpoint { connection: None, endpoint, material: None, foreign: BTreeSet::new() };
        Connections { endpoints, authenticator, seen: Arc::default(), current: Mutex::new(current) }
    }

    pub(super) fn deadline(&self) -> Instant {
        Instant::now() + self.endpoints.options.request_timeout
    }

    /// Makes one call, by `deadline`.
    pub(super) async fn call<T, F>(
        &self,
        deadline: Instant,
        repeat: Repeat,
        call: impl Fn(Arc<EtcdConnection>) -> F,
    ) -> Result<T, StoreError>
    where
        T: Response,
        F: Future<Output = Result<T, Error>>,
    {
        let mut failed = Vec::new();
        for _ in self.endpoints.urls() {
            let connection = match timeout_at(deadline, self.connection()).await {
                Ok(Ok(connection)) => connection,
                Ok(Err(EtcdFailure::Answered(error))) => return Err(self.named(error)),
                Ok(Err(
                    EtcdFailure::Unauthenticated(failure)
                    | EtcdFailure::Broken(failure)
                    | EtcdFailure::NotSent(failure),
                )) => {
                    failed.push(failure);
                    continue;
                }
                Err(_) => return Err(self.no_response()),
            };
            match self.call_by(&connection, deadline, &call).await {
                Ok(response) => return Ok(response),
                Err(EtcdFailure::Answered(error)) => return Err(self.named(error)),
                Err(EtcdFailure::Unauthenticated(failure)) => return Err(self.named(StoreError::Refused(failure))),
                Err(EtcdFailure::Broken(failure)) => {
                    connection.broken.cancel();
                    if repeat == Repeat::Never || Instant::now() >= deadline {
                        return Err(self.unavailable(failure));
                    }
                    failed.push(failure);
                }
                Err(EtcdFailure::NotSent(failure)) => {
                    connection.broken.cancel();
                    failed.push(failure);
                }
            }
        }
        Err(self.unavailable(StoreFailure::joined(&failed)))
    }

    /// Makes one call over this connection, with a new token if etcd refuses the one there is.
    async fn call_by<T, F>(
        &self,
        connection: &Arc<EtcdConnection>,
        deadline: Instant,
        call: &impl Fn(Arc<EtcdConnection>) -> F,
    ) -> Result<T, EtcdFailure>
    where
        T: Response,
        F: Future<Output = Result<T, Error>>,
    {
        let token = self.endpoints.token.get();
        // Without a token too: while etcd has no users, it gives none.
        let authenticator = match (self.send(connection, deadline, call).await, &self.authenticator) {
            (Err(EtcdFailure::Unauthenticated(_)), Some(authenticator)) => authenticator,
            (result, _) => return result,
        };
        self.authenticate(authenticator, connection, deadline, token.as_ref()).await?;
        self.send(connection, deadline, call).await
    }

    async fn authenticate(
        &self,
        authenticator: &Authenticator,
        connection: &EtcdConnection,
        deadline: Instant,
        refused: Option<&HeaderValue>,
    ) -> Result<(), EtcdFailure> {
        let renewed = timeout_at(deadline, authenticator.renew(connection.auth.clone(), refused)).await;
        let cluster = renewed.unwrap_or_else(|_| {
            // It goes on, and so does the connection.
            let text =
                format!("no response to the authentication within {:?} so far", self.endpoints.options.request_timeout);
            Err(EtcdFailure::Answered(StoreError::Unavailable(text.into())))
        })?;
        let admitted = cluster.map_or(Ok(()), |cluster| self.seen().admit(cluster));
        admitted.map_err(|why| EtcdFailure::NotSent(format!("{} is refused: {why}", self.endpoint(connection)).into()))
    }

    async fn send<T, F>(
        &self,
        connection: &Arc<EtcdConnection>,
        deadline: Instant,
        call: &impl Fn(Arc<EtcdConnection>) -> F,
    ) -> Result<T, EtcdFailure>
    where
        T: Response,
        F: Future<Output = Result<T, Error>>,
    {
        let asked = Instant::now();
        let response = tokio::select! {
            biased;
            response = timeout_at(deadline, call(Arc::clone(connection))) => match response {
                Ok(response) => response.map_err(EtcdFailure::of)?,
                Err(_) => return Err(self.unanswered(connection, asked)),
            },
            // Another call has noticed first. Waiting for the deadline would use up the time that a participant can
            // be without sight of the store.
            () = connection.broken.cancelled() => {
                return Err(EtcdFailure::Broken("the connection is given up".into()));
            }
        };
        if let Some(header) = response.header() {
            let mut seen = self.seen();
            seen.admit(header.cluster_id()).map_err(EtcdFailure::Broken)?;
            seen.record(header, T::OF_QUORUM, asked);
        }
        if T::OF_QUORUM {
            connection.liveness().is_in_step(Instant::now());
        }
        Ok(response)
    }

    /// Returns what the silence of a member about a call means.
    fn unanswered(&self, connection: &EtcdConnection, asked: Instant) -> EtcdFailure {
        let silence = self.silence();
        if connection.liveness().is_gone(asked, Instant::now()) {
            EtcdFailure::Broken(silence.into())
        } else {
            EtcdFailure::Answered(StoreError::Unavailable(format!("{silence}, while other calls got theirs").into()))
        }
    }

    /// Returns the URL of a connection's endpoint.
    pub(super) fn endpoint(&self, connection: &EtcdConnection) -> &str {
        &self.endpoints.urls()[connection.endpoint]
    }

    /// Returns why a renewal counts for nothing, if its member's term has passed.
    pub(super) fn deposed(&self, header: Option<&ResponseHeader>) -> Option<String> {
        self.seen().deposed(header?.raft_term())
    }

    fn seen(&self) -> MutexGuard<'_, ClusterRecord> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns an error that names the endpoints.
    pub(super) fn unavailable(&self, failure: impl Into<StoreFailure>) -> StoreError {
        self.named(StoreError::Unavailable(failure.into()))
    }

    fn named(&self, error: StoreError) -> StoreError {
        let name = |what: &str| format!("etcd at {}: {what}", self.endpoints.urls().join(", "));
        match error {
            StoreError::Unavailable(failure) => StoreError::Unavailable(failure.reworded(name)),
            StoreError::Refused(failure) => StoreError::Refused(failure.reworded(name)),
            StoreError::Compacted { .. } | StoreError::LeaseNotFound => error,
        }
    }

    pub(super) fn no_response(&self) -> StoreError {
        self.unavailable(self.silence())
    }

    fn silence(&self) -> String {
        format!("no response within {:?}", self.endpoints.options.request_timeout)
    }

    /// Returns the current connection, or a new one to the next endpoint.
    async fn connection(&self) -> Result<Arc<EtcdConnection>, EtcdFailure> {
        if let Some(why) = self.seen().refused() {
            return Err(EtcdFailure::Answered(StoreError::Refused(why)));
        }
        let mut current = self.current.lock().await;
        if let Some(connection) = current.connection.take() {
            if !connection.broken.is_cancelled() {
                current.connection = Some(Arc::clone(&connection));
                return Ok(connection);
            }
            current.endpoint = connection.endpoint + 1;
        }
        let endpoint = current.endpoint % self.endpoints.urls().len();
        // The next attempt goes to the next endpoint if this one fails, or if the caller gives up half-way.
        current.endpoint = endpoint + 1;
        let OpenedConnection { connection, cluster, is_learner } =
            self.endpoints.open(endpoint, &mut current.material).await?;
        if is_learner {
            return Err(EtcdFailure::NotSent(format!("{} is a learner", self.endpoints.urls()[endpoint]).into()));
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
    async fn admit(&self, endpoint: usize, cluster: u64, current: &mut CurrentEndpoint) -> Result<(), EtcdFailure> {
        if self.seen().cluster().is_none() {
            let comparison = ClusterComparison::of(&self.endpoints, endpoint, cluster, current.material.as_ref()).await;
            let chosen = match comparison.chosen() {
                Ok(chosen) => chosen,
                Err(failure) => {
                    if current.foreign.insert(endpoint) {
                        tracing::error!(error = failure.words(), "no etcd cluster can be chosen");
                    }
                    return Err(EtcdFailure::Answered(StoreError::Refused(failure)));
                }
            };
            self.seen().admit(chosen).map_err(EtcdFailure::NotSent)?;
            comparison.go_on(chosen, Arc::clone(&self.seen));
        }
        let admitted = self.seen().admit(cluster);
        match admitted {
            Ok(()) => {
                current.foreign.remove(&endpoint);
                Ok(())
            }
            Err(why) => {
                let text = format!("{} is refused: {why}", self.endpoints.urls()[endpoint]);
                if current.foreign.insert(endpoint) {
                    tracing::error!(error = text, "an endpoint belongs to another etcd cluster");
                }
                Err(EtcdFailure::NotSent(text.into()))
            }
        }
    }
}
