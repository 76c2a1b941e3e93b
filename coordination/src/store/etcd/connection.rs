//! The way to etcd: one connection at a time, to one of the endpoints, replaced when it is of no use.
//!
//! Not a load balancer. etcd-client's own spreads calls over all endpoints with no regard to which of them answer, so
//! that one dead member fails every third call for as long as it is dead; here a failure moves all later calls on to
//! the next endpoint. Must stay true: a call is sent once. Only one of which nothing was sent is tried elsewhere.
//! (Below here nothing repeats a call either: hyper's HTTP/2 client and tonic's channel have no retry, and etcd-client
//! repeats one only after etcd refused its token, which it does before it looks at the request.)

use std::fmt::Display;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Client, ConnectOptions, Error, GetOptions, KvClient, LeaseClient, WatchClient};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use super::super::StoreError;
use super::EtcdOptions;
use super::failure::Failure;
use super::tls::Material;

/// HTTP/2 pings on a quiet connection. Not more often than every 5 s and not without a stream open: etcd's default
/// (`--grpc-keepalive-min-time`) is to hang up on clients that do.
const PING_EVERY: Duration = Duration::from_secs(6);
const PING_TIMEOUT: Duration = Duration::from_secs(3);

/// The largest answer that is read. etcd's default limit for a whole database is 2 GiB; tonic's default of 4 MiB is
/// less than a keyspace of some thousand partitions.
const MAX_ANSWER: usize = 1 << 30;

/// One connection.
#[derive(Clone)]
pub(super) struct Connection {
    pub(super) client: Client,
    pub(super) kv: KvClient,
    pub(super) watch: WatchClient,
    pub(super) lease: LeaseClient,
    endpoint: usize,
    /// Cancelled when it is of no use any more. Watches on it end then: on a dead connection they would just be silent,
    /// and a lease that is kept over the next connection would stand for a participant that is deaf.
    pub(super) broken: CancellationToken,
}

/// All there is to reach etcd.
pub(super) struct Connections {
    pub(super) options: EtcdOptions,
    current: Mutex<Current>,
}

struct Current {
    connection: Option<Arc<Connection>>,
    endpoint: usize,
    /// The certificates with which the last connection was made.
    material: Option<Material>,
}

impl Connections {
    /// For endpoints that have been found to make sense.
    pub(super) fn new(options: EtcdOptions) -> Self {
        // Spreads clients over the members.
        let endpoint = rand::random_range(0..options.endpoints.len());
        Connections { options, current: Mutex::new(Current { connection: None, endpoint, material: None }) }
    }

    pub(super) fn deadline(&self) -> Instant {
        Instant::now() + self.options.request_timeout
    }

    /// Makes one call, by `deadline`.
    pub(super) async fn call<T, F>(
        &self,
        deadline: Instant,
        call: impl Fn(Arc<Connection>) -> F,
    ) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let mut unreachable = Vec::new();
        for _ in &self.options.endpoints {
            let connection = match timeout_at(deadline, self.connection()).await {
                Ok(Ok(connection)) => connection,
                Ok(Err(Failure::Answered(error))) => return Err(self.named(error)),
                Ok(Err(Failure::NotSent(error) | Failure::Broken(error))) => {
                    unreachable.push(error);
                    continue;
                }
                Err(_) => return Err(self.no_answer()),
            };
            let failure = tokio::select! {
                biased;
                answer = timeout_at(deadline, call(Arc::clone(&connection))) => match answer {
                    Ok(Ok(answer)) => return Ok(answer),
                    Ok(Err(error)) => Failure::of(&error),
                    Err(_) => {
                        connection.broken.cancel();
                        return Err(self.no_answer());
                    }
                },
                // Another call has found out first. To wait for the deadline all the same would cost a participant the
                // time in which it may be without sight of the store.
                () = connection.broken.cancelled() => Failure::Broken("the connection is given up".to_owned()),
            };
            match failure {
                Failure::Answered(error) => return Err(self.named(error)),
                Failure::Broken(error) => {
                    connection.broken.cancel();
                    return Err(self.unavailable(error));
                }
                Failure::NotSent(error) => {
                    connection.broken.cancel();
                    unreachable.push(error);
                }
            }
        }
        Err(self.unavailable(unreachable.join("; ")))
    }

    /// An error that names the endpoints.
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

    pub(super) fn no_answer(&self) -> StoreError {
        self.unavailable(format_args!("no answer within {:?}", self.options.request_timeout))
    }

    /// The connection in use, or a new one to the next endpoint.
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
        // For the case that this fails, or that the caller gives up half-way.
        current.endpoint = endpoint + 1;
        let url = &self.options.endpoints[endpoint];
        let opening = timeout(self.options.connect_timeout, self.connect(url, &mut current.material));
        let client = opening.await.unwrap_or_else(|_| {
            Err(Failure::NotSent(format!("{url} did not answer within {:?}", self.options.connect_timeout)))
        })?;
        let connection = Arc::new(Connection {
            kv: client.kv_client().max_decoding_message_size(MAX_ANSWER),
            watch: client.watch_client().max_decoding_message_size(MAX_ANSWER),
            lease: client.lease_client(),
            client,
            endpoint,
            broken: CancellationToken::new(),
        });
        current.connection = Some(Arc::clone(&connection));
        Ok(connection)
    }

    /// `last`: what was used last, which is used again if what the files say now is no good.
    async fn connect(&self, url: &str, last: &mut Option<Material>) -> Result<Client, Failure> {
        let Some(tls) = &self.options.tls else {
            return open(url, self.connect_options()).await;
        };
        let with = |material: &Material| self.connect_options().with_tls(material.options());
        let failure = match tls.read() {
            Ok(material) => match open(url, with(&material)).await {
                Ok(client) => {
                    *last = Some(material);
                    return Ok(client);
                }
                Err(failure) if last.as_ref().is_none_or(|last| *last == material) => return Err(failure),
                Err(failure) => failure,
            },
            Err(text) => Failure::NotSent(text),
        };
        let Some(material) = last else { return Err(failure) };
        tracing::warn!(?failure, "certificates for etcd cannot be used; those from before are used on");
        open(url, with(material)).await
    }

    fn connect_options(&self) -> ConnectOptions {
        let options = ConnectOptions::new()
            .with_connect_timeout(self.options.connect_timeout)
            .with_keep_alive(PING_EVERY, PING_TIMEOUT)
            .with_keep_alive_while_idle(false)
            // A member that is cut off from its cluster would go on with watches that nothing reaches.
            .with_require_leader(true);
        match &self.options.credentials {
            Some((user, password)) => options.with_user(user, password).with_auto_token_refresh(true),
            None => options,
        }
    }
}

/// A client of a member that has answered. One that hangs lets the kernel accept connections all the same, and what is
/// asked of it first would be lost time, more than a short lease has.
async fn open(url: &str, options: ConnectOptions) -> Result<Client, Failure> {
    // Without credentials this sends nothing yet; with them it authenticates.
    let client = Client::connect([url], Some(options)).await.map_err(|error| Failure::of(&error))?;
    // Answered by the member alone, whatever its cluster is up to.
    let own = GetOptions::new().with_serializable().with_count_only();
    match client.kv_client().get("segue", Some(own)).await.map_err(|error| Failure::of(&error)) {
        Ok(_) | Err(Failure::Answered(_)) => Ok(client),
        // All that was sent is a question without effect.
        Err(Failure::Broken(error) | Failure::NotSent(error)) => Err(Failure::NotSent(error)),
    }
}
