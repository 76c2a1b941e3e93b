//! What the fuzz targets share: slow, obviously right twins of what they fuzz, written from the standards and from other
//! projects' sources, never from Segue's code; and a router to send to.

#![allow(missing_docs)]

pub mod frames;
pub mod hashes;
pub mod hyper_client;
pub mod pieces;
pub mod router;
pub mod servers;
#[path = "../../../proxy/tests/support/wire.rs"]
pub mod wire;
