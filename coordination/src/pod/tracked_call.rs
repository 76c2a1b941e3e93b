//! One request inside the service: its future, and the guard that counts it until it has ended.
//!
//! A call that is dropped before its end, because the client disconnected, continues in a task of its own. Its
//! work may take effect without a client to read the response, and only its end shows that it has. It is dropped for
//! good when the lease is over.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use super::ownership::InFlight;

#[derive(Debug)]
pub(super) struct TrackedCall<F: Future + Send + 'static> {
    // Boxed, so that it can move to a task of its own.
    future: Option<Pin<Box<F>>>,
    in_flight: Option<InFlight>,
    /// Tells the service that the client has gone.
    abandoned: CancellationToken,
}

impl<F: Future + Send + 'static> TrackedCall<F> {
    pub(super) fn new(future: F, in_flight: InFlight, abandoned: CancellationToken) -> Self {
        TrackedCall { future: Some(Box::pin(future)), in_flight: Some(in_flight), abandoned }
    }

    pub(super) fn is_lost(&self) -> bool {
        self.in_flight.as_ref().is_none_or(InFlight::is_lost)
    }

    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<F::Output> {
        let Some(mut future) = self.future.take() else { return Poll::Pending };
        let response = future.as_mut().poll(context);
        // A future that panicked is not put back: it has ended.
        if response.is_pending() {
            self.future = Some(future);
        }
        response
    }

    /// Ends the call for good, with or without a response.
    pub(super) fn end(&mut self) -> Option<InFlight> {
        self.future = None;
        self.in_flight.take()
    }
}

impl<F: Future + Send + 'static> Drop for TrackedCall<F> {
    fn drop(&mut self) {
        let (Some(future), Some(in_flight)) = (self.future.take(), self.in_flight.take()) else { return };
        self.abandoned.cancel();
        // Without a runtime, or when it shuts down, the process ends too.
        if let Ok(runtime) = Handle::try_current()
            && !in_flight.is_lost()
        {
            runtime.spawn(finish(future, in_flight));
        }
    }
}

async fn finish<F: Future>(future: Pin<Box<F>>, in_flight: InFlight) {
    // In either case the future is dropped before `in_flight`.
    tokio::select! {
        biased;
        () = in_flight.lost() => {}
        _ = future => {}
    }
}
