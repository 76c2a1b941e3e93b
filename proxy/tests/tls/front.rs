//! TLS towards clients.

use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::{Authorities, curl, fixture, python, run, tell, text};
use crate::support::pod::{Pod, ScriptedPod, Speaks};
use crate::support::{P0, TEST_TIMEOUT, soon};

pub(super) async fn plain_pod() -> Pod {
    Pod::start(Speaks::Http1, |request| async { tell(request).await.unwrap() }).await
}

#[tokio::test]
async fn alpn_chooses_the_version_and_the_pod_is_told_of_https() {
    let (authorities, pod) = (Authorities::new(), plain_pod().await);
    let fixture = fixture(Some(authorities.server(None)), None, |_| {});
    fixture.route(P0, pod.address, 1);
    for (arguments, version) in [
        (["--http1.1", "--tlsv1.3"], "1.1"),
        (["--http2", "--tlsv1.3"], "2"),
        (["--http1.1", "--tls-max=1.2"], "1.1"),
        (["--http2", "--tls-max=1.2"], "2"),
        // No ALPN at all, and prior knowledge of HTTP/2 on top of that.
        (["--http1.1", "--no-alpn"], "1.1"),
        (["--http2-prior-knowledge", "--no-alpn"], "2"),
    ] {
        let arguments: Vec<&str> = arguments.iter().flat_map(|argument| argument.split('=')).collect();
        let output = run(curl(&authorities.ours, &arguments, fixture.address)).await;
        assert_eq!(text(&output), format!("HTTP/1.1 - https 0\n200 {version}"), "{arguments:?}");
    }
}

#[tokio::test]
async fn nothing_older_than_tls_1_2_is_spoken() {
    let authorities = Authorities::new();
    let fixture = fixture(Some(authorities.server(None)), None, |_| {});
    let address = fixture.address.to_string();
    let shake = async |version: &str| {
        let mut command = tokio::process::Command::new("openssl");
        command.args(["s_client", "-connect", &address, version, "-cipher", "DEFAULT@SECLEVEL=0", "-CAfile"]);
        text(
            &run({
                command.arg(&authorities.ours.file).stdin(std::process::Stdio::null());
                command
            })
            .await,
        )
    };
    let told = shake("-tls1_2").await;
    assert!(told.contains("Verify return code: 0"), "{told}");
    let told = shake("-tls1_1").await;
    assert!(told.contains("SSL alert number") && told.contains("Cipher is (NONE)"), "{told}");
}

#[tokio::test]
async fn clients_without_a_certificate_of_the_right_authority_are_refused() {
    let (authorities, pod) = (Authorities::new(), plain_pod().await);
    let fixture = fixture(Some(authorities.server(Some(&authorities.ours))), None, |_| {});
    fixture.route(P0, pod.address, 1);
    let ask = async |certificate: Option<&segue_tests::certificates::Issued>, version: &str| {
        let mut command = curl(&authorities.ours, &["--tls-max", version], fixture.address);
        if let Some(issued) = certificate {
            command.arg("--cert").arg(&issued.cert).arg("--key").arg(&issued.key);
        }
        run(command).await
    };
    let (known, foreign) = (authorities.ours.issue("client"), authorities.other.issue("foreign"));
    let late = authorities.ours.issue_expired("late");
    for version in ["1.2", "1.3"] {
        let (none, bad) = (ask(None, version).await, ask(Some(&foreign), version).await);
        assert!(!none.status.success() && text(&none).contains("certificate required"), "{}", text(&none));
        assert!(!bad.status.success() && text(&bad).contains("unknown ca"), "{}", text(&bad));
        let late = ask(Some(&late), version).await;
        // With 1.2 curl has words of its own for that alert.
        let told = text(&late).contains("certificate expired") || late.status.code() == Some(60);
        assert!(!late.status.success() && told, "{}", text(&late));
        assert!(text(&ask(Some(&known), version).await).starts_with("HTTP/1.1 - https 0\n200"));
    }
    assert_eq!(pod.connections.load(std::sync::atomic::Ordering::SeqCst), 1, "only the good requests went on");
}

#[tokio::test]
async fn a_client_that_trusts_another_authority_refuses_the_router() {
    let authorities = Authorities::new();
    let fixture = fixture(Some(authorities.server(None)), None, |_| {});
    let output = run(curl(&authorities.other, &[], fixture.address)).await;
    assert_eq!(output.status.code(), Some(60), "{}", text(&output));
}

#[tokio::test]
async fn plain_http_is_told_so_and_closed_without_a_reset() {
    let authorities = Authorities::new();
    let fixture = fixture(Some(authorities.server(None)), None, |_| {});
    for body in [0, 20_000] {
        let mut stream = TcpStream::connect(fixture.address).await.unwrap();
        let head = format!("POST / HTTP/1.1\r\nhost: h\r\nx-partition: 0\r\ncontent-length: {body}\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(&vec![b'x'; body]).await.unwrap();
        let mut answer = Vec::new();
        soon(stream.read_to_end(&mut answer)).await.expect("an end, not a reset");
        // An alert of TLS: type 21.
        assert_eq!(answer.first(), Some(&21), "{answer:?}");
    }
}

#[tokio::test]
async fn a_handshake_that_does_not_come_is_given_up_in_time_and_holds_nobody_else_up() {
    let (authorities, pod) = (Authorities::new(), plain_pod().await);
    let fixture = fixture(Some(authorities.server(None)), None, |settings| {
        settings.forward.limits.header_read_timeout = Duration::from_millis(400);
        settings.forward.limits.max_connections = 3;
    });
    fixture.route(P0, pod.address, 1);
    let began = Instant::now();
    let mut silent = TcpStream::connect(fixture.address).await.unwrap();
    let mut half = TcpStream::connect(fixture.address).await.unwrap();
    // The head of a record with a ClientHello, and a little of it.
    half.write_all(&[22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3]).await.unwrap();
    let output = run(curl(&authorities.ours, &[], fixture.address)).await;
    assert!(text(&output).contains("\n200"), "{}", text(&output));
    for stream in [&mut silent, &mut half] {
        let mut answer = Vec::new();
        soon(stream.read_to_end(&mut answer)).await.unwrap();
        assert!(began.elapsed() >= Duration::from_millis(350), "{:?}", began.elapsed());
    }

    // They count: with all places taken by the silent, a client is sent away until one of these may be.
    let mut silent =
        futures_util::future::try_join_all([(); 3].map(|()| TcpStream::connect(fixture.address))).await.unwrap();
    let mut turned_away = TcpStream::connect(fixture.address).await.unwrap();
    assert_eq!(soon(turned_away.read(&mut [0])).await.unwrap_or(0), 0, "closed without a word");
    soon(async { while !text(&run(curl(&authorities.ours, &[], fixture.address)).await).contains("\n200") {} }).await;
    for stream in &mut silent {
        soon(stream.read_to_end(&mut Vec::new())).await.unwrap();
    }
}

#[tokio::test]
async fn a_handshake_that_does_not_come_keeps_no_server_from_stopping() {
    let authorities = Authorities::new();
    let mut fixture = fixture(Some(authorities.server(None)), None, |_| {});
    let mut silent = TcpStream::connect(fixture.address).await.unwrap();
    let began = Instant::now();
    let stopping = fixture.shut_down();
    assert_eq!(soon(silent.read(&mut [0])).await.unwrap(), 0);
    soon(stopping).await.unwrap();
    assert!(began.elapsed() < TEST_TIMEOUT / 2, "the server waits for its deadline");
}

/// Agrees on HTTP/2, sends what is given, and waits for the end.
const SILENT: &str = "
import socket, ssl, sys
host, port = sys.argv[1].split(':')
context = ssl.create_default_context(cafile=sys.argv[2])
context.set_alpn_protocols(['h2'])
stream = context.wrap_socket(socket.create_connection((host, int(port))), server_hostname='localhost')
stream.sendall(sys.argv[3].encode())
print(stream.selected_alpn_protocol(), flush=True)
while stream.recv(4096): pass
print('closed')
";

#[tokio::test]
async fn a_client_that_agreed_on_http2_and_does_not_begin_it_is_closed_like_any_other() {
    let authorities = Authorities::new();
    for (sends, stops) in [("", true), ("PRI", true), ("PRI", false)] {
        let mut fixture = fixture(Some(authorities.server(None)), None, |settings| {
            settings.forward.limits.header_read_timeout = Duration::from_millis(if stops { 60_000 } else { 400 });
        });
        let file = authorities.ours.file.to_str().unwrap();
        let mut client = python(SILENT, &[&fixture.address.to_string(), file, sends]);
        let mut client = client.stdout(std::process::Stdio::piped()).kill_on_drop(true).spawn().unwrap();
        let mut lines = BufReader::new(client.stdout.take().unwrap()).lines();
        assert_eq!(soon(lines.next_line()).await.unwrap().as_deref(), Some("h2"));
        let began = Instant::now();
        if stops {
            soon(fixture.shut_down()).await.unwrap();
        }
        assert_eq!(soon(lines.next_line()).await.unwrap().as_deref(), Some("closed"), "{sends:?}");
        assert!(began.elapsed() < TEST_TIMEOUT / 2, "{sends:?}: the server waits for its deadline");
    }
}

const UPGRADE: &str = "
import socket, ssl, sys
host, port = sys.argv[1].split(':')
context = ssl.create_default_context(cafile=sys.argv[2])
stream = context.wrap_socket(socket.create_connection((host, int(port))), server_hostname='localhost')
stream.sendall(b'GET /chat HTTP/1.1\\r\\nhost: h\\r\\nx-partition: 0\\r\\nconnection: upgrade\\r\\nupgrade: websocket\\r\\n\\r\\n')
seen = b''
while not seen.endswith(b'hello'): seen += stream.recv(4096)
assert seen.startswith(b'HTTP/1.1 101 '), seen
big = bytes(range(256)) * 4096
stream.sendall(big)
echo = b''
while len(echo) < len(big): echo += stream.recv(65536)
assert echo == big
stream.sendall(b'bye')
assert stream.recv(100) == b'', 'an end of TLS'
";

#[tokio::test]
async fn a_websocket_is_passed_through() {
    let (authorities, pod) = (Authorities::new(), ScriptedPod::new().await);
    let fixture = fixture(Some(authorities.server(None)), None, |_| {});
    fixture.route(P0, pod.address, 1);
    let client =
        tokio::spawn(run(python(UPGRADE, &[&fixture.address.to_string(), authorities.ours.file.to_str().unwrap()])));
    let mut connection = pod.accept().await;
    assert!(connection.head().await.contains("upgrade: websocket"));
    // The first frame comes with the head.
    connection
        .write("HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\nhello")
        .await;
    let (mut read, mut write) = connection.stream.split();
    let mut left = 256 * 4096_u64;
    left -= soon(tokio::io::copy(&mut (&mut read).take(left), &mut write)).await.unwrap();
    assert_eq!(left, 0);
    let mut bye = [0; 3];
    soon(read.read_exact(&mut bye)).await.unwrap();
    drop(connection);
    let output = soon(client).await.unwrap();
    assert!(output.status.success(), "{}", text(&output));
}

const IDLE: &str = "
import socket, ssl, sys
host, port = sys.argv[1].split(':')
context = ssl.create_default_context(cafile=sys.argv[2])
stream = context.wrap_socket(socket.create_connection((host, int(port))), server_hostname='localhost',
                             suppress_ragged_eofs=False)
stream.sendall(b'GET / HTTP/1.1\\r\\nhost: h\\r\\nx-partition: 0\\r\\n\\r\\n')
seen = b''
while not seen.endswith(b'hello'): seen += stream.recv(4096)
assert stream.recv(100) == b'', 'an end of TLS'
";

#[tokio::test]
async fn an_idle_connection_is_closed_by_an_end_of_tls() {
    let (authorities, pod) = (Authorities::new(), ScriptedPod::new().await);
    let mut fixture = fixture(Some(authorities.server(None)), None, |_| ());
    fixture.route(P0, pod.address, 1);
    let client =
        tokio::spawn(run(python(IDLE, &[&fixture.address.to_string(), authorities.ours.file.to_str().unwrap()])));
    let mut connection = pod.accept().await;
    connection.head().await;
    connection.write("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello").await;
    fixture.in_flight(P0, 0).await;
    let stopping = fixture.shut_down();
    let output = soon(client).await.unwrap();
    assert!(output.status.success(), "{}", text(&output));
    soon(stopping).await.unwrap();
}
