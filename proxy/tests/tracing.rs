//! Trace context and the spans of requests.
//!
//! # Invariants
//!
//! * Without tracing, and for a request that is not recorded, the context passes unchanged.
//! * A pod sees the span of its own attempt as its parent.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use http::{HeaderMap, Response};
use prometheus_client::metrics::counter::Counter;
use segue_protocol::handoff::router::HoldCause;
use segue_protocol::ids::{HandoffId, Revision};
use segue_protocol::keys::Keyspace;
use segue_protocol::trace_context::SpanContext;
use segue_proxy::settings::UpstreamProtocol;
use segue_proxy::spans::{AttributeValue, Sampler, Span, SpanKind, Tracer};
use tokio::sync::mpsc;

use crate::support::client::{Body, empty};
use crate::support::pod::{Pod, Speaks, start_h2_pod};
use crate::support::{BOTH_VERSIONS, Fixture, GET, P0, POST, Settings, get_at, soon, until};

const SAMPLED: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const NOT_SAMPLED: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";

/// Returns the head of a request with this context.
fn traced(traceparent: &str) -> String {
    get_at(P0, &format!("traceparent: {traceparent}\r\ntracestate: a=1\r\ntracestate: b=2\r\n"))
}

/// A fixture that traces, and the spans that it records.
struct Traced {
    fixture: Fixture,
    tracer: Tracer,
    spans: mpsc::Receiver<Span>,
}

impl Traced {
    fn new(share: f64) -> Self {
        Self::with(share, Settings::default())
    }

    fn with(share: f64, mut settings: Settings) -> Self {
        let (tracer, spans) = Tracer::new(Sampler::share(share).unwrap(), 100, Counter::default());
        settings.forward.tracer = Some(tracer.clone());
        Traced { fixture: Fixture::with(settings), tracer, spans }
    }

    /// Returns the next spans, by the order of their beginnings.
    async fn spans<const N: usize>(&mut self) -> [Span; N] {
        let mut spans = Vec::new();
        while spans.len() < N {
            spans.push(soon(self.spans.recv()).await.unwrap());
        }
        spans.sort_by_key(|span| (span.start, span.kind != SpanKind::Server));
        assert!(self.spans.try_recv().is_err(), "more spans than {N}");
        spans.try_into().unwrap()
    }
}

fn value<'span>(span: &'span Span, key: &str) -> &'span AttributeValue {
    let found = span.attributes.iter().find(|(name, _)| *name == key);
    &found.unwrap_or_else(|| panic!("no {key} in {span:?}")).1
}

fn text(value: impl Into<String>) -> AttributeValue {
    AttributeValue::from(value.into())
}

/// Starts a pod that sends on what it was sent.
async fn pod_that_tells(fixture: &Fixture, speaks: Speaks) -> (Pod, mpsc::UnboundedReceiver<HeaderMap>) {
    let (tell, told) = mpsc::unbounded_channel();
    let pod = fixture
        .pod(speaks, move |request| {
            tell.send(request.headers().clone()).unwrap();
            async { Response::<Body>::new(empty()) }
        })
        .await;
    (pod, told)
}

fn values<'headers>(headers: &'headers HeaderMap, name: &str) -> Vec<&'headers str> {
    headers.get_all(name).iter().map(|value| value.to_str().unwrap()).collect()
}

#[tokio::test]
async fn the_context_passes_unchanged_where_nothing_is_recorded() {
    for (speaks, protocol) in BOTH_VERSIONS {
        let settings = || Settings::with_protocol(protocol);
        let traced_one = Traced::with(0.0, settings());
        let invalid = "00-not-a-context";
        let untraced = [SAMPLED, NOT_SAMPLED, invalid].map(|given| (Fixture::with(settings()), given));
        let [a, b, c] = untraced;
        for (fixture, given) in [a, b, c, (traced_one.fixture, NOT_SAMPLED)] {
            let (_pod, mut told) = pod_that_tells(&fixture, speaks).await;
            assert_eq!(fixture.ask(traced(given)).await.status, 200);
            let headers = soon(told.recv()).await.unwrap();
            assert_eq!(values(&headers, "traceparent"), [given]);
            assert_eq!(values(&headers, "tracestate"), ["a=1", "b=2"]);
        }
    }
}

#[tokio::test]
async fn a_span_names_the_client_that_a_trusted_proxy_forwards() {
    for (trusts, client) in [(false, "127.0.0.1"), (true, "203.0.113.7")] {
        let mut traced = Traced::with(1.0, Settings::with(|settings| settings.forward.trust_forwarded = trusts));
        let _pod = traced.fixture.quick_pod().await;
        let request = get_at(P0, "x-forwarded-for: 198.51.100.1, 203.0.113.7\r\n");
        assert_eq!(traced.fixture.ask(request).await.status, 200);
        let [request, _attempt] = traced.spans().await;
        assert_eq!(*value(&request, "client.address"), text(client));
    }
}

#[tokio::test]
async fn a_pod_sees_its_attempt_as_the_parent() {
    for (speaks, protocol) in BOTH_VERSIONS {
        let mut traced_one = Traced::with(0.0, Settings::with_protocol(protocol));
        let (pod, mut told) = pod_that_tells(&traced_one.fixture, speaks).await;
        assert_eq!(traced_one.fixture.ask(traced(SAMPLED)).await.status, 200);
        let [server, attempt] = traced_one.spans().await;
        let client = SpanContext::parse(SAMPLED.as_bytes()).unwrap();
        assert_eq!((server.context.trace, server.parent), (client.trace, Some(client.span)));
        assert_eq!((attempt.context.trace, attempt.parent), (client.trace, Some(server.context.span)));
        assert_eq!((server.kind, attempt.kind), (SpanKind::Server, SpanKind::Client));
        assert!(server.start <= attempt.start && attempt.end <= server.end);

        let headers = soon(told.recv()).await.unwrap();
        assert_eq!(values(&headers, "traceparent"), [attempt.context.to_string()]);
        assert_eq!(values(&headers, "tracestate"), ["a=1", "b=2"]);

        assert_eq!(*value(&server, "url.path"), text("/"));
        assert_eq!(*value(&server, "segue.partition"), AttributeValue::Number(0));
        assert_eq!(*value(&server, "http.response.status_code"), AttributeValue::Number(200));
        assert_eq!(*value(&attempt, "segue.pod"), text(format!("pod-{}", pod.address)));
        assert_eq!(*value(&attempt, "segue.epoch"), AttributeValue::Number(1));
        assert_eq!(*value(&attempt, "server.port"), AttributeValue::Number(pod.address.port().into()));
        assert!(!server.failed && !attempt.failed);
    }
}

#[tokio::test]
async fn a_trace_begins_here_for_a_request_without_a_valid_context() {
    let mut traced_one = Traced::new(1.0);
    let (_pod, mut told) = pod_that_tells(&traced_one.fixture, Speaks::Http1).await;
    for request in [GET.to_owned(), traced("00-not-a-context")] {
        assert_eq!(traced_one.fixture.ask(request).await.status, 200);
        let [server, attempt] = traced_one.spans().await;
        assert_eq!(server.parent, None);
        let headers = soon(told.recv()).await.unwrap();
        assert_eq!(values(&headers, "traceparent"), [attempt.context.to_string()]);
        assert_eq!(values(&headers, "tracestate"), [""; 0], "it belongs to a context that is not valid");
    }
}

#[tokio::test]
async fn time_in_the_stash_links_to_the_handoff() {
    let mut traced_one = Traced::new(0.0);
    let fixture = &traced_one.fixture;
    let handoff = HandoffId::created_at(Revision::new(42));
    let handoff = SpanContext::of_handoff(&Keyspace::new("/segue/", "default"), P0, handoff, 1);
    traced_one.tracer.begin_cutover(P0, Some(handoff));
    fixture.hold(P0, HoldCause::Handoff);
    let mut client = fixture.send(traced(SAMPLED)).await;
    fixture.held(P0, 1).await;
    let _pod = fixture.quick_pod().await;
    assert_eq!(client.answer().await.status, 200);
    assert_eq!(traced_one.tracer.end_cutover(P0), Some(handoff));
    let [server, stash, attempt] = traced_one.spans().await;
    assert_eq!((stash.name.as_ref(), stash.parent, stash.link), ("stash", Some(server.context.span), Some(handoff)));
    assert_eq!(stash.context.trace, server.context.trace);
    assert!(stash.end <= attempt.start && server.link.is_none() && !stash.failed);
}

#[tokio::test]
async fn a_refused_attempt_is_a_span_of_its_own() {
    let mut traced_one = Traced::new(0.0);
    let pod = traced_one.fixture.scripted_pod().await;
    let (mut client, mut connection) = traced_one.fixture.exchange(&pod, traced(SAMPLED)).await;
    connection.write("HTTP/1.1 421 Misdirected Request\r\ncontent-length: 0\r\n\r\n").await;
    let first_parent = traceparent(&connection.head().await);
    connection.write(crate::support::OK).await;
    assert_eq!(client.answer().await.status, 200);
    let [server, refused, stash, accepted] = traced_one.spans().await;
    assert_eq!(*value(&refused, "http.response.status_code"), AttributeValue::Number(421));
    assert!(refused.failed && !accepted.failed && !server.failed);
    assert_eq!((stash.name.as_ref(), stash.link), ("stash", None));
    assert_eq!(*value(&accepted, "http.request.resend_count"), AttributeValue::Number(1));
    assert_ne!(refused.context.span, accepted.context.span);
    assert_eq!(first_parent, accepted.context.to_string(), "each attempt is named as its pod's parent");
}

/// Returns the `traceparent` of a head that a pod read.
fn traceparent(head: &str) -> String {
    head.lines().find_map(|line| line.strip_prefix("traceparent: ")).unwrap().to_owned()
}

#[tokio::test]
async fn a_request_that_is_refused_or_abandoned_ends_its_spans() {
    let settings = Settings::with(|settings| settings.stash.max_wait = std::time::Duration::from_millis(20));
    let mut traced_one = Traced::with(1.0, settings);
    assert_eq!(traced_one.fixture.ask(GET).await.reason(), (503, "no-owner"));
    let [server, stash] = traced_one.spans().await;
    assert!(server.failed && stash.failed);
    assert_eq!(*value(&server, "error.type"), text("no-owner"));
    assert_eq!(*value(&stash, "error.type"), text("no-owner"));

    assert_eq!(traced_one.fixture.ask("GET / HTTP/1.1\r\nhost: h\r\n\r\n").await.status, 400);
    let [server] = traced_one.spans().await;
    assert!(!server.failed, "the client's mistake");
    assert_eq!(*value(&server, "error.type"), text("no-partition"));
}

#[tokio::test]
async fn a_response_that_is_cut_off_fails_its_attempt_and_its_request() {
    let mut traced_one = Traced::new(1.0);
    let pod = traced_one.fixture.scripted_pod().await;
    let (mut client, mut connection) = traced_one.fixture.exchange(&pod, GET).await;
    connection.write("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhello").await;
    assert_eq!(client.head().await.status, 200);
    assert!(traced_one.spans.try_recv().is_err(), "spans end with the response, not with its head");
    drop(connection);
    let [server, attempt] = traced_one.spans().await;
    for span in [&server, &attempt] {
        assert!(span.failed);
        assert_eq!(*value(span, "error.type"), text("broken"));
        assert_eq!(*value(span, "http.response.status_code"), AttributeValue::Number(200));
    }
}

#[tokio::test]
async fn an_attempt_that_its_pod_did_not_process_is_recorded_as_refused() {
    let mut traced_one = Traced::with(1.0, Settings::with_protocol(UpstreamProtocol::Http2));
    let requests = Arc::new(AtomicUsize::new(0));
    let address = start_h2_pod(move |_, mut respond| {
        if requests.fetch_add(1, SeqCst) == 1 {
            respond.send_reset(h2::Reason::REFUSED_STREAM);
        } else {
            drop(respond.send_response(Response::new(()), true));
        }
    })
    .await;
    traced_one.fixture.route(P0, address, 1);
    assert_eq!(traced_one.fixture.ask(GET).await.status, 200);
    traced_one.spans::<2>().await;
    // Refused on a connection that was there before, so the request is sent again at once.
    assert_eq!(traced_one.fixture.ask(GET).await.status, 200);
    let [server, refused, accepted] = traced_one.spans().await;
    assert!(refused.failed && !accepted.failed && !server.failed);
    assert_eq!(*value(&refused, "error.type"), text("refused"));
    assert_eq!(*value(&accepted, "http.request.resend_count"), AttributeValue::Number(1));
}

/// Returns the spans of a request whose client leaves after the head of the response. The pod then writes `rest`.
async fn spans_of_a_client_that_leaves(request: &str, rest: &str) -> [Span; 2] {
    let mut traced_one = Traced::new(1.0);
    let pod = traced_one.fixture.scripted_pod().await;
    let (mut client, mut connection) = traced_one.fixture.exchange(&pod, request).await;
    connection.write("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n").await;
    assert_eq!(client.head().await.status, 200);
    drop(client);
    let gone = || traced_one.fixture.metrics_page().contains("segue_connections 0\n");
    until(gone, "the router to see its client leave").await;
    connection.write(rest).await;
    traced_one.spans().await
}

#[tokio::test]
async fn a_client_that_leaves_in_the_middle_of_a_response_fails_its_request() {
    // The response to a `GET` is broken off, the one to a `POST` is read to its end.
    for (request, rest) in [(GET, ""), (POST, "0\r\n\r\n")] {
        let is_broken_off = rest.is_empty();
        let [server, attempt] = spans_of_a_client_that_leaves(request, rest).await;
        assert_eq!((server.failed, attempt.failed), (true, is_broken_off), "{request}");
        assert_eq!(*value(&server, "error.type"), text("client-gone"));
        assert_eq!(*value(&server, "http.response.status_code"), AttributeValue::Number(200));
        if is_broken_off {
            assert_eq!(*value(&attempt, "error.type"), text("client-gone"));
        }
    }
}

#[tokio::test]
async fn a_response_whose_end_follows_its_last_byte_is_no_failure() {
    let mut traced_one = Traced::with(1.0, Settings::with_protocol(UpstreamProtocol::Http2));
    let (end, ended) = tokio::sync::watch::channel(false);
    let address = start_h2_pod(move |_, mut respond| {
        let response = Response::builder().header("content-length", "5").body(()).unwrap();
        let mut body = respond.send_response(response, false).unwrap();
        body.send_data("hello".into(), false).unwrap();
        let mut ended = ended.clone();
        tokio::spawn(async move {
            ended.wait_for(|ended| *ended).await.unwrap();
            body.send_data("".into(), true).unwrap();
        });
    })
    .await;
    traced_one.fixture.route(P0, address, 1);
    assert_eq!(traced_one.fixture.ask(GET).await.body, b"hello");
    end.send(true).unwrap();
    let [server, attempt] = traced_one.spans().await;
    assert!(!server.failed && !attempt.failed, "{server:?} {attempt:?}");
}

#[tokio::test]
async fn an_attempt_that_is_severed_after_its_client_has_left_is_recorded_as_severed() {
    let mut traced_one = Traced::new(1.0);
    let fixture = &traced_one.fixture;
    let pod = fixture.scripted_pod().await;
    let (client, _connection) = fixture.exchange(&pod, POST).await;
    drop(client);
    until(|| fixture.metrics_page().contains("segue_connections 0\n"), "the router to see its client leave").await;
    fixture.hold_and_sever(P0);
    let [server, attempt] = traced_one.spans().await;
    assert_eq!(*value(&server, "error.type"), text("client-gone"));
    assert_eq!(*value(&attempt, "error.type"), text("severed"));
}
