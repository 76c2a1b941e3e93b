//! Limits on bodies, on requests in flight to a pod and on retries, and the responses beyond them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use http::Response;
use http_body_util::BodyExt;
use segue_protocol::handoff::router::HoldCause;
use segue_protocol::ids::PartitionId;
use segue_proxy::message::local_reply::LocalReply;
use segue_proxy::routing::table::Bounce;
use segue_tests::ports::free_address;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::support::client::{data, empty, stream};
use crate::support::pod::{Pod, ScriptedPod, Speaks};
use crate::support::{BOTH_VERSIONS, Fixture, GET, OK, P0, P1, P2, POST, Settings, get_at, post, soon, until};

#[tokio::test]
async fn a_body_that_says_it_is_too_large_is_refused_and_reaches_nobody() {
    let fixture = Fixture::with(Settings::with_limits(|limits| limits.max_body_bytes = Some(5)));
    let pod = fixture.quick_pod().await;
    let answer = fixture.ask(post("content-length: 6", "hello!")).await;
    assert_eq!(answer.reason(), (413, "limit"));
    assert_eq!(pod.connections.load(SeqCst), 0);
    let answer = fixture.ask(POST).await;
    assert_eq!(answer.status, 200);
    // Nor is it held.
    fixture.hold(P0, HoldCause::Handoff);
    let answer = fixture.ask(post("content-length: 6", "hello!")).await;
    assert_eq!(answer.reason(), (413, "limit"));
}

#[tokio::test]
async fn a_body_that_grows_too_large_is_broken_off_for_the_pod_and_refused_for_the_client() {
    for (speaks, protocol) in BOTH_VERSIONS {
        let mut settings = Settings::default();
        settings.forward.limits.max_body_bytes = Some(5);
        settings.forward.upstream.protocol = protocol;
        let mut fixture = Fixture::with(settings);
        let (seen, mut sees) = tokio::sync::mpsc::unbounded_channel();
        let pod = fixture
            .pod(speaks, move |request| {
                let seen = seen.clone();
                async move {
                    seen.send(request.into_body().collect().await.is_ok()).unwrap();
                    Response::new(empty())
                }
            })
            .await;
        let chunked = "transfer-encoding: chunked";
        let answer = fixture.ask(post(chunked, "3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n")).await;
        assert_eq!((answer.status, soon(sees.recv()).await), (200, Some(true)));
        // The pod may have got a part of it by then.
        let answer = fixture.ask(post(chunked, "3\r\nabc\r\n3\r\ndef\r\n0\r\n\r\n")).await;
        assert_eq!(answer.reason(), (413, "limit"), "{protocol:?}");
        let http2 = fixture.http2_client().await;
        let (sender, body) = stream();
        sender.send(data("abcd")).unwrap();
        sender.send(data("ef")).unwrap();
        let answer = http2.post("/", body).await;
        assert_eq!(answer.reason(), (413, "limit"), "{protocol:?}");
        fixture.in_flight(P0, 0).await;
        // Once both sides have ended, the pod has reported each request as whole or cut off.
        fixture.server.take().unwrap().shutdown(Instant::now()).await;
        drop(pod);
        while let Some(complete) = soon(sees.recv()).await {
            assert!(!complete, "the pod took a part for the whole");
        }
    }
}

#[tokio::test]
async fn a_held_body_that_grows_too_large_is_refused_while_it_waits() {
    let fixture = Fixture::with(Settings::with_limits(|limits| limits.max_body_bytes = Some(5)));
    let mut client = fixture.send(post("transfer-encoding: chunked", "3\r\nabc\r\n")).await;
    fixture.held(P0, 1).await;
    client.write("3\r\ndef\r\n").await;
    assert_eq!(client.answer().await.reason(), (413, "limit"));
    fixture.held(P0, 0).await;
}

#[tokio::test]
async fn a_pod_that_has_as_much_as_it_may_gets_no_more_and_others_do() {
    let fixture = Fixture::with(Settings::with_upstream(|upstream| upstream.max_in_flight_per_pod = 2));
    let slow = ScriptedPod::new().await;
    let pod = Pod::start(Speaks::Http1, |_| async { Response::new(empty()) }).await;
    fixture.route(P0, slow.address, 1);
    fixture.route(P1, slow.address, 1);
    fixture.route(P2, pod.address, 1);
    let ask = |partition: PartitionId| fixture.send(get_at(partition, ""));
    let (mut first, gone) = (ask(P0).await, ask(P1).await);
    let (mut one, mut other) = (slow.accept().await, slow.accept().await);
    let heads = [one.head().await, other.head().await];
    if !heads[0].contains("segue-partition: 0") {
        std::mem::swap(&mut one, &mut other);
    }
    // A client that hangs up makes no room, because its pod goes on with the request.
    drop(gone);
    let refused = ask(P0).await.answer().await;
    assert_eq!(refused.reason(), (503, "overload"));
    assert_eq!(refused.header("retry-after"), "1");
    assert_eq!(ask(P2).await.answer().await.status, 200);
    // A held request is sent in its turn, whatever the limit.
    fixture.hold(P1, HoldCause::Handoff);
    let mut held = ask(P1).await;
    fixture.held(P1, 1).await;
    other.write("HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").await;
    fixture.in_flight(P1, 0).await;
    let mut third = ask(P0).await;
    let mut three = slow.accept_request().await;
    fixture.route(P1, slow.address, 2);
    let mut four = slow.accept_request().await;
    for connection in [&mut one, &mut three, &mut four] {
        connection.write(OK).await;
    }
    for client in [&mut first, &mut third, &mut held] {
        assert_eq!(client.answer().await.status, 200);
    }
}

/// The kernel decides which worker gets which client, so only the sum is known.
#[tokio::test]
async fn the_places_of_a_pod_are_shared_out_between_the_workers() {
    let mut settings = Settings::default();
    settings.server.workers = 2;
    settings.forward.upstream.max_in_flight_per_pod = 2;
    let fixture = Fixture::with(settings);
    let _pod = fixture.scripted_pod().await;
    let mut clients = Vec::new();
    for _ in 0..16 {
        clients.push(fixture.send(GET).await);
    }
    until(|| fixture.metrics.own_answers(LocalReply::Overload) >= 14, "all but one for each worker to be refused")
        .await;
}

/// A pod that refuses until it accepts, and that answers as often as it has permits.
struct RefusingPod {
    pod: Pod,
    seen: Arc<AtomicUsize>,
    answers: Arc<Semaphore>,
    accepts: Arc<std::sync::atomic::AtomicBool>,
}

impl RefusingPod {
    async fn start() -> Self {
        let (seen, answers) = (Arc::<AtomicUsize>::default(), Arc::new(Semaphore::new(0)));
        let accepts = Arc::<std::sync::atomic::AtomicBool>::default();
        let (counted, allowed, accepting) = (seen.clone(), answers.clone(), accepts.clone());
        let pod = Pod::start(Speaks::Http1, move |_| {
            let (counted, allowed, accepting) = (counted.clone(), allowed.clone(), accepting.clone());
            async move {
                counted.fetch_add(1, SeqCst);
                allowed.acquire().await.unwrap().forget();
                let status = if accepting.load(SeqCst) { 200 } else { 421 };
                Response::builder().status(status).body(empty()).unwrap()
            }
        })
        .await;
        RefusingPod { pod, seen, answers, accepts }
    }

    async fn sees(&self, requests: usize) {
        until(|| self.seen.load(SeqCst) == requests, "requests to reach the pod").await;
    }
}

#[tokio::test]
async fn a_pod_that_has_refused_gets_one_request_and_more_once_it_has_taken_that() {
    let fixture = Fixture::new();
    let pod = RefusingPod::start().await;
    let mut clients = Vec::new();
    for key in 0..40 {
        clients.push(fixture.send(get_at(P0, &format!("x-key: {key}\r\n"))).await);
    }
    fixture.held(P0, 40).await;
    fixture.route(P0, pod.pod.address, 1);
    // As many as `flush_concurrency` allows.
    pod.sees(16).await;
    pod.answers.add_permits(16);
    // Then one at a time, although all forty wait for this pod.
    for round in 17..20 {
        pod.sees(round).await;
        assert_eq!((fixture.table.in_flight(P0), fixture.table.stashed(P0).0), (1, 39));
        pod.answers.add_permits(1);
    }
    pod.sees(20).await;
    assert_eq!((fixture.table.in_flight(P0), fixture.table.stashed(P0).0), (1, 39));
    pod.accepts.store(true, SeqCst);
    pod.answers.add_permits(1);
    pod.sees(20 + 16).await;
    pod.answers.add_permits(100);
    for mut client in clients {
        assert_eq!(client.answer().await.status, 200);
    }
    assert_eq!(fixture.metrics.requests_bounced(Bounce::Misdirected), 16 + 3);
}

#[tokio::test]
async fn a_pod_that_refuses_everything_is_noticed_and_not_any_more_once_it_accepts() {
    let fixture = Fixture::new();
    let pod = RefusingPod::start().await;
    pod.answers.add_permits(1000);
    fixture.route(P0, pod.pod.address, 1);
    let mut client = fixture.send(GET).await;
    until(|| !fixture.table.outliers().is_empty(), "the pod to be noticed").await;
    let outlier = fixture.table.outliers()[0].clone();
    assert_eq!(outlier.address, pod.pod.address.to_string());
    assert!(outlier.health.refusals().1 >= 5 && outlier.health.refusals().0 == 0);
    pod.accepts.store(true, SeqCst);
    assert_eq!(client.answer().await.status, 200);
    assert!(fixture.table.outliers().is_empty());
}

#[tokio::test]
async fn a_pod_that_cannot_be_reached_is_tried_by_one_request_at_a_time_of_all_partitions() {
    let fixture = Fixture::new();
    let address = free_address();
    for partition in PartitionId::all(8) {
        fixture.route(partition, address, 1);
    }
    let mut clients = Vec::new();
    for number in 0..80 {
        let get = get_at(PartitionId::new(number % 8), &format!("x-key: {number}\r\n"));
        clients.push(fixture.send(get).await);
    }
    // All of them arrived before the first attempt failed.
    until(|| PartitionId::all(8).all(|partition| fixture.table.stashed(partition).0 == 10), "all to be held").await;
    let bounced = || [Bounce::Unreachable, Bounce::BackedOff].map(|bounce| fixture.metrics.requests_bounced(bounce));
    let before = bounced();
    let since = || {
        let [refused, spared] = bounced();
        (refused - before[0], spared - before[1])
    };
    until(|| since().0 > 0 && since().1 >= 40, "partitions to come back").await;
    let (tried, spared) = since();
    assert!(2 * tried < spared, "{tried} were tried while {spared} were spared");
    until(|| !fixture.table.outliers().is_empty(), "the pod to be noticed").await;
    let _pod =
        Pod::start_on(TcpListener::bind(address).await.unwrap(), Speaks::Http1, |_| async { Response::new(empty()) });
    for mut client in clients {
        assert_eq!(client.answer().await.status, 200);
    }
}
