//! The gRPC service `segue.v1.Pods`: writer pods in any language take part in handoffs through any coordinator instance.
//!
//! An instance holds no state about a pod that another instance would need. The store has the registration, and the pod
//! has a token that proves that the registration is its own. What a pod is told follows from the view, as
//! [`remote_pod`](segue_protocol::handoff::remote_pod) decides.
//!
//! # Invariants
//!
//! * Only the heartbeats of a pod that applies its events renew its lease. An open stream does not.
//! * An instance tells a pod nothing from a view that is older than the pod's registration, or than the store when the
//!   stream began.
//! * A slow or silent pod delays only itself: for each pod the server remembers which partitions have changed, not the
//!   changes.

#![warn(clippy::missing_errors_doc, clippy::too_many_lines)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod access;
mod ack;
mod attach;
mod checkpoints;
mod connection;
mod event_stream;
mod events;
mod hello;
mod hold;
mod hub;
mod keyspaces;
mod leave;
mod load_reports;
mod observer;
mod open_streams;
mod poll;
pub mod proto;
mod service;
mod service_stream;
mod sessions;
mod shared;
mod status;
mod stream;
mod token;

pub use access::PodsToken;
pub use connection::PodsTls;
pub use observer::PodsObserver;
pub use service::{PodsKeyspace, PodsKeyspaces, PodsServer, PodsStatus};
pub use service_stream::{ServiceStream, ServiceStreamSettings, ServiceStreams};
pub use shared::PodsSettings;
pub use status::{ReportedLoad, StreamStatus, TaskProgress, TaskStatus};
