//! Whatever bytes a client sends to the router's real server: what reaches the pod is no more than a strict reader sees
//! in them, each request with one unambiguous framing and the router's own stamps, and the client is answered or
//! hung up on.
//!
//! One thread, real sockets on the loopback: client, router and pod are tasks of one runtime. The pod answers each
//! whole request and nothing else. A client whose bytes are so many whole requests sends one more, by which it is seen
//! that both sides agree where those ended; any other client closes its side.

#![no_main]

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use libfuzzer_sys::{Corpus, fuzz_target};
use segue_coordination::protocol::records::PodRecord;
use segue_coordination::protocol::router::Target;
use segue_coordination::router::DataPlane;
use segue_fuzz::pieces;
use segue_fuzz::wire::{self, Manner, Message, Stop};
use segue_proxy::forward::Forward;
use segue_proxy::fuzzing::serve_client;
use segue_proxy::metrics::{Metrics, WorkerMetrics};
use segue_proxy::partition::{Locator, PartitionSource};
use segue_proxy::settings::{ForwardSettings, ServerSettings, UpstreamSettings};
use segue_proxy::table::{StashLimits, Table};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, LocalOptions, LocalRuntime};

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(10);
const LAST: &[u8] = b"GET /last HTTP/1.1\r\nhost: h\r\nx-partition: 0\r\nconnection: close\r\n\r\n";

thread_local! {
    static WORLD: (LocalRuntime, World) = {
        let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default()).expect("a runtime");
        let world = runtime.block_on(World::new());
        (runtime, world)
    };
}

fuzz_target!(|data: &[u8]| -> Corpus {
    let Some((_, pieces)) = pieces::cut(data) else { return Corpus::Reject };
    WORLD.with(|(runtime, world)| runtime.block_on(world.run(&data[1..], &pieces)));
    Corpus::Keep
});

struct World {
    forward: Forward,
    table: Arc<Table>,
    metrics: Arc<WorkerMetrics>,
    settings: ServerSettings,
    front: TcpListener,
    seen: Seen,
}

/// What the pod got, by connection, since the last look; and whether the connection is still open.
type Seen = Rc<RefCell<Vec<Rc<RefCell<Heard>>>>>;

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

impl World {
    async fn new() -> Self {
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
            locator: Locator {
                source: PartitionSource::Header(http::HeaderName::from_static("x-partition")),
                order_by: None,
            },
            upstream: UpstreamSettings::default(),
        };
        let forward = Forward::new(&settings, table.worker(0), metrics.clone()).expect("names");
        let seen = Seen::default();
        let pod = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        lead(&table, pod.local_addr().expect("an address"));
        tokio::task::spawn_local(serve_pods(pod, seen.clone()));
        let front = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        World { forward, table, metrics, settings: ServerSettings::default(), front, seen }
    }

    async fn run(&self, bytes: &[u8], pieces: &[&[u8]]) {
        let (sent, rest, stop) = wire::requests(bytes, Manner::Tolerant);
        let agreed = stop == Stop::Incomplete && rest.is_empty() && sent.iter().all(goes_on);
        let answers = match tokio::time::timeout(PATIENCE, self.exchange(pieces, agreed)).await {
            Ok(answers) => answers,
            Err(_) => {
                panic!("not answered, not hung up on, or half a request left with the pod: {:?}", self.seen.borrow())
            }
        };
        let seen = self.at_the_pod();
        let mut left = sent.iter();
        let mut last_seen = false;
        for request in &seen {
            if request.start == b"GET /last HTTP/1.1" && agreed {
                last_seen = true;
            } else {
                assert!(!last_seen, "something came after the last request");
                let same = |sent: &&Message| sent.method() == request.method() && sent.body == request.body;
                assert!(left.by_ref().any(|sent| same(&sent)), "the client did not send {request:?}");
            }
        }
        self.answers(&answers, &sent, agreed, last_seen);
    }

    /// Sends, and reads to the end.
    async fn exchange(&self, pieces: &[&[u8]], agreed: bool) -> Vec<u8> {
        let address = self.front.local_addr().expect("an address");
        let (client, accepted) = tokio::join!(TcpStream::connect(address), self.front.accept());
        let (mut client, (stream, _)) = (client.expect("a connection"), accepted.expect("a connection"));
        client.set_nodelay(true).expect("an option");
        // Thousands a second: none may leave a port behind that rests for a minute.
        client.set_zero_linger().expect("an option");
        let peer = HeaderValue::from_static("192.0.2.1");
        let served = serve_client(stream, peer, self.forward.clone(), self.metrics.clone(), &self.settings);
        let talk = async {
            let mut answers = Vec::new();
            for piece in pieces {
                // A router that has hung up takes no more.
                if client.write_all(piece).await.is_err() {
                    break;
                }
                tokio::task::yield_now().await;
            }
            if agreed {
                let _ = client.write_all(LAST).await;
            } else {
                let _ = client.shutdown().await;
            }
            let _ = client.read_to_end(&mut answers).await;
            answers
        };
        let (answers, ()) = tokio::join!(talk, served);
        // What a client left behind is finished without it; what it broke off is hung up on.
        while self.table.in_flight(0) > 0 || self.seen.borrow().iter().any(|heard| heard.borrow().is_in_the_middle()) {
            tokio::time::sleep(Duration::from_micros(100)).await;
        }
        answers
    }

    /// The whole requests that the pod got, read as strictly as can be.
    fn at_the_pod(&self) -> Vec<Message> {
        let mut whole = Vec::new();
        self.seen.borrow_mut().retain(|heard| {
            let mut heard = heard.borrow_mut();
            let (requests, rest, stop) = wire::requests(&heard.bytes, Manner::Strict);
            if let Stop::Malformed(why) = stop {
                panic!("{why}: {}", String::from_utf8_lossy(rest));
            }
            for request in requests {
                stamped(&request);
                whole.push(request);
            }
            heard.bytes.clear();
            !heard.closed
        });
        whole
    }

    fn answers(&self, mut bytes: &[u8], sent: &[Message], agreed: bool, last_seen: bool) {
        let methods: Vec<&[u8]> = sent.iter().map(Message::method).chain([&b"GET"[..]]).collect();
        let (mut count, mut last) = (0, None);
        while !bytes.is_empty() {
            // An answer to what the router could not read is an answer to anything.
            let method = methods.get(count).copied().unwrap_or(b"GET");
            let (answer, length) = match wire::answer(bytes, method) {
                Ok(read) => read,
                // A client that is gone gets what it gets.
                Err(Stop::Incomplete) if !agreed => return,
                Err(stop) => panic!("{stop:?} in an answer: {}", String::from_utf8_lossy(bytes)),
            };
            bytes = &bytes[length..];
            if answer.status() != Some(100) {
                count += 1;
                last = Some(answer);
            }
        }
        assert!(count <= methods.len(), "{count} answers to {} requests", methods.len());
        if last_seen {
            let last = last.expect("an answer");
            assert_eq!((last.status(), last.body.as_slice(), count), (Some(200), &b"ok"[..], methods.len()));
        } else if agreed {
            // Whoever is not served is told so, and hung up on. A chunked body may be refused half-way, where there is
            // nothing certain to tell any more.
            let half_way = sent.iter().any(|request| request.has("transfer-encoding"));
            let status = last.and_then(|answer| answer.status());
            assert!(half_way || matches!(status, Some(400..=499)), "the last answer is {status:?}");
        }
    }
}

/// Whether the connection goes on behind this request, whatever is answered.
fn goes_on(request: &Message) -> bool {
    let special = ["connection", "expect", "upgrade"].iter().any(|name| request.has(name));
    !special && !request.ambiguous && request.start.ends_with(b"HTTP/1.1") && request.method() != b"CONNECT"
}

/// What a pod may rely on: it was this router that wrote the stamps, once each.
fn stamped(request: &Message) {
    let stamps =
        [("segue-partition", &b"0"[..]), ("segue-epoch", b"1"), ("segue-router", b"r"), ("segue-keyspace", b"k")];
    for (name, value) in stamps {
        let values: Vec<&[u8]> = request.all(name).collect();
        assert_eq!(values, [value], "{name}");
    }
    assert!(request.all("x-forwarded-for").all(|value| value.ends_with(b"192.0.2.1")));
    for (name, _) in &request.trailers {
        let hop =
            ["content-length", "transfer-encoding", "host", "connection", "te", "upgrade"].contains(&name.as_str());
        assert!(!hop && stamps.iter().all(|(stamp, _)| stamp != name), "{name} among the trailers");
    }
}

fn lead(table: &Arc<Table>, address: SocketAddr) {
    let record = serde_json::json!({"pod_name": "w", "address": address.to_string()});
    let record: PodRecord = serde_json::from_value(record).expect("a record");
    let target = Target { pod: "w".to_owned(), incarnation: 1, epoch: 1 };
    DataPlane::switch(&**table, 0, &target, &record, false);
}

/// Answers each whole request and notes every byte.
async fn serve_pods(listener: TcpListener, seen: Seen) {
    loop {
        let (mut stream, _) = listener.accept().await.expect("a connection");
        let heard = Rc::new(RefCell::new(Heard::default()));
        seen.borrow_mut().push(heard.clone());
        tokio::task::spawn_local(async move {
            let mut buffer = [0; 4096];
            let mut pending = Vec::new();
            while let Ok(length @ 1..) = stream.read(&mut buffer).await {
                heard.borrow_mut().bytes.extend_from_slice(&buffer[..length]);
                pending.extend_from_slice(&buffer[..length]);
                while let Ok((request, length)) = wire::request(&pending, Manner::Strict) {
                    pending.drain(..length);
                    let body = if request.method() == b"HEAD" { "" } else { "ok" };
                    let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{body}");
                    if stream.write_all(answer.as_bytes()).await.is_err() {
                        break;
                    }
                }
            }
            heard.borrow_mut().closed = true;
        });
    }
}
