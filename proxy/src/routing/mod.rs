//! Which pod a request goes to, and when: the partition of a request, the table of owners, the gate and the stash.
//!
//! Not here: HTTP messages (`message`), connections (`upstream`), what becomes of an admitted request (`forward`).
//!
//! # Invariants
//!
//! * No I/O: whatever two threads share goes through `sync`, so that loom sees it.
//! * Only `data_plane` translates between the handoff protocol and the table.

pub(crate) mod client_share;
mod data_plane;
pub mod gate;
mod host;
pub mod key_hash;
pub mod key_limit;
pub mod keyspace_choice;
pub mod partition_key;
pub mod partition_state;
pub mod permit;
pub mod request_summary;
pub mod route_rules;
mod segmented_vec;
pub mod stash;
mod sync;
pub mod table;
