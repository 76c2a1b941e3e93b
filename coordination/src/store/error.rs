//! The errors of a store, and who can mend what.
//!
//! # Invariants
//!
//! * An error's text contains that of its cause. The cause is therefore no [`source`](Error::source), which reports of a
//!   whole chain would print once more.

use std::error::Error;
use std::fmt;
#[cfg(feature = "etcd")]
use std::io;
#[cfg(feature = "etcd")]
use std::path::Path;
use std::sync::Arc;

use segue_protocol::ids::Revision;

/// Why the store did not do what it was asked.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// The store could not be reached or did not respond in time. It is unknown whether a write took effect.
    #[error("the store is unavailable: {0}")]
    Unavailable(StoreFailure),
    /// The requested revision has been compacted away: take a new snapshot.
    #[error("revision {requested} of the store is compacted; the oldest available is {oldest}")]
    Compacted {
        /// The revision that the watch should have begun at.
        requested: Revision,
        /// The oldest revision that a watch can begin at.
        oldest: Revision,
    },
    /// The lease has ended or was never granted.
    #[error("the lease does not exist any more")]
    LeaseNotFound,
    /// The store refused the request as such: credentials, size, a key written twice in one transaction.
    #[error("the store refused: {0}")]
    Refused(StoreFailure),
}

/// The words of a failure, and the error that caused it, if one did.
#[derive(Clone)]
pub struct StoreFailure {
    words: String,
    cause: Option<Arc<dyn Error + Send + Sync>>,
}

impl StoreFailure {
    /// Returns the failure that `cause` led to. `words` contain the text of the cause.
    pub fn caused_by(words: impl Into<String>, cause: impl Error + Send + Sync + 'static) -> Self {
        StoreFailure { words: words.into(), cause: Some(Arc::new(cause)) }
    }

    /// Returns what went wrong.
    pub fn words(&self) -> &str {
        &self.words
    }

    /// Returns the error that caused the failure, such as a [`tonic::Status`](https://docs.rs/tonic) of etcd.
    pub fn cause(&self) -> Option<&(dyn Error + Send + Sync + 'static)> {
        self.cause.as_deref()
    }

    /// Returns the failure to read a file.
    #[cfg(feature = "etcd")]
    pub(super) fn unreadable(path: &Path, error: io::Error) -> Self {
        Self::caused_by(format!("cannot read {}: {error}", path.display()), error)
    }

    /// Returns the failures of several endpoints as one, with the cause of the last.
    #[cfg(feature = "etcd")]
    pub(super) fn joined(failures: &[StoreFailure]) -> Self {
        let words: Vec<&str> = failures.iter().map(StoreFailure::words).collect();
        StoreFailure { words: words.join("; "), cause: failures.last().and_then(|last| last.cause.clone()) }
    }

    /// Returns the failure in other words.
    #[cfg(feature = "etcd")]
    pub(super) fn reworded(self, words: impl FnOnce(&str) -> String) -> Self {
        StoreFailure { words: words(&self.words), cause: self.cause }
    }
}

impl From<String> for StoreFailure {
    fn from(words: String) -> Self {
        StoreFailure { words, cause: None }
    }
}

impl From<&str> for StoreFailure {
    fn from(words: &str) -> Self {
        words.to_owned().into()
    }
}

impl fmt::Display for StoreFailure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.words)
    }
}

impl fmt::Debug for StoreFailure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.words, out)
    }
}

/// Who can mend what a store did not do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StoreErrorKind {
    /// The store was not reached, or did not respond in time.
    Unavailable,
    /// The store's database is full: it accepts deletions alone.
    NoSpace,
    /// The store does not know this process's user, or does not let it do this.
    Permission,
    /// The store refused the request for another reason.
    Refused,
}

impl StoreErrorKind {
    /// All kinds, by name.
    pub const NAMES: [(&'static str, StoreErrorKind); 4] = [
        ("unavailable", StoreErrorKind::Unavailable),
        ("no_space", StoreErrorKind::NoSpace),
        ("permission", StoreErrorKind::Permission),
        ("refused", StoreErrorKind::Refused),
    ];
}

/// etcd's words of a user that it does not know, or that may not do this.
const NOT_PERMITTED: [&str; 5] = [
    "permission denied",
    "authentication failed",
    "invalid auth token",
    "user name is empty",
    "revision of auth store is old",
];

impl StoreError {
    /// Returns the kind of a failure. `None` for an answer of a store that is well.
    pub fn kind(&self) -> Option<StoreErrorKind> {
        match self {
            StoreError::Unavailable(_) => Some(StoreErrorKind::Unavailable),
            StoreError::Compacted { .. } | StoreError::LeaseNotFound => None,
            StoreError::Refused(failure) => Some(match failure.words() {
                words if words.contains("database space exceeded") => StoreErrorKind::NoSpace,
                words if NOT_PERMITTED.iter().any(|known| words.contains(known)) => StoreErrorKind::Permission,
                _ => StoreErrorKind::Refused,
            }),
        }
    }

    /// Returns the error that caused this one, if it is known.
    pub fn cause(&self) -> Option<&(dyn Error + Send + Sync + 'static)> {
        match self {
            StoreError::Unavailable(failure) | StoreError::Refused(failure) => failure.cause(),
            StoreError::Compacted { .. } | StoreError::LeaseNotFound => None,
        }
    }
}
