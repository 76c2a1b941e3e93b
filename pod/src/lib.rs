//! The library with which a service in Rust takes part in Segue: it owns partitions, and takes and gives them up
//! without losing a request.
//!
//! For: registering a pod, preparing and releasing the state of partitions, and admitting only requests of partitions
//! that the pod owns. Not for: services in other processes or languages, which use the sidecar of `segue run` or the
//! gRPC service of the coordinators.
//!
//! 1. Implement [`HandoffHandler`]. Each callback has a default that does nothing.
//! 2. [`PodHandle::start`] registers the pod and calls the handler when a partition comes or goes.
//! 3. [`PodHandle::layer`] returns the [`OwnershipLayer`] to put in front of the service. A request that it admits has
//!    [`Owned`] among its extensions: the partition and the epoch. Other requests get `421`, and the router retries
//!    them. Where routers send requests without a key to any pod (`without_key`, `[[router.route]]`), such a request has a
//!    [`KeylessRequest`] instead: it must change no state of a partition.
//! 4. [`PodHandle::shutdown`] hands all partitions over before the process ends.
//!
//! ```
//! use std::collections::HashSet;
//! use std::sync::{Arc, Mutex};
//! use std::time::Duration;
//!
//! use axum::{Extension, Router, routing::get};
//! use segue_pod::{
//!     HandlerError, HandoffContext, HandoffHandler, Keyspace, MemoryStore, Owned, PartitionId, PodHandle, PodSettings,
//!     async_trait,
//! };
//!
//! /// The state of a partition would be here.
//! #[derive(Default)]
//! struct Loaded(Mutex<HashSet<PartitionId>>);
//!
//! #[async_trait]
//! impl HandoffHandler for Loaded {
//!     async fn warm(&self, part: &HandoffContext) -> Result<(), HandlerError> {
//!         self.0.lock().unwrap().insert(part.partition);
//!         Ok(())
//!     }
//!
//!     async fn release(&self, part: &HandoffContext) -> Result<(), HandlerError> {
//!         self.0.lock().unwrap().remove(&part.partition);
//!         Ok(())
//!     }
//! }
//!
//! # #[tokio::main]
//! # async fn main() {
//! // In production: EtcdStore::connect(EtcdOptions::new(["http://127.0.0.1:2379"]))?
//! let store = Arc::new(MemoryStore::new());
//! let settings = PodSettings::new("writer-0", "10.0.0.7:8181");
//! let keys = Keyspace::new("/segue/", "persons");
//! let pod = PodHandle::start(store, "persons", keys, settings, Arc::new(Loaded::default()));
//!
//! let hello = |owned: Extension<Owned>| async move { format!("partition {}", owned.partition) };
//! let service: Router = Router::new().route("/", get(hello)).layer(pod.layer());
//! // axum::serve(listener, service)
//!
//! pod.status().wait_for(|state| state.not_ready.is_none()).await.unwrap();
//! pod.shutdown(Duration::from_secs(30)).await;
//! # drop(service);
//! # }
//! ```
//!
//! # Requirements on a service
//!
//! * After `drain` the service writes nothing of the partition until the pod accepts the partition again.
//! * A write is stored where the next owner's `warm` and `sync` read it before a response acknowledges it.
//! * A callback may be dropped at an await and be called again.
//! * By default a pod promises that no accepted request takes effect after its lease. The layer keeps that promise for
//!   work that ends with its request. Work that outlives its request uses [`Owned::hold`] and [`Owned::abandoned`]. A
//!   pod that cannot keep the promise clears the capability [`fence`](Capabilities) in its [`PodSettings`].

pub use async_trait::async_trait;
pub use segue_coordination::pod::{
    HandlerError, HandoffContext, HandoffHandler, InFlight, KeylessRequest, LoadReport, Owned, OwnedBody,
    OwnershipLayer, OwnershipService, PermanentFailure, PodHandle, PodSettings, PodState,
};
pub use segue_coordination::store::{ClientIdentity, EtcdOptions, EtcdStore, EtcdTls, MemoryStore, Store, StoreError};
pub use segue_protocol::ids::{Epoch, HandoffId, Incarnation, PartitionId};
pub use segue_protocol::keys::Keyspace;
pub use segue_protocol::records::Capabilities;
