//! One exchange with the pod that a request was let through to: begun, and then answered, failed or undone.
//!
//! Not here: which pod, and what becomes of a request that was undone ([`forward`](crate::forward)); the bytes
//! (`upstream`). What must stay true: [`Unanswered::Undone`] is said only if it is certain that no pod acted on the
//! request; a pod's "not mine" is never passed on.

use bytes::BytesMut;
use http::Response;
use http::header::{CONNECTION, HeaderValue, UPGRADE};
use hyper::upgrade::OnUpgrade;
use tokio::time::Instant;

use crate::answer::AnswerBody;
use crate::deadline;
use crate::flight::Flight;
use crate::forward::{Asked, Shared};
use crate::headers::{self, Stamps};
use crate::metrics::Bounce;
use crate::respond::Own;
use crate::sending::{NoAnswer, Sending};
use crate::table::Pod;
use crate::ticket::Pass;
use crate::tls::Stream;
use crate::upgrade;
use crate::upstream::{Answer, AnswerStream, Broken, Line, SendError, was_spared};
use crate::vigil::Ended;

/// Why there is no answer to pass on.
pub(crate) enum Unanswered {
    /// Nothing was done: the request waits for its turn again.
    Undone(Pass, Bounce),
    /// While a connection was being made, the router's lease ran out: nothing was sent.
    Fenced(Pass),
    /// The router answers itself.
    Own(Own),
    ClientGone,
}

/// The pod has taken a request.
#[inline]
fn note_acceptance(shared: &Shared, pod: &Pod) {
    shared.budgets.accepted(pod.slot);
    if let Some(after) = pod.health.accepted() {
        tracing::info!(pod = pod.name, address = pod.address, after, "a pod takes requests again");
    }
}

/// Sends a request to the pod that its flight leads to.
pub(crate) async fn send(
    shared: &Shared,
    asked: &mut Asked,
    mut flight: Box<Flight>,
) -> Result<Response<AnswerBody>, Unanswered> {
    let http2 = asked.switch.is_none() && shared.upstream.by_http2(asked.head.version);
    let mut fresh = false;
    loop {
        let line = match shared.upstream.line(flight.pod(), http2, fresh).await {
            Ok(line) => line,
            Err(error) => {
                tracing::debug!(pod = flight.pod().name, %error, "a pod cannot be reached");
                let cause = if was_spared(&error) { Bounce::Spared } else { Bounce::Refused };
                return Err(Unanswered::Undone(flight.undo(), cause));
            }
        };
        let sending = begin(shared, asked, flight, line)?;
        let outcome;
        (outcome, flight) = sending.await;
        return match outcome {
            Ok(answer) => answered(shared, asked, answer, flight),
            Err(NoAnswer::Stale) => {
                fresh = true;
                continue;
            }
            Err(why) => Err(unanswered(asked, why, flight)),
        };
    }
}

/// Begins to send, unless it must not be sent any more.
fn begin<'asked>(
    shared: &Shared,
    asked: &'asked Asked,
    flight: Box<Flight>,
    line: Line,
) -> Result<Sending<'asked>, Unanswered> {
    if line.is_fresh() && !flight.may_still_go() {
        return Err(Unanswered::Fenced(flight.undo()));
    }
    if flight.is_late() {
        return Err(Unanswered::Own(Own::Deadline));
    }
    let Some(attempt) = asked.body.attempt() else {
        return Err(Unanswered::Own(Own::NoOwner));
    };
    let left = flight.deadline().map(|deadline| deadline.saturating_duration_since(Instant::now()));
    let left = left.map(deadline::header);
    let stamps = Stamps {
        partition: flight.partition(),
        epoch: flight.epoch(),
        identity: &shared.identity,
        peer: &asked.peer.address,
        grpc_timeout: left.as_ref(),
        scheme: if asked.peer.secure { "https" } else { "http" },
    };
    let made_for_this = line.is_fresh();
    let exchange = line.begin(&asked.head, asked.noted, &stamps, attempt, asked.switch.is_some());
    Ok(Sending::new(exchange, made_for_this, flight, asked))
}

fn answered(
    shared: &Shared,
    asked: &mut Asked,
    answer: Answer,
    flight: Box<Flight>,
) -> Result<Response<AnswerBody>, Unanswered> {
    let body = &asked.body;
    match answer {
        Answer::Response(mut response) => {
            if !headers::take_misdirected(response.status(), response.headers_mut()) {
                note_acceptance(shared, flight.pod());
                body.settle();
                return Ok(pass_on(shared, response, flight));
            }
            // If all of it is here, its connection can be used again.
            drop(response.body_mut().take_whole());
            body.take_back();
            if body.is_whole() {
                Err(Unanswered::Undone(flight.undo(), Bounce::Misdirected))
            } else {
                // Nothing was done, so the client may send again; the router no longer can.
                Err(Unanswered::Own(Own::NoOwner))
            }
        }
        Answer::Switched(response, stream, read) => match asked.switch.take() {
            Some(client) => Ok(switched(shared, response, client, stream, read, flight)),
            None => Err(Unanswered::Own(Own::UpstreamFailed)),
        },
    }
}

fn unanswered(asked: &Asked, why: NoAnswer, flight: Box<Flight>) -> Unanswered {
    let body = &asked.body;
    match why {
        NoAnswer::Stale => Unanswered::Undone(flight.undo(), Bounce::Refused),
        NoAnswer::Send(SendError::NotSent(error)) => {
            body.take_back();
            tracing::debug!(pod = flight.pod().name, %error, "a pod takes no request");
            Unanswered::Undone(flight.undo(), Bounce::Refused)
        }
        NoAnswer::Send(SendError::Failed(_)) if body.is_too_large() => Unanswered::Own(Own::BodyTooLarge),
        NoAnswer::Send(SendError::Failed(Broken::CutOff)) => Unanswered::ClientGone,
        NoAnswer::Send(SendError::Failed(error)) => {
            tracing::debug!(pod = flight.pod().name, %error, "an exchange has failed");
            Unanswered::Own(Own::UpstreamFailed)
        }
        NoAnswer::Ended(Ended::Severed) => Unanswered::Own(Own::Severed),
        NoAnswer::Ended(Ended::TimedOut) if flight.is_late() => Unanswered::Own(Own::Deadline),
        NoAnswer::Ended(Ended::TimedOut) => {
            let by_client = body.upload().is_some_and(|upload| upload.awaits_client);
            Unanswered::Own(if by_client { Own::TooSlow } else { Own::UpstreamTimeout })
        }
    }
}

fn pass_on(shared: &Shared, response: Response<AnswerStream>, mut flight: Box<Flight>) -> Response<AnswerBody> {
    flight.delivered();
    shared.metrics.passed(response.status());
    response.map(|stream| AnswerBody::from_pod(stream, flight))
}

fn switched(
    shared: &Shared,
    mut response: Response<()>,
    client: OnUpgrade,
    stream: Stream,
    read: BytesMut,
    mut flight: Box<Flight>,
) -> Response<AnswerBody> {
    flight.delivered();
    shared.metrics.passed(response.status());
    upgrade::join(client, stream, read, flight, response.headers().get(UPGRADE));
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("upgrade"));
    response.map(|()| AnswerBody::whole(bytes::Bytes::new()))
}
