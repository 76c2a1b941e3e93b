//! The routes of a router: the tables of the list `[[router.route]]`.
//!
//! # Invariants
//!
//! * Each route looks at something: one that matched everything would leave nothing to the owners.

use http::header::HOST;
use http::{HeaderValue, Method};
use segue_proxy::routing::keyspace_choice::PathPrefix;
use segue_proxy::routing::route_rules::{Destination, HeaderMatch, PathMatch, RouteRule};

use crate::error::{Wrong, quoted};
use crate::keys::ConfigKeys;
use crate::reader::{ConfigReader, list, text};

/// The name of the list.
pub(super) const LIST: &str = "router.route";

const PATH: &str = "router.route.match.path";
const PATH_PREFIX: &str = "router.route.match.path_prefix";
const METHODS: &str = "router.route.match.methods";
const HEADER: &str = "router.route.match.header";
const VALUE: &str = "router.route.match.value";
const MATCH: &str = "router.route.match";
const TO: &str = "router.route.to";
const ZONE: &str = "router.zone";

/// The keys of a table.
pub(crate) static KEYS: ConfigKeys =
    ConfigKeys { sections: &[&[PATH, PATH_PREFIX, METHODS, HEADER, VALUE, TO]], tables: &[] };

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
    let to = table.choice_if_given(TO, Destination::NAMES);
    if !table.is_given(TO) {
        table.report(None, TO, Wrong::new("not given", "expected one of owner, any, pod-of-zone"));
    }
    if to == Some(Destination::Zone) && !has_zone {
        let fact = format!("\"pod-of-zone\" without {ZONE}");
        table.report_value(TO, Wrong::new(fact, "expected the router's zone there"));
    }
    RouteRule { path: exact.or(prefix), methods, header, to: to.unwrap_or_default() }
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
