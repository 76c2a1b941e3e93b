//! What the fuzz targets share: slow, obviously right twins of what they fuzz, written from the standards and from other
//! projects' sources, never from Segue's code.

#![allow(missing_docs)]

pub mod hashes;
pub mod hyper_client;
pub mod pieces;
#[path = "../../../proxy/tests/support/wire.rs"]
pub mod wire;
