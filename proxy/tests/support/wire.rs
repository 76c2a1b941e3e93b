//! A slow reader of HTTP/1.1 messages by the letter of RFC 9112: whole buffers, no state. The tests of the edge and
//! `tests/fuzz` share it.
//!
//! [`Manner::Strict`] is for messages that Segue writes: there is one way to say each thing. [`Manner::Tolerant`] is for
//! requests of clients. It adds exactly what the RFC allows a server to accept: lines that end in a bare LF (2.2), empty
//! lines before the request line (2.2), chunk extensions (7.1.1), codings before a final `chunked` (6.1), a length beside a
//! coding (6.3), equal lengths (6.3).

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    Strict,
    Tolerant,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// More bytes are needed.
    Incomplete,
    /// No further bytes make it a message.
    Malformed(&'static str),
}

use Stop::{Incomplete, Malformed};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// The request line or status line.
    pub start: Vec<u8>,
    /// Names in lower case.
    pub fields: Vec<(String, Vec<u8>)>,
    pub body: Vec<u8>,
    pub trailers: Vec<(String, Vec<u8>)>,
    /// Readers may disagree about the end of the message: it has a length and a coding, a coding in HTTP/1.0, or a bare LF
    /// among its trailers. (hyper neither takes that for the end of a line nor refuses it, and reads on to a CRLF.)
    pub ambiguous: bool,
}

impl Message {
    pub fn method(&self) -> &[u8] {
        self.start.split(|byte| *byte == b' ').next().unwrap_or_default()
    }

    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
        self.fields.iter().filter(move |(field, _)| field == name).map(|(_, value)| value.as_slice())
    }

    pub fn has(&self, name: &str) -> bool {
        self.all(name).next().is_some()
    }

    pub fn status(&self) -> Option<u16> {
        let text = std::str::from_utf8(self.start.get(9..12)?).ok()?;
        text.parse().ok()
    }
}

/// Returns the requests in a stream, the bytes behind them, and why reading stopped there.
pub fn requests(mut bytes: &[u8], manner: Manner) -> (Vec<Message>, &[u8], Stop) {
    let mut found = Vec::new();
    loop {
        match request(bytes, manner) {
            Ok((message, length)) => {
                found.push(message);
                bytes = &bytes[length..];
            }
            Err(stop) => return (found, bytes, stop),
        }
    }
}

pub fn request(bytes: &[u8], manner: Manner) -> Result<(Message, usize), Stop> {
    let mut at = 0;
    if manner == Manner::Tolerant {
        while let Some(length) =
            [&b"\r\n"[..], b"\n"].iter().find(|end| bytes[at..].starts_with(end)).map(|end| end.len())
        {
            at += length;
        }
    }
    let (mut message, length) = head(&bytes[at..], manner)?;
    at += length;
    request_line(&message.start, manner)?;
    let http10 = message.start.ends_with(b"HTTP/1.0");
    let codings: Vec<&[u8]> = message.all("transfer-encoding").collect();
    let lengths: Vec<&[u8]> = message.all("content-length").collect();
    if manner == Manner::Strict {
        if message.all("host").count() != 1 {
            return Err(Malformed("not exactly one host"));
        }
        if codings.len() + lengths.len() > 1 {
            return Err(Malformed("more than one framing"));
        }
        if codings.iter().any(|coding| *coding != b"chunked") {
            return Err(Malformed("a coding other than chunked"));
        }
    }
    let chunked = codings.last().map(|last| {
        let last = last.rsplit(|byte| *byte == b',').next().unwrap_or_default();
        last.trim_ascii().eq_ignore_ascii_case(b"chunked")
    });
    let mut ambiguous = !codings.is_empty() && (!lengths.is_empty() || http10);
    match chunked {
        Some(false) => return Err(Malformed("a body whose end nobody knows")),
        Some(true) if http10 => return Err(Malformed("a coding in HTTP/1.0")),
        Some(true) => {
            let (body, trailers, trailers_at, length) = chunked_body(&bytes[at..], manner)?;
            ambiguous |= fields(&bytes[at + trailers_at..], Manner::Strict).is_err();
            (message.body, message.trailers) = (body, trailers);
            at += length;
        }
        None => {
            let mut length = 0;
            for (index, text) in lengths.iter().enumerate() {
                let digits = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
                let text = std::str::from_utf8(text).ok().filter(|_| digits).ok_or(Malformed("no length"))?;
                let one: u64 = text.parse().map_err(|_| Malformed("a length beyond all lengths"))?;
                if index > 0 && one != length {
                    return Err(Malformed("two lengths"));
                }
                length = one;
            }
            let length = usize::try_from(length).map_err(|_| Incomplete)?;
            message.body = bytes[at..].get(..length).ok_or(Incomplete)?.to_vec();
            at += length;
        }
    }
    message.ambiguous = ambiguous;
    Ok((message, at))
}

fn request_line(line: &[u8], manner: Manner) -> Result<(), Stop> {
    let parts: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let [method, target, version] = parts[..] else { return Err(Malformed("no request line")) };
    let versions: &[&[u8]] = if manner == Manner::Strict { &[b"HTTP/1.1"] } else { &[b"HTTP/1.1", b"HTTP/1.0"] };
    // RFC 9112 has no other bytes than ASCII here; servers take UTF-8, and tolerant ones whatever comes.
    let visible = |byte: &u8| byte.is_ascii_graphic() || *byte >= 0x80;
    let readable = manner == Manner::Tolerant || std::str::from_utf8(target).is_ok();
    if method.is_empty() || !method.iter().all(|byte| is_token(*byte)) {
        return Err(Malformed("no method"));
    }
    if target.is_empty() || !target.iter().all(visible) || !readable {
        return Err(Malformed("no target"));
    }
    if !versions.contains(&version) {
        return Err(Malformed("no version"));
    }
    Ok(())
}

/// Reads start line and fields up to the empty line. Returns them and their length.
pub fn head(bytes: &[u8], manner: Manner) -> Result<(Message, usize), Stop> {
    let (start, mut at) = line(bytes, manner)?;
    let (fields, length) = fields(&bytes[at..], manner)?;
    at += length;
    let message = Message { start: start.to_vec(), fields, body: Vec::new(), trailers: Vec::new(), ambiguous: false };
    Ok((message, at))
}

type Fields = Vec<(String, Vec<u8>)>;

fn fields(bytes: &[u8], manner: Manner) -> Result<(Fields, usize), Stop> {
    let (mut fields, mut at) = (Vec::new(), 0);
    loop {
        let (text, length) = line(&bytes[at..], manner)?;
        at += length;
        if text.is_empty() {
            return Ok((fields, at));
        }
        let colon = text.iter().position(|byte| *byte == b':').ok_or(Malformed("a field without a colon"))?;
        let (name, value) = (&text[..colon], text[colon + 1..].trim_ascii());
        if name.is_empty() || !name.iter().all(|byte| is_token(*byte)) {
            return Err(Malformed("no field name"));
        }
        if !value.iter().all(|byte| *byte == b'\t' || (*byte >= b' ' && *byte != 0x7f)) {
            return Err(Malformed("a control character in a field"));
        }
        fields.push((String::from_utf8_lossy(name).to_ascii_lowercase(), value.to_vec()));
    }
}

/// Returns a line without its end, and its length with it. A CR is allowed only at the end of a line.
fn line(bytes: &[u8], manner: Manner) -> Result<(&[u8], usize), Stop> {
    let end = bytes.iter().position(|byte| *byte == b'\n').ok_or(Incomplete)?;
    let text = match bytes[..end].strip_suffix(b"\r") {
        Some(text) => text,
        None if manner == Manner::Tolerant => &bytes[..end],
        None => return Err(Malformed("a bare LF")),
    };
    if text.contains(&b'\r') {
        return Err(Malformed("a bare CR"));
    }
    Ok((text, end + 1))
}

/// Returns the body, its trailers, their offset, and the length of all.
fn chunked_body(bytes: &[u8], manner: Manner) -> Result<(Vec<u8>, Fields, usize, usize), Stop> {
    let (mut body, mut at) = (Vec::new(), 0);
    loop {
        // The RFC allows no bare LF here.
        let (text, length) = line(&bytes[at..], Manner::Strict)?;
        at += length;
        let size = match manner {
            Manner::Strict => text,
            Manner::Tolerant => text.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii_end(),
        };
        if size.is_empty() || size.len() > 16 || !size.iter().all(u8::is_ascii_hexdigit) {
            return Err(Malformed("no chunk size"));
        }
        let size = std::str::from_utf8(size).ok().and_then(|size| u64::from_str_radix(size, 16).ok());
        let size = size.and_then(|size| usize::try_from(size).ok()).ok_or(Malformed("a chunk beyond all sizes"))?;
        if size == 0 {
            let (trailers, length) = fields(&bytes[at..], manner)?;
            return Ok((body, trailers, at, at + length));
        }
        body.extend_from_slice(bytes[at..].get(..size).ok_or(Incomplete)?);
        at += size;
        match &bytes[at..] {
            [b'\r', b'\n', ..] => at += 2,
            [] | [b'\r'] => return Err(Incomplete),
            _ => return Err(Malformed("a chunk without its end")),
        }
    }
}

/// Reads an answer to a request of this method, as strictly as Segue writes one.
pub fn answer(bytes: &[u8], method: &[u8]) -> Result<(Message, usize), Stop> {
    let (mut message, mut at) = head(bytes, Manner::Strict)?;
    let status = message.status().filter(|_| message.start.starts_with(b"HTTP/1.")).ok_or(Malformed("no status"))?;
    if status < 200 || status == 204 || status == 304 || method == b"HEAD" {
        return Ok((message, at));
    }
    if message.all("content-length").count() + message.all("transfer-encoding").count() > 1 {
        return Err(Malformed("more than one framing"));
    }
    if message.has("transfer-encoding") {
        let (body, trailers, _, length) = chunked_body(&bytes[at..], Manner::Strict)?;
        (message.body, message.trailers) = (body, trailers);
        return Ok((message, at + length));
    }
    let Some(length) = message.all("content-length").next() else {
        // The body ends with the connection.
        message.body = bytes[at..].to_vec();
        return Ok((message, bytes.len()));
    };
    let length = std::str::from_utf8(length).ok().and_then(|text| text.parse().ok()).ok_or(Malformed("no length"))?;
    message.body = bytes[at..].get(..length).ok_or(Incomplete)?.to_vec();
    at += length;
    Ok((message, at))
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}
