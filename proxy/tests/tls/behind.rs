//! TLS towards pods.

use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use segue_protocol::ids::PartitionId;
use segue_proxy::settings::UpstreamProtocol;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::{Authorities, SecurePod, config, curl, fixture, python, run, text};
use crate::support::client::{RawHttp1Client, empty};
use crate::support::{Fixture, GET, OK, P0, TEST_TIMEOUT, get_at, post, soon};

const BOTH: &[&str] = &["h2", "http/1.1"];

/// A pod by TLS whose every byte the test writes.
struct ScriptedTlsPod {
    listener: TcpListener,
    acceptor: TlsAcceptor,
    address: SocketAddr,
}

impl ScriptedTlsPod {
    async fn start(authorities: &Authorities) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config(&authorities.ours.issue("pod"), None, &[])));
        ScriptedTlsPod { listener, acceptor, address }
    }

    async fn accept(&self) -> TlsStream<TcpStream> {
        let (stream, _) = soon(self.listener.accept()).await.unwrap();
        soon(self.acceptor.accept(stream)).await.unwrap()
    }

    /// Accepts a connection and reads the head of its first request.
    async fn accept_request(&self) -> TlsStream<TcpStream> {
        let mut stream = self.accept().await;
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            soon(stream.read_buf(&mut head)).await.unwrap();
        }
        stream
    }
}

/// Returns what the pod says of a call of gRPC.
async fn of_grpc(fixture: &Fixture) -> String {
    let http2 = fixture.http2_client().await;
    let call = http2.request("GET", "/").header("content-type", "application/grpc");
    http2.ask(call.body(empty()).unwrap()).await.text().to_owned()
}

#[tokio::test]
async fn pods_are_spoken_to_as_alpn_and_the_configuration_say() {
    use UpstreamProtocol::{Auto, Http1, Http2};
    let authorities = Authorities::new();
    let own = authorities.ours.issue("pod");
    for (protocol, pod, of_others, of_calls, connections) in [
        (Auto, BOTH, "HTTP/1.1 - http 0", "HTTP/2.0 https http 0", 2),
        (Http1, BOTH, "HTTP/1.1 - http 0", "HTTP/1.1 - http 0", 1),
        (Http2, BOTH, "HTTP/2.0 https http 0", "HTTP/2.0 https http 0", 1),
        // It has no HTTP/2, or no ALPN at all. To find out takes a connection, which is used on.
        (Auto, &["http/1.1"], "HTTP/1.1 - http 0", "HTTP/1.1 - http 0", 2),
        (Auto, &[], "HTTP/1.1 - http 0", "HTTP/1.1 - http 0", 2),
        (Http2, &[], "HTTP/2.0 https http 0", "HTTP/2.0 https http 0", 1),
    ] {
        let pod = SecurePod::start(&own, None, pod).await;
        let fixture =
            fixture(None, Some(authorities.pods(None)), |settings| settings.forward.upstream.protocol = protocol);
        fixture.route(P0, pod.address, 1);
        for _ in 0..3 {
            let mut client = fixture.client().await;
            assert_eq!(client.ask(GET).await.text(), of_others, "{protocol:?}");
            assert_eq!(fixture.http2_client().await.get("/").await.text(), of_others, "{protocol:?}");
            assert_eq!(of_grpc(&fixture).await, of_calls, "{protocol:?}");
        }
        // However many requests: tickets of TLS are not taken for an answer.
        assert_eq!((pod.begun(), pod.shaken()), (connections, connections), "{protocol:?}");
    }
}

#[tokio::test]
async fn bodies_of_any_size_pass_both_ways() {
    let authorities = Authorities::new();
    let pod = SecurePod::start(&authorities.ours.issue("pod"), None, BOTH).await;
    let file = authorities.path().join("body");
    for (protocol, seen) in [(UpstreamProtocol::Http1, "HTTP/1.1 -"), (UpstreamProtocol::Http2, "HTTP/2.0 https")] {
        let fixture = fixture(Some(authorities.server(None)), Some(authorities.pods(None)), |settings| {
            settings.forward.upstream.protocol = protocol;
        });
        fixture.route(P0, pod.address, 1);
        for size in [1, 4_000, 16_384, 16_385, 70_000, 5_000_000] {
            let mut body = std::fs::File::create(&file).unwrap();
            body.write_all(&vec![b'x'; size]).unwrap();
            let body = format!("@{}", file.display());
            // Chunks are of HTTP/1.1 alone.
            for more in [&["--http1.1"][..], &["--http2"], &["--http1.1", "--header", "transfer-encoding: chunked"]] {
                let arguments = [more, &["--data-binary", body.as_str()]].concat();
                let output = run(curl(&authorities.ours, &arguments, fixture.address)).await;
                assert!(text(&output).starts_with(&format!("{seen} https {size}\n200")), "{}", text(&output));
            }
        }
    }
}

const SERVE: &str = "
import http.server, ssl, sys
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def do_GET(self):
        body = b'x' * 1_000_000
        self.send_response(200)
        self.send_header('content-length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_): pass
server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[1], sys.argv[2])
context.load_verify_locations(sys.argv[3])
context.verify_mode = ssl.CERT_REQUIRED
server.socket = context.wrap_socket(server.socket, server_side=True)
print(server.server_address[1], flush=True)
server.serve_forever()
";

#[tokio::test]
async fn a_pod_on_openssl_that_wants_certificates_is_shown_one() {
    let authorities = Authorities::new();
    let own = authorities.ours.issue("pod");
    let files = [&own.cert, &own.key, &authorities.ours.file].map(|path| path.to_str().unwrap());
    let mut pod = python(SERVE, &files).stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut port = String::new();
    let mut out = tokio::io::BufReader::new(pod.stdout.take().unwrap());
    soon(tokio::io::AsyncBufReadExt::read_line(&mut out, &mut port)).await.unwrap();
    let address = format!("localhost:{}", port.trim());

    let known = fixture(None, Some(authorities.pods(Some(authorities.ours.issue("client")))), |_| {});
    known.route(P0, &address, 1);
    let mut client = RawHttp1Client::connect(known.address).await;
    for _ in 0..3 {
        let answer = client.ask(GET).await;
        assert_eq!((answer.status, answer.body.len()), (200, 1_000_000));
    }

    // With TLS 1.3 the pod looks at the certificate when the handshake is over for the router, which has sent the request
    // by then. What the pod says instead of an answer proves that it has not looked at that.
    for protocol in [UpstreamProtocol::Http1, UpstreamProtocol::Http2] {
        let unknown = fixture(None, Some(authorities.pods(None)), |settings| {
            settings.stash.max_wait = Duration::from_millis(500);
            settings.forward.upstream.protocol = protocol;
        });
        unknown.route(P0, &address, 1);
        let answer = RawHttp1Client::connect(unknown.address).await.ask(GET).await;
        assert_eq!(answer.reason(), (503, "no-owner"), "{protocol:?}");
    }
}

#[tokio::test]
async fn a_pod_that_cannot_be_trusted_gets_nothing_is_not_hammered_and_is_found_when_it_is_put_right() {
    let authorities = Authorities::new();
    let wrong_name = ServerName::of(&authorities);
    for (bad, told) in [
        (authorities.ours.issue_expired("late"), "expired"),
        (authorities.other.issue("foreign"), "foreign"),
        (authorities.ours.issue("named"), "wrong name"),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let pod = SecurePod::start_on(listener, &bad, None, BOTH);
        let pods = if told == "wrong name" { wrong_name.clone() } else { authorities.pods(None) };
        let fixture = fixture(None, Some(pods), |settings| settings.stash.max_wait = Duration::from_secs(2));
        // Eight partitions, each of which would try on its own. All do at first, then one at a time, after pauses that grow to
        // 250 ms less what chance takes off.
        for partition in PartitionId::all(8) {
            fixture.route(partition, address, 1);
        }
        let began = Instant::now();
        let asked = PartitionId::all(8).map(|partition| fixture.ask(get_at(partition, "")));
        for answer in soon(futures_util::future::join_all(asked)).await {
            assert_eq!(answer.reason(), (503, "no-owner"), "{told}");
            assert_ne!(answer.header("retry-after"), "");
        }
        assert!(began.elapsed() > Duration::from_millis(1_900));
        let (begun, shaken) = (pod.begun(), pod.shaken());
        assert!((2..=8 + 24).contains(&begun), "{begun} attempts in 2 s: {told}");
        assert_eq!(shaken, 0, "{told}");

        if told != "wrong name" {
            let mut client = fixture.send(GET).await;
            fixture.held(P0, 1).await;
            drop(pod);
            let listener = rebind(address).await;
            let _pod = SecurePod::start_on(listener, &authorities.ours.issue("renewed"), None, BOTH);
            assert_eq!(soon(client.answer()).await.status, 200, "{told}");
        }
    }
}

/// Settings of a router that expects another name in its pods' certificates.
struct ServerName;

impl ServerName {
    fn of(authorities: &Authorities) -> segue_proxy::tls::ClientTls {
        let server_name = Some("elsewhere.example".to_owned());
        let files = segue_proxy::tls::ClientFiles { ca: authorities.ours.file.clone(), identity: None, server_name };
        segue_proxy::tls::ClientTls::load(files).unwrap()
    }
}

async fn rebind(address: SocketAddr) -> TcpListener {
    let began = Instant::now();
    loop {
        match TcpListener::bind(address).await {
            Ok(listener) => return listener,
            Err(error) => assert!(began.elapsed() < TEST_TIMEOUT, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_connection_that_the_pod_closed_while_idle_costs_no_request() {
    let authorities = Authorities::new();
    let pod = ScriptedTlsPod::start(&authorities).await;
    let address = pod.address;
    let (closed, mut closes) = tokio::sync::mpsc::unbounded_channel();
    let pod = tokio::spawn(async move {
        for round in 0..6 {
            let mut stream = pod.accept_request().await;
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await.unwrap();
            stream.flush().await.unwrap();
            // In turns: a proper end of TLS, and none.
            if round % 2 == 0 {
                stream.shutdown().await.unwrap();
            }
            drop(stream);
            closed.send(()).unwrap();
        }
    });
    let fixture = fixture(None, Some(authorities.pods(None)), |_| {});
    fixture.route(P0, address, 1);
    let mut client = fixture.client().await;
    for _ in 0..6 {
        assert_eq!(client.ask(GET).await.status, 200);
        // On loopback the end has arrived when the call that sends it returns.
        soon(closes.recv()).await.unwrap();
    }
    soon(pod).await.unwrap();
}

#[tokio::test]
async fn an_answer_that_ends_with_its_connection_must_end_with_that_of_tls() {
    let authorities = Authorities::new();
    let pod = ScriptedTlsPod::start(&authorities).await;
    let fixture = fixture(None, Some(authorities.pods(None)), |_| {});
    fixture.route(P0, pod.address, 1);
    for proper in [true, false] {
        let mut client = TcpStream::connect(fixture.address).await.unwrap();
        client.write_all(GET.replace("\r\n\r\n", "\r\nconnection: close\r\n\r\n").as_bytes()).await.unwrap();
        let mut stream = pod.accept_request().await;
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nhalf or whole?").await.unwrap();
        stream.flush().await.unwrap();
        if proper {
            stream.shutdown().await.unwrap();
        }
        drop(stream);
        let mut answer = Vec::new();
        let read = soon(client.read_to_end(&mut answer)).await;
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let whole = read.is_ok() && answer.ends_with("\r\n0\r\n\r\n");
        assert_eq!(whole, proper, "somebody may have cut it off: {answer}");
    }
}

#[tokio::test]
async fn an_answer_before_the_end_of_the_request_is_passed_on_while_the_rest_is_sent() {
    let authorities = Authorities::new();
    let pod = ScriptedTlsPod::start(&authorities).await;
    let fixture = fixture(None, Some(authorities.pods(None)), |_| {});
    fixture.route(P0, pod.address, 1);
    let mut client = fixture.send(post("content-length: 300000", "begin")).await;
    let mut connection = pod.accept().await;
    let mut seen = Vec::new();
    while !seen.ends_with(b"begin") {
        soon(connection.read_buf(&mut seen)).await.unwrap();
    }
    connection.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nearly").await.unwrap();
    connection.flush().await.unwrap();
    let answer = client.answer().await;
    assert_eq!(answer.text(), "early");
    let rest = vec![b'y'; 300_000 - 5];
    let mut left = rest.len();
    let sent = client.write(&rest);
    let received = async {
        let mut buffer = vec![0; 64 << 10];
        while left > 0 {
            left -= connection.read(&mut buffer).await.unwrap();
        }
    };
    soon(async { tokio::join!(sent, received) }).await;
}

/// rustls takes the end of a body before the socket has room for it.
#[tokio::test]
async fn the_end_of_a_request_reaches_a_pod_that_reads_slowly() {
    const SIZE: usize = 8 << 20;
    let authorities = Authorities::new();
    let pod = ScriptedTlsPod::start(&authorities).await;
    let fixture = fixture(None, Some(authorities.pods(None)), |_| {});
    fixture.route(P0, pod.address, 1);
    let mut client = fixture.client().await;
    let asked =
        tokio::spawn(async move { client.ask(post(&format!("content-length: {SIZE}"), &"y".repeat(SIZE))).await });
    let mut connection = pod.accept().await;
    let (mut seen, mut buffer) = (0, vec![0; 64 << 10]);
    while seen < SIZE {
        seen += soon(connection.read(&mut buffer)).await.unwrap();
        // So slow that the socket is always full.
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    connection.write_all(OK.as_bytes()).await.unwrap();
    connection.flush().await.unwrap();
    assert_eq!(soon(asked).await.unwrap().status, 200);
}

/// The lease is checked at the last moment, by the request that makes a connection and by those that wait for it.
#[tokio::test]
async fn a_lease_that_runs_out_while_a_connection_is_made_keeps_everything_back() {
    for protocol in [UpstreamProtocol::Http1, UpstreamProtocol::Http2] {
        let authorities = Authorities::new();
        let alpn: &[&str] = if protocol == UpstreamProtocol::Http2 { &["h2"] } else { &[] };
        let acceptor = Arc::new(config(&authorities.ours.issue("pod"), None, alpn));
        let acceptor = TlsAcceptor::from(acceptor);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let fixture = fixture(None, Some(authorities.pods(None)), |settings| {
            settings.forward.upstream.protocol = protocol;
            settings.forward.upstream.connect_timeout = Duration::from_secs(10);
        });
        fixture.route(P0, listener.local_addr().unwrap(), 1);
        let mut clients = Vec::new();
        for _ in 0..2 {
            clients.push(fixture.send(GET).await);
        }
        fixture.in_flight(P0, 2).await;
        // By HTTP/2 the second waits for the connection of the first.
        let expected = if protocol == UpstreamProtocol::Http2 { 1 } else { 2 };
        let mut reached = Vec::new();
        for _ in 0..expected {
            reached.push(soon(listener.accept()).await.unwrap().0);
        }
        fixture.table.trust_until(Instant::now());
        let mut pods = Vec::new();
        for stream in reached {
            pods.push(soon(acceptor.accept(stream)).await.unwrap());
        }
        fixture.held(P0, 2).await;
        fixture.in_flight(P0, 0).await;
        for mut pod in pods {
            let came = async {
                match protocol {
                    UpstreamProtocol::Http2 => {
                        let mut connection = h2::server::handshake(pod).await.unwrap();
                        connection.accept().await.is_some()
                    }
                    _ => pod.read_u8().await.is_ok(),
                }
            };
            let came = tokio::time::timeout(Duration::from_millis(100), came).await;
            assert!(!matches!(came, Ok(true)), "a request was sent past the lease, {protocol:?}");
        }
    }
}

#[tokio::test]
async fn severing_does_not_wait_for_a_connection_and_loses_nothing_that_waits_for_one() {
    for protocol in [UpstreamProtocol::Http1, UpstreamProtocol::Http2] {
        let authorities = Authorities::new();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let fixture = fixture(None, Some(authorities.pods(None)), |settings| {
            settings.forward.upstream.protocol = protocol;
            settings.forward.upstream.connect_timeout = Duration::from_secs(60);
        });
        fixture.route(P0, listener.local_addr().unwrap(), 1);
        let mut client = fixture.send(GET).await;
        fixture.in_flight(P0, 1).await;
        // It does not answer the handshake.
        let _reached = soon(listener.accept()).await.unwrap();
        fixture.hold_and_sever(P0);
        fixture.held(P0, 1).await;
        fixture.in_flight(P0, 0).await;
        let pod = SecurePod::start(&authorities.ours.issue("pod"), None, BOTH).await;
        fixture.route(P0, pod.address, 2);
        assert_eq!(client.answer().await.status, 200);
    }
}
