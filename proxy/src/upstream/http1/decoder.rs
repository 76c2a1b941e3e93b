//! Decodes the body of a message from the bytes that follow its head: of responses here, and of requests in the server's
//! own half of HTTP/1.1.
//!
//! Pure.
//!
//! # Invariants
//!
//! * A message that ends early is an error, never a shorter message.

use bytes::{Buf, Bytes, BytesMut};
use http::header::{HeaderMap, HeaderName, HeaderValue};

use super::framing_headers::ResponseFraming;

/// Most bytes of chunk extensions in a body, all chunks together: hyper's limit.
const MAX_EXTENSION_BYTES: usize = 16 << 10;
/// The digits of a chunk's size and the end of their line.
const MAX_SIZE_BYTES: usize = 18;
const MAX_TRAILERS_BYTES: usize = 64 << 10;
const MAX_TRAILER_LINES: usize = 64;

/// The position in the body.
#[derive(Debug)]
pub(crate) enum Decoder {
    Length(u64),
    Chunked(Chunks),
    UntilClose,
    Done,
}

/// The position in a chunked body.
#[derive(Debug, Default)]
pub(crate) struct Chunks {
    at: ChunkPlace,
    /// How many bytes of the buffer have been searched for the end of a line. Each byte is searched once, however
    /// many pieces the line arrives in.
    searched: usize,
    /// Where the current line of the trailers begins in the buffer.
    line: usize,
    /// How many bytes of extensions the body has had.
    extension_bytes: usize,
}

#[derive(Debug, Default, Clone, Copy)]
enum ChunkPlace {
    #[default]
    Size,
    Chunk(u64),
    ChunkEnd,
    Trailers,
}

/// The next decoded part of a body.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum DecodedPart {
    Data(Bytes),
    Trailers(HeaderMap),
    /// More bytes are needed.
    Starved,
    /// The body has ended.
    End,
}

/// The body does not match its framing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the body is broken")]
pub(crate) struct FramingError;

impl Decoder {
    pub(super) fn new(framing: ResponseFraming) -> Self {
        match framing {
            ResponseFraming::Length(bytes) => Decoder::of_length(bytes),
            ResponseFraming::Chunked => Decoder::of_chunks(),
            ResponseFraming::UntilClose => Decoder::UntilClose,
        }
    }

    pub(crate) fn of_length(bytes: u64) -> Self {
        if bytes == 0 { Decoder::Done } else { Decoder::Length(bytes) }
    }

    pub(crate) fn of_chunks() -> Self {
        Decoder::Chunked(Chunks::default())
    }

    pub(crate) fn is_done(&self) -> bool {
        matches!(self, Decoder::Done)
    }

    /// Returns what is left of a body whose length is known.
    pub(crate) fn left(&self) -> Option<u64> {
        match self {
            Decoder::Length(left) => Some(*left),
            Decoder::Done => Some(0),
            _ => None,
        }
    }

    /// Returns the next piece of the body from the front of `buffer`.
    pub(crate) fn decode(&mut self, buffer: &mut BytesMut) -> Result<DecodedPart, FramingError> {
        match self {
            Decoder::Done => Ok(DecodedPart::End),
            _ if buffer.is_empty() => Ok(DecodedPart::Starved),
            Decoder::UntilClose => Ok(DecodedPart::Data(buffer.split().freeze())),
            Decoder::Length(left) => {
                let data = take(left, buffer);
                if *left == 0 {
                    *self = Decoder::Done;
                }
                Ok(DecodedPart::Data(data))
            }
            Decoder::Chunked(chunks) => {
                let decoded = chunks.decode(buffer)?;
                if matches!(decoded, DecodedPart::Trailers(_) | DecodedPart::End) {
                    *self = Decoder::Done;
                }
                Ok(decoded)
            }
        }
    }

    /// Notes that the pod has closed the connection. Fails if the body is incomplete.
    pub(super) fn end_of_input(&mut self) -> Result<(), FramingError> {
        match self {
            Decoder::Done | Decoder::UntilClose => {
                *self = Decoder::Done;
                Ok(())
            }
            _ => Err(FramingError),
        }
    }
}

impl Chunks {
    fn decode(&mut self, buffer: &mut BytesMut) -> Result<DecodedPart, FramingError> {
        while !buffer.is_empty() {
            match &mut self.at {
                ChunkPlace::Chunk(left) => {
                    let data = take(left, buffer);
                    if *left == 0 {
                        self.at = ChunkPlace::ChunkEnd;
                    }
                    return Ok(DecodedPart::Data(data));
                }
                ChunkPlace::ChunkEnd => {
                    if !b"\r\n".starts_with(&buffer[..buffer.len().min(2)]) {
                        return Err(FramingError);
                    }
                    if buffer.len() < 2 {
                        break;
                    }
                    buffer.advance(2);
                    self.at = ChunkPlace::Size;
                }
                ChunkPlace::Size => {
                    let Some(size) = self.size(buffer)? else { break };
                    self.at = if size == 0 { ChunkPlace::Trailers } else { ChunkPlace::Chunk(size) };
                }
                ChunkPlace::Trailers => {
                    let Some(trailers) = self.trailers(buffer)? else { break };
                    return Ok(if trailers.is_empty() { DecodedPart::End } else { DecodedPart::Trailers(trailers) });
                }
            }
        }
        Ok(DecodedPart::Starved)
    }

    /// Takes the line of a chunk's size. Returns `None` if not all of it has arrived.
    fn size(&mut self, buffer: &mut BytesMut) -> Result<Option<u64>, FramingError> {
        // httparse would take a line without a digit for a size of 0, and so for the end of the body.
        if !buffer[0].is_ascii_hexdigit() {
            return Err(FramingError);
        }
        let most = MAX_EXTENSION_BYTES - self.extension_bytes + MAX_SIZE_BYTES;
        let Some(line) = self.end_of_line(buffer, most)? else { return Ok(None) };
        let digits = buffer.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
        // A size may begin with any number of zeros (RFC 9112, 7.1), and httparse takes 16 digits. Further ones count as an
        // extension does.
        let zeros = buffer[..digits - 1].iter().take_while(|byte| **byte == b'0').count();
        let Ok(httparse::Status::Complete((length, size))) = httparse::parse_chunk_size(&buffer[zeros..line]) else {
            return Err(FramingError);
        };
        self.extension_bytes += line - b"\r\n".len() - digits.min(MAX_SIZE_BYTES - b"\r\n".len());
        if zeros + length != line || self.extension_bytes > MAX_EXTENSION_BYTES {
            return Err(FramingError);
        }
        buffer.advance(line);
        self.searched = 0;
        Ok(Some(size))
    }

    /// Takes the trailers with the empty line behind them. Returns `None` if not all of them have arrived.
    fn trailers(&mut self, buffer: &mut BytesMut) -> Result<Option<HeaderMap>, FramingError> {
        while let Some(end) = self.end_of_line(buffer, MAX_TRAILERS_BYTES)? {
            if end - self.line > b"\r\n".len() {
                self.line = end;
                continue;
            }
            let mut slots = [httparse::EMPTY_HEADER; MAX_TRAILER_LINES];
            let trailers = match httparse::parse_headers(&buffer[..end], &mut slots) {
                Ok(httparse::Status::Complete((length, lines))) if length == end => trailers(lines)?,
                _ => return Err(FramingError),
            };
            buffer.advance(end);
            return Ok(Some(trailers));
        }
        Ok(None)
    }

    /// Returns the end of the next line, within the first `most` bytes.
    fn end_of_line(&mut self, buffer: &[u8], most: usize) -> Result<Option<usize>, FramingError> {
        let end = memchr::memchr(b'\n', &buffer[self.searched..]).map(|end| self.searched + end + 1);
        self.searched = end.unwrap_or(buffer.len());
        match end {
            _ if self.searched > most => Err(FramingError),
            // httparse accepts a LF without a CR, but other parsers do not end a line there, or end one where httparse
            // does not.
            Some(end) if !buffer[..end].ends_with(b"\r\n") => Err(FramingError),
            end => Ok(end),
        }
    }
}

fn take(left: &mut u64, buffer: &mut BytesMut) -> Bytes {
    let bytes = usize::try_from(*left).unwrap_or(usize::MAX).min(buffer.len());
    *left -= bytes as u64;
    buffer.split_to(bytes).freeze()
}

fn trailers(lines: &[httparse::Header<'_>]) -> Result<HeaderMap, FramingError> {
    let mut trailers = HeaderMap::new();
    for line in lines {
        let name = HeaderName::from_bytes(line.name.as_bytes()).map_err(|_| FramingError)?;
        trailers.append(name, HeaderValue::from_bytes(line.value).map_err(|_| FramingError)?);
    }
    Ok(trailers)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decodes a chunked body that arrives in pieces. Returns the data, the trailers, and what is left over.
    fn chunked(pieces: &[&[u8]]) -> Result<(Vec<u8>, HeaderMap, Vec<u8>), FramingError> {
        let mut decoder = Decoder::new(ResponseFraming::Chunked);
        let (mut buffer, mut data, mut trailers) = (BytesMut::new(), Vec::new(), HeaderMap::new());
        for piece in pieces {
            buffer.extend_from_slice(piece);
            loop {
                match decoder.decode(&mut buffer)? {
                    DecodedPart::Data(bytes) => data.extend_from_slice(&bytes),
                    DecodedPart::Trailers(map) => trailers = map,
                    DecodedPart::Starved => break,
                    DecodedPart::End => return Ok((data, trailers, buffer.to_vec())),
                }
            }
        }
        decoder.end_of_input().map(|()| unreachable!("a chunked body has an end of its own"))
    }

    #[test]
    fn a_chunked_body_is_the_same_however_it_is_cut() {
        let whole = b"5;ext=1\r\nhello\r\n6\r\n world\r\n0\r\nx-sum: 7\r\n\r\nHTTP/1.1";
        for cut in 0..whole.len() - 8 {
            let (data, trailers, rest) = chunked(&[&whole[..cut], &whole[cut..]]).unwrap();
            assert_eq!(data, b"hello world", "cut at {cut}");
            assert_eq!(trailers["x-sum"], "7");
            assert_eq!(rest, b"HTTP/1.1");
        }
        let each: Vec<&[u8]> = whole[..whole.len() - 8].chunks(1).collect();
        assert_eq!(chunked(&each).unwrap().0, b"hello world");
    }

    #[test]
    fn a_chunked_body_that_is_cut_off_is_an_error_wherever_it_is_cut() {
        let whole = b"5\r\nhello\r\n0\r\n\r\n";
        for cut in 0..whole.len() {
            assert_eq!(chunked(&[&whole[..cut]]).unwrap_err(), FramingError, "cut at {cut}");
        }
    }

    #[test]
    fn garbage_between_chunks_is_refused() {
        for garbage in [&b"5\r\nhelloX\r\n0\r\n\r\n"[..], b"zz\r\n", b"-5\r\nhello", b"5\r\nhello\n0\r\n\r\n"] {
            assert_eq!(chunked(&[garbage]).unwrap_err(), FramingError);
        }
    }

    #[test]
    fn a_chunk_size_has_a_digit() {
        for line in ["\r\n\r\n", " \r\n\r\n", ";0\r\n\r\n", "\t0\r\n\r\n"] {
            assert_eq!(chunked(&[b"5\r\nhello\r\n", line.as_bytes()]).unwrap_err(), FramingError, "{line:?}");
        }
    }

    #[test]
    fn a_chunk_size_may_begin_with_zeros() {
        let zeros = "0".repeat(100);
        let text = format!("{zeros}5;a\r\nhello\r\n{zeros}\r\n\r\nHTTP/1.1");
        for pieces in [vec![text.as_bytes()], text.as_bytes().chunks(7).collect()] {
            let (data, _, rest) = chunked(&pieces).unwrap();
            assert!(data == b"hello" && b"HTTP/1.1".starts_with(&rest[..]), "{data:?} {rest:?}");
        }
        for text in [format!("1{zeros}\r\n"), format!("{}5\r\n", "0".repeat(MAX_EXTENSION_BYTES + 1))] {
            assert_eq!(chunked(&[text.as_bytes()]).unwrap_err(), FramingError);
        }
    }

    #[test]
    fn a_bare_lf_ends_no_line() {
        for text in [&b"5;a\n0\r\nhello\r\n0\r\n\r\n"[..], b"5\nhello\r\n0\r\n\r\n", b"0\r\nx: y\n\r\n", b"0\r\n\n"] {
            assert_eq!(chunked(&[text]).unwrap_err(), FramingError);
        }
    }

    #[test]
    fn a_bound_holds_however_the_bytes_arrive() {
        let extension = format!("5;{}\r\nhello\r\n0\r\n\r\n", "x".repeat(MAX_EXTENSION_BYTES));
        let trailers = format!("0\r\nx: {}\r\n\r\n", "x".repeat(MAX_TRAILERS_BYTES));
        for text in [extension.as_bytes(), trailers.as_bytes()] {
            assert_eq!(chunked(&[text]).unwrap_err(), FramingError);
            assert_eq!(chunked(&text.chunks(1000).collect::<Vec<_>>()).unwrap_err(), FramingError);
        }
    }

    #[test]
    fn extensions_are_bounded_over_the_whole_body() {
        let chunks = |count: usize| format!("{}0\r\n\r\n", format!("1;{}\r\nx\r\n", "e".repeat(1023)).repeat(count));
        let most = MAX_EXTENSION_BYTES / 1024;
        for (count, is_accepted) in [(most, true), (most + 1, false)] {
            let text = chunks(count);
            assert_eq!(chunked(&[text.as_bytes()]).is_ok(), is_accepted, "{count} chunks");
            assert_eq!(chunked(&text.as_bytes().chunks(100).collect::<Vec<_>>()).is_ok(), is_accepted);
        }
    }

    /// Otherwise a line that arrives byte by byte would cost the square of its length.
    #[test]
    fn what_has_been_searched_for_the_end_of_a_line_is_not_searched_again() {
        for begin in ["5;", "0\r\n"] {
            let mut decoder = Decoder::of_chunks();
            let mut buffer = BytesMut::from(begin);
            buffer.extend_from_slice(&[b'x'; 100]);
            assert_eq!(decoder.decode(&mut buffer), Ok(DecodedPart::Starved));
            // A bare LF is refused where it is seen.
            buffer[50] = b'\n';
            buffer.extend_from_slice(b"x");
            assert_eq!(decoder.decode(&mut buffer), Ok(DecodedPart::Starved), "{begin:?}");
            buffer.extend_from_slice(b"\n");
            assert_eq!(decoder.decode(&mut buffer), Err(FramingError));
        }
    }

    #[test]
    fn a_body_of_known_length_leaves_what_is_behind_it() {
        let mut decoder = Decoder::new(ResponseFraming::Length(5));
        let mut buffer = BytesMut::from("helloHTTP");
        assert_eq!(decoder.decode(&mut buffer), Ok(DecodedPart::Data(Bytes::from("hello"))));
        assert!(decoder.is_done());
        assert_eq!(&buffer[..], b"HTTP");
        let mut decoder = Decoder::new(ResponseFraming::Length(5));
        assert_eq!(decoder.decode(&mut BytesMut::from("hel")), Ok(DecodedPart::Data(Bytes::from("hel"))));
        assert_eq!(decoder.end_of_input(), Err(FramingError));
    }

    #[test]
    fn a_body_without_length_ends_with_its_connection() {
        let mut decoder = Decoder::new(ResponseFraming::UntilClose);
        assert_eq!(decoder.decode(&mut BytesMut::from("hel")), Ok(DecodedPart::Data(Bytes::from("hel"))));
        assert_eq!(decoder.end_of_input(), Ok(()));
        assert!(decoder.is_done());
    }
}
