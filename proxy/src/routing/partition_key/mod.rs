//! Finds the partition that a request is for, and the order that it must keep, from its head. The key of a body is in the head's
//! extensions by then.
//!
//! Pure. Not here: reading bodies ahead ([`forward`](crate::forward)), whether the partition has an owner, and the response to a request that names no partition
//! ([`local_reply`](crate::message::local_reply)).
//!
//! # Invariants
//!
//! * A request whose head contradicts itself is refused, never routed by one of the readings.
//! * The key that a request is routed by is the key that its pod finds, however the pod normalises what it reads.
//! * A key maps to the partition that the producers compute ([`key_hash`](crate::routing::key_hash)).

mod body;
mod decoding;
mod described;
mod pairs;
mod path;
mod templates;

use std::borrow::Cow;

use http::header::{HOST, HeaderName};
use http::request::Parts;
use segue_protocol::ids::PartitionId;
use segue_protocol::records::Partitioner;

use crate::routing::host::host_of;
use crate::routing::key_hash::{KeyHash, order_of};

pub(crate) use body::{BODY_HEADERS, FoundKey};
pub use body::{BodyKey, FieldNumber, FieldPath, FieldPathError, MemberName, OverlappingPaths};
pub use decoding::LocationError;
pub(super) use decoding::decode;
pub use path::{AmbiguousPaths, MAX_KEY_PARTS, PathTemplate, PathTemplateError, is_part_name};
pub(super) use path::{has_empty_segment, is_ambiguous};
pub use templates::{PathTemplates, TemplatesError};

/// Where a request names its partition (`[router.partition]`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PartitionSource {
    /// A header with the partition's number.
    Number {
        /// The header.
        header: HeaderName,
        /// A header with the key whose requests stay in order across a cutover. `None`: only arrival orders them.
        order_by: Option<HeaderName>,
    },
    /// A key, hashed. Its requests also stay in order.
    Key {
        /// Where the key is.
        source: KeySource,
        /// How it is hashed.
        hash: KeyHash,
    },
}

/// What becomes of a request that names no partition and has no key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WithoutKey {
    /// It is refused.
    #[default]
    Refuse,
    /// It goes to any pod, which is told that the request has no key. It waits for no cutover.
    Any,
    /// It is a request of this partition, in no order.
    Partition(PartitionId),
}

impl WithoutKey {
    /// The choices that have a name in the file.
    pub const NAMES: &[(&str, Self)] = &[("refuse", WithoutKey::Refuse), ("any", WithoutKey::Any)];
}

/// Where a request has its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeySource {
    /// The value of this header.
    Header(HeaderName),
    /// The values of several headers, joined.
    Headers(JoinedHeaders),
    /// A segment of the path, or several, joined.
    Path(PathTemplates),
    /// The query parameter of this name.
    Query(String),
    /// The cookie of this name.
    Cookie(String),
    /// The host that the request is for, in lower case and without its port.
    Host,
    /// Fields of the body.
    Body(BodyKey),
}

/// Headers whose values are the parts of a key.
///
/// A joiner within a part is not escaped, so `a:b` and `c` are the key of `a` and `b:c`. That is a key as producers write it,
/// and harms nothing: requests with one key share a partition and an order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinedHeaders {
    /// The headers, in the order of the parts. Each occurs once.
    pub names: Vec<HeaderName>,
    /// What stands between two parts.
    pub join: String,
}

/// The partition and the order of a request, as far as its head says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestLocation {
    /// Its partition.
    pub partition: PartitionId,
    /// The hash of the key that orders it. Requests without one are ordered by arrival only.
    pub order: Option<u64>,
}

impl PartitionSource {
    /// The header that is used if the file names none.
    pub const DEFAULT_HEADER: HeaderName = HeaderName::from_static("x-partition");

    /// Returns the partition, among `partitions` (at least 1), that a request with this head is for.
    ///
    /// # Errors
    ///
    /// Fails if the head names no partition, two different ones, or one that does not exist, or a key that pods may
    /// read differently.
    pub fn locate(&self, head: &Parts, partitions: u32) -> Result<RequestLocation, LocationError> {
        match self {
            PartitionSource::Number { header: name, order_by } => {
                let partition = number(header(head, name)?).ok_or(LocationError::Bad)?;
                if partition.get() >= partitions {
                    return Err(LocationError::Bad);
                }
                let order = match order_by.as_ref().map(|name| only(head, name)) {
                    None | Some(Err(LocationError::Missing) | Ok(b"")) => None,
                    Some(key) => Some(order_of(key?)),
                };
                Ok(RequestLocation { partition, order })
            }
            PartitionSource::Key { source, hash } => {
                let key = source.key(head)?;
                Ok(RequestLocation { partition: hash.partition(&key, partitions), order: Some(order_of(&key)) })
            }
        }
    }

    /// Returns the key that orders a request with this head, if it has one.
    pub fn order_key<'head>(&self, head: &'head Parts) -> Option<Cow<'head, [u8]>> {
        match self {
            PartitionSource::Number { order_by, .. } => only(head, order_by.as_ref()?).ok().map(Cow::Borrowed),
            PartitionSource::Key { source, .. } => source.key(head).ok(),
        }
    }

    /// Returns the fields of the body that are the key, if it is there.
    #[inline]
    pub(crate) fn body_key(&self) -> Option<&BodyKey> {
        match self {
            PartitionSource::Key { source: KeySource::Body(key), .. } => Some(key),
            PartitionSource::Key { .. } | PartitionSource::Number { .. } => None,
        }
    }

    /// Returns the mapping of requests to partitions in the form in which the routers of a keyspace compare theirs.
    pub fn partitioner(&self) -> Partitioner {
        let PartitionSource::Key { source, hash } = self else {
            return Partitioner::NUMBER;
        };
        let key = match source {
            KeySource::Header(name) => format!("header:{name}"),
            KeySource::Query(name) => format!("query:{name}"),
            KeySource::Cookie(name) => format!("cookie:{name}"),
            KeySource::Headers(JoinedHeaders { names, join }) => {
                let names: Vec<&str> = names.iter().map(HeaderName::as_str).collect();
                format!("headers:{} joined by {join}", names.join(" "))
            }
            KeySource::Path(templates) if templates.is_only() => format!("path:{templates}"),
            KeySource::Path(templates) => format!("paths:{templates}"),
            KeySource::Host => "host".to_owned(),
            KeySource::Body(key) => key.to_string(),
        };
        Partitioner::Key { key, hash: hash.name().to_owned() }
    }
}

impl KeySource {
    /// Returns the key of a request with this head, which is not empty.
    fn key<'head>(&self, head: &'head Parts) -> Result<Cow<'head, [u8]>, LocationError> {
        let key = match self {
            KeySource::Header(name) => Cow::Borrowed(only(head, name)?),
            KeySource::Headers(headers) => headers.key(head)?,
            KeySource::Path(templates) => templates.key(head.uri.path())?,
            KeySource::Query(name) => pairs::query(head.uri.query().unwrap_or_default(), name)?,
            KeySource::Cookie(name) => pairs::cookie(&head.headers, name)?,
            KeySource::Host => host(head)?,
            KeySource::Body(_) => {
                let found = head.extensions.get::<FoundKey>().ok_or(LocationError::Missing)?;
                Cow::Borrowed(&*found.0)
            }
        };
        if key.is_empty() { Err(LocationError::Missing) } else { Ok(key) }
    }
}

impl JoinedHeaders {
    fn key(&self, head: &Parts) -> Result<Cow<'static, [u8]>, LocationError> {
        let mut key = Vec::new();
        let mut is_missing = false;
        for name in &self.names {
            match only(head, name) {
                Err(LocationError::Missing) | Ok(b"") => is_missing = true,
                Err(why) => return Err(why),
                Ok(_) if is_missing => {}
                Ok(part) => {
                    if !key.is_empty() {
                        key.extend_from_slice(self.join.as_bytes());
                    }
                    key.extend_from_slice(part);
                }
            }
        }
        if is_missing { Err(LocationError::Missing) } else { Ok(Cow::Owned(key)) }
    }
}

/// Returns the values of a header. It is nearly always among few, where comparing names costs less than a lookup.
fn values<'head>(head: &'head Parts, name: &HeaderName) -> impl Iterator<Item = &'head [u8]> {
    head.headers.iter().filter(move |(other, _)| *other == name).map(|(_, value)| value.as_bytes())
}

/// Returns the one value of a header that may be repeated but must not contradict itself.
fn header<'head>(head: &'head Parts, name: &HeaderName) -> Result<&'head [u8], LocationError> {
    let mut values = values(head, name);
    let first = values.next().ok_or(LocationError::Missing)?;
    if values.all(|other| other == first) { Ok(first) } else { Err(LocationError::Bad) }
}

/// Returns the value of a header that may occur only once: a server that joins lines would read another key from two of
/// them. Spaces around the value come by HTTP/2 only (RFC 9113, 8.2.1, forbids them), and every reader of HTTP/1.1
/// strips them.
fn only<'head>(head: &'head Parts, name: &HeaderName) -> Result<&'head [u8], LocationError> {
    let mut values = values(head, name);
    let first = values.next().ok_or(LocationError::Missing)?;
    if values.next().is_none() && first.trim_ascii() == first { Ok(first) } else { Err(LocationError::Bad) }
}

/// Returns the host that a request is for, as all servers read it: two `Host` lines may contradict each other.
fn host(head: &Parts) -> Result<Cow<'_, [u8]>, LocationError> {
    if values(head, &HOST).nth(1).is_some() {
        return Err(LocationError::Bad);
    }
    let host = host_of(&head.uri, &head.headers).ok_or(LocationError::Missing)?;
    Ok(if host.bytes().any(|byte| byte.is_ascii_uppercase()) {
        Cow::Owned(host.to_ascii_lowercase().into_bytes())
    } else {
        Cow::Borrowed(host.as_bytes())
    })
}

/// Parses a decimal number without a sign or leading zeros.
fn number(text: &[u8]) -> Option<PartitionId> {
    if text.is_empty() || text.len() > 10 || (text[0] == b'0' && text.len() > 1) {
        return None;
    }
    let mut number = 0u32;
    for byte in text {
        let digit = byte.checked_sub(b'0').filter(|digit| *digit < 10)?;
        number = number.checked_mul(10)?.checked_add(u32::from(digit))?;
    }
    Some(PartitionId::new(number))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const P0: PartitionId = PartitionId::new(0);
    const P7: PartitionId = PartitionId::new(7);
    const P63: PartitionId = PartitionId::new(63);

    fn head(uri: &str, headers: &[(&'static str, &str)]) -> Parts {
        let mut request = http::Request::builder().uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    fn by_header() -> PartitionSource {
        PartitionSource::Number {
            header: HeaderName::from_static("x-partition"),
            order_by: Some(HeaderName::from_static("x-key")),
        }
    }

    fn by(source: KeySource) -> PartitionSource {
        PartitionSource::Key { source, hash: KeyHash::Murmur2 }
    }

    fn of_key(key: &[u8]) -> Result<RequestLocation, LocationError> {
        Ok(RequestLocation { partition: KeyHash::Murmur2.partition(key, 64), order: Some(order_of(key)) })
    }

    #[test]
    fn a_partition_header_is_the_number_itself() {
        let found = |value| by_header().locate(&head("/", &[("x-partition", value)]), 64).map(|at| at.partition);
        assert_eq!(found("0"), Ok(P0));
        assert_eq!(found("63"), Ok(P63));
        for bad in ["64", "", "-1", "+1", "01", "1.0", "0x1", "1, 2", "4294967296", "99999999999", "one"] {
            assert_eq!(found(bad), Err(LocationError::Bad), "{bad:?}");
        }
    }

    #[test]
    fn a_request_without_the_header_names_no_partition() {
        assert_eq!(by_header().locate(&head("/", &[]), 64), Err(LocationError::Missing));
    }

    #[test]
    fn a_repeated_header_may_not_contradict_itself() {
        let twice = |a, b| by_header().locate(&head("/", &[("x-partition", a), ("x-partition", b)]), 64);
        assert_eq!(twice("7", "7").map(|at| at.partition), Ok(P7));
        assert_eq!(twice("7", "8"), Err(LocationError::Bad));
    }

    #[test]
    fn the_order_comes_from_its_own_header_or_not_at_all() {
        let order = |headers: &[(&'static str, &str)]| by_header().locate(&head("/", headers), 64).unwrap().order;
        assert_eq!(order(&[("x-partition", "1")]), None);
        assert_eq!(order(&[("x-partition", "1"), ("x-key", "anna")]), Some(order_of(b"anna")));
    }

    #[test]
    fn a_key_or_an_order_in_a_header_stands_there_once() {
        let keyed = by(KeySource::Header(HeaderName::from_static("x-key")));
        for values in [["a", "b"], ["a", "a"]] {
            let lines = values.map(|value| ("x-key", value));
            assert_eq!(keyed.locate(&head("/", &lines), 64), Err(LocationError::Bad), "{values:?}");
            let numbered = [("x-partition", "1"), lines[0], lines[1]];
            assert_eq!(by_header().locate(&head("/", &numbered), 64), Err(LocationError::Bad), "{values:?}");
        }
    }

    #[test]
    fn a_key_or_an_order_with_spaces_around_it_is_refused() {
        let keyed = by(KeySource::Header(HeaderName::from_static("x-key")));
        for value in [" a", "a ", "a\t", " "] {
            assert_eq!(keyed.locate(&head("/", &[("x-key", value)]), 64), Err(LocationError::Bad), "{value:?}");
            let numbered = [("x-partition", "1"), ("x-key", value)];
            assert_eq!(by_header().locate(&head("/", &numbered), 64), Err(LocationError::Bad), "{value:?}");
        }
        assert_eq!(keyed.locate(&head("/", &[("x-key", "a b")]), 64), of_key(b"a b"));
    }

    #[test]
    fn a_path_key_is_one_decoded_segment_whatever_follows() {
        let persons = by(KeySource::Path("/persons/{key}".parse().unwrap()));
        let found = |uri| persons.locate(&head(uri, &[]), 64);
        assert_eq!(found("/persons/42"), of_key(b"42"));
        assert_eq!(found("/persons/42/events?x=1"), of_key(b"42"));
        assert_eq!(found("http://host/persons/42"), of_key(b"42"));
        assert_eq!(found("/persons/a%20b+c"), of_key(b"a b+c"));
        for missing in ["/persons", "/persons/", "/people/42", "/v1/persons/42", "/"] {
            assert_eq!(found(missing), Err(LocationError::Missing), "{missing}");
        }
        assert_eq!(found("/persons/4%2"), Err(LocationError::Bad));
        let nested = by(KeySource::Path("/v1/{key}/events".parse().unwrap()));
        assert_eq!(nested.locate(&head("/v1/7/events/9", &[]), 64), of_key(b"7"));
        assert_eq!(nested.locate(&head("/v1/7/other", &[]), 64), Err(LocationError::Missing));
    }

    #[test]
    fn a_key_of_several_headers_has_all_of_them_once() {
        let names = ["x-team", "x-person"].map(HeaderName::from_static).to_vec();
        let joined = by(KeySource::Headers(JoinedHeaders { names, join: ":".to_owned() }));
        let found = |lines: &[(&'static str, &str)]| joined.locate(&head("/", lines), 64);
        assert_eq!(found(&[("x-person", "7"), ("x-team", "2")]), of_key(b"2:7"));
        assert_eq!(found(&[("x-team", "a:b"), ("x-person", "c")]), found(&[("x-team", "a"), ("x-person", "b:c")]));
        for missing in [&[("x-team", "2")][..], &[("x-person", "7")], &[("x-team", ""), ("x-person", "7")], &[]] {
            assert_eq!(found(missing), Err(LocationError::Missing), "{missing:?}");
        }
        for bad in [[("x-team", "2"), ("x-team", "2")], [("x-person", "7 "), ("x-person", "7")]] {
            assert_eq!(found(&bad), Err(LocationError::Bad), "{bad:?}");
        }
        assert_eq!(found(&[("x-person", "7 ")]), Err(LocationError::Bad));
    }

    #[test]
    fn a_query_key_is_decoded_as_a_form_would_be() {
        let id = by(KeySource::Query("id".to_owned()));
        let found = |uri| id.locate(&head(uri, &[]), 64);
        assert_eq!(found("/?id=42"), of_key(b"42"));
        assert_eq!(found("/?a=1&id=a%26b+c&z"), of_key(b"a&b c"));
        assert_eq!(found("/?i%64=42"), of_key(b"42"));
        assert_eq!(found("/?id=%zz"), Err(LocationError::Bad));
        assert_eq!(found("/?ids=1"), Err(LocationError::Missing));
        assert_eq!(found("/"), Err(LocationError::Missing));
    }

    #[test]
    fn a_cookie_key_is_found_among_the_others() {
        let sid = by(KeySource::Cookie("sid".to_owned()));
        let found = |value| sid.locate(&head("/", &[("cookie", value)]), 64);
        assert_eq!(found("a=1; sid=42; b=2"), of_key(b"42"));
        assert_eq!(found("sid=42"), of_key(b"42"));
        assert_eq!(found("xsid=1; sid2=2"), Err(LocationError::Missing));
        assert_eq!(sid.locate(&head("/", &[("cookie", "a=1"), ("cookie", "sid=42")]), 64), of_key(b"42"));
    }

    /// Returns any bytes as a client would escape them.
    fn escaped(key: &[u8]) -> String {
        key.iter().map(|byte| format!("%{byte:02x}")).collect()
    }

    proptest! {
        #[test]
        fn any_key_is_found_wherever_it_is_carried(
            // A path or a query carries text only.
            text in "[^\\x00/\\\\;.]{1,20}",
            partitions in 1..=i32::MAX as u32,
            hash in prop::sample::select(&[KeyHash::Murmur2, KeyHash::Crc32, KeyHash::Fnv1a, KeyHash::Xxh3][..]),
        ) {
            let key = text.as_bytes();
            let keyed = |source| PartitionSource::Key { source, hash };
            let expected = Ok(RequestLocation { partition: hash.partition(key, partitions), order: Some(order_of(key)) });
            prop_assert!(expected.is_ok_and(|at: RequestLocation| at.partition.get() < partitions));
            let path = keyed(KeySource::Path("/persons/{key}".parse().unwrap()));
            prop_assert_eq!(path.locate(&head(&format!("/persons/{}/x", escaped(key)), &[]), partitions), expected);
            let query = keyed(KeySource::Query("id".to_owned()));
            prop_assert_eq!(query.locate(&head(&format!("/?a=1&id={}", escaped(key)), &[]), partitions), expected);
            // A header cannot carry every key.
            if key.trim_ascii() == key
                && let Ok(value) = http::HeaderValue::from_bytes(key)
            {
                let mut carried = head("/", &[]);
                carried.headers.insert("x-key", value);
                let header = keyed(KeySource::Header(HeaderName::from_static("x-key")));
                prop_assert_eq!(header.locate(&carried, partitions), expected);
            }
        }

        #[test]
        fn a_number_is_read_in_the_one_way_that_it_is_written(text in "[0-9]{0,12}|[+-]?[0-9]{1,3}|\\PC{0,4}", partitions: u32) {
            prop_assume!(partitions > 0);
            let read = text.parse::<u32>().ok().filter(|number| number.to_string() == text && *number < partitions);
            prop_assert_eq!(number(text.as_bytes()).map(PartitionId::get).filter(|number| *number < partitions), read);
        }
    }

    #[test]
    fn a_mapping_is_told_to_other_routers_by_where_its_key_is_and_its_hash() {
        let told = |source| PartitionSource::Key { source, hash: KeyHash::Fnv1a }.partitioner();
        for (source, key) in [
            (KeySource::Header(HeaderName::from_static("x-key")), "header:x-key"),
            (KeySource::Path("/persons/{key}/events".parse().unwrap()), "path:/persons/{key}/events"),
            (KeySource::Query("id".to_owned()), "query:id"),
            (KeySource::Cookie("sid".to_owned()), "cookie:sid"),
            (KeySource::Host, "host"),
        ] {
            assert_eq!(told(source), Partitioner::Key { key: key.to_owned(), hash: "fnv1a".to_owned() });
        }
        assert_eq!(by_header().partitioner(), Partitioner::NUMBER);
    }

    #[test]
    fn an_empty_key_is_no_key() {
        let missing = Err(LocationError::Missing);
        let header = by(KeySource::Header(HeaderName::from_static("x-key")));
        assert_eq!(header.locate(&head("/", &[("x-key", "")]), 64), missing);
        assert_eq!(by(KeySource::Query("id".to_owned())).locate(&head("/?id=&x=1", &[]), 64), missing);
        assert_eq!(by(KeySource::Cookie("sid".to_owned())).locate(&head("/", &[("cookie", "sid=")]), 64), missing);
        assert_eq!(by(KeySource::Host).locate(&head("/", &[("host", "")]), 64), missing);
        assert_eq!(by(KeySource::Host).locate(&head("/", &[("host", ":80")]), 64), missing);
        let ordered = by_header().locate(&head("/", &[("x-partition", "1"), ("x-key", "")]), 64);
        assert_eq!(ordered.unwrap().order, None);
    }

    #[test]
    fn a_host_is_one_key_however_it_is_written() {
        let found = |uri: &str, headers: &[(&'static str, &str)]| by(KeySource::Host).locate(&head(uri, headers), 64);
        let tenant = of_key(b"tenant.example");
        for host in ["tenant.example", "Tenant.Example", "tenant.example:8080", "tenant.example."] {
            assert_eq!(found("/", &[("host", host)]), tenant, "{host}");
        }
        // As by HTTP/2, and for an absolute target, which counts before the header.
        assert_eq!(found("http://tenant.example:8080/a", &[]), tenant);
        assert_eq!(found("http://tenant.example/a", &[("host", "other")]), tenant);
        assert_eq!(found("/", &[("host", "[::1]:80")]), of_key(b"[::1]"));
        assert_eq!(found("/", &[]), Err(LocationError::Missing));
        assert_eq!(found("/", &[("host", "a"), ("host", "a")]), Err(LocationError::Bad));
    }
}
