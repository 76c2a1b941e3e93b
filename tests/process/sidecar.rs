//! The sidecar: a service that knows nothing of Segue gets fencing, handoffs and hooks from a `segue run` with a
//! `[pod]` section in front of it.
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use segue_coordination::store::Store as _;
use segue_protocol::txn::Keys;
use segue_tests::cluster::TestCluster;
use segue_tests::ports::free_address;
use segue_tests::process::Process;
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

use crate::site::service::serve;
use crate::site::{self, SEGUE, Site, blocking, eventually, store};

/// The events that a service saw, in order.
#[derive(Default)]
struct Seen {
    events: Mutex<Vec<String>>,
    gate: Notify,
}

impl Seen {
    fn note(&self, event: String) {
        self.events.lock().unwrap().push(event);
    }

    fn has(&self, what: &str) -> bool {
        self.events.lock().unwrap().iter().any(|event| event.starts_with(what))
    }
}

/// A plain service: `/` answers with its name, `/slow` when the test says so, and the hooks are noted.
async fn service(name: &'static str) -> (SocketAddr, Arc<Seen>) {
    let seen = Arc::new(Seen::default());
    let sees = seen.clone();
    let address = serve(move |call| {
        let seen = sees.clone();
        async move {
            match call.path.split('?').next().unwrap() {
                "/" => (200, format!("{name} {}", call.text("segue-epoch"))),
                "/slow" => {
                    seen.note("slow begins".into());
                    seen.gate.notified().await;
                    seen.note("slow ends".into());
                    (200, "slow".to_owned())
                }
                "/misdirected" => (421, "the service's own".to_owned()),
                hook => {
                    seen.note(format!("{} {}", &hook[1..], call.body));
                    (200, String::new())
                }
            }
        }
    });
    (address.await, seen)
}

/// Starts a sidecar whose service has a hook for each callback.
fn pod(site: &Site, name: &str, listen: SocketAddr, upstream: SocketAddr) -> Process {
    let config = site.config().pod(name, listen, upstream).quick();
    let config = ["warm", "sync", "release"]
        .into_iter()
        .fold(config, |config, hook| config.set(&format!("pod.{hook}_url"), format!("http://{upstream}/{hook}")));
    site.run(name, &config)
}

/// The epoch in the answer to `GET /` at `address`, if the service `name` gives it.
async fn epoch_of(name: &str, address: SocketAddr) -> Option<u64> {
    epoch_in(&ask(address, "/").await?.1, name)
}

/// The epoch in an answer of the service `name`.
fn epoch_in(answer: &str, name: &str) -> Option<u64> {
    answer.strip_prefix(name)?.trim().parse().ok()
}

/// Returns the response to `GET path` for partition 0, status and body.
async fn ask(address: SocketAddr, path: &'static str) -> Option<(u16, String)> {
    blocking(move || site::ask(address, path)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_that_knows_nothing_of_segue_is_fenced_and_handed_over() {
    let fixture = Site::start(1);
    let ((a_address, a_seen), (b_address, b_seen)) = (service("a").await, service("b").await);
    let a_listen = free_address();
    let a = pod(&fixture, "a", a_listen, a_address);
    eventually("answer of a", async || epoch_of("a", fixture.router).await.is_some()).await;
    let first = epoch_of("a", fixture.router).await.unwrap();
    assert!(a_seen.has(&format!("warm {{\"epoch\":{first},")), "{:?}", a_seen.events);

    // A 421 of the service is a response to its client, not the sidecar's refusal.
    assert_eq!(ask(fixture.router, "/misdirected").await, Some((421, "the service's own".to_owned())));

    // Requests that bypass the router are refused.
    assert_eq!(ask(a_listen, "/").await.unwrap().0, 421);

    // a leaves while it works on a request: b gets the partition only when that has ended.
    let b = pod(&fixture, "b", free_address(), b_address);
    let slow = tokio::spawn(async move { ask(fixture.router, "/slow").await.unwrap() });
    eventually("begin of the slow request", async || a_seen.has("slow begins")).await;
    let leaving = tokio::task::spawn_blocking(move || a.terminate());
    eventually("drain of the router", async || fixture.status().contains("router r-0 to drain")).await;
    let held = tokio::spawn(async move { ask(fixture.router, "/").await.unwrap() });
    assert!(!b_seen.has("sync"), "the partition moved with work in it");
    a_seen.gate.notify_one();
    assert_eq!(slow.await.unwrap(), (200, "slow".to_owned()));
    let (status, answer) = held.await.unwrap();
    let second = epoch_in(&answer, "b").unwrap_or_else(|| panic!("{answer}"));
    assert!(status == 200 && second > first, "{status} {answer} after epoch {first}");
    assert!(b_seen.has(&format!("sync {{\"epoch\":{second},")), "{:?}", b_seen.events);

    let (status, output) = leaving.await.unwrap();
    assert!(status.success(), "{output}");
    assert!(a_seen.has("release"), "{:?}", a_seen.events);
    drop(b);
}

/// Its hooks are on the same socket.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_on_a_unix_socket_is_waited_for_serves_and_gets_its_hooks() {
    let fixture = Site::start(1);
    let socket = fixture.path().join("service.sock");
    let at = format!("unix:{}", socket.display());
    let config = fixture.config().pod("a", free_address(), free_address()).quick();
    let config = config.set("pod.upstream", at.clone()).set("pod.warm_url", format!("{at}:/warm"));
    let mut command = std::process::Command::new(fixture.segue());
    command.arg("run").env("SEGUE__LOG__LEVEL", "debug");
    let a = fixture.run_with("a", &config, &mut command);
    eventually("attempt to connect", async || a.output().contains("a health check failed")).await;
    let listener = tokio::net::UnixListener::bind(&socket).unwrap();
    let warmed = Arc::new(Notify::new());
    let warms = warmed.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let warms = warms.clone();
            let service = hyper::service::service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
                if request.uri().path() == "/warm" {
                    warms.notify_one();
                }
                std::future::ready(Ok::<_, hyper::Error>(hyper::Response::new("by a socket".to_owned())))
            });
            let stream = hyper_util::rt::TokioIo::new(stream);
            tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(stream, service));
        }
    });
    eventually("answer", async || ask(fixture.router, "/").await == Some((200, "by a socket".to_owned()))).await;
    warmed.notified().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_of_protocols_passes_through_the_sidecar() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let fixture = Site::start(1);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    // A service that switches whatever it is asked, and echoes what comes then.
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") && stream.read_buf(&mut head).await.unwrap() > 0 {}
                let head = String::from_utf8(head).unwrap().to_lowercase();
                assert!(head.contains("upgrade: chat\r\n") && head.contains("connection: upgrade\r\n"), "{head}");
                let answer = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: chat\r\n\r\nhello";
                stream.write_all(answer.as_bytes()).await.unwrap();
                let (mut read, mut write) = stream.split();
                let _ = tokio::io::copy(&mut read, &mut write).await;
            });
        }
    });
    let _pod = fixture.pod("a", address);
    eventually("router", async || TcpStream::connect(fixture.router).await.is_ok()).await;
    let mut stream = TcpStream::connect(fixture.router).await.unwrap();
    // Held until the pod is there.
    let request = "GET / HTTP/1.1\r\nhost: x\r\nx-partition: 0\r\nconnection: upgrade\r\nupgrade: chat\r\n\r\n";
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\nhello") {
        assert_ne!(stream.read_buf(&mut answer).await.unwrap(), 0, "{}", String::from_utf8_lossy(&answer));
    }
    assert!(answer.starts_with(b"HTTP/1.1 101 "), "{}", String::from_utf8_lossy(&answer));
    stream.write_all(b"there and back").await.unwrap();
    stream.shutdown().await.unwrap();
    let mut echo = String::new();
    stream.read_to_string(&mut echo).await.unwrap();
    assert_eq!(echo, "there and back", "also after the client has said its last");
}

/// Returns a body that ends with an empty DATA frame of its own, as many implementations do.
fn ended_by_an_empty_frame() -> impl hyper::body::Body<Data = bytes::Bytes, Error = std::convert::Infallible> + Send {
    let message = hyper::body::Frame::data(bytes::Bytes::from_static(b"a message"));
    http_body_util::StreamBody::new(futures_util::stream::iter([Ok(message)]))
}

/// Rust's `h2`, here in router, sidecar and service, closes a connection after a hundred empty frames that end nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_that_end_with_an_empty_frame_pass_by_the_hundred() {
    use http_body_util::BodyExt as _;
    use hyper_util::rt::{TokioExecutor, TokioIo};
    let fixture = Site::start(1);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            stream.set_nodelay(true).unwrap();
            let service = hyper::service::service_fn(async |request: hyper::Request<hyper::body::Incoming>| {
                request.into_body().collect().await?;
                Ok::<_, hyper::Error>(hyper::Response::new(ended_by_an_empty_frame()))
            });
            let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            tokio::spawn(builder.serve_connection(TokioIo::new(stream), service));
        }
    });
    let _pod = fixture.pod("a", address);
    eventually("router", async || TcpStream::connect(fixture.router).await.is_ok()).await;
    let stream = TcpStream::connect(fixture.router).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let (mut client, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    for count in 0..250 {
        let request = hyper::Request::post(format!("http://{}/", fixture.router)).header("x-partition", "0");
        let request = request.header("content-type", "application/grpc");
        let answer = client.send_request(request.body(ended_by_an_empty_frame()).unwrap()).await.unwrap();
        assert_eq!(answer.status(), 200, "request {count}: {:?}", answer.headers());
        assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "a message", "answer {count}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_whose_router_is_gone_still_holds_the_handoff_back() {
    let (cluster, listen, admin) = (TestCluster::start(SEGUE), free_address(), free_address());
    let _control = cluster.run("control", &cluster.config().coordinator("c-0", 1).quick());
    let router = |name: &str, listen: SocketAddr, ttl: &str| {
        cluster.run(name, &cluster.config().router(name, listen).lease("router", ttl).quick())
    };
    let ((a_address, a_seen), (b_address, b_seen)) = (service("a").await, service("b").await);
    let pod = |name: &str, upstream: SocketAddr| {
        let pod = cluster.config().pod(name, free_address(), upstream).quick();
        pod.set("pod.sync_url", format!("http://{upstream}/sync"))
    };
    let a = cluster.run("a", &pod("a", a_address).admin(admin));
    let dies = router("r-0", listen, "2s");
    eventually("answer of a", async || epoch_of("a", listen).await.is_some()).await;
    let first = epoch_of("a", listen).await.unwrap();

    let cut_off = tokio::spawn(ask(listen, "/slow"));
    eventually("begin of the slow request", async || a_seen.has("slow begins")).await;
    let in_flight = || tokio::task::block_in_place(|| site::json(admin, "/status"))["pod"]["in_flight"].clone();
    assert_eq!(in_flight(), 1);
    let status = tokio::task::block_in_place(|| site::json(admin, "/status"));
    let requests = status["pod"]["requests"].as_array().unwrap();
    assert!(requests.len() == 1 && requests[0]["partition"] == 0 && requests[0]["in_flight"] == 1, "{status}");
    tokio::task::spawn_blocking(|| dies.kill()).await.unwrap();
    assert!(cut_off.await.unwrap().is_none(), "its router is dead");
    let other = free_address();
    let _other = router("r-1", other, "10m");
    let _b = cluster.run("b", &pod("b", b_address));
    let leaving = tokio::task::spawn_blocking(move || a.terminate());
    // No router has anything in flight, and still b has to wait: only a's sidecar knows that a works on.
    eventually("drain of a", async || cluster.status().contains("pod a to drain")).await;
    assert_eq!(in_flight(), 1);
    assert!(!b_seen.has("sync"));
    a_seen.gate.notify_one();
    eventually("answer of b", async || epoch_of("b", other).await.is_some_and(|second| second > first)).await;
    let order = a_seen.events.lock().unwrap().clone();
    assert!(order.contains(&"slow ends".to_owned()), "{order:?}");
    let (status, output) = leaving.await.unwrap();
    assert!(status.success(), "{output}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_keeps_a_partition_from_moving_is_shown_with_its_request() {
    let cluster = Site::with(|_, config| config.coordinator("c-0", 1).set("router.drain.patience", "0s"));
    let (router, admin, pod_admin) = (cluster.router, cluster.admin, free_address());
    let ((a_address, a_seen), (b_address, _)) = (service("a").await, service("b").await);
    let pod = |name: &str, upstream: SocketAddr| cluster.config().pod(name, free_address(), upstream).quick();
    let a = cluster.run("a", &pod("a", a_address).admin(pod_admin));
    eventually("answer of a", async || epoch_of("a", router).await.is_some()).await;
    let slow = tokio::spawn(ask(router, "/slow?token=secret"));
    eventually("begin of the slow request", async || a_seen.has("slow begins")).await;

    let oldest = json!({ "method": "GET", "path": "/slow", "client": "127.0.0.1" });
    let status = |admin| tokio::task::block_in_place(|| site::json(admin, "/status"));
    eventually("request in the sidecar's status", async || {
        let requests = &status(pod_admin)["pod"]["requests"][0];
        requests["oldest"] == oldest && requests["oldest_ms"].is_u64()
    })
    .await;
    let _b = cluster.run("b", &pod("b", b_address));
    let leaving = tokio::task::spawn_blocking(move || a.terminate());
    eventually("drain in the router's status", async || {
        let partition = &status(admin)["router"]["partitions"][0];
        partition["oldest"] == oldest && partition["severs_in_ms"].as_u64().is_some_and(|left| left <= 20_000)
    })
    .await;
    let (_, explained) = site::says(&["explain", "0", "--etcd", &cluster.etcd().endpoint()]);
    assert!(explained.contains("GET /slow of 127.0.0.1; whatever is left is severed in"), "{explained}");
    assert!(!explained.contains("secret"), "{explained}");

    a_seen.gate.notify_one();
    assert_eq!(slow.await.unwrap(), Some((200, "slow".to_owned())));
    let (status, output) = leaving.await.unwrap();
    assert!(status.success(), "{output}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn registrations_say_where_the_admin_endpoint_is_reached() {
    let cluster = TestCluster::start(SEGUE);
    let (upstream, _) = service("a").await;
    let config = cluster.config().coordinator("c-0", 1).router("r-0", free_address());
    let config = config.pod("a", free_address(), upstream).admin(free_address());
    let _all = cluster.run("all", &config.set("admin.advertise", "host-1:9090"));
    let store = store(cluster.etcd());
    for key in ["/segue/default/routers/r-0", "/segue/default/pods/a"] {
        eventually(key, async || {
            let found = store.snapshot(&Keys::One(key.to_owned())).await.unwrap().entries.pop();
            found.is_some_and(|entry| String::from_utf8_lossy(&entry.value).contains("\"admin\":\"host-1:9090\""))
        })
        .await;
    }
}

#[test]
fn a_pod_whose_keyspace_nobody_coordinates_ends_with_an_error() {
    let cluster = TestCluster::start(SEGUE);
    let config = cluster.config().pod("a", free_address(), free_address()).quick();
    let (mut pod, begun) = (cluster.run("a", &config), Instant::now());
    let status = loop {
        if let Some(status) = pod.ended() {
            break status;
        }
        assert!(begun.elapsed() < Duration::from_secs(300), "it waits:\n{}", pod.output());
        std::thread::sleep(Duration::from_millis(50));
    };
    assert_eq!(status.code(), Some(1));
    assert!(pod.output().contains("keyspace default has no settings, and no coordinator"), "{}", pod.output());
}
