//! Exchanges that fail: pods and clients that break off, timeouts, and severing at the end of a drain.

use std::time::Duration;

use http::Response;
use http_body_util::BodyExt;

use crate::support::client::{data, empty, stream};
use crate::support::pod::{ScriptedPod, Speaks, echo_body};
use crate::support::{BOTH_VERSIONS, Fixture, GET, OK, P0, POST, Settings, get_at, post, soon, until};

#[tokio::test]
async fn a_pod_that_dies_with_the_request_is_never_asked_twice() {
    let fixture = Fixture::new();
    let pod = fixture.scripted_pod().await;
    let mut client = fixture.client().await;
    for broken in ["", "HTTP/1.1 200 O", "nonsense\r\n\r\n", "HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n"] {
        let mut connection = pod.accept_from(&mut client, POST).await;
        connection.write(broken).await;
        drop(connection);
        assert_eq!(client.answer().await.reason(), (502, "upstream-failed"));
    }
    fixture.in_flight(P0, 0).await;
}

/// As many servers do whose idle time ends at the moment at which a request arrives.
#[tokio::test]
async fn a_safe_request_whose_idle_connection_the_pod_closes_is_sent_once_more_and_no_other_is() {
    let request = |method: &str| format!("{method} / HTTP/1.1\r\nhost: h\r\nx-partition: 0\r\n\r\n");
    for method in ["GET", "HEAD", "OPTIONS", "POST", "DELETE"] {
        let fixture = Fixture::new();
        let pod = fixture.scripted_pod().await;
        let mut client = fixture.client().await;
        let mut connection = pod.accept_from(&mut client, GET).await;
        connection.write(OK).await;
        assert_eq!(client.answer().await.status, 200);
        client.write(request(method)).await;
        connection.head().await;
        drop(connection);
        if matches!(method, "GET" | "HEAD" | "OPTIONS") {
            let mut connection = pod.accept_request().await;
            connection.write(OK).await;
            assert_eq!(client.head().await.status, 200, "{method}");
        } else {
            assert_eq!(client.answer().await.reason(), (502, "upstream-failed"), "{method}");
        }
        fixture.in_flight(P0, 0).await;
    }
}

/// It may have ended because of the request, and so might the next owner.
#[tokio::test]
async fn a_safe_request_whose_pod_ends_without_a_response_goes_to_no_other_pod() {
    let fixture = Fixture::new();
    let pod = fixture.scripted_pod().await;
    let mut client = fixture.client().await;
    let mut connection = pod.accept_from(&mut client, GET).await;
    connection.write(OK).await;
    assert_eq!(client.answer().await.status, 200);
    client.write(GET).await;
    connection.head().await;
    drop(pod);
    drop(connection);
    assert_eq!(client.answer().await.reason(), (502, "upstream-failed"));
    fixture.in_flight(P0, 0).await;
}

#[tokio::test]
async fn a_safe_request_is_sent_once_more_at_most_and_not_behind_the_beginning_of_a_response() {
    for (begins, closes) in [("", 2), ("HTTP/1.1 2", 1), ("HTTP/1.1 103 Early Hints\r\n\r\n", 1)] {
        let fixture = Fixture::new();
        let pod = fixture.scripted_pod().await;
        let mut client = fixture.client().await;
        let mut connection = pod.accept_from(&mut client, GET).await;
        connection.write(OK).await;
        assert_eq!(client.answer().await.status, 200);
        client.write(GET).await;
        connection.head().await;
        connection.write(begins).await;
        drop(connection);
        if closes > 1 {
            drop(pod.accept_request().await);
        }
        let mut answer = client.answer().await;
        if answer.status == 103 {
            answer = client.answer().await;
        }
        assert_eq!(answer.reason(), (502, "upstream-failed"), "{begins:?}");
    }
}

#[tokio::test]
async fn an_answer_that_the_pod_breaks_off_is_broken_off_for_the_client() {
    let fixture = Fixture::new();
    let pod = fixture.scripted_pod().await;
    for head in ["content-length: 10", "transfer-encoding: chunked"] {
        let (mut client, mut connection) = fixture.exchange(&pod, GET).await;
        connection.write(format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n5\r\nhel")).await;
        assert_eq!(client.head().await.status, 200);
        drop(connection);
        let rest = client.rest().await;
        assert!(!rest.ends_with("0\r\n\r\n") && rest.len() < 10, "{rest:?} looks complete");
    }
    fixture.in_flight(P0, 0).await;
}

#[tokio::test]
async fn a_pod_that_does_not_answer_in_time_is_a_504() {
    for (speaks, protocol) in BOTH_VERSIONS {
        let fixture = Fixture::with(Settings::with_upstream(|upstream| {
            upstream.protocol = protocol;
            upstream.request_timeout = Duration::from_millis(40);
        }));
        let _pod = fixture.pod(speaks, |_| std::future::pending()).await;
        assert_eq!(fixture.ask(POST).await.reason(), (504, "upstream-timeout"));
        fixture.in_flight(P0, 0).await;
    }
}

#[tokio::test]
async fn an_upload_that_flows_may_take_longer_than_the_request_timeout() {
    let fixture =
        Fixture::with(Settings::with_upstream(|upstream| upstream.request_timeout = Duration::from_millis(400)));
    let _pod = fixture.pod(Speaks::Http1, echo_body).await;
    let mut client = fixture.send(post("content-length: 8", "")).await;
    for _ in 0..8 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        client.write("x").await;
    }
    let answer = client.answer().await;
    assert_eq!((answer.status, answer.text()), (200, "xxxxxxxx"));
}

#[tokio::test]
async fn a_pod_has_the_request_timeout_for_an_upload_that_came_slowly_once_it_is_there() {
    let fixture =
        Fixture::with(Settings::with_upstream(|upstream| upstream.request_timeout = Duration::from_millis(100)));
    let pod = fixture.scripted_pod().await;
    let (mut client, mut connection) = fixture.exchange(&pod, post("content-length: 5", "")).await;
    // Until the body has arrived, only the idle timeout of minutes applies.
    tokio::time::sleep(Duration::from_millis(500)).await;
    client.write("hello").await;
    assert_eq!(connection.exactly(5).await, "hello");
    assert_eq!(client.answer().await.reason(), (504, "upstream-timeout"));
    fixture.in_flight(P0, 0).await;
}

#[tokio::test]
async fn a_client_that_stops_sending_is_told_that_it_was_too_slow() {
    let fixture = Fixture::with(Settings::with_upstream(|upstream| upstream.idle_timeout = Duration::from_millis(50)));
    let pod = fixture.scripted_pod().await;
    let (mut client, mut connection) = fixture.exchange(&pod, post("content-length: 10", "hello")).await;
    assert_eq!(client.answer().await.reason(), (408, "limit"));
    assert_eq!(connection.rest().await, "");
    fixture.in_flight(P0, 0).await;
}

#[tokio::test]
async fn a_stream_on_which_nothing_flows_is_reset() {
    let fixture = Fixture::with(Settings::with_upstream(|upstream| upstream.idle_timeout = Duration::from_millis(50)));
    let pod = fixture.scripted_pod().await;
    let (mut client, mut connection) = fixture.exchange(&pod, GET).await;
    connection.write("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n").await;
    assert_eq!(client.head().await.status, 200);
    assert_eq!(client.rest().await, "5\r\nhello\r\n");
    fixture.in_flight(P0, 0).await;
    assert_eq!(connection.rest().await, "");
}

#[tokio::test]
async fn severing_before_the_answer_is_a_502_and_after_it_a_reset() {
    for (speaks, protocol) in BOTH_VERSIONS {
        let fixture = Fixture::with(Settings::with_protocol(protocol));
        let (sender, body) = stream();
        let body = std::sync::Arc::new(std::sync::Mutex::new(Some(body)));
        let _pod = fixture
            .pod(speaks, move |request| {
                let body = body.lock().unwrap().take();
                async move {
                    match request.uri().path() {
                        "/streams" => Response::new(body.unwrap()),
                        _ => std::future::pending().await,
                    }
                }
            })
            .await;
        let http2 = fixture.http2_client().await;
        let streaming = http2.begin(http2.request("GET", "/streams").body(empty()).unwrap()).await.unwrap();
        let mut streaming = streaming.into_body();
        sender.send(data("one")).unwrap();
        assert_eq!(soon(streaming.frame()).await.unwrap().unwrap().into_data().unwrap(), "one");
        let mut http1 = fixture.send(POST).await;
        fixture.in_flight(P0, 2).await;

        fixture.hold_and_sever(P0);
        assert_eq!(http1.answer().await.reason(), (502, "severed"));
        assert!(soon(streaming.frame()).await.unwrap().is_err());
        fixture.in_flight(P0, 0).await;
    }
}

#[tokio::test]
async fn severing_reaches_an_exchange_whose_client_does_not_read() {
    let fixture = Fixture::new();
    let pod = fixture.scripted_pod().await;
    let (_client, mut connection) = fixture.exchange(&pod, GET).await;
    connection.write("HTTP/1.1 200 OK\r\ncontent-length: 1000000000\r\n\r\n").await;
    // Fill every buffer on the way.
    let chunk = vec![b'x'; 1 << 20];
    while tokio::time::timeout(Duration::from_millis(200), connection.write(&chunk)).await.is_ok() {}
    fixture.in_flight(P0, 1).await;
    fixture.hold_and_sever(P0);
    fixture.in_flight(P0, 0).await;
}

#[tokio::test]
async fn severing_ends_an_upgraded_connection() {
    let fixture = Fixture::new();
    let pod = fixture.scripted_pod().await;
    let (mut client, mut connection) =
        fixture.exchange(&pod, get_at(P0, "connection: upgrade\r\nupgrade: chat\r\n")).await;
    connection.write("HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: chat\r\n\r\nwelcome").await;
    assert_eq!(client.head().await.status, 101);
    assert_eq!(client.exactly(7).await, b"welcome");
    fixture.hold_and_sever(P0);
    assert_eq!(client.rest().await, "");
    assert_eq!(connection.rest().await, "");
    fixture.in_flight(P0, 0).await;
}

#[tokio::test]
async fn a_client_that_hangs_up_while_held_is_never_sent() {
    let fixture = Fixture::new();
    let pod = ScriptedPod::new().await;
    let requests = [
        "GET /gone HTTP/1.1\r\nhost: h\r\nx-partition: 0\r\n\r\n",
        "POST /gone HTTP/1.1\r\nhost: h\r\nx-partition: 0\r\ncontent-length: 5\r\n\r\nhello",
        "POST /gone HTTP/1.1\r\nhost: h\r\nx-partition: 0\r\ncontent-length: 5\r\n\r\nhel",
        "POST /gone HTTP/1.1\r\nhost: h\r\nx-partition: 0\r\ntransfer-encoding: chunked\r\n\r\n3\r\none\r\n",
    ];
    for request in requests {
        let client = fixture.send(request).await;
        fixture.held(P0, 1).await;
        drop(client);
        fixture.held(P0, 0).await;
    }
    let http2 = fixture.http2_client().await;
    let (_sender, body) = stream();
    let asked = http2.spawn_begin(http2.request("POST", "/gone").body(body).unwrap());
    fixture.held(P0, 1).await;
    asked.abort();
    fixture.held(P0, 0).await;

    let mut client = fixture.send(GET).await;
    fixture.held(P0, 1).await;
    fixture.route(P0, pod.address, 1);
    let mut connection = pod.accept().await;
    assert!(connection.head().await.starts_with("GET / "));
    connection.write(OK).await;
    assert_eq!(client.answer().await.status, 200);
}

#[tokio::test]
async fn a_client_that_hangs_up_in_flight_leaves_an_exchange_that_goes_on_and_counts() {
    let fixture = Fixture::new();
    let pod = fixture.scripted_pod().await;
    let (client, mut connection) = fixture.exchange(&pod, POST).await;
    drop(client);
    // The router sees that the client has left, which changes nothing for the pod.
    until(|| fixture.metrics_page().contains("segue_requests_aborted_total 1\n"), "the abort to be seen").await;
    assert_eq!(fixture.table.in_flight(P0), 1);
    connection.write("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhe").await;
    assert_eq!(fixture.metrics.requests_in_flight(), 1);
    connection.write("llo").await;
    fixture.in_flight(P0, 0).await;
}

#[tokio::test]
async fn a_client_that_leaves_in_the_middle_of_its_upload_is_counted_once_by_both_versions() {
    let fixture = Fixture::new();
    let pod = fixture.scripted_pod().await;
    let aborted = async |count: u32| {
        let line = format!("segue_requests_aborted_total {count}\n");
        until(|| fixture.metrics_page().contains(&line), "the abort to be seen").await;
    };
    let part = "POST / HTTP/1.1\r\nhost: h\r\nx-partition: 0\r\ncontent-length: 50\r\n\r\nhello";
    let (client, mut connection) = fixture.exchange(&pod, part).await;
    drop(client);
    aborted(1).await;
    connection.rest().await;
    fixture.in_flight(P0, 0).await;

    let http2 = fixture.http2_client().await;
    let (sender, body) = stream();
    let asked = http2.spawn_begin(http2.request("POST", "/").body(body).unwrap());
    sender.send(data("hello")).unwrap();
    let mut connection = pod.accept().await;
    connection.head().await;
    drop(sender);
    assert!(asked.await.unwrap().is_err());
    aborted(2).await;
    connection.rest().await;
    fixture.in_flight(P0, 0).await;
    aborted(2).await;
}

#[tokio::test]
async fn an_exchange_that_its_client_left_has_the_request_timeout_left() {
    let fixture =
        Fixture::with(Settings::with_upstream(|upstream| upstream.request_timeout = Duration::from_millis(50)));
    let pod = fixture.scripted_pod().await;
    let (mut client, mut connection) = fixture.exchange(&pod, POST).await;
    connection.write("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n").await;
    client.head().await;
    drop(client);
    assert_eq!(connection.rest().await, "");
    fixture.in_flight(P0, 0).await;
}

#[tokio::test]
async fn an_exchange_that_its_client_left_can_be_severed() {
    let fixture = Fixture::new();
    let pod = fixture.scripted_pod().await;
    let (client, mut connection) = fixture.exchange(&pod, GET).await;
    drop(client);
    fixture.in_flight(P0, 1).await;
    fixture.hold_and_sever(P0);
    assert_eq!(connection.rest().await, "");
    fixture.in_flight(P0, 0).await;
}

#[tokio::test]
async fn a_request_that_its_client_cuts_off_is_not_completed() {
    let fixture = Fixture::new();
    let pod = fixture.scripted_pod().await;
    for (head, sent) in [("content-length: 10", "hello"), ("transfer-encoding: chunked", "5\r\nhello\r\n")] {
        let (client, mut connection) = fixture.exchange(&pod, post(head, sent)).await;
        drop(client);
        assert_eq!(connection.rest().await, "", "that would have ended the body");
        fixture.in_flight(P0, 0).await;
    }
}

#[tokio::test]
async fn a_request_that_its_client_resets_is_not_completed() {
    for (speaks, protocol) in BOTH_VERSIONS {
        let fixture = Fixture::with(Settings::with_protocol(protocol));
        let (seen, mut sees) = tokio::sync::mpsc::unbounded_channel();
        let _pod = fixture
            .pod(speaks, move |request| {
                let seen = seen.clone();
                async move {
                    let mut body = request.into_body();
                    let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
                    seen.send(Ok(first)).unwrap();
                    let complete = body.collect().await.is_ok();
                    seen.send(Err(complete)).unwrap();
                    Response::new(empty())
                }
            })
            .await;
        let http2 = fixture.http2_client().await;
        let (sender, body) = stream();
        let asked = http2.spawn_begin(http2.request("POST", "/").body(body).unwrap());
        sender.send(data("hello")).unwrap();
        assert_eq!(soon(sees.recv()).await.unwrap(), Ok("hello".into()));
        drop(sender);
        assert_eq!(soon(sees.recv()).await.unwrap(), Err(false));
        assert!(soon(asked).await.unwrap().is_err());
        fixture.in_flight(P0, 0).await;
    }
}
