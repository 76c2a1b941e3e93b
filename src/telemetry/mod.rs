//! What a process says of itself: metrics, exemplars and traces.

pub(crate) mod exemplars;
pub mod handoff_traces;
pub mod metrics;
pub mod otlp;
