//! The connection to etcd: one at a time, to one of the endpoints, replaced when it fails.
//!
//! This is not a load balancer. etcd-client's own spreads calls over all endpoints, whether or not they respond, so a
//! dead member fails every third call while it is dead. Here a failure moves all later calls to the next endpoint.
//!
//! # Invariants
//!
//! * A call is sent once. Only a call of which nothing was sent is retried on another endpoint. (No lower layer repeats
//!   a call either: hyper's HTTP/2 client and tonic's channel have no retry, and etcd-client repeats a call only after
//!   etcd refused its token, which it does before it reads the request.)

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

/// Interval of HTTP/2 pings on a quiet connection. By default (`--grpc-keepalive-min-time`) etcd disconnects clients
/// that ping more often than every 5 s, or without an open stream.
const PING_INTERVAL: Duration = Duration::from_secs(6);
const PING_TIMEOUT: Duration = Duration::from_secs(3);

/// Largest response that is read. etcd's default limit for a whole database is 2 GiB. tonic's default of 4 MiB is too
/// small for a keyspace of some thousand partitions.
const MAX_RESPONSE_BYTES: usize = 1 << 30;

/// One connection.
#[derive(Clone)]
pub(super) struct Connection {
    pub(super) client: Client,
    pub(super) kv: KvClient,
    pub(super) watch: WatchClient,
    pub(super) lease: LeaseClient,
    endpoint: usize,
    /// Cancelled when the connection has become useless. Its watches end then. On a dead connection they would only be
    /// silent, and a lease that is kept alive over the next connection would keep a deaf participant registered.
    pub(super) broken: CancellationToken,
}

/// The current connection to etcd, and what is needed for the next one.
pub(super) struct Connections {
    pub(super) options: EtcdOptions,
    current: Mutex<Current>,
}

struct Current {
    connection: Option<Arc<Connection>>,
    endpoint: usize,
    /// The certificates of the last connection.
    material: Option<Material>,
}

impl Connections {
    /// Returns connections to endpoints that have been validated.
    pub(super) fn new(options: EtcdOptions) -> Self {
        // A random start spreads clients over the members.
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
                Err(_) => return Err(self.no_response()),
            };
            let failure = tokio::select! {
                biased;
                response = timeout_at(deadline, call(Arc::clone(&connection))) => match response {
                    Ok(Ok(response)) => return Ok(response),
                    Ok(Err(error)) => Failure::of(&error),
                    Err(_) => {
                        connection.broken.cancel();
                        return Err(self.no_response());
                    }
                },
                // Another call has noticed first. Waiting for the deadline would use up the time that a participant can
                // be without sight of the store.
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
        self.unavailable(format_args!("no response within {:?}", self.options.request_timeout))
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
        let url = &self.options.endpoints[endpoint];
        let opening = timeout(self.options.connect_timeout, self.connect(url, &mut current.material));
        let client = opening.await.unwrap_or_else(|_| {
            Err(Failure::NotSent(format!("{url} did not respond within {:?}", self.options.connect_timeout)))
        })?;
        let connection = Arc::new(Connection {
            kv: client.kv_client().max_decoding_message_size(MAX_RESPONSE_BYTES),
            watch: client.watch_client().max_decoding_message_size(MAX_RESPONSE_BYTES),
            lease: client.lease_client(),
            client,
            endpoint,
            broken: CancellationToken::new(),
        });
        current.connection = Some(Arc::clone(&connection));
        Ok(connection)
    }

    /// Connects with the certificates in the files, or with `last`, the last usable ones, if the files cannot be used
    /// now.
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
        tracing::warn!(?failure, "etcd certificates cannot be used; keeping the previous ones");
        open(url, with(material)).await
    }

    fn connect_options(&self) -> ConnectOptions {
        let options = ConnectOptions::new()
            .with_connect_timeout(self.options.connect_timeout)
            .with_keep_alive(PING_INTERVAL, PING_TIMEOUT)
            .with_keep_alive_while_idle(false)
            // A member that is cut off from its cluster would keep watches open that nothing reaches.
            .with_require_leader(true);
        match &self.options.credentials {
            Some((user, password)) => options.with_user(user, password).with_auto_token_refresh(true),
            None => options,
        }
    }
}

/// Returns a client of a member that has responded. The kernel accepts connections for a hanging member too, and its
/// first call would waste more time than a short lease has.
async fn open(url: &str, options: ConnectOptions) -> Result<Client, Failure> {
    // Without credentials this sends nothing yet; with them it authenticates.
    let client = Client::connect([url], Some(options)).await.map_err(|error| Failure::of(&error))?;
    // The member responds to this alone, whatever the state of its cluster.
    let own = GetOptions::new().with_serializable().with_count_only();
    match client.kv_client().get("segue", Some(own)).await.map_err(|error| Failure::of(&error)) {
        Ok(_) | Err(Failure::Answered(_)) => Ok(client),
        // Nothing was sent but a question without effect.
        Err(Failure::Broken(error) | Failure::NotSent(error)) => Err(Failure::NotSent(error)),
    }
}
