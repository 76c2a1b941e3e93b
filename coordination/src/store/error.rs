//! The errors of a store, and who can mend what.

use segue_protocol::ids::Revision;

/// Why the store did not do what it was asked.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// The store could not be reached or did not respond in time. It is unknown whether a write took effect.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
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
    Refused(String),
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
            StoreError::Refused(words) if words.contains("database space exceeded") => Some(StoreErrorKind::NoSpace),
            StoreError::Refused(words) if NOT_PERMITTED.iter().any(|known| words.contains(known)) => {
                Some(StoreErrorKind::Permission)
            }
            StoreError::Refused(_) => Some(StoreErrorKind::Refused),
        }
    }
}
