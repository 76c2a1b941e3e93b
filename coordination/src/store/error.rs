//! Why the store did not do what it was asked.

use segue_protocol::ids::Revision;

/// Why the store did not do what it was asked.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// It could not be reached or did not answer in time. Whether a write took effect is unknown.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
    /// The revision asked for has been compacted away: take a new snapshot.
    #[error("revision {requested} of the store is compacted; the oldest that is left is {oldest}")]
    Compacted {
        /// Where the watch was to begin.
        requested: Revision,
        /// The oldest revision that a watch can begin at.
        oldest: Revision,
    },
    /// The lease has ended or was never granted.
    #[error("the lease is gone")]
    LeaseNotFound,
    /// The store refused the request as such: credentials, size, a key written twice in one transaction.
    #[error("the store refused: {0}")]
    Refused(String),
}
