//! The interface of an etcd in place of the demo's own store.
//!
//! The demo contains no client of etcd, which would take long to build. A program with one implements [`Etcd`] and passes
//! it in [`Options::etcd`](super::Options::etcd). Without it the store is embedded.

use std::fmt::Debug;
use std::sync::Arc;

use segue_coordination::store::Store;

/// An etcd that the cluster of a demo uses.
pub trait Etcd: Debug + Send + Sync {
    /// Returns its client URL.
    fn url(&self) -> &str;
    /// Returns the store over a connection of its own, as another process has it.
    fn connect(&self) -> Arc<dyn Store>;
}
