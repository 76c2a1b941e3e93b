//! The answers that the layer gives itself: what a router reads as "not mine, nothing was done", and what tells that the
//! work was stopped half-way. The only place where a refusal becomes a status.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use http::{Response, StatusCode};
use segue_protocol::headers;
use segue_protocol::ids::PartitionId;

use super::ownership::Refusal;

const MISDIRECTED: HeaderName = HeaderName::from_static(headers::SEGUE_MISDIRECTED);
const REASON: HeaderName = HeaderName::from_static(headers::SEGUE_REASON);
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");

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
    let mut answer = answer(StatusCode::MISDIRECTED_REQUEST, "9", message, why.as_str(), partition, grpc);
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
    answer(StatusCode::INTERNAL_SERVER_ERROR, "2", message, "lease-lost", partition, grpc)
}

fn answer(
    status: StatusCode,
    grpc_status: &'static str,
    message: &'static str,
    reason: &'static str,
    partition: Option<PartitionId>,
    grpc: bool,
) -> Response<Bytes> {
    let mut answer = Response::new(Bytes::new());
    answer.headers_mut().insert(REASON, HeaderValue::from_static(reason));
    if grpc {
        let headers = answer.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert(GRPC_STATUS, HeaderValue::from_static(grpc_status));
        headers.insert(GRPC_MESSAGE, HeaderValue::from_static(message));
        return answer;
    }
    let body = serde_json::json!({ "error": message, "reason": reason, "partition": partition });
    *answer.status_mut() = status;
    *answer.body_mut() = Bytes::from(body.to_string());
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    answer
}
