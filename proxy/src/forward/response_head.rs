//! The time between the first byte to a pod and the head of its response: the exchange, its time-outs, and a client
//! that may leave.
//!
//! # Invariants
//!
//! * A client that leaves does not end the exchange; time-outs and severing do.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::time::Instant;

use super::error::NoResponse;
use super::in_flight::InFlight;
use super::read_on::see_through;
use super::request::ForwardRequest;
use crate::runtime::exchange_timeout::ExchangeTimeout;
use crate::upstream::{Broken, Exchange, ExchangeGuard as _, PodResponse, SendError};

/// An exchange until its response begins. If it is dropped because the client has left, the exchange goes on in the
/// background.
pub(crate) struct AwaitResponse<'request> {
    under_way: Option<(Exchange, Box<InFlight>)>,
    /// Whether the connection was made for this exchange.
    made_for_this: bool,
    request: &'request ForwardRequest,
    timeout: ExchangeTimeout,
    begun: Instant,
}

impl<'request> AwaitResponse<'request> {
    pub(crate) fn new(
        exchange: Exchange,
        made_for_this: bool,
        in_flight: Box<InFlight>,
        request: &'request ForwardRequest,
    ) -> Self {
        let timer = &in_flight.shared().timer;
        let (timeout, begun) = (ExchangeTimeout::new(timer.clone()), timer.now());
        AwaitResponse { under_way: Some((exchange, in_flight)), made_for_this, request, timeout, begun }
    }
}

impl Future for AwaitResponse<'_> {
    type Output = (Result<PodResponse, NoResponse>, Box<InFlight>);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let Some((exchange, in_flight)) = &mut this.under_way else {
            return Poll::Pending;
        };
        let request = this.request;
        let outcome = match exchange.poll_response(context, &mut |head| request.send_interim(head)) {
            Poll::Ready(Ok(outcome)) => Ok(outcome),
            Poll::Ready(Err(SendError::NotSent(_))) if !this.made_for_this => Err(NoResponse::Stale),
            Poll::Ready(Err(SendError::Failed(Broken::Unanswered))) if !this.made_for_this => {
                Err(NoResponse::Unanswered)
            }
            Poll::Ready(Err(error)) => Err(NoResponse::Send(error)),
            Poll::Pending => {
                if in_flight.holds_place() {
                    give_way_if_due(in_flight, request);
                }
                let shared = in_flight.shared();
                // The pod's time runs from the moment when it last had what it needs. While the client still has to
                // send, only silence is bounded.
                let deadline = || {
                    let upload = this.request.body.upload().filter(|upload| upload.progress > this.begun);
                    let since = upload.map_or(this.begun, |upload| upload.progress);
                    let patience = match this.request.body.upload() {
                        Some(upload) if upload.awaits_client => shared.idle_timeout,
                        _ => shared.request_timeout,
                    };
                    let due = since + patience;
                    let due = this.request.body.upload_due().map_or(due, |upload_due| due.min(upload_due));
                    let due = due + shared.timer.tick();
                    let due = if in_flight.holds_place() { due.min(in_flight.gives_way_at()) } else { due };
                    in_flight.deadline().map_or(due, |deadline| deadline.min(due))
                };
                match this.timeout.poll(context, || in_flight.lasts(request), deadline) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(ended) => Err(NoResponse::Ended(ended)),
                }
            }
        };
        match this.under_way.take() {
            // The exchange is dropped here, which breaks it off if it has not ended.
            Some((_, in_flight)) => Poll::Ready((outcome, in_flight)),
            None => Poll::Pending,
        }
    }
}

/// Gives up the place in a flush of a request that waits for its client, or has waited for its pod for long. The
/// exchange has just been polled, and its body with it, so it is known which of them it waits for.
#[cold]
fn give_way_if_due(in_flight: &InFlight, request: &ForwardRequest) {
    let awaits_client = request.body.upload().is_some_and(|upload| upload.awaits_client);
    if awaits_client || in_flight.gives_way_at() <= Instant::now() {
        in_flight.give_way();
    }
}

impl Drop for AwaitResponse<'_> {
    fn drop(&mut self) {
        if let Some((exchange, mut in_flight)) = self.under_way.take() {
            in_flight.outlives(self.request);
            see_through(exchange, in_flight);
        }
    }
}
