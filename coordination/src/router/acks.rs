//! The router's acknowledgements, what they report, and their results.
//!
//! No view shows a router which acknowledgements it has written, so the queue remembers it, until the next snapshot of the
//! keyspace: somebody may have deleted one by hand.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use segue_protocol::handoff::advance::{Ack, acknowledge};
use segue_protocol::ids::{HandoffId, Incarnation, PartitionId, Revision};
use segue_protocol::records::{RouterCutoverAck, RouterDrainedAck};
use segue_protocol::txn::Txn;
use segue_protocol::view::View;
use tokio::time::Instant;

use super::CutoverTimes;
use crate::session::{WriteQueue, WriteResults, unix_millis};
use crate::store::Store;

/// How long an ack rests after one of its guards failed. The view is likely to be newer by then.
const REFUSED_PAUSE: Duration = Duration::from_millis(50);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum AckKind {
    Drained,
    GaveUp,
    Cutover,
}

/// The identity of an ack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct AckId {
    pub(super) partition: PartitionId,
    pub(super) handoff: HandoffId,
    pub(super) kind: AckKind,
}

/// The acks of one router.
pub(super) struct Acks {
    router: String,
    queue: WriteQueue<AckId>,
    /// Number of exchanges severed for the cutover of a partition.
    severed: HashMap<PartitionId, u64>,
    /// The times of a partition's last cutover.
    times: HashMap<PartitionId, CutoverTimes>,
    /// The times that the last written ack of a cutover reports, while its handoff lasts.
    reported: HashMap<PartitionId, (HandoffId, CutoverTimes)>,
}

impl Acks {
    pub(super) fn of(store: Arc<dyn Store>, router: &str) -> Self {
        let queue = WriteQueue::new(store, "acknowledgement cannot be written; retrying", REFUSED_PAUSE);
        let (severed, times, reported) = Default::default();
        Acks { router: router.to_owned(), queue, severed, times, reported }
    }

    /// Adds to the exchanges that were severed for the cutover of this partition.
    pub(super) fn add_severed(&mut self, partition: PartitionId, severed: u64) {
        *self.severed.entry(partition).or_default() += severed;
    }

    /// Returns how many exchanges were severed for the cutover of this partition.
    pub(super) fn severed(&self, partition: PartitionId) -> u64 {
        self.severed.get(&partition).copied().unwrap_or(0)
    }

    /// Records the times of a cutover that has ended.
    pub(super) fn set_times(&mut self, partition: PartitionId, times: CutoverTimes) {
        self.times.insert(partition, times);
    }

    /// Queues an ack, unless it is written or being written. Returns when to call again, if no result will trigger that.
    pub(super) fn want(&mut self, id: AckId) -> Option<Instant> {
        self.queue.want(id, Revision::ZERO)
    }

    /// Returns whether this router has said that it drained for this handoff, or that it cannot.
    pub(super) fn has_answered(&self, partition: PartitionId, handoff: HandoffId) -> bool {
        [AckKind::Drained, AckKind::GaveUp]
            .into_iter()
            .any(|kind| self.queue.has_written(AckId { partition, handoff, kind }))
    }

    /// Sends the acks that are due, as those of this life of the router.
    pub(super) fn send(&mut self, view: &View, life: Incarnation) {
        let due = self.queue.take_due();
        let txns: Vec<Txn> = due.iter().map(|id| self.txn(view, life, *id)).collect();
        self.queue.send(due.into_iter().zip(txns.into_iter().map(Some)));
    }

    fn txn(&self, view: &View, life: Incarnation, id: AckId) -> Txn {
        let writer = view.keys().router(&self.router);
        acknowledge(view, &self.ack(id), writer, life, unix_millis())
    }

    fn ack(&self, AckId { partition, handoff, kind }: AckId) -> Ack {
        let (router_name, acked_at) = (self.router.clone(), unix_millis());
        match kind {
            AckKind::Drained | AckKind::GaveUp => {
                let (gave_up, severed) = (kind == AckKind::GaveUp, self.severed(partition));
                Ack::RouterDrained(RouterDrainedAck { handoff, gave_up, router_name, partition, acked_at, severed })
            }
            AckKind::Cutover => {
                let reported = self.reported.get(&partition).filter(|(of, _)| *of == handoff).map(|(_, times)| times);
                let times = self.times.get(&partition).or(reported).copied().unwrap_or_default();
                let micros = |duration: Duration| duration.as_micros() as u64;
                Ack::RouterCutover(RouterCutoverAck {
                    router_name,
                    partition,
                    handoff,
                    acked_at,
                    stashed: times.stashed,
                    drain_us: micros(times.drain),
                    pause_us: micros(times.pause),
                    flush_us: micros(times.flush),
                })
            }
        }
    }

    /// Returns the results of the next request that completes. Pending while none is in flight. Cancel-safe.
    pub(super) async fn next_results(&mut self) -> WriteResults<AckId> {
        self.queue.next_results().await
    }

    /// Takes results. Returns the partitions to reconcile.
    pub(super) fn written(&mut self, results: WriteResults<AckId>, view: &View) -> Vec<PartitionId> {
        for (id, result) in &results {
            if id.kind == AckKind::Cutover && result.as_ref().is_ok_and(|outcome| outcome.committed()) {
                self.severed.remove(&id.partition);
                if let Some(times) = self.times.remove(&id.partition) {
                    self.reported.insert(id.partition, (id.handoff, times));
                }
            }
        }
        let stands = |partition, handoff| view.handoffs.get(&partition).is_some_and(|record| record.id() == handoff);
        self.queue.forget(|id| !stands(id.partition, id.handoff));
        self.reported.retain(|partition, (handoff, _)| stands(*partition, *handoff));
        results.into_iter().map(|(id, _)| id.partition).collect()
    }

    /// Forgets which acks are written, so that those which are still due are written again.
    pub(super) fn resync(&mut self) {
        self.queue.forget(|_| true);
    }

    /// Returns how long the store has taken for a write lately; zero before the first.
    pub(super) fn round_trip(&self) -> Duration {
        self.queue.round_trip()
    }

    /// Returns until when no ack is written, because the store refuses writes.
    pub(super) fn refused_until(&self) -> Option<Instant> {
        self.queue.refused_until()
    }
}
