//! Finds the keyspace that a request is for, by its host or its path, in a router with several.
//!
//! Pure. Not here: the partition within the keyspace ([`partition_key`](super::partition_key)).
//!
//! # Invariants
//!
//! * A host precedes a path prefix, a longer prefix precedes a shorter one, and the keyspace without a match gets the rest.
//! * Prefixes match whole segments: `/persons` matches `/persons` and `/persons/7`, and not `/personsx`.
//! * Where a prefix could match, a path that a pod may read as one of another keyspace is refused.

use http::{HeaderMap, Uri};

use super::host::{host_of, without_port, without_root};
use super::partition_key::{decode, has_empty_segment, is_ambiguous};

/// The requests that are for a keyspace (`[[keyspaces]] match`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyspaceMatch {
    /// Requests to this host, whatever their port.
    Host(HostName),
    /// Requests whose path begins with these segments.
    PathPrefix(PathPrefix),
}

/// A host without a port and without the dot of the root, in lower case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostName(String);

/// The first segments of a path, at least one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathPrefix(Vec<String>);

/// Why a text is no host or no path prefix. Each message continues a sentence about that text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidMatch {
    /// The text is not the name or the address of a host.
    #[error("is not a host")]
    NoHost,
    /// The host has a port.
    #[error("has a port, and ports are not compared")]
    Port,
    /// The text is no absolute path.
    #[error("does not begin with '/'")]
    NotAbsolute,
    /// The path has no segment.
    #[error("matches every path")]
    EveryPath,
    /// A segment is empty.
    #[error("has an empty segment")]
    EmptySegment,
    /// A segment has a `*`, which would match nothing but itself.
    #[error("has a '*', which would match itself alone; longer paths match in any case")]
    Star,
    /// A segment has characters that a path cannot have, or that not all servers read alike.
    #[error("has a segment that not all servers read alike")]
    Ambiguous,
}

impl HostName {
    /// Parses the name or the address of a host. An IPv6 address is in brackets.
    ///
    /// # Errors
    ///
    /// The text is something else, or has a port.
    pub fn new(text: &str) -> Result<Self, InvalidMatch> {
        let host = without_port(text);
        let inner = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        let is_host = match inner {
            Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
            None => {
                !host.is_empty() && host.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'))
            }
        };
        match is_host {
            false => Err(InvalidMatch::NoHost),
            true if host.len() < text.len() => Err(InvalidMatch::Port),
            true => Ok(HostName(without_root(host).to_ascii_lowercase())),
        }
    }
}

impl PathPrefix {
    /// Parses the beginning of a path, such as `/persons`.
    ///
    /// # Errors
    ///
    /// Returns the first reason why the text is no prefix.
    pub fn new(text: &str) -> Result<Self, InvalidMatch> {
        let path = text.strip_prefix('/').ok_or(InvalidMatch::NotAbsolute)?;
        if path.is_empty() {
            return Err(InvalidMatch::EveryPath);
        }
        let is_plain = |c: char| c.is_ascii_graphic() && !matches!(c, '%' | ';' | '\\' | '?' | '#' | '{' | '}');
        for segment in path.split('/') {
            if segment.is_empty() {
                return Err(InvalidMatch::EmptySegment);
            }
            if segment.contains('*') {
                return Err(InvalidMatch::Star);
            }
            if matches!(segment, "." | "..") || !segment.chars().all(is_plain) {
                return Err(InvalidMatch::Ambiguous);
            }
        }
        Ok(PathPrefix(path.split('/').map(str::to_owned).collect()))
    }

    /// Returns the number of segments.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether the path begins with these segments, escaped or not.
    pub(super) fn matches(&self, path: &str) -> bool {
        let mut actual = path.strip_prefix('/').unwrap_or_default().split('/');
        self.0.iter().all(|segment| {
            let is_same = |actual: &str| {
                actual == segment
                    || decode(actual.as_bytes(), false).is_some_and(|decoded| *decoded == *segment.as_bytes())
            };
            actual.next().is_some_and(is_same)
        })
    }
}

/// Why a request is for no keyspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoKeyspace {
    /// No keyspace matches.
    Unmatched,
    /// Pods may read the path as one of another keyspace.
    Ambiguous,
}

/// How a router finds the keyspace that a request is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyspaceChoice {
    /// The router has one keyspace, which gets every request.
    Only,
    /// The router has a list of keyspaces, which may be empty and changes while it runs. A request may match one of them.
    Among(Vec<Option<KeyspaceMatch>>),
}

/// The matches of a router's keyspaces.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct KeyspaceMatches {
    hosts: Vec<(HostName, usize)>,
    /// Longest first.
    prefixes: Vec<(PathPrefix, usize)>,
    rest: Option<usize>,
}

impl KeyspaceMatches {
    /// Returns the matches of keyspaces. The one without a match gets the requests that no other one
    /// matches.
    pub(crate) fn new<'a>(matches: impl IntoIterator<Item = Option<&'a KeyspaceMatch>>) -> Self {
        let mut all = KeyspaceMatches::default();
        for (index, matching) in matches.into_iter().enumerate() {
            match matching {
                Some(KeyspaceMatch::Host(host)) => all.hosts.push((host.clone(), index)),
                Some(KeyspaceMatch::PathPrefix(prefix)) => all.prefixes.push((prefix.clone(), index)),
                None => all.rest = Some(index),
            }
        }
        all.prefixes.sort_by_key(|(prefix, _)| std::cmp::Reverse(prefix.0.len()));
        all
    }

    /// Returns the index of the keyspace that a request with this target and these headers is for.
    ///
    /// # Errors
    ///
    /// Fails if no keyspace matches the request, or a pod may read its path as one of another keyspace.
    pub(crate) fn of(&self, uri: &Uri, headers: &HeaderMap) -> Result<usize, NoKeyspace> {
        if !self.hosts.is_empty()
            && let Some(host) = host_of(uri, headers)
            && let Some((_, index)) = self.hosts.iter().find(|(name, _)| name.0.eq_ignore_ascii_case(host))
        {
            return Ok(*index);
        }
        if let Some((longest, _)) = self.prefixes.first() {
            let path = uri.path();
            let depth = longest.0.len();
            if is_ambiguous(path, depth) || has_empty_segment(path, depth) {
                return Err(NoKeyspace::Ambiguous);
            }
            if let Some((_, index)) = self.prefixes.iter().find(|(prefix, _)| prefix.matches(path)) {
                return Ok(*index);
            }
        }
        self.rest.ok_or(NoKeyspace::Unmatched)
    }
}

#[cfg(test)]
mod tests {
    use http::header::HOST;
    use proptest::prelude::*;

    use super::*;

    fn by_host(text: &str) -> Option<KeyspaceMatch> {
        Some(KeyspaceMatch::Host(HostName::new(text).unwrap()))
    }

    fn by_prefix(text: &str) -> Option<KeyspaceMatch> {
        Some(KeyspaceMatch::PathPrefix(PathPrefix::new(text).unwrap()))
    }

    fn choose(matches: &[Option<KeyspaceMatch>], target: &str, host: Option<&str>) -> Result<usize, NoKeyspace> {
        let mut headers = HeaderMap::new();
        if let Some(host) = host {
            headers.insert(HOST, host.parse().unwrap());
        }
        KeyspaceMatches::new(matches.iter().map(Option::as_ref)).of(&target.parse().unwrap(), &headers)
    }

    #[test]
    fn a_host_is_compared_without_port_and_case() {
        let matches = [by_host("Orders.example"), by_host("[::1]")];
        for host in ["orders.example", "ORDERS.example", "orders.example:8080"] {
            assert_eq!(choose(&matches, "/", Some(host)), Ok(0), "{host}");
        }
        for host in ["[::1]", "[::1]:8080"] {
            assert_eq!(choose(&matches, "/", Some(host)), Ok(1), "{host}");
        }
        for host in ["x.orders.example", "orders.example.org", "orders", "", "[::2]", "[::1"] {
            assert_eq!(choose(&matches, "/", Some(host)), Err(NoKeyspace::Unmatched), "{host}");
        }
        assert_eq!(choose(&matches, "/", None), Err(NoKeyspace::Unmatched));
    }

    #[test]
    fn the_host_of_the_target_precedes_the_header() {
        let matches = [by_host("a.example"), by_host("b.example")];
        assert_eq!(choose(&matches, "http://b.example:80/", Some("a.example")), Ok(1));
        assert_eq!(choose(&matches, "http://c.example/", Some("a.example")), Err(NoKeyspace::Unmatched));
    }

    #[test]
    fn a_prefix_matches_whole_segments() {
        let matches = [by_prefix("/persons")];
        for path in ["/persons", "/persons/", "/persons/7", "/persons?x=/y", "/%70ersons/7"] {
            assert_eq!(choose(&matches, path, None), Ok(0), "{path}");
        }
        for path in ["/", "/personsx", "/person", "/x/persons", "/Persons", "*"] {
            assert_eq!(choose(&matches, path, None), Err(NoKeyspace::Unmatched), "{path}");
        }
    }

    #[test]
    fn a_longer_prefix_precedes_a_shorter_one_and_a_host_precedes_both() {
        let matches = [by_prefix("/a"), by_prefix("/a/b"), None, by_host("h")];
        assert_eq!(choose(&matches, "/a/c", None), Ok(0));
        assert_eq!(choose(&matches, "/a/b/c", None), Ok(1));
        assert_eq!(choose(&matches, "/b", None), Ok(2));
        assert_eq!(choose(&matches, "/a/b", Some("h")), Ok(3));
    }

    #[test]
    fn a_path_that_pods_may_read_as_one_of_another_keyspace_is_refused() {
        let matches = [by_prefix("/a"), None, by_host("h")];
        for path in ["/b/../a/x", "/b/%2e%2e/a", "//a/x", "/a;v=1/x", "/a%2fx", "/b\\..\\a"] {
            assert_eq!(choose(&matches, path, None), Err(NoKeyspace::Ambiguous), "{path}");
            assert_eq!(choose(&matches, path, Some("h")), Ok(2), "{path}");
        }
        assert_eq!(choose(&[by_host("h"), None], "/b/../a/x", None), Ok(1));
        assert_eq!(choose(&matches, "/b//a", None), Ok(1));
        assert_eq!(choose(&[by_prefix("/a"), by_prefix("/a/b")], "/a//b", None), Err(NoKeyspace::Ambiguous));
    }

    #[test]
    fn a_match_that_matches_nothing_or_everything_is_refused() {
        use InvalidMatch::*;
        for (text, error) in [
            ("", NoHost),
            ("a b", NoHost),
            ("a/b", NoHost),
            ("a:80", Port),
            ("[::1]:80", Port),
            ("[x]", NoHost),
            ("::1", NoHost),
        ] {
            assert_eq!(HostName::new(text), Err(error), "{text}");
        }
        for (text, error) in [
            ("a", NotAbsolute),
            ("", NotAbsolute),
            ("/", EveryPath),
            ("/a/", EmptySegment),
            ("//a", EmptySegment),
            ("/a/*", Star),
            ("/a/..", Ambiguous),
            ("/a%20b", Ambiguous),
            ("/{key}", Ambiguous),
        ] {
            assert_eq!(PathPrefix::new(text), Err(error), "{text}");
        }
    }

    proptest! {
        /// The reading of a server that decodes, and then resolves dot segments, slashes, `\` and parameters.
        #[test]
        fn a_server_that_normalises_a_path_finds_the_keyspace_of_the_router(
            path in "(/|a|b|ab|\\.|%2e|%2f|%61|;|\\\\){0,9}",
        ) {
            let matches = [by_prefix("/a"), by_prefix("/a/b"), None];
            let path = format!("/{path}");
            let Ok(uri) = path.parse::<Uri>() else { return Ok(()) };
            let Ok(chosen) = KeyspaceMatches::new(matches.iter().map(Option::as_ref)).of(&uri, &HeaderMap::new()) else {
                return Ok(());
            };
            let decoded = String::from_utf8(decode(uri.path().as_bytes(), false).unwrap().into_owned()).unwrap();
            let mut segments: Vec<&str> = Vec::new();
            let decoded = decoded.replace('\\', "/");
            for segment in decoded.split('/').map(|segment| segment.split(';').next().unwrap()) {
                match segment {
                    "" | "." => {}
                    ".." => drop(segments.pop()),
                    plain => segments.push(plain),
                }
            }
            let expected = match &*segments {
                ["a", "b", ..] => 1,
                ["a", ..] => 0,
                _ => 2,
            };
            prop_assert_eq!(chosen, expected, "{}", path);
        }
    }
}
