//! Skips the empty data frames of a body.
//!
//! HTTP/2 senders may end a body with an empty data frame. Passed on as it came it would not end the stream yet, and
//! receivers count such frames: Rust's `h2` closes a connection, with every exchange on it, after a hundred of them.
//!
//! # Invariants
//!
//! * No empty data frame is passed on.
//! * The end of a body is passed on, and so is a body that was cut off.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame};

/// Returns the next frame that is not empty data.
pub(crate) fn poll_telling_frame<B: Body<Data = Bytes> + Unpin>(
    body: &mut B,
    context: &mut Context<'_>,
) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
    loop {
        match ready!(Pin::new(&mut *body).poll_frame(context)) {
            Some(Ok(frame)) if frame.data_ref().is_some_and(Bytes::is_empty) => {}
            frame => return Poll::Ready(frame),
        }
    }
}
