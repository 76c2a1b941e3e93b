//! Requests through the layer: accepted, refused, made to wait.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Empty, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use segue_coordination::pod::{ByKeyspace, KeylessRequest, Owned, Rejection};
use segue_protocol::ids::{Epoch, PartitionId};
use segue_protocol::records::{Phase, PodAckKind};
use tokio::time::{Instant, sleep};
use tower::{Layer as _, ServiceExt as _, service_fn};

use super::fixture::{Fixture, Pod, whole};

const P0: PartitionId = PartitionId::new(0);
const P9: PartitionId = PartitionId::new(9);

#[tokio::test(start_paused = true)]
async fn a_request_of_an_earlier_epoch_is_refused_at_once() {
    let (fixture, _) = Fixture::new();
    let mut pod = Pod::start(&fixture, "w").await;
    fixture.place(P0, &pod, 3).await;
    let now = Instant::now();
    let response = pod.send(P0, 2).await.unwrap();
    assert_eq!(now.elapsed(), Duration::ZERO);
    assert_eq!(response.status(), 421);
    let body = response.into_body().collect().await.unwrap().to_bytes();
    let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
    assert_eq!((body["reason"].as_str(), body["partition"].as_u64()), (Some("stale-epoch"), Some(0)));
    assert!(pod.arrived.try_recv().is_err(), "the service has not seen it");
    assert_eq!(pod.handle.ownership().refused(Rejection::Stale), 1);
}

#[tokio::test(start_paused = true)]
async fn a_request_ahead_of_the_view_waits_for_it_and_is_served() {
    let (fixture, _) = Fixture::new();
    let old = Pod::start(&fixture, "old").await;
    let mut pod = Pod::start(&fixture, "w").await;
    fixture.place(P0, &old, 1).await;
    fixture.begin(P0, Some(&old), &pod, 2).await;
    fixture.in_phase(P0, Phase::Ready).await;
    let early = pod.send(P0, 2);
    sleep(Duration::from_millis(200)).await;
    assert!(!early.is_finished() && pod.arrived.try_recv().is_err());
    fixture.flip(P0, Phase::Switching).await;
    let arrival = pod.arrival().await;
    assert_eq!((arrival.owned.partition, arrival.owned.epoch), (P0, Epoch::new(2)));
    assert!(arrival.answer.send(whole("done")).is_ok());
    assert_eq!(early.await.unwrap().status(), 200);
    assert_eq!(pod.handle.ownership().refused(Rejection::NotOwner), 0);
}

#[tokio::test(start_paused = true)]
async fn a_request_ahead_of_the_view_is_refused_after_a_quarter_of_a_second() {
    let (fixture, _) = Fixture::new();
    let pod = Pod::start(&fixture, "w").await;
    fixture.place(P0, &pod, 1).await;
    for (partition, epoch) in [(P0, 2), (P9, 1)] {
        let now = Instant::now();
        assert_eq!(pod.send(partition, epoch).await.unwrap().status(), 421);
        assert_eq!(now.elapsed(), Duration::from_millis(250));
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_without_readable_stamps_or_of_another_keyspace_is_refused() {
    let (fixture, _) = Fixture::new();
    let pod = Pod::start(&fixture, "w").await;
    fixture.place(P0, &pod, 1).await;
    let stamps: [&[(&str, &str)]; 8] = [
        &[],
        &[("segue-partition", "0")],
        &[("segue-epoch", "1")],
        &[("segue-partition", "+0"), ("segue-epoch", "1")],
        &[("segue-partition", "0"), ("segue-epoch", "x")],
        &[("segue-partition", "0"), ("segue-partition", "0"), ("segue-epoch", "1")],
        &[("segue-partition", "0"), ("segue-epoch", "99999999999999999999999")],
        &[("segue-partition", "0"), ("segue-epoch", "1"), ("segue-keyspace", "other")],
    ];
    for stamps in stamps {
        let request = stamps.iter().fold(Request::post("/"), |request, (name, value)| request.header(*name, *value));
        let response = pod.send_request(request.body(Empty::new()).unwrap()).await.unwrap();
        assert_eq!(response.status(), 421, "{stamps:?}");
    }
    assert_eq!(pod.handle.ownership().refused(Rejection::Unstamped), 8);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_a_router_marks_as_one_without_a_key_needs_the_lease_alone() {
    let (fixture, _) = Fixture::new();
    let pod = Pod::start(&fixture, "w").await;
    let service = pod.handle.layer().layer(service_fn(async |request: Request<Empty<Bytes>>| {
        let extensions = request.extensions();
        assert!(extensions.get::<KeylessRequest>().is_some() && extensions.get::<Owned>().is_none());
        if request.uri().path() == "/endless" {
            std::future::pending::<()>().await;
        }
        Ok::<_, Infallible>(whole("served"))
    }));
    let ask = |path: &str, stamps: &[(&str, &str)]| {
        let request = stamps.iter().fold(Request::get(path), |request, (name, value)| request.header(*name, *value));
        service.clone().oneshot(request.body(Empty::new()).unwrap())
    };
    let none = ("segue-partition", "none");
    for stamps in [&[none][..], &[none, ("segue-keyspace", "default")]] {
        assert_eq!(ask("/", stamps).await.unwrap().status(), 200, "{stamps:?}");
    }
    for stamps in [
        &[none, ("segue-epoch", "1")][..],
        &[none, none],
        &[none, ("segue-partition", "0")],
        &[("segue-partition", "None")],
        &[("segue-partition", "")],
        &[none, ("segue-keyspace", "other")],
    ] {
        let refused = ask("/", stamps).await.unwrap();
        assert_eq!((refused.status().as_u16(), &refused.headers()["segue-misdirected"]), (421, &"1".parse().unwrap()));
    }
    assert_eq!(pod.handle.ownership().refused(Rejection::Unstamped), 6);

    let endless = tokio::spawn(ask("/endless", &[none]));
    while pod.handle.ownership().total_in_flight() == 0 {
        tokio::task::yield_now().await;
    }
    pod.handle.crash();
    assert_eq!(endless.await.unwrap().unwrap().status(), 500);
    assert_eq!(ask("/", &[none]).await.unwrap().status(), 421);
    assert_eq!(pod.handle.ownership().refused(Rejection::Fenced), 1);
    assert_eq!(pod.handle.ownership().total_in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn behind_one_listener_each_request_goes_to_the_pod_of_the_keyspace_that_it_names() {
    let (fixture, _) = Fixture::new();
    let other = fixture.in_keyspace("other");
    let (one, two) = (Pod::start(&fixture, "w").await, Pod::start(&other, "w").await);
    fixture.place(P0, &one, 1).await;
    other.place(P0, &two, 1).await;
    let pods = vec![(one.handle.layer(), "default"), (two.handle.layer(), "other")];
    let listener = ByKeyspace::new(pods, |layer, name| {
        layer.layer(service_fn(async move |_: Request<Empty<Bytes>>| Ok::<_, Infallible>(whole(name))))
    });
    let ask = async |keyspace: Option<&str>| {
        let request = Request::post("/").header("segue-partition", 0).header("segue-epoch", 1);
        let request = keyspace.into_iter().fold(request, |request, name| request.header("segue-keyspace", name));
        let response = listener.clone().oneshot(request.body(Empty::new()).unwrap()).await.unwrap();
        let status = response.status().as_u16();
        (status, Box::pin(response.into_body()).collect().await.unwrap().to_bytes())
    };
    assert_eq!(ask(Some("default")).await, (200, Bytes::from("default")));
    assert_eq!(ask(Some("other")).await, (200, Bytes::from("other")));
    assert_eq!(ask(Some("third")).await.0, 421);
    assert_eq!(ask(None).await.0, 421, "either could be meant");
    assert_eq!(one.handle.ownership().refused(Rejection::Unstamped), 2);
    // The other keyspace still accepts what this one refuses.
    one.handle.crash();
    assert_eq!((ask(Some("default")).await.0, ask(Some("other")).await.0), (421, 200));
}

/// Counts how often it is cloned.
struct CountClones(Arc<AtomicUsize>);

impl Clone for CountClones {
    fn clone(&self) -> Self {
        self.0.fetch_add(1, Relaxed);
        CountClones(self.0.clone())
    }
}

/// Servers clone a service for each request, and a sidecar's has clients and settings.
#[tokio::test(start_paused = true)]
async fn a_request_behind_one_listener_clones_the_service_of_its_own_keyspace_alone() {
    let (fixture, _) = Fixture::new();
    let other = fixture.in_keyspace("other");
    let (one, two) = (Pod::start(&fixture, "w").await, Pod::start(&other, "w").await);
    other.place(P0, &two, 1).await;
    let clones = [Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0))];
    let counters = clones.clone().map(CountClones);
    let pods = [one.handle.layer(), two.handle.layer()].into_iter().zip(counters).collect();
    let listener = ByKeyspace::new(pods, |layer, counter| {
        let service = service_fn(move |_: Request<Empty<Bytes>>| {
            let _ = &counter;
            std::future::ready(Ok::<_, Infallible>(whole("other")))
        });
        layer.layer(service)
    });
    let request = Request::post("/").header("segue-partition", 0).header("segue-epoch", 1);
    let request = request.header("segue-keyspace", "other").body(Empty::new()).unwrap();
    assert_eq!(listener.clone().oneshot(request).await.unwrap().status(), 200);
    assert_eq!(clones.each_ref().map(|clones| clones.load(Relaxed)), [0, 1]);
}

#[tokio::test(start_paused = true)]
async fn a_grpc_request_is_refused_in_grpcs_own_words() {
    let (fixture, _) = Fixture::new();
    let pod = Pod::start(&fixture, "w").await;
    fixture.place(P0, &pod, 3).await;
    let request = Request::post("/svc/Method")
        .header("content-type", "application/grpc+proto")
        .header("segue-partition", 0)
        .header("segue-epoch", 2);
    let response = pod.send_request(request.body(Empty::new()).unwrap()).await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], "application/grpc");
    assert_eq!(response.headers()["grpc-status"], "9");
    assert_eq!(response.headers()["segue-misdirected"], "1");
    assert!(http_body::Body::is_end_stream(response.body()), "trailers only");
}

#[tokio::test(start_paused = true)]
async fn a_grpc_web_request_is_refused_with_a_status_that_its_client_can_read() {
    let (fixture, _) = Fixture::new();
    let pod = Pod::start(&fixture, "w").await;
    fixture.place(P0, &pod, 3).await;
    let request = Request::post("/svc/Method")
        .header("content-type", "application/grpc-web+proto")
        .header("segue-partition", 0)
        .header("segue-epoch", 2);
    let response = pod.send_request(request.body(Empty::new()).unwrap()).await.unwrap();
    assert_eq!(
        (response.status().as_u16(), &response.headers()["content-type"]),
        (421, &"application/json".parse().unwrap())
    );
}

#[tokio::test(start_paused = true)]
async fn a_request_whose_caller_goes_away_is_worked_on_and_counted_until_it_has_ended() {
    let (fixture, _) = Fixture::new();
    let mut old = Pod::start(&fixture, "old").await;
    let new = Pod::start(&fixture, "new").await;
    fixture.place(P0, &old, 1).await;
    let sent = old.send(P0, 1);
    let working = old.arrival().await;
    sent.abort();
    assert!(sent.await.is_err());
    let handoff = fixture.begin(P0, Some(&old), &new, 2).await;
    fixture.in_phase(P0, Phase::Ready).await;
    fixture.move_to(P0, Phase::Syncing).await;
    sleep(Duration::from_secs(60)).await;
    assert!(!working.answer.is_closed(), "its write may be on the way already");
    assert!(!fixture.has_said(P0, "old", PodAckKind::Drained, handoff).await);
    assert!(working.answer.send(whole("done")).is_ok());
    fixture.in_phase(P0, Phase::Switching).await;
    assert_eq!(old.handle.ownership().total_in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_goes_on_without_its_caller_is_stopped_with_the_lease() {
    let (fixture, memory) = Fixture::new();
    let mut pod = Pod::start(&fixture, "w").await;
    fixture.place(P0, &pod, 1).await;
    let sent = pod.send(P0, 1);
    let mut working = pod.arrival().await;
    sent.abort();
    let stands = pod.state().stands_until.unwrap();
    memory.set_available(false);
    working.answer.closed().await;
    assert!(Instant::now() < stands);
    assert_eq!(pod.handle.ownership().total_in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_answer_counts_until_it_is_read_or_dropped() {
    let (fixture, _) = Fixture::new();
    let mut pod = Pod::start(&fixture, "w").await;
    fixture.place(P0, &pod, 1).await;
    let sent = pod.send(P0, 1);
    assert!(pod.arrival().await.answer.send(whole("done")).is_ok());
    let mut response = sent.await.unwrap();
    assert_eq!(pod.handle.ownership().in_flight(P0), 1);
    assert!(response.body_mut().frame().await.unwrap().is_ok());
    assert_eq!(pod.handle.ownership().in_flight(P0), 0, "that was all of it");

    let sent = pod.send(P0, 1);
    assert!(pod.arrival().await.answer.send(whole("done")).is_ok());
    drop(sent.await.unwrap());
    assert_eq!(pod.handle.ownership().in_flight(P0), 0);
}

/// Over real sockets, as the sidecar and any hyper server use the layer.
#[tokio::test]
async fn the_layer_stands_in_front_of_a_hyper_service() {
    let (fixture, _) = Fixture::new();
    let pod = Pod::start(&fixture, "w").await;
    fixture.place(P0, &pod, 1).await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let service = pod.handle.layer().layer(service_fn(|request: Request<hyper::body::Incoming>| async move {
        let epoch = request.extensions().get::<Owned>().unwrap().epoch;
        let body = request.into_body().collect().await?.to_bytes();
        Ok::<_, hyper::Error>(Response::new(Full::new(Bytes::from(format!("{epoch} {}", body.len())))))
    }));
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let service = TowerToHyperService::new(service.clone());
            let server = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
            tokio::spawn(async move { server.serve_connection(TokioIo::new(stream), service).await });
        }
    });
    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    for (epoch, status) in [(1, 200), (0, 421), (1, 200)] {
        let request = Request::post("/").header("host", "w").header("segue-partition", 0).header("segue-epoch", epoch);
        let request = request.body(Full::new(Bytes::from("four"))).unwrap();
        let response = sender.send_request(request).await.unwrap();
        assert_eq!(response.status(), status);
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert!(status == 421 || body == "1 4", "{body:?}");
    }
    assert_eq!(pod.handle.ownership().total_in_flight(), 0);
}
