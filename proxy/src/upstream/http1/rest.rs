//! The rest of an HTTP/1.1 request whose response has begun.
//!
//! # Invariants
//!
//! * A request that is cut off is never ended as if it were complete.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead as _, AsyncWrite as _, ReadBuf};
use tokio::time::Instant;

use super::upload::Upload;
use crate::tls::{self, ReadHalf, WriteHalf};
use crate::upstream::rest::RequestSender;

pub(super) struct RestOfRequest {
    upload: Upload,
    /// `None` once over.
    write: Option<WriteHalf>,
    /// Set once the response has been read, to notice when the pod closes the connection.
    read: Option<ReadHalf>,
    is_closing: bool,
}

impl RestOfRequest {
    pub(super) fn new(upload: Upload, write: WriteHalf) -> Self {
        RestOfRequest { upload, write: Some(write), read: None, is_closing: false }
    }
}

impl RequestSender for RestOfRequest {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Some(write) = &mut self.write else { return Poll::Ready(()) };
        if let Some(read) = &mut self.read
            && Pin::new(read).poll_read(context, &mut ReadBuf::new(&mut [0])).is_ready()
        {
            // The end, or unexpected bytes: the pod wants no more.
            self.write.take().into_iter().for_each(tls::throw_away);
            return Poll::Ready(());
        }
        if !self.is_closing {
            if ready!(self.upload.poll(context, write)).is_ok() {
                // The pod may still be responding, and would take a closed half for a disconnect.
                self.write.take().into_iter().for_each(tls::forget);
                return Poll::Ready(());
            }
            self.is_closing = true;
        }
        // Closed, so that what was sent cannot be taken for the whole request.
        let _ = ready!(Pin::new(write).poll_shutdown(context));
        Poll::Ready(())
    }

    fn sent(&self) -> u64 {
        self.upload.written
    }

    fn upload_due(&self) -> Option<Instant> {
        self.upload.due()
    }

    fn response_read(&mut self, read: ReadHalf) {
        self.read = Some(read);
    }

    fn abort(mut self: Box<Self>) {
        self.write.take().into_iter().for_each(tls::throw_away);
    }
}
