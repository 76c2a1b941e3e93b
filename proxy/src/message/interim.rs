//! Answers that come before the answer (RFC 9110, 15.2), on their way from a pod to a client by HTTP/1.1.
//!
//! hyper's server can send none, so they are written past it. Of the two that it or the data path understand, 100 and 101,
//! none comes here, nor do those for a client by HTTP/1.0, which knows none, or by HTTP/2, where only hyper could write them.
//! What must stay true: one is written while hyper has nothing to write, in front of its own answer, or not at all.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::{BufMut as _, Bytes, BytesMut};
use http::{HeaderMap, StatusCode};

/// Beyond this a pod's further ones are left out: its client does not read.
const MOST: usize = 64 << 10;

/// What waits to be written on one connection. Shared with what writes there, which an upgrade may take to another thread.
#[derive(Debug, Clone, Default)]
pub(crate) struct Interim(Arc<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    /// There is something: looked at far more often than there is.
    any: AtomicBool,
    heads: Mutex<BytesMut>,
}

impl Interim {
    pub(crate) fn push(&self, status: StatusCode, headers: &HeaderMap) {
        let mut heads = self.0.heads.lock().unwrap_or_else(PoisonError::into_inner);
        if heads.len() > MOST {
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

    /// To be called when hyper has nothing to write.
    pub(crate) fn take(&self) -> Option<Bytes> {
        if !self.0.any.load(Relaxed) {
            return None;
        }
        self.0.any.store(false, Relaxed);
        Some(self.0.heads.lock().unwrap_or_else(PoisonError::into_inner).split().freeze())
    }
}
