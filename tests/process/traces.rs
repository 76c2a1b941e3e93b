//! Traces as a collector gets them: of requests, of a handoff, and what becomes of both without a collector.
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use prost::Message as _;
use segue_tests::cluster::TestCluster;
use segue_tests::http::{Request, Response, get, metric};
use segue_tests::ports::free_address;
use segue_tests::process::{Process, until};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::{JoinHandle, spawn_blocking};

use crate::site::service::{serve, serve_routes};
use crate::site::{LONGEST_REQUEST, SEGUE, Site};

const CLIENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// A collector that keeps all spans.
#[derive(Clone, Default)]
struct Collector(Arc<Mutex<Vec<Span>>>);

impl Collector {
    async fn start() -> (Self, SocketAddr) {
        let collector = Collector::default();
        let routes = axum::Router::new().route("/v1/traces", post(receive)).with_state(collector.clone());
        (collector, serve_routes(routes).await)
    }

    fn spans(&self) -> Vec<Span> {
        self.0.lock().unwrap().clone()
    }

    /// Returns the spans of a trace by the order of their beginnings.
    fn trace(&self, trace: &[u8]) -> Vec<Span> {
        let mut spans = self.spans();
        spans.retain(|span| span.trace_id == trace);
        spans.sort_by_key(|span| span.start_time_unix_nano);
        spans
    }
}

async fn receive(State(collector): State<Collector>, headers: HeaderMap, body: Bytes) -> StatusCode {
    assert_eq!(headers["content-type"], "application/x-protobuf");
    for resource in ExportTraceServiceRequest::decode(body).unwrap().resource_spans {
        let attributes = resource.resource.unwrap().attributes;
        assert!(attributes.iter().any(|attribute| attribute.key == "service.name"));
        let spans = resource.scope_spans.into_iter().flat_map(|scope| scope.spans);
        collector.0.lock().unwrap().extend(spans);
    }
    StatusCode::OK
}

/// Starts a service that answers with its name and the `traceparent` that it was sent, requests to `/slow` once
/// `release` says so.
async fn service(name: &'static str, release: watch::Receiver<bool>) -> SocketAddr {
    serve(move |call| {
        let mut release = release.clone();
        async move {
            if call.path == "/slow" {
                release.wait_for(|released| *released).await.unwrap();
            }
            (200, format!("{name} {}", call.text("traceparent")))
        }
    })
    .await
}

fn send(router: SocketAddr, path: &'static str) -> JoinHandle<Option<Response>> {
    let request = Request::get(path).header("x-partition", 0).header("traceparent", CLIENT).timeout(LONGEST_REQUEST);
    spawn_blocking(move || request.send(router))
}

/// Waits until the router serves partition 0.
async fn serves(router: SocketAddr) {
    let request = Request::get("/").header("x-partition", 0);
    eventually("response", move || request.send(router).is_some_and(|response| response.status == 200)).await;
}

async fn eventually(what: &'static str, condition: impl Fn() -> bool + Send + 'static) {
    spawn_blocking(move || until(what, condition)).await.unwrap();
}

fn text<'span>(span: &'span Span, key: &str) -> &'span str {
    let value = span.attributes.iter().find(|attribute| attribute.key == key).and_then(|found| found.value.as_ref());
    match value.and_then(|value| value.value.as_ref()) {
        Some(Value::StringValue(text)) => text,
        other => panic!("{key} is {other:?} in {span:?}"),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_a_cutover_held_is_traced_and_so_is_the_handoff() {
    let (collector, endpoint) = Collector::start().await;
    let tracing = format!("http://{endpoint}");
    let site = Site::with(|_, config| config.coordinator("c-0", 1).set("tracing.endpoint", tracing));
    let (router, admin) = (site.router, site.admin);
    let (release, released) = watch::channel(false);
    let a = site.pod("a", service("a", released.clone()).await);
    serves(router).await;
    let _b = site.pod("b", service("b", released).await);

    // The first request delays the drain, so the second one is held.
    let slow = send(router, "/slow");
    let page = move |path| get(admin, path).map(|(_, text)| text).unwrap_or_default();
    eventually("the slow request", move || metric(&page("/metrics"), "segue_requests_in_flight") == Some(1.0)).await;
    a.signal("TERM");
    eventually("the stop", move || page("/status").contains("\"draining\"")).await;
    let held = send(router, "/held");
    eventually("the held request", move || metric(&page("/metrics"), "segue_stash_requests") == Some(1.0)).await;
    release.send(true).unwrap();
    assert!(slow.await.unwrap().unwrap().body.starts_with("a "));
    let held = held.await.unwrap().unwrap();
    let parent = held.body.strip_prefix("b ").unwrap_or_else(|| panic!("{held:?}")).to_owned();
    let handed_over = collector.clone();
    eventually("the handoff's span", move || {
        let spans = handed_over.spans();
        spans.iter().any(|span| span.name == "handoff" && span.attributes.iter().any(|it| it.key == "segue.old_owner"))
    })
    .await;
    // What is queued is exported at the end.
    let Site { control, .. } = site;
    assert!(spawn_blocking(move || control.terminate()).await.unwrap().0.success());

    let spans = collector.spans();
    let server =
        spans.iter().find(|span| span.kind() == SpanKind::Server && text(span, "url.path") == "/held").unwrap();
    assert_eq!(format!("00-{}-{}-01", hex(&server.trace_id), hex(&server.parent_span_id)), CLIENT);
    let below: Vec<&Span> = spans.iter().filter(|span| span.parent_span_id == server.span_id).collect();
    let [stash, attempt] = ["stash", "GET"].map(|name| *below.iter().find(|span| span.name == name).unwrap());
    assert_eq!(below.len(), 2, "{below:?}");
    assert_eq!(parent, format!("00-{}-{}-01", hex(&attempt.trace_id), hex(&attempt.span_id)), "the service's parent");
    assert_eq!(text(attempt, "segue.pod"), "b");

    let [link] = &stash.links[..] else { panic!("{stash:?}") };
    let trace = collector.trace(&link.trace_id);
    let root = trace.iter().find(|span| span.span_id == link.span_id).unwrap();
    assert_eq!((root.name.as_str(), &root.parent_span_id[..]), ("handoff", &[][..]));
    assert_eq!([text(root, "segue.old_owner"), text(root, "segue.new_owner")], ["a", "b"]);
    let children = |of: &Span| {
        let children = trace.iter().filter(|span| span.parent_span_id == of.span_id);
        children.map(|span| span.name.clone()).collect::<Vec<_>>()
    };
    let mut parts = children(root);
    parts.sort();
    let phases = ["Complete", "Ready", "Switching", "Syncing", "Warming"].map(str::to_owned);
    assert!(parts.iter().filter(|part| *part != "cutover").all(|part| phases.contains(part)), "{parts:?}");
    assert!(["Ready", "Warming", "cutover"].iter().all(|part| parts.contains(&(*part).to_owned())), "{parts:?}");
    let cutover = trace.iter().find(|span| span.name == "cutover").unwrap();
    assert_eq!(children(cutover), ["drain", "switch", "flush"]);
    assert_eq!([text(cutover, "segue.router"), text(cutover, "segue.pod")], ["r-0", "b"]);
    assert!(trace.iter().all(|span| span.start_time_unix_nano <= span.end_time_unix_nano), "{trace:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hang_up_changes_which_requests_are_recorded() {
    let (collector, endpoint) = Collector::start().await;
    let (cluster, router) = (TestCluster::start(SEGUE), free_address());
    let config = |sample: &str| {
        let config = cluster.config().router("r-0", router).coordinator("c-0", 1).quick();
        config.set("tracing.endpoint", format!("http://{endpoint}")).set("tracing.sample", sample)
    };
    let control = cluster.run("control", &config("parent"));
    let (_release, released) = watch::channel(true);
    let _pod = cluster.run("a", &cluster.config().pod("a", free_address(), service("a", released).await).quick());
    serves(router).await;
    let send = move |path: &'static str| {
        let request = Request::get(path).header("x-partition", 0).timeout(LONGEST_REQUEST);
        assert_eq!(request.send(router).unwrap().status, 200);
    };
    spawn_blocking(move || send("/before")).await.unwrap();
    config("always").write(cluster.path(), "control");
    control.signal("HUP");
    let log = cluster.path().join("control.log");
    let printed = move || std::fs::read_to_string(&log).unwrap();
    let shown = printed.clone();
    eventually("the new share", move || shown().contains("configuration reloaded")).await;
    spawn_blocking(move || send("/after")).await.unwrap();
    let recorded = move || -> Vec<String> {
        let spans = collector.spans().into_iter().filter(|span| span.kind() == SpanKind::Server);
        spans.map(|span| text(&span, "url.path").to_owned()).collect()
    };
    let paths = recorded.clone();
    eventually("the span of the request", move || !paths().is_empty()).await;
    assert_eq!(recorded(), ["/after"], "spans are exported in the order of their ends");
    assert!(!printed().contains("take effect with a restart"), "{}", printed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_metrics_shows_an_exported_trace_for_a_bucket() {
    let (collector, endpoint) = Collector::start().await;
    let cluster = TestCluster::start(SEGUE);
    let (_process, router, admin) = traced_pod(&cluster, endpoint).await;
    let page = move |accept| Request::get("/metrics").header("accept", accept).send(admin).unwrap().body;
    let exemplars =
        |page: &str| page.lines().filter(|line| line.contains(" # {")).map(str::to_owned).collect::<Vec<_>>();
    // The spans of a request may be exported one after the other. Between the measurement for a histogram and the end of
    // the span a busy machine may stop the process, so the span may be of a bucket that has counted nothing.
    eventually("exemplars of both histograms", move || {
        let response = Request::get("/").header("x-partition", 0).timeout(LONGEST_REQUEST).send(router).unwrap();
        assert_eq!(response.status, 200);
        let with = exemplars(&page("application/openmetrics-text"));
        let has = |histogram: &str| with.iter().any(|line| line.starts_with(histogram));
        has("segue_request_duration_seconds_bucket{") && has("segue_upstream_duration_seconds_bucket{")
    })
    .await;
    let (open, classic) =
        spawn_blocking(move || (page("application/openmetrics-text"), page("text/plain"))).await.unwrap();
    let known: Vec<String> = collector.spans().iter().map(|span| hex(&span.trace_id)).collect();
    let with = exemplars(&open);
    let id = |line: &String| line.split("trace_id=\"").nth(1).unwrap()[..32].to_owned();
    assert!(with.iter().map(id).all(|id| known.contains(&id)), "{with:?} {known:?}");
    assert!(!classic.contains("trace_id"), "{classic}");
}

/// A router with one pod, whose collector is at this address.
async fn traced_pod(cluster: &TestCluster, collector: SocketAddr) -> (Process, SocketAddr, SocketAddr) {
    let (router, admin) = (free_address(), free_address());
    let (_, released) = watch::channel(true);
    let service = service("a", released).await;
    let config = cluster.config().router("r-0", router).coordinator("c-0", 1).pod("a", free_address(), service);
    let config = config.admin(admin).set("pod.shutdown_timeout", "1s").quick();
    let config = config.set("tracing.endpoint", format!("http://{collector}")).set("tracing.sample", "always");
    let process = cluster.run("segue", &config);
    serves(router).await;
    (process, router, admin)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_that_is_gone_costs_spans_and_no_request() {
    let cluster = TestCluster::start(SEGUE);
    let (process, router, admin) = traced_pod(&cluster, free_address()).await;
    for _ in 0..20 {
        assert_eq!(send(router, "/").await.unwrap().unwrap().status, 200);
    }
    eventually("dropped spans", move || {
        let page = get(admin, "/metrics").map(|(_, text)| text).unwrap_or_default();
        metric(&page, "segue_spans_dropped_total{reason=\"failed\"}").is_some_and(|dropped| dropped >= 40.0)
    })
    .await;
    let (status, output) = spawn_blocking(move || process.terminate()).await.unwrap();
    assert!(status.success() && output.contains("collector does not take spans; dropping them"), "{output}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_that_hangs_does_not_hold_up_the_end() {
    let cluster = TestCluster::start(SEGUE);
    let collector = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (process, router, _) = traced_pod(&cluster, collector.local_addr().unwrap()).await;
    assert_eq!(send(router, "/").await.unwrap().unwrap().status, 200);
    // It accepts the export and says nothing.
    let _exchange = collector.accept().await.unwrap();
    let (status, output) = spawn_blocking(move || process.terminate()).await.unwrap();
    assert!(status.success() && output.contains("collector does not take the last spans in time"), "{output}");
}
