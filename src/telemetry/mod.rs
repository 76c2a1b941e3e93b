//! What a process says of itself: metrics, exemplars and traces.

pub(crate) mod exemplars;
pub(crate) mod handoff_traces;
pub(crate) mod metrics;
pub(crate) mod otlp;
