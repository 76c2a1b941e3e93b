//! Decides which headers go on to the next hop, and which ones the router adds.
//!
//! Pure.
//!
//! # Invariants
//!
//! * Headers that are about one connection never cross the router, in either direction.
//! * The `segue-*` headers that a pod reads were written by the router, never by a client.

use std::borrow::Cow;

use http::header::{CONNECTION, HOST, HeaderName, HeaderValue, TE, TRANSFER_ENCODING, UPGRADE, VIA};
use http::{HeaderMap, StatusCode, Version};
use segue_protocol::ids::{Epoch, PartitionId};

use super::header_names::{
    SEGUE_KEYSPACE, SEGUE_MISDIRECTED, SEGUE_REASON, SEGUE_ROUTER, X_FORWARDED_CLIENT_CERT, X_FORWARDED_FOR,
    X_FORWARDED_PROTO, ends_up_in_a_head, is_hop_by_hop, is_said_by_the_router,
};
use super::header_scan::HeaderScan;
use super::local_reply::{LocalReply, PodReason};
use super::reserved::ReservedHeaders;

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");

/// The router's name and its keyspace.
pub(crate) struct RouterIdentity {
    pub(crate) router: HeaderValue,
    pub(crate) keyspace: HeaderValue,
    /// Both as header lines of HTTP/1.1.
    pub(crate) lines: Vec<u8>,
}

impl RouterIdentity {
    pub(crate) fn new(router: HeaderValue, keyspace: HeaderValue) -> Self {
        let mut lines = Vec::new();
        for (name, value) in [(&SEGUE_ROUTER, &router), (&SEGUE_KEYSPACE, &keyspace)] {
            lines.extend([name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"].concat());
        }
        RouterIdentity { router, keyspace, lines }
    }
}

/// The facts about a client that the router states on all requests of its connection.
#[derive(Debug, Clone)]
pub(crate) struct ClientLines {
    /// The client's address, as `x-forwarded-for` has it.
    pub(crate) address: HeaderValue,
    /// The scheme that the client used: `http` or `https`.
    pub(crate) scheme: &'static str,
    /// The value of `x-forwarded-client-cert`, if the client has shown a certificate.
    pub(crate) certificate: Option<HeaderValue>,
    /// The version of nearly all of its requests.
    pub(crate) version: Version,
    /// `x-forwarded-for`, `x-forwarded-proto`, `x-forwarded-client-cert` and `via` as header lines of HTTP/1.1, for requests of
    /// this version that have none of them.
    pub(crate) lines: Box<[u8]>,
}

impl ClientLines {
    pub(crate) fn new(address: HeaderValue, secure: bool, certificate: Option<HeaderValue>, version: Version) -> Self {
        let scheme = if secure { "https" } else { "http" };
        let lines = [
            (&X_FORWARDED_FOR, Some(address.as_bytes())),
            (&X_FORWARDED_PROTO, Some(scheme.as_bytes())),
            (&X_FORWARDED_CLIENT_CERT, certificate.as_ref().map(HeaderValue::as_bytes)),
            (&VIA, Some(via(version).as_bytes())),
        ];
        let line = |(name, value): (&HeaderName, Option<&[u8]>)| match value {
            Some(value) => [name.as_str().as_bytes(), b": ", value, b"\r\n"].concat(),
            None => Vec::new(),
        };
        let lines = lines.map(line).concat().into_boxed_slice();
        ClientLines { lines, address, scheme, certificate, version }
    }
}

/// The headers that the router writes on a request, and those that it removes.
pub(crate) struct RoutingHeaders<'request> {
    pub(crate) reserved: &'request ReservedHeaders,
    pub(crate) stamp: Stamp,
    pub(crate) identity: &'request RouterIdentity,
    pub(crate) client: &'request ClientLines,
    /// What is left of a gRPC call's time; replaces the client's value.
    pub(crate) grpc_timeout: Option<&'request HeaderValue>,
}

/// What a request tells its pod of the partition that it is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stamp {
    /// The partition, and the epoch of its owner.
    Partition(PartitionId, Epoch),
    /// That it is for none.
    NoPartition,
    /// Nothing, not even the router and the keyspace: it goes to a service that is no pod.
    Nothing,
}

/// The most options that a message's `Connection` lines may have together. Each declares a header that the message could
/// have left out.
pub(crate) const MAX_OPTIONS: usize = 32;

/// The names that a message's `Connection` header declares to be about this connection only, sorted: one pass over the options,
/// and then one search for each header. A client chooses both numbers, so their product would be its to choose.
pub(crate) struct ConnectionOptions<'headers>(Vec<Cow<'headers, [u8]>>);

impl<'headers> ConnectionOptions<'headers> {
    pub(crate) fn of(headers: &'headers HeaderMap, scan: HeaderScan) -> Self {
        if !scan.connection {
            return ConnectionOptions(Vec::new());
        }
        let ordinary = |option: &[u8]| {
            [&b"close"[..], b"keep-alive", b"upgrade", b"te"].iter().any(|known| option.eq_ignore_ascii_case(known))
        };
        let mut names: Vec<Cow<'_, [u8]>> =
            all_options(headers).filter(|option| !ordinary(option)).map(in_lower_case).collect();
        names.sort_unstable();
        ConnectionOptions(names)
    }

    fn contains(&self, name: &HeaderName) -> bool {
        self.0.binary_search_by(|option| (**option).cmp(name.as_str().as_bytes())).is_ok()
    }
}

fn in_lower_case(option: &[u8]) -> Cow<'_, [u8]> {
    match option.iter().any(u8::is_ascii_uppercase) {
        true => Cow::Owned(option.to_ascii_lowercase()),
        false => Cow::Borrowed(option),
    }
}

/// Returns why a request is refused for its `Connection` lines: they have too many options, or declare a header to be about
/// this connection that the request cannot do without. Whoever removes what they name, as RFC 9110 (7.6.1) asks for, would pass
/// on another request than the one that was routed.
pub(crate) fn refuse_options(headers: &HeaderMap, reserved: &ReservedHeaders) -> Option<LocalReply> {
    if all_options(headers).nth(MAX_OPTIONS).is_some() {
        return Some(LocalReply::Malformed);
    }
    let is_needed = |option: &[u8]| HeaderName::from_bytes(option).is_ok_and(|name| reserved.is_end_to_end(&name));
    all_options(headers).any(is_needed).then_some(LocalReply::Ambiguous)
}

/// Returns the options of one `Connection` line.
pub(crate) fn options(line: &HeaderValue) -> impl Iterator<Item = &[u8]> {
    line.as_bytes().split(|byte| *byte == b',').map(<[u8]>::trim_ascii).filter(|option| !option.is_empty())
}

fn all_options(headers: &HeaderMap) -> impl Iterator<Item = &[u8]> {
    headers.get_all(CONNECTION).iter().flat_map(options)
}

/// Returns whether a client's header goes on to the pod unchanged.
pub(crate) fn passes_to_pod(
    name: &HeaderName,
    scan: HeaderScan,
    declared: &ConnectionOptions<'_>,
    reserved: &ReservedHeaders,
) -> bool {
    !(is_hop_by_hop(name)
        || *name == HOST
        || *name == X_FORWARDED_FOR
        || *name == VIA
        || is_said_by_the_router(name)
        || reserved.is_unbelieved(name)
        || (scan.underscore && reserved.is_disguised(name))
        || declared.contains(name))
}

/// Removes from a pod's response what does not go on to the client. (An HTTP/1.1 response is parsed without it.)
pub(crate) fn clean_response(headers: &mut HeaderMap) {
    let forged = headers.get_all(SEGUE_REASON).iter().any(|reason| PodReason::of(reason).is_none());
    let stays = |name: &HeaderName| !(is_hop_by_hop(name) || (forged && *name == SEGUE_REASON));
    if headers.keys().all(stays) {
        return;
    }
    let declared: Vec<HeaderName> =
        all_options(headers).filter_map(|option| HeaderName::from_bytes(option).ok()).collect();
    let others: Vec<HeaderName> = headers.keys().filter(|name| !stays(name)).cloned().collect();
    for name in declared.into_iter().chain(others) {
        headers.remove(name);
    }
}

/// Removes from the response of a service that is no pod what only a pod can say.
pub(crate) fn clean_foreign_response(headers: &mut HeaderMap) {
    headers.remove(SEGUE_MISDIRECTED);
    headers.remove(SEGUE_REASON);
}

/// Removes from trailers what may only stand in a head.
pub(crate) fn clean_trailers(trailers: &mut HeaderMap) {
    let others: Vec<HeaderName> = trailers.keys().filter(|name| ends_up_in_a_head(name)).cloned().collect();
    for name in others {
        trailers.remove(name);
    }
}

/// Removes from a response's trailers what may only stand in a head, and the mark of a refusal: clients must not see
/// it, even if it comes too late for the router to act on it.
pub(crate) fn clean_response_trailers(trailers: &mut HeaderMap) {
    clean_trailers(trailers);
    trailers.remove(SEGUE_MISDIRECTED);
}

/// Returns whether a client's head names two hosts, or transfer codings that would be lost with their header on the way
/// to the pod. The server has checked that the body's length can be read in one way only. `sized`: there is no body, or its
/// length is known.
pub(crate) fn is_ambiguous(headers: &HeaderMap, sized: bool) -> bool {
    // Few requests repeat a header.
    let two_hosts = headers.len() > headers.keys_len() && headers.get_all(HOST).iter().count() > 1;
    let coded = || {
        let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
        let chunked = codings.next().is_none_or(|coding| coding.as_bytes().eq_ignore_ascii_case(b"chunked"));
        !chunked || codings.next().is_some()
    };
    two_hosts || (!sized && coded())
}

/// Returns whether the client accepts trailers, the only option of `TE` that goes on to the next hop.
pub(crate) fn takes_trailers(headers: &HeaderMap) -> bool {
    headers.get_all(TE).iter().any(|line| {
        line.as_bytes().split(|byte| *byte == b',').any(|coding| {
            let name = coding.split(|byte| *byte == b';').next().unwrap_or_default();
            name.trim_ascii().eq_ignore_ascii_case(b"trailers")
        })
    })
}

/// Returns whether an HTTP/1.1 request asks for another protocol on its connection. Upgrades to HTTP itself (`h2c`) are
/// not passed on: their requests would cross the router unseen, to any partition and with forged routing headers.
pub(crate) fn wants_upgrade(version: Version, headers: &HeaderMap) -> bool {
    version == Version::HTTP_11
        && headers.contains_key(UPGRADE)
        && all_options(headers).any(|option| option.eq_ignore_ascii_case(b"upgrade"))
        && !headers.get_all(UPGRADE).iter().flat_map(|line| line.as_bytes().split(|byte| *byte == b',')).any(is_http)
}

fn is_http(protocol: &[u8]) -> bool {
    let name = protocol.split(|byte| *byte == b'/').next().unwrap_or_default().trim_ascii();
    // Inside TLS it would be HTTP again.
    [&b"h2c"[..], b"h2", b"h3", b"http", b"tls"].iter().any(|http| name.eq_ignore_ascii_case(http))
}

/// Returns the `Via` entry for a message that came by this version.
pub(crate) fn via(version: Version) -> &'static str {
    match version {
        Version::HTTP_10 => "1.0 segue",
        Version::HTTP_2 => "2.0 segue",
        _ => "1.1 segue",
    }
}

/// Returns the values of a list header, each followed by a comma, so that another can be appended.
pub(crate) fn continued<'headers>(
    headers: &'headers HeaderMap,
    name: &HeaderName,
) -> impl Iterator<Item = &'headers [u8]> {
    headers.get_all(name).iter().flat_map(|value| [value.as_bytes(), b", "])
}

/// Returns whether a response says "not mine, nothing was done", and removes the mark that says so.
///
/// A `421` alone says so, because a pod may know no more than that. A pod whose own service responded `421` to its
/// client marks that with `segue-misdirected: 0`, as the sidecar and the layer do. gRPC has no status of its own for
/// it, so there the mark has to say it.
pub(crate) fn take_misdirected(status: StatusCode, headers: &mut HeaderMap) -> bool {
    // Few responses have the mark, and looking at their names costs less than a lookup.
    let is_marked = headers.keys().any(|name| *name == SEGUE_MISDIRECTED);
    let mark = if is_marked { headers.remove(SEGUE_MISDIRECTED) } else { None };
    let mark = mark.as_ref().map(HeaderValue::as_bytes);
    match status {
        StatusCode::MISDIRECTED_REQUEST => mark != Some(b"0"),
        _ => mark == Some(b"1") && headers.get(GRPC_STATUS).is_some_and(|value| value == "9"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::header_names::{SEGUE_EPOCH, SEGUE_PARTITION};
    use super::*;
    use crate::routing::partition_key::PartitionSource;

    fn reserved() -> ReservedHeaders {
        let partition = PartitionSource::Number { header: PartitionSource::DEFAULT_HEADER, order_by: None };
        ReservedHeaders::new(&partition, false)
    }

    fn map(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        lines.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn headers_about_the_connection_do_not_reach_the_pod() {
        let headers = map(&[("connection", "close, X-Hop"), ("x-hop", "1"), ("x-end", "1")]);
        let declared = ConnectionOptions::of(&headers, HeaderScan::of(&headers));
        let (scan, reserved) = (HeaderScan::of(&headers), reserved());
        let passes = |name| passes_to_pod(&HeaderName::from_static(name), scan, &declared, &reserved);
        for hop in [
            "connection",
            "keep-alive",
            "te",
            "transfer-encoding",
            "upgrade",
            "proxy-authorization",
            "proxy-connection",
            "x-hop",
        ] {
            assert!(!passes(hop), "{hop}");
        }
        assert!(passes("x-end"));
        assert!(passes("authorization"));
        assert!(passes("trailer"));
    }

    #[test]
    fn a_request_is_refused_that_declares_what_it_cannot_do_without() {
        let refused = |options| refuse_options(&map(&[("connection", options)]), &reserved());
        for needed in ["host", "Content-Length", "close, cookie", "authorization", "X-Partition"] {
            assert_eq!(refused(needed), Some(LocalReply::Ambiguous), "{needed}");
        }
        for other in ["close", "keep-alive, x-hop", "x-forwarded-for", "te", "a b, \"", ""] {
            assert_eq!(refused(other), None, "{other}");
        }
    }

    #[test]
    fn a_request_may_declare_32_options() {
        let with = |count: usize| {
            let line = HeaderValue::try_from(vec!["x"; count].join(",")).unwrap();
            HeaderMap::from_iter([(CONNECTION, HeaderValue::from_static("close")), (CONNECTION, line)])
        };
        assert_eq!(refuse_options(&with(31), &reserved()), None);
        assert_eq!(refuse_options(&with(32), &reserved()), Some(LocalReply::Malformed));
    }

    #[test]
    fn a_clients_own_stamps_are_dropped() {
        let headers = HeaderMap::new();
        let declared = ConnectionOptions::of(&headers, HeaderScan::of(&headers));
        let passes = |name: &HeaderName| passes_to_pod(name, HeaderScan::of(&headers), &declared, &reserved());
        for name in [SEGUE_PARTITION, SEGUE_EPOCH, SEGUE_ROUTER, SEGUE_KEYSPACE, SEGUE_MISDIRECTED, SEGUE_REASON] {
            assert!(!passes(&name), "{name}");
        }
        assert!(passes(&HeaderName::from_static("segue-other")));
    }

    #[test]
    fn an_answer_loses_what_was_about_its_connection_and_any_reason_of_a_routers() {
        let mut headers = map(&[
            ("connection", "keep-alive, x-hop"),
            ("keep-alive", "timeout=5"),
            ("x-hop", "1"),
            ("proxy-authenticate", "Basic"),
            ("proxy-status", "cache"),
            ("segue-reason", "fenced"),
            ("x-end", "1"),
        ]);
        clean_response(&mut headers);
        assert_eq!(headers, map(&[("proxy-status", "cache"), ("x-end", "1")]));
    }

    #[test]
    fn trailers_are_the_only_coding_that_te_passes_on() {
        assert!(takes_trailers(&map(&[("te", "gzip;q=0.5, Trailers")])));
        assert!(!takes_trailers(&map(&[("te", "gzip")])));
    }

    #[test]
    fn an_upgrade_needs_both_headers() {
        let both = map(&[("connection", "keep-alive, Upgrade"), ("upgrade", "websocket")]);
        assert!(wants_upgrade(Version::HTTP_11, &both));
        assert!(!wants_upgrade(Version::HTTP_10, &both));
        assert!(!wants_upgrade(Version::HTTP_11, &map(&[("upgrade", "h2c")])));
    }

    #[test]
    fn an_upgrade_to_http_is_not_passed_on() {
        for protocol in ["h2c", "H2C", "websocket, h2c", "HTTP/2.0", "TLS/1.3", "h2"] {
            let mut headers = map(&[("connection", "upgrade")]);
            headers.insert(UPGRADE, HeaderValue::from_static(protocol));
            assert!(!wants_upgrade(Version::HTTP_11, &headers), "{protocol}");
        }
    }

    #[test]
    fn trailers_lose_what_belongs_into_a_head() {
        let mut trailers = map(&[
            ("x-sum", "7"),
            ("grpc-status", "0"),
            ("segue-misdirected", "1"),
            ("segue-epoch", "9"),
            ("segue-reason", "fenced"),
            ("content-length", "5"),
            ("transfer-encoding", "chunked"),
            ("host", "h"),
            ("x-forwarded-for", "1.2.3.4"),
            ("connection", "close"),
        ]);
        clean_trailers(&mut trailers);
        assert_eq!(trailers, map(&[("x-sum", "7"), ("grpc-status", "0"), ("segue-misdirected", "1")]));
    }

    #[test]
    fn a_head_that_says_two_things_is_ambiguous() {
        assert!(is_ambiguous(&map(&[("host", "a"), ("host", "b")]), true));
        assert!(!is_ambiguous(&map(&[("host", "a"), ("x-a", "a"), ("x-a", "b")]), true));
        assert!(!is_ambiguous(&map(&[("transfer-encoding", "Chunked")]), false));
        for codings in [&["gzip, chunked"][..], &["chunked", "chunked"], &["identity", "chunked"]] {
            let mut headers = HeaderMap::new();
            for coding in codings {
                headers.append(TRANSFER_ENCODING, HeaderValue::from_static(coding));
            }
            assert!(is_ambiguous(&headers, false), "{codings:?}");
        }
    }

    #[test]
    fn a_misdirected_grpc_answer_needs_status_and_metadata() {
        let says = |lines: &[_]| take_misdirected(StatusCode::OK, &mut map(lines));
        assert!(says(&[("grpc-status", "9"), ("segue-misdirected", "1")]));
        assert!(!says(&[("grpc-status", "9")]));
        assert!(!says(&[("grpc-status", "0"), ("segue-misdirected", "1")]));
    }

    #[test]
    fn a_421_is_a_refusal_unless_it_is_marked_as_the_services_own() {
        let says = |lines: &[_]| take_misdirected(StatusCode::MISDIRECTED_REQUEST, &mut map(lines));
        assert!(says(&[]), "pods that know the status alone");
        assert!(says(&[("segue-misdirected", "1")]));
        assert!(!says(&[("segue-misdirected", "0")]));
    }

    #[test]
    fn the_mark_does_not_go_on() {
        let mut headers = map(&[("segue-misdirected", "0"), ("x-end", "1")]);
        assert!(!take_misdirected(StatusCode::OK, &mut headers));
        assert_eq!(headers, map(&[("x-end", "1")]));
    }
}
