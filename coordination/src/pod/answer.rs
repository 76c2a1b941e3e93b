//! The answers that the layer gives itself: what a router reads as "not mine, nothing was done", and what tells that the
//! work was stopped half-way. The only place where a refusal becomes a status.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use http::{Response, StatusCode};
use segue_protocol::headers;
use segue_protocol::ids::PartitionId;

use super::ownership::Refusal;
use crate::local_reply::Cause;

const MISDIRECTED: HeaderName = HeaderName::from_static(headers::SEGUE_MISDIRECTED);

/// Returns whether the request wants its response as gRPC.
pub(super) fn is_grpc(request: &HeaderMap) -> bool {
    request.get(CONTENT_TYPE).is_some_and(|kind| headers::is_grpc(kind.as_bytes()))
}

/// `421`: nothing was done.
pub(super) fn refused(why: Refusal, partition: Option<PartitionId>, grpc: bool) -> Response<Bytes> {
    let message = match why {
        Refusal::Unstamped => {
            "the request names no partition and epoch of this keyspace: it must come through a router"
        }
        Refusal::Fenced => "this pod has no registration that it may trust",
        Refusal::Stale => "the epoch of the request is over",
        Refusal::NotOwner => "this pod does not own the partition at the epoch of the request",
    };
    // 9 is FAILED_PRECONDITION.
    let status = StatusCode::MISDIRECTED_REQUEST;
    let cause = Cause { status, grpc_status: "9", reason: why.as_str(), error: message };
    let mut answer = cause.response(partition, grpc);
    answer.headers_mut().insert(MISDIRECTED, HeaderValue::from_static("1"));
    answer
}

/// A `421` of the service's own is for its client, and must not look to the router as if nothing had been done. A
/// service that knows the mark says itself what it means.
pub(super) fn mark_own<B>(response: &mut Response<B>) {
    if response.status() == StatusCode::MISDIRECTED_REQUEST {
        response.headers_mut().entry(MISDIRECTED).or_insert(HeaderValue::from_static("0"));
    }
}

/// `500`: the lease ran out while the request was worked on. Part of it may have been done, so never `421`, and no
/// status either that invites a client to send it again.
pub(super) fn lost(partition: Option<PartitionId>, grpc: bool) -> Response<Bytes> {
    let message = "the pod lost its lease while it worked on the request, which may have been applied or not";
    // 2 is UNKNOWN.
    let status = StatusCode::INTERNAL_SERVER_ERROR;
    Cause { status, grpc_status: "2", reason: "lease-lost", error: message }.response(partition, grpc)
}
