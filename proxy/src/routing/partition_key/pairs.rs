//! Keys in the query or in a cookie.
//!
//! Pure.
//!
//! # Invariants
//!
//! * A query or a cookie that names the key twice is refused: servers differ in which of the two counts.
//! * One that names the key in a way that not all servers read alike is refused too.

use std::borrow::Cow;

use http::HeaderMap;
use http::header::COOKIE;

use super::decoding::{LocationError, decode};

/// Returns the value of the one parameter of this name. Some servers ignore the case of names, separate parameters by
/// `;` as well, or take `name[]` for the name.
pub(super) fn query<'head>(query: &'head str, name: &str) -> Result<Cow<'head, [u8]>, LocationError> {
    let (mut found, mut named) = (None, 0);
    for pair in query.split('&') {
        if pair.contains(';') {
            if pair.split(';').any(|piece| NameMatch::by(parameter(piece).0, name) != NameMatch::Otherwise) {
                return Err(LocationError::Bad);
            }
            continue;
        }
        let (key, value) = parameter(pair);
        match NameMatch::by(key, name) {
            NameMatch::Exactly => found = Some(value),
            NameMatch::Almost => {}
            NameMatch::Otherwise => continue,
        }
        named += 1;
    }
    // A request whose key only some servers find is not one without a key.
    let value = found.ok_or(if named > 0 { LocationError::Bad } else { LocationError::Missing })?;
    if named > 1 {
        return Err(LocationError::Bad);
    }
    let value = decode(value.as_bytes(), true).ok_or(LocationError::Bad)?;
    if is_text(&value) { Ok(value) } else { Err(LocationError::Bad) }
}

/// Returns whether the value is UTF-8 without NUL. Many decoders replace what is not UTF-8, so that different keys
/// become the same, and some languages end a text at a NUL.
fn is_text(value: &[u8]) -> bool {
    !value.contains(&0) && std::str::from_utf8(value).is_ok()
}

fn parameter(pair: &str) -> (&str, &str) {
    pair.split_once('=').unwrap_or((pair, ""))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NameMatch {
    Exactly,
    /// The name for some servers only.
    Almost,
    Otherwise,
}

impl NameMatch {
    fn by(key: &str, name: &str) -> Self {
        let Some(key) = decode(key.as_bytes(), true) else {
            return NameMatch::Otherwise;
        };
        let (bare, rest) = key.split_at(key.len().min(name.len()));
        if !bare.eq_ignore_ascii_case(name.as_bytes()) {
            NameMatch::Otherwise
        } else if rest.is_empty() && bare == name.as_bytes() {
            NameMatch::Exactly
        } else if matches!(rest.first(), None | Some(b'[' | 0)) {
            NameMatch::Almost
        } else {
            NameMatch::Otherwise
        }
    }
}

/// Returns the value of the cookie of this name with its escapes decoded, as many servers do. Some servers ignore the
/// case of names, and some strip quotes and read over a `;` between them.
pub(super) fn cookie<'head>(headers: &'head HeaderMap, name: &str) -> Result<Cow<'head, [u8]>, LocationError> {
    let mut found = None;
    let (mut contradicted, mut torn) = (false, false);
    for line in headers.get_all(COOKIE) {
        for pair in line.as_bytes().split(|byte| *byte == b';') {
            let Some(equals) = pair.iter().position(|byte| *byte == b'=') else {
                torn |= pair.contains(&b'"');
                continue;
            };
            let (key, value) = (pair[..equals].trim_ascii_start(), pair[equals + 1..].trim_ascii());
            let quoted = pair.contains(&b'"');
            torn |= quoted && !is_whole(key, value);
            if !key.trim_ascii_end().eq_ignore_ascii_case(name.as_bytes()) {
                continue;
            }
            contradicted |= quoted || found.is_some_and(|earlier| earlier != (key, value));
            found = Some((key, value));
        }
    }
    let (key, value) = found.ok_or(LocationError::Missing)?;
    if contradicted || torn || key != name.as_bytes() {
        return Err(LocationError::Bad);
    }
    // Servers that decode take a wrongly escaped value as it is.
    let value = decode(value, false).unwrap_or(Cow::Borrowed(value));
    if is_text(&value) { Ok(value) } else { Err(LocationError::Bad) }
}

/// Returns whether quotes stand only around the value.
fn is_whole(key: &[u8], value: &[u8]) -> bool {
    let inner = value.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\""));
    !key.contains(&b'"') && inner.is_some_and(|inner| !inner.iter().any(|byte| matches!(byte, b'"' | b'\\')))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn a_parameter_is_found_by_its_name_alone() {
        for (text, value) in [("id=1", "1"), ("a=2&id=1&ids=3", "1"), ("i%64=1", "1"), ("id", ""), ("a;b=2&id=1", "1")]
        {
            assert_eq!(query(text, "id").as_deref(), Ok(value.as_bytes()), "{text}");
        }
        for missing in ["", "ids=1", "xid=1", "%zzid=1", "a[id]=1"] {
            assert_eq!(query(missing, "id"), Err(LocationError::Missing), "{missing}");
        }
    }

    #[test]
    fn a_parameter_that_some_servers_take_for_this_one_is_refused() {
        for text in ["ID=1", "id[]=1", "i%44=1", "a=1&Id=", "id%00=1"] {
            assert_eq!(query(text, "id"), Err(LocationError::Bad), "{text}");
        }
    }

    #[test]
    fn a_parameter_that_is_named_twice_is_refused_however_it_is_spelt() {
        for text in
            ["id=1&id=2", "id=1&id=1", "id=1&Id=2", "id[]=2&id=1", "id[x]=2&id=1", "id%00=2&id=1", "id=1&i%44=2"]
        {
            assert_eq!(query(text, "id"), Err(LocationError::Bad), "{text}");
        }
        for text in ["id=1;id=2", "id=1;a", "a;id=1", "a=2;ID=1&id=1"] {
            assert_eq!(query(text, "id"), Err(LocationError::Bad), "{text}");
        }
    }

    fn sid(lines: &[&str]) -> Result<String, LocationError> {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(COOKIE, HeaderValue::from_bytes(line.as_bytes()).unwrap());
        }
        cookie(&headers, "sid").map(|value| String::from_utf8_lossy(&value).into_owned())
    }

    #[test]
    fn a_cookie_is_found_by_its_name_alone() {
        for line in ["sid=42", "a=1; sid=42 ; b=2", "a=1;sid=42", "sid=42; sid=42", "a=\"b\"; sid=42", "sid=%34%32"] {
            assert_eq!(sid(&[line]).as_deref(), Ok("42"), "{line}");
        }
        assert_eq!(sid(&["a=1", "sid=42"]).as_deref(), Ok("42"));
        assert_eq!(sid(&["sid=100%"]).as_deref(), Ok("100%"));
        for line in ["sid", "sid2=1", "xsid=1"] {
            assert_eq!(sid(&[line]), Err(LocationError::Missing), "{line}");
        }
    }

    #[test]
    fn a_cookie_that_not_all_read_alike_is_refused() {
        for line in [
            "SID=1",
            "sid =1",
            "sid=\"42\"",
            "sid=4\"2",
            "sid=1; sid=2",
            "SID=2; sid=1",
            "sid=1; sid =2",
            "a=\"; sid=1; b=\"",
            "a=\"\\\"; sid=1; b=\"",
            "\"; sid=1; b=\"",
            "a=\"x; sid=1",
            "sid=%ff",
            "sid=%00",
        ] {
            assert_eq!(sid(&[line]), Err(LocationError::Bad), "{line}");
        }
        assert_eq!(sid(&["sid=1", "sid=2"]), Err(LocationError::Bad));
    }
}
