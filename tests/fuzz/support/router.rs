//! A router that gets arbitrary bytes from a client, and the pod behind it, on real sockets in one thread.
//!
//! Client, router and pod are tasks of one runtime. The pod answers each whole request and nothing else, and records
//! what it gets.
//!
//! # Invariants
//!
//! * Each request at the pod is whole, framed in one way, and stamped by this router.
//! * Nothing is left in flight once the client has disconnected.
//! * Each request at the pod is one of a client that is known, even if that one has gone.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use segue_coordination::router::DataPlane;
use segue_protocol::handoff::router::Target;
use segue_protocol::ids::{Incarnation, PartitionId};
use segue_protocol::records::PodRecord;
use segue_proxy::forward::Forward;
use segue_proxy::fuzzing::serve_client;
use segue_proxy::metrics::{Metrics, WorkerMetrics};
use segue_proxy::routing::partition_key::PartitionSource;
use segue_proxy::routing::table::{StashLimits, Table};
use segue_proxy::settings::{
    ClientLimits, ForwardSettings, LoggedRequests, OwnerExceptions, UPLOAD_GRACE, UpstreamProtocol, UpstreamSettings,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::frames::{self, DATA, END_STREAM, Frame, HEADERS};
use super::wire::{self, Manner, Message, Stop};

/// The only partition.
const P0: PartitionId = PartitionId::new(0);

/// Longer than any step of a run takes.
const PATIENCE: Duration = Duration::from_secs(60);

pub struct Router {
    forward: Forward,
    table: Arc<Table>,
    metrics: Arc<WorkerMetrics>,
    limits: ClientLimits,
    front: TcpListener,
    /// How many clients there have been. Each has an address of its own, which its requests carry.
    clients: Cell<u64>,
    /// The clients that were served last.
    past: RefCell<VecDeque<Client>>,
    seen: Seen,
}

/// How many clients are remembered. A request that comes later than that many others is one of nobody.
const PAST_CLIENTS: usize = 256;

/// What a client has sent, and what of it has reached the pod.
#[derive(Debug, Clone)]
pub struct Client {
    address: String,
    pub sent: Vec<u8>,
    pub seen: Vec<Message>,
}

/// The outcome of serving a client.
pub struct Served {
    pub answers: Vec<u8>,
    /// The whole requests that the pod got.
    pub seen: Vec<Message>,
    /// Earlier clients of whom a request has come since: one whose client has gone is abandoned, perhaps before the pod has read
    /// it. Each with all of its requests.
    pub late: Vec<Client>,
}

/// How a client ends after its last byte.
pub enum Ending<'a> {
    /// It sends one more request, after which the router closes the connection.
    Last(&'a [u8]),
    /// It closes its side after all other tasks have had this many turns.
    Close { turns: usize },
    /// It closes its side once this many streams have complete responses.
    Answered { streams: usize },
}

/// The data that the pod has got since it was last read.
#[derive(Clone, Default)]
struct Seen {
    /// The bytes of each HTTP/1.1 connection.
    bytes: Rc<RefCell<Vec<Rc<RefCell<Heard>>>>>,
    /// The HTTP/2 requests.
    messages: Rc<RefCell<Vec<Message>>>,
}

#[derive(Debug, Default)]
struct Heard {
    bytes: Vec<u8>,
    closed: bool,
}

impl Heard {
    fn is_in_the_middle(&self) -> bool {
        let (_, rest, stop) = wire::requests(&self.bytes, Manner::Strict);
        !self.closed && stop == Stop::Incomplete && !rest.is_empty()
    }
}

impl Router {
    /// Starts a router and a pod. `protocol` is the version between them, `Http1` or `Http2`.
    pub async fn new(protocol: UpstreamProtocol) -> Self {
        let limits = StashLimits {
            max_requests: 100,
            max_bytes: 1 << 20,
            max_total_bytes: 1 << 20,
            max_wait: PATIENCE,
            flush_concurrency: 16,
        };
        let (table, _notices) = Table::new(1, limits);
        table.set_partitions(1);
        table.trust_until(tokio::time::Instant::now() + Duration::from_secs(1 << 20));
        let metrics = Metrics::new(1).worker(0);
        let settings = ForwardSettings {
            router: "r".to_owned(),
            keyspace: "k".to_owned(),
            partition: PartitionSource::Number { header: PartitionSource::DEFAULT_HEADER, order_by: None },
            trust_forwarded: false,
            exceptions: OwnerExceptions::default(),
            limits: ClientLimits { min_upload_rate: 0, ..ClientLimits::default() },
            key_limit: None,
            upload_grace: UPLOAD_GRACE,
            tracer: None,
            requests: LoggedRequests::None,
            upstream: UpstreamSettings { protocol, ..UpstreamSettings::default() },
        };
        let forward = Forward::only((settings.clone(), table.worker(0), metrics.clone())).expect("names");
        let seen = Seen::default();
        let pod = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        lead(&table, pod.local_addr().expect("an address"));
        let is_http2 = protocol == UpstreamProtocol::Http2;
        tokio::task::spawn_local(serve_pod(pod, is_http2, seen.clone()));
        let front = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        Router {
            forward,
            table,
            metrics,
            limits: settings.limits,
            front,
            clients: Cell::new(0),
            past: RefCell::default(),
            seen,
        }
    }

    /// Sends the pieces and reads to the end.
    pub async fn serve(&self, pieces: &[&[u8]], ending: Ending<'_>) -> Served {
        let address = format!("2001:db8::{:x}", self.clients.replace(self.clients.get() + 1));
        match tokio::time::timeout(PATIENCE, self.exchange(&address, pieces, ending)).await {
            Ok(answers) => {
                let (seen, late) = self.at_the_pod(Client { address, sent: pieces.concat(), seen: Vec::new() });
                Served { answers, seen, late }
            }
            Err(_) => panic!(
                "not answered, not hung up on, or half a request left with the pod; {} in flight, {:?}",
                self.table.in_flight(P0),
                self.seen.bytes.borrow()
            ),
        }
    }

    async fn exchange(&self, client: &str, pieces: &[&[u8]], ending: Ending<'_>) -> Vec<u8> {
        let peer = HeaderValue::from_str(client).expect("a header value");
        let address = self.front.local_addr().expect("an address");
        let (client, accepted) = tokio::join!(TcpStream::connect(address), self.front.accept());
        let (mut client, (stream, _)) = (client.expect("a connection"), accepted.expect("a connection"));
        client.set_nodelay(true).expect("an option");
        // There are thousands of connections a second. None may leave its port in TIME_WAIT.
        client.set_zero_linger().expect("an option");
        let served = serve_client(stream, peer, self.forward.clone(), self.metrics.clone(), &self.limits);
        let talk = async move {
            let mut answers = Vec::new();
            for piece in pieces {
                // A router that has closed the connection reads no more.
                if client.write_all(piece).await.is_err() {
                    break;
                }
                tokio::task::yield_now().await;
            }
            match ending {
                Ending::Last(request) => drop(client.write_all(request).await),
                Ending::Close { turns } => {
                    for _ in 0..turns {
                        tokio::task::yield_now().await;
                    }
                    drop(client.shutdown().await);
                }
                Ending::Answered { streams } => {
                    while ended(&answers) < streams && matches!(client.read_buf(&mut answers).await, Ok(1..)) {}
                    drop(client.shutdown().await);
                }
            }
            let _ = client.read_to_end(&mut answers).await;
            // The router waits for this: it reads on for a while after it has refused a request.
            drop(client);
            answers
        };
        let (answers, ()) = tokio::join!(talk, served);
        // Whole requests are finished without the client. Those that it cut off end with their connections to the pod.
        let in_the_middle = || self.seen.bytes.borrow().iter().any(|heard| heard.borrow().is_in_the_middle());
        while self.table.in_flight(P0) > 0 || in_the_middle() {
            tokio::time::sleep(Duration::from_micros(100)).await;
        }
        assert_eq!(self.table.stashed(P0), (0, 0), "requests wait at an open gate");
        answers
    }

    /// Returns the requests of a client at the pod, read as strictly as possible, and the earlier clients of whom some have come
    /// since.
    fn at_the_pod(&self, client: Client) -> (Vec<Message>, Vec<Client>) {
        let mut whole = std::mem::take(&mut *self.seen.messages.borrow_mut());
        whole.iter().for_each(without_connection);
        self.seen.bytes.borrow_mut().retain(|heard| {
            let mut heard = heard.borrow_mut();
            let (requests, rest, stop) = wire::requests(&heard.bytes, Manner::Strict);
            if let Stop::Malformed(why) = stop {
                panic!("{why}: {}", String::from_utf8_lossy(rest));
            }
            whole.extend(requests);
            heard.bytes.clear();
            !heard.closed
        });
        whole.iter().for_each(stamped);
        let past = &mut *self.past.borrow_mut();
        past.push_front(client);
        past.truncate(PAST_CLIENTS);
        let before: Vec<usize> = past.iter().map(|client| client.seen.len()).collect();
        for request in whole {
            let sender = past.iter_mut().find(|client| request.all("x-forwarded-for").eq([client.address.as_bytes()]));
            sender.unwrap_or_else(|| panic!("nobody has sent {request:?}")).seen.push(request);
        }
        let late = past.iter().zip(before).skip(1).filter(|(client, before)| client.seen.len() > *before);
        (past[0].seen.clone(), late.map(|(client, _)| client.clone()).collect())
    }
}

/// Checks that this router wrote each stamp, and only once.
fn stamped(request: &Message) {
    let stamps =
        [("segue-partition", &b"0"[..]), ("segue-epoch", b"1"), ("segue-router", b"r"), ("segue-keyspace", b"k")];
    for (name, value) in stamps {
        let values: Vec<&[u8]> = request.all(name).collect();
        assert_eq!(values, [value], "{name}");
    }
    let clients: Vec<&[u8]> = request.all("x-forwarded-for").collect();
    assert!(matches!(clients[..], [client] if client.starts_with(b"2001:db8::")), "{clients:?}");
    for (name, _) in request.fields.iter().chain(&request.trailers) {
        let said_by_a_client =
            ["segue-misdirected", "segue-reason", "forwarded", "x-forwarded-host"].contains(&name.as_str());
        let disguised = name.contains('_') && name.replace('_', "-").starts_with("segue-epoch");
        assert!(!said_by_a_client && !disguised, "{name} has reached the pod");
    }
    for (name, _) in &request.trailers {
        let hop =
            ["content-length", "transfer-encoding", "host", "connection", "te", "upgrade"].contains(&name.as_str());
        assert!(!hop && stamps.iter().all(|(stamp, _)| stamp != name), "{name} among the trailers");
    }
}

/// Checks that an HTTP/2 request has no headers about a connection, and a length only if it is that of the body
/// (RFC 9113, 8.1.1 and 8.2.2).
fn without_connection(request: &Message) {
    for name in ["connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"] {
        assert!(!request.has(name), "{name} by HTTP/2");
    }
    assert!(request.all("te").all(|value| value == b"trailers"), "te by HTTP/2");
    assert!(request.all("host").count() <= 1, "two hosts");
    let lengths: Vec<&[u8]> = request.all("content-length").collect();
    assert!(lengths.len() <= 1, "two lengths");
    let length = request.body.len().to_string();
    assert!(lengths.iter().all(|stated| *stated == length.as_bytes()), "not the body's length");
}

fn ended(answers: &[u8]) -> usize {
    let ends = |frame: &&Frame<'_>| matches!(frame.kind, DATA | HEADERS) && frame.flags & END_STREAM != 0;
    frames::read(answers).iter().filter(ends).count()
}

fn lead(table: &Arc<Table>, address: SocketAddr) {
    let record = serde_json::json!({"pod_name": "w", "address": address.to_string()});
    let record: PodRecord = serde_json::from_value(record).expect("a record");
    let target = Target { pod: "w".to_owned(), incarnation: Incarnation::registered_at(1.into()), epoch: 1.into() };
    DataPlane::switch(&**table, P0, &target, &record, false);
}

async fn serve_pod(listener: TcpListener, is_http2: bool, seen: Seen) {
    loop {
        let (stream, _) = listener.accept().await.expect("a connection");
        if is_http2 {
            tokio::task::spawn_local(serve_http2(stream, seen.messages.clone()));
        } else {
            let heard = Rc::new(RefCell::new(Heard::default()));
            seen.bytes.borrow_mut().push(heard.clone());
            tokio::task::spawn_local(serve_http1(stream, heard));
        }
    }
}

/// Answers each whole request and records every byte.
async fn serve_http1(mut stream: TcpStream, heard: Rc<RefCell<Heard>>) {
    let mut buffer = [0; 4096];
    let mut pending = Vec::new();
    let mut has_asked = false;
    while let Ok(length @ 1..) = stream.read(&mut buffer).await {
        heard.borrow_mut().bytes.extend_from_slice(&buffer[..length]);
        pending.extend_from_slice(&buffer[..length]);
        loop {
            let (request, length) = match wire::request(&pending, Manner::Strict) {
                Ok(whole) => whole,
                Err(Stop::Incomplete) => break,
                Err(Stop::Malformed(why)) => panic!("{why}: {}", pending.escape_ascii()),
            };
            pending.drain(..length);
            has_asked = false;
            let body = if request.method() == b"HEAD" { "" } else { "ok" };
            let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{body}");
            if stream.write_all(answer.as_bytes()).await.is_err() {
                break;
            }
        }
        if !has_asked && is_withheld(&pending) {
            has_asked = true;
            let _ = stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await;
        }
    }
    heard.borrow_mut().closed = true;
}

/// Returns whether the router waits for the pod before it sends the body of this request.
fn is_withheld(pending: &[u8]) -> bool {
    let end = pending.windows(4).position(|bytes| bytes == b"\r\n\r\n");
    end.is_some_and(|end| pending[..end].to_ascii_lowercase().windows(9).any(|bytes| bytes == b"\r\nexpect:"))
}

/// Answers each whole request and records it.
async fn serve_http2(stream: TcpStream, messages: Rc<RefCell<Vec<Message>>>) {
    // Clients may reset any number of streams.
    let mut builder = h2::server::Builder::new();
    builder.max_pending_accept_reset_streams(usize::MAX);
    let mut connection = match builder.handshake::<_, Bytes>(stream).await {
        Ok(connection) => connection,
        Err(error) => return assert!(!error.is_library(), "{error:?}"),
    };
    while let Some(accepted) = connection.accept().await {
        let (request, mut respond) = match accepted {
            Ok(accepted) => accepted,
            // The router may close the connection, but everything that it writes must be valid.
            Err(error) => return assert!(!error.is_library(), "{error:?}"),
        };
        let messages = messages.clone();
        tokio::task::spawn_local(async move {
            let bodiless = request.method() == http::Method::HEAD;
            match whole(request).await {
                Ok(message) => messages.borrow_mut().push(message),
                Err(error) => return assert!(!error.is_library(), "{error:?}"),
            }
            if let Ok(mut stream) = respond.send_response(http::Response::new(()), bodiless)
                && !bodiless
            {
                let _ = stream.send_data(Bytes::from_static(b"ok"), true);
            }
        });
    }
}

async fn whole(request: http::Request<h2::RecvStream>) -> Result<Message, h2::Error> {
    let (head, mut stream) = request.into_parts();
    let mut body = Vec::new();
    while let Some(data) = stream.data().await {
        let data = data?;
        stream.flow_control().release_capacity(data.len())?;
        body.extend_from_slice(&data);
    }
    let trailers = stream.trailers().await?.unwrap_or_default();
    let lines =
        |map: &HeaderMap| map.iter().map(|(name, value)| (name.to_string(), value.as_bytes().to_vec())).collect();
    let start = format!("{} {} HTTP/2", head.method, head.uri).into_bytes();
    Ok(Message { start, fields: lines(&head.headers), body, trailers: lines(&trailers), ambiguous: false })
}
