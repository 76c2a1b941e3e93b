//! HTTP messages: what a request says, its body, and the responses that the router makes itself.
//!
//! Router and sidecar share these rules. Not here: which pod gets a request (`routing`), how a message is written to a
//! pod (`upstream`) or a client (`server`).

pub mod client_body;
pub(crate) mod detach;
pub(crate) mod expect_continue;
pub(crate) mod frame_follower;
pub(crate) mod frames;
pub(crate) mod grpc_timeout;
pub(crate) mod header_names;
pub(crate) mod header_scan;
pub(crate) mod headers;
pub(crate) mod interim;
pub mod local_reply;
pub(crate) mod name_cache;
pub(crate) mod request_body;
pub(crate) mod reserved;
pub(crate) mod stream_kind;
pub(crate) mod websocket;

/// The first bytes of an HTTP/2 connection (RFC 9113, 3.4).
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
