//! The names that the admin endpoint answers to.
//!
//! A site can have its own name lead to this endpoint (DNS rebinding). The browser that shows a page of that site then takes
//! both for the same origin, and lets the page read what the endpoint shows. Its requests name that site as their host. Not
//! here: who may change something ([`api`](super::api)).
//!
//! # Invariants
//!
//! * By TCP, a request for a host that is neither an address nor one of these names gets `421`, whatever it asks for.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};

use super::api::{AdminPeer, ApiProblem};

/// The names, beside addresses and `localhost`.
#[derive(Debug, Clone, Default)]
pub(super) struct Hosts(Arc<[String]>);

impl Hosts {
    pub(super) fn new(names: Vec<String>) -> Self {
        Hosts(names.into())
    }

    /// Returns the first host that a request names and that is none of these. Programs by HTTP/1.0 may name none; browsers
    /// always name one.
    fn foreign<'request>(&self, headers: &'request HeaderMap) -> Option<&'request [u8]> {
        headers.get_all(header::HOST).iter().map(HeaderValue::as_bytes).find(|host| !self.include(host))
    }

    fn include(&self, host: &[u8]) -> bool {
        let Ok(authority) = Authority::try_from(host) else { return false };
        let name = authority.host();
        let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
        let is_one = |known: &str| known.eq_ignore_ascii_case(name.strip_suffix('.').unwrap_or(name));
        bare.parse::<IpAddr>().is_ok() || is_one("localhost") || self.0.iter().any(|known| is_one(known))
    }
}

/// Refuses a request for another host.
pub(super) async fn admit(State(hosts): State<Hosts>, request: Request, next: Next) -> Response {
    // No browser connects to a Unix socket.
    let is_local = matches!(request.extensions().get::<AdminPeer>(), Some(AdminPeer::Unix { .. }));
    match hosts.foreign(request.headers()).filter(|_| !is_local) {
        None => next.run(request).await,
        Some(host) => {
            let text =
                format!("\"{}\" is no name of this endpoint; names are listed in admin.hosts", host.escape_ascii());
            ApiProblem::new(StatusCode::MISDIRECTED_REQUEST, "host", text).into_response()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_localhost_and_own_names_are_included_and_nothing_else_is() {
        let hosts = Hosts::new(vec!["segue.example".to_owned(), "r-0".to_owned()]);
        for own in
            ["127.0.0.1", "10.0.0.7:9090", "[::1]", "[2001:db8::7]:9090", "localhost:9090", "LocalHost", "localhost."]
        {
            assert!(hosts.include(own.as_bytes()), "{own}");
        }
        for own in ["segue.example", "SEGUE.example:443", "segue.example.:9090", "r-0:9090"] {
            assert!(hosts.include(own.as_bytes()), "{own}");
        }
        for other in
            ["evil.example", "evil.example:9090", "127.0.0.1.evil.example", "r-0.evil.example", "0x7f.1", "h", ""]
        {
            assert!(!hosts.include(other.as_bytes()), "{other}");
        }
        assert!(!hosts.include(b"segue.example@evil.example"));
        assert!(!hosts.include(b"\xff"));
    }
}
