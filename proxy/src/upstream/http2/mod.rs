//! Exchanges with a pod by HTTP/2.
//!
//! `h2` does the framing, and the exchange runs inside the request's own future, as by HTTP/1.1: no task and no
//! channel, and it can be broken off at any moment.
//!
//! Elsewhere: which connection ([`sessions`]).
//!
//! # Invariants
//!
//! * A request is reported as not sent only if it was not given to `h2`, or the pod itself reports that it did not
//!   process it (`REFUSED_STREAM`, or a `GOAWAY` below its stream).

mod announced;
mod head;
mod joined_writes;
mod reader;
mod session;
mod sessions;
mod upload;

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use h2::client::ResponseFuture;
use http::Response;
use http::header::CONTENT_LENGTH;
use http::request::Parts;
use http_body::Body as _;

use super::error::{Broken, SendError};
use super::rest::RequestSender;
use crate::message::header_scan::HeaderScan;
use crate::message::headers::RoutingHeaders;
use crate::message::local_reply::LocalReply;
use crate::message::request_body::Attempt;
pub(crate) use announced::{SettingsReader, is_settings};
pub(crate) use head::head_size;
pub(crate) use reader::BodyStream;
pub(crate) use session::{CONNECTION_WINDOW_BYTES, StreamLease};
pub(super) use sessions::{LeaseOutcome, NegotiatedConnection, Sessions, UPLOADING, WHOLE};
use upload::{Upload, UploadEnd};

/// A request that is being sent, until the head of its response is there. Dropping it before that breaks it off.
pub(crate) struct Exchange {
    /// `None` once over.
    live: Option<Live>,
    /// Why the exchange could not even begin.
    refused: Option<io::Error>,
}

struct Live {
    response: ResponseFuture,
    upload: Upload,
    is_sending: bool,
}

/// A pod's response, and the upload if it goes on.
pub(crate) type PodResponse = (Response<BodyStream>, Option<Box<dyn RequestSender>>);

impl Exchange {
    /// Begins to send, unless the head is larger than `most`, or than the pod has announced to accept, as HTTP/2
    /// counts. The same bound holds for trailers.
    pub(super) fn new(
        lease: StreamLease,
        head: &Parts,
        scan: HeaderScan,
        routing: &RoutingHeaders<'_>,
        attempt: Attempt,
        most: usize,
    ) -> Result<Self, LocalReply> {
        let most = lease.session().most_head(most);
        let request = head::request(head, scan, routing, attempt.left(), lease.session().secure, most)?;
        let ended = attempt.is_end_stream();
        let expected = (!ended && attempt.is_at_hand()).then(|| lease.session().expected_bodies.expect());
        // A handle of its own: a shared one remembers a stream that waits to be opened, and refuses others meanwhile.
        let mut sender = lease.session().sender.clone();
        Ok(match sender.send_request(request, ended) {
            Ok((response, stream)) => {
                let upload = Upload::new(attempt, stream, Rc::new(lease), most, expected);
                Exchange { live: Some(Live { response, upload, is_sending: !ended }), refused: None }
            }
            Err(error) => {
                lease.note_closed();
                Exchange { live: None, refused: Some(io::Error::other(error)) }
            }
        })
    }

    pub(crate) fn poll_response(&mut self, context: &mut Context<'_>) -> Poll<Result<PodResponse, SendError>> {
        let Some(live) = &mut self.live else {
            let refused = self.refused.take();
            return Poll::Ready(Err(refused.map_or(SendError::Failed(Broken::Closed), SendError::NotSent)));
        };
        if live.is_sending
            && let Poll::Ready(end) = live.upload.poll(context)
        {
            let broken = match end {
                UploadEnd::Sent | UploadEnd::Refused => None,
                UploadEnd::CutOff => Some(Broken::CutOff),
                UploadEnd::TooLarge => Some(Broken::TrailersTooLarge),
            };
            live.is_sending = false;
            if let Some(broken) = broken {
                // Dropping the exchange resets it.
                return Poll::Ready(Err(SendError::Failed(broken)));
            }
        }
        let result = ready!(Pin::new(&mut live.response).poll(context));
        let Some(live) = self.live.take() else {
            return Poll::Ready(Err(SendError::Failed(Broken::Closed)));
        };
        Poll::Ready(match result {
            Ok(response) => Ok(live.into_response(response)),
            Err(error) => {
                if error.is_library() {
                    // `h2` has reset the stream because of the response.
                    live.upload.lease.note_reset();
                }
                Err(live.upload.lease.refusal().map_or_else(|| why(error), SendError::NotSent))
            }
        })
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        if let Some(live) = &mut self.live {
            live.upload.reset();
        }
    }
}

impl Live {
    fn into_response(self, response: Response<h2::RecvStream>) -> PodResponse {
        let (head, stream) = response.into_parts();
        // `h2` has checked that there is only one.
        let length = head.headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        let lease = self.upload.lease.clone();
        let (sent, rest) = match self.is_sending {
            true => (None, Some(Box::new(self.upload) as Box<dyn RequestSender>)),
            false => (Some(self.upload), None),
        };
        (Response::from_parts(head, BodyStream::new(stream, length, sent, lease)), rest)
    }
}

fn why(error: h2::Error) -> SendError {
    match unprocessed(&error) {
        Some(RefusalScope::Alone) => SendError::NotSent(io::Error::other(error)),
        Some(RefusalScope::WithItsConnection) => SendError::Rejected(io::Error::other(error)),
        None => {
            tracing::debug!(%error, "an exchange with a pod has failed");
            SendError::Failed(Broken::Closed)
        }
    }
}

/// How a pod has reported that it did not process a request at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RefusalScope {
    Alone,
    /// The pod has ended the connection because of an error, possibly because of this request.
    WithItsConnection,
}

fn unprocessed(error: &h2::Error) -> Option<RefusalScope> {
    // h2 passes a remote GOAWAY only to streams above the last one that it names.
    if !error.is_remote() {
        None
    } else if error.is_go_away() {
        let graceful = error.reason() == Some(h2::Reason::NO_ERROR);
        Some(if graceful { RefusalScope::Alone } else { RefusalScope::WithItsConnection })
    } else {
        (error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM)).then_some(RefusalScope::Alone)
    }
}

/// Returns how the pod reports that it has not processed the request, if it does.
pub(crate) fn says_unprocessed(error: &hyper::Error) -> Option<RefusalScope> {
    h2_cause(error).and_then(unprocessed)
}

/// Returns the error of `h2` behind one of hyper.
pub(crate) fn h2_cause(error: &hyper::Error) -> Option<&h2::Error> {
    std::error::Error::source(error)?.downcast_ref()
}
