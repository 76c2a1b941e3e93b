//! How full a store is, and whether its history is given up.

use segue_protocol::ids::Revision;

/// The quota of an etcd that does not tell its own: etcd's default.
pub(super) const DEFAULT_QUOTA: u64 = 2 << 30;

/// The space that a store uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// The store's revision.
    pub revision: Revision,
    /// The size of its database.
    pub bytes: u64,
    /// The size at which it refuses writes. `None` if the store does not tell.
    pub quota: Option<u64>,
    /// Whether the revision that was asked about can still be read.
    pub is_readable: bool,
}

impl Usage {
    /// The first revision that a write has made.
    pub const FIRST: Revision = Revision::ZERO.next().next();

    /// Returns the quota, or etcd's default if the store does not tell.
    pub fn quota(&self) -> u64 {
        self.quota.unwrap_or(DEFAULT_QUOTA)
    }

    /// Returns whether the database has grown beyond half of its quota while nobody gives its history up.
    pub fn fills_up(&self) -> bool {
        self.is_readable && self.bytes > self.quota() / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_fills_up_beyond_half_of_its_quota_unless_somebody_compacts_it() {
        let usage = |bytes, quota, is_readable| Usage { revision: Usage::FIRST, bytes, quota, is_readable };
        assert!(usage(51, Some(100), true).fills_up() && !usage(50, Some(100), true).fills_up());
        assert!(!usage(99, Some(100), false).fills_up());
        assert!(usage((1 << 30) + 1, None, true).fills_up() && !usage(1 << 30, None, true).fills_up());
        assert_eq!(Usage::FIRST, Revision::new(2));
    }
}
