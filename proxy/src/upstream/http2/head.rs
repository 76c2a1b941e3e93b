//! The head of an HTTP/2 request.
//!
//! Pure.
//!
//! # Invariants
//!
//! * A head to which a pod might respond by ending the connection is refused here.

use http::header::{CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue, TE, VIA};
use http::request::Parts;
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Method, Request, Uri, Version};

use crate::message::grpc_timeout::GRPC_TIMEOUT;
use crate::message::header_names::{
    NO_PARTITION, SEGUE_EPOCH, SEGUE_KEYSPACE, SEGUE_PARTITION, SEGUE_ROUTER, X_FORWARDED_CLIENT_CERT, X_FORWARDED_FOR,
    X_FORWARDED_PROTO,
};
use crate::message::header_scan::HeaderScan;
use crate::message::headers::{
    ConnectionOptions, RoutingHeaders, Stamp, continued, passes_to_pod, takes_trailers, via,
};
use crate::message::local_reply::LocalReply;

/// Bytes that HTTP/2 counts for each header beside its text (RFC 9113, 6.5.2).
const BYTES_PER_HEADER: usize = 32;

/// Returns the head for the pod. `length` is that of the body, where it is known. Fails if the head is larger than
/// `most` as HTTP/2 counts.
pub(super) fn request(
    head: &Parts,
    scan: HeaderScan,
    routing: &RoutingHeaders<'_>,
    length: Option<u64>,
    secure: bool,
    most: usize,
) -> Result<Request<()>, LocalReply> {
    let mut request = Request::new(());
    *request.method_mut() = head.method.clone();
    *request.version_mut() = Version::HTTP_2;
    *request.uri_mut() = target(head, secure).ok_or(LocalReply::Ambiguous)?;
    *request.headers_mut() = pod_headers(head, scan, routing);
    if let Some(length) = length {
        let says_none = [Method::GET, Method::HEAD, Method::DELETE].contains(&head.method);
        if length != 0 || !says_none {
            request.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(length));
        }
    }
    if head_size(&request) > most {
        return Err(LocalReply::HeadTooLarge);
    }
    Ok(request)
}

/// Returns the size of a request's head as HTTP/2 counts it.
pub(crate) fn head_size<B>(request: &Request<B>) -> usize {
    let uri = request.uri();
    let target = uri.scheme_str().map_or(0, str::len)
        + uri.authority().map_or(0, |authority| authority.as_str().len())
        + uri.path_and_query().map_or(0, |path| path.as_str().len());
    let pseudo = ":method:scheme:authority:path".len() + 4 * BYTES_PER_HEADER + request.method().as_str().len();
    pseudo + target + list_size(request.headers())
}

/// Returns the size of headers as HTTP/2 counts it.
pub(super) fn list_size(headers: &HeaderMap) -> usize {
    headers.iter().map(|(name, value)| name.as_str().len() + value.len() + BYTES_PER_HEADER).sum()
}

/// Returns the target with scheme and authority, as HTTP/2 requires. `None` if the client's host is not valid.
fn target(head: &Parts, secure: bool) -> Option<Uri> {
    let mut parts = http::uri::Parts::default();
    parts.scheme = Some(if secure { Scheme::HTTPS } else { Scheme::HTTP });
    let authority = match (head.uri.authority(), head.headers.get(http::header::HOST)) {
        (Some(authority), _) => Some(authority.clone()),
        (None, Some(host)) if !host.is_empty() => Some(Authority::try_from(host.as_bytes()).ok()?),
        (None, _) => None,
    };
    // The user information before the host is for the client's side only.
    let bare = match &authority {
        Some(authority) => match authority.as_str().rsplit_once('@') {
            Some((_, host)) => Some(Authority::try_from(host).ok()?),
            None => None,
        },
        None => Some(Authority::from_static("localhost")),
    };
    parts.authority = bare.or(authority);
    let path = head.uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
    // The target `http://host?query` has no path.
    let is_rooted = !path.as_str().starts_with('?');
    parts.path_and_query =
        Some(if is_rooted { path } else { PathAndQuery::try_from(format!("/{}", path.as_str())).ok()? });
    Uri::from_parts(parts).ok()
}

fn pod_headers(head: &Parts, scan: HeaderScan, routing: &RoutingHeaders<'_>) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(head.headers.len() + 8);
    let declared = ConnectionOptions::of(&head.headers, scan);
    for (name, value) in &head.headers {
        if *name != CONTENT_LENGTH && passes_to_pod(name, scan, &declared, routing.reserved) {
            headers.append(name, value.clone());
        }
    }
    match routing.stamp {
        Stamp::Partition(partition, epoch) => {
            headers.insert(SEGUE_PARTITION, HeaderValue::from(partition.get()));
            headers.insert(SEGUE_EPOCH, HeaderValue::from(epoch.get()));
        }
        Stamp::NoPartition => drop(headers.insert(SEGUE_PARTITION, HeaderValue::from_static(NO_PARTITION))),
        Stamp::Nothing => {}
    }
    if routing.stamp != Stamp::Nothing {
        headers.insert(SEGUE_ROUTER, routing.identity.router.clone());
        headers.insert(SEGUE_KEYSPACE, routing.identity.keyspace.clone());
    }
    if let Some(left) = routing.grpc_timeout {
        headers.insert(GRPC_TIMEOUT, left.clone());
    }
    let forwarded = scan.x_forwarded_for && routing.reserved.trusts_forwarded();
    let peer =
        if forwarded { list(head, &X_FORWARDED_FOR, &routing.client.address) } else { routing.client.address.clone() };
    headers.insert(X_FORWARDED_FOR, peer);
    headers.entry(X_FORWARDED_PROTO).or_insert_with(|| HeaderValue::from_static(routing.client.scheme));
    if let Some(certificate) = &routing.client.certificate {
        // What a trusted proxy says of its own client has passed.
        let before = headers.contains_key(X_FORWARDED_CLIENT_CERT);
        let value = if before { list(head, &X_FORWARDED_CLIENT_CERT, certificate) } else { certificate.clone() };
        headers.insert(X_FORWARDED_CLIENT_CERT, value);
    }
    headers.insert(VIA, list(head, &VIA, &HeaderValue::from_static(via(head.version))));
    if scan.te && takes_trailers(&head.headers) {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    headers
}

fn list(head: &Parts, name: &HeaderName, last: &HeaderValue) -> HeaderValue {
    if !head.headers.contains_key(name) {
        return last.clone();
    }
    let mut text = Vec::new();
    continued(&head.headers, name).for_each(|part| text.extend_from_slice(part));
    text.extend_from_slice(last.as_bytes());
    // Made of valid values and commas.
    HeaderValue::from_maybe_shared(bytes::Bytes::from(text)).unwrap_or_else(|_| last.clone())
}

#[cfg(test)]
mod tests {

    use segue_protocol::ids::{Epoch, PartitionId};

    use super::*;
    use crate::message::headers::{ClientLines, RouterIdentity};
    use crate::message::reserved::ReservedHeaders;
    use crate::routing::partition_key::PartitionSource;

    const E3: Epoch = Epoch::new(3);
    const P7: PartitionId = PartitionId::new(7);

    fn made(builder: http::request::Builder, most: usize) -> Result<Request<()>, LocalReply> {
        let (head, ()) = builder.body(()).unwrap().into_parts();
        let identity = RouterIdentity::new(HeaderValue::from_static("r0"), HeaderValue::from_static("default"));
        let client = ClientLines::new(HeaderValue::from_static("10.0.0.9"), false, None, Version::HTTP_11);
        let partition = PartitionSource::Number { header: PartitionSource::DEFAULT_HEADER, order_by: None };
        let routing = RoutingHeaders {
            reserved: &ReservedHeaders::new(&partition, true),
            stamp: Stamp::Partition(P7, E3),
            identity: &identity,
            client: &client,
            grpc_timeout: None,
        };
        request(&head, HeaderScan::of(&head.headers), &routing, Some(0), false, most)
    }

    #[test]
    fn userinfo_stays_here() {
        for (uri, authority) in [("http://user:pw@example.org:81/a", "example.org:81"), ("http://h/", "h")] {
            assert_eq!(made(Request::get(uri), 1 << 14).unwrap().uri().authority().unwrap(), authority);
        }
    }

    #[test]
    fn a_host_that_cannot_be_one_is_not_replaced_by_another() {
        let of = |host: &str| made(Request::get("/a").header("host", host), 1 << 14);
        assert_eq!(of("a b").unwrap_err(), LocalReply::Ambiguous);
        assert_eq!(of("h:1").unwrap().uri().authority().unwrap(), "h:1");
        assert_eq!(of("").unwrap().uri().authority().unwrap(), "localhost");
    }

    #[test]
    fn the_bound_counts_as_the_pod_does() {
        let whole = made(Request::get("http://h/path").header("x-a", "1"), usize::MAX).unwrap();
        let lines: usize = whole.headers().iter().map(|(name, value)| name.as_str().len() + value.len() + 32).sum();
        let pseudo = [(":method", "GET"), (":scheme", "http"), (":authority", "h"), (":path", "/path")];
        let size = lines + pseudo.iter().map(|(name, value)| name.len() + value.len() + 32).sum::<usize>();
        let with = |most| made(Request::get("http://h/path").header("x-a", "1"), most);
        assert!(with(size).is_ok());
        assert_eq!(with(size - 1).unwrap_err(), LocalReply::HeadTooLarge);
    }

    #[test]
    fn a_length_is_said_where_a_body_is_expected() {
        assert_eq!(made(Request::post("http://h/"), 1 << 14).unwrap().headers()["content-length"], "0");
        assert!(!made(Request::get("http://h/"), 1 << 14).unwrap().headers().contains_key("content-length"));
    }
}
