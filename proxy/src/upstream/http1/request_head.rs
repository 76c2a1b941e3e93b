//! Writes the head of an HTTP/1.1 request.
//!
//! Pure. The request's own head is read in place, so it costs no copy and is still there for another attempt.
//!
//! # Invariants
//!
//! * The framing that is written is the framing of the body that follows.

use http::Method;
use http::header::{CONTENT_LENGTH, COOKIE, HOST, HeaderName, UPGRADE, VIA};
use http::request::Parts;

use crate::message::grpc_timeout::GRPC_TIMEOUT;
use crate::message::header_names::{NO_PARTITION, X_FORWARDED_CLIENT_CERT, X_FORWARDED_FOR, X_FORWARDED_PROTO};
use crate::message::header_scan::HeaderScan;
use crate::message::headers::{
    ConnectionOptions, RoutingHeaders, Stamp, continued, passes_to_pod, takes_trailers, via,
};

/// How the body of a request is delimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestFraming {
    None,
    Length(u64),
    Chunked,
}

/// Writes the head of a request. `upgrade`: it asks for another protocol.
pub(crate) fn encode_request(
    out: &mut Vec<u8>,
    head: &Parts,
    scan: HeaderScan,
    routing: &RoutingHeaders<'_>,
    framing: RequestFraming,
    upgrade: bool,
) {
    request_line(out, head);
    line(out, b"host", host(head));
    let said = client_lines(out, head, scan, routing);
    routing_lines(out, head, scan, routing, &said);
    connection_lines(out, head, scan, upgrade);
    framing_line(out, head, framing, said.length);
    out.extend_from_slice(b"\r\n");
}

#[inline]
fn request_line(out: &mut Vec<u8>, head: &Parts) {
    let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
    // Room for the whole head.
    out.reserve(256 + path.len() + 64 * head.headers.len());
    out.extend_from_slice(head.method.as_str().as_bytes());
    out.push(b' ');
    // The target `http://host?query` has no path.
    if path.starts_with('?') {
        out.push(b'/');
    }
    // A request about the host as a whole has the target `*`, which the URI has as its path.
    out.extend_from_slice(path.as_bytes());
    out.extend_from_slice(b" HTTP/1.1\r\n");
}

#[inline]
fn host(head: &Parts) -> &[u8] {
    match head.uri.authority() {
        Some(authority) => {
            let host = authority.as_str();
            host.rsplit_once('@').map_or(host, |(_, host)| host).as_bytes()
        }
        // Nearly always among the first headers, where iterating costs less than a lookup.
        None => head.headers.iter().find(|(name, _)| **name == HOST).map_or(&b""[..], |(_, value)| value.as_bytes()),
    }
}

/// Which of the client's headers decide about later lines.
struct ClientHeaders {
    /// Whether there was an `x-forwarded-proto`; it was passed on.
    proto: bool,
    /// Whether there was an `x-forwarded-client-cert` that the router adds to; it was not passed on.
    certificate: bool,
    /// Whether there was a `content-length`; it was not passed on.
    length: bool,
}

/// Writes the client's headers that pass to the pod.
#[inline]
fn client_lines(out: &mut Vec<u8>, head: &Parts, scan: HeaderScan, routing: &RoutingHeaders<'_>) -> ClientHeaders {
    let mut said = ClientHeaders { proto: false, certificate: false, length: false };
    if scan.routine {
        for (name, value) in &head.headers {
            if *name == CONTENT_LENGTH {
                said.length = true;
            } else if *name != HOST {
                line(out, name.as_str().as_bytes(), value.as_bytes());
            }
        }
        return said;
    }
    let declared = ConnectionOptions::of(&head.headers, scan);
    let mut cookies = false;
    for (name, value) in &head.headers {
        if *name == CONTENT_LENGTH {
            said.length = true;
        } else if *name == GRPC_TIMEOUT && routing.grpc_timeout.is_some() {
            // The router writes what is left of it.
        } else if !passes_to_pod(name, scan, &declared, routing.reserved) {
            // Clients may not send this one to pods.
        } else if scan.cookies && *name == COOKIE {
            cookies = true;
        } else if routing.client.certificate.is_some() && *name == X_FORWARDED_CLIENT_CERT {
            said.certificate = true;
        } else {
            said.proto |= *name == X_FORWARDED_PROTO;
            line(out, name.as_str().as_bytes(), value.as_bytes());
        }
    }
    if cookies {
        one_line_of_cookies(out, head);
    }
    said
}

/// Writes the router's headers.
#[inline]
fn routing_lines(
    out: &mut Vec<u8>,
    head: &Parts,
    scan: HeaderScan,
    routing: &RoutingHeaders<'_>,
    said: &ClientHeaders,
) {
    match routing.stamp {
        Stamp::Partition(partition, epoch) => {
            let mut digits = itoa::Buffer::new();
            line(out, b"segue-partition", digits.format(partition.get()).as_bytes());
            line(out, b"segue-epoch", digits.format(epoch.get()).as_bytes());
        }
        Stamp::NoPartition => line(out, b"segue-partition", NO_PARTITION.as_bytes()),
        Stamp::Nothing => {}
    }
    if routing.stamp != Stamp::Nothing {
        out.extend_from_slice(&routing.identity.lines);
    }
    if let Some(left) = routing.grpc_timeout {
        line(out, b"grpc-timeout", left.as_bytes());
    }
    let forwarded = scan.x_forwarded_for && routing.reserved.trusts_forwarded();
    if !forwarded && !said.proto && !said.certificate && !scan.via && head.version == routing.client.version {
        out.extend_from_slice(&routing.client.lines);
        return;
    }
    list(out, head, forwarded, &X_FORWARDED_FOR, routing.client.address.as_bytes());
    if !said.proto {
        line(out, b"x-forwarded-proto", routing.client.scheme.as_bytes());
    }
    if let Some(certificate) = &routing.client.certificate {
        list(out, head, said.certificate, &X_FORWARDED_CLIENT_CERT, certificate.as_bytes());
    }
    list(out, head, scan.via, &VIA, via(head.version).as_bytes());
}

/// Writes `te`, `connection` and `upgrade`.
#[inline]
fn connection_lines(out: &mut Vec<u8>, head: &Parts, scan: HeaderScan, upgrade: bool) {
    if scan.te && takes_trailers(&head.headers) {
        line(out, b"te", b"trailers");
        if !upgrade {
            line(out, b"connection", b"te");
        }
    }
    if upgrade {
        line(out, b"connection", b"upgrade");
        for value in head.headers.get_all(UPGRADE) {
            line(out, b"upgrade", value.as_bytes());
        }
    }
}

/// Writes `content-length` or `transfer-encoding`. `said_length`: the client sent a `content-length`.
#[inline]
fn framing_line(out: &mut Vec<u8>, head: &Parts, framing: RequestFraming, said_length: bool) {
    match framing {
        RequestFraming::Length(bytes) => line(out, b"content-length", itoa::Buffer::new().format(bytes).as_bytes()),
        RequestFraming::Chunked => line(out, b"transfer-encoding", b"chunked"),
        RequestFraming::None if said_length || [Method::POST, Method::PUT, Method::PATCH].contains(&head.method) => {
            line(out, b"content-length", b"0");
        }
        RequestFraming::None => {}
    }
}

fn line(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    out.reserve(name.len() + value.len() + 4);
    out.extend_from_slice(name);
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Joins the cookies that an HTTP/2 client may have split (RFC 9113, 8.2.3).
fn one_line_of_cookies(out: &mut Vec<u8>, head: &Parts) {
    out.extend_from_slice(b"cookie: ");
    for (index, value) in head.headers.get_all(COOKIE).iter().enumerate() {
        if index > 0 {
            out.extend_from_slice(b"; ");
        }
        out.extend_from_slice(value.as_bytes());
    }
    out.extend_from_slice(b"\r\n");
}

/// Writes a list with `last` at its end. `begun`: the client's values come first.
fn list(out: &mut Vec<u8>, head: &Parts, begun: bool, name: &HeaderName, last: &[u8]) {
    out.extend_from_slice(name.as_str().as_bytes());
    out.extend_from_slice(b": ");
    if begun {
        continued(&head.headers, name).for_each(|part| out.extend_from_slice(part));
    }
    out.extend_from_slice(last);
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use http::{HeaderValue, Version};
    use segue_protocol::ids::{Epoch, PartitionId};

    use super::*;
    use crate::message::headers::{ClientLines, RouterIdentity};
    use crate::message::reserved::ReservedHeaders;
    use crate::routing::partition_key::PartitionSource;

    const E3: Epoch = Epoch::new(3);
    const P7: PartitionId = PartitionId::new(7);

    fn encoded(request: http::request::Builder, framing: RequestFraming, upgrade: bool) -> String {
        encoded_for(request, framing, upgrade, true)
    }

    fn encoded_for(request: http::request::Builder, framing: RequestFraming, upgrade: bool, trust: bool) -> String {
        let partition = PartitionSource::Number { header: PartitionSource::DEFAULT_HEADER, order_by: None };
        let reserved = &ReservedHeaders::new(&partition, trust);
        let (head, ()) = request.body(()).unwrap().into_parts();
        let identity = RouterIdentity::new(HeaderValue::from_static("r0"), HeaderValue::from_static("default"));
        let client = ClientLines::new(HeaderValue::from_static("10.0.0.9"), false, None, Version::HTTP_11);
        let routing = RoutingHeaders {
            reserved,
            stamp: Stamp::Partition(P7, E3),
            identity: &identity,
            client: &client,
            grpc_timeout: None,
        };
        let mut out = Vec::new();
        encode_request(&mut out, &head, HeaderScan::of(&head.headers), &routing, framing, upgrade);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_request_is_stamped_and_keeps_its_host() {
        let request = http::Request::get("/a?b=1")
            .header("host", "example.org")
            .header("segue-epoch", "99")
            .header("x-forwarded-for", "1.2.3.4")
            .header("te", "trailers, gzip");
        assert_eq!(
            encoded(request, RequestFraming::None, false),
            "GET /a?b=1 HTTP/1.1\r\nhost: example.org\r\nsegue-partition: 7\r\nsegue-epoch: 3\r\nsegue-router: r0\r\n\
             segue-keyspace: default\r\nx-forwarded-for: 1.2.3.4, 10.0.0.9\r\nx-forwarded-proto: http\r\n\
             via: 1.1 segue\r\nte: trailers\r\nconnection: te\r\n\r\n"
        );
    }

    #[test]
    fn a_client_that_is_not_trusted_says_nothing_of_itself() {
        let claims = || {
            http::Request::get("http://h?a")
                .header("x-forwarded-for", "1.2.3.4")
                .header("x-forwarded-proto", "https")
                .header("forwarded", "for=1.2.3.4")
                .header("x_forwarded_host", "bank")
        };
        let text = encoded_for(claims(), RequestFraming::None, false, false);
        assert!(text.starts_with("GET /?a HTTP/1.1\r\nhost: h\r\nsegue-partition"), "{text}");
        assert!(text.contains("x-forwarded-for: 10.0.0.9\r\nx-forwarded-proto: http\r\nvia"), "{text}");
        let text = encoded_for(claims(), RequestFraming::None, false, true);
        assert!(text.contains("x-forwarded-proto: https\r\nforwarded: for=1.2.3.4\r\n"), "{text}");
        assert!(text.contains("x-forwarded-for: 1.2.3.4, 10.0.0.9\r\nvia"), "{text}");
    }

    #[test]
    fn what_a_connection_has_in_common_is_written_as_line_by_line() {
        let by_version = |version| {
            encoded(http::Request::get("/").header("host", "h").version(version), RequestFraming::None, false)
        };
        let text = by_version(Version::HTTP_11);
        assert!(
            text.ends_with("x-forwarded-for: 10.0.0.9\r\nx-forwarded-proto: http\r\nvia: 1.1 segue\r\n\r\n"),
            "{text}"
        );
        for (version, via) in [(Version::HTTP_10, "via: 1.0 segue"), (Version::HTTP_2, "via: 2.0 segue")] {
            assert_eq!(by_version(version), text.replace("via: 1.1 segue", via));
        }
    }

    #[test]
    fn the_host_of_an_absolute_target_counts() {
        let text = encoded(
            http::Request::get("http://user@example.org:81/a").header("host", "other"),
            RequestFraming::None,
            false,
        );
        assert!(text.starts_with("GET /a HTTP/1.1\r\nhost: example.org:81\r\n"), "{text}");
        assert!(!text.contains("other"));
    }

    #[test]
    fn the_length_written_is_that_of_the_body_not_that_of_the_header() {
        let request = || http::Request::post("/").header("content-length", "5").header("transfer-encoding", "x");
        assert!(encoded(request(), RequestFraming::Chunked, false).contains("transfer-encoding: chunked\r\n"));
        assert!(!encoded(request(), RequestFraming::Chunked, false).contains("content-length"));
        assert!(encoded(request(), RequestFraming::Length(6), false).contains("content-length: 6\r\n"));
        assert!(encoded(http::Request::post("/"), RequestFraming::None, false).contains("content-length: 0\r\n"));
        assert!(!encoded(http::Request::get("/"), RequestFraming::None, false).contains("content-length"));
    }

    #[test]
    fn an_upgrade_is_asked_for_anew() {
        let request = http::Request::get("/").header("connection", "upgrade").header("upgrade", "websocket");
        let text = encoded(request, RequestFraming::None, true);
        assert!(text.contains("connection: upgrade\r\nupgrade: websocket\r\n"), "{text}");
    }
}
