//! A keyspace's mapping of keys to partitions, as its settings describe it: what becomes of a key, without a request.
//!
//! Pure. A request is made that has the key where the mapping looks for it, and is located as every other one. So the
//! answer is that of the routers, and so are the refusals.

use http::Request;
use http::header::{COOKIE, HOST, HeaderName, HeaderValue};
use http::request::Parts;
use segue_protocol::records::Partitioner;

use super::{AmbiguousPaths, KeySource, LocationError, PartitionSource, PathTemplate, RequestLocation};
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
            Some(("path", text)) => {
                let strict = PathTemplate::new(text, AmbiguousPaths::Reject);
                KeySource::Path(strict.or_else(|_| PathTemplate::new(text, AmbiguousPaths::Pass)).ok()?)
            }
            _ => return None,
        };
        Some(PartitionSource::Key { source, hash })
    }

    /// Returns the location of a request with this key, among `partitions` (at least 1). The key of a mapping by number is
    /// the number.
    ///
    /// # Errors
    ///
    /// Fails if routers would refuse every request with this key, or would find another key in it.
    pub fn locate_key(&self, key: &str, partitions: u32) -> Result<RequestLocation, LocationError> {
        let head = self.head_with(key).ok_or(LocationError::Bad)?;
        let location = self.locate(&head, partitions)?;
        let is_as_written = match self {
            // A host is one key however it is written.
            PartitionSource::Number { .. } | PartitionSource::Key { source: KeySource::Host, .. } => true,
            PartitionSource::Key { source, .. } => source.key(&head)?.as_ref() == key.as_bytes(),
        };
        if is_as_written { Ok(location) } else { Err(LocationError::Bad) }
    }

    /// Returns the head of a request that has this key. `None` if none can.
    fn head_with(&self, key: &str) -> Option<Parts> {
        let request = Request::builder();
        let with_header = |name: &HeaderName, value: &str| {
            Some(Request::builder().header(name, HeaderValue::from_bytes(value.as_bytes()).ok()?))
        };
        let request = match self {
            PartitionSource::Number { header, .. } => with_header(header, key)?,
            PartitionSource::Key { source, .. } => match source {
                KeySource::Header(name) => with_header(name, key)?,
                KeySource::Path(template) => request.uri(template.with_key(&escaped(key))),
                KeySource::Query(name) => request.uri(format!("/?{}={}", escaped(name), escaped(key))),
                KeySource::Cookie(name) => with_header(&COOKIE, &format!("{name}={key}"))?,
                KeySource::Host => with_header(&HOST, key)?,
            },
        };
        Some(request.body(()).ok()?.into_parts().0)
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
        for source in ["header:x-key", "path:/persons/{key}/x", "query:id", "query:a b", "cookie:sid"] {
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
        for (key, hash) in [("paths:/a/{key}", "murmur2"), ("host:x", "murmur2"), ("header:x-key", "sha1")] {
            let partitioner = Partitioner::Key { key: key.to_owned(), hash: hash.to_owned() };
            assert_eq!(PartitionSource::described(&partitioner), None, "{key} {hash}");
        }
        assert_eq!(PartitionSource::described(&Partitioner::Unknown(true.into())), None);
    }
}
