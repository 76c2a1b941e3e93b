//! The edge of HTTP: what a hostile or broken client may send, what a hostile or broken pod may answer, byte by byte.
//!
//! Each table's line says what the other side gets. What must stay true for all of them: whatever reaches a pod is
//! read in one way only, a connection on which two sides may disagree is not used again, and the next client is served.

#![allow(clippy::unwrap_used, missing_docs)]

mod answers;
mod claims;
mod keys;
mod recorder;
mod requests;
#[path = "../support/mod.rs"]
mod support;
#[path = "../support/wire.rs"]
#[allow(dead_code, unreachable_pub)]
mod wire;
