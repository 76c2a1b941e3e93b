//! Answers that come before the end of their request's body. They reach the client, and so does the next answer.

use std::time::Duration;

use http::Response;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::support::client::full;
use crate::support::pod::{Speaks, echo_body};
use crate::support::{Fixture, GET, POST, Settings, post, soon};

const MIB: usize = 1 << 20;

/// Returns a `POST` to a partition that does not exist.
fn bad(fields: &str) -> String {
    post(fields, "").replace("x-partition: 0", "x-partition: 99")
}

#[tokio::test]
async fn an_answer_of_the_routers_own_before_the_end_of_an_upload_says_that_the_connection_closes() {
    let fixture = Fixture::new();
    let mut client = fixture.send(bad("content-length: 1048576")).await;
    client.write(vec![b'x'; 1000]).await;
    let answer = client.answer().await;
    assert_eq!((answer.status, answer.header("connection")), (400, "close"));
    // A client that has not read the answer yet can go on sending.
    client.write(vec![b'x'; MIB - 1000]).await;
    assert_eq!(client.rest().await, "");
}

#[tokio::test]
async fn a_client_that_sends_a_whole_upload_before_it_reads_is_told_why_it_was_refused() {
    let fixture = Fixture::with(Settings::with_limits(|limits| limits.max_body_bytes = Some(MIB)));
    let _pod = fixture.pod(Speaks::Http1, echo_body).await;
    let chunks = format!("10000\r\n{}\r\n", "x".repeat(0x10000)).repeat(64) + "0\r\n\r\n";
    for (head, body, status) in [
        (bad("content-length: 1048576"), "x".repeat(4 * MIB), "400"),
        (post("content-length: 4194304", ""), "x".repeat(4 * MIB), "413"),
        (post("transfer-encoding: chunked", ""), chunks, "413"),
        (post("no field\r\ncontent-length: 1048576", ""), "x".repeat(4 * MIB), "400"),
        ("GET / HTTP/1.1\r\nhost: h\r\nx-large: ".to_owned(), "x".repeat(4 * MIB), "431"),
    ] {
        let mut client = fixture.send(&head).await;
        client.write(&body).await;
        let mut text = String::new();
        soon(client.stream.read_to_string(&mut text)).await.unwrap();
        assert!(text.starts_with(&format!("HTTP/1.1 {status} ")), "{head}: {text}");
        assert!(text.contains("connection: close\r\n"), "{text}");
    }
}

#[tokio::test]
async fn a_small_body_that_has_arrived_does_not_cost_the_connection() {
    let fixture = Fixture::new();
    let _pod = fixture.pod(Speaks::Http1, echo_body).await;
    let mut client = fixture.client().await;
    for _ in 0..3 {
        for (fields, body) in
            [("content-length: 5", "hello"), ("transfer-encoding: chunked", "5\r\nhello\r\n0\r\n\r\n")]
        {
            let answer = client.ask(bad(fields) + body).await;
            assert_eq!((answer.status, answer.header("connection")), (400, ""), "{fields}");
        }
        let answer = client.ask(POST).await;
        assert_eq!((answer.text(), answer.header("connection")), ("hello", ""));
    }
}

#[tokio::test]
async fn a_pods_answer_before_the_end_of_an_upload_says_that_the_connection_closes() {
    let fixture = Fixture::new();
    let pod = fixture.scripted_pod().await;
    for status in ["200 OK", "502 Bad Gateway"] {
        let mut client = fixture.send(post("content-length: 1048576", "")).await;
        client.write(vec![b'x'; 1000]).await;
        let mut connection = pod.accept_request().await;
        connection.write(format!("HTTP/1.1 {status}\r\ncontent-length: 2\r\n\r\nno")).await;
        let answer = client.answer().await;
        assert_eq!((answer.text(), answer.header("connection")), ("no", "close"), "{status}");
    }
}

#[tokio::test]
async fn a_request_behind_the_last_response_of_a_router_that_stops_does_not_cost_that_response() {
    const RESPONSE_BYTES: usize = 10_000;
    let mut fixture = Fixture::new();
    let pod = fixture.scripted_pod().await;
    let mut client = fixture.send(GET).await;
    let mut connection = pod.accept_request().await;
    let stopped = fixture.shut_down();
    fixture.refuses_connections().await;
    let (mut reader, mut writer) = client.stream.split();
    let behind = async {
        writer.write_all(post("content-length: 4194304", &"x".repeat(4 * MIB)).as_bytes()).await.unwrap();
        writer.shutdown().await.unwrap();
    };
    let body = "y".repeat(RESPONSE_BYTES);
    let answer = connection.write(format!("HTTP/1.1 200 OK\r\ncontent-length: {RESPONSE_BYTES}\r\n\r\n{body}"));
    // The router reads a little of the next request, and the rest only behind its response.
    soon(async { tokio::join!(behind, answer) }).await;
    let mut text = String::new();
    soon(reader.read_to_string(&mut text)).await.unwrap();
    assert!(text.starts_with("HTTP/1.1 200 ") && text.contains("connection: close\r\n"), "{:.200}", text);
    assert!(text.ends_with('y') && text.len() > RESPONSE_BYTES);
    soon(stopped).await.unwrap();
}

#[tokio::test]
async fn an_upload_behind_its_response_is_no_head_that_takes_too_long() {
    let fixture =
        Fixture::with(Settings::with_limits(|limits| limits.header_read_timeout = Duration::from_millis(300)));
    let pod = fixture.scripted_pod().await;
    let head = post("expect: 100-continue\r\ncontent-length: 20", "");
    let mut client = fixture.send(head).await;
    let mut connection = pod.accept_request().await;
    connection.write("HTTP/1.1 100 Continue\r\n\r\n").await;
    assert_eq!(client.head().await.status, 100);
    connection.write("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
    assert_eq!(client.answer().await.text(), "ok");
    for _ in 0..20 {
        client.write("x").await;
        // Longer in all than a head may take.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(connection.exactly(20).await, "x".repeat(20));
    assert_eq!(client.rest().await, "");
}

#[tokio::test]
async fn clients_that_reuse_their_connection_whenever_they_may_lose_no_answer() {
    let fixture = Fixture::new();
    let _pod = fixture.pod(Speaks::Http1, |_| async { Response::new(full("early")) }).await;
    let mut client = None;
    for round in 0..100 {
        let mut http1 = match client.take() {
            Some(client) => client,
            None => fixture.client().await,
        };
        // Every other client sends one byte of its body and waits. The others send on until they are answered.
        let is_slow = round % 2 == 0;
        let request = post("content-length: 1048576", "") + &"x".repeat(if is_slow { 1 } else { MIB });
        let sent = http1.stream.write_all(request.as_bytes());
        let _ = soon(sent).await;
        let answer = http1.answer().await;
        assert_eq!(answer.text(), "early");
        match answer.header("connection") {
            "close" => {}
            _ if is_slow => panic!("the rest of the body would stand in front of the next request"),
            _ => client = Some(http1),
        }
    }
}
