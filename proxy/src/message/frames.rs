//! The frames of a body that say something.
//!
//! HTTP/2 senders end a body as they like, often with an empty frame of data. Passed on as it came it would end nothing yet,
//! and receivers count those: Rust's `h2` closes a connection, with everybody's exchanges on it, after a hundred in its
//! life. What must stay true: no empty frame of data is passed on; the end and its absence are.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame};
use hyper::body::Incoming;

/// The next frame that is not empty data.
pub(crate) fn poll_telling_frame(
    body: &mut Incoming,
    context: &mut Context<'_>,
) -> Poll<Option<hyper::Result<Frame<Bytes>>>> {
    loop {
        match ready!(Pin::new(&mut *body).poll_frame(context)) {
            Some(Ok(frame)) if frame.data_ref().is_some_and(Bytes::is_empty) => {}
            frame => return Poll::Ready(frame),
        }
    }
}
