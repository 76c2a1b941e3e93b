//! A keyspace's mapping of keys to partitions, as its settings describe it: what becomes of a key, without a request.
//!
//! Pure. A request is made that has the key where the mapping looks for it, and is located as every other one. So the
//! answer is that of the routers, and so are the refusals.

use http::Request;
use http::header::{CONTENT_TYPE, COOKIE, HOST, HeaderName, HeaderValue};
use http::request::Parts;
use segue_protocol::records::Partitioner;

use super::{
    BodyKey, FoundKey, JoinedHeaders, KeySource, LocationError, PartitionSource, PathTemplates, RequestLocation,
};
use crate::routing::key_hash::KeyHash;

impl PartitionSource {
    /// Returns the mapping that a keyspace's settings describe, the inverse of [`partitioner`](Self::partitioner). `None` if
    /// this version does not know it. The settings do not name the header of a number.
    pub fn described(partitioner: &Partitioner) -> Option<Self> {
        let (key, hash) = match partitioner {
            Partitioner::Number { .. } => {
                return Some(PartitionSource::Number { header: Self::DEFAULT_HEADER, order_by: None });
            }
            Partitioner::Key { key, hash } => (key.as_str(), hash.as_str()),
            Partitioner::Unknown(_) => return None,
        };
        let (_, hash) = *KeyHash::NAMES.iter().find(|(name, _)| *name == hash)?;
        let source = match key.split_once(':') {
            None if key == "host" => KeySource::Host,
            Some(("header", name)) => KeySource::Header(HeaderName::from_bytes(name.as_bytes()).ok()?),
            Some(("query", name)) => KeySource::Query(name.to_owned()),
            Some(("cookie", name)) => KeySource::Cookie(name.to_owned()),
            Some(("headers", text)) => {
                let (names, join) = text.split_once(" joined by ")?;
                let names = names.split(' ').map(|name| HeaderName::from_bytes(name.as_bytes()).ok());
                KeySource::Headers(JoinedHeaders { names: names.collect::<Option<_>>()?, join: join.to_owned() })
            }
            Some((kind @ ("path" | "paths"), text)) => {
                let templates = PathTemplates::described(text)?;
                KeySource::Path(Some(templates).filter(|found| found.is_only() == (kind == "path"))?)
            }
            Some(("json" | "grpc", _)) => KeySource::Body(BodyKey::described(key)?),
            _ => return None,
        };
        Some(PartitionSource::Key { source, hash })
    }

    /// Returns the location of a request with this key, among `partitions` (at least 1). The key of a mapping by number is
    /// the number, and that of several parts the parts with their joiner.
    ///
    /// # Errors
    ///
    /// Fails if routers would refuse every request with this key, or would find another key in it.
    pub fn locate_key(&self, key: &str, partitions: u32) -> Result<RequestLocation, LocationError> {
        if let PartitionSource::Key { .. } = self
            && key.is_empty()
        {
            return Err(LocationError::Missing);
        }
        let mut refusal = LocationError::Bad;
        for head in self.requests_with(key) {
            match self.locate(&head, partitions) {
                Ok(location) if self.is_as_written(key, &head) => return Ok(location),
                Ok(_) => {}
                Err(why) => refusal = why,
            }
        }
        Err(refusal)
    }

    /// Returns whether a request with this head has this very key.
    fn is_as_written(&self, key: &str, head: &Parts) -> bool {
        match self {
            // A host is one key however it is written.
            PartitionSource::Number { .. } | PartitionSource::Key { source: KeySource::Host, .. } => true,
            PartitionSource::Key { source, .. } => source.key(head).is_ok_and(|found| *found == *key.as_bytes()),
        }
    }

    /// Returns the heads of requests that have this key, one for each way to write it.
    pub fn requests_with(&self, key: &str) -> Vec<Parts> {
        let of = |request: http::request::Builder| Some(request.body(()).ok()?.into_parts().0);
        let with_headers = |lines: &[(&HeaderName, &str)]| {
            let add = |request: http::request::Builder, (name, value): &(&HeaderName, &str)| {
                Some(request.header(*name, HeaderValue::from_bytes(value.as_bytes()).ok()?))
            };
            of(lines.iter().try_fold(Request::builder(), add)?)
        };
        let only = match self {
            PartitionSource::Number { header, .. } => with_headers(&[(header, key)]),
            PartitionSource::Key { source, .. } => match source {
                KeySource::Header(name) => with_headers(&[(name, key)]),
                KeySource::Headers(JoinedHeaders { names, join }) => {
                    let parts: Vec<&str> = key.splitn(names.len(), join).collect();
                    let lines: Vec<_> = names.iter().zip(parts).collect();
                    with_headers(&lines).filter(|_| lines.len() == names.len())
                }
                KeySource::Path(templates) => {
                    let paths = templates.paths_with(key, escaped);
                    return paths.into_iter().filter_map(|path| of(Request::builder().uri(path))).collect();
                }
                KeySource::Query(name) => of(Request::builder().uri(format!("/?{}={}", escaped(name), escaped(key)))),
                KeySource::Cookie(name) => with_headers(&[(&COOKIE, &format!("{name}={key}"))]),
                KeySource::Host => with_headers(&[(&HOST, key)]),
                KeySource::Body(fields) => fields.body_with(key).and_then(|body| {
                    let mut head = with_headers(&[(&CONTENT_TYPE, fields.content_type())])?;
                    head.extensions.insert(FoundKey(fields.key(&body).ok()?.into()));
                    Some(head)
                }),
            },
        };
        only.into_iter().collect()
    }
}

/// Escapes all but the characters that no part of a URI gives a meaning (RFC 3986, 2.3).
fn escaped(text: &str) -> String {
    let escape = |byte: u8| match byte {
        b'-' | b'.' | b'_' | b'~' => char::from(byte).to_string(),
        _ if byte.is_ascii_alphanumeric() => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(escape).collect()
}

#[cfg(test)]
mod tests {
    use segue_protocol::ids::PartitionId;

    use super::*;

    fn described(key: &str) -> PartitionSource {
        let partitioner = Partitioner::Key { key: key.to_owned(), hash: "murmur2".to_owned() };
        let source = PartitionSource::described(&partitioner).unwrap();
        assert_eq!(source.partitioner(), partitioner);
        source
    }

    #[test]
    fn a_key_is_where_a_request_with_it_is_wherever_the_mapping_looks_for_it() {
        for source in [
            "header:x-key",
            "path:/persons/{key}/x",
            "path:/teams/{}/persons/{key}",
            "paths:/p/{key}/x /q/{key}",
            "query:id",
            "query:a b",
            "cookie:sid",
            "json:person.id",
            "grpc:3.1",
        ] {
            for key in ["4711", "jörg", "a b", "a+b", "x.y", "100%"] {
                let at = described(source).locate_key(key, 64).map(|at| at.partition);
                assert_eq!(at, Ok(KeyHash::Murmur2.partition(key.as_bytes(), 64)), "{source} {key}");
            }
        }
        let host = described("host");
        for key in ["tenant.example", "Tenant.Example:8080"] {
            let expected = KeyHash::Murmur2.partition(b"tenant.example", 64);
            assert_eq!(host.locate_key(key, 64).map(|at| at.partition), Ok(expected), "{key}");
        }
    }

    #[test]
    fn a_key_of_several_parts_is_its_parts_with_the_joiner() {
        for (source, keys, none) in [
            ("paths:/teams/{1}/persons/{2} /p/{2} joined by :", &["2:7", "a:b:c", "7", "2:"][..], &[""][..]),
            ("paths:/{2}/{1} joined by  joined by ", &["a joined by b"], &["a", "a joined by "]),
            ("headers:x-team x-person joined by /", &["2/7", "a/b/c"], &["2", "2/", "/7", "/", "2/ 7"]),
            ("json:team,person.id joined by /", &["2/7", "a/b/c", "2/ 7"], &["2", "2/", "/7", "/", "2/a\0b"]),
            ("grpc:1,3.1 joined by :", &["2:7", "a:b:c"], &["2", "2:", ":7", ":"]),
        ] {
            let source = described(source);
            for key in keys {
                let at = source.locate_key(key, 64).map(|at| at.partition);
                assert_eq!(at, Ok(KeyHash::Murmur2.partition(key.as_bytes(), 64)), "{source:?} {key}");
            }
            for key in none {
                assert!(source.locate_key(key, 64).is_err(), "{source:?} {key}");
            }
        }
    }

    #[test]
    fn a_key_that_routers_refuse_or_read_otherwise_is_in_no_partition() {
        for (source, key, error) in [
            ("header:x-key", "", LocationError::Missing),
            ("header:x-key", " a", LocationError::Bad),
            ("header:x-key", "a\nb", LocationError::Bad),
            ("path:/persons/{key}", "", LocationError::Missing),
            ("path:/persons/{key}", "a/b", LocationError::Bad),
            ("path:/persons/{key}", "..", LocationError::Bad),
            ("cookie:sid", "a;b=c", LocationError::Bad),
            ("cookie:sid", "%41", LocationError::Bad),
            ("query:id", "a\0b", LocationError::Bad),
            ("json:id", "", LocationError::Missing),
            ("json:id", "a\0b", LocationError::Bad),
        ] {
            assert_eq!(described(source).locate_key(key, 64), Err(error), "{source} {key:?}");
        }
    }

    #[test]
    fn the_key_of_a_mapping_by_number_is_the_number() {
        let source = PartitionSource::described(&Partitioner::NUMBER).unwrap();
        assert_eq!(source.locate_key("7", 64).map(|at| at.partition), Ok(PartitionId::new(7)));
        for key in ["64", "07", "x", ""] {
            assert_eq!(source.locate_key(key, 64), Err(LocationError::Bad), "{key:?}");
        }
    }

    #[test]
    fn a_mapping_of_another_version_is_not_guessed() {
        for (key, hash) in [
            ("moon:/a/{key}", "murmur2"),
            ("paths:/a/{key}", "murmur2"),
            ("host:x", "murmur2"),
            ("header:x-key", "sha1"),
        ] {
            let partitioner = Partitioner::Key { key: key.to_owned(), hash: hash.to_owned() };
            assert_eq!(PartitionSource::described(&partitioner), None, "{key} {hash}");
        }
        assert_eq!(PartitionSource::described(&Partitioner::Unknown(true.into())), None);
    }
}
