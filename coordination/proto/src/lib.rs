//! `pods.proto` compiled anew. For tests alone: they compare it with what is committed, from which `segue-grpc` is built,
//! so that no user builds a compiler of protocol buffers.

/// The Rust code of the messages, the client and the server.
pub const CODE: &str = include_str!(concat!(env!("OUT_DIR"), "/segue.v1.rs"));

/// The descriptor set, without the places of the source.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/pods.binpb"));
