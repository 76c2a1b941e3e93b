//! Rewrites the heads of requests and responses that are forwarded: the target, and the headers of a single connection
//! (RFC 9110, 7.6.1).
//!
//! Pure.

use http::header::{
    CONNECTION, CONTENT_LENGTH, COOKIE, HOST, HeaderMap, HeaderName, HeaderValue, TE, TRANSFER_ENCODING, UPGRADE,
};
use http::uri::{Authority, Scheme};
use http::{Request, Uri, Version};
use hyper::body::Incoming;

use super::service_address::ServiceAddress;
use crate::message::header_names::{X_FORWARDED_FOR, is_hop_by_hop};

/// The service that a request is for.
#[derive(Debug, Clone, Copy)]
pub(super) struct ServiceTarget<'a> {
    pub(super) address: &'a ServiceAddress,
    pub(super) is_secure: bool,
}

/// Rewrites a router's request for the service, `by_http2` or by HTTP/1.1. With `upgrade` it keeps what asks for another
/// protocol.
pub(super) fn prepare(request: &mut Request<Incoming>, target: ServiceTarget<'_>, by_http2: bool, upgrade: bool) {
    let path = request.uri().path_and_query().cloned();
    let authority = request.uri().authority().cloned().or_else(|| {
        let host = request.headers().get(HOST).filter(|_| by_http2)?;
        Authority::try_from(host.as_bytes()).ok()
    });
    let mut parts = http::uri::Parts::default();
    parts.scheme = Some(if by_http2 && target.is_secure { Scheme::HTTPS } else { Scheme::HTTP });
    // By HTTP/1.1 this is the address to connect to, and the host is a header.
    parts.authority = authority.clone().filter(|_| by_http2).or_else(|| Some(target.address.authority()));
    parts.path_and_query = Some(path.unwrap_or_else(|| http::uri::PathAndQuery::from_static("/")));
    if let Ok(uri) = Uri::from_parts(parts) {
        *request.uri_mut() = uri;
    }
    *request.version_mut() = if by_http2 { Version::HTTP_2 } else { Version::HTTP_11 };
    let headers = request.headers_mut();
    if !by_http2 {
        join_cookies(headers);
    }
    match authority.and_then(|authority| HeaderValue::try_from(authority.as_str()).ok()) {
        Some(_) if by_http2 => drop(headers.remove(HOST)),
        Some(host) => drop(headers.entry(HOST).or_insert(host)),
        None => {}
    }
    strip_hop_by_hop(headers, upgrade);
}

/// Joins the pieces in which HTTP/2 may carry cookies (RFC 9113, 8.2.3).
fn join_cookies(headers: &mut HeaderMap) {
    let lines: Vec<&[u8]> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if lines.len() > 1
        && let Ok(joined) = HeaderValue::from_bytes(&lines.join(&b"; "[..]))
    {
        headers.insert(COOKIE, joined);
    }
}

/// How the body of a service's response is delimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ServiceFraming {
    Certain,
    /// It has a length beside its coding. The coding counts, but what follows on the connection cannot be trusted.
    Contradictory,
    /// It has a coding that its reader would not be told of, since the header that names it does not go on.
    Coded,
}

impl ServiceFraming {
    pub(super) fn is_certain(self) -> bool {
        self == ServiceFraming::Certain
    }

    pub(super) fn is_readable(self) -> bool {
        self != ServiceFraming::Coded
    }
}

/// Returns how a response's body is delimited, and removes a length that does not count: whoever forwards it would cut
/// the body to it. hyper reads such responses; the router, which reads those of pods without a sidecar, has the same rules.
pub(super) fn settle_framing(version: Version, headers: &mut HeaderMap) -> ServiceFraming {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    let Some(coding) = codings.next() else { return ServiceFraming::Certain };
    // HTTP/1.0 has no codings, so the meaning of one there is unknown.
    let is_chunked = coding.as_bytes().eq_ignore_ascii_case(b"chunked") && version != Version::HTTP_10;
    if !is_chunked || codings.next().is_some() {
        return ServiceFraming::Coded;
    }
    match headers.remove(CONTENT_LENGTH) {
        Some(_) => ServiceFraming::Contradictory,
        None => ServiceFraming::Certain,
    }
}

/// Removes the headers of a single connection. With `upgrade` it keeps those that agree on another protocol.
pub(super) fn strip_hop_by_hop(headers: &mut HeaderMap, upgrade: bool) {
    let to = headers.get(UPGRADE).cloned().filter(|_| upgrade);
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    // The router has left the one thing that `te` may say to the service.
    let goes = |name: &&HeaderName| is_hop_by_hop(name) && !(**name == TE && headers[TE] == "trailers");
    let others: Vec<HeaderName> = headers.keys().filter(goes).cloned().collect();
    for name in named.into_iter().chain(others) {
        headers.remove(name);
    }
    if let Some(to) = to {
        headers.insert(UPGRADE, to);
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    }
}

/// Returns the client of a router's request, as the router says who it is. A router names the peer of its connection last, and
/// only one that trusts a proxy in front of it keeps what that one says of its own peer, just before.
pub(super) fn client(headers: &HeaderMap) -> &str {
    let lines = headers.get_all(X_FORWARDED_FOR).iter().filter_map(|line| line.to_str().ok());
    let mut last_two = ["", ""];
    for address in lines.flat_map(|line| line.split(',')) {
        last_two = [last_two[1], address.trim()];
    }
    if last_two[0].is_empty() { last_two[1] } else { last_two[0] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_coding_counts_and_not_the_length_beside_it() {
        let of = |version, lines: &[(HeaderName, &'static str)]| {
            let lines = lines.iter().cloned().map(|(name, value)| (name, HeaderValue::from_static(value)));
            let mut headers = lines.collect();
            (settle_framing(version, &mut headers), headers.contains_key(CONTENT_LENGTH))
        };
        let coding = |coding| (TRANSFER_ENCODING, coding);
        let length = (CONTENT_LENGTH, "5");
        assert_eq!(of(Version::HTTP_11, std::slice::from_ref(&length)), (ServiceFraming::Certain, true));
        assert_eq!(of(Version::HTTP_11, &[coding("Chunked")]), (ServiceFraming::Certain, false));
        assert_eq!(of(Version::HTTP_11, &[length, coding("chunked")]), (ServiceFraming::Contradictory, false));
        for others in [&[coding("gzip, chunked")][..], &[coding("identity")], &[coding("chunked"), coding("chunked")]] {
            assert_eq!(of(Version::HTTP_11, others).0, ServiceFraming::Coded, "{others:?}");
        }
        assert_eq!(of(Version::HTTP_10, &[coding("chunked")]).0, ServiceFraming::Coded);
    }

    #[test]
    fn the_client_is_the_peer_of_the_router_or_of_the_proxy_that_it_trusts() {
        let of = |lines: &[&'static str]| {
            let lines = lines.iter().map(|line| (X_FORWARDED_FOR, HeaderValue::from_static(line)));
            client(&lines.collect()).to_owned()
        };
        assert_eq!(of(&["203.0.113.7"]), "203.0.113.7");
        assert_eq!(of(&["198.51.100.1, 203.0.113.7, 10.0.0.1"]), "203.0.113.7");
        assert_eq!(of(&["198.51.100.1", "203.0.113.7", "10.0.0.1"]), "203.0.113.7");
        assert_eq!(of(&[]), "");
    }
}
