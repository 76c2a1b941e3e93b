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

use super::super::StoreError;

/// An error, by its consequence for the connection.
#[derive(Debug)]
pub(super) enum EtcdFailure {
    /// No connection was established, so nothing was sent: another endpoint may be tried at once.
    NotSent(String),
    /// The connection, or the member behind it, is useless. What was sent may have taken effect.
    Broken(String),
    /// etcd refused the token, or the lack of one, and did nothing else; the connection is still good.
    Unauthenticated(String),
    /// etcd responded; the connection is still good.
    Answered(StoreError),
}

impl EtcdFailure {
    pub(super) fn of(error: &Error) -> Self {
        match error {
            Error::GRpcStatus(status) => of_status(status),
            // etcd-client reports in this way that the first response on a stream had no TTL left.
            Error::LeaseKeepAliveError(text) if text == "lease not found" => {
                EtcdFailure::Answered(StoreError::LeaseNotFound)
            }
            Error::InvalidArgs(_) | Error::InvalidUri(_) | Error::InvalidMetadataValue(_) => {
                EtcdFailure::Answered(StoreError::Refused(error.to_string()))
            }
            _ => EtcdFailure::Broken(error.to_string()),
        }
    }
}

impl From<EtcdFailure> for StoreError {
    fn from(failure: EtcdFailure) -> Self {
        match failure {
            EtcdFailure::NotSent(text) | EtcdFailure::Broken(text) => StoreError::Unavailable(text),
            EtcdFailure::Unauthenticated(text) => StoreError::Refused(text),
            EtcdFailure::Answered(error) => error,
        }
    }
}

fn of_status(status: &Status) -> EtcdFailure {
    let text = chain(status);
    if in_chain::<ConnectError>(status) {
        return EtcdFailure::NotSent(text);
    }
    // tonic keeps the cause of a transport error; a response of etcd has none.
    if status.source().is_some() {
        return EtcdFailure::Broken(text);
    }
    let message = status.message();
    match status.code() {
        Code::NotFound if message.contains("lease not found") => EtcdFailure::Answered(StoreError::LeaseNotFound),
        // A healthy but busy member responds this before the request is proposed.
        Code::ResourceExhausted if message.contains("too many requests") => {
            EtcdFailure::Answered(StoreError::Unavailable(text))
        }
        // A member responds this when it has just heard of the new leader. Another member might be the one that died.
        Code::Unavailable if message.contains("leader changed") => EtcdFailure::Answered(StoreError::Unavailable(text)),
        // The token belongs to an earlier state of etcd's users.
        Code::InvalidArgument if message.contains("revision of auth store is old") => {
            EtcdFailure::Unauthenticated(text)
        }
        Code::InvalidArgument if message.contains("user name is empty") => EtcdFailure::Unauthenticated(text),
        Code::Unauthenticated => EtcdFailure::Unauthenticated(text),
        Code::InvalidArgument
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::ResourceExhausted
        | Code::FailedPrecondition
        | Code::OutOfRange
        | Code::Unimplemented => EtcdFailure::Answered(StoreError::Refused(text)),
        // Also "no leader" and "request timed out": another member may do better.
        _ => EtcdFailure::Broken(text),
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
