//! Requests whose client waits for `100 Continue` before it sends the body (RFC 9110, 10.1.1).
//!
//! Router and sidecar withhold such a body until the pod or the service asks for it or [`CONTINUE_TIMEOUT`] has passed.
//! Each has a timer of its own, because the router polls one within its exchange and the sidecar within the body.

use std::time::Duration;

use http::HeaderMap;
use http::header::EXPECT;

/// Time that a pod or service may take to respond to `Expect: 100-continue` before the body is sent all the same. RFC
/// 9110 wants a client not to wait for ever; curl waits a second.
pub(crate) const CONTINUE_TIMEOUT: Duration = Duration::from_secs(1);

/// Returns whether the client of a request with these headers waits for `100 Continue`.
pub(crate) fn expects_continue(headers: &HeaderMap) -> bool {
    headers.get(EXPECT).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue"))
}
