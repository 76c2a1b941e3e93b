//! Who comes when there is no room: told so, and sent away.
//!
//! Not here: whether there is room ([`server`](super)). What must stay true: being sent away costs less than being served,
//! for as many as may come.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::io::local_reply_bytes;
use crate::message::local_reply::LocalReply;
use crate::metrics::WorkerMetrics;

/// How many are waited for at a time until they have read why. The others are closed without a word.
const MAX_LEAVING: usize = 256;
const FAREWELL_TIMEOUT: Duration = Duration::from_secs(1);

/// Sends clients of one worker away.
#[derive(Default)]
pub(super) struct Overload {
    leaving: Rc<Cell<usize>>,
}

struct Leaving(Rc<Cell<usize>>);

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl Overload {
    /// `secure`: the client waits for a handshake, which would cost more than what it could be told.
    pub(super) fn send_away(&self, mut stream: TcpStream, secure: bool, metrics: &WorkerMetrics) {
        metrics.answered(LocalReply::Overload);
        if secure || self.leaving.get() >= MAX_LEAVING {
            return;
        }
        self.leaving.set(self.leaving.get() + 1);
        let leaving = Leaving(self.leaving.clone());
        tokio::task::spawn_local(async move {
            let _leaving = leaving;
            let goodbye = async {
                stream.write_all(&local_reply_bytes(LocalReply::Overload)).await?;
                stream.shutdown().await?;
                // Closed with bytes unread, the connection would be reset, and the answer with it.
                let mut unread = [0; 1024];
                while stream.read(&mut unread).await? > 0 {}
                std::io::Result::Ok(())
            };
            let _ = tokio::time::timeout(FAREWELL_TIMEOUT, goodbye).await;
        });
    }
}
