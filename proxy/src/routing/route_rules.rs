//! The routes of a router's file (`[[router.route]]`): which requests do not go to the owner of their key's partition.
//!
//! Pure. Not here: the pod, or the other service, that such a request goes to (`forward`).
//!
//! # Invariants
//!
//! * The first rule that matches counts. A request that none matches goes to the owner.
//! * Where a rule looks at the path, a path that a pod may read as another one is refused, and so is a request whose lines of
//!   a header that a rule looks at contradict each other.

use std::sync::Arc;

use http::header::{HeaderName, HeaderValue};
use http::request::Parts;
use http::{HeaderMap, Method};

use super::keyspace_choice::PathPrefix;
use super::partition_key::{LocationError, has_empty_segment, is_ambiguous};

/// Where a request goes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Destination {
    /// To the owner of its key's partition.
    #[default]
    Owner,
    /// To any pod that is ready.
    Any,
    /// To any pod that is ready in the router's zone, or otherwise to any.
    Zone,
    /// To the service at this `host:port`, which is no pod of the keyspace.
    Upstream(Arc<str>),
}

impl Destination {
    /// The choices without an address, by their names in the file.
    pub const NAMES: &[(&str, Self)] =
        &[("owner", Destination::Owner), ("any", Destination::Any), ("pod-of-zone", Destination::Zone)];
}

/// One route. A request has to match all that it looks at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteRule {
    /// The path.
    pub path: Option<PathMatch>,
    /// The methods, one of which the request has. Empty: any.
    pub methods: Vec<Method>,
    /// A header.
    pub header: Option<HeaderMatch>,
    /// Where its requests go.
    pub to: Destination,
}

/// The paths of a route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PathMatch {
    /// This path alone.
    Exactly(PathPrefix),
    /// This path and those below it.
    Beginning(PathPrefix),
}

/// The header of a route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeaderMatch {
    /// Its name.
    pub name: HeaderName,
    /// Its value. `None`: any value.
    pub value: Option<HeaderValue>,
}

/// The routes, in their order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RouteRules {
    rules: Vec<RouteRule>,
    /// Most segments that a rule looks at; 0 if none looks at the path.
    depth: usize,
}

impl RouteRules {
    /// Returns the routes in this order.
    pub fn new(rules: Vec<RouteRule>) -> Self {
        let depth = rules.iter().filter_map(|rule| rule.path.as_ref()).map(PathMatch::depth).max().unwrap_or_default();
        RouteRules { rules, depth }
    }

    /// Returns whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Returns the headers that the routes look at.
    pub fn headers(&self) -> impl Iterator<Item = &HeaderName> {
        self.rules.iter().filter_map(|rule| Some(&rule.header.as_ref()?.name))
    }

    /// Returns the addresses of the services that are no pods.
    pub fn upstreams(&self) -> impl Iterator<Item = &Arc<str>> {
        self.rules.iter().filter_map(|rule| match &rule.to {
            Destination::Upstream(address) => Some(address),
            Destination::Owner | Destination::Any | Destination::Zone => None,
        })
    }

    /// Returns where a request with this head goes.
    ///
    /// # Errors
    ///
    /// Fails if a pod may read another path, or another value of a header, than the router.
    pub fn destination(&self, head: &Parts) -> Result<&Destination, LocationError> {
        let path = head.uri.path();
        if self.depth > 0 && (is_ambiguous(path, self.depth) || has_empty_segment(path, self.depth)) {
            return Err(LocationError::Bad);
        }
        for rule in &self.rules {
            if rule.matches(head)? {
                return Ok(&rule.to);
            }
        }
        Ok(&Destination::Owner)
    }
}

impl RouteRule {
    fn matches(&self, head: &Parts) -> Result<bool, LocationError> {
        let has_path = self.path.as_ref().is_none_or(|path| path.matches(head.uri.path()));
        let has_method = self.methods.is_empty() || self.methods.contains(&head.method);
        if !has_path || !has_method {
            return Ok(false);
        }
        self.header.as_ref().map_or(Ok(true), |header| header.matches(&head.headers))
    }
}

impl PathMatch {
    fn depth(&self) -> usize {
        match self {
            // One segment more tells whether there is one.
            PathMatch::Exactly(path) => path.len() + 1,
            PathMatch::Beginning(path) => path.len(),
        }
    }

    fn matches(&self, path: &str) -> bool {
        match self {
            PathMatch::Exactly(exact) => exact.matches(path) && path.matches('/').count() == exact.len(),
            PathMatch::Beginning(prefix) => prefix.matches(path),
        }
    }
}

impl HeaderMatch {
    fn matches(&self, headers: &HeaderMap) -> Result<bool, LocationError> {
        let Some(wanted) = &self.value else { return Ok(headers.contains_key(&self.name)) };
        let mut values =
            headers.get_all(&self.name).iter().map(|value| value.as_bytes().trim_ascii() == wanted.as_bytes());
        let Some(first) = values.next() else { return Ok(false) };
        if values.all(|other| other == first) { Ok(first) } else { Err(LocationError::Bad) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(
        path: Option<PathMatch>,
        methods: &[Method],
        header: Option<(&str, Option<&str>)>,
        to: Destination,
    ) -> RouteRule {
        let header = header.map(|(name, value)| HeaderMatch {
            name: name.parse().unwrap(),
            value: value.map(|value| value.parse().unwrap()),
        });
        RouteRule { path, methods: methods.to_vec(), header, to }
    }

    fn path(text: &str) -> PathPrefix {
        PathPrefix::new(text).unwrap()
    }

    fn goes(
        rules: &[RouteRule],
        method: Method,
        uri: &str,
        lines: &[(&str, &str)],
    ) -> Result<Destination, LocationError> {
        let request =
            lines.iter().fold(http::Request::builder(), |request, (name, value)| request.header(*name, *value));
        let (head, ()) = request.method(method).uri(uri).body(()).unwrap().into_parts();
        RouteRules::new(rules.to_vec()).destination(&head).cloned()
    }

    #[test]
    fn the_first_route_that_matches_in_all_it_looks_at_counts() {
        use Destination::{Any, Owner, Zone};
        let rules = [
            rule(Some(PathMatch::Exactly(path("/healthz"))), &[], None, Any),
            rule(Some(PathMatch::Beginning(path("/a/b"))), &[Method::PUT], None, Owner),
            rule(
                Some(PathMatch::Beginning(path("/a"))),
                &[Method::GET, Method::HEAD],
                Some(("x-read", Some("eventual"))),
                Zone,
            ),
            rule(None, &[], Some(("x-any", None)), Any),
        ];
        for (method, uri, lines, to) in [
            (Method::GET, "/healthz", &[][..], Any),
            (Method::GET, "/healthz/", &[], Owner),
            (Method::GET, "/healthz/x", &[], Owner),
            (Method::GET, "/%68ealthz?x", &[], Any),
            (Method::PUT, "/a/b/c", &[("x-any", "")], Owner),
            (Method::GET, "/a/b/c", &[("x-read", "eventual")], Zone),
            (Method::GET, "/a", &[("x-read", "eventual"), ("x-read", "eventual ")], Zone),
            (Method::GET, "/a", &[("x-read", "strong")], Owner),
            (Method::POST, "/a", &[("x-read", "eventual")], Owner),
            (Method::GET, "/ab", &[("x-read", "eventual")], Owner),
            (Method::DELETE, "/z", &[("x-any", "")], Any),
        ] {
            assert_eq!(goes(&rules, method.clone(), uri, lines), Ok(to), "{method} {uri} {lines:?}");
        }
    }

    #[test]
    fn what_a_pod_may_read_otherwise_is_refused() {
        let of_path = [rule(Some(PathMatch::Beginning(path("/read"))), &[], None, Destination::Any)];
        for uri in ["/read/../persons/7", "/x/../read", "//read", "/read%2fx", "/read;x", "/x/%2e%2e/read"] {
            assert_eq!(goes(&of_path, Method::GET, uri, &[]), Err(LocationError::Bad), "{uri}");
        }
        assert_eq!(goes(&of_path, Method::GET, "/x;y/z//a", &[]), Err(LocationError::Bad));
        assert_eq!(goes(&of_path, Method::GET, "/x/y;z//a", &[]), Ok(Destination::Owner));
        let of_header = [rule(None, &[], Some(("x-read", Some("eventual"))), Destination::Any)];
        let both = [("x-read", "eventual"), ("x-read", "strong")];
        assert_eq!(goes(&of_header, Method::GET, "/a/../b", &both), Err(LocationError::Bad));
        assert_eq!(goes(&of_header, Method::GET, "/a/../b", &both[1..]), Ok(Destination::Owner));
    }
}
