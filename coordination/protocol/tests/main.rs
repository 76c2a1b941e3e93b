//! Records as they are stored, and random lives of whole exchanges.
#![allow(clippy::unwrap_used)]

mod assignment_rounds;
mod checkpoints;
mod records;
mod remote_pod;
mod stream_lives;
