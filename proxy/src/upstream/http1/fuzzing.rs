//! The entry point for `tests/fuzz`: a response from the bytes of a connection, without the connection. For no other
//! use.
//!
//! # Invariants
//!
//! * The steps are those of [`Exchange::poll_response`](super::Exchange) and of [`BodyReader`](super::BodyReader), so that what
//!   holds here holds there.

use bytes::BytesMut;
use http::{HeaderMap, Method};

use super::decoder::{DecodedPart, Decoder};
use super::response_head::parse_response_head;

/// A response whose head was accepted.
#[derive(Debug, PartialEq, Eq)]
pub struct ParsedResponse {
    /// The status of the final head.
    pub status: u16,
    /// The headers of the final head, without what its framing overrides.
    pub headers: HeaderMap,
    /// The body that arrived before the end.
    pub body: Vec<u8>,
    /// The trailers of a chunked body.
    pub trailers: Option<HeaderMap>,
    /// How the response ended.
    pub end: End,
    /// The bytes that followed the response.
    pub left: Vec<u8>,
    /// Whether the connection would be used again.
    pub reusable: bool,
}

/// How a response ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// As its framing declares.
    Whole,
    /// The connection ended first.
    CutOff,
    /// Its framing was broken.
    Garbled,
}

/// Why there is no response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FuzzNoResponse {
    /// The head was refused.
    Refused,
    /// The connection ended before the head did.
    Unfinished,
}

/// Reads the response to a request of this method from a connection on which these pieces arrive and that then closes.
///
/// # Errors
///
/// Fails if the head is refused, or the pieces end before the head does.
pub fn read_response(pieces: &[&[u8]], method: &Method) -> Result<ParsedResponse, FuzzNoResponse> {
    let mut pieces = pieces.iter();
    let mut buffer = BytesMut::new();
    let head = loop {
        match parse_response_head(&mut buffer, *method == Method::HEAD, false) {
            Ok(Some(head)) if head.status.is_informational() && head.status.as_u16() != 101 => {}
            Ok(Some(head)) => break head,
            Ok(None) => buffer.extend_from_slice(pieces.next().ok_or(FuzzNoResponse::Unfinished)?),
            Err(_) => return Err(FuzzNoResponse::Refused),
        }
    };
    let mut decoder = Decoder::new(head.framing);
    let (mut body, mut trailers) = (Vec::new(), None);
    let end = loop {
        match decoder.decode(&mut buffer) {
            Ok(DecodedPart::Data(data)) => body.extend_from_slice(&data),
            Ok(DecodedPart::Trailers(fields)) => trailers = Some(fields),
            Ok(DecodedPart::End) => break End::Whole,
            Ok(DecodedPart::Starved) => match pieces.next() {
                Some(piece) => buffer.extend_from_slice(piece),
                None if decoder.end_of_input().is_ok() => break End::Whole,
                None => break End::CutOff,
            },
            Err(_) => break End::Garbled,
        }
    };
    pieces.for_each(|piece| buffer.extend_from_slice(piece));
    let left = buffer.to_vec();
    let reusable = end == End::Whole && head.keep_alive && left.is_empty();
    Ok(ParsedResponse { status: head.status.as_u16(), headers: head.headers, body, trailers, end, left, reusable })
}
