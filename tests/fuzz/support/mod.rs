//! Shared parts of the fuzz targets: a router to send to, and slow, obviously correct twins of the fuzzed code. The
//! twins are written from standards and from other projects' sources, never from Segue's code.

pub mod bodies;
pub mod frames;
pub mod hashes;
pub mod hyper_client;
pub mod pieces;
pub mod router;
pub mod servers;
#[path = "../../../proxy/tests/support/wire.rs"]
pub mod wire;
