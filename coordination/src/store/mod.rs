//! The store: the part of etcd v3 that the protocol needs, with etcd's semantics.
//!
//! Its data and key names are pure and in `segue-protocol` ([`txn`](segue_protocol::txn),
//! [`keys`](segue_protocol::keys)). This module contains the trait and its two implementations, the one in etcd with the
//! feature `etcd`. A deployment that outgrows one machine runs an etcd cluster; Segue itself replicates nothing.

mod batches;
mod client;
mod error;
#[cfg(feature = "etcd")]
mod etcd;
#[cfg(any(test, feature = "test-util"))]
mod faulty;
mod horizon;
mod horizon_store;
mod memory;
mod tap;
mod usage;

pub use self::client::{Store, Survey, Watch};
pub use self::error::{StoreError, StoreErrorKind, StoreFailure};
#[cfg(feature = "etcd")]
pub use self::etcd::{ClientIdentity, EtcdCredentials, EtcdMember, EtcdOptions, EtcdStore, EtcdTls};
#[cfg(any(test, feature = "test-util"))]
pub use self::faulty::{Fault, FaultyStore, StoreCall};
pub use self::horizon::SharedHorizon;
pub use self::horizon_store::HorizonStore;
#[cfg(any(test, feature = "test-util"))]
pub use self::memory::MemoryBackup;
pub use self::memory::MemoryStore;
pub(crate) use self::tap::{CopiedUpdate, Copies, CopyReader, Tap};
pub use self::usage::Usage;
