//! Reads paths, queries and cookies as other servers do: twins written from the sources of Kestrel, Tomcat, Jetty,
//! nginx and Envoy, each in its most tolerant configuration. An attacker gains nothing from input that all of them
//! refuse.

/// The decoded segments by which a server dispatches a path. `None` if it refuses the path.
pub type Segments = Option<Vec<Vec<u8>>>;

/// The function with which a server reads a path.
pub type Server = fn(&[u8]) -> Segments;

/// All five servers by name.
pub const SERVERS: [(&str, Server); 5] =
    [("Kestrel", kestrel), ("Tomcat", tomcat), ("Jetty", jetty), ("nginx", nginx), ("Envoy", envoy)];

/// `PathNormalizer`, `UrlDecoder`: decodes everything but `%2F`, leaves escapes that would not be UTF-8 as written,
/// refuses NUL, and then resolves dot segments.
pub fn kestrel(path: &[u8]) -> Segments {
    let mut plain = Vec::new();
    let mut at = 0;
    while at < path.len() {
        // The escapes of one character.
        let mut run = Vec::new();
        while let Some(byte) = escape(path, at + 3 * run.len()).filter(|byte| *byte != b'/') {
            run.push(byte);
            if std::str::from_utf8(&run).is_ok() || run.len() == 4 {
                break;
            }
        }
        match std::str::from_utf8(&run) {
            Ok(text) if !text.is_empty() => {
                if run == [0] {
                    return None;
                }
                plain.extend_from_slice(&run);
                at += 3 * run.len();
            }
            _ => {
                plain.push(path[at]);
                at += 1;
            }
        }
    }
    without_dots(&split(&plain), Above::Stays)
}

/// `CoyoteAdapter` with `encodedSolidusHandling` = `decode` and `allowBackslash`: drops parameters, decodes, takes `\`
/// for `/`, merges slashes, resolves dot segments, and reads the rest as UTF-8 with replacements.
pub fn tomcat(path: &[u8]) -> Segments {
    let mut plain = decoded(&without_parameters(path))?;
    if plain.contains(&0) {
        return None;
    }
    plain.iter_mut().filter(|byte| **byte == b'\\').for_each(|byte| *byte = b'/');
    let segments = without_dots(&merged(split(&plain)), Above::IsRefused)?;
    Some(segments.into_iter().map(replaced).collect())
}

/// `HttpURI` and `URIUtil.canonicalPath` of Jetty 9 and of later versions that allow all violations: drops parameters,
/// decodes, resolves dot segments.
pub fn jetty(path: &[u8]) -> Segments {
    let plain = decoded(&without_parameters(path))?;
    let segments = without_dots(&split(&plain), Above::IsRefused)?;
    Some(segments.into_iter().map(replaced).collect())
}

/// `ngx_http_parse_complex_uri` with `merge_slashes`: an escaped slash or dot is one.
pub fn nginx(path: &[u8]) -> Segments {
    let plain = decoded(path)?;
    if plain.contains(&0) {
        return None;
    }
    without_dots(&merged(split(&plain)), Above::IsRefused)
}

/// `path_with_escaped_slashes_action: UNESCAPE_AND_FORWARD`, `normalize_path` (Chromium's canonicalization),
/// `merge_slashes`; behind it a server that decodes what is left.
pub fn envoy(path: &[u8]) -> Segments {
    let mut plain = Vec::new();
    let mut at = 0;
    while at < path.len() {
        let escaped = escape(path, at);
        at += if escaped.is_some() { 3 } else { 1 };
        match escaped {
            Some(0) => return None,
            Some(b'/' | b'\\') => plain.push(b'/'),
            Some(byte) if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) => plain.push(byte),
            Some(_) => plain.extend_from_slice(&path[at - 3..at]),
            None if path[at - 1] == b'\\' => plain.push(b'/'),
            None => plain.push(path[at - 1]),
        }
    }
    let segments = merged(without_dots(&split(&plain), Above::Stays)?);
    segments.into_iter().map(|segment| decoded(&segment)).collect()
}

enum Above {
    Stays,
    IsRefused,
}

/// Removes dot segments as in RFC 3986, 5.2.4.
fn without_dots(segments: &[Vec<u8>], above: Above) -> Segments {
    let mut found: Vec<Vec<u8>> = Vec::new();
    for (index, segment) in segments.iter().enumerate() {
        let is_last = index + 1 == segments.len();
        match &segment[..] {
            b"." => {}
            b".." if found.is_empty() => {
                if let Above::IsRefused = above {
                    return None;
                }
            }
            b".." => drop(found.pop()),
            _ => {
                found.push(segment.clone());
                continue;
            }
        }
        if is_last {
            found.push(Vec::new());
        }
    }
    Some(found)
}

/// Returns the segments between the slashes, after the first slash.
fn split(path: &[u8]) -> Vec<Vec<u8>> {
    path.split(|byte| *byte == b'/').skip(1).map(<[u8]>::to_vec).collect()
}

fn merged(segments: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    let last = segments.len().saturating_sub(1);
    let kept = segments.into_iter().enumerate().filter(|(index, segment)| *index == last || !segment.is_empty());
    kept.map(|(_, segment)| segment).collect()
}

fn without_parameters(path: &[u8]) -> Vec<u8> {
    let bare = |segment: &[u8]| segment.split(|byte| *byte == b';').next().unwrap_or_default().to_vec();
    path.split(|byte| *byte == b'/').map(bare).collect::<Vec<_>>().join(&b'/')
}

/// Returns the byte that is escaped at this position.
fn escape(text: &[u8], at: usize) -> Option<u8> {
    let [b'%', high, low] = *text.get(at..at + 3)? else { return None };
    let digit = |byte: u8| char::from(byte).to_digit(16);
    Some((digit(high)? * 16 + digit(low)?) as u8)
}

/// Decodes percent-encoding. `None` if a `%` is not followed by two digits.
pub fn decoded(text: &[u8]) -> Option<Vec<u8>> {
    let (mut plain, mut at) = (Vec::new(), 0);
    while at < text.len() {
        match (text[at], escape(text, at)) {
            (b'%', None) => return None,
            (_, Some(byte)) => {
                plain.push(byte);
                at += 3;
            }
            (byte, None) => {
                plain.push(byte);
                at += 1;
            }
        }
    }
    Some(plain)
}

fn replaced(bytes: Vec<u8>) -> Vec<u8> {
    String::from_utf8_lossy(&bytes).into_owned().into_bytes()
}

/// Returns the values of a parameter as different servers find them: with case-sensitive names or not, with `;` as a
/// separator or not, with `name[]` as the name or not.
pub fn parameters(query: &[u8], name: &[u8]) -> Vec<Vec<Vec<u8>>> {
    let form = |text: &[u8]| {
        let spaced: Vec<u8> = text.iter().map(|byte| if *byte == b'+' { b' ' } else { *byte }).collect();
        decoded(&spaced).map(replaced)
    };
    let read = |separators: &[u8], same: &dyn Fn(&[u8]) -> bool| -> Vec<Vec<u8>> {
        let pairs = query.split(|byte| separators.contains(byte));
        let named = pairs.filter_map(|pair| {
            let equals = pair.iter().position(|byte| *byte == b'=').unwrap_or(pair.len());
            let value = pair.get(equals + 1..).unwrap_or_default();
            if same(&form(&pair[..equals])?) { form(value) } else { None }
        });
        named.collect()
    };
    let exactly = |found: &[u8]| found == name;
    let any_case = |found: &[u8]| found.eq_ignore_ascii_case(name);
    let bracketed = |found: &[u8]| found.split(|byte| matches!(byte, b'[' | 0)).next() == Some(name);
    vec![read(b"&", &exactly), read(b"&", &any_case), read(b"&;", &exactly), read(b"&", &bracketed)]
}

/// Returns the values of a cookie as different servers find them: by RFC 6265, with case-insensitive names, and with
/// quoted strings in which a `;` does not separate.
pub fn cookies(lines: &[&[u8]], name: &[u8]) -> Vec<Vec<Vec<u8>>> {
    let line = lines.join(&b"; "[..]);
    let value = |pair: &[u8], same: &dyn Fn(&[u8]) -> bool| {
        let equals = pair.iter().position(|byte| *byte == b'=')?;
        same(pair[..equals].trim_ascii()).then(|| pair[equals + 1..].trim_ascii().to_vec())
    };
    let any_case = |found: &[u8]| found.eq_ignore_ascii_case(name);
    let exactly = |found: &[u8]| found == name;
    let pairs: Vec<&[u8]> = line.split(|byte| *byte == b';').collect();
    let (mut quoted, mut escaped) = (false, false);
    let with_strings = line.split(|byte| {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            _ => {}
        }
        *byte == b';' && !quoted
    });
    let unquoted = |value: Vec<u8>| match value.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\"")) {
        Some(inner) => inner.to_vec(),
        None => value,
    };
    vec![
        pairs.iter().filter_map(|pair| value(pair, &exactly)).collect(),
        pairs.iter().filter_map(|pair| value(pair, &any_case)).collect(),
        with_strings.filter_map(|pair| value(pair, &exactly)).map(unquoted).collect(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn read(server: fn(&[u8]) -> Segments, path: &str, expected: Option<&str>) {
        let found = server(path.as_bytes()).map(|segments| segments.join(&b'|'));
        let found = found.map(|joined| String::from_utf8_lossy(&joined).into_owned());
        assert_eq!(found.as_deref(), expected, "{path}");
    }

    /// Examples from the servers' own tests and documentation.
    #[test]
    fn each_server_reads_paths_by_its_own_rules() {
        read(kestrel, "/a/%2e%2e/b%2Fc", Some("b%2Fc"));
        read(kestrel, "/a/b\\..\\c;d", Some("a|b\\..\\c;d"));
        read(kestrel, "/a/%00", None);
        read(kestrel, "/a/%E2%82%AC%ff/%c0%ae", Some("a|€%ff|%c0%ae"));
        read(kestrel, "/../a/..", Some(""));
        read(tomcat, "/a/..;x/b", Some("b"));
        read(tomcat, "/a;v=1//b%5Cc", Some("a|b|c"));
        read(tomcat, "/../a", None);
        read(jetty, "/a/%2e%2e;/b", Some("b"));
        read(jetty, "/foo%2f..%2fbar", Some("bar"));
        read(jetty, "/a//b", Some("a||b"));
        read(nginx, "/a//%2e/b%2f%2e%2e/c", Some("a|c"));
        read(nginx, "/a;b/%zz", None);
        read(envoy, "/a%2f..%5Cb", Some("b"));
        read(envoy, "/a\\b//c%2525", Some("a|b|c%25"));
    }
}
