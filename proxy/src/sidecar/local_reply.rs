//! Responses that the sidecar gives in place of the service, in the form of the router's local replies.
//!
//! # Invariants
//! * Each has a `segue-reason`.
//! * `421` with the mark promises that the service was sent nothing, or has not looked at it.

use http::header::HeaderValue;
use http::{Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use segue_coordination::local_reply::Cause;
use segue_protocol::ids::PartitionId;

use super::body::SidecarBody;
use crate::message::header_names::SEGUE_MISDIRECTED;

/// The local replies to one request, by the cause.
#[derive(Debug, Clone, Copy)]
pub(super) struct LocalReplies {
    pub(super) partition: Option<PartitionId>,
    pub(super) grpc: bool,
}

impl LocalReplies {
    /// Returns the reply to a broken exchange. By gRPC this is `INTERNAL`: the service may have acted on the request, and clients retry after
    /// `UNAVAILABLE`.
    pub(super) fn broken(self) -> Response<SidecarBody> {
        let error = "the service broke the exchange; the request may have taken effect";
        self.reply(StatusCode::BAD_GATEWAY, "13", "upstream-failed", error)
    }

    /// Returns the reply to a request that did not pass the ownership layer.
    pub(super) fn not_owned(self) -> Response<SidecarBody> {
        let error = "the pod gave the partition up while the request arrived";
        self.refused("not-owner", error)
    }

    /// Returns the reply to a request that was on its way when the service closed the connection, as servers do after a
    /// number of requests.
    pub(super) fn unprocessed(self) -> Response<SidecarBody> {
        self.refused("upstream-failed", "the service has not processed the request")
    }

    /// Returns the reply to a request that was not sent. The router holds it until the service is back or its partition
    /// has moved.
    pub(super) fn unreachable(self) -> Response<SidecarBody> {
        self.refused("upstream-failed", "the service cannot be reached; nothing was sent")
    }

    /// Returns the reply to a request of which the service has announced that it does not take such a head.
    pub(super) fn head_too_large(self) -> Response<SidecarBody> {
        let error = "the request's head is larger than the service takes";
        self.reply(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "8", "limit", error)
    }

    /// Returns the reply to a request whose own connection the service has ended because of it. The request could be sent
    /// again, but that would end one more connection.
    pub(super) fn rejected(self) -> Response<SidecarBody> {
        let error = "the service ended this request's connection with an error and did not process it";
        self.reply(StatusCode::BAD_GATEWAY, "13", "upstream-failed", error)
    }

    /// Returns the reply to a request by HTTP/1.1 that the service answered in HTTP/2.
    pub(super) fn speaks_http2(self) -> Response<SidecarBody> {
        let error = "the service speaks HTTP/2 only and has not read the request; set pod.protocol to http2";
        self.reply(StatusCode::BAD_GATEWAY, "13", "upstream-failed", error)
    }

    fn refused(self, reason: &'static str, error: &'static str) -> Response<SidecarBody> {
        let mut reply = self.reply(StatusCode::MISDIRECTED_REQUEST, "9", reason, error);
        reply.headers_mut().insert(SEGUE_MISDIRECTED, HeaderValue::from_static("1"));
        reply
    }

    fn reply(
        self,
        status: StatusCode,
        grpc_status: &'static str,
        reason: &'static str,
        error: &'static str,
    ) -> Response<SidecarBody> {
        let response = Cause { status, grpc_status, reason, error }.response(self.partition, self.grpc);
        response.map(|body| Full::new(body).map_err(|never| match never {}).boxed_unsync())
    }
}
