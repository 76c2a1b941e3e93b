//! Exchanges with services that do the unusual.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::time::Duration;

use http::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::body::empty;
use super::forwarder::Forwarder;
use super::local_reply::LocalReplies;
use super::service_side::UNREAD_TIMEOUT;
use super::upstream::Upstream;
use crate::message::PREFACE;
use crate::settings::UpstreamProtocol;

mod http2;
mod repeated;
mod sockets;

/// More than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// A router's connection to a sidecar.
struct World {
    router: DuplexStream,
    /// The sidecar's first exchange, once it has begun.
    exchange: oneshot::Receiver<JoinHandle<()>>,
    abandoned: CancellationToken,
    lost: CancellationToken,
}

impl World {
    fn new(service: SocketAddr) -> Self {
        World::of(service, UpstreamProtocol::Auto)
    }

    fn of(service: SocketAddr, protocol: UpstreamProtocol) -> Self {
        World::before(Upstream { protocol, ..Upstream::at(service.to_string().parse().unwrap()) })
    }

    fn before(upstream: Upstream) -> Self {
        let (router, sidecar) = tokio::io::duplex(1 << 20);
        let (abandoned, lost) = (CancellationToken::new(), CancellationToken::new());
        let (begun, exchange) = oneshot::channel();
        let (forwarder, begun) = (Forwarder::new(upstream), Mutex::new(Some(begun)));
        let tokens = (abandoned.clone(), lost.clone());
        let service = service_fn(move |request: Request<Incoming>| {
            let replies = LocalReplies { partition: None, grpc: false };
            let (abandoned, lost) = tokens.clone();
            let (exchange, response) =
                forwarder.exchange(request, replies, abandoned.cancelled_owned(), lost.cancelled_owned());
            let exchange = tokio::spawn(exchange);
            if let Some(begun) = begun.lock().unwrap().take() {
                begun.send(exchange).unwrap();
            }
            response
        });
        tokio::spawn(async move {
            let builder = auto::Builder::new(TokioExecutor::new());
            let _ = builder.serve_connection_with_upgrades(TokioIo::new(sidecar), service).await;
        });
        World { router, exchange, abandoned, lost }
    }

    /// Begins an upload by HTTP/1.1 that has no end yet.
    async fn upload(&mut self) {
        self.router.write_all(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\nten bytes.").await.unwrap();
    }
}

async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// Answers a request at once, before its upload has ended.
async fn answered_early(listener: &TcpListener) -> TcpStream {
    let mut service = listener.accept().await.unwrap().0;
    read_to(&mut service, "ten bytes.").await;
    service.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nearly").await.unwrap();
    service
}

/// The address of a service that leaves connections unanswered, as long as the others exist.
pub(super) async fn deaf() -> (TcpListener, Vec<TcpStream>, SocketAddr) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(0).unwrap();
    let address = listener.local_addr().unwrap();
    // Linux queues one more than it was told.
    (listener, vec![TcpStream::connect(address).await.unwrap()], address)
}

pub(crate) const HEADERS_FRAME: u8 = 1;
pub(crate) const PING_FRAME: u8 = 6;

/// Returns the kinds of the HTTP/2 frames that a server is sent in `time`, in which it sends no more than its settings.
pub(crate) async fn frames_for(mut server: TcpStream, time: Duration) -> Vec<u8> {
    server.write_all(b"\0\0\0\x04\0\0\0\0\0").await.unwrap();
    let mut read = Vec::new();
    let closed = timeout(time, server.read_to_end(&mut read)).await;
    assert!(closed.is_err(), "the connection was closed");
    let (mut frames, mut rest) = (Vec::new(), read.strip_prefix(PREFACE).unwrap());
    while let [a, b, c, kind, ..] = *rest {
        frames.push(kind);
        rest = &rest[9 + u32::from_be_bytes([0, a, b, c]) as usize..];
    }
    frames
}

async fn read_to(stream: &mut (impl AsyncRead + Unpin), end: &str) {
    let mut read = Vec::new();
    while !read.ends_with(end.as_bytes()) {
        assert_ne!(stream.read_buf(&mut read).await.unwrap(), 0, "{}", String::from_utf8_lossy(&read));
    }
}

async fn in_time<T>(future: impl Future<Output = T>) -> T {
    timeout(PATIENCE, future).await.unwrap()
}

#[tokio::test]
async fn an_upload_that_is_cut_off_after_its_answer_counts_until_the_service_has_ended() {
    let (listener, address) = listen().await;
    let mut world = World::new(address);
    world.upload().await;
    let mut service = in_time(answered_early(&listener)).await;
    in_time(read_to(&mut world.router, "early")).await;
    let exchange = world.exchange.await.unwrap();
    drop(world.router);
    assert_eq!(in_time(service.read(&mut [0; 1])).await.unwrap(), 0, "the service is told");
    assert!(!exchange.is_finished(), "the service works on what it has");
    drop(service);
    in_time(exchange).await.unwrap();
}

#[tokio::test]
async fn a_service_that_is_silent_in_its_response_is_told_that_its_router_has_gone() {
    let (listener, address) = listen().await;
    let mut world = World::new(address);
    world.router.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut service = in_time(listener.accept()).await.unwrap().0;
    in_time(read_to(&mut service, "\r\n\r\n")).await;
    service.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\nbegun").await.unwrap();
    in_time(read_to(&mut world.router, "begun")).await;
    let exchange = world.exchange.await.unwrap();
    drop(world.router);
    assert_eq!(in_time(service.read(&mut [0; 1])).await.unwrap(), 0);
    assert!(!exchange.is_finished(), "the service works on");
    drop(service);
    in_time(exchange).await.unwrap();
}

/// As services do that write without reading: a thread for each client, or a loop over subscribers.
#[tokio::test]
async fn a_service_that_overlooks_that_its_router_has_gone_is_reset_unless_its_response_is_about_its_work() {
    for (method, kind, is_reset) in
        [("GET", "text/plain", true), ("POST", "text/event-stream", true), ("POST", "application/json", false)]
    {
        let (listener, address) = listen().await;
        let mut world = World::new(address);
        let head = format!("{method} / HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n");
        world.router.write_all(head.as_bytes()).await.unwrap();
        let mut service = in_time(listener.accept()).await.unwrap().0;
        in_time(read_to(&mut service, "\r\n\r\n")).await;
        let head = format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\n\r\n");
        service.write_all(format!("{head}6\r\nbegun\n\r\n").as_bytes()).await.unwrap();
        in_time(read_to(&mut world.router, "begun\n\r\n")).await;
        let exchange = world.exchange.await.unwrap();
        drop(world.router);
        assert_eq!(in_time(service.read(&mut [0; 1])).await.unwrap(), 0, "the service is told");
        let begun = Instant::now();
        let more = async {
            while begun.elapsed() < 2 * UNREAD_TIMEOUT && service.write_all(b"5\r\nevent\r\n").await.is_ok() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        in_time(more).await;
        if !is_reset {
            assert!(!exchange.is_finished(), "{method}, {kind}: the service works on");
            service.write_all(b"0\r\n\r\n").await.unwrap();
        }
        in_time(exchange).await.unwrap();
    }
}

/// As a service does that sends to its subscribers and reads nothing, or that answers no close.
#[tokio::test]
async fn a_switched_connection_is_reset_when_the_service_overlooks_that_its_router_has_gone() {
    const SWITCH: &str = "connection: upgrade\r\nupgrade: websocket\r\n\r\n";
    for closes in [true, false] {
        let (listener, address) = listen().await;
        let mut world = World::new(address);
        world.router.write_all(format!("GET / HTTP/1.1\r\nhost: x\r\n{SWITCH}").as_bytes()).await.unwrap();
        let mut service = in_time(listener.accept()).await.unwrap().0;
        in_time(read_to(&mut service, "\r\n\r\n")).await;
        service.write_all(format!("HTTP/1.1 101 Switching Protocols\r\n{SWITCH}begun").as_bytes()).await.unwrap();
        in_time(read_to(&mut world.router, "begun")).await;
        let exchange = world.exchange.await.unwrap();
        drop(world.router);
        assert_eq!(in_time(service.read(&mut [0; 1])).await.unwrap(), 0, "the service is told");
        assert!(!exchange.is_finished(), "the service may end what it has begun");
        if closes {
            drop(service);
            in_time(exchange).await.unwrap();
        } else {
            in_time(exchange).await.unwrap();
            in_time(service.write_all(b"an event")).await.expect_err("it is reset");
        }
    }
}

#[tokio::test]
async fn an_upload_goes_no_further_once_the_lease_is_lost() {
    let (listener, address) = listen().await;
    let mut world = World::new(address);
    world.upload().await;
    let mut service = in_time(answered_early(&listener)).await;
    in_time(read_to(&mut world.router, "early")).await;
    // As its task is when the lease is lost.
    world.exchange.await.unwrap().abort();
    world.lost.cancel();
    let _ = world.router.write_all(b"and more").await;
    let mut more = Vec::new();
    in_time(service.read_to_end(&mut more)).await.unwrap();
    assert_eq!(more, b"");
}

/// Begins to build a request of gRPC.
fn call(method: &str) -> http::request::Builder {
    Request::builder().method(method).uri("http://x/").header("content-type", "application/grpc")
}

#[tokio::test(start_paused = true)]
async fn a_request_that_waits_for_a_connection_ends_with_its_router() {
    for by_http2 in [false, true] {
        let (_listener, _queued, address) = deaf().await;
        let mut world = World::new(address);
        world.abandoned.cancel();
        let begun = Instant::now();
        if by_http2 {
            let (mut client, connection) =
                hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(world.router)).await.unwrap();
            tokio::spawn(connection);
            tokio::spawn(client.send_request(call("GET").body(empty()).unwrap()));
        } else {
            world.upload().await;
        }
        world.exchange.await.unwrap().await.unwrap();
        assert_eq!(begun.elapsed().as_secs(), 0, "the time in which to connect was waited out; by HTTP/2: {by_http2}");
    }
}

#[tokio::test]
async fn a_connection_behind_an_error_of_the_service_carries_no_other_request() {
    const GET: &[u8] = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n";
    let (listener, address) = listen().await;
    let mut world = World::new(address);
    world.router.write_all(GET).await.unwrap();
    let mut service = in_time(listener.accept()).await.unwrap().0;
    read_to(&mut service, "\r\n\r\n").await;
    service.write_all(b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 5\r\n\r\nerror").await.unwrap();
    in_time(read_to(&mut world.router, "error")).await;
    world.router.write_all(GET).await.unwrap();
    let mut service = in_time(listener.accept()).await.unwrap().0;
    in_time(read_to(&mut service, "\r\n\r\n")).await;
}

/// hyper reads them by their coding and keeps their length, to which it would cut what it forwards.
#[tokio::test]
async fn a_response_with_a_length_beside_its_coding_arrives_whole_and_one_with_another_coding_does_not() {
    const GET: &[u8] = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    for (coding, length, begins, ends) in [
        ("chunked", 5, "HTTP/1.1 200 ", "ten bytes."),
        ("chunked", 50, "HTTP/1.1 200 ", "ten bytes."),
        ("gzip, chunked", 10, "HTTP/1.1 502 ", "}"),
    ] {
        let (listener, address) = listen().await;
        let mut world = World::new(address);
        world.router.write_all(GET).await.unwrap();
        let mut service = in_time(listener.accept()).await.unwrap().0;
        read_to(&mut service, "\r\n\r\n").await;
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\ntransfer-encoding: {coding}\r\n\r\n");
        service.write_all(format!("{head}a\r\nten bytes.\r\n0\r\n\r\n").as_bytes()).await.unwrap();
        let exchange = world.exchange.await.unwrap();
        let mut told = String::new();
        in_time(world.router.read_to_string(&mut told)).await.unwrap();
        let body = told.split_once("\r\n\r\n").unwrap().1.trim_start_matches("a\r\n").trim_end_matches("\r\n0\r\n\r\n");
        assert!(told.starts_with(begins) && body.ends_with(ends), "{coding}, {length}: {told}");
        in_time(exchange).await.unwrap();
        in_time(service.read_to_end(&mut Vec::new())).await.expect("the connection carries no other request");
    }
}

#[tokio::test]
async fn a_request_that_a_service_of_another_protocol_cannot_read_is_given_back() {
    for (words, expected) in [
        (&["HT", "TP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n"][..], "HTTP/1.1 421 "),
        // It may have read the request.
        (&[], "HTTP/1.1 502 "),
    ] {
        let (listener, address) = listen().await;
        let mut world = World::of(address, UpstreamProtocol::Http2);
        world.upload().await;
        let mut service = listener.accept().await.unwrap().0;
        read_to(&mut service, "ten bytes.").await;
        for word in words {
            service.write_all(word.as_bytes()).await.unwrap();
        }
        drop(service);
        let mut told = String::new();
        while !told.contains("\r\n\r\n") {
            let mut bytes = [0; 1 << 10];
            let count = in_time(world.router.read(&mut bytes)).await.unwrap();
            assert!(count > 0, "{told}");
            told += &String::from_utf8_lossy(&bytes[..count]);
        }
        assert!(told.starts_with(expected), "{told}");
        assert_eq!(told.contains("segue-misdirected: 1"), !words.is_empty(), "{told}");
        in_time(in_time(world.exchange).await.unwrap()).await.unwrap();
    }
}
