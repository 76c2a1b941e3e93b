//! Segue's data plane: what a request meets on its way to the pod that owns its partition.
//!
//! ```text
//! accept ─ (TLS) ─ hyper ─ partition of the request ─ gate ─┬─ open ──► upstream connection ─► pod
//!                                                   └─ closed ► stash ─(flush)─┘
//! ```

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod answer;
mod compact;
mod deadline;
mod exchange;
mod fair_share;
mod flight;
pub mod forward;
mod frames;
pub mod gate;
pub mod hash;
mod headers;
mod interim;
mod load;
mod local;
#[cfg(all(test, segue_loom))]
mod loom;
pub mod metrics;
mod noted;
pub mod partition;
mod plane;
mod presence;
mod request_body;
mod reserved;
pub mod respond;
mod retry;
mod segments;
mod sending;
pub mod server;
pub mod settings;
mod shortage;
pub mod sidecar;
pub mod stash;
mod sync;
pub mod table;
pub mod ticket;
pub mod tls;
mod upgrade;
mod upstream;
mod vigil;
mod waiting;
mod watch;
mod websocket;

/// Ways in for `tests/fuzz`; no interface.
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing {
    pub use crate::server::serve_client;
    pub use crate::upstream::fuzzing::{Answer, End, NoAnswer, read_answer};
}
