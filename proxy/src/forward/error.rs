//! Why a request gets no response, or none from a pod, and why a data path cannot be built.

use crate::message::local_reply::Own;
use crate::routing::table::Refusal;

/// The client is gone, or what it sends is not HTTP: there is nobody to answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the client has not sent its whole request")]
pub struct ClientGone;

/// A name that cannot be written into a header.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} cannot be the name of a router or keyspace: it goes into a header, so only visible ASCII is allowed")]
pub struct InvalidName(pub(super) String);

/// Why a request gets no response of a pod.
pub(crate) enum RouteError {
    /// The router answers itself.
    Own(Own),
    /// There is nobody to answer.
    ClientGone,
}

impl From<Own> for RouteError {
    fn from(own: Own) -> Self {
        RouteError::Own(own)
    }
}

impl From<Refusal> for RouteError {
    fn from(refusal: Refusal) -> Self {
        RouteError::Own(refusal.into())
    }
}
