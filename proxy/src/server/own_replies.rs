//! Recognises what hyper's HTTP/1.1 server answers by itself, so that clients get the reply of this router instead.
//!
//! Pure. hyper refuses a head that it cannot read before any service sees a request. Its response has a status and no
//! more: no reason, no body.
//!
//! # Invariants
//!
//! * Only bytes that consist of such a head and nothing else are recognised.

use crate::message::local_reply::LocalReply;

/// Returns the reply that takes the place of these bytes, if hyper has made them by itself. A response of a pod may consist
/// of the same bytes, so they must not be those of a request that was served.
pub(super) fn in_place_of(bytes: &[u8]) -> Option<LocalReply> {
    // hyper's are about 100 bytes long.
    let head = bytes.get(..bytes.len().min(256))?.strip_prefix(b"HTTP/1.")?;
    let reply = match head.get(1..5)? {
        b" 400" => LocalReply::Malformed,
        // The target of the request alone is larger than hyper takes.
        b" 414" | b" 431" => LocalReply::HeadTooLarge,
        _ => return None,
    };
    let head = std::str::from_utf8(head.strip_suffix(b"\r\n\r\n")?).ok()?;
    let is_hypers =
        |line: &str| line == "connection: close" || line == "content-length: 0" || line.starts_with("date: ");
    head.split("\r\n").skip(1).all(is_hypers).then_some(reply)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hypers_bare_heads_are_recognised_and_no_others() {
        let date = "date: Tue, 15 Nov 1994 08:12:31 GMT\r\n\r\n";
        let bare = |status: &str| format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: 0\r\n{date}");
        assert_eq!(in_place_of(bare("400 Bad Request").as_bytes()), Some(LocalReply::Malformed));
        assert_eq!(in_place_of(bare("431 Request Header Fields Too Large").as_bytes()), Some(LocalReply::HeadTooLarge));
        assert_eq!(in_place_of(bare("414 URI Too Long").as_bytes()), Some(LocalReply::HeadTooLarge));
        let of_http10 = format!("HTTP/1.0 400 Bad Request\r\ncontent-length: 0\r\n{date}");
        assert_eq!(in_place_of(of_http10.as_bytes()), Some(LocalReply::Malformed));
        for other in [
            bare("200 OK"),
            bare("404 Not Found"),
            format!("{}more", bare("400 Bad Request")),
            format!("HTTP/1.1 400 Bad Request\r\nx-pods: own\r\n{date}"),
            "HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n".to_owned(),
            "HTTP/1.1 400".to_owned(),
            String::new(),
        ] {
            assert_eq!(in_place_of(other.as_bytes()), None, "{other:?}");
        }
    }
}
