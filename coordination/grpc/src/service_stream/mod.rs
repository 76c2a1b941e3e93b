//! The stream that a service opens to the sidecar beside it, in place of answering hooks.
//!
//! The sidecar is the pod: it registers, keeps the lease and refuses requests. The service speaks `segue.v1.Pods` as to a
//! coordinator. It gets the callbacks of its [`PodHandle`] as tasks, and lends itself time by its heartbeats: each
//! confirmation lets it work for a *term*, half of the TTL of the pod's lease.
//!
//! Not here: the proxy in front of the service.
//!
//! # Invariants
//!
//! * A registration belongs to one life of the service. A service without the token of that life begins another one, for
//!   which the pod registers anew: it has not got the state of the earlier life.
//! * The pod's lease stands for a service that acts. Without heartbeats, or with a reader that is stuck, for a term, the
//!   service is down.
//! * Nothing is confirmed beyond the moment at which the pod's own work would have to end.
//! * A life is over only when its last confirmation has run out, it says that it has stopped, or it may write nothing.

mod calls;
mod pending_calls;
mod poll;
mod session;
mod state;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use segue_coordination::pod::{CallbackHandler, HandlerError, HandoffContext, LoadReport, PodHandle, Service};
use segue_coordination::session::{lease_now, wakes_at};
use segue_protocol::handoff::pod_reconcile::Callback;
use segue_protocol::ids::PartitionId;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, sleep_until};
use tokio_stream::Stream;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use tonic::transport::server::Connected;
use tracing::Span;

use self::calls::{Calls, ServedPod};
use self::state::{Moment, StreamRecord};
use crate::keyspaces::{GROWING_ROOM, SharedKeyspaces};
use crate::open_streams::{OpenStreams, per_keyspace, serve};
use crate::proto::pods_server::PodsServer as GeneratedServer;
use crate::status::StreamStatus;

/// How many calls of a connection may be open, for each keyspace. In each, a service needs a stream, a Leave and an Ack.
const MAX_CALLS: u32 = 16;

/// The stream of the service behind a sidecar. Clones refer to the same one.
#[derive(Clone)]
pub struct ServiceStream {
    shared: Arc<StreamState>,
}

/// The pod that a service's stream is part of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceStreamSettings {
    /// The name of the keyspace.
    pub keyspace: String,
    /// The pod's name.
    pub pod: String,
    /// The TTL of the pod's lease.
    pub lease_ttl: Duration,
    /// Whether nothing but the service itself ends its work with the lease. It then has to have the capability `fence`.
    pub needs_fence: bool,
}

/// The streams of a service, one for each keyspace, and with each the pod whose callbacks it is the handler of. Clones are
/// the same list.
#[derive(Clone)]
pub struct ServiceStreams {
    pods: SharedKeyspaces<Arc<ServedPod>>,
    /// The number of keyspaces that a connection has room for.
    room: usize,
}

impl fmt::Debug for ServiceStreams {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("ServiceStreams").field("room", &self.room).finish_non_exhaustive()
    }
}

impl ServiceStreams {
    /// Returns a list with these streams.
    pub fn new(streams: impl IntoIterator<Item = (ServiceStream, PodHandle)>) -> Self {
        let pod = |(stream, handle): (ServiceStream, PodHandle)| Arc::new(ServedPod { shared: stream.shared, handle });
        let pods: Vec<_> = streams.into_iter().map(pod).collect();
        ServiceStreams { room: pods.len(), pods: SharedKeyspaces::new(pods) }
    }

    /// Leaves room for streams that are added while they are served.
    pub fn growing(self) -> Self {
        ServiceStreams { room: self.room.max(GROWING_ROOM), ..self }
    }

    /// Adds the stream of one more keyspace.
    pub fn add(&self, stream: ServiceStream, handle: PodHandle) {
        self.pods.add(Arc::new(ServedPod { shared: stream.shared, handle }));
    }

    /// Serves the service's connections until `shutdown`. The service opens a stream for each keyspace.
    ///
    /// # Errors
    ///
    /// Reports what ends tonic's server. A connection that breaks, or cannot be accepted, is no error.
    pub async fn serve<IO>(
        self,
        connections: impl Stream<Item = io::Result<IO>>,
        shutdown: CancellationToken,
    ) -> Result<(), tonic::transport::Error>
    where
        IO: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
    {
        let streams = OpenStreams::default();
        let calls = Calls { pods: self.pods, streams: streams.clone() };
        let max_calls = Some(per_keyspace(MAX_CALLS, self.room));
        let calls = Server::builder().max_concurrent_streams(max_calls).add_service(GeneratedServer::new(calls));
        serve(calls, connections, || vec![streams], shutdown).await
    }
}

struct StreamState {
    settings: ServiceStreamSettings,
    term: Duration,
    state: watch::Sender<StreamRecord>,
    /// The span of the log lines about the keyspace.
    span: Span,
}

impl fmt::Debug for ServiceStream {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("ServiceStream").field("settings", &self.shared.settings).finish_non_exhaustive()
    }
}

impl StreamState {
    /// Changes the state and wakes those who wait for that.
    fn modify<T>(&self, change: impl FnOnce(&mut StreamRecord) -> T) -> T {
        let mut result = None;
        self.state.send_modify(|state| result = Some(change(state)));
        // `watch` has run the closure.
        result.expect("the state was changed")
    }

    /// Changes the state without waking anyone: nobody waits for this part of it.
    fn note<T>(&self, change: impl FnOnce(&mut StreamRecord) -> T) -> T {
        let mut result = None;
        self.state.send_if_modified(|state| {
            result = Some(change(state));
            false
        });
        // `watch` has run the closure.
        result.expect("the state was changed")
    }

    /// Waits until the moment that `over` returns has passed.
    async fn until(&self, over: impl Fn(&StreamRecord) -> Moment) {
        let mut changes = self.state.subscribe();
        loop {
            let at = match over(&changes.borrow_and_update()) {
                Moment::Passed => return,
                Moment::At(at) if at <= lease_now() => return,
                Moment::At(at) => Some(at),
                Moment::Never => None,
            };
            let passed = async {
                match at {
                    Some(at) => sleep_until(wakes_at(at)).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                // The moment may have been put off meanwhile.
                () = passed => {}
                // `shared` holds the sender, so this cannot fail.
                _ = changes.changed() => {}
            }
        }
    }
}

impl ServiceStream {
    /// Returns a stream that the service has not opened yet. Its log lines belong to the present span.
    pub fn new(settings: ServiceStreamSettings) -> Self {
        let term = settings.lease_ttl / 2;
        let (state, span) = (watch::Sender::new(StreamRecord::default()), Span::current());
        ServiceStream { shared: Arc::new(StreamState { settings, term, state, span }) }
    }

    /// Returns why the service takes no part.
    pub fn not_ready(&self) -> Option<String> {
        (!self.shared.state.borrow().takes_part()).then(|| "the service has not opened its stream".to_owned())
    }

    /// Ends this life of the service. Nothing more is confirmed to it.
    pub fn close(&self) {
        self.shared.modify(StreamRecord::close);
    }

    /// Returns whether nothing that the service was given can take effect any more: it has ended all of its work, or said
    /// that it has stopped, or it stops by itself (`fence`) and what was confirmed to it has run out.
    pub fn has_stopped(&self) -> bool {
        self.shared.state.borrow().has_stopped(lease_now())
    }

    /// Returns the state of the stream, if it is open.
    pub fn status(&self) -> Option<StreamStatus> {
        self.shared.state.borrow().status.clone()
    }
}

#[tonic::async_trait]
impl Service for ServiceStream {
    /// Returns once a service that begins a new life has opened its stream.
    async fn up(&self) {
        let mut changes = self.shared.state.subscribe();
        // `shared` holds the sender, so this cannot fail.
        let _ = changes.wait_for(StreamRecord::is_newcomer_there).await;
        self.shared.modify(|state| state.admit(lease_now()));
    }

    /// Returns once the service does not act any more.
    async fn down(&self) {
        let term = self.shared.term;
        self.shared.until(|state| state.silent_from(term)).await;
    }

    fn lend(&self, until: Instant) {
        self.shared.modify(|state| state.lend(until));
    }

    fn accepts(&self, partition: PartitionId) {
        self.shared.note(|state| state.accepts(partition));
    }

    async fn settle(&self, _: Instant) {
        self.close();
        self.shared.until(|state| state.may_write_until().map_or(Moment::Passed, Moment::At)).await;
    }
}

/// A call that is due as long as this exists.
struct CallGuard<'a> {
    shared: &'a StreamState,
    partition: PartitionId,
    number: u64,
}

impl Drop for CallGuard<'_> {
    fn drop(&mut self) {
        self.shared.modify(|state| state.drop_call(self.partition, self.number));
    }
}

#[tonic::async_trait]
impl CallbackHandler for ServiceStream {
    async fn call(&self, callback: Callback, context: &HandoffContext) -> Result<Option<String>, HandlerError> {
        let (done, result) = oneshot::channel();
        let Some(number) = self.shared.modify(|state| state.begin(callback, context, done)) else { return Ok(None) };
        let _due = CallGuard { shared: &self.shared, partition: context.partition, number };
        match result.await {
            Ok(result) => result.map_err(Into::into),
            Err(_) => Err("another task of the partition has taken its place".into()),
        }
    }

    fn load_of(&self, partition: PartitionId) -> LoadReport {
        self.shared.state.borrow().load_of(partition).unwrap_or_default()
    }
}
