//! The protocol's identifiers: numbers that are compared, ordered and printed, and never mistaken for each other.
//!
//! Each is one type, so a fencing token cannot be passed where a revision is meant. In the store and on the wire they
//! are the bare numbers that they wrap.

use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The bare number as text.
macro_rules! text {
    ($name:ident) => {
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }

        // The number alone here too: logs and histories print whole decisions, and their fields have names.
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }
    };
}

/// Conversions of an identifier that is a plain number: from the number, to it, and to its text.
macro_rules! identifier {
    ($name:ident($number:ty)) => {
        impl $name {
            /// The identifier with this number.
            pub const fn new(number: $number) -> Self {
                $name(number)
            }

            /// The number.
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
    /// All partitions of a keyspace that has `count` of them, in order.
    pub fn all(count: u32) -> impl DoubleEndedIterator<Item = Self> + ExactSizeIterator + Clone {
        (0..count).map(PartitionId)
    }

    /// The partition's place in a table of all partitions.
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

/// The number of an ownership, a fencing token. It grows with every handoff and never comes back; 0 is before the first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Epoch(u64);

identifier!(Epoch(u64));

impl Epoch {
    /// The epoch of an ownership that is planned from the view at this revision.
    pub const fn planned_at(revision: Revision) -> Self {
        Epoch(revision.get())
    }

    /// The last epoch: no other can follow it.
    pub const MAX: Epoch = Epoch(u64::MAX);

    /// The next epoch.
    pub const fn next(self) -> Self {
        Epoch(self.0 + 1)
    }
}

impl FromStr for Epoch {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Epoch)
    }
}

/// A revision of the whole store. Every write that changes something makes the next one; 0 is before all of them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Revision(u64);

identifier!(Revision(u64));

impl Revision {
    /// Before all writes: what a guard sees of a key that is absent.
    pub const ZERO: Revision = Revision(0);

    /// The next revision.
    pub const fn next(self) -> Self {
        Revision(self.0 + 1)
    }
}

/// The identity of one handoff: the revision that created its record.
///
/// Made by name alone, so that no other revision is taken for one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct HandoffId(Revision);

text!(HandoffId);

impl HandoffId {
    /// No handoff: no record is created at revision 0.
    pub const NONE: HandoffId = HandoffId(Revision::ZERO);

    /// The handoff whose record this revision created.
    pub const fn created_at(revision: Revision) -> Self {
        HandoffId(revision)
    }

    /// The revision that created the handoff's record, for guards.
    pub const fn revision(self) -> Revision {
        self.0
    }

    /// The number.
    pub const fn get(self) -> u64 {
        self.0.get()
    }
}

/// One life of a pod or router: the revision that created its registration.
///
/// Made by name alone, so that no other revision is taken for one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Incarnation(Revision);

text!(Incarnation);

impl Incarnation {
    /// No life: no registration is created at revision 0. As a guard it says that no registration stands.
    pub const NONE: Incarnation = Incarnation(Revision::ZERO);

    /// The life whose registration this revision created.
    pub const fn registered_at(revision: Revision) -> Self {
        Incarnation(revision)
    }

    /// The revision that created the registration, for guards.
    pub const fn revision(self) -> Revision {
        self.0
    }

    /// The number.
    pub const fn get(self) -> u64 {
        self.0.get()
    }
}

/// The store's name for a lease.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LeaseId(i64);

identifier!(LeaseId(i64));

impl LeaseId {
    /// No lease: what a guard sees of a key that goes with none, or is absent.
    pub const NONE: LeaseId = LeaseId(0);
}
