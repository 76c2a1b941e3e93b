//! Requests without a key: they go to any pod that is ready, or to one partition, as the settings say.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use http::{HeaderMap, Response};
use segue_protocol::handoff::router::HoldCause;
use segue_protocol::ids::PartitionId;
use segue_proxy::routing::key_hash::KeyHash;
use segue_proxy::routing::partition_key::{KeySource, PartitionSource, WithoutKey};
use segue_proxy::settings::UpstreamProtocol;

use crate::support::client::{empty, full};
use crate::support::pod::{Pod, Speaks};
use crate::support::{Fixture, P0, Settings, until};

fn settings(without_key: WithoutKey) -> Settings {
    Settings::with(|settings| {
        let source = KeySource::Header("x-key".parse().unwrap());
        settings.forward.partition = PartitionSource::Key { source, hash: KeyHash::Murmur2 };
        settings.forward.exceptions.without_key = without_key;
    })
}

/// The heads of the requests that a pod got.
type SeenHeads = Arc<Mutex<Vec<HeaderMap>>>;

/// Starts a pod that answers with its name.
async fn named(speaks: Speaks, name: &'static str) -> (Pod, SeenHeads) {
    let seen = SeenHeads::default();
    let sees = seen.clone();
    let pod = Pod::start(speaks, move |request| {
        sees.lock().unwrap().push(request.headers().clone());
        async move { Response::builder().header("pod", name).header("grpc-status", "0").body(empty()).unwrap() }
    });
    (pod.await, seen)
}

/// Starts a pod that refuses everything, and returns how often it was asked.
async fn refusing() -> (Pod, SeenHeads) {
    let seen = SeenHeads::default();
    let sees = seen.clone();
    let pod = Pod::start(Speaks::Http1, move |request| {
        sees.lock().unwrap().push(request.headers().clone());
        async move { Response::builder().status(421).body(empty()).unwrap() }
    });
    (pod.await, seen)
}

const BARE: &str = "GET / HTTP/1.1\r\nhost: h\r\n\r\n";

#[tokio::test]
async fn a_request_without_a_key_is_refused_unless_the_settings_say_otherwise() {
    let fixture = Fixture::with(settings(WithoutKey::Refuse));
    let (pod, seen) = named(Speaks::Http1, "a").await;
    fixture.ready(&[pod.address]);
    for head in ["", "x-key:\r\n"] {
        let answer = fixture.ask(format!("GET / HTTP/1.1\r\nhost: h\r\n{head}\r\n")).await;
        assert_eq!(answer.reason(), (400, "no-partition"), "{head}");
    }
    assert!(seen.lock().unwrap().is_empty());
}

#[tokio::test]
async fn any_pod_gets_a_request_without_a_key_whose_partitions_are_all_held() {
    for (protocol, speaks) in [(UpstreamProtocol::Http1, Speaks::Http1), (UpstreamProtocol::Http2, Speaks::Http2)] {
        let mut settings = settings(WithoutKey::Any);
        settings.forward.upstream.protocol = protocol;
        let fixture = Fixture::with(settings);
        let ((one, seen_by_one), (other, seen_by_other)) = (named(speaks, "a").await, named(speaks, "b").await);
        PartitionId::all(8).for_each(|partition| fixture.hold(partition, HoldCause::Handoff));
        fixture.ready(&[one.address, other.address]);
        let http2 = fixture.http2_client().await;
        let forged = "segue-partition: 3\r\nsegue-epoch: 9\r\nsegue-keyspace: x\r\n";
        for round in 0..20 {
            let targets = ["GET / HTTP/1.1\r\nhost: h", "OPTIONS * HTTP/1.1\r\nhost: h", "GET /healthz HTTP/1.0"];
            let answer = fixture.ask(format!("{}\r\n{forged}x-key: \r\n\r\n", targets[round % 3])).await;
            assert_eq!(answer.status, 200, "{}", targets[round % 3]);
            let request = http2.request("GET", "/").header("segue-partition", "3").body(empty()).unwrap();
            assert_eq!(http2.ask(request).await.status, 200);
            let call = http2.request("POST", "/grpc.health.v1.Health/Check").header("content-type", "application/grpc");
            let answer = http2.ask(call.body(full("request")).unwrap()).await;
            assert_eq!((answer.status, answer.header("grpc-status")), (200, "0"));
        }
        for seen in [seen_by_one, seen_by_other] {
            let seen = seen.lock().unwrap();
            assert!(seen.len() > 5, "one of two got {} of 60", seen.len());
            for head in &*seen {
                let all = |name| head.get_all(name).iter().map(|value| value.to_str().unwrap()).collect::<Vec<_>>();
                assert_eq!(all("segue-partition"), ["none"]);
                assert!(all("segue-epoch").is_empty());
                assert_eq!((all("segue-keyspace"), all("segue-router")), (vec!["default"], vec!["router-0"]));
            }
        }
        let page = fixture.metrics_page();
        assert!(page.contains("segue_requests_total{code=\"200\",reason=\"\"} 60"), "{page}");
        assert!(page.contains("segue_requests_in_flight 0"), "{page}");
    }
}

#[tokio::test]
async fn a_request_with_a_key_goes_to_its_owner_and_an_ambiguous_one_to_nobody() {
    let fixture = Fixture::with(settings(WithoutKey::Any));
    let ((owner, _), (other, seen)) = (named(Speaks::Http1, "owner").await, named(Speaks::Http1, "other").await);
    PartitionId::all(8).for_each(|partition| fixture.route(partition, owner.address, 1));
    fixture.ready(&[other.address]);
    let keyed = |lines: &str| format!("GET / HTTP/1.1\r\nhost: h\r\n{lines}\r\n");
    assert_eq!(fixture.ask(keyed("x-key: a\r\n")).await.header("pod"), "owner");
    assert_eq!(fixture.ask(keyed("x-key: a\r\nx-key: b\r\n")).await.reason(), (400, "bad-partition"));
    assert!(seen.lock().unwrap().is_empty());
    assert_eq!(fixture.ask(BARE).await.header("pod"), "other");
}

#[tokio::test]
async fn a_path_that_only_some_servers_read_as_one_with_a_key_goes_to_no_pod() {
    let mut settings = settings(WithoutKey::Any);
    let source = KeySource::Path("/persons/{key}".parse().unwrap());
    settings.forward.partition = PartitionSource::Key { source, hash: KeyHash::Murmur2 };
    let fixture = Fixture::with(settings);
    let (pod, seen) = named(Speaks::Http1, "a").await;
    fixture.ready(&[pod.address]);
    for path in ["/%70ersons/7", "//persons/7", "/x/../persons/7", "/persons;a/7", "/x/%2e%2e/persons/7", "\\persons/7"]
    {
        let answer = fixture.ask(format!("GET {path} HTTP/1.1\r\nhost: h\r\n\r\n")).await;
        assert_eq!(answer.status, 400, "{path}");
    }
    assert!(seen.lock().unwrap().is_empty());
    for path in ["/", "/persons", "/persons/", "/healthz", "/other/7"] {
        let answer = fixture.ask(format!("GET {path} HTTP/1.1\r\nhost: h\r\n\r\n")).await;
        assert_eq!(answer.status, 200, "{path}");
    }
}

#[tokio::test]
async fn a_request_without_a_key_may_be_one_of_a_partition() {
    let fixture = Fixture::with(settings(WithoutKey::Partition(P0)));
    let (pod, seen) = named(Speaks::Http1, "a").await;
    fixture.hold(P0, HoldCause::Handoff);
    let mut held = fixture.send(BARE).await;
    fixture.held(P0, 1).await;
    fixture.route(P0, pod.address, 7);
    assert_eq!(held.answer().await.header("pod"), "a");
    let head = seen.lock().unwrap()[0].clone();
    assert_eq!((&head["segue-partition"], &head["segue-epoch"]), (&"0".parse().unwrap(), &"7".parse().unwrap()));
    let out_of_range = Fixture::with(settings(WithoutKey::Partition(PartitionId::new(8))));
    assert_eq!(out_of_range.ask(BARE).await.reason(), (400, "bad-partition"));
}

#[tokio::test]
async fn a_request_that_no_pod_acted_on_goes_to_another_one_with_its_body() {
    let fixture = Fixture::with(settings(WithoutKey::Any));
    let (refuses, refused) = refusing().await;
    let unreachable = segue_tests::ports::free_address();
    let pod = Pod::start(Speaks::Http1, crate::support::pod::echo_body).await;
    fixture.ready(&[refuses.address, unreachable, pod.address]);
    let post = "POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 5\r\n\r\nhello";
    let ask = async || {
        let answer = fixture.ask(post).await;
        assert_eq!((answer.status, answer.text()), (200, "hello"));
    };
    let is_outlier =
        |address: SocketAddr| fixture.table.outliers().iter().any(|pod| pod.address == address.to_string());
    // Who cannot be reached is seen as with other requests. Who refuses may take none without a key, and be well.
    while !is_outlier(unreachable) || refused.lock().unwrap().len() < 10 {
        ask().await;
    }
    assert!(!is_outlier(refuses.address));
    assert!(fixture.metrics_page().contains("segue_requests_bounced_total{cause=\"misdirected\"}"));
}

#[tokio::test]
async fn without_a_pod_that_takes_it_a_request_without_a_key_is_refused_at_once() {
    let fixture = Fixture::with(settings(WithoutKey::Any));
    assert_eq!(fixture.ask(BARE).await.reason(), (503, "no-owner"));
    let (refuses, refused) = refusing().await;
    fixture.ready(&[refuses.address]);
    assert_eq!(fixture.ask(BARE).await.reason(), (503, "no-owner"));
    assert_eq!(refused.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn requests_without_a_key_count_towards_the_limit_of_their_pod_and_their_client() {
    let mut limited = settings(WithoutKey::Any);
    limited.forward.upstream.max_in_flight_per_pod = 1;
    limited.forward.limits.max_in_flight_per_client = 2;
    let fixture = Fixture::with(limited);
    let pods = [
        Pod::start(Speaks::Http1, |_| std::future::pending()).await,
        Pod::start(Speaks::Http1, |_| std::future::pending()).await,
    ];
    fixture.ready(&[pods[0].address]);
    let first = fixture.send(BARE).await;
    until(|| fixture.metrics_page().contains("segue_requests_in_flight 1"), "a request in flight").await;
    assert_eq!(fixture.ask(BARE).await.reason(), (503, "overload"));
    fixture.ready(&[pods[0].address, pods[1].address]);
    let second = fixture.send(BARE).await;
    until(|| fixture.metrics_page().contains("segue_requests_in_flight 2"), "a second one, at the other pod").await;
    assert_eq!(fixture.ask(BARE).await.reason(), (503, "overload"), "the client has two");
    drop((first, second));
}
