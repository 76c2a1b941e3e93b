//! The calls of the service, and its listener.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use segue_coordination::store::{HorizonStore, Store};
use segue_protocol::ids::Revision;
use segue_protocol::keys::Keyspace;
use tokio::net::TcpListener;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use tonic::{Request, Response, Status, Streaming};
use tracing::{Instrument as _, Span};

use crate::access::{Access, PodsToken};
use crate::ack::acknowledge;
use crate::attach::{AttachMode, attach, ensure_goes_on, find};
use crate::connection::{Peer, PodsTls, incoming};
use crate::event_stream::{EventStream, first_heartbeat, hello_in, no_hello};
use crate::hello::agree;
use crate::hub::Hub;
use crate::keyspaces::{GROWING_ROOM, SharedKeyspaces};
use crate::leave::leave;
use crate::load_reports::LoadReports;
use crate::observer::PodsObserver;
use crate::open_streams::{OpenStreams, per_keyspace, serve};
use crate::poll::poll;
use crate::proto::pods_server::{Pods, PodsServer as GeneratedServer};
use crate::proto::{AckRequest, AckResponse, Event, Heartbeat, Hello, LeaveRequest, LeaveResponse, PollRequest};
use crate::sessions::PodSessions;
use crate::shared::{KeyspaceService, PATIENCE, PodsSettings, check_count};
use crate::status::StreamStatus;
use crate::stream::Stream;
use crate::token::Token;

/// Interval and timeout of HTTP/2 keep-alive pings. A pod that does not respond loses its stream, not its registration.
const PING: Duration = Duration::from_secs(10);

/// How many calls of a connection may be open, for each keyspace. In each, a pod needs a stream, a Leave and an Ack.
const MAX_CALLS: u32 = 64;

/// How many acknowledgements of a request are handled at a time.
const ACKS_AT_A_TIME: usize = 64;

/// The service `segue.v1.Pods` of one instance: one listener for all of its keyspaces.
#[derive(Debug)]
pub struct PodsServer {
    keyspaces: SharedKeyspaces<Arc<KeyspaceService>>,
    /// The number of keyspaces that a pod's connection has room for.
    room: usize,
    access: Access,
}

/// A keyspace of the service.
#[derive(Debug)]
pub struct PodsKeyspace(Arc<KeyspaceService>);

/// The keyspaces of a service that runs, to be changed.
#[derive(Debug, Clone)]
pub struct PodsKeyspaces(SharedKeyspaces<Arc<KeyspaceService>>);

impl PodsKeyspaces {
    /// Serves one more keyspace.
    pub fn add(&self, PodsKeyspace(shared): PodsKeyspace) {
        self.0.add(shared);
    }

    /// Takes a keyspace out. Its pods are told to connect to another instance.
    pub fn remove(&self, name: &str) {
        self.0.remove(name).iter().for_each(|shared| shared.streams.end());
    }
}

/// The pods that have a stream at this instance or poll it, of one keyspace.
#[derive(Debug, Clone)]
pub struct PodsStatus(Arc<PodSessions>);

impl PodsStatus {
    /// Returns the state of each stream and of each pod that polls, by the pods' names.
    pub fn streams(&self) -> Vec<StreamStatus> {
        self.0.streams()
    }
}

impl PodsKeyspace {
    /// Begins to follow a keyspace. Its log lines belong to the present span.
    pub fn new(store: Arc<dyn Store>, keys: Keyspace, settings: PodsSettings, observer: Arc<dyn PodsObserver>) -> Self {
        let (store, horizon) = HorizonStore::around(store);
        let hub = Hub::start(store.clone(), keys.clone());
        let keyspace = settings.keyspace.clone();
        let (sessions, loads) = (Arc::default(), LoadReports::default());
        let (streams, span) = (OpenStreams::default(), Span::current());
        PodsKeyspace(Arc::new(KeyspaceService {
            instance: rand::random(),
            store,
            horizon,
            keys,
            keyspace,
            settings,
            hub,
            observer,
            sessions,
            loads,
            streams,
            span,
        }))
    }

    /// Returns a handle to the state of the pods' streams, which outlives the service.
    pub fn status(&self) -> PodsStatus {
        PodsStatus(self.0.sessions.clone())
    }
}

impl PodsServer {
    /// Returns the service of these keyspaces.
    pub fn new(keyspaces: impl IntoIterator<Item = PodsKeyspace>) -> Self {
        let keyspaces: Vec<_> = keyspaces.into_iter().map(|PodsKeyspace(shared)| shared).collect();
        PodsServer { room: keyspaces.len(), keyspaces: SharedKeyspaces::new(keyspaces), access: Access(None) }
    }

    /// Leaves room for keyspaces that are added while it serves, and returns what adds them.
    pub fn growing(self) -> (Self, PodsKeyspaces) {
        let keyspaces = PodsKeyspaces(self.keyspaces.clone());
        (PodsServer { room: self.room.max(GROWING_ROOM), ..self }, keyspaces)
    }

    /// Returns the service for calls that present this token, and no others.
    pub fn with_token(self, token: PodsToken) -> Self {
        PodsServer { access: Access(Some(token)), ..self }
    }

    /// Serves pods until `shutdown`, and then tells them to connect to another instance. Without `tls` in clear text.
    ///
    /// # Errors
    ///
    /// Reports what ends tonic's server. A connection that breaks ends alone and is no error.
    pub async fn serve(
        self,
        listener: TcpListener,
        tls: Option<PodsTls>,
        shutdown: CancellationToken,
    ) -> Result<(), tonic::transport::Error> {
        let keyspaces = self.keyspaces.clone();
        let streams = move || keyspaces.all().iter().map(|shared| shared.streams.clone()).collect();
        let keyspaces = self.keyspaces;
        let calls = Server::builder()
            .http2_keepalive_interval(Some(PING))
            .http2_keepalive_timeout(Some(PING))
            .max_concurrent_streams(Some(per_keyspace(MAX_CALLS, self.room)))
            .add_service(GeneratedServer::with_interceptor(Calls { keyspaces }, self.access));
        serve(calls, incoming(listener, tls), streams, shutdown).await
    }
}

struct Calls {
    keyspaces: SharedKeyspaces<Arc<KeyspaceService>>,
}

#[tonic::async_trait]
impl Pods for Calls {
    type RegisterStream = EventStream;

    async fn register(&self, request: Request<Streaming<Heartbeat>>) -> Result<Response<EventStream>, Status> {
        let peer = Peer::of(request.extensions());
        let mut heartbeats = request.into_inner();
        let first = first_heartbeat(&mut heartbeats).await?;
        let hello = hello_in(&first)?;
        let shared = &self.of_hello(hello)?;
        peer.speaks_for(&hello.pod)?;
        let attached =
            attach(shared, hello, AttachMode::Stream, Revision::ZERO).instrument(shared.span.clone()).await?;
        let stream = Stream::begin(shared.clone(), attached, &first).await?;
        let (sender, events) = EventStream::new();
        shared.streams.tasks.spawn(stream.run(heartbeats, sender).instrument(shared.span.clone()));
        Ok(Response::new(events))
    }

    async fn ack(&self, request: Request<AckRequest>) -> Result<Response<AckResponse>, Status> {
        let peer = Peer::of(request.extensions());
        let AckRequest { resume: token, acks } = request.into_inner();
        check_count(&acks)?;
        let token = Token::parse(&token)?;
        let shared = &self.keyspaces.choose(&token.keyspace)?;
        peer.speaks_for(&token.pod)?;
        let token = proven(shared, token).await?;
        // One deadline for all chunks: with one each, a chunk of early acknowledgements would delay those after it by
        // `PATIENCE`.
        let deadline = Instant::now() + PATIENCE;
        let mut outcomes = Vec::with_capacity(acks.len());
        for acks in acks.chunks(ACKS_AT_A_TIME) {
            let acknowledged = acks.iter().map(|ack| acknowledge(shared, &token, ack, deadline));
            let acknowledged = join_all(acknowledged).instrument(shared.span.clone()).await;
            outcomes.extend(acknowledged.into_iter().map(i32::from));
        }
        Ok(Response::new(AckResponse { outcomes }))
    }

    async fn poll(&self, request: Request<PollRequest>) -> Result<Response<Event>, Status> {
        let peer = Peer::of(request.extensions());
        let PollRequest { heartbeat, after_revision, wait } = request.into_inner();
        let heartbeat = heartbeat.ok_or_else(no_hello)?;
        let hello = hello_in(&heartbeat)?;
        let shared = &self.of_hello(hello)?;
        peer.speaks_for(&hello.pod)?;
        let wait = wait.and_then(|wait| Duration::try_from(wait).ok()).unwrap_or_default();
        let polled = poll(shared, &heartbeat, hello, (after_revision.into(), wait));
        polled.instrument(shared.span.clone()).await.map(Response::new)
    }

    async fn leave(&self, request: Request<LeaveRequest>) -> Result<Response<LeaveResponse>, Status> {
        let peer = Peer::of(request.extensions());
        let LeaveRequest { resume: token, now } = request.into_inner();
        let token = Token::parse(&token)?;
        let shared = &self.keyspaces.choose(&token.keyspace)?;
        peer.speaks_for(&token.pod)?;
        let leaving = leave(shared, token, now).instrument(shared.span.clone());
        let left = shared.streams.ending.run_until_cancelled(leaving).await;
        left.unwrap_or_else(|| Err(Status::unavailable("this instance shuts down; use another one"))).map(Response::new)
    }
}

impl Calls {
    /// Returns the keyspace that the pod takes part in.
    fn of_hello(&self, hello: &Hello) -> Result<Arc<KeyspaceService>, Status> {
        agree(hello)?;
        self.keyspaces.choose(&hello.keyspace)
    }
}

/// Returns the token if its registration exists, and its life goes on.
async fn proven(shared: &KeyspaceService, token: Token) -> Result<Token, Status> {
    let known = {
        let view = shared.hub.view();
        let record = view.live_pod(&token.pod, token.incarnation());
        record.and_then(|record| record.resume_digest.as_deref()).map(|digest| token.proves(digest))
    };
    let token = match known {
        Some(proven) => proven.map(|()| token)?,
        // The view may be stale, or another writer may have overwritten the record.
        None => match find(shared, token).await? {
            Some(found) => found.token,
            None => return Err(Status::not_found("the registration is over; register again")),
        },
    };
    ensure_goes_on(shared, &token).map(|()| token)
}
