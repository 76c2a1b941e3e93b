//! The keyspace that a request to the admin endpoint is about: `?keyspace=NAME`.
//!
//! # Invariants
//!
//! * A request that names no keyspace is about the only one. With several it is refused, so that no action takes effect
//!   in another keyspace than the one that was meant.

use axum::Router;
use axum::extract::{Query, Request};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use tower::ServiceExt as _;

use super::problem::ApiProblem;

/// The routes of each keyspace, by name.
#[derive(Debug)]
pub(crate) struct KeyspaceRoutes {
    routes: Vec<(String, Router)>,
}

#[derive(Debug, Deserialize)]
struct KeyspaceQuery {
    keyspace: Option<String>,
}

impl KeyspaceRoutes {
    pub(crate) fn new(routes: Vec<(String, Router)>) -> Self {
        KeyspaceRoutes { routes }
    }

    /// Returns the names, in the order of the file.
    pub(crate) fn names(&self) -> Vec<&str> {
        self.routes.iter().map(|(name, _)| &**name).collect()
    }

    /// Returns whether a request without a name is about all keyspaces.
    pub(crate) fn means_all(&self, uri: &Uri) -> bool {
        self.routes.len() > 1 && named(uri).is_ok_and(|name| name.is_none())
    }

    /// Passes a request on to the routes of its keyspace.
    pub(crate) async fn pass(&self, request: Request) -> Response {
        let routes = match self.find(request.uri()) {
            Ok(routes) => routes.clone(),
            Err(problem) => return problem.into_response(),
        };
        let Ok(response) = routes.oneshot(request).await;
        response
    }

    fn find(&self, uri: &Uri) -> Result<&Router, ApiProblem> {
        // Another path belongs to no keyspace.
        if !["/status", "/events"].contains(&uri.path()) && !uri.path().starts_with("/v1/") {
            return Err(ApiProblem::new(StatusCode::NOT_FOUND, "not-found", "no such path"));
        }
        let wanted = named(uri)?;
        let found = match (&wanted, &*self.routes) {
            (None, [(_, only)]) => Some(only),
            (None, _) => None,
            (Some(wanted), routes) => routes.iter().find(|(name, _)| name == wanted).map(|(_, routes)| routes),
        };
        found.ok_or_else(|| {
            let names = self.names().join(", ");
            ApiProblem::bad_request(match wanted {
                _ if names.is_empty() => "this process has no keyspace yet".to_owned(),
                None => format!("this process has several keyspaces; expected keyspace=NAME, one of {names}"),
                Some(wanted) => format!("this process has no keyspace {wanted}; expected one of {names}"),
            })
        })
    }
}

/// Returns the keyspace that a request names.
pub(super) fn named(uri: &Uri) -> Result<Option<String>, ApiProblem> {
    let query = Query::<KeyspaceQuery>::try_from_uri(uri);
    query.map(|Query(query)| query.keyspace).map_err(|error| ApiProblem::bad_request(error.body_text()))
}

#[cfg(test)]
mod tests {
    use axum::body::{Body, to_bytes};
    use axum::routing::get;

    use super::*;

    async fn ask(names: &[&'static str], path: &str) -> (u16, String) {
        let routes =
            |name: &'static str| (name.to_owned(), Router::new().route("/v1/{what}", get(move || async move { name })));
        let all = KeyspaceRoutes::new(names.iter().copied().map(routes).collect());
        let response = all.pass(Request::get(path).body(Body::empty()).unwrap()).await;
        let status = response.status().as_u16();
        let body = to_bytes(response.into_body(), 1 << 16).await.unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn a_request_goes_to_the_keyspace_that_it_names_and_may_leave_out_the_only_one() {
        assert_eq!(ask(&["a"], "/v1/plan").await, (200, "a".to_owned()));
        assert_eq!(ask(&["a"], "/v1/plan?without=w&keyspace=a").await, (200, "a".to_owned()));
        assert_eq!(ask(&["a", "b"], "/v1/plan?keyspace=b").await, (200, "b".to_owned()));
        let (status, text) = ask(&["a", "b"], "/v1/plan?without=w").await;
        assert!(status == 400 && text.contains("several keyspaces") && text.contains("one of a, b"), "{text}");
        for names in [&["a"] as &[&str], &["a", "b"]] {
            let (status, text) = ask(names, "/v1/plan?keyspace=c").await;
            assert!(status == 400 && text.contains("no keyspace c"), "{text}");
        }
        assert_eq!(ask(&["a", "b"], "/v1/plan?keyspace=a&keyspace=b").await.0, 400);
        assert_eq!(ask(&["a", "b"], "/v2?keyspace=a").await.0, 404);
    }
}
