//! The meaning of an error of etcd, or of the connection to it, for the caller and for the connection.
//!
//! Pure.
//!
//! # Invariants
//!
//! * `Refused` is only what etcd itself responded, and would respond again.
//! * An error that leaves open whether a write took effect is `Unavailable`.

use std::error::Error as StdError;

use etcd_client::Error;
use tonic::{Code, ConnectError, Status};

use super::super::{StoreError, StoreFailure};

/// An error, by its consequence for the connection.
#[derive(Debug)]
pub(super) enum EtcdFailure {
    /// No connection was established, so nothing was sent: another endpoint may be tried at once.
    NotSent(StoreFailure),
    /// The connection, or the member behind it, is useless. What was sent may have taken effect.
    Broken(StoreFailure),
    /// etcd refused the token, or the lack of one, and did nothing else; the connection is still good.
    Unauthenticated(StoreFailure),
    /// etcd responded; the connection is still good.
    Answered(StoreError),
}

impl EtcdFailure {
    pub(super) fn of(error: Error) -> Self {
        match error {
            Error::GRpcStatus(status) => of_status(status),
            // etcd-client reports in this way that the first response on a stream had no TTL left.
            Error::LeaseKeepAliveError(text) if text == "lease not found" => {
                EtcdFailure::Answered(StoreError::LeaseNotFound)
            }
            Error::InvalidArgs(_) | Error::InvalidUri(_) | Error::InvalidMetadataValue(_) => {
                EtcdFailure::Answered(StoreError::Refused(StoreFailure::caused_by(error.to_string(), error)))
            }
            _ => EtcdFailure::Broken(StoreFailure::caused_by(error.to_string(), error)),
        }
    }
}

impl From<EtcdFailure> for StoreError {
    fn from(failure: EtcdFailure) -> Self {
        match failure {
            EtcdFailure::NotSent(failure) | EtcdFailure::Broken(failure) => StoreError::Unavailable(failure),
            EtcdFailure::Unauthenticated(failure) => StoreError::Refused(failure),
            EtcdFailure::Answered(error) => error,
        }
    }
}

fn of_status(status: Status) -> EtcdFailure {
    let (code, is_not_sent) = (status.code(), in_chain::<ConnectError>(&status));
    // tonic keeps the cause of a transport error; a response of etcd has none.
    let is_transport = status.source().is_some();
    let message = status.message().to_owned();
    let failure = StoreFailure::caused_by(chain(&status), status);
    match code {
        _ if is_not_sent => EtcdFailure::NotSent(failure),
        _ if is_transport => EtcdFailure::Broken(failure),
        Code::NotFound if message.contains("lease not found") => EtcdFailure::Answered(StoreError::LeaseNotFound),
        // A healthy but busy member responds this before the request is proposed.
        Code::ResourceExhausted if message.contains("too many requests") => {
            EtcdFailure::Answered(StoreError::Unavailable(failure))
        }
        // A member responds this when it has just heard of the new leader. Another member might be the one that died.
        Code::Unavailable if message.contains("leader changed") => {
            EtcdFailure::Answered(StoreError::Unavailable(failure))
        }
        // The token belongs to an earlier state of etcd's users.
        Code::InvalidArgument if message.contains("revision of auth store is old") => {
            EtcdFailure::Unauthenticated(failure)
        }
        Code::InvalidArgument if message.contains("user name is empty") => EtcdFailure::Unauthenticated(failure),
        Code::Unauthenticated => EtcdFailure::Unauthenticated(failure),
        Code::InvalidArgument
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::ResourceExhausted
        | Code::FailedPrecondition
        | Code::OutOfRange
        | Code::Unimplemented => EtcdFailure::Answered(StoreError::Refused(failure)),
        // Also "no leader" and "request timed out": another member may do better.
        _ => EtcdFailure::Broken(failure),
    }
}

fn in_chain<T: StdError + 'static>(error: &(dyn StdError + 'static)) -> bool {
    causes(Some(error)).any(|error| error.is::<T>())
}

/// Returns an error and its causes, as far as they are known.
fn causes<'a>(first: Option<&'a (dyn StdError + 'static)>) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(first, |&error| error.source())
}

/// Returns the status's message and the causes that it does not repeat.
fn chain(status: &Status) -> String {
    let mut text = status.message().to_owned();
    if text.is_empty() {
        text = status.code().to_string();
    }
    for cause in causes(status.source()).map(ToString::to_string) {
        if !text.contains(&cause) && !cause.contains(&text) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_keeps_the_status_that_caused_it_and_repeats_its_message_once() {
        let error = StoreError::from(EtcdFailure::of(Status::permission_denied("not this key").into()));
        let status = error.cause().and_then(|cause| cause.downcast_ref::<Status>());
        assert_eq!(status.map(Status::code), Some(Code::PermissionDenied));
        assert_eq!(error.to_string(), "the store refused: not this key");
        assert!(error.source().is_none());
    }
}
