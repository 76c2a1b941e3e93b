//! The routes of a router: the tables of the list `[[router.route]]`.
//!
//! # Invariants
//!
//! * Each route looks at something: one that matched everything would leave nothing to the owners.

use http::header::HOST;
use http::{HeaderValue, Method};
use segue_proxy::routing::keyspace_choice::PathPrefix;
use segue_proxy::routing::route_rules::{Destination, HeaderMatch, PathMatch, RouteRule};

use super::{overlap, reachable};
use crate::error::{Wrong, quoted};
use crate::keys::ConfigKeys;
use crate::reader::{ConfigReader, choice, list, text};
use crate::validated::Config;

/// The name of the list.
pub(super) const LIST: &str = "router.route";

const PATH: &str = "router.route.match.path";
const PATH_PREFIX: &str = "router.route.match.path_prefix";
const METHODS: &str = "router.route.match.methods";
const HEADER: &str = "router.route.match.header";
const VALUE: &str = "router.route.match.value";
const MATCH: &str = "router.route.match";
const TO: &str = "router.route.to";
const UPSTREAM: &str = "router.route.to.upstream";
const LISTEN: &str = "router.listen";
const ZONE: &str = "router.zone";

/// The keys of a table.
pub(crate) static KEYS: ConfigKeys =
    ConfigKeys { sections: &[&[PATH, PATH_PREFIX, METHODS, HEADER, VALUE, TO, UPSTREAM]], tables: &[] };

/// Returns the routes in the order of the file, and the router's zone.
pub(super) fn read(r: &mut ConfigReader<'_>) -> (Vec<RouteRule>, Option<String>) {
    let zone = r.name(ZONE);
    let Some((_, mut tables)) = r.tables(LIST) else { return (Vec::new(), zone) };
    let rules = tables.iter_mut().map(|table| rule(table, r.is_given(ZONE))).collect();
    tables.into_iter().for_each(|table| r.include(table));
    (rules, zone)
}

fn rule(table: &mut ConfigReader<'_>, has_zone: bool) -> RouteRule {
    let exact = path(table, PATH, "expected a path, such as \"/healthz\"").map(PathMatch::Exactly);
    let prefix =
        path(table, PATH_PREFIX, "expected the beginning of a path, such as \"/orders\"").map(PathMatch::Beginning);
    if table.is_given(PATH) && table.is_given(PATH_PREFIX) {
        let fact = format!("given beside {PATH} ({})", table.origin(PATH));
        table.report_key(PATH_PREFIX, Wrong::new(fact, "expected one of the two"));
    }
    let methods = table.read(METHODS, |value| methods(&list(value, EXPECTED_METHODS)?)).unwrap_or_default();
    let header = header(table);
    if ![PATH, PATH_PREFIX, METHODS, HEADER].iter().any(|key| table.is_given(key)) {
        let remedy = "expected one of path, path_prefix, methods, header: a route that matched every request would leave none to \
                      the owners";
        let place = table.empty_section(MATCH);
        table.report(place, MATCH, Wrong::new("not given", remedy));
    }
    RouteRule { path: exact.or(prefix), methods, header, to: destination(table, has_zone) }
}

/// Refuses a route that leads back to the router.
pub(super) fn lead_elsewhere(r: &mut ConfigReader<'_>, config: &Config) {
    let Some(router) = &config.router else { return };
    let routing = config.keyspaces.iter().filter_map(|keyspace| keyspace.routing.as_ref()).next();
    let upstreams = routing.into_iter().flat_map(|routing| routing.exceptions.routes.upstreams());
    if upstreams.filter_map(|address| address.parse().ok()).any(|address| overlap(router.listen, address)) {
        let fact =
            format!("{} is {UPSTREAM} of a route, too: the router would send itself its requests", router.listen);
        let place = r.given_at(LISTEN);
        r.report(place, LISTEN, Wrong::new(fact, "expected the address of another service in the route"));
    }
}

fn destination(table: &mut ConfigReader<'_>, has_zone: bool) -> Destination {
    const EXPECTED: &str = "expected \"owner\", \"any\", \"pod-of-zone\" or { upstream = \"127.0.0.1:9000\" }";
    let named = table.read(TO, |value| {
        let named = choice(value, Destination::NAMES);
        named.map_err(|wrong| Wrong { remedy: EXPECTED.to_owned(), ..wrong })
    });
    let upstream = table.read(UPSTREAM, |value| reachable(value, "the router"));
    let is_empty = !table.has_section(TO) || table.empty_section(TO).is_some();
    if !table.is_given(TO) && is_empty {
        let place = table.empty_section(TO);
        table.report(place, TO, Wrong::new("not given", EXPECTED));
    }
    if named == Some(Destination::Zone) && !has_zone {
        let fact = format!("\"pod-of-zone\" without {ZONE}");
        table.report_value(TO, Wrong::new(fact, "expected the router's zone there"));
    }
    upstream.map(|address| Destination::Upstream(address.into())).or(named).unwrap_or_default()
}

fn path(table: &mut ConfigReader<'_>, key: &'static str, expected: &'static str) -> Option<PathPrefix> {
    table.read(key, |value| {
        let text = text(value, expected)?;
        PathPrefix::new(text).map_err(|why| Wrong::new(format!("{} {why}", quoted(text)), expected))
    })
}

const EXPECTED_METHODS: &str = "expected methods, such as [\"GET\", \"HEAD\"]";

fn methods(texts: &[String]) -> Result<Vec<Method>, Wrong> {
    if texts.is_empty() {
        return Err(Wrong::new("empty", EXPECTED_METHODS));
    }
    let method = |text: &String| {
        let is_upper = !text.bytes().any(|byte| byte.is_ascii_lowercase());
        let near = Method::from_bytes(text.to_uppercase().as_bytes()).is_ok().then(|| quoted(&text.to_uppercase()));
        let wrong = || Wrong::new(format!("{} is not a method", quoted(text)), EXPECTED_METHODS).did_you_mean(near);
        Method::from_bytes(text.as_bytes()).ok().filter(|_| is_upper).ok_or_else(wrong)
    };
    texts.iter().map(method).collect()
}

fn header(table: &mut ConfigReader<'_>) -> Option<HeaderMatch> {
    const EXPECTED: &str = "expected the value of a header";
    let value = table.read(VALUE, |value| {
        let text = text(value, EXPECTED)?;
        let wrong = || Wrong::new(format!("{} is not a value of a header", quoted(text)), EXPECTED);
        let parsed = HeaderValue::from_str(text).ok().filter(|_| text.trim() == text && !text.is_empty());
        parsed.ok_or_else(wrong)
    });
    if table.is_given(VALUE) && !table.is_given(HEADER) {
        let fact = format!("given without {HEADER}");
        table.report_key(VALUE, Wrong::new(fact, "expected both"));
    }
    let name = table.header(HEADER)?;
    if name == HOST {
        let fact = "\"host\" is a header by HTTP/1.1 alone";
        table.report_value(HEADER, Wrong::new(fact, "expected another header"));
    }
    Some(HeaderMatch { name, value })
}
