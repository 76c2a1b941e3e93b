//! Keys in the path.
//!
//! Pure.
//!
//! # Invariants
//!
//! * Where ambiguous paths are refused, a server that resolves dot segments, decodes escapes, merges slashes, takes `\`
//!   for `/` or drops parameters, in any order, finds the same key as the router or refuses the path as well.
//!   (`tests/fuzz/targets/partition.rs` models the rules of five servers.)

use std::borrow::Cow;

use super::decoding::{LocationError, decode};

/// A path with one segment `{key}`, such as `/persons/{key}`. Longer paths that begin with it match as well.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathTemplate {
    segments: Vec<Option<String>>,
    ambiguous: AmbiguousPaths,
}

/// The treatment of a path whose key a pod may read differently from the router: one with dot segments, escaped
/// separators, parameters and the like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AmbiguousPaths {
    /// Refuses the request.
    #[default]
    Reject,
    /// Routes by the segments as they are written.
    Pass,
}

impl AmbiguousPaths {
    /// All choices, by their names in the file.
    pub const NAMES: &[(&str, Self)] = &[("reject", AmbiguousPaths::Reject), ("pass", AmbiguousPaths::Pass)];
}

/// Why a text is no path template. Each message continues a sentence about that text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PathTemplateError {
    /// The text is no absolute path.
    #[error("does not begin with '/'")]
    NotAbsolute,
    /// No segment is the key.
    #[error("has no segment {{key}}")]
    NoKey,
    /// Two segments are the key.
    #[error("has more than one segment {{key}}")]
    ManyKeys,
    /// A segment is empty, or has characters that a path cannot have.
    #[error("has a segment that no path has")]
    NoSegment,
    /// A segment makes every path that matches ambiguous, so all would be refused.
    #[error("has a segment that not all servers read alike")]
    Ambiguous,
}

impl std::str::FromStr for PathTemplate {
    type Err = PathTemplateError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::new(text, AmbiguousPaths::default())
    }
}

impl std::fmt::Display for PathTemplate {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.segments.iter().try_for_each(|segment| write!(out, "/{}", segment.as_deref().unwrap_or(KEY)))
    }
}

/// The segment of a template that stands for the key.
const KEY: &str = "{key}";

impl PathTemplate {
    /// Parses a template.
    ///
    /// # Errors
    ///
    /// Returns the first reason why the text is no template.
    pub fn new(text: &str, ambiguous: AmbiguousPaths) -> Result<Self, PathTemplateError> {
        let path = text.strip_prefix('/').ok_or(PathTemplateError::NotAbsolute)?;
        let segments: Vec<_> = path.split('/').map(|segment| (segment != KEY).then_some(segment)).collect();
        match segments.iter().filter(|segment| segment.is_none()).count() {
            0 => return Err(PathTemplateError::NoKey),
            1 => {}
            _ => return Err(PathTemplateError::ManyKeys),
        }
        let is_plain = |segment: &&str| {
            let is_plain = |c: char| c.is_ascii_graphic() && !matches!(c, '{' | '}' | '?' | '#');
            !segment.is_empty() && segment.chars().all(is_plain)
        };
        if !segments.iter().flatten().all(is_plain) {
            return Err(PathTemplateError::NoSegment);
        }
        let is_ambiguous = |segment: &&str| matches!(*segment, "." | "..") || segment.contains([';', '\\']);
        if ambiguous == AmbiguousPaths::Reject && segments.iter().flatten().any(is_ambiguous) {
            return Err(PathTemplateError::Ambiguous);
        }
        let segments = segments.into_iter().map(|segment| segment.map(str::to_owned)).collect();
        Ok(PathTemplate { segments, ambiguous })
    }

    /// Returns the key that the path names.
    pub(super) fn key<'path>(&self, path: &'path str) -> Result<Cow<'path, [u8]>, LocationError> {
        if self.ambiguous == AmbiguousPaths::Pass {
            let raw = self.find(path).ok_or(LocationError::Missing)?;
            return decode(raw.as_bytes(), false).ok_or(LocationError::Bad);
        }
        if is_ambiguous(path, self.segments.len()) {
            return Err(LocationError::Bad);
        }
        let Some(raw) = self.find(path) else {
            // Merging slashes could make it match.
            return Err(if path.contains("//") { LocationError::Bad } else { LocationError::Missing });
        };
        let key = decode(raw.as_bytes(), false).ok_or(LocationError::Bad)?;
        // Many decoders replace what is not UTF-8, so that different keys become the same.
        if std::str::from_utf8(&key).is_err() { Err(LocationError::Bad) } else { Ok(key) }
    }

    /// Returns a path that matches, with this segment as the key's.
    pub(super) fn with_key(&self, key: &str) -> String {
        self.segments.iter().map(|segment| format!("/{}", segment.as_deref().unwrap_or(key))).collect()
    }

    /// Returns the key's segment as written in the path.
    fn find<'path>(&self, path: &'path str) -> Option<&'path str> {
        let mut found = None;
        let mut path_segments = path.strip_prefix('/')?.split('/');
        for segment in &self.segments {
            let actual = path_segments.next()?;
            match segment {
                Some(plain) if plain == actual => {}
                Some(_) => return None,
                None => found = Some(actual),
            }
        }
        // `/persons/` has a segment there, but an empty one is no key.
        found.filter(|key| !key.is_empty())
    }
}

/// Returns whether another server may read the first `segments` segments differently.
pub(in crate::routing) fn is_ambiguous(path: &str, segments: usize) -> bool {
    // Without a branch per byte, so that the loop is vectorised. Most paths have none of these.
    let is_special = |byte: u8| matches!(byte, b'.' | b'%' | b'\\' | b';');
    if !path.bytes().fold(false, |found, byte| found | is_special(byte)) {
        return false;
    }
    let actual = path.as_bytes().split(|byte| *byte == b'/').skip(1);
    actual.enumerate().any(|(index, segment)| is_doubtful(segment, index < segments))
}

/// Returns whether a segment is ambiguous. Behind the template only dot segments matter, because they may lead back
/// anywhere.
fn is_doubtful(segment: &[u8], within_template: bool) -> bool {
    // These describe the part since the last separator, without its parameters.
    let (mut dots, mut others, mut parameters) = (0, false, false);
    let mut at = 0;
    while let Some(byte) = segment.get(at) {
        let escaped = if *byte == b'%' { segment.get(at + 1..at + 3).and_then(hexadecimal) } else { None };
        at += if escaped.is_some() { 3 } else { 1 };
        match escaped.unwrap_or(*byte) {
            0 => return true,
            b'/' | b'\\' => {
                if within_template || is_dots(dots, others) {
                    return true;
                }
                (dots, others, parameters) = (0, false, false);
            }
            b';' if within_template && escaped.is_none() => return true,
            b';' => parameters = true,
            _ if parameters => {}
            b'.' => dots += 1,
            _ => others = true,
        }
    }
    is_dots(dots, others)
}

fn is_dots(dots: usize, others: bool) -> bool {
    !others && (dots == 1 || dots == 2)
}

fn hexadecimal(digits: &[u8]) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    Some((digit(digits[0])? * 16 + digit(digits[1])?) as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key<'path>(template: &str, path: &'path str) -> Result<Cow<'path, [u8]>, LocationError> {
        template.parse::<PathTemplate>().unwrap().key(path)
    }

    #[test]
    fn a_path_template_has_exactly_one_key() {
        use PathTemplateError::*;
        for (text, error) in [
            ("persons/{key}", NotAbsolute),
            ("/persons", NoKey),
            ("/p-{key}", NoKey),
            ("/{key}/{key}", ManyKeys),
            ("/{tenant}/{key}", NoSegment),
            ("//{key}", NoSegment),
            ("/a;b/{key}", Ambiguous),
        ] {
            assert_eq!(text.parse::<PathTemplate>(), Err(error), "{text}");
        }
    }

    #[test]
    fn doubts_matter_up_to_the_last_segment_of_the_template() {
        for (doubtful, within) in [
            ("%2f", true),
            ("%5C", true),
            ("\\", true),
            (";", true),
            // No server takes an escaped `;` for a parameter.
            ("%3b", false),
            ("%25", false),
        ] {
            let within_key = format!("/a/x{doubtful}y/b");
            assert_eq!(key("/a/{key}/b", &within_key).is_err(), within, "{within_key}");
            let behind = format!("/a/x/b/c{doubtful}d");
            assert_eq!(key("/a/{key}/b", &behind).as_deref(), Ok(&b"x"[..]), "{behind}");
        }
    }

    #[test]
    fn a_dot_segment_is_refused_wherever_it_stands_and_however_it_is_written() {
        for dots in [".", "..", "%2e", "%2E.", ".%2e", "..;a", ".%3ba", "x%2f..", "..%5cx", "\\..", "a/../..\\b;c"] {
            for path in [format!("/a/x/{dots}"), format!("/a/x/b/{dots}/c"), format!("/{dots}/a/x")] {
                assert_eq!(key("/a/{key}", &path), Err(LocationError::Bad), "{path}");
            }
        }
        for plain in ["...", ".a", "a.", "..a", "%2e%2ea", ";..", "%252e%252e", "%2e%2"] {
            let path = format!("/a/x/{plain}");
            assert_eq!(key("/a/{key}", &path).as_deref(), Ok(&b"x"[..]), "{path}");
        }
    }

    #[test]
    fn an_empty_segment_is_refused_where_merging_slashes_could_make_a_key() {
        for path in ["//a/x", "/a//x", "/a//"] {
            assert_eq!(key("/a/{key}", path), Err(LocationError::Bad), "{path}");
        }
        assert_eq!(key("/a/{key}", "/a/"), Err(LocationError::Missing));
        assert_eq!(key("/a/{key}", "/a/x//").as_deref(), Ok(&b"x"[..]));
    }

    #[test]
    fn a_key_that_is_not_text_is_refused() {
        for path in ["/a/%ff", "/a/%c0%ae", "/a/%00", "/a/x%2"] {
            assert_eq!(key("/a/{key}", path), Err(LocationError::Bad), "{path}");
        }
    }

    #[test]
    fn who_asks_for_it_has_ambiguous_paths_routed_as_they_are_written() {
        let template = PathTemplate::new("/a/{key}", AmbiguousPaths::Pass).unwrap();
        for (path, found) in
            [("/a/x/../y", &b"x"[..]), ("/a/x;v=1", b"x;v=1"), ("/a/x%2fy", b"x/y"), ("/a/%ff", b"\xff")]
        {
            assert_eq!(template.key(path).as_deref(), Ok(found), "{path}");
        }
    }
}
