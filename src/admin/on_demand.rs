//! Reads what this process does not follow, while somebody looks: what the routers report of their clients, and, in a process
//! that does not plan, which of them have acknowledged.
//!
//! Any process can show both. While clients suffer, each router writes a report every few seconds, and each acknowledges every
//! move: hundreds of processes would receive all of that.
//!
//! # Invariants
//!
//! * Without a reader nothing is read, and readers share what is read.

use std::sync::Arc;
use std::time::Duration;

use segue_coordination::store::{Store, StoreError};
use segue_protocol::keys::Keyspace;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout};
use tracing::debug;

use super::page::board::Board;
use crate::operator::troubles::TroubleReports;

/// The shortest time between two reads, and the age up to which a read is shown without another one.
const INTERVAL: Duration = Duration::from_secs(1);
/// How many times as long as a read took the next one waits: with many routers it is large.
const REST: u32 = 10;
/// How long a read may take.
const READ_TIMEOUT: Duration = Duration::from_secs(2);
/// How long somebody who looks waits for a read.
const PATIENCE: Duration = Duration::from_millis(500);

async fn read(store: &dyn Store, keys: &Keyspace, board: &Board, plans: bool) -> Result<(), StoreError> {
    board.report(TroubleReports::read(store, keys).await?);
    if !plans && board.waits_for_routers() {
        board.show_router_acks(store.snapshot(&keys.router_acks()).await?.entries);
    }
    Ok(())
}

/// Puts what a keyspace's routers write on its board when somebody wants it.
#[derive(Debug)]
pub(crate) struct OnDemandReader {
    wanted: Notify,
    /// When the last attempt ended.
    read: watch::Sender<Option<Instant>>,
}

impl OnDemandReader {
    pub(super) fn new() -> Self {
        OnDemandReader { wanted: Notify::new(), read: watch::Sender::new(None) }
    }

    /// Reads when that is wanted. A process that `plans` follows the acknowledgements anyway. Never returns.
    pub(super) async fn run(&self, store: Arc<dyn Store>, keys: Keyspace, board: Arc<Board>, plans: bool) {
        loop {
            self.wanted.notified().await;
            let begun = Instant::now();
            match timeout(READ_TIMEOUT, read(store.as_ref(), &keys, &board, plans)).await {
                Ok(Ok(())) => {}
                // The status says that the store is not followed.
                Ok(Err(error)) => debug!(%error, "reports of routers not read"),
                Err(_) => debug!("reports of routers not read in time"),
            }
            self.read.send_replace(Some(Instant::now()));
            sleep(INTERVAL.max(begun.elapsed() * REST)).await;
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
