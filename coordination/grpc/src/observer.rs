//! The observer of the service, which counts what it does.

use std::fmt;

use segue_protocol::handoff::pod_reconcile::Callback;

use crate::proto::AckOutcome;

/// Counts what the service does. The calls must not block.
pub trait PodsObserver: fmt::Debug + Send + Sync + 'static {
    /// A stream began. A stream that resumes a registration is told everything again.
    fn stream_began(&self, resumed: bool);
    /// A stream ended.
    fn stream_ended(&self);
    /// A `Poll` got its response.
    fn polled(&self);
    /// An acknowledgement of this task got its response. `failed`: the pod reported a failure.
    fn acknowledged(&self, task: Callback, failed: bool, outcome: AckOutcome);
    /// A pod that sends heartbeats has not applied its events, and its lease is not renewed; or it now applies them.
    fn reader_stuck(&self, stuck: bool);
}

/// Counts nothing.
impl PodsObserver for () {
    fn stream_began(&self, _: bool) {}
    fn stream_ended(&self) {}
    fn polled(&self) {}
    fn acknowledged(&self, _: Callback, _: bool, _: AckOutcome) {}
    fn reader_stuck(&self, _: bool) {}
}
