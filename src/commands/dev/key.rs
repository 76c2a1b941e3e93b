//! `--key`: what of a request is its key, in the words that the keyspace's settings have for it.
//!
//! The configuration reads it: here it only becomes the value of `router.partition.key`.

use std::net::SocketAddr;

use http::header::HOST;
use segue_proxy::routing::partition_key::{KeySource, PartitionSource};
use serde_json::json;

use super::shell::quoted;

const EXPECTED: &str = "expected path:/persons/{key}, header:NAME, query:NAME, cookie:NAME, json:NAME or host";

/// The source of a request's key.
#[derive(Debug, Clone)]
pub(super) struct RoutingKey {
    written: String,
    source: PartitionSource,
}

impl RoutingKey {
    /// Reads the value of the option.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let file = format!("[router]\n[router.partition]\nkey = {}\n", value(text).ok_or(EXPECTED)?);
        let config = segue_config::parse("--key", &file, [], "dev").map_err(|errors| {
            let first = errors.iter().next();
            first.map_or_else(|| EXPECTED.to_owned(), segue_config::Problem::in_words)
        })?;
        let routing = config.keyspaces.into_iter().find_map(|keyspace| keyspace.routing).ok_or(EXPECTED)?;
        Ok(RoutingKey { written: text.to_owned(), source: routing.partition })
    }

    /// Returns the option's value.
    pub(super) fn as_str(&self) -> &str {
        &self.written
    }

    /// Returns the value of the key `router.partition.key` of a file.
    pub(super) fn toml(&self) -> String {
        value(&self.written).unwrap_or_default()
    }

    /// Returns a key for an example.
    pub(super) fn example(&self) -> &'static str {
        match &self.source {
            PartitionSource::Key { source: KeySource::Host, .. } => "ann.example",
            _ => "42",
        }
    }

    /// Returns the command line that sends the router at this address a request with the example's key.
    pub(super) fn request(&self, router: SocketAddr) -> String {
        let Some(head) = self.source.requests_with(self.example()).into_iter().next() else {
            return format!("curl http://{router}/");
        };
        let header = |(name, value): (&http::HeaderName, &http::HeaderValue)| {
            let name = if *name == HOST { "host" } else { name.as_str() };
            format!(" -H {}", quoted(&format!("{name}: {}", value.to_str().unwrap_or_default())))
        };
        let headers: String = head.headers.iter().map(header).collect();
        let body = match &self.source {
            PartitionSource::Key { source: KeySource::Body(fields), .. } => fields.body_with(self.example()),
            _ => None,
        };
        let body = body.map_or(String::new(), |body| format!(" -d {}", quoted(&String::from_utf8_lossy(&body))));
        format!("curl{headers}{body} {}", quoted(&format!("http://{router}{}", head.uri)))
    }
}

/// Returns the source as a value of TOML.
fn value(text: &str) -> Option<String> {
    match text.split_once(':') {
        None if text == "host" => Some("{ host = true }".to_owned()),
        // By HTTP/2 there is no such header: `host` is its source.
        Some(("header", name)) if name.eq_ignore_ascii_case("host") => None,
        // A string of JSON is one of TOML.
        Some((kind @ ("path" | "header" | "query" | "cookie" | "json"), what)) => {
            Some(format!("{{ {kind} = {} }}", json!(what)))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_source_has_a_request_that_has_its_key() {
        let router = SocketAddr::from(([127, 0, 0, 1], 8080));
        for (written, request) in [
            ("path:/{key}", "curl http://127.0.0.1:8080/42"),
            ("path:/persons/{key}/mail", "curl http://127.0.0.1:8080/persons/42/mail"),
            ("header:X-Key", "curl -H 'x-key: 42' http://127.0.0.1:8080/"),
            ("query:id", "curl 'http://127.0.0.1:8080/?id=42'"),
            ("cookie:sid", "curl -H 'cookie: sid=42' http://127.0.0.1:8080/"),
            (
                "json:person.id",
                "curl -H 'content-type: application/json' -d '{\"person\":{\"id\":\"42\"}}' http://127.0.0.1:8080/",
            ),
            ("host", "curl -H 'host: ann.example' http://127.0.0.1:8080/"),
        ] {
            assert_eq!(RoutingKey::parse(written).unwrap().request(router), request, "{written}");
        }
    }

    #[test]
    fn what_is_no_source_is_refused_with_what_was_expected() {
        for (written, part) in [
            ("/persons/{key}", "expected path:/persons/{key}"),
            ("path:/persons/{id}", "has no segment {key}"),
            ("path:/persons", "has no segment {key}"),
            ("header:a b", "a b"),
            ("header:Host", "cookie:NAME, json:NAME or host"),
            ("json:a..b", "has a member without a name"),
            ("cookie:a=b", "cookie"),
            ("path:\"}\nx = 1", "does not begin"),
        ] {
            let said = RoutingKey::parse(written).unwrap_err();
            assert!(said.contains(part) && !said.contains("router.partition.key.path"), "{written}: {said}");
        }
    }
}
