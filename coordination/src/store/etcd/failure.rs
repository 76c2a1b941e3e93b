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
pub(super) enum Failure {
    /// No connection was established, so nothing was sent: another endpoint may be tried at once.
    NotSent(String),
    /// The connection, or the member behind it, is useless. What was sent may have taken effect.
    Broken(String),
    /// etcd refused the token, or the lack of one, and did nothing else; the connection is still good.
    Unauthenticated(String),
    /// etcd responded; the connection is still good.
    Answered(StoreError),
}

impl Failure {
    pub(super) fn of(error: &Error) -> Self {
        match error {
            Error::GRpcStatus(status) => of_status(status),
            // etcd-client reports in this way that the first response on a stream had no TTL left.
            Error::LeaseKeepAliveError(text) if text == "lease not found" => {
                Failure::Answered(StoreError::LeaseNotFound)
            }
            Error::InvalidArgs(_) | Error::InvalidUri(_) | Error::InvalidMetadataValue(_) => {
                Failure::Answered(StoreError::Refused(error.to_string()))
            }
            _ => Failure::Broken(error.to_string()),
        }
    }
}

impl From<Failure> for StoreError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::NotSent(text) | Failure::Broken(text) => StoreError::Unavailable(text),
            Failure::Unauthenticated(text) => StoreError::Refused(text),
            Failure::Answered(error) => error,
        }
    }
}

fn of_status(status: &Status) -> Failure {
    let text = chain(status);
    if in_chain::<ConnectError>(status) {
        return Failure::NotSent(text);
    }
    // tonic keeps the cause of a transport error; a response of etcd has none.
    if status.source().is_some() {
        return Failure::Broken(text);
    }
    let message = status.message();
    match status.code() {
        Code::NotFound if message.contains("lease not found") => Failure::Answered(StoreError::LeaseNotFound),
        // A healthy but busy member responds this before the request is proposed.
        Code::ResourceExhausted if message.contains("too many requests") => {
            Failure::Answered(StoreError::Unavailable(text))
        }
        // A member responds this when it has just heard of the new leader. Another member might be the one that died.
        Code::Unavailable if message.contains("leader changed") => Failure::Answered(StoreError::Unavailable(text)),
        // The token belongs to an earlier state of etcd's users.
        Code::InvalidArgument if message.contains("revision of auth store is old") => Failure::Unauthenticated(text),
        Code::InvalidArgument if message.contains("user name is empty") => Failure::Unauthenticated(text),
        Code::Unauthenticated => Failure::Unauthenticated(text),
        Code::InvalidArgument
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::ResourceExhausted
        | Code::FailedPrecondition
        | Code::OutOfRange
        | Code::Unimplemented => Failure::Answered(StoreError::Refused(text)),
        // Also "no leader" and "request timed out": another member may do better.
        _ => Failure::Broken(text),
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
