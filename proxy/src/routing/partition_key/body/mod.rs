//! Keys in the bodies of requests: members of a JSON object, or fields of the first message of a gRPC call.
//!
//! Pure. A body is examined once, as soon as enough of it is there: the whole object, whose last member may repeat an earlier
//! one, or the whole message, of which the last occurrence of a field counts. Not here: reading ahead, and its bound
//! ([`forward`](crate::forward)).
//!
//! # Invariants
//!
//! * A key is found in a whole object or message, never in the beginning of one.
//! * A body in which parsers may find different keys is refused, never routed by one of them.

mod field_path;
mod json;
mod protobuf;

use std::fmt;

use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderName, HeaderValue};
use segue_protocol::headers::is_grpc;

use super::decoding::LocationError;
use super::path::MAX_KEY_PARTS;

pub use field_path::{FieldNumber, FieldPath, FieldPathError, MemberName};

/// The headers that say what a body is. A pod has to get them as the router has read them.
pub(crate) static BODY_HEADERS: [HeaderName; 2] = [CONTENT_TYPE, CONTENT_ENCODING];
/// Bytes in front of a gRPC message: whether it is compressed, and its length.
const GRPC_PREFIX_BYTES: usize = 5;

/// Fields of a body whose values are the parts of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BodyKey {
    fields: BodyFields,
    /// Stands between the parts of a key.
    join: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum BodyFields {
    Json(Vec<FieldPath<MemberName>>),
    Grpc(Vec<FieldPath<FieldNumber>>),
}

/// Two paths cannot both lead to a part of a key: they are the same, or one leads through the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OverlappingPaths {
    /// The number of the one.
    pub later: usize,
    /// The number of the other.
    pub earlier: usize,
}

/// The key that was found in the body, among the extensions of its head. A head without it has no key.
#[derive(Clone)]
pub(crate) struct FoundKey(pub(crate) Box<[u8]>);

impl BodyKey {
    /// Returns the key of these members of a JSON object, at least one.
    ///
    /// # Errors
    ///
    /// Fails if no object can have all of them.
    pub fn json(members: Vec<FieldPath<MemberName>>, join: &str) -> Result<Self, OverlappingPaths> {
        apart(&members)?;
        Ok(BodyKey { fields: BodyFields::Json(members), join: join.to_owned() })
    }

    /// Returns the key of these fields of a gRPC message, at least one.
    ///
    /// # Errors
    ///
    /// Fails if no message can have all of them.
    pub fn grpc(fields: Vec<FieldPath<FieldNumber>>, join: &str) -> Result<Self, OverlappingPaths> {
        apart(&fields)?;
        Ok(BodyKey { fields: BodyFields::Grpc(fields), join: join.to_owned() })
    }

    /// Returns what a text describes, the inverse of `Display`.
    pub(super) fn described(text: &str) -> Option<Self> {
        let (kind, text) = text.split_once(':')?;
        let (paths, join) = text.split_once(JOINED_BY).unwrap_or((text, DEFAULT_JOIN));
        let found = match kind {
            "json" => Self::json(parsed(paths)?, join),
            "grpc" => Self::grpc(parsed(paths)?, join),
            _ => return None,
        };
        found.ok().filter(|found| found.parts() <= MAX_KEY_PARTS)
    }

    fn parts(&self) -> usize {
        match &self.fields {
            BodyFields::Json(members) => members.len(),
            BodyFields::Grpc(fields) => fields.len(),
        }
    }

    /// Returns whether a body with these headers may have the key.
    pub(crate) fn may_be_in(&self, headers: &HeaderMap) -> Result<bool, LocationError> {
        let mut types = headers.get_all(CONTENT_TYPE).iter();
        let Some(content_type) = types.next() else { return Ok(false) };
        // A server may read either.
        if types.next().is_some() || content_type.as_bytes().contains(&b',') {
            return Err(LocationError::Bad);
        }
        match &self.fields {
            BodyFields::Grpc(_) if !is_grpc(content_type.as_bytes()) => Ok(false),
            BodyFields::Grpc(_) if is_protobuf(content_type) => Ok(true),
            BodyFields::Grpc(_) => Err(LocationError::Unreadable),
            BodyFields::Json(_) => is_json(content_type, headers),
        }
    }

    /// Returns how many bytes have to be there until [`key`](Self::key) can tell, by those that are. `None`: all.
    pub(crate) fn needed(&self, begun: &[u8]) -> Option<usize> {
        match &self.fields {
            BodyFields::Json(_) => None,
            BodyFields::Grpc(_) => match begun {
                [_, a, b, c, d, ..] => Some(GRPC_PREFIX_BYTES + u32::from_be_bytes([*a, *b, *c, *d]) as usize),
                _ => Some(GRPC_PREFIX_BYTES),
            },
        }
    }

    /// Returns the key of a body that begins like this. As much of it has to be there as `needed` says, or all.
    ///
    /// # Errors
    ///
    /// Fails if there is no key, or a part of it is missing, or parsers may find different ones.
    pub fn key(&self, begun: &[u8]) -> Result<Vec<u8>, LocationError> {
        if begun.is_empty() {
            return Err(LocationError::Missing);
        }
        let parts = match &self.fields {
            BodyFields::Json(members) => json::find(members, begun)?,
            BodyFields::Grpc(fields) => protobuf::find(fields, message(begun)?)?,
        };
        let parts: Option<Vec<Vec<u8>>> = parts.into_iter().map(|part| part.filter(|part| !part.is_empty())).collect();
        Ok(parts.ok_or(LocationError::Missing)?.join(self.join.as_bytes()))
    }

    /// Returns a body with this key, whose parts are text. `None` if the key has too few of them.
    pub fn body_with(&self, key: &str) -> Option<Vec<u8>> {
        let parts: Vec<&str> = key.splitn(self.parts(), &self.join).collect();
        if parts.len() < self.parts() {
            return None;
        }
        Some(match &self.fields {
            BodyFields::Json(members) => json::write(members, &parts),
            BodyFields::Grpc(fields) => {
                let message = protobuf::write(fields, &parts);
                let length = u32::try_from(message.len()).ok()?;
                [&[0][..], &length.to_be_bytes(), &message].concat()
            }
        })
    }

    /// Returns the type of a body that has the key.
    pub fn content_type(&self) -> &'static str {
        match &self.fields {
            BodyFields::Json(_) => "application/json",
            BodyFields::Grpc(_) => "application/grpc",
        }
    }
}

const JOINED_BY: &str = " joined by ";
/// Of a key with one part, where it makes no difference.
const DEFAULT_JOIN: &str = ":";

/// A mapping's own form. No path has a space or a comma.
impl fmt::Display for BodyKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.fields {
            BodyFields::Json(members) => write!(out, "json:{}", listed(members))?,
            BodyFields::Grpc(fields) => write!(out, "grpc:{}", listed(fields))?,
        }
        if self.parts() > 1 { write!(out, "{JOINED_BY}{}", self.join) } else { Ok(()) }
    }
}

fn listed(paths: &[impl fmt::Display]) -> String {
    paths.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

fn parsed<P: std::str::FromStr>(paths: &str) -> Option<Vec<P>> {
    paths.split(',').map(|path| path.parse().ok()).collect()
}

fn apart<Step: PartialEq>(paths: &[FieldPath<Step>]) -> Result<(), OverlappingPaths> {
    for (later, path) in paths.iter().enumerate() {
        if let Some(earlier) = paths[..later].iter().position(|earlier| earlier.overlaps(path)) {
            return Err(OverlappingPaths { later, earlier });
        }
    }
    Ok(())
}

/// Returns whether gRPC carries protobuf, as it does where nothing else is said.
fn is_protobuf(content_type: &HeaderValue) -> bool {
    let kind = media_type(content_type.as_bytes());
    [&b"application/grpc"[..], b"application/grpc+proto"].iter().any(|known| kind.eq_ignore_ascii_case(known))
}

/// Returns whether a body is JSON that can be read.
fn is_json(content_type: &HeaderValue, headers: &HeaderMap) -> Result<bool, LocationError> {
    let kind = media_type(content_type.as_bytes());
    let has_suffix = kind.len() > 5 && kind[kind.len() - 5..].eq_ignore_ascii_case(b"+json");
    let is_named = kind.eq_ignore_ascii_case(b"application/json") || has_suffix;
    if !is_named || is_grpc(content_type.as_bytes()) {
        return Ok(false);
    }
    let is_plain = |coding: &HeaderValue| coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"identity");
    if !headers.get_all(CONTENT_ENCODING).iter().all(is_plain) {
        return Err(LocationError::Compressed);
    }
    let parameters = content_type.as_bytes().split(|byte| *byte == b';').skip(1);
    let mut charsets = parameters.filter_map(|parameter| {
        let (name, value) = parameter.split_at(parameter.iter().position(|byte| *byte == b'=')?);
        name.trim_ascii().eq_ignore_ascii_case(b"charset").then_some(value[1..].trim_ascii())
    });
    let is_utf8 = |charset: &[u8]| {
        let bare = charset.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\"")).unwrap_or(charset);
        bare.eq_ignore_ascii_case(b"utf-8")
    };
    if charsets.all(is_utf8) { Ok(true) } else { Err(LocationError::Unreadable) }
}

/// Returns the type without its parameters.
fn media_type(content_type: &[u8]) -> &[u8] {
    content_type.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii()
}

/// Returns the first message of a gRPC call that begins like this.
fn message(begun: &[u8]) -> Result<&[u8], LocationError> {
    let (prefix, rest) = begun.split_first_chunk::<GRPC_PREFIX_BYTES>().ok_or(LocationError::Unreadable)?;
    let [flag, length @ ..] = *prefix;
    match flag {
        0 => rest.get(..u32::from_be_bytes(length) as usize).ok_or(LocationError::Unreadable),
        1 => Err(LocationError::Compressed),
        _ => Err(LocationError::Unreadable),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> BodyKey {
        let key = BodyKey::described(text).unwrap();
        assert_eq!(key.to_string(), text);
        key
    }

    fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        lines.iter().map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn the_type_of_a_body_decides_whether_it_may_have_the_key() {
        let (json, grpc) = (key("json:id"), key("grpc:1"));
        for (content_type, in_json, in_grpc) in [
            ("application/json", Ok(true), Ok(false)),
            ("Application/JSON ; charset=UTF-8", Ok(true), Ok(false)),
            ("application/json;charset=\"utf-8\";x=y", Ok(true), Ok(false)),
            ("application/vnd.api+json", Ok(true), Ok(false)),
            ("application/json; charset=utf-16", Err(LocationError::Unreadable), Ok(false)),
            ("application/json, text/plain", Err(LocationError::Bad), Err(LocationError::Bad)),
            ("application/x-www-form-urlencoded", Ok(false), Ok(false)),
            ("text/json", Ok(false), Ok(false)),
            ("+json", Ok(false), Ok(false)),
            ("", Ok(false), Ok(false)),
            ("application/grpc", Ok(false), Ok(true)),
            ("application/grpc+proto", Ok(false), Ok(true)),
            ("application/grpc; x=y", Ok(false), Ok(true)),
            ("application/grpc+json", Ok(false), Err(LocationError::Unreadable)),
            ("application/grpc+thrift", Ok(false), Err(LocationError::Unreadable)),
            ("application/grpc-web+proto", Ok(false), Ok(false)),
        ] {
            let headers = headers(&[("content-type", content_type)]);
            assert_eq!(json.may_be_in(&headers), in_json, "{content_type}");
            assert_eq!(grpc.may_be_in(&headers), in_grpc, "{content_type}");
        }
        assert_eq!(json.may_be_in(&HeaderMap::new()), Ok(false));
        let json_type = ("content-type", "application/json");
        for (more, expected) in [
            (("content-type", "text/plain"), Err(LocationError::Bad)),
            (("content-encoding", "gzip"), Err(LocationError::Compressed)),
            (("content-encoding", "identity"), Ok(true)),
        ] {
            assert_eq!(json.may_be_in(&headers(&[json_type, more])), expected, "{more:?}");
        }
    }

    #[test]
    fn as_much_is_needed_as_decides_the_key() {
        assert_eq!(key("json:id").needed(b"{\"id\":1}"), None);
        let grpc = key("grpc:1");
        for (begun, needed) in
            [(&b""[..], 5), (&[0; 4], 5), (&[0; 5], 5), (&[0, 0, 0, 1, 2], 263), (&[9; 9], 0x0909_090e)]
        {
            assert_eq!(grpc.needed(begun), Some(needed), "{begun:?}");
        }
    }

    #[test]
    fn a_key_is_all_of_its_parts_joined() {
        let json = key("json:team,person.id joined by :");
        for (body, found) in [
            (r#"{"team":2,"person":{"id":7}}"#, Ok("2:7")),
            (r#"{"person":{"name":"x","id":"7"},"team":"2"}"#, Ok("2:7")),
            (r#"{"team":"a:b","person":{"id":"c"}}"#, Ok("a:b:c")),
            (r#"{"team":2}"#, Err(LocationError::Missing)),
            (r#"{"team":"","person":{"id":7}}"#, Err(LocationError::Missing)),
            ("{}", Err(LocationError::Missing)),
            ("", Err(LocationError::Missing)),
        ] {
            assert_eq!(json.key(body.as_bytes()), found.map(|key| key.as_bytes().to_vec()), "{body}");
        }
    }

    #[test]
    fn the_first_message_of_a_call_has_the_key() {
        let grpc = key("grpc:1,2 joined by -");
        for (begun, found) in [
            (&b"\0\0\0\0\x04\x08\x02\x10\x07"[..], Ok(&b"2-7"[..])),
            // What follows is the next message.
            (b"\0\0\0\0\x04\x08\x02\x10\x07\x01\xff", Ok(b"2-7")),
            (b"\0\0\0\0\x02\x08\x02\x10\x07", Err(LocationError::Missing)),
            (b"\0\0\0\0\0", Err(LocationError::Missing)),
            (b"\0\0\0\0\x04\x08\x02\x10", Err(LocationError::Unreadable)),
            (b"\0\0\0\0", Err(LocationError::Unreadable)),
            (b"\x02\0\0\0\x04\x08\x02\x10\x07", Err(LocationError::Unreadable)),
            (b"\x01\0\0\0\x04\x08\x02\x10\x07", Err(LocationError::Compressed)),
        ] {
            assert_eq!(grpc.key(begun), found.map(<[u8]>::to_vec), "{begun:?}");
        }
    }

    #[test]
    fn the_form_of_a_mapping_is_read_back_and_no_other_is() {
        for text in ["json:id", "json:person.id,team joined by  joined by ", "grpc:536870911", "grpc:1,3.1 joined by ,"]
        {
            key(text);
        }
        let name = "json:joined,by joined by joined by x";
        assert_eq!(key(name).key(br#"{"joined":"a","by":"b"}"#), Ok(b"ajoined by xb".to_vec()));
        for text in [
            "json:",
            "json:a,a joined by :",
            "json:a,a.b joined by :",
            "json:a b",
            "json:a..b",
            "grpc:0",
            "grpc:01",
            "grpc:+1",
            "grpc:536870912",
            "grpc:1.",
            "grpc:1,1.2 joined by :",
            "grpc:1,2,3,4,5,6,7,8,9 joined by :",
            "xml:a",
        ] {
            assert!(BodyKey::described(text).is_none_or(|found| found.to_string() != text), "{text}");
        }
    }

    #[test]
    fn a_body_that_is_made_for_a_key_has_it() {
        for text in ["json:id", "json:a.b,a.c joined by :", "grpc:1", "grpc:3.1,3.2,4 joined by :"] {
            let made = key(text);
            for wanted in ["7", "a:b", "2:7:x", "j\u{f6}rg:\"{}:\\"] {
                let Some(body) = made.body_with(wanted) else { continue };
                assert_eq!(made.key(&body), Ok(wanted.as_bytes().to_vec()), "{text} {wanted}");
            }
            assert_eq!(made.body_with("7").is_some(), made.parts() == 1, "{text}");
        }
    }
}
