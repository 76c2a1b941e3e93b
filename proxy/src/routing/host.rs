//! The host that a request is for.
//!
//! Pure. Tested with what reads it: [`keyspace_choice`](super::keyspace_choice), [`partition_key`](super::partition_key).

use http::header::HOST;
use http::{HeaderMap, Uri};

/// Returns the host of a request without its port and the dot of the root. The target's host precedes the header, as it
/// does towards pods.
pub(super) fn host_of<'head>(uri: &'head Uri, headers: &'head HeaderMap) -> Option<&'head str> {
    let host = match uri.host() {
        Some(host) => Some(host),
        None => headers.get(HOST).and_then(|host| host.to_str().ok()).map(without_port),
    };
    host.map(without_root)
}

/// Returns the name without the dot that makes it absolute: `orders.example.` is the same host as `orders.example`.
pub(super) fn without_root(host: &str) -> &str {
    host.strip_suffix('.').filter(|name| !name.is_empty()).unwrap_or(host)
}

pub(super) fn without_port(host: &str) -> &str {
    let end = match host.strip_prefix('[') {
        Some(rest) => rest.find(']').map(|end| end + 2),
        None => host.find(':'),
    };
    end.and_then(|end| host.get(..end)).unwrap_or(host)
}
