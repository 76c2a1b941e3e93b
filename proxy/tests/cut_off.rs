//! Responses that begin and do not reach their clients in full, as the metrics and the outliers tell of them.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use http_body::Frame;
use http_body_util::BodyExt as _;
use segue_proxy::metrics::CutOffCause;
use tokio::sync::mpsc::UnboundedSender;

use crate::support::client::{data, empty, stream};
use crate::support::pod::{Pod, Speaks};
use crate::support::{BOTH_VERSIONS, Fixture, GET, P0, Settings, get_at, soon, until};

/// The responses that a pod has begun. The test breaks them off by dropping these.
type Begun = Arc<Mutex<Vec<UnboundedSender<Option<Frame<Bytes>>>>>>;

/// Starts a pod that begins every response and ends none.
async fn world(change: impl FnOnce(&mut Settings), version: usize) -> (Fixture, Pod, Begun) {
    let (speaks, protocol) = BOTH_VERSIONS[version];
    let fixture = Fixture::with(Settings::with(|settings| {
        settings.forward.upstream.protocol = protocol;
        change(settings);
    }));
    let begun = Begun::default();
    let begins = begun.clone();
    let pod = fixture
        .pod(speaks, move |_| {
            let (sender, body) = stream();
            sender.send(data("hello")).unwrap();
            begins.lock().unwrap().push(sender);
            async move { Response::new(body) }
        })
        .await;
    (fixture, pod, begun)
}

/// Waits until one response has been cut off for this cause, and asserts that none was for another.
async fn counted(fixture: &Fixture, expected: CutOffCause) {
    until(|| fixture.metrics.responses_cut_off(expected) == 1, expected.as_str()).await;
    for cause in CutOffCause::ALL {
        assert_eq!(fixture.metrics.responses_cut_off(cause), u64::from(cause == expected), "{cause:?}");
    }
}

#[tokio::test]
async fn every_cause_is_there_at_zero() {
    let page = Fixture::new().metrics_page();
    for cause in ["broken", "severed", "idle", "deadline", "client_gone"] {
        let line = format!("segue_responses_cut_off_total{{cause=\"{cause}\"}} 0\n");
        assert!(page.contains(&line), "{line} in {page}");
    }
}

#[tokio::test]
async fn a_response_that_the_pod_breaks_off_is_counted_once_for_clients_of_both_versions() {
    for version in [0, 1] {
        let (fixture, _pod, begun) = world(|_| {}, version).await;
        let mut client = fixture.send(GET).await;
        assert_eq!(client.head().await.status, 200);
        begun.lock().unwrap().clear();
        drop(client.rest().await);
        counted(&fixture, CutOffCause::Broken).await;

        let (fixture, _pod, begun) = world(|_| {}, version).await;
        let client = fixture.http2_client().await;
        let response = client.begin(client.request("GET", "/").body(empty()).unwrap()).await.unwrap();
        begun.lock().unwrap().clear();
        soon(response.into_body().collect()).await.unwrap_err();
        counted(&fixture, CutOffCause::Broken).await;
    }
}

#[tokio::test]
async fn a_response_that_is_severed_is_silent_or_late_is_counted_by_its_cause() {
    for version in [0, 1] {
        let (fixture, _pod, _begun) = world(|_| {}, version).await;
        let mut client = fixture.send(GET).await;
        assert_eq!(client.head().await.status, 200);
        fixture.hold_and_sever(P0);
        drop(client.rest().await);
        counted(&fixture, CutOffCause::Severed).await;

        let idle = |settings: &mut Settings| settings.forward.upstream.idle_timeout = Duration::from_millis(50);
        let (fixture, _pod, _begun) = world(idle, version).await;
        let mut client = fixture.send(GET).await;
        assert_eq!(client.head().await.status, 200);
        drop(client.rest().await);
        counted(&fixture, CutOffCause::Idle).await;

        let (fixture, _pod, _begun) = world(|_| {}, version).await;
        let mut client = fixture.send(get_at(P0, "content-type: application/grpc\r\ngrpc-timeout: 2S\r\n")).await;
        assert_eq!(client.head().await.status, 200);
        drop(client.rest().await);
        counted(&fixture, CutOffCause::Deadline).await;
    }
}

#[tokio::test]
async fn a_client_that_leaves_in_the_middle_of_a_response_is_counted_apart() {
    for version in [0, 1] {
        let (fixture, _pod, _begun) = world(|_| {}, version).await;
        let mut client = fixture.send(GET).await;
        assert_eq!(client.head().await.status, 200);
        drop(client);
        counted(&fixture, CutOffCause::ClientGone).await;
        let (fixture, _pod, _begun) = world(|_| {}, version).await;
        let client = fixture.http2_client().await;
        drop(client.begin(client.request("GET", "/").body(empty()).unwrap()).await.unwrap());
        counted(&fixture, CutOffCause::ClientGone).await;
        assert!(fixture.table.outliers().is_empty());
    }
}

#[tokio::test]
async fn a_pod_that_breaks_off_response_after_response_is_an_outlier_until_one_is_whole() {
    let fixture = Fixture::new();
    let pod = fixture.scripted_pod().await;
    for _ in 0..5 {
        let (mut client, mut connection) = fixture.exchange(&pod, GET).await;
        connection.write("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhel").await;
        assert_eq!(client.head().await.status, 200);
        assert!(fixture.table.outliers().is_empty());
        drop(connection);
        assert_eq!(client.rest().await, "hel");
    }
    until(|| !fixture.table.outliers().is_empty(), "the pod to be noticed").await;
    assert_eq!(fixture.table.outliers()[0].health.broken_responses(), 5);
    let (mut client, mut connection) = fixture.exchange(&pod, GET).await;
    connection.write("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello").await;
    assert_eq!(client.answer().await.text(), "hello");
    until(|| fixture.table.outliers().is_empty(), "the pod to be taken for sound").await;
}

#[tokio::test]
async fn whole_responses_are_not_counted() {
    for (speaks, protocol) in BOTH_VERSIONS {
        let fixture = Fixture::with(Settings::with_protocol(protocol));
        let (sender, body) = stream();
        let body = std::sync::Arc::new(std::sync::Mutex::new(Some(body)));
        let _pod = fixture
            .pod(speaks, move |_| {
                let body = body.lock().unwrap().take().unwrap();
                async move { Response::new(body) }
            })
            .await;
        let mut client = fixture.send(GET).await;
        sender.send(data("hello")).unwrap();
        assert_eq!(client.head().await.status, 200);
        sender.send(None).unwrap();
        assert!(client.line().await == "5" && client.line().await == "hello" && client.line().await == "0");
        assert_eq!(client.line().await, "");
        drop(client);
        fixture.in_flight(P0, 0).await;
        for cause in CutOffCause::ALL {
            assert_eq!(fixture.metrics.responses_cut_off(cause), 0, "{cause:?} from {}", speaks == Speaks::Http2);
        }
    }
}
