//! Responses by HTTP/1.1 and HTTP/1.0: how they are framed, how they end, and what a client costs that reads none.

use segue_protocol::handoff::router::HoldCause;
use tokio::io::AsyncReadExt as _;

use crate::support::{Fixture, GET, P0, P1, Settings, get_at, soon};

/// Returns the lines of a response in alphabetical order, without the date and with the body.
fn lines(response: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = response.split("\r\n").filter(|line| !line.starts_with("date: ")).collect();
    lines.sort_unstable();
    lines
}

#[tokio::test]
async fn http10_closes_behind_a_response_unless_the_client_keeps_the_connection() {
    let get = |fields: &str| format!("GET / HTTP/1.0\r\nx-partition: 0\r\n{fields}\r\n");
    let fixture = Fixture::new();
    let pod = fixture.scripted_pod().await;
    let (client, mut connection) = fixture.exchange(&pod, get("")).await;
    connection.write("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
    assert_eq!(lines(&client.rest().await), ["", "HTTP/1.0 200 OK", "content-length: 2", "ok"]);

    let (mut client, mut connection) = {
        let mut client = fixture.send(get("connection: keep-alive\r\n")).await;
        connection.head().await;
        connection.write("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
        let answer = client.answer().await;
        assert_eq!((answer.text(), answer.header("connection")), ("ok", "keep-alive"));
        (client, connection)
    };
    // HTTP/1.0 knows no chunks, so the body ends with the connection.
    client.write(get("connection: keep-alive\r\nte: trailers\r\n")).await;
    connection.head().await;
    connection
        .write(
            "HTTP/1.1 200 OK\r\ntrailer: x-sum\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nx-sum: 7\r\n\r\n",
        )
        .await;
    assert_eq!(lines(&client.rest().await), ["", "HTTP/1.0 200 OK", "connection: close", "ok"]);
}

/// Its client could not tell it from a whole one otherwise.
#[tokio::test]
async fn a_response_without_length_to_http10_that_breaks_off_ends_with_a_reset() {
    let fixture = Fixture::new();
    let pod = fixture.scripted_pod().await;
    let (mut client, mut connection) = fixture.exchange(&pod, "GET / HTTP/1.0\r\nx-partition: 0\r\n\r\n").await;
    connection.write("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n").await;
    client.head().await;
    assert_eq!(client.exactly(5).await, b"hello");
    drop(connection);
    let end = soon(client.stream.read_to_end(&mut Vec::new())).await;
    assert_eq!(end.unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn a_response_is_passed_on_with_its_length_its_chunks_or_its_trailers() {
    const CHUNKS: &str = "5\r\nhello\r\n0\r\n\r\n";
    const TRAILED: &str = "5\r\nhello\r\n0\r\nx-sum: 7\r\nx-other: 8\r\n\r\n";
    const DECLARED: &str = "5\r\nhello\r\n0\r\nx-sum: 7\r\n\r\n";
    for (response, on_head, fields, body, trailed) in [
        (
            "200 OK\r\ncontent-length: 5\r\nX-A: 1\r\nx-a: 2",
            "hello",
            &["content-length: 5", "x-a: 1", "x-a: 2"][..],
            "hello",
            "hello",
        ),
        ("200 Fine\r\ndate: then\r\ncontent-length: 0", "", &["content-length: 0"], "", ""),
        ("200 OK\r\ntransfer-encoding: chunked", CHUNKS, &["transfer-encoding: chunked"], CHUNKS, CHUNKS),
        (
            "200 OK\r\ntrailer: x-sum\r\ntransfer-encoding: chunked",
            TRAILED,
            &["trailer: x-sum", "transfer-encoding: chunked"],
            CHUNKS,
            DECLARED,
        ),
        ("204 No Content", "", &[], "", ""),
        ("304 Not Modified\r\ncontent-length: 5", "", &[], "", ""),
        ("599 Odd\r\ncontent-length: 2", "hi", &["content-length: 2"], "hi", "hi"),
    ] {
        for (method, end, body) in [
            ("GET", "connection: close\r\n", body),
            ("POST", "te: trailers\r\nconnection: te, close\r\n", trailed),
            ("HEAD", "te: trailers\r\nconnection: te, close\r\n", ""),
        ] {
            let fixture = Fixture::new();
            let pod = fixture.scripted_pod().await;
            let request = format!("{method} / HTTP/1.1\r\nhost: h\r\nx-partition: 0\r\n{end}\r\n");
            let (client, mut connection) = fixture.exchange(&pod, request).await;
            connection.write(format!("HTTP/1.1 {response}\r\n\r\n")).await;
            if method != "HEAD" {
                connection.write(on_head).await;
            }
            let said = client.rest().await;
            let (head, found) = said.split_once("\r\n\r\n").unwrap();
            let status = format!("HTTP/1.1 {}", response.split("\r\n").next().unwrap());
            let mut expected: Vec<&str> = [status.as_str(), "connection: close"].to_vec();
            // What frames a body does not stand on a response to HEAD, unless the pod has said its length.
            expected.extend(fields.iter().filter(|field| method != "HEAD" || !field.starts_with("tra")));
            if method == "HEAD" && response.starts_with("304") {
                expected.push("content-length: 5");
            }
            expected.sort_unstable();
            assert_eq!((lines(head), found), (expected, body), "{method} {end:?} {response:?}");
        }
    }
}

/// A response that is framed in another way than its client reads it would be taken for the next one.
#[tokio::test]
async fn a_connection_goes_on_behind_every_response() {
    let first = |method| format!("{method} / HTTP/1.1\r\nhost: h\r\nx-partition: 0\r\n\r\n");
    for (method, response) in [
        ("HEAD", "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n"),
        ("HEAD", "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"),
        ("GET", "HTTP/1.1 204 No Content\r\n\r\n"),
        ("GET", "HTTP/1.1 204 No Content\r\ncontent-length: 5\r\n\r\n"),
        ("GET", "HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\n"),
        ("GET", "HTTP/1.1 304 Not Modified\r\ntransfer-encoding: chunked\r\n\r\n"),
        ("GET", "HTTP/1.1 205 Reset Content\r\ncontent-length: 0\r\n\r\n"),
        ("GET", "HTTP/1.1 299 Odd\r\ncontent-length: 0\r\n\r\n"),
    ] {
        let fixture = Fixture::new();
        let pod = fixture.scripted_pod().await;
        // The second request has arrived with the first one.
        let (mut client, mut connection) = fixture.exchange(&pod, first(method)).await;
        client.write(get_at(P0, "connection: close\r\n")).await;
        // The router sends nothing more on this connection to the pod.
        connection.write(response.replacen("\r\n\r\n", "\r\nconnection: close\r\n\r\n", 1)).await;
        let mut connection = pod.accept_request().await;
        connection.write("HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nsecond").await;
        let said = client.rest().await;
        assert!(said.ends_with("\r\n\r\nsecond"), "{method} {response:?}: {said:?}");
    }
}

#[tokio::test]
async fn a_response_that_its_client_reads_slowly_arrives_whole() {
    const BYTES: usize = 3 << 20;
    for framing in [format!("content-length: {BYTES}"), "transfer-encoding: chunked".to_owned()] {
        let fixture = Fixture::new();
        let pod = fixture.scripted_pod().await;
        let (mut client, mut connection) = fixture.exchange(&pod, GET).await;
        let chunked = framing.starts_with("transfer");
        let writes = tokio::spawn(async move {
            connection.write(format!("HTTP/1.1 200 OK\r\n{framing}\r\n\r\n")).await;
            for start in (0..BYTES).step_by(1 << 16) {
                let piece: Vec<u8> = (start..start + (1 << 16)).map(|index| (index / 255) as u8).collect();
                if chunked {
                    connection.write("10000\r\n").await;
                }
                connection.write(&piece).await;
                if chunked {
                    connection.write("\r\n").await;
                }
            }
            if chunked {
                connection.write("0\r\n\r\n").await;
            }
            connection
        });
        // The router has filled every buffer before this client begins to read.
        soon(client.stream.readable()).await.unwrap();
        let answer = client.answer().await;
        assert_eq!(answer.body.len(), BYTES);
        assert!(answer.body.iter().enumerate().all(|(index, byte)| *byte == (index / 255) as u8));
        let mut connection = writes.await.unwrap();
        client.write(GET).await;
        assert!(connection.head().await.starts_with("GET / "), "the connection is used again");
    }
}

#[tokio::test]
async fn a_response_that_breaks_off_does_not_end_as_a_whole_one() {
    for framing in ["content-length: 10", "transfer-encoding: chunked"] {
        let fixture = Fixture::new();
        let pod = fixture.scripted_pod().await;
        let (mut client, mut connection) = fixture.exchange(&pod, GET).await;
        connection.write(format!("HTTP/1.1 200 OK\r\n{framing}\r\n\r\n5\r\nhello")).await;
        client.head().await;
        drop(connection);
        let mut rest = Vec::new();
        // The end of the connection, or a reset.
        let _ = soon(client.stream.read_to_end(&mut rest)).await;
        assert!(!rest.ends_with(b"0\r\n\r\n") && rest.len() < 10 + 8, "{rest:?}");
    }
}

#[tokio::test]
async fn informational_responses_that_a_client_does_not_read_are_dropped() {
    const HEADS: usize = 1000;
    let fixture = Fixture::new();
    let pod = fixture.scripted_pod().await;
    let (mut client, mut connection) = fixture.exchange(&pod, GET).await;
    let head = format!("HTTP/1.1 103 Early Hints\r\nx: {}\r\n\r\n", "x".repeat(60 << 10));
    for _ in 0..HEADS {
        connection.write(&head).await;
    }
    connection.write("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
    let mut heads = 0;
    while client.head().await.status == 103 {
        heads += 1;
    }
    // The kernel takes some megabytes of them.
    assert!((1..HEADS / 2).contains(&heads), "{heads} have been passed on");
}

/// No stash counts the memory of buffers.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_request_that_waits_has_no_buffer_for_its_response() {
    const NAME: &str = "http1_responses::a_request_that_waits_has_no_buffer_for_its_response";
    const WAITING: usize = 600;
    const HEAD: usize = 60 << 10;
    // The memory is that of a process, and other tests run in this one.
    if std::env::var_os("SEGUE_TEST_ALONE").is_none() {
        let mut alone = tokio::process::Command::new(std::env::current_exe().unwrap());
        let output = alone.args([NAME, "--exact"]).env("SEGUE_TEST_ALONE", "1").output().await.unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
        return;
    }
    let settings = Settings::with(|settings| {
        settings.stash.max_requests = 2 * WAITING;
    });
    let fixture = Fixture::with(settings);
    let pod = fixture.scripted_pod().await;
    fixture.hold(P1, HoldCause::Handoff);
    let (mut client, mut connection) = fixture.exchange(&pod, GET).await;
    let response = format!("HTTP/1.1 200 OK\r\ncontent-length: 0\r\nx: {}\r\n\r\n", "x".repeat(HEAD));
    connection.write(&response).await;
    assert_eq!(client.answer().await.status, 200);
    let (mut waiting, before) = (Vec::new(), resident_bytes());
    for number in 1..=WAITING {
        waiting.push(fixture.send(get_at(P1, "")).await);
        fixture.held(P1, number).await;
        // A response leaves a large buffer for the next one to use.
        client.write(GET).await;
        connection.head().await;
        connection.write(&response).await;
        assert_eq!(client.answer().await.status, 200);
    }
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < WAITING * HEAD / 2, "{grown} bytes more for {WAITING} requests");
}

#[cfg(target_os = "linux")]
fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}

#[tokio::test]
async fn a_response_to_a_get_with_bytes_behind_it_ends_with_its_client() {
    let fixture = Fixture::new();
    let pod = fixture.scripted_pod().await;
    let (mut client, mut connection) = fixture.exchange(&pod, GET).await;
    client.write("G").await;
    connection.write("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").await;
    client.head().await;
    drop(client);
    fixture.in_flight(P0, 0).await;
    assert_eq!(soon(connection.stream.read(&mut [0; 1])).await.unwrap_or(0), 0);
}
