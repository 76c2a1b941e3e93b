//! The rest of an exchange whose client has disconnected.
//!
//! # Invariants
//!
//! * An exchange whose client leaves before the response begins goes on, and counts, until the pod responds, its time
//!   is up or its partition is severed.
//! * Once the response has begun, the outcome is definite. Its rest is read within narrow bounds, and counts until
//!   then.
//! * The response to a safe method is broken off at once when its client leaves, unless little of it is left.

use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::error::NoResponse;
use super::in_flight::InFlight;
use crate::metrics::CutOffCause;
use crate::runtime::exchange_timeout::EndCause;
use crate::upstream::{Exchange, ExchangeGuard as _, PodResponse, ResponseStream};

/// Time for which a response is still read after its client has left. The request's outcome is definite, and most
/// longer responses are endless streams.
const READ_ON_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of such a response that are read at most, so that it does not fill the pod's link in vain.
const MAX_READ_ON_BYTES: u64 = 1 << 20;
/// Size up to which a response that may be broken off is read to its end all the same. That is less work than a new
/// connection, and avoids a reset on a shared one.
const MAX_SAFE_READ_ON_BYTES: u64 = 64 << 10;

/// Why the router breaks an attempt off in the middle of its response, in traces.
const BROKEN_OFF: &str = "client-gone";

/// Completes an exchange whose client has disconnected before the response began.
pub(super) fn see_through(mut exchange: Exchange, mut in_flight: Box<InFlight>) {
    let shared = in_flight.shared().clone();
    let limit = in_flight.deadline().unwrap_or(Instant::now() + shared.request_timeout);
    let limit = limit.min(Instant::now() + shared.request_timeout);
    let severed = in_flight.sever_token();
    shared.background.run(async move {
        let response = tokio::select! {
            response = std::future::poll_fn(|context| exchange.poll_response(context, &mut |_| {})) => {
                response.map_err(NoResponse::Send)
            }
            () = tokio::time::sleep_until(limit) => Err(NoResponse::Ended(EndCause::TimedOut)),
            () = severed.cancelled() => Err(NoResponse::Ended(EndCause::Severed)),
        };
        // An exchange that has not ended is broken off, and only then leaves the gate.
        drop(exchange);
        match response {
            Ok(PodResponse::Response(mut response)) => {
                if let Some(trace) = &in_flight.trace {
                    trace.responded(response.status(), false);
                }
                if !in_flight.take_refusal(&mut response) {
                    in_flight.delivered();
                }
                if response.body().is_stream() {
                    in_flight.streams();
                }
                read_on(response.into_body(), in_flight, severed).await;
            }
            Ok(switched @ PodResponse::Switched(..)) => {
                drop(switched);
                drop(in_flight);
            }
            Err(why) => {
                in_flight.failed(why.as_str());
                drop(in_flight);
            }
        }
    });
}

/// Completes an exchange whose client has disconnected in the middle of the response.
pub(super) fn see_rest_through(stream: ResponseStream, in_flight: Box<InFlight>) {
    let (shared, severed) = (in_flight.shared().clone(), in_flight.sever_token());
    // With HTTP/2 the end may follow the last byte, which is all that the client waits for.
    let client_has_all = stream.left() == Some(0);
    if !client_has_all {
        in_flight.cut_off(CutOffCause::ClientGone);
        if let Some(trace) = &in_flight.trace {
            trace.client_left();
        }
    }
    shared.background.run(read_on(stream, in_flight, severed));
}

/// Reads a response without a client, within bounds, then breaks it off. Only that tells the pod that the client has
/// left.
async fn read_on(mut stream: ResponseStream, in_flight: Box<InFlight>, severed: CancellationToken) {
    if in_flight.is_safe() && stream.left().is_none_or(|left| left > MAX_SAFE_READ_ON_BYTES) {
        in_flight.failed(BROKEN_OFF);
        drop(stream);
        drop(in_flight);
        return;
    }
    let limit = Instant::now() + READ_ON_TIMEOUT.min(in_flight.shared().request_timeout);
    let limit = in_flight.deadline().map_or(limit, |deadline| deadline.min(limit));
    let read = async {
        let mut read = 0;
        while read < MAX_READ_ON_BYTES {
            match std::future::poll_fn(|context| stream.poll_frame(context)).await {
                Some(Ok(frame)) => read += frame.data_ref().map_or(0, |data| data.len() as u64),
                Some(Err(_)) => return false,
                None => return true,
            }
        }
        stream.is_done()
    };
    let whole = tokio::select! {
        whole = read => whole,
        () = tokio::time::sleep_until(limit) => false,
        () = severed.cancelled() => false,
    };
    if whole {
        stream.finish(in_flight);
    } else {
        in_flight.failed(BROKEN_OFF);
        drop(stream);
        drop(in_flight);
    }
}
