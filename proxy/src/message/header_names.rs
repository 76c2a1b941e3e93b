//! The names of headers that the router reads or writes, and what kind of header a name is.
//!
//! Pure, and the only list of them. What a message does with such a header is decided in [`headers`](super::headers) and
//! [`reserved`](super::reserved).

use http::header::{
    AUTHORIZATION, CACHE_CONTROL, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, HOST,
    HeaderName, MAX_FORWARDS, SET_COOKIE, TE, TRAILER, TRANSFER_ENCODING, UPGRADE, VIA,
};
use segue_protocol::headers;
pub(crate) use segue_protocol::headers::NO_PARTITION;

pub(crate) const SEGUE_PARTITION: HeaderName = HeaderName::from_static(headers::SEGUE_PARTITION);
pub(crate) const SEGUE_EPOCH: HeaderName = HeaderName::from_static(headers::SEGUE_EPOCH);
pub(crate) const SEGUE_ROUTER: HeaderName = HeaderName::from_static(headers::SEGUE_ROUTER);
pub(crate) const SEGUE_KEYSPACE: HeaderName = HeaderName::from_static(headers::SEGUE_KEYSPACE);
pub(crate) const SEGUE_MISDIRECTED: HeaderName = HeaderName::from_static(headers::SEGUE_MISDIRECTED);
pub(crate) const SEGUE_REASON: HeaderName = HeaderName::from_static(headers::SEGUE_REASON);
pub(crate) const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
pub(crate) const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
/// The certificate that a client has shown, in the form of Envoy.
pub(crate) const X_FORWARDED_CLIENT_CERT: HeaderName = HeaderName::from_static("x-forwarded-client-cert");
/// How each hop handled a response, for its client (RFC 9209).
const PROXY_STATUS: HeaderName = HeaderName::from_static("proxy-status");
pub(crate) const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");

/// Returns whether the header is about one connection, whatever `Connection` declares (RFC 9110, 7.6.1).
pub(crate) fn is_hop_by_hop(name: &HeaderName) -> bool {
    *name == CONNECTION
        || *name == TRANSFER_ENCODING
        || *name == UPGRADE
        || *name == TE
        || *name == KEEP_ALIVE
        || (name.as_str().starts_with("proxy-") && *name != PROXY_STATUS)
}

/// Returns whether only a router sends this header to a pod.
pub(crate) fn is_said_by_the_router(name: &HeaderName) -> bool {
    is_routing_header(name) || *name == SEGUE_MISDIRECTED || *name == SEGUE_REASON
}

/// Returns whether a router stamps this header on the requests that it forwards.
fn is_routing_header(name: &HeaderName) -> bool {
    name.as_str().starts_with("segue-")
        && (*name == SEGUE_PARTITION || *name == SEGUE_EPOCH || *name == SEGUE_ROUTER || *name == SEGUE_KEYSPACE)
}

/// Returns whether the header frames, routes, authenticates or describes its message, so that no sender may put it into
/// trailers (RFC 9110, 6.5.1). The list is that of hyper's writer.
pub(crate) fn is_for_heads_alone(name: &HeaderName) -> bool {
    [
        AUTHORIZATION,
        CACHE_CONTROL,
        CONTENT_ENCODING,
        CONTENT_LENGTH,
        CONTENT_RANGE,
        CONTENT_TYPE,
        HOST,
        MAX_FORWARDS,
        SET_COOKIE,
        TE,
        TRAILER,
        TRANSFER_ENCODING,
    ]
    .contains(name)
}

/// Returns whether the router takes the header out of trailers: it is for heads alone, concerns one connection, or only
/// a router or proxy adds it. A receiver may merge other trailers into the head.
pub(crate) fn ends_up_in_a_head(name: &HeaderName) -> bool {
    is_hop_by_hop(name)
        || is_routing_header(name)
        || *name == SEGUE_REASON
        || *name == X_FORWARDED_FOR
        || *name == X_FORWARDED_PROTO
        || *name == VIA
        || is_for_heads_alone(name)
}

/// Returns whether a name contains a quote. By HTTP/2 `http` takes that for a part of a token, and RFC 9110 (5.6.2) does
/// not: pods refuse the whole head, and close the connection.
pub(crate) fn has_quote(name: &HeaderName) -> bool {
    name.as_str().contains('"')
}
