//! What the metrics of the data path say of requests that real clients send and real pods answer.

use std::time::{Duration, Instant};

use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use segue_protocol::ids::PartitionId;
use segue_proxy::metrics::PodSeries;

use crate::support::client::{RawHttp1Client, full};
use crate::support::pod::{Pod, Speaks};
use crate::support::{Fixture, until};

const P0: PartitionId = PartitionId::new(0);
const GET: &str = "GET / HTTP/1.1\r\nhost: h\r\nx-partition: 0\r\n\r\n";

fn value(fixture: &Fixture, series: &str) -> f64 {
    find(fixture, series).unwrap_or_else(|| panic!("{series} is missing in {}", text(fixture)))
}

fn find(fixture: &Fixture, series: &str) -> Option<f64> {
    let text = text(fixture);
    let line = text.lines().find_map(|line| line.strip_prefix(series)?.trim_start_matches('}').strip_prefix(' '));
    line.map(|value| value.parse().unwrap())
}

fn text(fixture: &Fixture) -> String {
    let mut registry = Registry::with_prefix("segue");
    fixture.metrics.register(&mut registry);
    PodSeries::register(fixture.table.clone(), &mut registry);
    let mut text = String::new();
    encode(&mut text, &registry).unwrap();
    text
}

#[tokio::test]
async fn the_time_with_a_pod_leaves_out_the_time_in_the_stash() {
    let fixture = Fixture::new();
    let pod = Pod::start(Speaks::Http1, |_| async { http::Response::new(full("ok")) }).await;
    let mut client = RawHttp1Client::connect(fixture.address).await;
    client.write(GET).await;
    fixture.held(P0, 1).await;
    let held = Instant::now();
    until(|| held.elapsed() >= Duration::from_millis(200), "some time in the stash").await;
    fixture.route(P0, pod.address, 7);
    assert_eq!(client.answer().await.text(), "ok");
    let of_pod = |series: &str| value(&fixture, &format!("segue_upstream_{series}{{pod=\"pod-{}\"", pod.address));
    until(|| of_pod("duration_seconds_count") == 1.0, "the exchange to be over").await;
    let in_all = value(&fixture, "segue_request_duration_seconds_sum");
    let with_pod = of_pod("duration_seconds_sum");
    assert!(with_pod > 0.0 && with_pod <= in_all - 0.2, "{with_pod} s of {in_all} s");
    assert_eq!(client.ask(GET).await.text(), "ok");
    until(|| of_pod("duration_seconds_count") == 2.0, "the exchange to be over").await;
}

#[tokio::test]
async fn each_pod_has_series_of_its_own_until_no_partition_leads_there() {
    let fixture = Fixture::new();
    let answers = |status: u16| {
        Pod::start(
            Speaks::Http1,
            move |_| async move { http::Response::builder().status(status).body(full("")).unwrap() },
        )
    };
    let (good, bad) = (answers(200).await, answers(503).await);
    let count = |pod: &Pod, class: &str| {
        let labels = format!("pod=\"pod-{}\",code_class=\"{class}\"", pod.address);
        find(&fixture, &format!("segue_upstream_requests_total{{{labels}}}"))
    };
    let mut client = RawHttp1Client::connect(fixture.address).await;
    for (pod, epoch) in [(&good, 7), (&bad, 8)] {
        fixture.route(P0, pod.address, epoch);
        client.ask(GET).await;
    }
    assert_eq!((count(&bad, "5xx"), count(&bad, "2xx")), (Some(1.0), Some(0.0)));
    assert_eq!(count(&good, "2xx"), None, "no partition leads there any more");
}

#[tokio::test]
async fn a_reason_that_a_pods_sidecar_gives_is_counted_as_that_reason() {
    let fixture = Fixture::new();
    let _pod = fixture
        .pod(Speaks::Http1, |request| async move {
            let (status, reason) = match request.uri().path() {
                "/broken" => (502, "upstream-failed"),
                "/lost" => (500, "lease-lost"),
                "/grpc" => (200, "upstream-failed"),
                _ => (503, "fenced"),
            };
            http::Response::builder().status(status).header("segue-reason", reason).body(full("{}")).unwrap()
        })
        .await;
    let mut client = RawHttp1Client::connect(fixture.address).await;
    for (path, status, reason) in [
        ("/broken", 502, "upstream-failed"),
        ("/lost", 500, "lease-lost"),
        ("/grpc", 200, "upstream-failed"),
        ("/forged", 503, ""),
    ] {
        let answer = client.ask(GET.replace(" / ", &format!(" {path} "))).await;
        assert_eq!((answer.status, answer.header("segue-reason")), (status, reason));
    }
    for (series, count) in [
        (r#"segue_requests_total{code="502",reason="upstream-failed"}"#, 2.0),
        (r#"segue_requests_total{code="500",reason="lease-lost"}"#, 1.0),
        (r#"segue_requests_total{code="503",reason=""}"#, 1.0),
        (r#"segue_requests_total{code="200",reason=""}"#, 0.0),
        (r#"segue_requests_total{code="503",reason="fenced"}"#, 0.0),
    ] {
        assert_eq!(value(&fixture, series), count, "{series}");
    }
}
