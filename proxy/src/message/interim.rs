//! Informational responses (RFC 9110, 15.2) on their way from a pod to an HTTP/1.1 client.
//!
//! 100 and 101 do not come here: the connection and the data path handle them. Neither do responses for an HTTP/1.0 client,
//! which knows none, or for an HTTP/2 client, where only hyper could write them.
//!
//! # Invariants
//!
//! * What waits is bounded, whatever the pod sends and the client reads.

use std::cell::RefCell;
use std::rc::Rc;

use bytes::{BufMut as _, Bytes, BytesMut};
use http::{HeaderMap, StatusCode};

/// Bytes beyond which a pod's further informational responses are dropped, because the client does not read.
const MAX_WAITING_BYTES: usize = 64 << 10;

/// The heads that wait to be written on one connection.
#[derive(Debug, Clone, Default)]
pub(crate) struct Interim(Rc<RefCell<BytesMut>>);

impl Interim {
    pub(crate) fn push(&self, status: StatusCode, headers: &HeaderMap) {
        let heads = &mut *self.0.borrow_mut();
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
    }

    /// Takes the heads that wait.
    pub(crate) fn take(&self) -> Option<Bytes> {
        let heads = &mut *self.0.borrow_mut();
        if heads.is_empty() { None } else { Some(std::mem::take(heads).freeze()) }
    }
}
