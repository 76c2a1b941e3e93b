//! Reads what the routers report of their clients, while somebody looks.
//!
//! Any process can show the reports, and none follows them: while clients suffer, each router writes one every few seconds,
//! and hundreds of processes would receive all of them.
//!
//! # Invariants
//!
//! * Without a reader nothing is read, and readers share what is read.

use std::sync::Arc;
use std::time::Duration;

use segue_coordination::store::Store;
use segue_protocol::keys::Keyspace;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout};
use tracing::debug;

use super::page::board::Board;
use crate::operator::troubles::TroubleReports;

/// The shortest time between two reads, and the age up to which a read is shown without another one.
const INTERVAL: Duration = Duration::from_secs(1);
/// How long a read may take.
const READ_TIMEOUT: Duration = Duration::from_secs(2);
/// How long somebody who looks waits for a read.
const PATIENCE: Duration = Duration::from_millis(500);

/// Puts the reports of a keyspace's routers on its board when somebody wants them.
#[derive(Debug)]
pub(crate) struct TroubleReader {
    wanted: Notify,
    /// When the last attempt ended.
    read: watch::Sender<Option<Instant>>,
}

impl TroubleReader {
    pub(super) fn new() -> Self {
        TroubleReader { wanted: Notify::new(), read: watch::Sender::new(None) }
    }

    /// Reads when that is wanted. Never returns.
    pub(super) async fn run(&self, store: Arc<dyn Store>, keys: Keyspace, board: Arc<Board>) {
        loop {
            self.wanted.notified().await;
            match timeout(READ_TIMEOUT, TroubleReports::read(store.as_ref(), &keys)).await {
                Ok(Ok(reports)) => board.report(reports),
                // The status says that the store is not followed.
                Ok(Err(error)) => debug!(%error, "reports of troubles not read"),
                Err(_) => debug!("reports of troubles not read in time"),
            }
            self.read.send_replace(Some(Instant::now()));
            sleep(INTERVAL).await;
        }
    }

    /// Asks for another read, without waiting for it.
    pub(super) fn want(&self) {
        self.wanted.notify_one();
    }

    /// Waits for reports that are not old, for a moment.
    pub(super) async fn fresh(&self) {
        let mut read = self.read.subscribe();
        if read.borrow_and_update().is_some_and(|at| at.elapsed() < INTERVAL) {
            return;
        }
        self.want();
        // After the timeout, the reports of the last read are shown.
        let _ = timeout(PATIENCE, read.changed()).await;
    }
}
