//! Exchanges that outlast their answer, their client or their connection: how long they count as in flight, and when they
//! are broken off.

use std::time::Duration;

use http::Response;
use http_body_util::BodyExt;
use segue_protocol::handoff::router::HoldCause;
use segue_proxy::settings::UpstreamProtocol;
use tokio::time::Instant;

use crate::support::client::{Body, RawHttp1Client, data, empty, stream};
use crate::support::pod::{Connection, Speaks, start_h2_pod};
use crate::support::{BOTH_VERSIONS, Fixture, GET, OK, P0, POST, Settings, post, soon, until};

/// Waits until the router has seen that no client is connected any more.
async fn all_clients_are_gone(fixture: &Fixture) {
    until(|| fixture.metrics_page().contains("segue_connections 0\n"), "the router to see its client leave").await;
}

type Frames = tokio::sync::mpsc::UnboundedSender<Option<http_body::Frame<bytes::Bytes>>>;

/// Returns an upload by HTTP/2 that its pod has answered half-way, and the pod's connection by HTTP/1.1.
async fn half_way(fixture: &Fixture, answer: &str) -> (Frames, Connection) {
    let pod = fixture.scripted_pod().await;
    let http2 = fixture.http2_client().await;
    let (sender, body) = stream();
    sender.send(data("12345")).unwrap();
    let request = http2.request("POST", "/").header("content-length", "10").body(body).unwrap();
    let asked = tokio::spawn(async move { http2.begin(request).await.unwrap().into_body().collect().await.unwrap() });
    let mut connection = pod.accept_request().await;
    assert_eq!(connection.exactly(5).await, "12345");
    connection.write(answer).await;
    assert!(soon(asked).await.unwrap().to_bytes().is_empty());
    (sender, connection)
}

fn by_http1() -> Fixture {
    Fixture::with(Settings::with_protocol(UpstreamProtocol::Http1))
}

#[tokio::test]
async fn an_upload_counts_until_it_is_sent_although_its_answer_is_there() {
    let fixture = by_http1();
    let (client, mut connection) = half_way(&fixture, OK).await;
    assert_eq!(fixture.table.in_flight(P0), 1, "the pod is still being sent to");
    client.send(data("67890")).unwrap();
    assert_eq!(connection.exactly(5).await, "67890");
    fixture.in_flight(P0, 0).await;
}

#[tokio::test]
async fn severing_breaks_off_an_upload_whose_answer_is_there() {
    let fixture = by_http1();
    let (client, mut connection) = half_way(&fixture, OK).await;
    fixture.hold(P0, HoldCause::Handoff);
    assert_eq!(fixture.table.in_flight(P0), 1);
    fixture.sever(P0);
    fixture.in_flight(P0, 0).await;
    let _ = client.send(data("67890"));
    assert_eq!(connection.rest().await, "", "a byte has reached a pod that its router had drained");
}

#[tokio::test]
async fn an_upload_ends_when_its_pod_closes_after_the_answer() {
    let fixture = by_http1();
    let answer = "HTTP/1.1 413 Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
    let (_client, connection) = half_way(&fixture, answer).await;
    drop(connection);
    fixture.in_flight(P0, 0).await;
}

/// Returns a client by HTTP/1.1 whose upload its pod has answered half-way, and the pod's connection.
async fn half_way_by_http1(fixture: &Fixture) -> (RawHttp1Client, Connection) {
    let pod = fixture.scripted_pod().await;
    let (mut client, mut connection) = fixture.exchange(&pod, post("content-length: 10", "12345")).await;
    connection.write(OK).await;
    assert_eq!(client.answer().await.header("connection"), "close");
    (client, connection)
}

/// The client's connection takes no further request, but the pod gets the whole of this one.
#[tokio::test]
async fn an_upload_by_http1_goes_on_although_its_connection_closes_behind_it() {
    let fixture = Fixture::new();
    let (mut client, mut connection) = half_way_by_http1(&fixture).await;
    assert_eq!(fixture.table.in_flight(P0), 1, "the pod is still being sent to");
    client.write("67890").await;
    assert_eq!(connection.exactly(5).await, "67890");
    fixture.in_flight(P0, 0).await;
    assert_eq!(client.rest().await, "");
}

#[tokio::test]
async fn an_upload_by_http1_ends_with_its_client() {
    let fixture = Fixture::new();
    let (client, mut connection) = half_way_by_http1(&fixture).await;
    drop(client);
    fixture.in_flight(P0, 0).await;
    assert_eq!(connection.rest().await, "");
}

/// A client that waits for its connection to be closed sends nothing more.
#[tokio::test]
async fn an_upload_by_http1_that_stops_after_its_answer_is_broken_off() {
    let fixture = Fixture::with(Settings::with_upstream(|upstream| upstream.idle_timeout = Duration::from_millis(200)));
    let (client, mut connection) = half_way_by_http1(&fixture).await;
    assert_eq!(client.rest().await, "");
    fixture.in_flight(P0, 0).await;
    assert_eq!(connection.rest().await, "");
}

#[tokio::test]
async fn severing_breaks_off_an_upload_by_http1_whose_answer_is_there() {
    let fixture = Fixture::new();
    let (mut client, mut connection) = half_way_by_http1(&fixture).await;
    fixture.hold(P0, HoldCause::Handoff);
    assert_eq!(fixture.table.in_flight(P0), 1, "the pod is still being sent to");
    fixture.sever(P0);
    fixture.in_flight(P0, 0).await;
    client.write("67890").await;
    assert_eq!(connection.rest().await, "", "a byte has reached a pod that its router had drained");
}

/// Sends two slow uploads to a pod that answers at once and reads on. The one that is not gRPC is broken off.
async fn of_two_that_drip_the_one_of_grpc_goes_on(settings: Settings, speaks: Speaks, answer: fn() -> Body) {
    let fixture = Fixture::with(settings);
    let (ended, mut ends) = tokio::sync::mpsc::unbounded_channel();
    let _pod = fixture
        .pod(speaks, move |request| {
            let ended = ended.clone();
            async move {
                let kind = request.headers()["content-type"].clone();
                tokio::spawn(async move { ended.send((kind, request.into_body().collect().await.is_ok())) });
                Response::new(answer())
            }
        })
        .await;
    let http2 = fixture.http2_client().await;
    let (mut senders, mut answers) = (Vec::new(), Vec::new());
    for kind in ["text/plain", "application/grpc"] {
        let (sender, body) = stream();
        let request = http2.request("POST", "/").header("content-type", kind).body(body).unwrap();
        answers.push(http2.begin(request).await.unwrap());
        senders.push(sender);
    }
    let drips = async {
        loop {
            senders.iter().for_each(|sender| drop(sender.send(data("x"))));
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let one_ends = async {
        assert_eq!(soon(ends.recv()).await.unwrap(), ("text/plain".parse().unwrap(), false));
        fixture.in_flight(P0, 1).await;
    };
    tokio::select! {
        () = one_ends => {}
        () = drips => {}
    }
}

#[tokio::test]
async fn an_upload_that_drips_after_its_answer_is_broken_off_unless_it_is_of_grpc() {
    for (speaks, protocol) in BOTH_VERSIONS {
        let settings = Settings::with_protocol(protocol).limit_upload_rate(Duration::from_millis(300));
        of_two_that_drip_the_one_of_grpc_goes_on(settings, speaks, empty).await;
    }
}

/// Otherwise a client that reads nothing could keep its exchange for ever by sending a byte now and then.
#[tokio::test]
async fn an_upload_that_drips_keeps_no_answer_open_that_does_not_flow_unless_it_is_of_grpc() {
    for (speaks, protocol) in BOTH_VERSIONS {
        let settings = Settings::with_upstream(|upstream| {
            upstream.protocol = protocol;
            upstream.idle_timeout = Duration::from_secs(1);
        })
        .limit_upload_rate(Duration::from_millis(300));
        let begun = || {
            let (sender, body) = stream();
            sender.send(data("begun")).unwrap();
            // It never ends.
            std::mem::forget(sender);
            body
        };
        of_two_that_drip_the_one_of_grpc_goes_on(settings, speaks, begun).await;
    }
}

/// Starts a pod that answers each request at once and hands its body to the test.
async fn eager_http2_pod() -> (std::net::SocketAddr, tokio::sync::mpsc::UnboundedReceiver<h2::RecvStream>) {
    let (bodies, receiver) = tokio::sync::mpsc::unbounded_channel();
    let address = start_h2_pod(move |request, mut respond| {
        respond.send_response(Response::new(()), true).unwrap();
        bodies.send(request.into_body()).unwrap();
    })
    .await;
    (address, receiver)
}

#[tokio::test]
async fn an_upload_by_http2_counts_until_it_is_sent_although_its_answer_is_there() {
    for sever in [false, true] {
        let fixture = Fixture::of_http2_pods();
        let (address, mut bodies) = eager_http2_pod().await;
        fixture.route(P0, address, 1);
        let http2 = fixture.http2_client().await;
        let (sender, body) = stream();
        sender.send(data("first")).unwrap();
        let answer = http2.begin_post("/", body).await.unwrap();
        assert_eq!(answer.status(), 200);
        let mut body = soon(bodies.recv()).await.unwrap();
        assert_eq!(soon(body.data()).await.unwrap().unwrap(), "first");
        assert!(soon(answer.into_body().collect()).await.unwrap().to_bytes().is_empty());
        assert_eq!(fixture.table.in_flight(P0), 1, "the pod is still being sent to");
        if sever {
            fixture.hold_and_sever(P0);
            fixture.in_flight(P0, 0).await;
            let _ = sender.send(data("second"));
            assert!(soon(body.data()).await.unwrap().is_err(), "a byte has reached a drained pod");
        } else {
            sender.send(data("second")).unwrap();
            assert_eq!(soon(body.data()).await.unwrap().unwrap(), "second");
            sender.send(None).unwrap();
            // The end may have an empty frame of its own.
            while let Some(data) = soon(body.data()).await {
                assert_eq!(data.unwrap(), "");
            }
            assert!(body.is_end_stream());
            fixture.in_flight(P0, 0).await;
        }
    }
}

#[tokio::test]
async fn a_client_that_leaves_in_the_midst_of_an_answer_leaves_an_exchange_that_counts() {
    let fixture = Fixture::new();
    let pod = fixture.scripted_pod().await;
    let (mut client, mut connection) = fixture.exchange(&pod, POST).await;
    connection.write("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n").await;
    client.head().await;
    drop(client);
    all_clients_are_gone(&fixture).await;
    assert_eq!(fixture.table.in_flight(P0), 1);
    connection.write("5\r\nhello\r\n").await;
    assert_eq!(fixture.table.in_flight(P0), 1);
    connection.write("0\r\n\r\n").await;
    fixture.in_flight(P0, 0).await;
}

#[tokio::test]
async fn an_answer_that_nobody_reads_any_more_is_read_on_for_a_mebibyte_at_most() {
    let fixture = Fixture::new();
    let pod = fixture.scripted_pod().await;
    let (mut client, mut connection) = fixture.exchange(&pod, POST).await;
    connection.write("HTTP/1.1 200 OK\r\ncontent-length: 1000000000\r\n\r\n").await;
    client.head().await;
    drop(client);
    all_clients_are_gone(&fixture).await;
    let mut sent = 0;
    use tokio::io::AsyncWriteExt as _;
    while soon(connection.stream.write_all(&[b'x'; 64 << 10])).await.is_ok() {
        sent += 64 << 10;
        assert!(sent < 32 << 20, "the router reads on and on");
    }
    assert!(sent >= 1 << 20, "{sent} bytes");
    fixture.in_flight(P0, 0).await;
}

#[tokio::test]
async fn an_answer_to_a_get_that_nobody_reads_any_more_is_broken_off_at_once() {
    for (speaks, protocol) in BOTH_VERSIONS {
        let fixture = Fixture::with(Settings::with_protocol(protocol));
        let (frames, body) = stream();
        let body = std::sync::Arc::new(std::sync::Mutex::new(Some(body)));
        let _pod = fixture
            .pod(speaks, move |_| {
                let body = body.lock().unwrap().take().unwrap();
                async move { Response::new(body) }
            })
            .await;
        let mut client = fixture.send(GET).await;
        frames.send(data("an event")).unwrap();
        client.head().await;
        let begun = Instant::now();
        drop(client);
        soon(frames.closed()).await;
        fixture.in_flight(P0, 0).await;
        assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    }
}

#[tokio::test]
async fn a_stream_on_which_only_the_client_sends_is_not_idle() {
    for (speaks, protocol) in BOTH_VERSIONS {
        let fixture = Fixture::with(Settings::with_upstream(|upstream| {
            upstream.protocol = protocol;
            upstream.idle_timeout = Duration::from_secs(1);
        }));
        let _pod = fixture
            .pod(speaks, |request| async move {
                let (frames, body) = stream();
                frames.send(data("hello ")).unwrap();
                tokio::spawn(async move {
                    let collected = request.into_body().collect().await.unwrap().to_bytes();
                    frames.send(Some(http_body::Frame::data(collected))).unwrap();
                    frames.send(None).unwrap();
                });
                Response::new(body)
            })
            .await;
        let http2 = fixture.http2_client().await;
        let (sender, body) = stream();
        let answer = http2.begin_post("/", body).await.unwrap();
        for _ in 0..15 {
            sender.send(data("x")).unwrap();
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        sender.send(None).unwrap();
        let collected = soon(answer.into_body().collect()).await.unwrap().to_bytes();
        assert_eq!(collected, format!("hello {}", "x".repeat(15)));
        fixture.in_flight(P0, 0).await;
    }
}

#[tokio::test]
async fn a_request_on_a_used_connection_that_breaks_is_not_sent_again() {
    let fixture = Fixture::new();
    let pod = fixture.scripted_pod().await;
    let mut client = fixture.client().await;
    for said in ["", "HTTP/1.1 200 O"] {
        let mut connection = pod.accept_from(&mut client, POST).await;
        connection.write(OK).await;
        assert_eq!(client.answer().await.status, 200);
        client.write(POST).await;
        connection.receive(POST).await;
        connection.write(said).await;
        drop(connection);
        assert_eq!(client.answer().await.reason(), (502, "upstream-failed"));
        // If it were sent again, the pod would get it on the next connection.
    }
    client.write(GET).await;
    assert!(pod.accept().await.head().await.starts_with("GET / "));
}

#[tokio::test]
async fn a_connection_is_not_used_past_the_time_that_its_pod_gives_it() {
    let fixture = Fixture::new();
    let pod = fixture.scripted_pod().await;
    let (mut client, mut first) = fixture.exchange(&pod, GET).await;
    first.write("HTTP/1.1 200 OK\r\nkeep-alive: timeout=1\r\ncontent-length: 0\r\n\r\n").await;
    assert_eq!(client.answer().await.status, 200);
    // Half of that time, and the lag of the router's coarse clock.
    tokio::time::sleep(Duration::from_millis(700)).await;
    let mut second = pod.accept_from(&mut client, GET).await;
    second.write(OK).await;
    assert_eq!(client.answer().await.status, 200);
    drop(first);
}

#[tokio::test]
async fn the_mark_of_a_refusal_that_comes_too_late_is_not_passed_on() {
    let fixture = Fixture::of_http2_pods();
    let _pod = fixture
        .pod(Speaks::Http2, |_| async {
            let (frames, body) = stream();
            frames.send(data("begun")).unwrap();
            let mut trailers = http::HeaderMap::new();
            trailers.insert("grpc-status", "9".parse().unwrap());
            trailers.insert("segue-misdirected", "1".parse().unwrap());
            frames.send(Some(http_body::Frame::trailers(trailers))).unwrap();
            frames.send(None).unwrap();
            Response::builder().header("content-type", "application/grpc").body(body).unwrap()
        })
        .await;
    let http2 = fixture.http2_client().await;
    let answer = http2.post("/svc/Do", empty()).await;
    assert_eq!(answer.trailers["grpc-status"], "9");
    assert!(!answer.trailers.contains_key("segue-misdirected"));
}
