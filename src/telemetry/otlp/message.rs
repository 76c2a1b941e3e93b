//! Spans as messages of OTLP.
//!
//! Pure.

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::span::{Link, SpanKind as Kind};
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span as Message, Status};
use segue_config::Config;
use segue_protocol::trace_context::SpanContext;
use segue_proxy::spans::{AttributeValue, Span, SpanKind};

/// Returns the description of this process, which stands once above its spans.
pub(super) fn resource(config: &Config) -> Resource {
    let router = config.router.as_ref().map(|router| &router.name);
    let coordinator = config.coordinator.as_ref().map(|coordinator| &coordinator.name);
    let pod = config.pod.as_ref().map(|pod| &pod.name);
    let mut attributes = vec![
        attribute("service.name", AttributeValue::from("segue")),
        attribute("service.version", AttributeValue::from(env!("CARGO_PKG_VERSION"))),
    ];
    if let Some(keyspace) = config.only_keyspace() {
        attributes.push(attribute("segue.keyspace", AttributeValue::from(keyspace.name.clone())));
    }
    if let Some(name) = router.or(coordinator).or(pod) {
        attributes.push(attribute("service.instance.id", AttributeValue::from(name.clone())));
    }
    Resource { attributes, ..Resource::default() }
}

/// Returns the request that exports a batch.
pub(super) fn request(resource: &Resource, batch: Vec<Span>) -> ExportTraceServiceRequest {
    let scope = InstrumentationScope { name: "segue".to_owned(), ..InstrumentationScope::default() };
    let spans = batch.into_iter().map(message).collect();
    let scope_spans = vec![ScopeSpans { scope: Some(scope), spans, ..ScopeSpans::default() }];
    let spans = ResourceSpans { resource: Some(resource.clone()), scope_spans, ..ResourceSpans::default() };
    ExportTraceServiceRequest { resource_spans: vec![spans] }
}

fn message(span: Span) -> Message {
    let kind = match span.kind {
        SpanKind::Server => Kind::Server,
        SpanKind::Client => Kind::Client,
        SpanKind::Internal => Kind::Internal,
    };
    let failed = || Status { code: StatusCode::Error.into(), message: String::new() };
    Message {
        trace_id: span.context.trace.0.to_vec(),
        span_id: span.context.span.0.to_vec(),
        parent_span_id: span.parent.map(|parent| parent.0.to_vec()).unwrap_or_default(),
        flags: span.context.flags.bits().into(),
        name: span.name.into_owned(),
        kind: kind.into(),
        start_time_unix_nano: span.start,
        end_time_unix_nano: span.end,
        attributes: span.attributes.into_iter().map(|(key, value)| attribute(key, value)).collect(),
        links: span.link.into_iter().map(link).collect(),
        status: span.failed.then(failed),
        ..Message::default()
    }
}

fn link(to: SpanContext) -> Link {
    let (trace_id, span_id) = (to.trace.0.to_vec(), to.span.0.to_vec());
    Link { trace_id, span_id, flags: to.flags.bits().into(), ..Link::default() }
}

fn attribute(key: &str, value: AttributeValue) -> KeyValue {
    let value = match value {
        AttributeValue::Text(text) => Any::StringValue(text.into_owned()),
        AttributeValue::Number(number) => Any::IntValue(number),
    };
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }), ..KeyValue::default() }
}
