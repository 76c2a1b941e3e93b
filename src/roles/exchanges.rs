//! What the admin endpoint shows of the exchanges that keep a partition from moving.

use segue_proxy::routing::request_summary::RequestSummary;
use serde_json::{Value, json};
use tokio::time::Instant;

pub(super) fn request(request: &RequestSummary) -> Value {
    json!({ "method": request.method(), "path": request.path(), "client": request.client() })
}

/// Returns the milliseconds until `at`, 0 once that has passed.
pub(super) fn time_left(at: Option<Instant>) -> Option<u64> {
    Some(at?.saturating_duration_since(Instant::now()).as_millis() as u64)
}
