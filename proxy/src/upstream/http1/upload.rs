//! Writes a request: its head, then its body as it arrives.
//!
//! Small bodies leave in one system call with their head; large frames are not copied.
//!
//! # Invariants
//!
//! * A body that its client cut off is never ended as if it were complete.
//! * It is known whether a single byte may have been sent.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use http::HeaderMap;
use http_body::{Body, Frame};
use tokio::io::AsyncWrite;
use tokio::time::Instant;

use super::request_head::RequestFraming;
use crate::message::request_body::Attempt;

/// Frames up to this size are copied behind what waits to be written. Above it, a copy costs more than a second slice.
const MAX_COPIED_BYTES: usize = 4 << 10;
/// Bytes that are gathered before they are written.
const MAX_GATHERED_BYTES: usize = 16 << 10;

/// A request that is being sent.
pub(super) struct Upload {
    attempt: Attempt,
    framing: RequestFraming,
    /// What is written next: the head, small frames, chunk sizes.
    pub(super) out: Vec<u8>,
    /// How much of `out` has been written.
    written_of_out: usize,
    /// A large frame, written after `out`.
    large: Bytes,
    /// Whether the chunk in `large` still needs its line end.
    line_end_due: bool,
    ended: bool,
    /// Whether trailers were sent. Servers that take none of that size close the connection behind their response.
    pub(super) has_trailers: bool,
    /// Whether the client waits for `100 Continue`.
    pub(super) withheld: bool,
    /// Number of bytes written.
    pub(super) written: u64,
}

/// Why a request could not be written.
#[derive(Debug)]
pub(super) enum UploadError {
    /// The body was cut off.
    Body,
    /// The pod reads no more.
    Io(io::Error),
}

impl From<io::Error> for UploadError {
    fn from(error: io::Error) -> Self {
        UploadError::Io(error)
    }
}

impl Upload {
    /// Returns one that sends nothing, until it is told to [`begin`](Self::begin).
    pub(super) fn none() -> Self {
        Upload {
            attempt: Attempt::empty(),
            framing: RequestFraming::None,
            out: Vec::new(),
            written_of_out: 0,
            large: Bytes::new(),
            line_end_due: false,
            ended: true,
            has_trailers: false,
            withheld: false,
            written: 0,
        }
    }

    /// Begins a request with this body. Its head is to be written to `out`.
    pub(super) fn begin(&mut self, attempt: Attempt, framing: RequestFraming) {
        self.attempt = attempt;
        self.framing = framing;
        self.line_end_due = false;
        self.ended = framing == RequestFraming::None;
        self.has_trailers = false;
        self.withheld = false;
        self.written = 0;
    }

    /// Lets go of a request of which nothing more is sent. Only the memory of `out` is kept, for the next one.
    pub(super) fn clear(&mut self) {
        self.attempt = Attempt::empty();
        self.large = Bytes::new();
        self.out.clear();
        self.written_of_out = 0;
    }

    /// Returns when more of the body has to have arrived for its client to be fast enough.
    pub(super) fn due(&self) -> Option<Instant> {
        self.attempt.upload_due()
    }

    /// Writes as much as can be written. Ready when everything has been.
    pub(super) fn poll<W: AsyncWrite + Unpin>(
        &mut self,
        context: &mut Context<'_>,
        io: &mut W,
    ) -> Poll<Result<(), UploadError>> {
        loop {
            let starved = self.gather(context)?;
            while self.written_of_out < self.out.len() || self.large.has_remaining() {
                let out = &self.out[self.written_of_out..];
                let written = if self.large.is_empty() {
                    ready!(Pin::new(&mut *io).poll_write(context, out))?
                } else {
                    let slices = [IoSlice::new(out), IoSlice::new(&self.large)];
                    ready!(Pin::new(&mut *io).poll_write_vectored(context, &slices))?
                };
                if written == 0 {
                    return Poll::Ready(Err(io::Error::from(io::ErrorKind::WriteZero).into()));
                }
                self.written += written as u64;
                let of_out = written.min(out.len());
                self.written_of_out += of_out;
                self.large.advance(written - of_out);
            }
            self.out.clear();
            self.written_of_out = 0;
            // TLS may have taken the bytes without having sent them.
            ready!(Pin::new(&mut *io).poll_flush(context))?;
            if self.ended {
                return Poll::Ready(Ok(()));
            }
            if starved {
                return Poll::Pending;
            }
        }
    }

    /// Takes frames of the body until there is enough to write. Returns whether no further frame is available now.
    fn gather(&mut self, context: &mut Context<'_>) -> Result<bool, UploadError> {
        while !self.ended && self.large.is_empty() && self.out.len() < MAX_GATHERED_BYTES {
            if std::mem::take(&mut self.line_end_due) {
                self.out.extend_from_slice(b"\r\n");
            }
            if self.withheld {
                return Ok(true);
            }
            // The pod has the whole body now, whatever an HTTP/2 client still sends.
            if self.framing == RequestFraming::Length(0) {
                self.end(None)?;
                break;
            }
            match Pin::new(&mut self.attempt).poll_frame(context) {
                Poll::Pending => return Ok(true),
                Poll::Ready(Some(Err(_))) => return Err(UploadError::Body),
                Poll::Ready(Some(Ok(frame))) => {
                    self.push(frame)?;
                    if !self.ended && self.large.is_empty() && self.attempt.is_end_stream() {
                        self.end(None)?;
                    }
                }
                Poll::Ready(None) => self.end(None)?,
            }
        }
        Ok(false)
    }

    fn push(&mut self, frame: Frame<Bytes>) -> Result<(), UploadError> {
        let data = match frame.into_data() {
            Ok(data) => data,
            Err(frame) => return frame.into_trailers().map_or(Ok(()), |trailers| self.end(Some(&trailers))),
        };
        if data.is_empty() {
            return Ok(());
        }
        match &mut self.framing {
            RequestFraming::None => return Ok(()),
            RequestFraming::Length(left) => {
                *left = left.checked_sub(data.len() as u64).ok_or(UploadError::Body)?;
            }
            RequestFraming::Chunked => {
                let mut size = [0u8; 18];
                self.out.extend_from_slice(chunk_size(data.len(), &mut size));
            }
        }
        let chunked = self.framing == RequestFraming::Chunked;
        if data.len() <= MAX_COPIED_BYTES {
            self.out.extend_from_slice(&data);
            if chunked {
                self.out.extend_from_slice(b"\r\n");
            }
        } else {
            self.large = data;
            self.line_end_due = chunked;
        }
        Ok(())
    }

    fn end(&mut self, trailers: Option<&HeaderMap>) -> Result<(), UploadError> {
        self.has_trailers = trailers.is_some_and(|trailers| !trailers.is_empty());
        match self.framing {
            // The client's declared length was not reached: hyper refuses that, and so would the pod.
            RequestFraming::Length(left) if left > 0 => return Err(UploadError::Body),
            RequestFraming::Chunked => {
                self.out.extend_from_slice(b"0\r\n");
                for (name, value) in trailers.into_iter().flatten() {
                    self.out.extend_from_slice(name.as_str().as_bytes());
                    self.out.extend_from_slice(b": ");
                    self.out.extend_from_slice(value.as_bytes());
                    self.out.extend_from_slice(b"\r\n");
                }
                self.out.extend_from_slice(b"\r\n");
            }
            RequestFraming::Length(_) | RequestFraming::None => {}
        }
        self.ended = true;
        Ok(())
    }
}

/// Returns the size line of a chunk, such as `1f\r\n`.
pub(crate) fn chunk_size(bytes: usize, text: &mut [u8; 18]) -> &[u8] {
    let digits = (usize::BITS - bytes.leading_zeros()).div_ceil(4).max(1) as usize;
    for (index, byte) in text[..digits].iter_mut().enumerate() {
        let nibble = (bytes >> (4 * (digits - 1 - index))) & 0xf;
        *byte = b"0123456789abcdef"[nibble];
    }
    text[digits] = b'\r';
    text[digits + 1] = b'\n';
    &text[..digits + 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunk_sizes_are_hexadecimal() {
        for bytes in [0usize, 1, 9, 10, 15, 16, 255, 256, 4096, 65_535, 1 << 30, usize::MAX] {
            let mut text = [0; 18];
            assert_eq!(chunk_size(bytes, &mut text), format!("{bytes:x}\r\n").as_bytes());
        }
    }
}
