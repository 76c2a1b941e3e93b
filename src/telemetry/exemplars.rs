//! Exemplars: for each bucket of a latency histogram the last traced request in it, so that a dashboard can open its trace.
//!
//! They are taken from spans that the collector has accepted. The path of a request therefore does nothing for them, and
//! only sampled requests have any. The classic text format has no place for them (`admin/exposition`).
//!
//! # Invariants
//!
//! * An exemplar names a trace that was exported.
//! * A bucket has at most one exemplar, and none as long as its histogram has counted nothing there.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError};

use segue_protocol::trace_context::SpanContext;
use segue_proxy::metrics::BUCKET_BOUNDS_MICROS;
use segue_proxy::spans::{AttributeValue, Span, SpanKind};

const REQUESTS: &str = "segue_request_duration_seconds";
const UPSTREAM: &str = "segue_upstream_duration_seconds";
const STASH: &str = "segue_stash_wait_seconds";

/// The bucket of a histogram, by its place. A histogram of pods has one for each pod.
type Bucket = (&'static str, Option<String>, usize);

/// The exemplars of a process. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Exemplars(Arc<Mutex<HashMap<Bucket, Exemplar>>>);

/// A traced request, as one histogram sees it.
#[derive(Debug, Clone)]
pub(crate) struct Exemplar {
    histogram: &'static str,
    pod: Option<String>,
    context: SpanContext,
    /// Nanoseconds.
    took: u64,
    /// The end, in nanoseconds of Unix time.
    at: u64,
}

impl Exemplar {
    /// Returns the exemplar that a span is, if a histogram counts what it records.
    pub(crate) fn of(span: &Span) -> Option<Self> {
        let is_gone = || span.attributes.contains(&("error.type", AttributeValue::from("client-gone")));
        let histogram = match (span.kind, span.name.as_ref()) {
            (SpanKind::Server, _) if !is_gone() => REQUESTS,
            (SpanKind::Client, _) if !span.failed => UPSTREAM,
            (SpanKind::Internal, "stash") if !span.failed => STASH,
            _ => return None,
        };
        let pod = span.attributes.iter().filter(|_| histogram == UPSTREAM).find_map(|attribute| match attribute {
            ("segue.pod", AttributeValue::Text(pod)) => Some(pod.clone().into_owned()),
            _ => None,
        });
        Some(Exemplar {
            histogram,
            pod,
            context: span.context,
            took: span.end.saturating_sub(span.start),
            at: span.end,
        })
    }

    fn bucket(&self) -> Bucket {
        let micros = self.took / 1_000;
        let place = BUCKET_BOUNDS_MICROS.iter().position(|bound| micros <= *bound);
        (self.histogram, self.pod.clone(), place.unwrap_or(BUCKET_BOUNDS_MICROS.len()))
    }
}

impl Exemplars {
    /// Takes the exemplars of exported spans over.
    pub(crate) fn exported(&self, exemplars: Vec<Exemplar>) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.extend(exemplars.into_iter().map(|exemplar| (exemplar.bucket(), exemplar)));
    }

    /// Returns a page of OpenMetrics with the exemplars at the ends of their lines.
    pub(crate) fn added_to(&self, page: String) -> String {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.is_empty() {
            return page;
        }
        let mut text = String::with_capacity(page.len() + known.len() * 128);
        let mut below = 0;
        for line in page.lines() {
            text.push_str(line);
            if let Some((bucket, count)) = parse(line) {
                let is_empty = count == if bucket.2 == 0 { 0 } else { below };
                below = count;
                if let Some(Exemplar { context, took, at, .. }) = known.get(&bucket).filter(|_| !is_empty) {
                    let (seconds, at) = (*took as f64 / 1e9, *at as f64 / 1e9);
                    let (trace, span) = (u128::from_be_bytes(context.trace.0), u64::from_be_bytes(context.span.0));
                    let labels = format!("trace_id=\"{trace:032x}\",span_id=\"{span:016x}\"");
                    // Writing to a string does not fail.
                    let _ = write!(text, " # {{{labels}}} {seconds} {at:.3}");
                }
            }
            text.push('\n');
        }
        text
    }
}

/// Returns the bucket that a line is of, and its cumulative count.
fn parse(line: &str) -> Option<(Bucket, u64)> {
    let (name, rest) = line.split_once("_bucket{")?;
    let histogram = [REQUESTS, UPSTREAM, STASH].into_iter().find(|histogram| *histogram == name)?;
    let (bound, rest) = rest.strip_prefix("le=\"")?.split_once('"')?;
    let (labels, count) = rest.split_once("} ")?;
    let pod = match labels {
        "" => None,
        labels => Some(labels.strip_prefix(",pod=\"")?.strip_suffix('"')?.to_owned()),
    };
    let place = match bound {
        "+Inf" => BUCKET_BOUNDS_MICROS.len(),
        bound => {
            let seconds: f64 = bound.parse().ok()?;
            BUCKET_BOUNDS_MICROS.iter().position(|micros| *micros as f64 / 1e6 == seconds)?
        }
    };
    Some(((histogram, pod, place), count.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;
    use prometheus_client::registry::Registry;
    use segue_proxy::metrics::Metrics;
    use tokio::time::Instant;

    use super::*;

    const CONTEXT: &[u8] = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn span(kind: SpanKind, name: &'static str, micros: u64) -> Span {
        let context = SpanContext::parse(CONTEXT).unwrap();
        let span = Span::new(context, None, kind, name, Instant::now());
        Span { start: 1_700_000_000_000_000_000, end: 1_700_000_000_000_000_000 + micros * 1_000, ..span }
    }

    #[test]
    fn each_bucket_that_has_counted_has_its_last_traced_request() {
        let mut registry = Registry::with_prefix("segue");
        Metrics::new(1).register(&mut registry);
        let mut zero = String::new();
        encode(&mut zero, &registry).unwrap();
        let exemplars = Exemplars::default();
        assert_eq!(exemplars.added_to(zero.clone()), zero);
        let mut gone = span(SpanKind::Server, "GET", 90);
        gone.fail("client-gone");
        let spans = [
            span(SpanKind::Server, "GET", 90),
            span(SpanKind::Server, "GET", 150),
            span(SpanKind::Server, "POST", 160),
            span(SpanKind::Server, "GET", 99_000_000),
            span(SpanKind::Client, "GET", 150),
            span(SpanKind::Internal, "handoff", 150),
            gone,
        ];
        exemplars.exported(spans.iter().filter_map(Exemplar::of).collect());
        assert_eq!(exemplars.added_to(zero.clone()), zero, "nothing is counted yet");

        // One request in the second bucket, and one beyond the last bound.
        let mut page = zero.replace("segue_request_duration_seconds_bucket{le=\"+Inf\"} 0", "+Inf");
        for micros in &BUCKET_BOUNDS_MICROS[1..] {
            let line =
                |count| format!("request_duration_seconds_bucket{{le=\"{:?}\"}} {count}\n", *micros as f64 / 1e6);
            page = page.replace(&line(0), &line(1));
        }
        page = page.replace("+Inf\n", "segue_request_duration_seconds_bucket{le=\"+Inf\"} 2\n");
        let shown = exemplars.added_to(page);
        let with: Vec<&str> = shown.lines().filter(|line| line.contains(" # {")).collect();
        let labels = r##"# {trace_id="4bf92f3577b34da6a3ce929d0e0e4736",span_id="00f067aa0ba902b7"}"##;
        let expected = [
            format!("segue_request_duration_seconds_bucket{{le=\"0.0002\"}} 1 {labels} 0.00016 1700000000.000"),
            format!("segue_request_duration_seconds_bucket{{le=\"+Inf\"}} 2 {labels} 99 1700000099.000"),
        ];
        assert_eq!(with, expected);
    }
}
