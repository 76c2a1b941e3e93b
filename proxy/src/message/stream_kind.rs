//! Recognises responses that are streams, which may have no end, by their `content-type`.
//!
//! Pure. Not here: upgraded connections, which are streams as well (`forward::tunnel`), and what is done with streams.

use http::header::{CONTENT_TYPE, HeaderMap};

/// Returns whether a response with these headers is a stream.
pub(crate) fn says_stream(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|kind| is_stream(kind.as_bytes()))
}

/// Returns whether a response with this `content-type` is a stream: server-sent events, or gRPC in any form, gRPC-Web
/// included. The head of a gRPC response does not tell a single message from many.
pub(crate) fn is_stream(content_type: &[u8]) -> bool {
    // A byte tells nearly all others apart, so that their names are not compared.
    let (name, is_one_of_many): (&[u8], _) = match content_type {
        [_, _, _, _, b'/', b'e' | b'E', ..] => (b"text/event-stream", false),
        [_, _, _, _, _, _, _, _, _, _, _, b'/', b'g' | b'G', ..] => (b"application/grpc", true),
        _ => return false,
    };
    let Some((begin, rest)) = content_type.split_at_checked(name.len()) else { return false };
    let ends = match rest.first() {
        None | Some(b';' | b' ' | b'\t') => true,
        Some(b'+' | b'-') => is_one_of_many,
        Some(_) => false,
    };
    ends && begin.eq_ignore_ascii_case(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_streams_and_grpc_are_streams_and_nothing_that_only_looks_alike() {
        for kind in [
            "text/event-stream",
            "Text/Event-Stream; charset=utf-8",
            "application/grpc",
            "application/grpc+proto",
            "application/grpc-web+proto",
            "application/grpc ; x=y",
        ] {
            assert!(is_stream(kind.as_bytes()), "{kind}");
        }
        for kind in
            ["", "text/event-streams", "text/plain", "application/grpcfoo", "application/json", "application/grp"]
        {
            assert!(!is_stream(kind.as_bytes()), "{kind}");
        }
    }
}
