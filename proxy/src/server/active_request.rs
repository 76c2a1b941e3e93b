//! Counts a request as being served until its response has been written.
//!
//! # Invariants
//!
//! * A client is busy from the head of its request until the body of the response has been written or dropped.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use http_body::{Body, Frame, SizeHint};
use pin_project::pin_project;

use super::client::Client;
use super::registry::ConnectionRegistry;

/// A request that is being served. The client counts as busy until this is dropped.
pub(super) struct ActiveRequest {
    client: Rc<Client>,
}

impl ActiveRequest {
    pub(super) fn begin(clients: &ConnectionRegistry, client: &Rc<Client>) -> Self {
        clients.forget_newcomer(client);
        client.serving.set(client.serving.get() + 1);
        ActiveRequest { client: client.clone() }
    }
}

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        let client = &self.client;
        client.served.set(true);
        client.serving.set(client.serving.get() - 1);
    }
}

/// A response body by HTTP/2 that keeps its client busy.
#[pin_project]
pub(super) struct TrackedBody<B> {
    #[pin]
    pub(super) body: B,
    pub(super) _request: ActiveRequest,
}

impl<B: Body> Body for TrackedBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        self.project().body.poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
