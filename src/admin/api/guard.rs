//! Decides who may change something.
//!
//! # Invariants
//!
//! * By TCP nothing is changed unless `admin.write` allows it, or `segue dev` a client of its machine.
//! * A page of another site changes nothing, whatever its reader's browser presents: it cannot set this content type, and
//!   the browser names its origin.

use std::net::SocketAddr;

use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, Method, StatusCode, header};

use super::problem::ApiProblem;
use crate::admin::token_file::TokenFile;

/// Who may change something by TCP. By the Unix socket everybody may who can connect to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum WritePermission {
    /// Nobody.
    Nobody,
    /// Those who present the token in this file. It is read for each request, so that it can be replaced.
    Token(TokenFile),
    /// Those whose certificate the endpoint's authorities have issued.
    Certified,
    /// Those who connect from this machine, to a site that is there to be tried out.
    Local,
}

/// The client of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AdminPeer {
    /// A client by TCP.
    Tcp {
        /// The client's address.
        address: SocketAddr,
        /// Whether the client has a certificate of the endpoint's authorities.
        certified: bool,
    },
    /// A client by the Unix socket.
    Unix {
        /// The client's user.
        uid: u32,
    },
}

impl AdminPeer {
    /// Returns the operator behind a request, who calls himself `name`.
    pub(super) fn who(&self, name: Option<String>) -> String {
        match (self, name.filter(|name| !name.is_empty())) {
            (AdminPeer::Tcp { address, .. }, Some(name)) => format!("{name} from {}", address.ip()),
            (AdminPeer::Tcp { address, .. }, None) => format!("somebody from {}", address.ip()),
            (AdminPeer::Unix { .. }, Some(name)) => name,
            (AdminPeer::Unix { uid }, None) => format!("uid {uid}"),
        }
    }
}

/// Returns whether a client needs no token: it connects as `write` demands.
fn is_entitled(write: &WritePermission, peer: Option<&AdminPeer>) -> bool {
    match (peer, write) {
        (Some(AdminPeer::Tcp { certified, .. }), WritePermission::Certified) => *certified,
        (Some(AdminPeer::Tcp { address, .. }), WritePermission::Local) => address.ip().to_canonical().is_loopback(),
        (Some(AdminPeer::Unix { .. }), _) => true,
        _ => false,
    }
}

/// Returns whether a client may change something (`allowed`), or what it lacks: `token`, or `none` if there is nothing
/// that it could present in a request.
pub(super) fn access(write: &WritePermission, peer: Option<&AdminPeer>) -> &'static str {
    match write {
        _ if is_entitled(write, peer) => "allowed",
        WritePermission::Token(_) => "token",
        WritePermission::Certified | WritePermission::Local | WritePermission::Nobody => "none",
    }
}

/// Only browsers send it.
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Refuses a request that may not change anything.
pub(super) fn admit(write: &WritePermission, peer: Option<&AdminPeer>, request: &Parts) -> Result<(), ApiProblem> {
    let is_by_tcp = matches!(peer, Some(AdminPeer::Tcp { .. }));
    match write {
        _ if is_entitled(write, peer) && is_by_tcp && request.method == Method::GET => {
            // A browser presents its certificate, and its machine's address, for any link that its user follows.
            let text = "without a token, POST is expected";
            return Err(ApiProblem::new(StatusCode::FORBIDDEN, "origin", text));
        }
        _ if is_entitled(write, peer) => {}
        WritePermission::Token(file) => {
            let token = bearer(&request.headers).ok_or_else(unauthorized)?;
            let unusable = |why| ApiProblem::failed(format!("admin.token_file cannot be used: {why}"));
            if !file.is_token(token).map_err(unusable)? {
                return Err(unauthorized());
            }
        }
        WritePermission::Certified => {
            let text = "this endpoint requires a client certificate of those who change something";
            return Err(ApiProblem::new(StatusCode::FORBIDDEN, "no-certificate", text));
        }
        WritePermission::Local => {
            let text = "segue dev takes changes from clients of its own machine alone";
            return Err(ApiProblem::new(StatusCode::FORBIDDEN, "read-only", text));
        }
        WritePermission::Nobody => {
            let text = "this endpoint is read-only: set admin.write to \"token\" or \"client_cert\", use its unix socket \
                        (admin.socket), or run the command with --config";
            return Err(ApiProblem::new(StatusCode::FORBIDDEN, "read-only", text));
        }
    }
    same_origin(&request.headers)?;
    // A browser sends a GET for any link, and its certificate with it. Programs that may only GET are no browsers.
    if request.method == Method::GET && request.headers.contains_key(FETCH_SITE) {
        return Err(foreign_page());
    }
    let is_bodiless = request.method == Method::DELETE || request.method == Method::GET;
    match request.headers.get(header::CONTENT_TYPE) {
        None if is_bodiless => Ok(()),
        Some(kind) if is_json(kind.as_bytes()) => Ok(()),
        _ => {
            let text = "expected content-type: application/json";
            Err(ApiProblem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "content-type", text))
        }
    }
}

fn unauthorized() -> ApiProblem {
    let text = "expected authorization: Bearer with the token of this endpoint (--token-file of the commands)";
    ApiProblem::new(StatusCode::UNAUTHORIZED, "unauthorized", text)
}

/// Returns the token that a request presents.
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.as_bytes().split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then_some(token)
}

/// Refuses a request that a page of another origin makes. Clients that are no browsers send neither header.
fn same_origin(headers: &HeaderMap) -> Result<(), ApiProblem> {
    let text = |name: HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    let host = text(header::HOST).unwrap_or_default();
    let is_own = text(header::ORIGIN).is_none_or(|origin| {
        origin.split_once("://").is_some_and(|(_, authority)| !host.is_empty() && authority.eq_ignore_ascii_case(host))
    });
    let is_own = is_own && text(FETCH_SITE).is_none_or(|site| site == "same-origin" || site == "none");
    is_own.then_some(()).ok_or_else(foreign_page)
}

fn foreign_page() -> ApiProblem {
    ApiProblem::new(StatusCode::FORBIDDEN, "origin", "a page of another origin may change nothing here")
}

fn is_json(kind: &[u8]) -> bool {
    let kind = kind.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    kind.eq_ignore_ascii_case(b"application/json")
}

#[cfg(test)]
mod tests {
    use axum::response::IntoResponse as _;
    use http::Request;

    use super::*;

    fn admitted(peer: &str, method: Method, headers: &[(&str, &str)]) -> Result<(), StatusCode> {
        let peer = AdminPeer::Tcp { address: peer.parse().unwrap(), certified: false };
        let request = Request::builder().method(method).header("host", "127.0.0.1:9090");
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        let (request, ()) = request.body(()).unwrap().into_parts();
        admit(&WritePermission::Local, Some(&peer), &request).map_err(|problem| problem.into_response().status())
    }

    #[test]
    fn a_site_to_try_out_takes_changes_from_its_own_machine_and_from_no_page_of_another_site() {
        const JSON: (&str, &str) = ("content-type", "application/json");
        for (peer, method, headers, expected) in [
            ("127.0.0.1:1", Method::POST, &[JSON][..], Ok(())),
            ("[::1]:1", Method::DELETE, &[], Ok(())),
            ("[::ffff:127.0.0.1]:1", Method::POST, &[JSON], Ok(())),
            ("10.0.0.7:1", Method::POST, &[JSON], Err(StatusCode::FORBIDDEN)),
            ("127.0.0.1:1", Method::GET, &[], Err(StatusCode::FORBIDDEN)),
            ("127.0.0.1:1", Method::POST, &[], Err(StatusCode::UNSUPPORTED_MEDIA_TYPE)),
            ("127.0.0.1:1", Method::POST, &[JSON, ("origin", "http://evil.example")], Err(StatusCode::FORBIDDEN)),
            ("127.0.0.1:1", Method::POST, &[JSON, ("origin", "http://127.0.0.1:9090")], Ok(())),
        ] {
            assert_eq!(admitted(peer, method.clone(), headers), expected, "{peer} {method} {headers:?}");
        }
        let far = AdminPeer::Tcp { address: "10.0.0.7:1".parse().unwrap(), certified: true };
        assert_eq!(access(&WritePermission::Local, Some(&far)), "none");
        let near = AdminPeer::Tcp { address: "127.0.0.1:1".parse().unwrap(), certified: false };
        assert_eq!(access(&WritePermission::Local, Some(&near)), "allowed");
        assert_eq!(access(&WritePermission::Nobody, Some(&near)), "none");
    }
}
