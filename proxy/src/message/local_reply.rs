//! The router's own responses: the only place where an error becomes a status.
//!
//! Not here: when they are sent.
//!
//! # Invariants
//!
//! * Each has its `segue-reason`, and no other response has one, except a [`PodReason`].
//! * A reply to a request that a pod may have acted on never looks safe to retry.

use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{HeaderMap, Response, StatusCode};
use segue_coordination::local_reply::Cause;
use segue_protocol::handoff::router::HoldCause;
use segue_protocol::ids::PartitionId;

use crate::routing::keyspace_choice::NoKeyspace;
use crate::routing::partition_key::LocationError;
use crate::routing::table::AdmissionError;

/// A reason that a response of a pod's layer or sidecar may pass on to clients. Any other one is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodReason {
    /// The pod's lease ended in the midst of the request.
    LeaseLost,
    /// The service broke the exchange after the request may have reached it.
    UpstreamFailed,
    /// The request's head is larger than the service takes.
    Limit,
}

impl PodReason {
    /// All of them, in the order of their numbers.
    pub const ALL: [PodReason; 3] = [PodReason::LeaseLost, PodReason::UpstreamFailed, PodReason::Limit];

    pub(crate) fn of(reason: &HeaderValue) -> Option<Self> {
        Self::ALL.into_iter().find(|known| reason.as_bytes() == known.as_str().as_bytes())
    }

    /// Returns the value of `segue-reason`.
    pub fn as_str(self) -> &'static str {
        match self {
            PodReason::LeaseLost => "lease-lost",
            PodReason::UpstreamFailed => "upstream-failed",
            PodReason::Limit => "limit",
        }
    }

    /// Returns the status of the response by HTTP, which is also that of the metrics by gRPC.
    pub fn status(self) -> StatusCode {
        match self {
            PodReason::LeaseLost => StatusCode::INTERNAL_SERVER_ERROR,
            PodReason::UpstreamFailed => StatusCode::BAD_GATEWAY,
            PodReason::Limit => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
        }
    }
}

/// Why the router responds itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LocalReply {
    /// The request names no partition.
    NoPartition,
    /// The request names a partition that does not exist, or two.
    BadPartition,
    /// The request's head contradicts itself.
    Ambiguous,
    /// The bytes that arrived are no request by the rules of HTTP.
    Malformed,
    /// The pod broke the exchange after the request may have reached it.
    UpstreamFailed,
    /// The exchange was severed at the end of its partition's drain.
    Severed,
    /// The pod did not begin its response in time.
    UpstreamTimeout,
    /// The deadline that a gRPC call's client gave has passed.
    Deadline,
    /// The request was held for the longest time allowed.
    StashTimeout,
    /// The stash is full.
    StashFull,
    /// No pod owns the partition.
    NoOwner,
    /// The store is lost, and with it the right to route.
    Fenced,
    /// The router is shutting down.
    Shutdown,
    /// The pod, or the router itself, is at its limit.
    Overload,
    /// The request's head is too large.
    HeadTooLarge,
    /// The request's body is too large.
    BodyTooLarge,
    /// The request, or its head alone, took too long to arrive.
    TooSlow,
    /// The request is a TRACE, which would show its client what the router has added to it.
    Trace,
    /// The request is an OPTIONS that may be forwarded no further.
    LastHop,
    /// The key, or what else requests are limited by, has too many requests.
    Rate,
    /// The service that a route leads to, which is no pod, takes no request.
    NoUpstream,
    /// No keyspace matches the request, so it names no partition.
    NoKeyspace,
    /// The request's body is not framed as its head says.
    MalformedBody,
    /// The pod answered HTTP/1.1 in HTTP/2, so it has read no request.
    PodSpeaksHttp2,
    /// The key is in the body, of which more would have to be there than is read ahead.
    KeyTooFar,
    /// The key is in the body, which is compressed.
    KeyCompressed,
    /// The key is in the body, which is not what its type says.
    KeyUnreadable,
    /// The key is in the body, where parsers find different ones.
    KeyUnclear,
}

impl LocalReply {
    /// All replies that are counted apart, in the order in which [`index`](Self::index) numbers them.
    pub const ALL: [LocalReply; 21] = [
        LocalReply::NoPartition,
        LocalReply::BadPartition,
        LocalReply::Ambiguous,
        LocalReply::Malformed,
        LocalReply::UpstreamFailed,
        LocalReply::Severed,
        LocalReply::UpstreamTimeout,
        LocalReply::Deadline,
        LocalReply::StashTimeout,
        LocalReply::StashFull,
        LocalReply::NoOwner,
        LocalReply::Fenced,
        LocalReply::Shutdown,
        LocalReply::Overload,
        LocalReply::HeadTooLarge,
        LocalReply::BodyTooLarge,
        LocalReply::TooSlow,
        LocalReply::Trace,
        LocalReply::LastHop,
        LocalReply::Rate,
        LocalReply::NoUpstream,
    ];

    /// Returns the index in [`ALL`](Self::ALL).
    pub fn index(self) -> usize {
        match self {
            // One reason has one series.
            LocalReply::NoKeyspace => LocalReply::NoPartition as usize,
            LocalReply::KeyTooFar | LocalReply::KeyCompressed | LocalReply::KeyUnreadable | LocalReply::KeyUnclear => {
                LocalReply::BadPartition as usize
            }
            LocalReply::MalformedBody => LocalReply::Malformed as usize,
            LocalReply::PodSpeaksHttp2 => LocalReply::UpstreamFailed as usize,
            own => own as usize,
        }
    }

    /// Returns the status of the response.
    pub fn status(self) -> StatusCode {
        match self {
            LocalReply::NoPartition
            | LocalReply::NoKeyspace
            | LocalReply::BadPartition
            | LocalReply::KeyTooFar
            | LocalReply::KeyCompressed
            | LocalReply::KeyUnreadable
            | LocalReply::KeyUnclear
            | LocalReply::Ambiguous
            | LocalReply::Malformed
            | LocalReply::MalformedBody => StatusCode::BAD_REQUEST,
            LocalReply::UpstreamFailed | LocalReply::PodSpeaksHttp2 | LocalReply::Severed => StatusCode::BAD_GATEWAY,
            LocalReply::UpstreamTimeout | LocalReply::Deadline => StatusCode::GATEWAY_TIMEOUT,
            LocalReply::StashTimeout
            | LocalReply::StashFull
            | LocalReply::NoOwner
            | LocalReply::Fenced
            | LocalReply::Shutdown
            | LocalReply::Overload
            | LocalReply::NoUpstream => StatusCode::SERVICE_UNAVAILABLE,
            LocalReply::HeadTooLarge => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            LocalReply::BodyTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            LocalReply::TooSlow => StatusCode::REQUEST_TIMEOUT,
            LocalReply::Trace => StatusCode::METHOD_NOT_ALLOWED,
            LocalReply::LastHop => StatusCode::OK,
            LocalReply::Rate => StatusCode::TOO_MANY_REQUESTS,
        }
    }

    /// Returns the value of `segue-reason`.
    pub fn reason(self) -> &'static str {
        match self {
            LocalReply::NoPartition | LocalReply::NoKeyspace => "no-partition",
            LocalReply::BadPartition
            | LocalReply::KeyTooFar
            | LocalReply::KeyCompressed
            | LocalReply::KeyUnreadable
            | LocalReply::KeyUnclear => "bad-partition",
            LocalReply::Ambiguous => "ambiguous",
            LocalReply::Malformed | LocalReply::MalformedBody => "malformed",
            LocalReply::UpstreamFailed | LocalReply::PodSpeaksHttp2 => "upstream-failed",
            LocalReply::Severed => "severed",
            LocalReply::UpstreamTimeout => "upstream-timeout",
            LocalReply::Deadline => "deadline",
            LocalReply::StashTimeout => "stash-timeout",
            LocalReply::StashFull => "stash-full",
            LocalReply::NoOwner => "no-owner",
            LocalReply::Fenced => "fenced",
            LocalReply::Shutdown => "shutdown",
            LocalReply::Overload => "overload",
            LocalReply::HeadTooLarge | LocalReply::BodyTooLarge | LocalReply::TooSlow => "limit",
            LocalReply::Trace => "trace",
            LocalReply::LastHop => "max-forwards",
            LocalReply::Rate => "rate",
            LocalReply::NoUpstream => "no-upstream",
        }
    }

    fn error(self) -> &'static str {
        match self {
            LocalReply::NoPartition => "the request names no partition",
            LocalReply::NoKeyspace => "no keyspace matches this host and path",
            LocalReply::BadPartition => {
                "the request names a partition that does not exist, or two, or a key that pods may read differently"
            }
            LocalReply::KeyTooFar => {
                "the key is in the body, and this body or its first gRPC message is longer than the 64 KiB that are read ahead"
            }
            LocalReply::KeyCompressed => {
                "the key is in the body, and this body or its first gRPC message is compressed"
            }
            LocalReply::KeyUnreadable => {
                "the key is in the body, and this one is no JSON object in UTF-8, or begins with no gRPC message of protobuf"
            }
            LocalReply::KeyUnclear => {
                "the key is in the body, where its field occurs twice or under a similar name, or is neither text nor a whole \
                 number of 64 bits"
            }
            LocalReply::Ambiguous => {
                "the request names no host or two, a target that is none, or a transfer coding other than chunked, or has a \
                 quote in a header's name, or its Connection names a header that it needs"
            }
            LocalReply::Malformed => {
                "this is no valid HTTP request; a path or query may need percent-encoding, as for '<', '>' or a space"
            }
            LocalReply::UpstreamFailed => "the pod broke the exchange; the request may have taken effect",
            LocalReply::PodSpeaksHttp2 => {
                "the pod speaks HTTP/2 only and has not read the request; set router.upstream.protocol to http2"
            }
            LocalReply::Severed => "the partition moved before this request had ended; it may have taken effect",
            LocalReply::UpstreamTimeout => "the pod did not respond in time; the request may have taken effect",
            LocalReply::Deadline => "the deadline that the client gave with grpc-timeout has passed",
            LocalReply::StashTimeout => {
                "the partition is being handed over and the request was held for as long as allowed"
            }
            LocalReply::StashFull => "too many requests wait for this partition",
            LocalReply::NoOwner => "no pod owns the partition at the moment",
            LocalReply::Fenced => {
                "the router may not route: it has not confirmed its lease, or the keyspace has another mapping"
            }
            LocalReply::Shutdown => "the router is shutting down",
            LocalReply::Overload => "too many requests in flight; not forwarded",
            LocalReply::HeadTooLarge => "the request's head is too large",
            LocalReply::BodyTooLarge => "the request's body is too large; a pod may have received a part of it",
            LocalReply::TooSlow => "the request took too long to arrive",
            LocalReply::Trace => "a TRACE would show its client the headers that the router adds",
            LocalReply::LastHop => "this router is the last that the request may reach, because of its Max-Forwards",
            LocalReply::Rate => "there are too many requests of this key; not forwarded",
            LocalReply::NoUpstream => {
                "the service that this route leads to cannot be reached or takes no requests; not forwarded"
            }
            LocalReply::MalformedBody => {
                "the request's body is not framed as its head says; a pod may have received a part of it"
            }
        }
    }

    /// Returns the gRPC status that matches. A request that may have taken effect gets `INTERNAL`, because clients
    /// retry after `UNAVAILABLE`.
    fn grpc_status(self) -> &'static str {
        match self {
            LocalReply::NoPartition
            | LocalReply::NoKeyspace
            | LocalReply::BadPartition
            | LocalReply::KeyTooFar
            | LocalReply::KeyCompressed
            | LocalReply::KeyUnreadable
            | LocalReply::KeyUnclear
            | LocalReply::Ambiguous
            | LocalReply::Malformed
            | LocalReply::MalformedBody => "3",
            LocalReply::Trace | LocalReply::LastHop => "12",
            // A retry by the client would end in the same way.
            LocalReply::UpstreamFailed | LocalReply::PodSpeaksHttp2 | LocalReply::Severed => "13",
            LocalReply::UpstreamTimeout | LocalReply::Deadline | LocalReply::TooSlow => "4",
            LocalReply::StashTimeout
            | LocalReply::StashFull
            | LocalReply::NoOwner
            | LocalReply::Fenced
            | LocalReply::Shutdown
            | LocalReply::Overload
            | LocalReply::NoUpstream => "14",
            LocalReply::HeadTooLarge | LocalReply::BodyTooLarge | LocalReply::Rate => "8",
        }
    }

    /// Returns the response to a request for `partition`, if it got that far. `grpc`: the request was gRPC.
    pub(crate) fn response(self, partition: Option<PartitionId>, grpc: bool) -> Response<Bytes> {
        let (status, grpc_status) = (self.status(), self.grpc_status());
        let cause = Cause { status, grpc_status, reason: self.reason(), error: self.error() };
        let mut response = cause.response(partition, grpc);
        if matches!(status, StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS) {
            // A handoff takes milliseconds, and no rate is below one in a second; that is the smallest value that the header
            // can hold.
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        if matches!(self, LocalReply::Trace | LocalReply::LastHop) {
            response.headers_mut().insert(ALLOW, HeaderValue::from_static(METHODS));
        }
        response
    }
}

/// The registered methods that the router forwards (RFC 9110, 9.3, and RFC 5789). It forwards unregistered ones too.
const METHODS: &str = "GET, HEAD, POST, PUT, DELETE, OPTIONS, PATCH";

impl From<AdmissionError> for LocalReply {
    fn from(refusal: AdmissionError) -> Self {
        match refusal {
            AdmissionError::Full => LocalReply::StashFull,
            AdmissionError::Waited(HoldCause::Handoff) => LocalReply::StashTimeout,
            AdmissionError::Waited(HoldCause::NoOwner) => LocalReply::NoOwner,
            AdmissionError::Waited(HoldCause::Fenced) => LocalReply::Fenced,
            AdmissionError::Shutdown => LocalReply::Shutdown,
        }
    }
}

impl From<LocationError> for LocalReply {
    fn from(unlocated: LocationError) -> Self {
        match unlocated {
            LocationError::Missing => LocalReply::NoPartition,
            LocationError::Bad => LocalReply::BadPartition,
            LocationError::TooFar => LocalReply::KeyTooFar,
            LocationError::Compressed => LocalReply::KeyCompressed,
            LocationError::Unreadable => LocalReply::KeyUnreadable,
            LocationError::Unclear => LocalReply::KeyUnclear,
        }
    }
}

impl From<NoKeyspace> for LocalReply {
    fn from(why: NoKeyspace) -> Self {
        match why {
            NoKeyspace::Unmatched => LocalReply::NoKeyspace,
            NoKeyspace::Ambiguous => LocalReply::BadPartition,
        }
    }
}

/// Returns whether a message is gRPC.
pub(crate) fn is_grpc(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|kind| segue_protocol::headers::is_grpc(kind.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::request_body::KEPT_BYTES;

    const P1: PartitionId = PartitionId::new(1);
    const P7: PartitionId = PartitionId::new(7);

    #[test]
    fn an_answer_is_json_with_its_reason_in_header_and_body() {
        let response = LocalReply::StashFull.response(Some(P7), false);
        assert_eq!(response.status(), 503);
        assert_eq!(response.headers()["segue-reason"], "stash-full");
        assert_eq!(response.headers()["retry-after"], "1");
        let body: serde_json::Value = serde_json::from_slice(response.body()).unwrap();
        assert_eq!(body["reason"], "stash-full");
        assert_eq!(body["partition"], 7);
        assert_eq!(response.headers()["content-length"], response.body().len().to_string().as_str());
    }

    #[test]
    fn every_answer_has_a_valid_body_and_its_own_index() {
        for (index, own) in LocalReply::ALL.into_iter().enumerate() {
            assert_eq!(own.index(), index);
            let body: serde_json::Value = serde_json::from_slice(own.response(None, false).body()).unwrap();
            assert_eq!(body["reason"], own.reason());
            assert!(body["partition"].is_null());
        }
    }

    #[test]
    fn a_request_for_no_keyspace_counts_as_one_without_a_partition() {
        let own = LocalReply::NoKeyspace;
        let body: serde_json::Value = serde_json::from_slice(own.response(None, false).body()).unwrap();
        assert_eq!((own.status().as_u16(), &body["reason"]), (400, &"no-partition".into()));
        assert_eq!(body["error"], "no keyspace matches this host and path");
        assert_eq!(own.index(), LocalReply::NoPartition.index());
    }

    #[test]
    fn a_key_that_cannot_be_read_counts_as_a_bad_partition_and_says_why() {
        let replies = [
            (LocationError::TooFar, "64 KiB"),
            (LocationError::Compressed, "compressed"),
            (LocationError::Unreadable, "no JSON object"),
            (LocationError::Unclear, "twice"),
        ];
        for (why, word) in replies {
            let own = LocalReply::from(why);
            let body: serde_json::Value = serde_json::from_slice(own.response(None, false).body()).unwrap();
            assert_eq!((own.status().as_u16(), &body["reason"]), (400, &"bad-partition".into()));
            assert!(body["error"].as_str().is_some_and(|error| error.contains(word)), "{body}");
            assert_eq!(own.index(), LocalReply::BadPartition.index());
            assert_eq!(own.response(None, true).headers()["grpc-status"], "3");
        }
        assert_eq!(KEPT_BYTES, 64 << 10, "the bound in the text");
    }

    #[test]
    fn grpc_gets_trailers_only_and_what_may_have_taken_effect_is_not_unavailable() {
        for own in LocalReply::ALL {
            let response = own.response(Some(P1), true);
            assert_eq!(response.status(), 200);
            assert!(response.body().is_empty());
            assert_eq!(response.headers()["segue-reason"], own.reason());
            let unavailable = response.headers()["grpc-status"] == "14";
            assert_eq!(unavailable, own.status() == StatusCode::SERVICE_UNAVAILABLE, "{own:?}");
        }
    }

    #[test]
    fn grpc_is_told_by_its_content_type() {
        let grpc =
            |kind: &'static str| is_grpc(&[(CONTENT_TYPE, HeaderValue::from_static(kind))].into_iter().collect());
        assert!(grpc("application/grpc"));
        assert!(grpc("application/grpc+proto"));
        assert!(!grpc("application/grpc-web+proto"));
        assert!(!grpc("application/json"));
        assert!(!is_grpc(&HeaderMap::new()));
    }
}
