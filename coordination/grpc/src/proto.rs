//! The messages, the client and the server of `pods.proto`, as they are committed beside it.

#![allow(missing_docs, unreachable_pub, clippy::all, clippy::missing_errors_doc, clippy::too_many_lines)]

include!("../../proto/segue/v1/segue.v1.rs");
