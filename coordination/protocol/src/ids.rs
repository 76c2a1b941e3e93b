//! The protocol's identifiers: numbers that are compared, ordered and printed, and never confused.
//!
//! Each identifier is a type of its own, so a fencing token cannot be passed where a revision is expected. In the store
//! and on the wire identifiers are plain numbers.

use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Prints an identifier as its plain number.
macro_rules! text {
    ($name:ident) => {
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }

        // Plain numbers here too: logs and histories print whole decisions, and their fields have names.
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }
    };
}

/// Implements an identifier that is a plain number: conversions from it, to it and to text.
macro_rules! identifier {
    ($name:ident($number:ty)) => {
        impl $name {
            /// Returns the identifier with this number.
            pub const fn new(number: $number) -> Self {
                $name(number)
            }

            /// Returns the number.
            pub const fn get(self) -> $number {
                self.0
            }
        }

        impl From<$number> for $name {
            fn from(number: $number) -> Self {
                $name(number)
            }
        }

        text!($name);
    };
}

/// A partition's number within its keyspace.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PartitionId(u32);

identifier!(PartitionId(u32));

impl PartitionId {
    /// Returns all partitions of a keyspace that has `count` of them, in order.
    pub fn all(count: u32) -> impl DoubleEndedIterator<Item = Self> + ExactSizeIterator + Clone {
        (0..count).map(PartitionId)
    }

    /// Returns the partition's index in a table of all partitions.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl FromStr for PartitionId {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(PartitionId)
    }
}

/// The number of an ownership: a fencing token. It grows with every handoff and is never reused; 0 precedes the first
/// ownership.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Epoch(u64);

identifier!(Epoch(u64));

impl Epoch {
    /// Returns the epoch of an ownership that is planned from the view at this revision, in a keyspace whose epochs begin
    /// above this floor.
    pub const fn planned_at(floor: Epoch, revision: Revision) -> Self {
        floor.later_by(revision.get())
    }

    /// The last epoch: one above it is unreadable, and no ownership begins with it. Numbers up to here are exact in every
    /// reader of JSON.
    pub const MAX: Epoch = Epoch(1 << 53);

    /// Returns the next epoch.
    pub const fn next(self) -> Self {
        Epoch(self.0 + 1)
    }

    /// Returns the epoch that is later by this number, or the last number.
    pub(crate) const fn later_by(self, number: u64) -> Self {
        Epoch(self.0.saturating_add(number))
    }
}

impl FromStr for Epoch {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Epoch)
    }
}

/// A revision of the whole store. Each write that changes something creates the next one; 0 precedes all writes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Revision(u64);

identifier!(Revision(u64));

impl Revision {
    /// The revision before all writes. A guard sees it for an absent key.
    pub const ZERO: Revision = Revision(0);

    /// Returns the next revision.
    pub const fn next(self) -> Self {
        Revision(self.0 + 1)
    }
}

/// The identity of a handoff: the revision that created its record.
///
/// Constructed explicitly, so that no other revision is mistaken for one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct HandoffId(Revision);

text!(HandoffId);

impl HandoffId {
    /// No handoff: no record is created at revision 0.
    pub const NONE: HandoffId = HandoffId(Revision::ZERO);

    /// Returns the handoff whose record this revision created.
    pub const fn created_at(revision: Revision) -> Self {
        HandoffId(revision)
    }

    /// Returns the revision that created the handoff's record, for guards.
    pub const fn revision(self) -> Revision {
        self.0
    }

    /// Returns the number.
    pub const fn get(self) -> u64 {
        self.0.get()
    }
}

/// One life of a pod or router: the revision that created its registration.
///
/// Constructed explicitly, so that no other revision is mistaken for one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Incarnation(Revision);

text!(Incarnation);

impl Incarnation {
    /// No life: no registration is created at revision 0. In a guard it requires that there is no registration.
    pub const NONE: Incarnation = Incarnation(Revision::ZERO);

    /// Returns the life whose registration this revision created.
    pub const fn registered_at(revision: Revision) -> Self {
        Incarnation(revision)
    }

    /// Returns the revision that created the registration, for guards.
    pub const fn revision(self) -> Revision {
        self.0
    }

    /// Returns the number.
    pub const fn get(self) -> u64 {
        self.0.get()
    }
}

/// The store's identifier of a lease.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LeaseId(i64);

identifier!(LeaseId(i64));

impl LeaseId {
    /// No lease. A guard sees it for a key without a lease and for an absent key.
    pub const NONE: LeaseId = LeaseId(0);
}
