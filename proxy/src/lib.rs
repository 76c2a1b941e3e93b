//! Segue's data plane: the path of a request to the pod that owns its partition.
//!
//! ```text
//! accept ─ (TLS) ─ HTTP ─ partition of the request ─ gate ─┬─ open ──► upstream connection ─► pod
//!                                                          └─ closed ► stash ─(flush)─┘
//! ```

#![warn(clippy::missing_errors_doc, clippy::too_many_lines)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod forward;
pub mod message;
pub mod metrics;
pub mod open_files;
pub mod router;
pub mod routing;
mod runtime;
pub mod server;
pub mod settings;
pub mod sidecar;
pub mod spans;
pub mod tls;
mod upstream;

/// Entry points for `tests/fuzz` and `tests/simulation`; not an interface. With the feature `fuzzing`, which adds nothing else.
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing {
    pub use crate::server::{compare_with_hyper, serve_client};
    pub use crate::upstream::fuzzing::{End, FuzzNoResponse, ParsedResponse, read_response};
}
