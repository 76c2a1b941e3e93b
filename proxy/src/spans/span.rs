//! One span, as the code that records it sees it. Its form for a collector is the exporter's.

use std::borrow::Cow;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use segue_protocol::trace_context::{SpanContext, SpanId};
use tokio::time::Instant;

/// Most bytes of a text that a client may choose.
const MAX_TEXT: usize = 1024;

/// The part that a span has in a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpanKind {
    /// The handling of a request.
    Server,
    /// A request to another process.
    Client,
    /// Anything else.
    Internal,
}

/// The value of an attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AttributeValue {
    /// A text.
    Text(Cow<'static, str>),
    /// A whole number.
    Number(i64),
}

impl From<&'static str> for AttributeValue {
    fn from(text: &'static str) -> Self {
        AttributeValue::Text(text.into())
    }
}

impl From<String> for AttributeValue {
    fn from(text: String) -> Self {
        AttributeValue::Text(text.into())
    }
}

impl From<u64> for AttributeValue {
    fn from(number: u64) -> Self {
        AttributeValue::Number(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

impl From<u32> for AttributeValue {
    fn from(number: u32) -> Self {
        AttributeValue::Number(number.into())
    }
}

impl From<u16> for AttributeValue {
    fn from(number: u16) -> Self {
        AttributeValue::Number(number.into())
    }
}

/// A span that has ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Span {
    /// The span itself.
    pub context: SpanContext,
    /// The span above it; `None` at the root of its trace.
    pub parent: Option<SpanId>,
    /// Its part in a call.
    pub kind: SpanKind,
    /// Its name.
    pub name: Cow<'static, str>,
    /// Its beginning, in nanoseconds of Unix time.
    pub start: u64,
    /// Its end, likewise.
    pub end: u64,
    /// Its attributes.
    pub attributes: Vec<(&'static str, AttributeValue)>,
    /// A span of another trace that had to do with it.
    pub link: Option<SpanContext>,
    /// Whether it failed.
    pub failed: bool,
}

impl Span {
    /// Returns a span from `start` until now.
    pub fn new(
        context: SpanContext,
        parent: Option<SpanId>,
        kind: SpanKind,
        name: impl Into<Cow<'static, str>>,
        start: Instant,
    ) -> Self {
        Span {
            context,
            parent,
            kind,
            name: name.into(),
            start: unix_nanos(start),
            end: unix_nanos(Instant::now()),
            attributes: Vec::new(),
            link: None,
            failed: false,
        }
    }

    /// Adds an attribute.
    pub fn set(&mut self, key: &'static str, value: impl Into<AttributeValue>) {
        self.attributes.push((key, value.into()));
    }

    /// Marks the span as failed, for this reason.
    pub fn fail(&mut self, reason: &'static str) {
        self.failed = true;
        self.set("error.type", reason);
    }
}

/// Returns a moment in nanoseconds of Unix time.
pub fn unix_nanos(moment: Instant) -> u64 {
    let (now, unix) = (Instant::now(), SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default());
    let at = unix.saturating_sub(now.saturating_duration_since(moment))
        + moment.checked_duration_since(now).unwrap_or(Duration::ZERO);
    u64::try_from(at.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the beginning of a text that a client has chosen.
pub fn bounded(text: &str) -> String {
    text[..text.floor_char_boundary(MAX_TEXT)].to_owned()
}
