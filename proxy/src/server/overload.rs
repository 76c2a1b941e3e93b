//! Refuses clients for whom there is no room, with a `503`.
//!
//! Not here: whether there is room ([`worker`](super::worker)).
//!
//! # Invariants
//!
//! * Refusing a client costs less than serving it, however many there are.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::io::local_reply_bytes;
use crate::message::local_reply::LocalReply;
use crate::metrics::WorkerMetrics;

/// Most clients that are given the time to read the response. Beyond it they are closed without one.
const MAX_LEAVING_CLIENTS: usize = 256;
const FAREWELL_TIMEOUT: Duration = Duration::from_secs(1);

/// Refuses clients of one worker.
#[derive(Default)]
pub(super) struct Overload {
    leaving: Rc<Cell<usize>>,
}

struct RefusalGuard(Rc<Cell<usize>>);

impl Drop for RefusalGuard {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl Overload {
    /// Refuses a client. A `secure` one gets no response: its handshake would cost more than that is worth.
    pub(super) fn send_away(&self, mut stream: TcpStream, secure: bool, metrics: &WorkerMetrics) {
        metrics.answered(LocalReply::Overload);
        if secure || self.leaving.get() >= MAX_LEAVING_CLIENTS {
            return;
        }
        self.leaving.set(self.leaving.get() + 1);
        let leaving = RefusalGuard(self.leaving.clone());
        tokio::task::spawn_local(async move {
            let _leaving = leaving;
            let goodbye = async {
                stream.write_all(&local_reply_bytes(LocalReply::Overload)).await?;
                stream.shutdown().await?;
                // A connection that is closed with bytes unread is reset, and the response is lost with it.
                let mut unread = [0; 1024];
                while stream.read(&mut unread).await? > 0 {}
                std::io::Result::Ok(())
            };
            let _ = tokio::time::timeout(FAREWELL_TIMEOUT, goodbye).await;
        });
    }
}
