//! Segue's data plane: what a request meets on its way to the pod that owns its partition.
//!
//! ```text
//! accept ─ hyper ─ partition of the request ─ gate ─┬─ open ──► upstream connection ─► pod
//!                                                   └─ closed ► stash ─(flush)─┘
//! ```

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod gate;
mod plane;
mod segments;
mod stash;
pub mod table;
pub mod ticket;
