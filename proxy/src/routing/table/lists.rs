//! The lists of exchanges that have lasted for a moment: what permits, operators and the control side do with them.
//!
//! Elsewhere: when exchanges are severed (`segue_coordination::router`).
//!
//! # Invariants
//!
//! * An exchange that was inside when its partition was severed has its token cancelled, whenever it is listed.
//! * Severing streams leaves every other exchange alone.

use std::sync::{Arc, PoisonError};

use segue_protocol::ids::PartitionId;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::lasting::{ExchangeAges, LastingExchange, LastingExchanges, LastingId, OldestExchange};
use super::state::Table;
use crate::routing::gate::AbortGeneration;
use crate::routing::request_summary::RequestSummary;
use crate::routing::sync::MutexGuard;

impl Table {
    fn lasting(&self, worker: usize) -> MutexGuard<'_, LastingExchanges> {
        // The list is consistent between any two statements that can panic.
        self.lasting[worker].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lists an exchange that passed the gate when its partition had been severed `began` times. Returns the token that
    /// is cancelled when it is severed, or has been since.
    pub(crate) fn list_lasting(
        &self,
        worker: usize,
        partition: PartitionId,
        began: AbortGeneration,
        is_stream: bool,
        request: Option<Arc<RequestSummary>>,
    ) -> (LastingId, CancellationToken) {
        let severed = CancellationToken::new();
        let mut lasting = self.lasting(worker);
        // Whoever severed counted it before it read the list, under this lock.
        if self.cell(partition).gate.severs() != began {
            severed.cancel();
        }
        let exchange = LastingExchange { since: Instant::now(), is_stream, request, severed: severed.clone() };
        (lasting.insert(partition, exchange), severed)
    }

    /// Returns the token of a listed exchange.
    pub(crate) fn lasting_token(
        &self,
        worker: usize,
        partition: PartitionId,
        id: LastingId,
    ) -> Option<CancellationToken> {
        self.lasting(worker).get_mut(partition, id).map(|exchange| exchange.severed.clone())
    }

    /// Records that a listed exchange has become a stream.
    pub(crate) fn lasting_streams(&self, worker: usize, partition: PartitionId, id: LastingId) {
        if let Some(exchange) = self.lasting(worker).get_mut(partition, id) {
            exchange.is_stream = true;
        }
    }

    /// Takes an exchange that has ended off the list.
    pub(crate) fn lasting_ended(&self, worker: usize, partition: PartitionId, id: LastingId) {
        self.lasting(worker).remove(partition, id);
    }

    /// Returns since when the partition's oldest exchange has lasted. Streams do not count, nor do exchanges that have
    /// only just begun.
    pub fn oldest_exchange(&self, partition: PartitionId) -> Option<Instant> {
        let oldest = |worker| {
            let lasting = self.lasting(worker);
            let others = lasting.of(partition).filter(|exchange| !exchange.is_stream);
            others.map(|exchange| exchange.since).min()
        };
        (0..self.lasting.len()).filter_map(oldest).min()
    }

    /// Returns the exchanges that have lasted for a moment, other than streams: the partition of each, and since when it has
    /// lasted.
    pub(super) fn lasting_exchanges(&self) -> Vec<(PartitionId, Instant)> {
        let workers = 0..self.lasting.len();
        workers.flat_map(|worker| self.lasting(worker).all().collect::<Vec<_>>()).collect()
    }

    /// Returns what of the partition has lasted for a moment.
    pub fn lasting_of(&self, partition: PartitionId) -> ExchangeAges {
        let mut all = ExchangeAges::default();
        for worker in 0..self.lasting.len() {
            for exchange in self.lasting(worker).of(partition) {
                all.streams += usize::from(exchange.is_stream);
                if all.oldest.as_ref().is_none_or(|oldest| exchange.since < oldest.since) {
                    all.oldest = Some(OldestExchange { since: exchange.since, request: exchange.request.clone() });
                }
            }
        }
        all
    }

    /// Ends the streams among the partition's exchanges that last. Returns the number of those that were not severed
    /// before.
    pub fn sever_streams(&self, partition: PartitionId) -> u32 {
        self.cancel(partition, |exchange| exchange.is_stream)
    }

    /// Cancels the tokens of the listed exchanges that `are_meant`. Returns the number of those that were not cancelled.
    pub(super) fn cancel(&self, partition: PartitionId, are_meant: impl Fn(&LastingExchange) -> bool) -> u32 {
        let mut cancelled = 0;
        for worker in 0..self.lasting.len() {
            let tokens: Vec<CancellationToken> = {
                let lasting = self.lasting(worker);
                let exchanges = lasting.of(partition).filter(|it| are_meant(it) && !it.severed.is_cancelled());
                exchanges.map(|exchange| exchange.severed.clone()).collect()
            };
            cancelled += tokens.len() as u32;
            // Outside the lock: cancelling wakes tasks.
            tokens.iter().for_each(CancellationToken::cancel);
        }
        cancelled
    }
}
