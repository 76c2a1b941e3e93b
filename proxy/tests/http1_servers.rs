//! The two servers of HTTP/1.1 beside each other: clients see no difference.
#![allow(clippy::unwrap_used, missing_docs)]

#[path = "support/mod.rs"]
mod support;

use segue_proxy::settings::Http1Server;
use support::pod::{Speaks, echo_body};
use support::{Fixture, GET, Settings, TEST_TIMEOUT, post, soon};
use tokio::io::AsyncReadExt as _;
use tokio::time::Instant;

const SERVERS: [Http1Server; 2] = [Http1Server::Hyper, Http1Server::Segue];

fn fixture(server: Http1Server) -> Fixture {
    Fixture::with(Settings::with(|settings| settings.server.http1 = server))
}

/// Returns the lines of a response in alphabetical order, without the date and with the body.
fn lines(response: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = response.split("\r\n").filter(|line| !line.starts_with("date: ")).collect();
    lines.sort_unstable();
    lines
}

#[tokio::test]
async fn requests_that_are_plain_and_others_are_served_in_order_on_one_connection() {
    let chunked = post("transfer-encoding: chunked", "5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n");
    let others = [
        ("expect: 100-continue\r\n", vec![100, 200]),
        ("connection: upgrade\r\nupgrade: h2c\r\n", vec![200]),
        ("x-a: b\r\n", vec![200]),
    ];
    for server in SERVERS {
        let fixture = fixture(server);
        let _pod = fixture.pod(Speaks::Http1, echo_body).await;
        for (fields, statuses) in &others {
            let mut client = fixture.client().await;
            // Everything is there at once, so each request stands behind the bytes of another.
            let other = post(&format!("{fields}content-length: 3"), "abc");
            client
                .write([&post("content-length: 5", "first"), &chunked, &other, &chunked].map(String::as_str).concat())
                .await;
            assert_eq!(client.answer().await.text(), "first", "{server:?}");
            assert_eq!(client.answer().await.text(), "hello world", "{server:?}");
            for status in statuses {
                let answer = client.answer().await;
                assert_eq!(answer.status, *status, "{server:?}, {fields}");
                assert!(*status == 100 || answer.text() == "abc");
            }
            assert_eq!(client.answer().await.text(), "hello world", "{server:?}");
        }
    }
}

#[tokio::test]
async fn bytes_that_are_no_request_get_the_same_response_behind_a_plain_one() {
    for bytes in [
        "NO REQUEST\r\n\r\n".to_owned(),
        "GET / HTTP/1.1\r\nhost : h\r\n\r\n".to_owned(),
        post("content-length: 5\r\ncontent-length: 6", "hello"),
        post("content-length: 5\r\ntransfer-encoding: gzip", "hello"),
        format!("GET / HTTP/1.1\r\nhost: h\r\nx: {}\r\n\r\n", "x".repeat(65 << 10)),
        format!("GET /{} HTTP/1.1\r\nhost: h\r\nx-partition: 0\r\nconnection: close\r\n\r\n", "x".repeat(20 << 10)),
    ] {
        let mut said = Vec::new();
        for server in SERVERS {
            let fixture = fixture(server);
            let _pod = fixture.quick_pod().await;
            let mut client = fixture.client().await;
            assert_eq!(client.ask(GET).await.status, 200);
            client.write(&bytes).await;
            said.push(client.rest().await);
        }
        assert_eq!(lines(&said[0]), lines(&said[1]), "{:?}", &bytes[..bytes.len().min(100)]);
        assert!(said[0].starts_with("HTTP/1.1 "), "{said:?}");
    }
}

#[tokio::test]
async fn a_response_reads_the_same_from_both_servers() {
    let ends = ["connection: close\r\n", "te: trailers\r\nconnection: te, close\r\n"];
    let requests = ["GET", "HEAD", "POST"].into_iter().flat_map(|method| ends.map(|end| (method, end)));
    for (method, end) in requests {
        for (response, on_head) in [
            ("HTTP/1.1 200 OK\r\ncontent-length: 5\r\nX-A: 1\r\nx-a: 2\r\n\r\n", "hello"),
            ("HTTP/1.1 200 Fine\r\ndate: then\r\ncontent-length: 0\r\n\r\n", ""),
            ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", "5\r\nhello\r\n0\r\n\r\n"),
            (
                "HTTP/1.1 200 OK\r\ntrailer: x-sum\r\ntransfer-encoding: chunked\r\n\r\n",
                "5\r\nhello\r\n0\r\nx-sum: 7\r\nx-other: 8\r\n\r\n",
            ),
            ("HTTP/1.1 204 No Content\r\n\r\n", ""),
            ("HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\n", ""),
            ("HTTP/1.1 599 Odd\r\ncontent-length: 2\r\n\r\n", "hi"),
        ] {
            let mut said = Vec::new();
            for server in SERVERS {
                let fixture = fixture(server);
                let pod = fixture.scripted_pod().await;
                let request = format!("{method} / HTTP/1.1\r\nhost: h\r\nx-partition: 0\r\n{end}\r\n");
                let (client, mut connection) = fixture.exchange(&pod, request).await;
                connection.write(response).await;
                if method != "HEAD" {
                    connection.write(on_head).await;
                }
                said.push(client.rest().await);
            }
            assert_eq!(lines(&said[0]), lines(&said[1]), "{method} {end:?} {response:?}");
        }
    }
}

#[tokio::test]
async fn a_response_that_its_client_reads_slowly_arrives_whole() {
    const BYTES: usize = 3 << 20;
    for framing in [format!("content-length: {BYTES}"), "transfer-encoding: chunked".to_owned()] {
        let fixture = fixture(Http1Server::Segue);
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
        let fixture = fixture(Http1Server::Segue);
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
async fn a_chunked_upload_that_its_client_cuts_off_does_not_end_as_a_whole_one() {
    for server in SERVERS {
        let fixture = fixture(server);
        let pod = fixture.scripted_pod().await;
        let upload = post("transfer-encoding: chunked", "5\r\nhello\r\n");
        let (client, mut connection) = fixture.exchange(&pod, upload).await;
        drop(client);
        let rest = connection.rest().await;
        assert!(!rest.contains("0\r\n"), "{server:?}: {rest:?}");
    }
}

#[tokio::test]
async fn an_idle_connection_is_closed_when_its_server_stops() {
    for server in SERVERS {
        let mut fixture = fixture(server);
        let _pod = fixture.quick_pod().await;
        let mut client = fixture.client().await;
        assert_eq!(client.ask(GET).await.status, 200);
        let begun = Instant::now();
        let stopping = fixture.shut_down();
        assert_eq!(client.rest().await, "", "{server:?}");
        soon(stopping).await.unwrap();
        assert!(begun.elapsed() < TEST_TIMEOUT / 2, "{server:?} waits for its deadline");
    }
}
