//! The gRPC service `segue.v1.Pods`: writer pods in any language take part in handoffs through any coordinator instance.
//!
//! An instance keeps nothing about a pod that another one would need. The store has the registration, the pod has a
//! token that proves that it is its own, and what a pod is told follows from the view:
//! [`remote_pod`](segue_protocol::handoff::remote_pod) decides it.
//!
//! # Invariants
//!
//! * A pod's lease is renewed only upon a heartbeat of that pod. The stream is not the lease.
//! * A pod is told nothing by a view that is older than its registration, or than the store when its stream began.
//! * A slow or silent pod delays only itself: for each pod the server keeps the partitions whose news are due, not the
//!   news.

#![warn(clippy::too_many_lines)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod ack;
mod attach;
mod events;
mod hold;
mod hub;
mod leave;
mod service;
mod sessions;
mod shared;
mod stream;
mod token;

pub use service::PodsServer;
pub use shared::PodsSettings;

/// The messages of `pods.proto`, with its client and its server.
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::too_many_lines)]
pub mod proto {
    tonic::include_proto!("segue.v1");

    /// The descriptor set of this version of `pods.proto`.
    pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/pods.binpb"));
}
