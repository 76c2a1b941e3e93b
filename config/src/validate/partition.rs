//! The source of a request's partition: the section `partition` of the router, or of a keyspace.
//!
//! # Invariants
//!
//! * Of two sources neither is preferred; the file must choose.

use http::HeaderName;
use http::header::HOST;
use segue_proxy::routing::key_hash::KeyHash;
use segue_proxy::routing::partition_key::{AmbiguousPaths, KeySource, PartitionSource, PathTemplate};

use crate::error::{Wrong, quoted};
use crate::reader::{ConfigReader, text};

/// The keys of such a section.
pub(super) struct PartitionKeys {
    pub(super) section: &'static str,
    header: &'static str,
    order_by_section: &'static str,
    order_by: &'static str,
    hash: &'static str,
    key: &'static str,
    key_header: &'static str,
    key_path: &'static str,
    key_query: &'static str,
    key_cookie: &'static str,
    key_host: &'static str,
    ambiguous_paths: &'static str,
}

macro_rules! keys_of {
    ($section:literal) => {
        PartitionKeys {
            section: $section,
            header: concat!($section, ".header"),
            order_by_section: concat!($section, ".order_by"),
            order_by: concat!($section, ".order_by.header"),
            hash: concat!($section, ".hash"),
            key: concat!($section, ".key"),
            key_header: concat!($section, ".key.header"),
            key_path: concat!($section, ".key.path"),
            key_query: concat!($section, ".key.query"),
            key_cookie: concat!($section, ".key.cookie"),
            key_host: concat!($section, ".key.host"),
            ambiguous_paths: concat!($section, ".ambiguous_paths"),
        }
    };
}

/// The section of a router with one keyspace.
pub(super) const ROUTER: PartitionKeys = keys_of!("router.partition");
/// The section of one keyspace of several.
pub(super) const KEYSPACE: PartitionKeys = keys_of!("keyspaces.partition");

impl PartitionKeys {
    /// Returns the keys of the sources, of which a section has one.
    fn sources(&self) -> [&'static str; 6] {
        [self.header, self.key_header, self.key_path, self.key_query, self.key_cookie, self.key_host]
    }
}

/// Returns the source of a request's partition.
pub(super) fn read(r: &mut ConfigReader<'_>, keys: &PartitionKeys) -> PartitionSource {
    let header = r.header(keys.header);
    let order_by = r.header(keys.order_by);
    let hash = r.choice(keys.hash, KeyHash::NAMES, KeyHash::default());
    let ambiguous = r.choice(keys.ambiguous_paths, AmbiguousPaths::NAMES, AmbiguousPaths::default());
    // Each is read before the number of sources is checked, so that a mistake in any is found.
    let found = [
        key_header(r, keys.key_header).map(KeySource::Header),
        r.read(keys.key_path, |value| path_template(text(value, EXPECTED_TEMPLATE)?, ambiguous)).map(KeySource::Path),
        r.text(keys.key_query).map(KeySource::Query),
        cookie(r, keys.key_cookie).map(KeySource::Cookie),
        host(r, keys.key_host).then_some(KeySource::Host),
    ];
    one_source(r, keys);
    match found.into_iter().flatten().next() {
        Some(source) => PartitionSource::Key { source, hash },
        None => PartitionSource::Number { header: header.unwrap_or(PartitionSource::DEFAULT_HEADER), order_by },
    }
}

fn one_source(r: &mut ConfigReader<'_>, keys: &PartitionKeys) {
    let is_given = |key: &&'static str| r.is_given(key);
    let given: Vec<_> = keys.sources().into_iter().filter(is_given).collect();
    let is_keyed = given.iter().any(|key| *key != keys.header);
    if let [first, others @ ..] = &*given {
        for other in others {
            let fact = format!("a second source of the partition beside {first} ({})", r.origin(first));
            r.report_key(other, Wrong::new(fact, "expected exactly one"));
        }
    }
    let sections =
        [(keys.key, "expected one of header, path, query, cookie, host"), (keys.order_by_section, "expected header")];
    for (section, expected) in sections {
        if let Some(place) = r.empty_section(section) {
            r.report(Some(place), section, Wrong::new("empty", expected));
        }
    }
    // With two sources it is unknown which one the file will keep.
    if given.len() > 1 {
        return;
    }
    if r.is_given(keys.hash) && !is_keyed && r.empty_section(keys.key).is_none() {
        let fact = format!("given without {}; the header's number is the partition, and nothing is hashed", keys.key);
        r.report_key(keys.hash, Wrong::new(fact, "expected a key, or no hash"));
    }
    if r.is_given(keys.ambiguous_paths) && !r.is_given(keys.key_path) {
        let fact = format!("given without {}; no path is looked at", keys.key_path);
        r.report_key(keys.ambiguous_paths, Wrong::new(fact, "expected it only with a key in the path"));
    }
    if r.is_given(keys.order_by) && is_keyed {
        let fact = format!("given beside {}, which is what requests are ordered by", keys.key);
        r.report_key(keys.order_by, Wrong::new(fact, format!("expected it only with {}", keys.header)));
    }
}

const EXPECTED_TEMPLATE: &str = "expected a path with one segment {key}, such as \"/persons/{key}\"";

fn path_template(text: &str, ambiguous: AmbiguousPaths) -> Result<PathTemplate, Wrong> {
    let wrong = |why| Wrong::new(format!("{} {why}", quoted(text)), EXPECTED_TEMPLATE);
    PathTemplate::new(text, ambiguous).map_err(wrong)
}

fn cookie(r: &mut ConfigReader<'_>, key: &'static str) -> Option<String> {
    const EXPECTED: &str = "expected the name of a cookie, such as \"sid\"";
    r.read(key, |value| {
        let text = text(value, EXPECTED)?;
        // Cookies and headers allow the same characters, but a cookie's name is case-sensitive.
        let is_name = HeaderName::try_from(text).is_ok();
        let wrong = || Wrong::new(format!("{} is not the name of a cookie", quoted(text)), EXPECTED);
        is_name.then(|| text.to_owned()).ok_or_else(wrong)
    })
}

/// Reads the name of a header with the key. By HTTP/2 there is no header `host`.
fn key_header(r: &mut ConfigReader<'_>, key: &'static str) -> Option<HeaderName> {
    let name = r.header(key)?;
    if name == HOST {
        let fact = "\"host\" is a header by HTTP/1.1 alone";
        r.report_value(key, Wrong::new(fact, "expected key = { host = true }, which is the host by HTTP/2 too"));
        return None;
    }
    Some(name)
}

fn host(r: &mut ConfigReader<'_>, key: &'static str) -> bool {
    let given = r.boolean(key, true);
    if !given {
        r.report_value(key, Wrong::new("false", "expected true, or no key"));
    }
    r.is_given(key) && given
}
