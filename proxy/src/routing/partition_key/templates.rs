//! Keys in the path: the segments of one template, or of the first among several that matches.
//!
//! Pure. Not here: one template, and what makes a path ambiguous ([`path`](super::path)).
//!
//! # Invariants
//!
//! * The parts of a key are joined in the order of their numbers, whatever their order in the path. A part that a template
//!   lacks is left out, with its joiner.
//! * No template stands behind one that matches all of its paths.
//! * A path may be ambiguous behind the longest template alone, whichever matches.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use super::decoding::{LocationError, decode};
use super::path::{
    AmbiguousPaths, MAX_KEY_PARTS, PathTemplate, PathTemplateError, TemplateMatch, has_empty_segment, is_ambiguous,
};

/// The templates of a mapping, at least one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathTemplates {
    templates: Vec<PathTemplate>,
    /// Stands between the parts of a key. `None` if keys have one part.
    join: Option<String>,
    /// Segments of the longest template.
    depth: usize,
    ambiguous: AmbiguousPaths,
}

/// Why templates do not fit together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TemplatesError {
    /// All paths of one template are paths of an earlier one.
    Covered {
        /// The number of the template that no path reaches.
        later: usize,
        /// The number of the earlier one.
        earlier: usize,
    },
    /// No template has the part of this number.
    Unused(usize),
}

impl PathTemplates {
    /// Returns the templates of keys with so many `parts`, in the order in which they are tried.
    ///
    /// # Errors
    ///
    /// Fails if no path could reach a template, or no template has one of the parts.
    pub fn new(
        templates: Vec<PathTemplate>,
        parts: usize,
        join: &str,
        ambiguous: AmbiguousPaths,
    ) -> Result<Self, TemplatesError> {
        for (later, template) in templates.iter().enumerate() {
            if let Some(earlier) = templates[..later].iter().position(|earlier| earlier.covers(template)) {
                return Err(TemplatesError::Covered { later, earlier });
            }
        }
        let is_unused = |part: &usize| !templates.iter().any(|template| template.parts().contains(part));
        if let Some(unused) = (0..parts).find(is_unused) {
            return Err(TemplatesError::Unused(unused));
        }
        let depth = templates.iter().map(PathTemplate::len).max().unwrap_or_default();
        let join = (parts > 1).then(|| join.to_owned());
        Ok(PathTemplates { templates, join, depth, ambiguous })
    }

    /// Returns an only template, whose segment `{key}` is the key.
    ///
    /// # Errors
    ///
    /// Returns the first reason why the text is no template.
    pub fn only(text: &str, ambiguous: AmbiguousPaths) -> Result<Self, PathTemplateError> {
        let template = PathTemplate::new(text, &[KEY], ambiguous)?;
        Ok(PathTemplates { depth: template.len(), templates: vec![template], join: None, ambiguous })
    }

    /// Returns the templates that a text describes, the inverse of `Display`.
    pub(super) fn described(text: &str) -> Option<Self> {
        let parse = |ambiguous| Self::parsed(text, ambiguous);
        let found = parse(AmbiguousPaths::Reject).or_else(|| parse(AmbiguousPaths::Pass))?;
        (found.to_string() == text).then_some(found)
    }

    fn parsed(text: &str, ambiguous: AmbiguousPaths) -> Option<Self> {
        let (paths, join) = text.split_once(JOINED_BY).map_or((text, None), |(paths, join)| (paths, Some(join)));
        let numbers: Vec<String> = (1..=MAX_KEY_PARTS).map(|number| number.to_string()).collect();
        let parts = match join {
            None => 1,
            Some(_) => numbers.iter().rposition(|number| paths.contains(&format!("{{{number}}}")))? + 1,
        };
        let one = [KEY.to_owned()];
        let of = if join.is_some() { &numbers[..parts] } else { &one };
        let templates = paths.split(' ').map(|path| PathTemplate::new(path, of, ambiguous).ok());
        Self::new(templates.collect::<Option<_>>()?, parts, join.unwrap_or_default(), ambiguous).ok()
    }

    /// Returns whether there is one template and one part, as `path` in the file describes them.
    pub(super) fn is_only(&self) -> bool {
        self.templates.len() == 1 && self.join.is_none()
    }

    /// Returns the key that the path names.
    pub(super) fn key<'path>(&self, path: &'path str) -> Result<Cow<'path, [u8]>, LocationError> {
        let Some(join) = &self.join else {
            let mut only = "";
            self.find(path, |_, part| only = part)?;
            return self.decoded(only);
        };
        let mut parts = [""; MAX_KEY_PARTS];
        // Looked at again, because templates that do not match have found parts as well.
        self.find(path, |_, _| {})?.find(path, |number, part| parts[number] = part);
        let mut key = Vec::new();
        for part in parts.iter().filter(|part| !part.is_empty()) {
            if !key.is_empty() {
                key.extend_from_slice(join.as_bytes());
            }
            key.extend_from_slice(&self.decoded(part)?);
        }
        Ok(Cow::Owned(key))
    }

    /// Returns the first template that matches. Each part that any template has found so far is passed to `found`.
    #[inline]
    fn find<'path>(
        &self,
        path: &'path str,
        mut found: impl FnMut(usize, &'path str),
    ) -> Result<&PathTemplate, LocationError> {
        let is_strict = self.ambiguous == AmbiguousPaths::Reject;
        if is_strict && is_ambiguous(path, self.depth) {
            return Err(LocationError::Bad);
        }
        for template in &self.templates {
            match template.find(path, &mut found) {
                TemplateMatch::Escaped if is_strict => return Err(LocationError::Bad),
                // A server that merges slashes could find a longer template.
                TemplateMatch::Yes
                    if is_strict && template.len() < self.depth && has_empty_segment(path, self.depth) =>
                {
                    return Err(LocationError::Bad);
                }
                TemplateMatch::Yes => return Ok(template),
                TemplateMatch::Escaped | TemplateMatch::No => {}
            }
        }
        Err(if is_strict && has_empty_segment(path, self.depth) { LocationError::Bad } else { LocationError::Missing })
    }

    fn decoded<'path>(&self, part: &'path str) -> Result<Cow<'path, [u8]>, LocationError> {
        let decoded = decode(part.as_bytes(), false).ok_or(LocationError::Bad)?;
        let is_strict = self.ambiguous == AmbiguousPaths::Reject;
        // Many decoders replace what is not UTF-8, so that different keys become the same.
        if is_strict && std::str::from_utf8(&decoded).is_err() { Err(LocationError::Bad) } else { Ok(decoded) }
    }

    /// Returns paths with this key, one for each template that can have it. `escaped` writes a part.
    pub(super) fn paths_with(&self, key: &str, escaped: impl Fn(&str) -> String) -> Vec<String> {
        let path = |template: &PathTemplate| {
            let numbers = template.parts();
            let pieces: Vec<&str> = match &self.join {
                Some(join) => key.splitn(numbers.len(), join).collect(),
                None => vec![key],
            };
            let mut path = String::new();
            let piece = |part| numbers.iter().position(|number| *number == part).map_or("", |at| pieces[at]);
            let is_possible = pieces.len() == numbers.len() && (self.join.is_none() || !pieces.contains(&""));
            let written = is_possible.then(|| template.write(&mut path, |part| escaped(piece(part)), "-"))?;
            written.ok().map(|()| path)
        };
        self.templates.iter().filter_map(path).collect()
    }
}

/// The name of the part of a key that has one.
const KEY: &str = "key";
const JOINED_BY: &str = " joined by ";

/// A mapping's own form: the parts of keys have numbers, and other segments no names.
impl fmt::Display for PathTemplates {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = |number| if self.join.is_some() { format!("{{{}}}", number + 1) } else { format!("{{{KEY}}}") };
        for (index, template) in self.templates.iter().enumerate() {
            if index > 0 {
                out.write_str(" ")?;
            }
            template.write(out, part, "{}")?;
        }
        self.join.iter().try_for_each(|join| write!(out, "{JOINED_BY}{join}"))
    }
}

impl FromStr for PathTemplates {
    type Err = PathTemplateError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::only(text, AmbiguousPaths::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key<'path>(template: &str, path: &'path str) -> Result<Cow<'path, [u8]>, LocationError> {
        template.parse::<PathTemplates>().unwrap().key(path)
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
        let template = PathTemplates::only("/a/{key}", AmbiguousPaths::Pass).unwrap();
        for (path, found) in
            [("/a/x/../y", &b"x"[..]), ("/a/x;v=1", b"x;v=1"), ("/a/x%2fy", b"x/y"), ("/a/%ff", b"\xff")]
        {
            assert_eq!(template.key(path).as_deref(), Ok(found), "{path}");
        }
    }

    fn templates(texts: &[&str], of: &[&str], join: &str) -> Result<PathTemplates, TemplatesError> {
        let parse = |text: &&str| PathTemplate::new(text, of, AmbiguousPaths::Reject).unwrap();
        PathTemplates::new(texts.iter().map(parse).collect(), of.len(), join, AmbiguousPaths::Reject)
    }

    fn persons() -> PathTemplates {
        templates(&["/teams/{team}/persons/{person}", "/p/{person}"], &["team", "person"], ":").unwrap()
    }

    #[test]
    fn the_parts_of_a_key_are_joined_and_those_that_a_template_lacks_are_left_out() {
        let persons = persons();
        for (path, key) in [
            ("/teams/2/persons/7", "2:7"),
            ("/teams/2/persons/7/events", "2:7"),
            ("/teams/a%20b/persons/%C3%A9", "a b:\u{e9}"),
            ("/p/7", "7"),
            ("/p/2:7", "2:7"),
        ] {
            assert_eq!(persons.key(path).as_deref(), Ok(key.as_bytes()), "{path}");
        }
        let turned = templates(&["/{person}/of/{team}"], &["team", "person"], "").unwrap();
        assert_eq!(turned.key("/7/of/2").as_deref(), Ok(&b"27"[..]));
        for path in ["/teams/2/persons", "/teams/2/persons/", "/teams/2", "/p/", "/", "/q/7", "*"] {
            assert_eq!(persons.key(path), Err(LocationError::Missing), "{path}");
        }
    }

    #[test]
    fn the_first_template_that_matches_counts() {
        let both = templates(&["/a/{key}/b", "/a/{key}", "/{x}/{key}"], &["key"], "").unwrap();
        for (path, key) in [("/a/1/b", "1"), ("/a/1/c", "1"), ("/a/1", "1"), ("/b/2/b", "2")] {
            assert_eq!(both.key(path).as_deref(), Ok(key.as_bytes()), "{path}");
        }
    }

    #[test]
    fn a_path_that_a_server_may_read_as_one_of_another_template_is_refused() {
        let (persons, both) = (persons(), templates(&["/a/{x}/b/{key}", "/a/{key}"], &["key"], "").unwrap());
        for path in ["/a/1//b/2", "/a/1/%62/2", "/a/1/b%2f2", "/a/1/b;c/2", "/a/1/c/../b/2", "/%61/1", "/a/1/./b"] {
            assert_eq!(both.key(path), Err(LocationError::Bad), "{path}");
        }
        for path in ["/teams/2//persons/7", "/team%73/2/persons/7", "/%70/7", "//p/7", "/p/7;x", "/p/%00"] {
            assert_eq!(persons.key(path), Err(LocationError::Bad), "{path}");
        }
        // Whatever is no key by any reading has none.
        for path in ["/b//a/1", "/b/%61/1", "/%62/1"] {
            assert!(persons.key(path).is_err(), "{path}");
        }
        assert_eq!(both.key("/b/1/c//a"), Err(LocationError::Bad));
        assert_eq!(both.key("/b/1/c/d//a"), Err(LocationError::Missing));
        assert_eq!(both.key("/b/%61"), Err(LocationError::Missing));
    }

    #[test]
    fn templates_that_no_path_reaches_and_parts_that_no_template_has_are_refused() {
        let covered = templates(&["/a/{key}", "/b/{key}", "/a/{key}/c"], &["key"], "");
        assert_eq!(covered, Err(TemplatesError::Covered { later: 2, earlier: 0 }));
        let unused = templates(&["/a/{team}"], &["team", "person"], ":");
        assert_eq!(unused, Err(TemplatesError::Unused(1)));
    }

    #[test]
    fn the_form_of_a_mapping_has_no_names_and_is_read_back() {
        assert_eq!(persons().to_string(), "/teams/{1}/persons/{2} /p/{2} joined by :");
        let other = templates(&["/teams/{t}/persons/{p}", "/p/{p}"], &["t", "p"], ":").unwrap();
        assert_eq!(other, persons());
        let of = |texts: &[&str], of: &[&str], join| templates(texts, of, join).unwrap();
        for templates in [
            persons(),
            of(&["/{x}/{key}"], &["key"], ""),
            of(&["/a/{key}/b", "/a/{key}"], &["key"], ""),
            of(&["/{b}/{a}"], &["a", "b"], " joined by "),
        ] {
            assert_eq!(PathTemplates::described(&templates.to_string()), Some(templates));
        }
        for text in ["", "/a", "/a/{b}", "/{1}", "/{key}  /b/{key}", "/{2} joined by :", "/{1} /{1}/a joined by :"] {
            assert_eq!(PathTemplates::described(text), None, "{text}");
        }
    }
}
