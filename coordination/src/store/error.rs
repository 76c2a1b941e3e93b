//! The errors of a store.

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
