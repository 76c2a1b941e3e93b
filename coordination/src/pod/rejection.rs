//! The layer's local replies: what a router reads as "not mine, not processed", and what says that the work was stopped
//! half-way. No other place turns a refusal into a status.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use http::{Response, StatusCode};
use segue_protocol::headers;
use segue_protocol::ids::PartitionId;

use super::ownership::Rejection;
use crate::local_reply::Cause;

const MISDIRECTED: HeaderName = HeaderName::from_static(headers::SEGUE_MISDIRECTED);

/// Returns whether the client expects a gRPC response.
pub(super) fn is_grpc(request: &HeaderMap) -> bool {
    request.get(CONTENT_TYPE).is_some_and(|kind| headers::is_grpc(kind.as_bytes()))
}

/// Returns the `421` of a request that was not processed.
pub(super) fn refused(why: Rejection, partition: Option<PartitionId>, grpc: bool) -> Response<Bytes> {
    let message = match why {
        Rejection::Unstamped => {
            "the request names no partition and epoch of this keyspace: it must come through a router"
        }
        Rejection::Fenced => "this pod has no registration that it may trust",
        Rejection::Stale => "the epoch of the request is over",
        Rejection::NotOwner => "this pod does not own the partition at the epoch of the request",
    };
    // 9 is FAILED_PRECONDITION.
    let status = StatusCode::MISDIRECTED_REQUEST;
    let cause = Cause { status, grpc_status: "9", reason: why.as_str(), error: message };
    let mut response = cause.response(partition, grpc);
    response.headers_mut().insert(MISDIRECTED, HeaderValue::from_static("1"));
    response
}

/// Marks a `421` of the service's own, which is meant for its client: to the router it must not look like an
/// unprocessed request. A service that sets the mark itself is left alone.
pub(super) fn mark_own<B>(response: &mut Response<B>) {
    if response.status() == StatusCode::MISDIRECTED_REQUEST {
        response.headers_mut().entry(MISDIRECTED).or_insert(HeaderValue::from_static("0"));
    }
}

/// Returns the `500` of a request that was in progress when the lease ran out. Part of it may have taken effect, so the
/// status is never `421`, and none that invites a client to retry.
pub(super) fn lost(partition: Option<PartitionId>, grpc: bool) -> Response<Bytes> {
    let message = "the pod lost its lease while it worked on the request, which may have been applied or not";
    // 2 is UNKNOWN.
    let status = StatusCode::INTERNAL_SERVER_ERROR;
    Cause { status, grpc_status: "2", reason: "lease-lost", error: message }.response(partition, grpc)
}
