//! Moves what is kept for long into memory of its own.
//!
//! A connection hands out slices of its read buffer. While a single one of them lives the buffer cannot be used again,
//! and the connection allocates another one: 8 KiB for a request of two hundred bytes.
//!
//! # Invariants
//!
//! * Only the memory of a head changes, never its content.

use bytes::{Bytes, BytesMut};
use http::request::Parts;
use http::uri::{Authority, PathAndQuery, Uri};
use http::{HeaderValue, uri};

/// Moves a request's target and the values of its headers into one allocation.
pub(crate) fn compact(head: &mut Parts) {
    let authority = head.uri.authority().map_or("", Authority::as_str);
    let path = head.uri.path_and_query().map_or("", PathAndQuery::as_str);
    let (authority_length, path_length) = (authority.len(), path.len());
    let values: usize = head.headers.values().map(HeaderValue::len).sum();
    let mut text = BytesMut::with_capacity(authority_length + path_length + values);
    text.extend_from_slice(authority.as_bytes());
    text.extend_from_slice(path.as_bytes());
    head.headers.values().for_each(|value| text.extend_from_slice(value.as_bytes()));
    let mut text = text.freeze();
    let (authority, path) = (text.split_to(authority_length), text.split_to(path_length));
    if let Some(uri) = moved(&head.uri, authority, path) {
        head.uri = uri;
    }
    for value in head.headers.values_mut() {
        if let Ok(mut moved) = HeaderValue::from_maybe_shared(text.split_to(value.len())) {
            moved.set_sensitive(value.is_sensitive());
            *value = moved;
        }
    }
}

/// Returns the same target in other memory.
fn moved(from: &Uri, authority: Bytes, path: Bytes) -> Option<Uri> {
    let mut parts = uri::Parts::default();
    parts.scheme = from.scheme().cloned();
    if from.authority().is_some() {
        parts.authority = Some(Authority::from_maybe_shared(authority).ok()?);
    }
    if from.path_and_query().is_some() {
        parts.path_and_query = Some(PathAndQuery::from_maybe_shared(path).ok()?);
    }
    Uri::from_parts(parts).ok()
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use super::*;

    fn head(target: &'static str, buffer: &Bytes) -> Parts {
        let mut request = http::Request::builder().uri(target).header("x-empty", "");
        for range in [0..5, 6..11] {
            request = request.header("x-twice", HeaderValue::from_maybe_shared(buffer.slice(range)).unwrap());
        }
        let mut secret = HeaderValue::from_maybe_shared(buffer.slice(0..11)).unwrap();
        secret.set_sensitive(true);
        request.header("authorization", secret).body(()).unwrap().into_parts().0
    }

    #[test]
    fn a_compact_head_says_the_same_and_leaves_the_buffer_alone() {
        for target in ["/a?b=%20c", "*", "/", "http://user@h:1/a?", "http://h"] {
            let buffer = Bytes::from(b"hello world".to_vec());
            let (mut compacted, before) = (head(target, &buffer), head(target, &buffer.slice(..)));
            compact(&mut compacted);
            assert_eq!(compacted.uri, before.uri);
            assert_eq!(compacted.headers, before.headers);
            assert!(compacted.headers["authorization"].is_sensitive());
            let inside: Range<*const u8> = buffer.as_ptr_range();
            assert!(compacted.headers.values().all(|value| !inside.contains(&value.as_bytes().as_ptr())));
        }
    }

    #[test]
    fn a_target_lies_elsewhere_afterwards() {
        let buffer = Bytes::from(b"http://h/path".to_vec());
        let mut head = http::Request::builder().uri(Uri::from_maybe_shared(buffer.clone()).unwrap());
        head = head.header("host", "h");
        let mut head = head.body(()).unwrap().into_parts().0;
        compact(&mut head);
        drop(head.headers);
        assert!(buffer.is_unique(), "nothing refers to it any more");
        assert_eq!(head.uri, "http://h/path");
    }
}
