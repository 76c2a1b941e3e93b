//! Informational responses (RFC 9110, 15.2) on their way from a pod to an HTTP/1.1 client.
//!
//! hyper's server can send none, so they are written past it. 100 and 101 do not come here: hyper and the data path
//! handle them. Neither do responses for an HTTP/1.0 client, which knows none, or for an HTTP/2 client, where only
//! hyper could write them.
//!
//! # Invariants
//!
//! * An informational response is written while hyper has nothing to write, ahead of hyper's own response, or not at
//!   all.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::{BufMut as _, Bytes, BytesMut};
use http::{HeaderMap, StatusCode};

/// Bytes beyond which a pod's further informational responses are dropped, because the client does not read.
const MAX_WAITING_BYTES: usize = 64 << 10;

/// The heads that wait to be written on one connection. An upgrade may move the connection to another thread, so they
/// are shared across threads.
#[derive(Debug, Clone, Default)]
pub(crate) struct Interim(Arc<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    /// Whether there is any head. Usually there is none, and this check is cheaper than the lock.
    any: AtomicBool,
    heads: Mutex<BytesMut>,
}

impl Interim {
    pub(crate) fn push(&self, status: StatusCode, headers: &HeaderMap) {
        let mut heads = self.0.heads.lock().unwrap_or_else(PoisonError::into_inner);
        if heads.len() > MAX_WAITING_BYTES {
            return;
        }
        heads.put(&b"HTTP/1.1 "[..]);
        heads.put(status.as_str().as_bytes());
        heads.put_u8(b' ');
        heads.put(status.canonical_reason().unwrap_or_default().as_bytes());
        heads.put(&b"\r\n"[..]);
        for (name, value) in headers {
            heads.put(name.as_str().as_bytes());
            heads.put(&b": "[..]);
            heads.put(value.as_bytes());
            heads.put(&b"\r\n"[..]);
        }
        heads.put(&b"\r\n"[..]);
        self.0.any.store(true, Relaxed);
    }

    /// Returns the heads that wait. To be called when hyper has nothing to write.
    pub(crate) fn take(&self) -> Option<Bytes> {
        if !self.0.any.load(Relaxed) {
            return None;
        }
        self.0.any.store(false, Relaxed);
        Some(std::mem::take(&mut *self.0.heads.lock().unwrap_or_else(PoisonError::into_inner)).freeze())
    }
}
