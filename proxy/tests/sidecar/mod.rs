//! Sidecars whose partitions move while their service has HTTP/2 streams that do not end.
//!
//! Elsewhere: services whose faults others must not suffer from ([`faults`]), keyspaces that come and go ([`keyspaces`]).

mod faults;
mod keyspaces;

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt as _, Empty, StreamBody};
use hyper::body::Incoming;
use hyper::client::conn::http2::SendRequest;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use segue_coordination::coordinator::{CoordinatorSettings, CoordinatorStatus, run_coordinator};
use segue_coordination::pod::{PodHandle, PodSettings};
use segue_coordination::store::MemoryStore;
use segue_coordination::test_util::StoredKeyspace;
use segue_protocol::ids::PartitionId;
use segue_protocol::planning::Policy;
use segue_protocol::records::Capabilities;
use segue_proxy::settings::UpstreamProtocol;
use segue_proxy::sidecar::{Sidecar, Upstream};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::support::soon;

/// The partition that moves; the ones before it have exchanges of others.
const MOVES: PartitionId = PartitionId::new(12);
const PARTITIONS: u32 = 13;
/// Longer than anything here takes, so that nothing is cancelled.
const LONG: Duration = Duration::from_secs(600);

/// The responses of a service that do not end: the sender of each, by its path. It is closed once the stream was reset.
type Open = Arc<Mutex<HashMap<String, mpsc::UnboundedSender<Bytes>>>>;

/// Starts a service that responds by HTTP/2 with the first bytes of a response whose rest is up to the test.
async fn service() -> (SocketAddr, Open) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, open) = (listener.local_addr().unwrap(), Open::default());
    let streams = open.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let streams = streams.clone();
            let service = service_fn(move |request: Request<Incoming>| {
                let (send, mut sent) = mpsc::unbounded_channel();
                send.send(Bytes::from_static(b"begun")).unwrap();
                streams.lock().unwrap().insert(request.uri().path().to_owned(), send);
                let frames = futures_util::stream::poll_fn(move |context| {
                    sent.poll_recv(context).map(|data| data.map(|data| Ok::<_, Infallible>(Frame::data(data))))
                });
                std::future::ready(Ok::<_, Infallible>(Response::new(StreamBody::new(frames))))
            });
            let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            tokio::spawn(builder.serve_connection(TokioIo::new(stream), service));
        }
    });
    (address, open)
}

/// A pod with a sidecar that owns all partitions, a coordinator, and a router's connection.
struct Site {
    stored: StoredKeyspace,
    pod: PodHandle,
    address: SocketAddr,
    router: SendRequest<Empty<Bytes>>,
    open: Open,
    _stop: tokio_util::sync::DropGuard,
}

impl Site {
    async fn start() -> Self {
        let (service, open) = service().await;
        Site { open, ..Site::of(service, UpstreamProtocol::Http2).await }
    }

    /// Starts one whose service at this address is spoken to by this protocol.
    async fn of(service: SocketAddr, protocol: UpstreamProtocol) -> Self {
        let stored = StoredKeyspace::new(Arc::new(MemoryStore::new()), "default");
        let policy = Policy {
            partitions: PARTITIONS,
            settle: Duration::from_millis(10),
            min_interval: Duration::from_millis(10),
            phase_timeout: LONG,
            ..Policy::default()
        };
        let settings = CoordinatorSettings { name: "c-0".to_owned(), lease_ttl: Duration::from_secs(10), policy };
        let (stop, (status, _)) = (CancellationToken::new(), watch::channel(CoordinatorStatus::default()));
        let (store, keys) = (stored.store.clone(), stored.keys.clone());
        tokio::spawn(run_coordinator(store, keys, settings, Arc::new(()), status, stop.clone()));

        let sidecar = Sidecar::bind("127.0.0.1:0".parse().unwrap(), None, 100).await.unwrap();
        let address = sidecar.local_addr().unwrap();
        let pod = pod(&stored, "w", address);
        let upstream = Upstream { protocol, ..Upstream::at(service.to_string().parse().unwrap()) };
        tokio::spawn(sidecar.serve([(pod.layer(), upstream)].into_iter().collect(), stop.clone(), LONG));
        soon(pod.status().wait_for(|state| state.owned.len() == PARTITIONS as usize)).await.unwrap();
        let stream = TokioIo::new(TcpStream::connect(address).await.unwrap());
        let (router, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), stream).await.unwrap();
        tokio::spawn(connection);
        Site { stored, pod, address, router, open: Open::default(), _stop: stop.drop_guard() }
    }

    /// Begins an exchange whose response does not end. Returns it once it has begun.
    async fn begin(&self, partition: PartitionId, path: &str) -> Incoming {
        let epoch = self.pod.status().borrow().owned[&partition];
        let request = Request::get(format!("http://service{path}"))
            .header("segue-partition", partition.get())
            .header("segue-epoch", epoch.get())
            .body(Empty::new())
            .unwrap();
        let response = soon(self.router.clone().send_request(request)).await.unwrap();
        assert_eq!(response.status(), 200);
        let mut body = response.into_body();
        assert_eq!(soon(body.frame()).await.unwrap().unwrap().into_data().unwrap(), "begun");
        body
    }

    async fn has_moved(&self) -> bool {
        self.stored.view().await.assignments.get(&MOVES).is_some_and(|assignment| assignment.value.owner == "next")
    }

    /// Moves all partitions to another pod, each as soon as it can, and returns when `MOVES` has moved.
    async fn drain(&self) {
        let _next = pod(&self.stored, "next", "127.0.0.1:1".parse().unwrap());
        self.pod.set_draining();
        let begun = Instant::now();
        while !self.has_moved().await {
            assert!(begun.elapsed() < Duration::from_secs(120), "the partition's drain does not end");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

fn pod(stored: &StoredKeyspace, name: &str, address: SocketAddr) -> PodHandle {
    let settings = PodSettings { capabilities: Capabilities::ALL, ..PodSettings::new(name, address.to_string()) };
    let keyspace = stored.keys.name();
    PodHandle::start(stored.store.clone(), keyspace, stored.keys.clone(), settings, Arc::new(()))
}

#[tokio::test]
async fn a_cancelled_http2_stream_holds_up_no_drain_while_other_partitions_have_streams() {
    let site = Site::start().await;
    let mut others = Vec::new();
    for partition in PartitionId::all(MOVES.get()) {
        others.push(site.begin(partition, &format!("/{partition}")).await);
    }
    drop(site.begin(MOVES, "/cancelled").await);
    site.drain().await;
    let open = site.open.lock().unwrap();
    assert!(open["/cancelled"].is_closed(), "the service has been told");
    let gone: Vec<_> = open.iter().filter(|(path, sender)| *path != "/cancelled" && sender.is_closed()).collect();
    assert!(gone.is_empty(), "{gone:?}");
}

/// Another client's stream of the same partition ends in the drain.
#[tokio::test]
async fn a_cancelled_http2_stream_counts_no_longer_than_the_other_streams_of_its_partition() {
    let site = Site::start().await;
    let _other = site.begin(PartitionId::new(0), "/0").await;
    let beside = site.begin(MOVES, "/beside").await;
    drop(site.begin(MOVES, "/cancelled").await);
    let after = site.begin(MOVES, "/after").await;
    drop((beside, after));
    site.drain().await;
    assert!(!site.open.lock().unwrap()["/0"].is_closed());
}

/// A response that goes on for ever says nothing at the moment, or always something.
#[tokio::test]
async fn a_response_that_never_ends_is_reset_when_its_router_has_gone() {
    for talks in [false, true] {
        let site = Site::start().await;
        drop(site.begin(MOVES, "/endless").await);
        let sender = site.open.lock().unwrap()["/endless"].clone();
        let talking = tokio::spawn(async move {
            while talks && sender.send(Bytes::from_static(b"more")).is_ok() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        });
        site.drain().await;
        soon(talking).await.unwrap();
    }
}

/// A router takes 100 headers from its client and adds up to eight.
#[tokio::test]
async fn a_request_with_as_many_headers_as_a_router_takes_gets_through_its_sidecar() {
    let site = Site::start().await;
    let epoch = site.pod.status().borrow().owned[&MOVES].get();
    let clients: String = (0..99).map(|number| format!("x-{number}: a\r\n")).collect();
    let added = format!(
        "segue-partition: {MOVES}\r\nsegue-epoch: {epoch}\r\nsegue-router: r\r\nsegue-keyspace: default\r\n\
         x-forwarded-for: ::1\r\nx-forwarded-proto: http\r\nvia: 1.1 r\r\ntraceparent: 00-0-0-00\r\n"
    );
    let mut router = TcpStream::connect(site.address).await.unwrap();
    router.write_all(format!("GET / HTTP/1.1\r\nhost: h\r\n{clients}{added}\r\n").as_bytes()).await.unwrap();
    let mut status = [0; 12];
    soon(router.read_exact(&mut status)).await.unwrap();
    assert_eq!(status.escape_ascii().to_string(), "HTTP/1.1 200");
}
