//! The server: its address, its limits, its shutdown.

use std::time::Duration;

use futures_util::future::join_all;
use http::Response;
use segue_proxy::server::{Server, ServerError};
use segue_proxy::settings::ServerSettings;
use tokio::time::Instant;

use crate::support::client::full;
use crate::support::pod::Speaks;
use crate::support::{Fixture, GET, OK, P0, POST, Settings, TEST_TIMEOUT, get_at, post, soon, until};

fn server(listen: &str, workers: usize) -> ServerSettings {
    ServerSettings { listen: listen.to_owned(), workers, tls: None }
}

#[tokio::test]
async fn an_address_in_use_is_named_together_with_its_key() {
    let first = Server::bind(server("127.0.0.1:0", 2)).unwrap();
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
    let _pod = fixture.quick_pod().await;
    for _ in 0..32 {
        assert_eq!(fixture.ask(GET).await.status, 200);
    }
}

#[tokio::test]
async fn a_head_that_is_too_large_is_refused() {
    let fixture = Fixture::with(Settings::with_limits(|limits| limits.max_header_bytes = 4096));
    for bytes in [5_000, 100_000] {
        let mut client = fixture.send("GET / HTTP/1.1\r\nhost: h\r\nx-large: ").await;
        // The router may answer and close before it has all of this.
        let _ = tokio::io::AsyncWriteExt::write_all(&mut client.stream, &vec![b'x'; bytes]).await;
        let _ = tokio::io::AsyncWriteExt::write_all(&mut client.stream, b"\r\n\r\n").await;
        let answer = client.answer().await;
        assert_eq!(answer.reason(), (431, "limit"));
        assert!(answer.text().contains("\"reason\":\"limit\""));
    }
}

#[tokio::test]
async fn a_bound_beyond_all_memory_serves_as_any_other() {
    let fixture = Fixture::with(Settings::with_limits(|limits| limits.max_header_bytes = usize::MAX));
    let _pod = fixture.pod(Speaks::Http1, |_| async { Response::new(full("ok")) }).await;
    let large = get_at(P0, &format!("x: {}\r\n", "x".repeat(60 << 10)));
    assert_eq!(fixture.ask(large).await.text(), "ok");
}

/// Waits as long as a head may take: another client begins a head now and is refused.
async fn a_head_times_out(fixture: &Fixture) {
    assert_eq!(fixture.ask("GET / HT").await.status, 408);
}

#[tokio::test]
async fn a_head_that_takes_too_long_is_refused() {
    let fixture = Fixture::with(Settings::with_limits(|limits| limits.header_read_timeout = Duration::from_millis(80)));
    let _pod = fixture.quick_pod().await;
    assert_eq!(fixture.ask("GET / HTTP/1.1\r\nhost").await.reason(), (408, "limit"));
    // Between two requests a client may take its time.
    let mut idle = fixture.client().await;
    assert_eq!(idle.ask(GET).await.status, 200);
    a_head_times_out(&fixture).await;
    assert_eq!(idle.ask(GET).await.status, 200);
    // Within the second request it may not.
    idle.write("GET / HT").await;
    assert_eq!(idle.answer().await.status, 408);
}

#[tokio::test]
async fn a_head_that_begins_along_with_a_body_has_no_more_time_than_any_other() {
    let fixture = Fixture::with(Settings::with_limits(|limits| limits.header_read_timeout = Duration::from_millis(80)));
    let _pod = fixture.quick_pod().await;
    let chunked = post("transfer-encoding: chunked", "5\r\nhello\r\n0\r\n\r\n");
    for request in [POST, &chunked] {
        let mut client = fixture.client().await;
        // The second request of a connection has no more time either. An empty line behind a body begins no head.
        for ended in [request.to_owned(), format!("{request}\r\n"), request.to_owned()] {
            assert_eq!(client.ask(ended).await.status, 200);
            a_head_times_out(&fixture).await;
        }
        assert_eq!(client.ask(format!("{request}GET / HT")).await.status, 200);
        assert_eq!(client.answer().await.status, 408);
    }
}

#[tokio::test]
async fn a_head_that_begins_before_the_last_answer_has_no_more_time_than_any_other() {
    let fixture = Fixture::with(Settings::with_limits(|limits| limits.header_read_timeout = Duration::from_millis(80)));
    let pod = fixture.scripted_pod().await;
    let ok = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
    // The second head begins along with the first request, or while that is being answered.
    for (first, then) in [(format!("{GET}GET / HT"), ""), (GET.to_owned(), "GET / HT"), (format!("{GET}G"), "ET / H")] {
        let mut client = fixture.send(first).await;
        let mut connection = pod.accept_request().await;
        client.write(then).await;
        connection.write(ok).await;
        assert_eq!(client.answer().await.status, 200);
        assert_eq!(client.answer().await.status, 408);
    }
    // A whole request that waits behind another is served.
    let mut client = fixture.send(GET.repeat(2)).await;
    for _ in 0..2 {
        let mut connection = pod.accept_request().await;
        connection.write(ok).await;
        assert_eq!(client.answer().await.status, 200);
    }
    // A client that is between two requests may take its time.
    a_head_times_out(&fixture).await;
    let mut connection = pod.accept_from(&mut client, GET).await;
    connection.write(ok).await;
    assert_eq!(client.answer().await.status, 200);
}

#[tokio::test]
async fn beyond_the_most_connections_clients_are_told_so_while_all_others_are_busy() {
    let fixture = Fixture::with(Settings::with_limits(|limits| limits.max_connections = 2));
    let pod = fixture.scripted_pod().await;
    let (mut first, mut second) = (fixture.send(GET).await, fixture.send(GET).await);
    let (mut one, mut other) = (pod.accept_request().await, pod.accept_request().await);
    let mut third = fixture.send(GET).await;
    let refused = third.answer().await;
    assert_eq!(refused.reason(), (503, "overload"));
    assert_eq!((refused.header("retry-after"), refused.header("connection")), ("1", "close"));
    assert_eq!(third.rest().await, "");
    for connection in [&mut one, &mut other] {
        connection.write(OK).await;
    }
    assert_eq!((first.answer().await.status, second.answer().await.status), (200, 200));
}

#[tokio::test]
async fn a_newcomer_takes_the_place_of_whoever_has_been_idle_for_longest() {
    for (what, said) in
        [("nothing", ""), ("half a head", "GET / HT"), ("a preface", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")]
    {
        let fixture = Fixture::with(Settings::with_limits(|limits| {
            limits.max_connections = 2;
            limits.header_read_timeout = Duration::from_millis(800);
        }));
        let _pod = fixture.quick_pod().await;
        let idle = fixture.send(said).await;
        let mut busy = fixture.client().await;
        let mut others = 0;
        let began = Instant::now();
        // While neither connection counts as idle, no other client gets a place.
        loop {
            assert_eq!(busy.ask(GET).await.status, 200, "{what}");
            let answer = fixture.ask(GET).await;
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
    let pod = fixture.scripted_pod().await;
    let (mut busy, idle) = (fixture.client().await, fixture.client().await);
    let http2 = fixture.http2_client().await;
    let mut connection = pod.accept_from(&mut busy, GET).await;
    let shutdown = fixture.shut_down();
    assert_eq!(idle.rest().await, "");
    assert!(tokio::net::TcpStream::connect(fixture.address).await.is_err());
    until(|| http2.is_closed(), "the HTTP/2 client to be sent away").await;
    connection.write("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
    let answer = busy.answer().await;
    assert_eq!((answer.text(), answer.header("connection")), ("ok", "close"));
    soon(shutdown).await.unwrap();
}

/// Most of the time the connection is still in the kernel's queue.
#[tokio::test]
async fn a_request_of_a_client_that_has_just_connected_is_served_by_a_server_that_stops() {
    // Each round waits for a second or so.
    let round = async |round| {
        let mut fixture = Fixture::new();
        let _pod = fixture.quick_pod().await;
        let mut client = fixture.send(GET).await;
        let shutdown = fixture.shut_down();
        let answer = client.answer().await;
        assert_eq!((answer.status, answer.header("connection")), (200, "close"), "round {round}");
        soon(shutdown).await.unwrap();
    };
    join_all((0..50).map(round)).await;
}

#[tokio::test]
async fn a_shutdown_waits_for_pods_whose_client_has_left() {
    let mut fixture = Fixture::new();
    let pod = fixture.scripted_pod().await;
    let (client, mut connection) = fixture.exchange(&pod, GET).await;
    drop(client);
    let shutdown = fixture.shut_down();
    fixture.refuses_connections().await;
    assert!(!shutdown.is_finished());
    connection.write(OK).await;
    soon(shutdown).await.unwrap();
    assert_eq!(fixture.table.in_flight(P0), 0);
}

#[tokio::test]
async fn a_shutdown_ends_at_its_deadline() {
    let mut fixture = Fixture::new();
    let pod = fixture.scripted_pod().await;
    let (client, mut connection) = fixture.exchange(&pod, GET).await;
    let server = fixture.server.take().unwrap();
    soon(server.shutdown(Instant::now() + Duration::from_millis(50))).await;
    assert_eq!(connection.rest().await, "");
    assert_eq!(client.rest().await, "");
    assert_eq!(fixture.table.in_flight(P0), 0);
}
