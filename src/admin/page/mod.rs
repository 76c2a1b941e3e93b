//! The live page: the files that a browser loads from the admin endpoint, and the event stream that fills them.
//!
//! The page shows one process's view of the keyspace, and sends operators' actions to [`api`](super::api), which decides
//! about them. It consists of these files alone: no framework, no build step, and nothing from another origin.
//!
//! # Invariants
//!
//! * The browser may load, run and connect to nothing but this endpoint (`Content-Security-Policy`), and no other site
//!   may frame the page.
//! * The number of readers of the stream and the memory for each of them are bounded (`feed`).

pub(crate) mod board;
pub(crate) mod feed;
mod journal;
#[cfg(test)]
mod tests;

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use self::feed::Feed;

const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
    connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The files of the page: path, content type, content.
const FILES: [(&str, &str, &str); 10] = [
    ("/", "text/html; charset=utf-8", include_str!("page.html")),
    ("/page.css", "text/css; charset=utf-8", include_str!("page.css")),
    ("/page.js", "text/javascript; charset=utf-8", include_str!("page.js")),
    ("/actions.js", "text/javascript; charset=utf-8", include_str!("actions.js")),
    ("/explain.js", "text/javascript; charset=utf-8", include_str!("explain.js")),
    ("/resting.js", "text/javascript; charset=utf-8", include_str!("resting.js")),
    ("/traffic.js", "text/javascript; charset=utf-8", include_str!("traffic.js")),
    ("/keyspace.js", "text/javascript; charset=utf-8", include_str!("keyspace.js")),
    ("/dom.js", "text/javascript; charset=utf-8", include_str!("dom.js")),
    ("/page.svg", "image/svg+xml", include_str!("page.svg")),
];

/// Returns the route of a keyspace's stream.
pub(crate) fn stream(feed: Arc<Feed>) -> Router {
    Router::new().route("/events", get(events)).with_state(feed)
}

/// Returns the routes of the page's files.
pub(crate) fn files() -> Router {
    FILES.into_iter().fold(Router::new(), |routes, (path, kind, content)| {
        let tag = tag(content);
        routes.route(path, get(move |request: HeaderMap| async move { file(&request, kind, content, &tag) }))
    })
}

/// Returns the entity tag of a file.
fn tag(content: &str) -> String {
    let mut hasher = DefaultHasher::new();
    content.hash(&mut hasher);
    format!("\"{:016x}\"", hasher.finish())
}

fn file(request: &HeaderMap, kind: &'static str, content: &'static str, tag: &str) -> Response {
    let known = request.get_all(header::IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    let is_known = known.flat_map(|tags| tags.split(',')).any(|known| known.trim().trim_start_matches("W/") == tag);
    let mut response = match is_known {
        true => StatusCode::NOT_MODIFIED.into_response(),
        false => ([(header::CONTENT_TYPE, kind)], content).into_response(),
    };
    let headers = response.headers_mut();
    if let Ok(tag) = HeaderValue::from_str(tag) {
        headers.insert(header::ETAG, tag);
    }
    for (name, value) in [
        // A browser revalidates the files each time, so that the page is never older than its process.
        (header::CACHE_CONTROL, "no-cache"),
        (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
        (header::REFERRER_POLICY, "no-referrer"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

async fn events(State(feed): State<Arc<Feed>>, request: HeaderMap) -> Response {
    let last = request.get("last-event-id").and_then(|id| id.to_str().ok());
    match feed.subscribe(last) {
        Ok(stream) => {
            // The next stream needs a new connection, because this one would reach its time limit during that stream.
            let headers = [
                (header::CONTENT_TYPE, "text/event-stream"),
                (header::CACHE_CONTROL, "no-store"),
                (header::CONNECTION, "close"),
            ];
            (headers, Body::from_stream(stream)).into_response()
        }
        Err(reason) => {
            (StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, "5")], format!("{reason}\n")).into_response()
        }
    }
}
