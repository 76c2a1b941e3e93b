//! Reasons why a request gets no response, or none from a pod, and why a data path cannot be built.

use crate::message::local_reply::LocalReply;
use crate::message::request_body::BodyError;
use crate::routing::partition_key::LocationError;
use crate::routing::table::AdmissionError;
use crate::runtime::exchange_timeout::EndCause;
use crate::upstream::SendError;

/// The client has disconnected, so no response can be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the client has not sent its whole request")]
pub struct ClientGone;

/// A name that cannot be written into a header.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} cannot be the name of a router or keyspace: it goes into a header, so only visible ASCII is allowed")]
pub struct InvalidName(pub(super) String);

/// Why a request gets no response from a pod.
pub(crate) enum RouteError {
    /// The router responds itself.
    LocalReply(LocalReply),
    /// The client has disconnected.
    ClientGone,
}

impl From<LocalReply> for RouteError {
    fn from(own: LocalReply) -> Self {
        RouteError::LocalReply(own)
    }
}

impl From<AdmissionError> for RouteError {
    fn from(refusal: AdmissionError) -> Self {
        RouteError::LocalReply(refusal.into())
    }
}

impl From<LocationError> for RouteError {
    fn from(unlocated: LocationError) -> Self {
        RouteError::LocalReply(unlocated.into())
    }
}

impl From<BodyError> for RouteError {
    fn from(error: BodyError) -> Self {
        match error {
            BodyError::TooLarge => RouteError::LocalReply(LocalReply::BodyTooLarge),
            BodyError::Malformed => RouteError::LocalReply(LocalReply::MalformedBody),
            BodyError::CutOff | BodyError::TakenBack => RouteError::ClientGone,
        }
    }
}

/// Why an exchange has no response.
pub(crate) enum NoResponse {
    /// The connection had closed while it was idle: nothing was sent.
    Stale,
    /// The connection had been idle, and the pod closed it without a byte of a response. It may have read the request.
    Unanswered,
    Send(SendError),
    Ended(EndCause),
}

impl NoResponse {
    /// Returns the name of the cause in traces.
    pub(crate) fn as_str(&self) -> &'static str {
        match self {
            NoResponse::Stale | NoResponse::Send(SendError::NotSent(_)) => "refused",
            NoResponse::Send(SendError::Rejected(_)) => "rejected",
            NoResponse::Unanswered | NoResponse::Send(SendError::Failed(_)) => "broken",
            NoResponse::Ended(EndCause::Severed) => "severed",
            NoResponse::Ended(EndCause::TimedOut) => "timeout",
        }
    }
}
