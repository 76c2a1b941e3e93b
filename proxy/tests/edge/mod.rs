//! The edge of HTTP: bytes that a hostile or broken client may send, and that a hostile or broken pod may answer.
//!
//! Each line of a table names what the other side gets.
//!
//! # Invariants
//!
//! * Every request that reaches a pod can be read in one way only.
//! * A connection about whose state two sides may disagree is not used again.
//! * The next client is served.

mod answers;
mod claims;
mod keys;
mod recorder;
mod requests;
