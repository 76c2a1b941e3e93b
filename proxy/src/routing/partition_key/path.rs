//! A template of a path, and which paths servers may read differently.
//!
//! Pure. Not here: the key of several templates ([`templates`](super::templates)).
//!
//! # Invariants
//!
//! * Where ambiguous paths are refused, a server that resolves dot segments, decodes escapes, merges slashes, takes `\`
//!   for `/` or drops parameters, in any order, finds the same key as the router or refuses the path as well.
//!   (`tests/fuzz/targets/partition.rs` models the rules of five servers.)

use std::fmt;

use super::decoding::decode;

/// Most parts of a key.
pub const MAX_KEY_PARTS: usize = 8;

/// A path with segments `{name}`, such as `/teams/{team}/persons/{person}`. Longer paths that begin with it match as well.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathTemplate(Vec<TemplateSegment>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum TemplateSegment {
    /// This very text.
    Plain(String),
    /// Any text, which is this part of the key.
    Part(usize),
    /// Any text.
    Any,
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
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PathTemplateError {
    /// The text is no absolute path.
    #[error("does not begin with '/'")]
    NotAbsolute,
    /// No segment is a part of the key. The parts that there are.
    #[error("has no segment {0}")]
    NoKey(String),
    /// Two segments have this name.
    #[error("has more than one segment {{{0}}}")]
    Twice(String),
    /// A segment has a `*`, which would match nothing but itself.
    #[error("has a '*', which would match itself alone")]
    Star,
    /// A segment is empty, or has characters that a path cannot have.
    #[error("has a segment that no path has")]
    NoSegment,
    /// A segment makes every path that matches ambiguous, so all would be refused.
    #[error("has a segment that not all servers read alike")]
    Ambiguous,
}

/// Whether a path is one of a template.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TemplateMatch {
    Yes,
    /// As a server reads it that decodes the path first.
    Escaped,
    No,
}

impl PathTemplate {
    /// Parses a template. `of` are the names of the key's parts, of which it has to have one.
    ///
    /// # Errors
    ///
    /// Returns the first reason why the text is no template.
    pub fn new<S: AsRef<str>>(text: &str, of: &[S], ambiguous: AmbiguousPaths) -> Result<Self, PathTemplateError> {
        let path = text.strip_prefix('/').ok_or(PathTemplateError::NotAbsolute)?;
        let mut names: Vec<&str> = Vec::new();
        let mut segments = Vec::new();
        for segment in path.split('/') {
            let Some(name) = name_of(segment) else {
                segments.push(TemplateSegment::Plain(segment.to_owned()));
                continue;
            };
            if !name.is_empty() && names.contains(&name) {
                return Err(PathTemplateError::Twice(name.to_owned()));
            }
            names.push(name);
            let part = of.iter().position(|part| part.as_ref() == name);
            segments.push(part.map_or(TemplateSegment::Any, TemplateSegment::Part));
        }
        if !segments.iter().any(|segment| matches!(segment, TemplateSegment::Part(_))) {
            let parts: Vec<String> = of.iter().map(|part| format!("{{{}}}", part.as_ref())).collect();
            return Err(PathTemplateError::NoKey(parts.join(" or ")));
        }
        let template = PathTemplate(segments);
        let is_plain = |c: char| c.is_ascii_graphic() && !matches!(c, '{' | '}' | '?' | '#');
        if template.plain().any(|segment| segment.is_empty() || !segment.chars().all(is_plain)) {
            return Err(PathTemplateError::NoSegment);
        }
        if template.plain().any(|segment| segment.contains('*')) {
            return Err(PathTemplateError::Star);
        }
        let is_ambiguous = |segment: &str| matches!(segment, "." | "..") || segment.contains([';', '\\']);
        if ambiguous == AmbiguousPaths::Reject && template.plain().any(is_ambiguous) {
            return Err(PathTemplateError::Ambiguous);
        }
        Ok(template)
    }

    fn plain(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|segment| match segment {
            TemplateSegment::Plain(text) => Some(text.as_str()),
            TemplateSegment::Part(_) | TemplateSegment::Any => None,
        })
    }

    /// Returns the number of segments.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the numbers of the key's parts that it has, from the least.
    pub(super) fn parts(&self) -> Vec<usize> {
        let part = |segment: &TemplateSegment| match segment {
            TemplateSegment::Part(part) => Some(*part),
            TemplateSegment::Plain(_) | TemplateSegment::Any => None,
        };
        let mut parts: Vec<usize> = self.0.iter().filter_map(part).collect();
        parts.sort_unstable();
        parts
    }

    /// Returns whether every path of `other` is one of this template as well.
    pub(super) fn covers(&self, other: &PathTemplate) -> bool {
        let covers = |(own, other): (&TemplateSegment, &TemplateSegment)| match own {
            TemplateSegment::Plain(_) => own == other,
            TemplateSegment::Part(_) | TemplateSegment::Any => true,
        };
        self.0.len() <= other.0.len() && self.0.iter().zip(&other.0).all(covers)
    }

    /// Returns whether a path matches, and passes each part of the key to `found`, as it is written in the path.
    #[inline]
    pub(super) fn find<'path>(&self, path: &'path str, mut found: impl FnMut(usize, &'path str)) -> TemplateMatch {
        let Some(path) = path.strip_prefix('/') else { return TemplateMatch::No };
        let mut actual = path.split('/');
        let mut matched = TemplateMatch::Yes;
        for segment in &self.0 {
            let Some(actual) = actual.next() else { return TemplateMatch::No };
            match segment {
                TemplateSegment::Plain(text) if text == actual => {}
                TemplateSegment::Plain(text) if is_escaped(text, actual) => matched = TemplateMatch::Escaped,
                TemplateSegment::Plain(_) => return TemplateMatch::No,
                // `/persons/` has a segment there, but an empty one is no key.
                TemplateSegment::Part(_) | TemplateSegment::Any if actual.is_empty() => return TemplateMatch::No,
                TemplateSegment::Part(part) => found(*part, actual),
                TemplateSegment::Any => {}
            }
        }
        matched
    }

    /// Writes the template with these texts for the key's parts, and this one for any other segment.
    pub(super) fn write(
        &self,
        out: &mut impl fmt::Write,
        mut part: impl FnMut(usize) -> String,
        any: &str,
    ) -> fmt::Result {
        self.0.iter().try_for_each(|segment| match segment {
            TemplateSegment::Plain(text) => write!(out, "/{text}"),
            TemplateSegment::Part(number) => write!(out, "/{}", part(*number)),
            TemplateSegment::Any => write!(out, "/{any}"),
        })
    }
}

/// Returns the name of a segment `{name}`.
fn name_of(segment: &str) -> Option<&str> {
    let name = segment.strip_prefix('{')?.strip_suffix('}')?;
    is_part_name(name).then_some(name).or((name.is_empty()).then_some(""))
}

/// Returns whether a text may be the name of a segment.
pub fn is_part_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
}

/// Returns whether a segment of a path is this text with escapes.
#[cold]
fn is_escaped(text: &str, actual: &str) -> bool {
    actual.contains('%') && decode(actual.as_bytes(), false).is_some_and(|decoded| *decoded == *text.as_bytes())
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

/// Returns whether merging slashes would change the first `depth` segments.
pub(in crate::routing) fn has_empty_segment(path: &str, depth: usize) -> bool {
    path.find("//").and_then(|at| path.get(..=at)).is_some_and(|before| before.matches('/').count() <= depth)
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

    fn template(text: &str) -> Result<PathTemplate, PathTemplateError> {
        PathTemplate::new(text, &["team", "person"], AmbiguousPaths::Reject)
    }

    #[test]
    fn a_template_has_a_part_of_the_key_and_no_name_twice() {
        use PathTemplateError::*;
        for (text, error) in [
            ("p/{team}", NotAbsolute),
            ("/p", NoKey("{team} or {person}".to_owned())),
            ("/p-{team}", NoKey("{team} or {person}".to_owned())),
            ("/{other}", NoKey("{team} or {person}".to_owned())),
            ("/{team}/{team}", Twice("team".to_owned())),
            ("/{team}/{x}/{x}", Twice("x".to_owned())),
            ("/{team}/p-{person}", NoSegment),
            ("/{team}/{a b}", NoSegment),
            ("//{team}", NoSegment),
            ("/*/{team}", Star),
            ("/a*/{team}", Star),
            ("/a;b/{team}", Ambiguous),
        ] {
            assert_eq!(template(text), Err(error), "{text}");
        }
        for text in ["/{team}", "/{}/{}/{team}", "/teams/{team}/persons/{person}", "/{person}/{x}/{team}"] {
            assert!(template(text).is_ok(), "{text}");
        }
    }

    #[test]
    fn a_template_covers_those_whose_paths_are_all_its_own() {
        for (earlier, later, covers) in [
            ("/a/{team}", "/a/{team}", true),
            ("/a/{team}", "/a/{team}/b", true),
            ("/{x}/{team}", "/a/{person}/c", true),
            ("/a/{team}/b", "/a/{team}", false),
            ("/a/{team}", "/{x}/{team}", false),
            ("/a/{team}", "/b/{team}", false),
        ] {
            assert_eq!(template(earlier).unwrap().covers(&template(later).unwrap()), covers, "{earlier} {later}");
        }
    }
}
