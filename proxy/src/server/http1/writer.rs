//! Writes responses: heads and small frames are gathered, large frames are not copied.
//!
//! # Invariants
//!
//! * A response that waits for its head or for more of its body has no buffer. No stash counts that memory.
//! * Informational responses that the client has not read yet take no more than what their queue may hold, twice.
//! * A response whose body breaks off, or is shorter than its head states, never ends as if it were complete.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes};
use http::HeaderMap;
use http_body::{Body, Frame};
use tokio::io::AsyncWrite as _;
use tower::BoxError;

use super::response_head::{WrittenFraming, write_end_of_chunks};
use super::wire::Wire;
use crate::forward::ClientGone;
use crate::message::interim::Interim;
use crate::upstream::chunk_size;

/// Frames up to this size are copied behind what waits to be written. Above it, a copy costs more than a second slice.
const MAX_COPIED_BYTES: usize = 4 << 10;
/// Bytes that are gathered before they are written.
const MAX_GATHERED_BYTES: usize = 16 << 10;

const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// Bytes on their way to the client.
#[derive(Default)]
pub(super) struct ResponseWriter {
    out: Vec<u8>,
    /// How much of `out` has been written.
    written: usize,
    /// A large frame, written after `out`.
    large: Bytes,
    /// Whether the chunk in `large` still needs its line end.
    line_end_due: bool,
}

/// Why a response cannot be written to its end.
#[derive(Debug, thiserror::Error)]
pub(super) enum ResponseWriteError {
    #[error("the body broke off: {0}")]
    Body(BoxError),
    #[error("the body is shorter than its head states")]
    TooShort,
    #[error(transparent)]
    Client(#[from] ClientGone),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// The part of a response that is still to be sent.
pub(super) struct UnsentResponse<'response, B> {
    pub(super) body: Pin<&'response mut B>,
    pub(super) framing: WrittenFraming,
    /// The head of the response, if the client accepts trailers.
    pub(super) declares: Option<&'response HeaderMap>,
    pub(super) ended: bool,
}

impl ResponseWriter {
    /// Returns a writer of these bytes.
    pub(super) fn of(bytes: Bytes) -> Self {
        ResponseWriter { large: bytes, ..ResponseWriter::default() }
    }

    /// Writes the informational responses that wait, and takes further ones only once those have been written. Ready
    /// when there are none.
    pub(super) fn poll_interim(
        &mut self,
        context: &mut Context<'_>,
        wire: &Wire,
        interim: &Interim,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(self.poll_write(context, wire))?;
            if wire.take_continue() {
                self.large = Bytes::from_static(CONTINUE);
                continue;
            }
            match interim.take() {
                Some(heads) => self.large = heads,
                None => return Poll::Ready(Ok(())),
            }
        }
    }

    /// Returns where the head of the response is to be written, behind the informational responses that are left.
    pub(super) fn begin(&mut self, wire: &Wire, interim: &Interim) -> &mut Vec<u8> {
        self.out = wire.scratch().take();
        self.out.extend_from_slice(&std::mem::take(&mut self.large));
        if wire.begin_response() {
            self.out.extend_from_slice(CONTINUE);
        }
        if let Some(heads) = interim.take() {
            self.out.extend_from_slice(&heads);
        }
        &mut self.out
    }

    /// Gives the buffer back, all of which has been written.
    pub(super) fn give_back(&mut self, wire: &Wire) {
        wire.scratch().give_back(std::mem::take(&mut self.out));
    }

    /// Writes what is there. Ready when everything has been written.
    pub(super) fn poll_write(&mut self, context: &mut Context<'_>, wire: &Wire) -> Poll<io::Result<()>> {
        while self.written < self.out.len() || self.large.has_remaining() {
            let out = &self.out[self.written..];
            let bytes = if self.large.is_empty() {
                ready!(wire.poll_stream(|stream| stream.poll_write(context, out)))?
            } else {
                let slices = [IoSlice::new(out), IoSlice::new(&self.large)];
                ready!(wire.poll_stream(|stream| stream.poll_write_vectored(context, &slices)))?
            };
            if bytes == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            let of_out = bytes.min(out.len());
            self.written += of_out;
            self.large.advance(bytes - of_out);
        }
        self.out.clear();
        self.written = 0;
        // TLS may have taken the bytes without having sent them.
        wire.poll_stream(|stream| stream.poll_flush(context))
    }

    /// Writes as much of a response as there is. Ready when everything has been written.
    pub(super) fn poll_response<B: Body<Data = Bytes, Error: Into<BoxError>>>(
        &mut self,
        context: &mut Context<'_>,
        wire: &Wire,
        rest: &mut UnsentResponse<'_, B>,
    ) -> Poll<Result<(), ResponseWriteError>> {
        if self.out.capacity() == 0 {
            self.out = wire.scratch().take();
        }
        loop {
            let gathered = self.gather(context, rest);
            // What came before an error still goes out.
            let written = self.poll_write(context, wire)?;
            let starved = gathered?;
            ready!(written);
            if rest.ended {
                return Poll::Ready(Ok(()));
            }
            if starved {
                self.give_back(wire);
                return Poll::Pending;
            }
        }
    }

    /// Takes frames of the body until there is enough to write. Returns whether no further frame is available now.
    fn gather<B: Body<Data = Bytes, Error: Into<BoxError>>>(
        &mut self,
        context: &mut Context<'_>,
        rest: &mut UnsentResponse<'_, B>,
    ) -> Result<bool, ResponseWriteError> {
        while !rest.ended && self.large.is_empty() && self.out.len() < MAX_GATHERED_BYTES {
            if std::mem::take(&mut self.line_end_due) {
                self.out.extend_from_slice(b"\r\n");
            }
            if rest.framing == WrittenFraming::Length(0) {
                rest.ended = true;
                break;
            }
            match rest.body.as_mut().poll_frame(context) {
                Poll::Pending => return Ok(true),
                Poll::Ready(Some(frame)) => {
                    self.push(frame.map_err(|error| ResponseWriteError::Body(error.into()))?, rest)
                }
                Poll::Ready(None) if rest.framing == WrittenFraming::Chunked => self.end_chunks(rest, None),
                Poll::Ready(None) if rest.framing == WrittenFraming::UntilClose => rest.ended = true,
                Poll::Ready(None) => return Err(ResponseWriteError::TooShort),
            }
        }
        Ok(false)
    }

    fn push<B: Body<Data = Bytes>>(&mut self, frame: Frame<Bytes>, rest: &mut UnsentResponse<'_, B>) {
        let mut data = match frame.into_data() {
            Ok(data) => data,
            Err(frame) => {
                if let (Ok(trailers), WrittenFraming::Chunked) = (frame.into_trailers(), rest.framing) {
                    self.end_chunks(rest, Some(&trailers));
                }
                return;
            }
        };
        if data.is_empty() {
            return;
        }
        let chunked = match &mut rest.framing {
            WrittenFraming::Length(left) => {
                data.truncate(usize::try_from(*left).unwrap_or(usize::MAX));
                *left -= data.len() as u64;
                false
            }
            WrittenFraming::UntilClose => false,
            WrittenFraming::Chunked => {
                self.out.extend_from_slice(chunk_size(data.len(), &mut [0; 18]));
                true
            }
        };
        if data.len() > MAX_COPIED_BYTES {
            self.large = data;
            self.line_end_due = chunked;
            return;
        }
        self.out.extend_from_slice(&data);
        if chunked {
            self.out.extend_from_slice(b"\r\n");
            if rest.body.is_end_stream() {
                self.end_chunks(rest, None);
            }
        }
    }

    fn end_chunks<B>(&mut self, rest: &mut UnsentResponse<'_, B>, trailers: Option<&HeaderMap>) {
        write_end_of_chunks(&mut self.out, rest.declares.zip(trailers));
        rest.ended = true;
    }
}
