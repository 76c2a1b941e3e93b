//! How sending a request fails, and how an exchange breaks.
//!
//! Not here: what to do about it ([`forward`](crate::forward)).
//!
//! # Invariants
//!
//! * Every failure says whether a byte of the request can have reached the pod. Only if none can is it
//!   [`SendError::NotSent`].

use std::io;

/// Why a request got no response.
#[derive(Debug)]
pub(crate) enum SendError {
    /// It is certain that no pod acted on the request.
    NotSent(io::Error),
    /// It is certain here too, but the pod has closed the connection with an error, and the request may be the cause.
    Rejected(io::Error),
    /// A pod may have acted on it.
    Failed(Broken),
}

/// How an exchange broke.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Broken {
    /// The client did not send its whole request.
    #[error("the client cut its request off")]
    CutOff,
    /// The request's trailers are larger than pods take.
    #[error("the request's trailers are too large")]
    TrailersTooLarge,
    /// The pod closed the connection without a byte of a response. If the connection had been idle before, the pod may have
    /// closed it for that, and not have read the request.
    #[error("the pod closed the connection and sent no response")]
    Unanswered,
    /// The pod closed the connection before the end.
    #[error("the pod closed the connection before the end of the exchange")]
    Closed,
    /// The pod answered HTTP/1.1 in HTTP/2, so it has read no request.
    #[error("the pod speaks HTTP/2 only")]
    SpeaksHttp2,
    /// The pod's response is not valid.
    #[error("the pod's response is not valid HTTP")]
    Garbled,
}

/// No connection was attempted, because one has just failed.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("backing off after a failed connection")]
pub(super) struct BackingOff;

impl From<BackingOff> for io::Error {
    fn from(backing_off: BackingOff) -> Self {
        io::Error::new(io::ErrorKind::ResourceBusy, backing_off)
    }
}

/// Returns whether no connection was attempted.
pub(crate) fn is_backing_off(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<BackingOff>())
}

/// The pod has answered in another protocol, so it has read no request.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("the pod does not speak HTTP/2")]
pub(super) struct NotHttp2;

impl From<NotHttp2> for io::Error {
    fn from(not_http2: NotHttp2) -> Self {
        io::Error::new(io::ErrorKind::Unsupported, not_http2)
    }
}

/// Returns whether the pod does not speak HTTP/2.
pub(crate) fn is_not_http2(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<NotHttp2>())
}
