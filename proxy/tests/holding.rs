//! Requests that are held, put back or refused: a cutover as clients and pods see it.

use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use http::Response;
use http_body_util::BodyExt;
use segue_protocol::handoff::router::HoldCause;
use segue_proxy::message::local_reply::LocalReply;
use segue_proxy::routing::partition_key::{KeySource, PartitionSource};
use segue_proxy::routing::table::Bounce;
use segue_tests::ports::free_address;
use tokio::net::TcpListener;

use crate::support::client::{empty, full};
use crate::support::pod::{Pod, ScriptedPod, Speaks, echo_body};
use crate::support::{BOTH_VERSIONS, Fixture, GET, OK, P0, POST, POST_THAT_EXPECTS, Settings, get_at, post, until};

const MISDIRECTED: &str = "HTTP/1.1 421 Misdirected Request\r\ncontent-length: 0\r\n\r\n";

#[tokio::test]
async fn a_request_that_names_no_partition_is_refused() {
    let fixture = Fixture::new();
    let mut client = fixture.client().await;
    assert_eq!(client.ask("GET / HTTP/1.1\r\nhost: h\r\n\r\n").await.reason(), (400, "no-partition"));
    for bad in ["8", "x", "-1"] {
        let answer = client.ask(format!("GET / HTTP/1.1\r\nhost: h\r\nx-partition: {bad}\r\n\r\n")).await;
        assert_eq!(answer.reason(), (400, "bad-partition"));
    }
    let answer = fixture.ask("CONNECT h:80 HTTP/1.1\r\nhost: h:80\r\n\r\n").await;
    assert_eq!(answer.reason(), (400, "no-partition"));
    assert_eq!(fixture.metrics.own_answers(LocalReply::NoPartition), 2);
}

#[tokio::test]
async fn a_key_in_the_path_finds_its_partition() {
    let mut settings = Settings::default();
    settings.forward.partition = PartitionSource::Key {
        source: KeySource::Path("/persons/{key}".parse().unwrap()),
        hash: segue_proxy::routing::key_hash::KeyHash::Murmur2,
    };
    let fixture = Fixture::with(settings);
    let pod = Pod::start(Speaks::Http1, |request| async move {
        Response::builder().header("x-at", request.headers()["segue-partition"].clone()).body(empty()).unwrap()
    })
    .await;
    let partition = segue_proxy::routing::key_hash::KeyHash::Murmur2.partition(b"42", 8);
    fixture.route(partition, pod.address, 1);
    let answer = fixture.ask("GET /persons/42/x HTTP/1.1\r\nhost: h\r\n\r\n").await;
    assert_eq!((answer.status, answer.header("x-at")), (200, partition.to_string().as_str()));
}

#[tokio::test]
async fn without_a_view_of_the_store_there_is_no_owner() {
    let mut settings = Settings { partitions: 0, ..Settings::default() };
    settings.stash.max_wait = Duration::from_millis(20);
    let answer = Fixture::with(settings).ask(GET).await;
    assert_eq!(answer.reason(), (503, "no-owner"));
    assert_eq!(answer.header("retry-after"), "1");
}

#[tokio::test]
async fn a_router_that_may_not_trust_its_lease_says_so_whatever_the_last_view_showed() {
    for partitions in [0, 8] {
        let mut settings = Settings { partitions, ..Settings::default() };
        settings.stash.max_wait = Duration::from_millis(20);
        let fixture = Fixture::with(settings);
        // As before the store was ever reached.
        fixture.table.trust_until(tokio::time::Instant::now());
        assert_eq!(fixture.ask(GET).await.reason(), (503, "fenced"), "{partitions} partitions");
    }
    for cause in [HoldCause::NoOwner, HoldCause::Handoff] {
        let fixture = Fixture::with(Settings::with(|settings| settings.stash.max_wait = Duration::from_millis(20)));
        let _pod = fixture.quick_pod().await;
        let mut client = fixture.client().await;
        assert_eq!(client.ask(GET).await.status, 200);
        fixture.hold(P0, cause);
        fixture.table.trust_until(tokio::time::Instant::now());
        assert_eq!(client.ask(POST).await.reason(), (503, "fenced"), "{cause:?}");
    }
}

#[tokio::test]
async fn a_request_that_comes_before_the_first_view_of_the_store_waits_for_it() {
    let fixture = Fixture::with(Settings { partitions: 0, ..Settings::default() });
    let pod = Pod::start(Speaks::Http1, |_| async { Response::new(empty()) }).await;
    let mut client = fixture.send(GET).await;
    fixture.table.set_partitions(8);
    fixture.route(P0, pod.address, 1);
    assert_eq!(client.answer().await.status, 200);
}

#[tokio::test]
async fn a_request_held_too_long_is_answered_with_what_held_it() {
    for (cause, expected) in
        [(HoldCause::NoOwner, "no-owner"), (HoldCause::Handoff, "stash-timeout"), (HoldCause::Fenced, "fenced")]
    {
        let fixture = Fixture::with(Settings::with(|settings| settings.stash.max_wait = Duration::from_millis(20)));
        let _pod = fixture.quick_pod().await;
        let mut client = fixture.client().await;
        assert_eq!(client.ask(GET).await.status, 200);
        fixture.hold(P0, cause);
        assert_eq!(client.ask(POST).await.reason(), (503, expected));
    }
}

#[tokio::test]
async fn grpc_is_told_in_its_own_words() {
    let fixture = Fixture::with(Settings::with(|settings| settings.stash.max_wait = Duration::from_millis(20)));
    let http2 = fixture.http2_client().await;
    let call = http2.request("POST", "/svc/Do").header("content-type", "application/grpc");
    let answer = http2.ask(call.body(full("x")).unwrap()).await;
    assert_eq!((answer.status, answer.header("grpc-status")), (200, "14"));
    assert_eq!(answer.header("segue-reason"), "no-owner");
    assert!(answer.body.is_empty());
}

#[tokio::test]
async fn a_full_stash_refuses_at_once() {
    let fixture = Fixture::with(Settings::with(|settings| settings.stash.max_requests = 1));
    let _first = fixture.send(GET).await;
    fixture.held(P0, 1).await;
    assert_eq!(fixture.ask(GET).await.reason(), (503, "stash-full"));
}

#[tokio::test]
async fn held_requests_are_delivered_when_the_partition_is_routed_somewhere() {
    let fixture = Fixture::new();
    let mut clients = Vec::new();
    for index in 0..3 {
        clients.push(fixture.send(POST).await);
        fixture.held(P0, index + 1).await;
    }
    let _pod = fixture.pod(Speaks::Http1, echo_body).await;
    for mut client in clients {
        assert_eq!(client.answer().await.text(), "hello");
    }
    assert_eq!(fixture.table.stashed(P0), (0, 0));
}

#[tokio::test]
async fn a_held_client_that_asks_before_it_sends_is_not_told_to_go_on() {
    let fixture = Fixture::new();
    let mut client = fixture.send(POST_THAT_EXPECTS).await;
    fixture.held(P0, 1).await;
    let pod = fixture.scripted_pod().await;
    let mut connection = pod.accept_request().await;
    connection.write(MISDIRECTED).await;
    let mut connection = pod.accept_request().await;
    connection.continue_and_answer(&mut client).await;
}

#[tokio::test]
async fn a_misdirected_request_is_put_back_and_its_client_sees_only_the_end() {
    for (speaks, protocol) in BOTH_VERSIONS {
        let fixture = Fixture::with(Settings::with_protocol(protocol));
        let old = Pod::start(speaks, |request| async move {
            request.into_body().collect().await.unwrap();
            Response::builder().status(421).body(full("not mine")).unwrap()
        })
        .await;
        let new = Pod::start(speaks, |request| async move {
            assert_eq!(request.headers()["segue-epoch"], "2");
            echo_body(request).await
        })
        .await;
        fixture.route(P0, old.address, 1);
        let (mut http1, http2) = (fixture.client().await, fixture.http2_client().await);
        http1.write(POST).await;
        let asked = http2.spawn_ask(http2.request("POST", "/").body(full("other")).unwrap());
        until(|| fixture.metrics.requests_bounced(Bounce::Misdirected) >= 3, "bounces").await;
        fixture.route(P0, new.address, 2);
        assert_eq!(http1.answer().await.text(), "hello");
        let answer = asked.await.unwrap();
        assert_eq!((answer.status, answer.text()), (200, "other"));
    }
}

#[tokio::test]
async fn a_misdirected_grpc_call_is_put_back() {
    let fixture = Fixture::new();
    let pod = fixture
        .pod(Speaks::Http2, |request| async move {
            let mine = request.headers()["segue-epoch"] == "2";
            let answer = Response::builder().header("content-type", "application/grpc");
            let answer = match mine {
                true => answer.header("grpc-status", "0"),
                false => answer.header("grpc-status", "9").header("segue-misdirected", "1"),
            };
            answer.body(empty()).unwrap()
        })
        .await;
    let http2 = fixture.http2_client().await;
    let call = http2.request("POST", "/svc/Do").header("content-type", "application/grpc");
    let asked = http2.spawn_ask(call.body(full("x")).unwrap());
    until(|| fixture.metrics.requests_bounced(Bounce::Misdirected) >= 1, "a bounce").await;
    fixture.route(P0, pod.address, 2);
    assert_eq!(asked.await.unwrap().header("grpc-status"), "0");
}

#[tokio::test]
async fn the_connection_that_brought_a_bounce_is_used_again() {
    let fixture = Fixture::new();
    let pod = fixture.scripted_pod().await;
    let mut client = fixture.send(POST).await;
    let mut connection = pod.accept().await;
    for _ in 0..3 {
        connection.receive(POST).await;
        connection.write(MISDIRECTED).await;
    }
    connection.head().await;
    connection.write("HTTP/1.1 204 No Content\r\n\r\n").await;
    assert_eq!(client.answer().await.status, 204);
    assert_eq!(fixture.metrics.requests_bounced(Bounce::Misdirected), 3);
}

#[tokio::test]
async fn a_bounce_in_the_middle_of_an_upload_sends_the_upload_again_from_its_beginning() {
    let fixture = Fixture::new();
    let pod = fixture.scripted_pod().await;
    let mut client = fixture.send(post("transfer-encoding: chunked", "3\r\none\r\n")).await;
    let mut first = pod.accept().await;
    assert!(first.head().await.contains("transfer-encoding: chunked"));
    assert_eq!(first.exactly(8).await, "3\r\none\r\n");
    first.write(MISDIRECTED).await;
    until(|| fixture.metrics.requests_bounced(Bounce::Misdirected) == 1, "the bounce").await;
    client.write("3\r\ntwo\r\n0\r\n\r\n").await;
    let mut second = pod.accept_request().await;
    assert_eq!(second.exactly(21).await, "3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n");
    second.write(OK).await;
    assert_eq!(client.answer().await.status, 200);
    assert_eq!(first.rest().await, "", "the first pod gets nothing that looks like an end");
}

#[tokio::test]
async fn a_bounce_of_an_upload_too_large_to_keep_leaves_the_client_to_try_again() {
    let fixture = Fixture::new();
    let pod = fixture.scripted_pod().await;
    let (mut client, mut connection) = fixture.exchange(&pod, post("content-length: 1000000", "")).await;
    client.write(vec![b'x'; 500_000]).await;
    connection.exactly(400_000).await;
    connection.write(MISDIRECTED).await;
    assert_eq!(client.answer().await.reason(), (503, "no-owner"));
    fixture.in_flight(P0, 0).await;
}

#[tokio::test]
async fn a_pod_that_refuses_connections_gets_the_request_once_it_listens() {
    let fixture = Fixture::new();
    let address = free_address();
    fixture.route(P0, address, 1);
    let (mut http1, http2) = (fixture.client().await, fixture.http2_client().await);
    http1.write(POST).await;
    until(|| fixture.metrics.requests_bounced(Bounce::Unreachable) >= 3, "refusals").await;
    let pod = Pod::start_on(TcpListener::bind(address).await.unwrap(), Speaks::Http1, echo_body);
    assert_eq!(http1.answer().await.text(), "hello");
    // The same by HTTP/2.
    drop(pod);
    fixture.hold(P0, HoldCause::Handoff);
    let asked = http2
        .spawn_ask(http2.request("POST", "/").header("content-type", "application/grpc").body(full("other")).unwrap());
    fixture.held(P0, 1).await;
    let pod = Pod::start(Speaks::Http2, echo_body).await;
    fixture.route(P0, pod.address, 2);
    assert_eq!(asked.await.unwrap().text(), "other");
}

#[tokio::test]
async fn a_pod_that_is_about_to_get_a_partition_is_connected_to_before() {
    let fixture = Fixture::new();
    let answer = |_| async { Response::new(empty()) };
    let (old, new) = (Pod::start(Speaks::Http1, answer).await, Pod::start(Speaks::Http1, answer).await);
    fixture.route(P0, old.address, 1);
    let mut client = fixture.client().await;
    assert_eq!(client.ask(GET).await.status, 200);
    fixture.hold(P0, HoldCause::Handoff);
    client.write(GET).await;
    fixture.held(P0, 1).await;
    fixture.expect(new.address, 2);
    until(|| new.connections.load(SeqCst) == 1, "the connection").await;
    fixture.route(P0, new.address, 2);
    assert_eq!(client.answer().await.status, 200);
    assert_eq!(new.connections.load(SeqCst), 1, "it was used");
}

#[tokio::test]
async fn a_connection_that_died_while_idle_costs_the_client_nothing() {
    let fixture = Fixture::new();
    let pod = fixture.scripted_pod().await;
    let mut client = fixture.client().await;
    for _ in 0..20 {
        let mut connection = pod.accept_from(&mut client, POST).await;
        connection.write(OK).await;
        assert_eq!(client.answer().await.status, 200);
        // The pod closes right after an answer that kept the connection open. On loopback the end arrives before the
        // client's next request.
        drop(connection);
    }
    assert_eq!(Bounce::ALL.map(|bounce| fixture.metrics.requests_bounced(bounce)), [0; Bounce::ALL.len()]);
}

#[tokio::test]
async fn requests_of_one_key_reach_the_new_owner_in_their_order_one_at_a_time() {
    let fixture = Fixture::new();
    let pod = ScriptedPod::new().await;
    let mut clients = Vec::new();
    for index in 0..3 {
        clients.push(fixture.send(get_at(P0, "x-key: k\r\n").replace("GET /", &format!("GET /{index}"))).await);
        fixture.held(P0, index + 1).await;
    }
    fixture.route(P0, pod.address, 1);
    let mut connection = pod.accept().await;
    for (index, mut client) in clients.into_iter().enumerate() {
        let head = connection.head().await;
        assert!(head.starts_with(&format!("GET /{index} ")), "{head}");
        fixture.in_flight(P0, 1).await;
        connection.write(OK).await;
        assert_eq!(client.answer().await.status, 200);
    }
}
