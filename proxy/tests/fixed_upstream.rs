//! Routes to a service that is no pod of the keyspace.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Response};
use http_body_util::BodyExt;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use segue_protocol::handoff::router::HoldCause;
use segue_protocol::ids::PartitionId;
use segue_proxy::metrics::PodSeries;
use segue_proxy::routing::keyspace_choice::PathPrefix;
use segue_proxy::routing::route_rules::{Destination, PathMatch, RouteRule, RouteRules};
use segue_proxy::settings::UpstreamProtocol;
use tokio::net::TcpListener;

use crate::support::client::{Answer, empty, full};
use crate::support::pod::{Pod, ScriptedPod, Speaks, start_h2_pod};
use crate::support::{BOTH_VERSIONS, Fixture, P0, Settings, until};

/// Returns settings by which what is below `/groups` goes to the service at this address.
fn settings(service: SocketAddr) -> Settings {
    Settings::with(|settings| {
        let path = Some(PathMatch::Beginning(PathPrefix::new("/groups").unwrap()));
        let to = Destination::Upstream(service.to_string().into());
        settings.forward.exceptions.routes =
            RouteRules::new(vec![RouteRule { path, methods: Vec::new(), header: None, to }]);
    })
}

/// Returns settings that speak this version to the service and to pods.
fn by(protocol: UpstreamProtocol, service: SocketAddr) -> Settings {
    let mut settings = settings(service);
    settings.forward.upstream.protocol = protocol;
    settings
}

const GET: &str = "GET /groups/7 HTTP/1.1\r\nhost: h\r\n\r\n";

/// Sends a gRPC call by HTTP/2, with more lines in its head.
async fn call(fixture: &Fixture, lines: &[(&str, &str)]) -> Answer {
    let http2 = fixture.http2_client().await;
    let request = http2.request("POST", "/groups/Get").header("content-type", "application/grpc");
    let request = lines.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    http2.ask(request.body(full("call")).unwrap()).await
}

/// Returns the page of metrics with the series of pods.
fn page(fixture: &Fixture) -> String {
    let mut registry = Registry::with_prefix("segue");
    fixture.metrics.register(&mut registry);
    PodSeries::register(fixture.table.clone(), &mut registry);
    let mut page = String::new();
    encode(&mut page, &registry).unwrap();
    page
}

#[tokio::test]
async fn a_route_leads_to_a_service_that_is_told_nothing_of_the_keyspace_and_waits_for_none_of_it() {
    for (speaks, protocol) in BOTH_VERSIONS {
        let seen = Arc::new(Mutex::new(Vec::<HeaderMap>::new()));
        let sees = seen.clone();
        let service = Pod::start(speaks, move |request| {
            sees.lock().unwrap().push(request.headers().clone());
            async move {
                let body = request.into_body().collect().await.unwrap().to_bytes();
                Response::builder().header("grpc-status", "0").body(full(body)).unwrap()
            }
        });
        let service = service.await;
        let mut settings = by(protocol, service.address);
        // Neither is the number of partitions known, nor is there a pod.
        settings.partitions = 0;
        let fixture = Fixture::with(settings);
        let series = format!("pod=\"upstream:{}\",code_class=\"2xx\"}}", service.address);
        until(|| page(&fixture).contains(&format!("{series} 0")), "the series, without a request").await;
        let forged =
            "x-partition: 3\r\nsegue-partition: 3\r\nsegue-epoch: 9\r\nsegue-keyspace: x\r\nsegue_router: r\r\n";
        let post = format!("POST /groups HTTP/1.1\r\nhost: h\r\n{forged}content-length: 5\r\n\r\nhello");
        let answer = fixture.ask(post).await;
        assert_eq!((answer.status, answer.text()), (200, "hello"));
        let http2 = fixture.http2_client().await;
        let request = http2.request("GET", "/groups/7").header("segue-epoch", "9").body(empty()).unwrap();
        assert_eq!(http2.ask(request).await.status, 200);
        let answer = call(&fixture, &[("segue-partition", "3"), ("segue-misdirected", "1")]).await;
        assert_eq!((answer.status, answer.header("grpc-status"), answer.text()), (200, "0", "call"));
        let seen = seen.lock().unwrap().clone();
        assert_eq!(seen.len(), 3);
        for head in seen {
            let of_segue = |name: &http::HeaderName| name.as_str().replace('_', "-").starts_with("segue-");
            assert!(!head.keys().any(of_segue), "{head:?}");
            assert_eq!(head["x-forwarded-for"], "127.0.0.1");
        }
        until(|| page(&fixture).contains(&format!("{series} 3")), "three exchanges").await;
        assert!(page(&fixture).contains("segue_requests_total{code=\"200\",reason=\"\"} 3"));
        assert!(page(&fixture).contains("segue_requests_in_flight 0"));
        assert!(fixture.table.outliers().is_empty());
    }
}

#[tokio::test]
async fn everything_else_goes_to_its_owner_and_waits_for_it() {
    let service = Pod::start(Speaks::Http1, |_| async { Response::new(full("service")) }).await;
    let owner = Pod::start(Speaks::Http1, |_| async { Response::new(full("owner")) }).await;
    let fixture = Fixture::with(settings(service.address));
    PartitionId::all(8).for_each(|partition| fixture.hold(partition, HoldCause::Handoff));
    let mut held = fixture.send(crate::support::GET).await;
    fixture.held(P0, 1).await;
    assert_eq!(fixture.ask(GET).await.text(), "service");
    fixture.route(P0, owner.address, 1);
    assert_eq!(held.answer().await.text(), "owner");
    for ambiguous in ["/groups/../persons", "//groups", "/groups;x"] {
        let answer = fixture.ask(format!("GET {ambiguous} HTTP/1.1\r\nhost: h\r\nx-partition: 0\r\n\r\n")).await;
        assert_eq!(answer.reason(), (400, "bad-partition"), "{ambiguous}");
    }
}

#[tokio::test]
async fn what_only_a_pod_can_say_counts_for_nothing_if_a_service_says_it() {
    for (speaks, protocol) in BOTH_VERSIONS {
        let asked = Arc::new(AtomicUsize::new(0));
        let counts = asked.clone();
        let service = Pod::start(speaks, move |request| {
            counts.fetch_add(1, SeqCst);
            let said = |name: &str| request.headers().get(name).map_or("", |value| value.to_str().unwrap()).to_owned();
            let (status, reason, grpc) = (said("x-status"), said("x-reason"), said("x-grpc"));
            async move {
                let response = Response::builder().status(status.parse::<u16>().unwrap_or(200));
                let response = response.header("segue-misdirected", "1").header("grpc-status", grpc);
                response.header("segue-reason", reason).body(full("its own")).unwrap()
            }
        });
        let service = service.await;
        let fixture = Fixture::with(by(protocol, service.address));
        let http2 = fixture.http2_client().await;
        for (status, reason) in
            [("421", "host"), ("421", "lease-lost"), ("500", "lease-lost"), ("502", "upstream-failed")]
        {
            let lines = format!("x-status: {status}\r\nx-reason: {reason}\r\n");
            let by_http1 = fixture.ask(format!("GET /groups HTTP/1.1\r\nhost: h\r\n{lines}\r\n")).await;
            let request = http2.request("GET", "/groups").header("x-status", status).header("x-reason", reason);
            let by_http2 = http2.ask(request.body(empty()).unwrap()).await;
            for answer in [by_http1, by_http2] {
                assert_eq!((answer.status.to_string().as_str(), answer.text()), (status, "its own"));
                assert_eq!((answer.header("segue-reason"), answer.header("segue-misdirected")), ("", ""));
            }
        }
        let answer = call(&fixture, &[("x-grpc", "9")]).await;
        assert_eq!((answer.header("grpc-status"), answer.header("segue-misdirected")), ("9", ""));
        assert_eq!(asked.load(SeqCst), 9, "each request once");
        let page = page(&fixture);
        assert!(page.contains("segue_requests_total{code=\"421\",reason=\"\"} 4"), "{page}");
        assert!(page.contains("segue_requests_total{code=\"500\",reason=\"lease-lost\"} 0"), "{page}");
        assert!(page.contains("segue_requests_bounced_total{cause=\"misdirected\"} 0"), "{page}");
    }
}

#[tokio::test]
async fn a_service_that_cannot_be_reached_costs_its_requests_a_503_until_it_is_back() {
    for (speaks, protocol) in BOTH_VERSIONS {
        let address = segue_tests::ports::free_address();
        let fixture = Fixture::with(by(protocol, address));
        let answer = fixture.ask(GET).await;
        assert_eq!(answer.reason(), (503, "no-upstream"));
        assert_eq!(answer.header("retry-after"), "1");
        assert!(answer.text().contains("the service that this route leads to"), "{}", answer.text());
        let answer = call(&fixture, &[]).await;
        assert_eq!((answer.header("grpc-status"), answer.header("segue-reason")), ("14", "no-upstream"));
        let http2 = fixture.http2_client().await;
        let answer = http2.ask(http2.request("GET", "/groups").body(empty()).unwrap()).await;
        assert_eq!(answer.reason(), (503, "no-upstream"));
        assert!(page(&fixture).contains("segue_requests_total{code=\"503\",reason=\"no-upstream\"} 3"));
        // It is no pod that the control side could help.
        assert!(fixture.table.outliers().is_empty());
        let listener = TcpListener::bind(address).await.unwrap();
        let _service = Pod::start_on(listener, speaks, |_| async { Response::new(full("back")) });
        let back = async || fixture.ask(GET).await.status == 200;
        while !back().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(fixture.ask(GET).await.text(), "back");
    }
}

/// Starts a service by HTTP/2 that refuses its first requests unread, and returns how often it was asked.
async fn refusing(first: usize) -> (SocketAddr, Arc<AtomicUsize>) {
    let asked = Arc::new(AtomicUsize::new(0));
    let counts = asked.clone();
    let service = start_h2_pod(move |_, mut respond| {
        if counts.fetch_add(1, SeqCst) < first {
            respond.send_reset(h2::Reason::REFUSED_STREAM);
        } else {
            let mut stream = respond.send_response(Response::new(()), false).unwrap();
            stream.send_data(Bytes::from_static(b"taken"), true).unwrap();
        }
    });
    (service.await, asked)
}

#[tokio::test]
async fn a_request_that_a_service_has_not_read_is_sent_again_and_not_for_ever() {
    let (service, _) = refusing(1).await;
    let fixture = Fixture::with(by(UpstreamProtocol::Http2, service));
    let post = "POST /groups HTTP/1.1\r\nhost: h\r\ncontent-length: 5\r\n\r\nhello";
    let answer = fixture.ask(post).await;
    assert_eq!((answer.status, answer.text()), (200, "taken"));
    let (service, asked) = refusing(usize::MAX).await;
    let fixture = Fixture::with(by(UpstreamProtocol::Http2, service));
    assert_eq!(fixture.ask(post).await.reason(), (503, "no-upstream"));
    assert!(asked.load(SeqCst) <= 4, "{asked:?}");
}

#[tokio::test]
async fn a_request_that_a_service_may_have_acted_on_is_not_sent_again() {
    let service = ScriptedPod::new().await;
    let fixture = Fixture::with(settings(service.address));
    let post = "POST /groups HTTP/1.1\r\nhost: h\r\ncontent-length: 5\r\n\r\nhello";
    let mut client = fixture.client().await;
    let connection = service.accept_from(&mut client, post).await;
    drop(connection);
    assert_eq!(client.answer().await.reason(), (502, "upstream-failed"));
}

#[tokio::test]
async fn a_service_has_the_limits_and_the_time_of_a_pod() {
    let service = Pod::start(Speaks::Http1, |_| std::future::pending()).await;
    let mut limited = settings(service.address);
    limited.forward.upstream.max_in_flight_per_pod = 1;
    let fixture = Fixture::with(limited);
    let first = fixture.send(GET).await;
    until(|| page(&fixture).contains("segue_requests_in_flight 1"), "a request in flight").await;
    assert_eq!(fixture.ask(GET).await.reason(), (503, "overload"));
    drop(first);
    let mut of_client = settings(service.address);
    of_client.forward.limits.max_in_flight_per_client = 1;
    let fixture = Fixture::with(of_client);
    let _first = fixture.send(GET).await;
    until(|| page(&fixture).contains("segue_requests_in_flight 1"), "a request in flight").await;
    assert_eq!(fixture.ask(GET).await.reason(), (503, "overload"));
    let mut hurried = settings(service.address);
    hurried.forward.upstream.request_timeout = Duration::from_millis(50);
    assert_eq!(Fixture::with(hurried).ask(GET).await.reason(), (504, "upstream-timeout"));
}

#[tokio::test]
async fn a_websocket_reaches_a_service() {
    let service = ScriptedPod::new().await;
    let fixture = Fixture::with(settings(service.address));
    let upgrade = "connection: upgrade\r\nupgrade: websocket\r\n";
    let mut client = fixture.client().await;
    let request = format!("GET /groups/ws HTTP/1.1\r\nhost: h\r\n{upgrade}\r\n");
    let mut connection = service.accept_from(&mut client, request).await;
    connection.write(format!("HTTP/1.1 101 Switching Protocols\r\n{upgrade}\r\nbytes")).await;
    assert_eq!(client.head().await.status, 101);
    client.write("back").await;
    assert_eq!(connection.exactly(4).await, "back");
}
