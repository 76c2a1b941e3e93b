//! The edge of HTTP: bytes that a hostile or broken client may send, and that a hostile or broken pod may answer.
//!
//! Each line of a table names what the other side gets.
//!
//! # Invariants
//!
//! * Every request that reaches a pod can be read in one way only.
//! * A connection about whose state two sides may disagree is not used again.
//! * The next client is served.

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
