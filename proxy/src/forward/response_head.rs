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

use super::in_flight::{InFlight, see_through};
use super::request::ForwardRequest;
use crate::runtime::exchange_timeout::{Ended, ExchangeTimeout};
use crate::upstream::{Counted, Exchange, PodResponse, SendError};

/// Why there is no response.
pub(crate) enum NoResponse {
    /// The connection had closed while it was idle: nothing was sent.
    Stale,
    Send(SendError),
    Ended(Ended),
}

/// An exchange until its response begins. If it is dropped because the client has left, the exchange goes on in the
/// background.
pub(crate) struct AwaitResponse<'request> {
    under_way: Option<(Exchange, Box<InFlight>)>,
    /// Whether the connection was made for this exchange.
    made_for_this: bool,
    asked: &'request ForwardRequest,
    timeout: ExchangeTimeout,
    begun: Instant,
}

impl<'request> AwaitResponse<'request> {
    pub(crate) fn new(
        exchange: Exchange,
        made_for_this: bool,
        flight: Box<InFlight>,
        asked: &'request ForwardRequest,
    ) -> Self {
        let timer = &flight.shared().timer;
        let (timeout, begun) = (ExchangeTimeout::new(timer.clone()), timer.now());
        AwaitResponse { under_way: Some((exchange, flight)), made_for_this, asked, timeout, begun }
    }
}

impl Future for AwaitResponse<'_> {
    type Output = (Result<PodResponse, NoResponse>, Box<InFlight>);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let Some((exchange, flight)) = &mut this.under_way else {
            return Poll::Pending;
        };
        let asked = this.asked;
        let outcome = match exchange.poll_response(context, &mut |head| asked.send_interim(head)) {
            Poll::Ready(Ok(outcome)) => Ok(outcome),
            Poll::Ready(Err(SendError::NotSent(_))) if !this.made_for_this => Err(NoResponse::Stale),
            Poll::Ready(Err(error)) => Err(NoResponse::Send(error)),
            Poll::Pending => {
                if flight.holds_place() {
                    give_way_if_due(flight, asked);
                }
                let shared = flight.shared();
                // The pod's time runs from the moment when it last had what it needs. While the client still has to
                // send, only silence is bounded.
                let deadline = || {
                    let upload = this.asked.body.upload().filter(|upload| upload.progress > this.begun);
                    let since = upload.map_or(this.begun, |upload| upload.progress);
                    let patience = match this.asked.body.upload() {
                        Some(upload) if upload.awaits_client => shared.idle_timeout,
                        _ => shared.request_timeout,
                    };
                    let due = since + patience;
                    let due = this.asked.body.upload_due().map_or(due, |upload_due| due.min(upload_due));
                    let due = due + shared.timer.tick();
                    let due = if flight.holds_place() { due.min(flight.gives_way_at()) } else { due };
                    flight.deadline().map_or(due, |deadline| deadline.min(due))
                };
                match this.timeout.poll(context, || flight.sever_token(), deadline) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(ended) => Err(NoResponse::Ended(ended)),
                }
            }
        };
        match this.under_way.take() {
            // The exchange is dropped here, which breaks it off if it has not ended.
            Some((_, flight)) => Poll::Ready((outcome, flight)),
            None => Poll::Pending,
        }
    }
}

/// Gives up the place in a flush of a request that waits for its client, or has waited for its pod for long. The
/// exchange has just been polled, and its body with it, so it is known which of them it waits for.
#[cold]
fn give_way_if_due(flight: &InFlight, asked: &ForwardRequest) {
    let awaits_client = asked.body.upload().is_some_and(|upload| upload.awaits_client);
    if awaits_client || flight.gives_way_at() <= Instant::now() {
        flight.give_way();
    }
}

impl Drop for AwaitResponse<'_> {
    fn drop(&mut self) {
        if let Some((exchange, flight)) = self.under_way.take() {
            see_through(exchange, flight);
        }
    }
}
