//! The source of a request's partition: the section `partition` of the router, or of a keyspace.
//!
//! # Invariants
//!
//! * Of two sources neither is preferred; the file must choose.

use http::HeaderName;
use http::header::HOST;
use segue_protocol::ids::PartitionId;
use segue_proxy::routing::key_hash::KeyHash;
use segue_proxy::routing::partition_key::{
    AmbiguousPaths, JoinedHeaders, KeySource, MAX_KEY_PARTS, PartitionSource, PathTemplate, PathTemplateError,
    PathTemplates, TemplatesError, WithoutKey, is_part_name,
};

use super::body_key;
use crate::error::{Wrong, quoted};
use crate::reader::{ConfigReader, choice, list, text};

/// The keys of such a section.
pub(super) struct PartitionKeys {
    pub(super) section: &'static str,
    header: &'static str,
    order_by_section: &'static str,
    order_by: &'static str,
    hash: &'static str,
    key: &'static str,
    key_header: &'static str,
    key_headers: &'static str,
    key_path: &'static str,
    key_paths: &'static str,
    key_of: &'static str,
    key_join: &'static str,
    key_query: &'static str,
    key_cookie: &'static str,
    key_host: &'static str,
    key_json: &'static str,
    key_grpc: &'static str,
    ambiguous_paths: &'static str,
    without_key: &'static str,
    without_key_partition: &'static str,
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
            key_headers: concat!($section, ".key.headers"),
            key_path: concat!($section, ".key.path"),
            key_paths: concat!($section, ".key.paths"),
            key_of: concat!($section, ".key.of"),
            key_join: concat!($section, ".key.join"),
            key_query: concat!($section, ".key.query"),
            key_cookie: concat!($section, ".key.cookie"),
            key_host: concat!($section, ".key.host"),
            key_json: concat!($section, ".key.json"),
            key_grpc: concat!($section, ".key.grpc"),
            ambiguous_paths: concat!($section, ".ambiguous_paths"),
            without_key: concat!($section, ".without_key"),
            without_key_partition: concat!($section, ".without_key.partition"),
        }
    };
}

/// The section of a router with one keyspace.
pub(super) const ROUTER: PartitionKeys = keys_of!("router.partition");
/// The section of one keyspace of several.
pub(super) const KEYSPACE: PartitionKeys = keys_of!("keyspaces.partition");

impl PartitionKeys {
    /// Returns the keys of the sources, of which a section has one.
    fn sources(&self) -> [&'static str; 10] {
        let [header, query, cookie, host] = [self.header, self.key_query, self.key_cookie, self.key_host];
        let [json, grpc] = [self.key_json, self.key_grpc];
        [header, self.key_header, self.key_headers, self.key_path, self.key_paths, query, cookie, host, json, grpc]
    }
}

/// Returns the source of a request's partition.
pub(super) fn read(r: &mut ConfigReader<'_>, keys: &PartitionKeys) -> PartitionSource {
    let header = r.header(keys.header);
    let order_by = r.header(keys.order_by);
    let hash = r.choice(keys.hash, KeyHash::NAMES, KeyHash::default());
    let ambiguous = r.choice(keys.ambiguous_paths, AmbiguousPaths::NAMES, AmbiguousPaths::default());
    let join = join(r, keys.key_join);
    let headers = headers(r, keys, &join);
    let paths = paths(r, keys, &join, ambiguous).map(KeySource::Path);
    let [json, grpc] = [body_key::json(r, keys.key_json, &join), body_key::grpc(r, keys.key_grpc, &join)];
    let in_body = [(keys.key_json, json), (keys.key_grpc, grpc)].map(|(key, found)| {
        let parts = if r.is_refused(key) { 0 } else { found.as_ref().map_or(0, |(_, parts)| *parts) };
        one_part_has_no_joiner(r, keys, parts);
        found.map(|(fields, _)| KeySource::Body(fields))
    });
    // Each is read before the number of sources is checked, so that a mistake in any is found.
    let found = [
        key_header(r, keys.key_header).map(KeySource::Header),
        headers,
        r.read(keys.key_path, |value| one_path(text(value, EXPECTED_TEMPLATE)?, ambiguous)).map(KeySource::Path),
        paths,
        r.text(keys.key_query).map(KeySource::Query),
        cookie(r, keys.key_cookie).map(KeySource::Cookie),
        host(r, keys.key_host).then_some(KeySource::Host),
    ];
    one_source(r, keys);
    match found.into_iter().chain(in_body).flatten().next() {
        Some(source) => PartitionSource::Key { source, hash },
        None => PartitionSource::Number { header: header.unwrap_or(PartitionSource::DEFAULT_HEADER), order_by },
    }
}

/// Returns what becomes of requests that have no key, in a keyspace with so many partitions, if the file says how many.
pub(super) fn without_key(r: &mut ConfigReader<'_>, keys: &PartitionKeys, partitions: Option<u32>) -> WithoutKey {
    const EXPECTED: &str = "expected \"refuse\", \"any\" or { partition = 0 }";
    let by_name = r.read(keys.without_key, |value| {
        let named = choice(value, WithoutKey::NAMES);
        named.map_err(|wrong| Wrong { remedy: EXPECTED.to_owned(), ..wrong })
    });
    let number = r.is_given(keys.without_key_partition).then(|| {
        let most = partitions.map_or(65_535, |partitions| i64::from(partitions.saturating_sub(1)));
        r.integer(keys.without_key_partition, 0..=most, 0)
    });
    if let (Some(_), Some(_)) = (by_name, number) {
        let fact = format!("given beside {} ({})", keys.without_key, r.origin(keys.without_key));
        r.report_key(keys.without_key_partition, Wrong::new(fact, "expected one of the two"));
    }
    if let Some(place) = r.empty_section(keys.without_key) {
        r.report(Some(place), keys.without_key, Wrong::new("empty", EXPECTED));
    }
    number.map(|number| WithoutKey::Partition(PartitionId::new(number))).or(by_name).unwrap_or_default()
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
    let sections = [
        (keys.key, "expected one of header, headers, path, paths, query, cookie, host, json, grpc"),
        (keys.order_by_section, "expected header"),
    ];
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
    if r.is_given(keys.ambiguous_paths) && !r.is_given(keys.key_path) && !r.is_given(keys.key_paths) {
        let fact = format!("given without {}; no path is looked at", keys.key_path);
        r.report_key(keys.ambiguous_paths, Wrong::new(fact, "expected it only with a key in the path"));
    }
    if r.is_given(keys.key_of) && !r.is_given(keys.key_paths) {
        let fact = format!("given without {}; no segment has a name", keys.key_paths);
        r.report_key(keys.key_of, Wrong::new(fact, "expected it only with key.paths"));
    }
    let of_parts = [keys.key_paths, keys.key_headers, keys.key_json, keys.key_grpc];
    if r.is_given(keys.key_join) && !of_parts.iter().any(|key| r.is_given(key)) {
        let fact = format!("given without {}, headers, json or grpc; the key has one part", keys.key_paths);
        r.report_key(keys.key_join, Wrong::new(fact, "expected it only with a key of several parts"));
    }
    if r.is_given(keys.order_by) && is_keyed {
        let fact = format!("given beside {}, which is what requests are ordered by", keys.key);
        r.report_key(keys.order_by, Wrong::new(fact, format!("expected it only with {}", keys.header)));
    }
}

const EXPECTED_TEMPLATE: &str = "expected a path with one segment {key}, such as \"/persons/{key}\"";
const EXPECTED_TEMPLATES: &str = "expected paths with named segments, such as [\"/teams/{team}/persons/{person}\"]";
/// Most templates. A request is compared with each.
const MAX_TEMPLATES: usize = 32;

fn one_path(text: &str, ambiguous: AmbiguousPaths) -> Result<PathTemplates, Wrong> {
    PathTemplates::only(text, ambiguous).map_err(|why| no_template(text, &why, EXPECTED_TEMPLATE))
}

fn no_template(text: &str, why: &PathTemplateError, expected: &str) -> Wrong {
    let wrong = Wrong::new(format!("{} {why}", quoted(text)), expected);
    let segments = || text.split('/').map(|segment| if segment.contains('*') { "{}" } else { segment });
    let near = || quoted(&segments().collect::<Vec<_>>().join("/"));
    wrong.did_you_mean((*why == PathTemplateError::Star).then(near))
}

/// Reads several templates, whose segments may be the parts of a key.
fn paths(
    r: &mut ConfigReader<'_>,
    keys: &PartitionKeys,
    join: &str,
    ambiguous: AmbiguousPaths,
) -> Option<PathTemplates> {
    let of = r.read(keys.key_of, |value| names_of_parts(&list(value, EXPECTED_PARTS)?));
    let texts = r.read(keys.key_paths, |value| match list(value, EXPECTED_TEMPLATES)? {
        texts if texts.is_empty() => Err(Wrong::new("empty", EXPECTED_TEMPLATES)),
        texts if texts.len() > MAX_TEMPLATES => {
            Err(Wrong::new(format!("has {} paths", texts.len()), format!("expected at most {MAX_TEMPLATES}")))
        }
        texts => Ok(texts),
    });
    if r.is_refused(keys.key_of) {
        return None;
    }
    let of = of.unwrap_or_else(|| vec!["key".to_owned()]);
    let texts = texts?;
    one_part_has_no_joiner(r, keys, of.len());
    let templates = texts.iter().map(|text| {
        let template = PathTemplate::new(text, &of, ambiguous);
        template.map_err(|why| no_template(text, &why, EXPECTED_TEMPLATES))
    });
    let (templates, wrong): (Vec<_>, Vec<_>) = templates.partition(Result::is_ok);
    if !wrong.is_empty() {
        wrong.into_iter().filter_map(Result::err).for_each(|wrong| r.report_value(keys.key_paths, wrong));
        return None;
    }
    let templates = templates.into_iter().filter_map(Result::ok).collect();
    let found = PathTemplates::new(templates, of.len(), join, ambiguous);
    found.map_err(|why| unfit(r, keys, &why, &texts, &of)).ok()
}

fn unfit(r: &mut ConfigReader<'_>, keys: &PartitionKeys, why: &TemplatesError, texts: &[String], of: &[String]) {
    match why {
        TemplatesError::Covered { later, earlier } => {
            let (later, earlier) = (quoted(&texts[*later]), quoted(&texts[*earlier]));
            let fact = format!("{later} stands behind {earlier}, which matches the same paths: it is never reached");
            r.report_value(keys.key_paths, Wrong::new(fact, "expected it in front, or not at all"));
        }
        TemplatesError::Unused(part) => {
            let fact = format!("{} is a segment of no path", quoted(&of[*part]));
            r.report_value(
                keys.key_of,
                Wrong::new(fact, format!("expected the names of segments in {}", keys.key_paths)),
            );
        }
    }
}

const EXPECTED_PARTS: &str = "expected names of segments, such as [\"team\", \"person\"]";

fn names_of_parts(names: &[String]) -> Result<Vec<String>, Wrong> {
    if names.is_empty() || names.len() > MAX_KEY_PARTS {
        return Err(Wrong::new(format!("has {} names", names.len()), format!("expected 1 to {MAX_KEY_PARTS}")));
    }
    for (index, name) in names.iter().enumerate() {
        if !is_part_name(name) {
            return Err(Wrong::new(format!("{} is not the name of a segment", quoted(name)), EXPECTED_PARTS));
        }
        if names[..index].contains(name) {
            return Err(Wrong::new(format!("names {} twice", quoted(name)), "expected each part once"));
        }
    }
    Ok(names.to_vec())
}

/// Reads what stands between the parts of a key.
fn join(r: &mut ConfigReader<'_>, key: &'static str) -> String {
    r.text(key).unwrap_or_else(|| ":".to_owned())
}

fn one_part_has_no_joiner(r: &mut ConfigReader<'_>, keys: &PartitionKeys, parts: usize) {
    if parts == 1 && r.is_given(keys.key_join) {
        r.report_key(keys.key_join, Wrong::new("the key has one part", "expected it only with a key of several parts"));
    }
}

const EXPECTED_HEADERS: &str = "expected the names of headers, such as [\"x-team\", \"x-person\"]";

/// Reads the headers that are the parts of a key.
fn headers(r: &mut ConfigReader<'_>, keys: &PartitionKeys, join: &str) -> Option<KeySource> {
    let names = r.read(keys.key_headers, |value| names_of_headers(&list(value, EXPECTED_HEADERS)?))?;
    one_part_has_no_joiner(r, keys, names.len());
    Some(match &*names {
        [only] => KeySource::Header(only.clone()),
        _ => KeySource::Headers(JoinedHeaders { names, join: join.to_owned() }),
    })
}

fn names_of_headers(texts: &[String]) -> Result<Vec<HeaderName>, Wrong> {
    if texts.is_empty() || texts.len() > MAX_KEY_PARTS {
        return Err(Wrong::new(format!("has {} headers", texts.len()), format!("expected 1 to {MAX_KEY_PARTS}")));
    }
    let mut names: Vec<HeaderName> = Vec::new();
    for text in texts {
        let wrong = |_| Wrong::new(format!("{} is not the name of a header", quoted(text)), EXPECTED_HEADERS);
        let name = HeaderName::try_from(text).map_err(wrong)?;
        if name == HOST {
            return Err(host_is_no_header());
        }
        if names.contains(&name) {
            return Err(Wrong::new(format!("names {} twice", quoted(text)), "expected each header once"));
        }
        names.push(name);
    }
    Ok(names)
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
        r.report_value(key, host_is_no_header());
        return None;
    }
    Some(name)
}

fn host_is_no_header() -> Wrong {
    let fact = "\"host\" is a header by HTTP/1.1 alone";
    Wrong::new(fact, "expected key = { host = true }, which is the host by HTTP/2 too")
}

fn host(r: &mut ConfigReader<'_>, key: &'static str) -> bool {
    let given = r.boolean(key, true);
    if !given {
        r.report_value(key, Wrong::new("false", "expected true, or no key"));
    }
    r.is_given(key) && given
}
