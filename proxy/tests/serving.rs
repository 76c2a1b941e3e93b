//! The server: its address, its limits, its end.

#![allow(clippy::unwrap_used, missing_docs)]

mod support;

use std::time::Duration;

use http::Response;
use segue_protocol::ids::PartitionId;
use segue_proxy::server::{Server, ServerError};
use segue_proxy::settings::{ClientLimits, ServerSettings};
use support::client::{Http2Client, RawHttp1Client, empty, full};
use support::pod::{Pod, ScriptedPod, Speaks};
use support::{Fixture, Settings, TEST_TIMEOUT, soon, until};
use tokio::time::Instant;

const P0: PartitionId = PartitionId::new(0);

const GET: &str = "GET / HTTP/1.1\r\nhost: h\r\nx-partition: 0\r\n\r\n";

fn server(listen: &str, workers: usize) -> ServerSettings {
    ServerSettings { listen: listen.to_owned(), workers, tls: None }
}

fn limits(change: impl Fn(&mut ClientLimits)) -> Settings {
    let mut settings = Settings::default();
    change(&mut settings.forward.limits);
    settings
}

#[tokio::test]
async fn an_address_in_use_is_named_together_with_its_key() {
    let first = Server::bind(server("127.0.0.1:0", 2));
    let first = first.unwrap();
    let address = first.local_addr();
    let second = Server::bind(server(&address.to_string(), 2));
    let error = second.unwrap_err();
    assert!(matches!(error, ServerError::Bind { .. }));
    let text = error.to_string();
    assert!(
        text.contains(&address.to_string()) && text.contains("[router] listen") && text.contains("in use"),
        "{text}"
    );
    let error = Server::bind(server("nowhere", 1)).unwrap_err();
    assert!(error.to_string().contains("host:port"), "{error}");
}

#[tokio::test]
async fn all_workers_serve_the_one_address() {
    let fixture = Fixture::with(Settings { server: server("127.0.0.1:0", 4), ..Settings::default() });
    let pod = Pod::start(Speaks::Http1, |_| async { Response::new(empty()) }).await;
    fixture.route(P0, pod.address, 1);
    for _ in 0..32 {
        assert_eq!(RawHttp1Client::connect(fixture.address).await.ask(GET).await.status, 200);
    }
}

#[tokio::test]
async fn a_head_that_is_too_large_is_refused() {
    let fixture = Fixture::with(limits(|limits| limits.max_header_bytes = 4096));
    for bytes in [5_000, 100_000] {
        let mut client = RawHttp1Client::connect(fixture.address).await;
        client.write("GET / HTTP/1.1\r\nhost: h\r\nx-large: ").await;
        // The router may answer and close before it has all of this.
        let _ = tokio::io::AsyncWriteExt::write_all(&mut client.stream, &vec![b'x'; bytes]).await;
        let _ = tokio::io::AsyncWriteExt::write_all(&mut client.stream, b"\r\n\r\n").await;
        let answer = client.answer().await;
        assert_eq!((answer.status, answer.header("segue-reason")), (431, "limit"));
        assert!(answer.text().contains("\"reason\":\"limit\""));
    }
}

#[tokio::test]
async fn a_bound_beyond_all_memory_serves_as_any_other() {
    let fixture = Fixture::with(limits(|limits| limits.max_header_bytes = usize::MAX));
    let pod = Pod::start(Speaks::Http1, |_| async { Response::new(full("ok")) }).await;
    fixture.route(P0, pod.address, 1);
    let mut client = RawHttp1Client::connect(fixture.address).await;
    let large = format!("GET / HTTP/1.1\r\nhost: h\r\nx-partition: 0\r\nx: {}\r\n\r\n", "x".repeat(60 << 10));
    assert_eq!(client.ask(large).await.text(), "ok");
}

/// Waits as long as a head may take: another client begins one now, and has it refused.
async fn a_head_times_out(fixture: &Fixture) {
    let mut other = RawHttp1Client::connect(fixture.address).await;
    other.write("GET / HT").await;
    assert_eq!(other.answer().await.status, 408);
}

#[tokio::test]
async fn a_head_that_takes_too_long_is_refused() {
    let fixture = Fixture::with(limits(|limits| limits.header_read_timeout = Duration::from_millis(80)));
    let pod = Pod::start(Speaks::Http1, |_| async { Response::new(empty()) }).await;
    fixture.route(P0, pod.address, 1);
    let mut slow = RawHttp1Client::connect(fixture.address).await;
    slow.write("GET / HTTP/1.1\r\nhost").await;
    let answer = slow.answer().await;
    assert_eq!((answer.status, answer.header("segue-reason")), (408, "limit"));
    // Between two requests a client may take its time.
    let mut idle = RawHttp1Client::connect(fixture.address).await;
    assert_eq!(idle.ask(GET).await.status, 200);
    a_head_times_out(&fixture).await;
    assert_eq!(idle.ask(GET).await.status, 200);
    // But not within the second one.
    idle.write("GET / HT").await;
    assert_eq!(idle.answer().await.status, 408);
}

#[tokio::test]
async fn a_head_that_begins_along_with_a_body_has_no_more_time_than_any_other() {
    let fixture = Fixture::with(limits(|limits| limits.header_read_timeout = Duration::from_millis(80)));
    let pod = Pod::start(Speaks::Http1, |_| async { Response::new(empty()) }).await;
    fixture.route(P0, pod.address, 1);
    let post = "POST / HTTP/1.1\r\nhost: h\r\nx-partition: 0\r\n";
    let (sized, chunked) =
        ("content-length: 5\r\n\r\nhello", "transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n");
    for body in [sized, chunked] {
        let mut client = RawHttp1Client::connect(fixture.address).await;
        // As well for the second request of a connection; one that sends an empty line behind its body has not begun a head.
        for ended in [body.to_owned(), format!("{body}\r\n"), body.to_owned()] {
            assert_eq!(client.ask(format!("{post}{ended}")).await.status, 200);
            a_head_times_out(&fixture).await;
        }
        assert_eq!(client.ask(format!("{post}{body}GET / HT")).await.status, 200);
        assert_eq!(client.answer().await.status, 408);
    }
}

#[tokio::test]
async fn a_head_that_begins_before_the_last_answer_has_no_more_time_than_any_other() {
    let fixture = Fixture::with(limits(|limits| limits.header_read_timeout = Duration::from_millis(80)));
    let pod = ScriptedPod::new().await;
    fixture.route(P0, pod.address, 1);
    let ok = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
    // Along with the request, and while that is being answered.
    for (first, then) in [(format!("{GET}GET / HT"), ""), (GET.to_owned(), "GET / HT"), (format!("{GET}G"), "ET / H")] {
        let mut client = RawHttp1Client::connect(fixture.address).await;
        client.write(first).await;
        let mut connection = pod.accept().await;
        connection.head().await;
        client.write(then).await;
        connection.write(ok).await;
        assert_eq!(client.answer().await.status, 200);
        assert_eq!(client.answer().await.status, 408);
    }
    // A whole request that waits behind another is served.
    let mut client = RawHttp1Client::connect(fixture.address).await;
    client.write(GET.repeat(2)).await;
    for _ in 0..2 {
        let mut connection = pod.accept().await;
        connection.head().await;
        connection.write(ok).await;
        assert_eq!(client.answer().await.status, 200);
    }
    // And a client that is between two requests may take its time.
    a_head_times_out(&fixture).await;
    client.write(GET).await;
    let mut connection = pod.accept().await;
    connection.head().await;
    connection.write(ok).await;
    assert_eq!(client.answer().await.status, 200);
}

#[tokio::test]
async fn beyond_the_most_connections_clients_are_told_so_while_all_others_are_busy() {
    let fixture = Fixture::with(limits(|limits| limits.max_connections = 2));
    let pod = ScriptedPod::new().await;
    fixture.route(P0, pod.address, 1);
    let (mut first, mut second) =
        (RawHttp1Client::connect(fixture.address).await, RawHttp1Client::connect(fixture.address).await);
    first.write(GET).await;
    second.write(GET).await;
    let (mut one, mut other) = (pod.accept().await, pod.accept().await);
    one.head().await;
    other.head().await;
    let mut third = RawHttp1Client::connect(fixture.address).await;
    third.write(GET).await;
    let refused = third.answer().await;
    assert_eq!((refused.status, refused.header("segue-reason")), (503, "overload"));
    assert_eq!((refused.header("retry-after"), refused.header("connection")), ("1", "close"));
    assert_eq!(third.rest().await, "");
    for connection in [&mut one, &mut other] {
        connection.write("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
    }
    assert_eq!((first.answer().await.status, second.answer().await.status), (200, 200));
}

#[tokio::test]
async fn a_newcomer_takes_the_place_of_whoever_has_been_idle_for_longest() {
    for (what, said) in
        [("nothing", ""), ("half a head", "GET / HT"), ("a preface", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")]
    {
        let fixture = Fixture::with(limits(|limits| {
            limits.max_connections = 2;
            limits.header_read_timeout = Duration::from_millis(800);
        }));
        let pod = Pod::start(Speaks::Http1, |_| async { Response::new(empty()) }).await;
        fixture.route(P0, pod.address, 1);
        let mut idle = RawHttp1Client::connect(fixture.address).await;
        idle.write(said).await;
        let mut busy = RawHttp1Client::connect(fixture.address).await;
        let mut others = 0;
        let began = Instant::now();
        // As long as both have a right to their places, nobody else gets one.
        loop {
            assert_eq!(busy.ask(GET).await.status, 200, "{what}");
            let answer = RawHttp1Client::connect(fixture.address).await.ask(GET).await;
            match answer.status {
                503 => others += 1,
                status => break assert_eq!(status, 200, "{what}"),
            }
            assert!(began.elapsed() < TEST_TIMEOUT, "{what}: nobody gave way to {others}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        idle.rest().await;
        assert_eq!(busy.ask(GET).await.status, 200, "{what}");
    }
}

#[tokio::test]
async fn a_shutdown_lets_what_is_under_way_end() {
    let mut fixture = Fixture::new();
    let pod = ScriptedPod::new().await;
    fixture.route(P0, pod.address, 1);
    let (mut busy, idle) =
        (RawHttp1Client::connect(fixture.address).await, RawHttp1Client::connect(fixture.address).await);
    let http2 = Http2Client::connect(fixture.address).await;
    busy.write(GET).await;
    let mut connection = pod.accept().await;
    connection.head().await;
    let server = fixture.server.take().unwrap();
    let shutdown = tokio::spawn(server.shutdown(Instant::now() + TEST_TIMEOUT));
    assert_eq!(idle.rest().await, "");
    assert!(tokio::net::TcpStream::connect(fixture.address).await.is_err());
    until(|| http2.is_closed(), "the HTTP/2 client to be sent away").await;
    connection.write("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
    let answer = busy.answer().await;
    assert_eq!((answer.text(), answer.header("connection")), ("ok", "close"));
    soon(shutdown).await.unwrap();
}

#[tokio::test]
async fn a_shutdown_waits_for_pods_whose_client_has_left() {
    let mut fixture = Fixture::new();
    let pod = ScriptedPod::new().await;
    fixture.route(P0, pod.address, 1);
    let mut client = RawHttp1Client::connect(fixture.address).await;
    client.write(GET).await;
    let mut connection = pod.accept().await;
    connection.head().await;
    drop(client);
    let shutdown = tokio::spawn(fixture.server.take().unwrap().shutdown(Instant::now() + TEST_TIMEOUT));
    until(|| std::net::TcpStream::connect(fixture.address).is_err(), "the listener to close").await;
    assert!(!shutdown.is_finished());
    connection.write("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
    soon(shutdown).await.unwrap();
    assert_eq!(fixture.table.in_flight(P0), 0);
}

#[tokio::test]
async fn a_shutdown_ends_at_its_deadline() {
    let mut fixture = Fixture::new();
    let pod = ScriptedPod::new().await;
    fixture.route(P0, pod.address, 1);
    let mut client = RawHttp1Client::connect(fixture.address).await;
    client.write(GET).await;
    let mut connection = pod.accept().await;
    connection.head().await;
    let server = fixture.server.take().unwrap();
    soon(server.shutdown(Instant::now() + Duration::from_millis(50))).await;
    assert_eq!(connection.rest().await, "");
    assert_eq!(client.rest().await, "");
    assert_eq!(fixture.table.in_flight(P0), 0);
}
