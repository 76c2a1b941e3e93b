//! The router's acknowledgements and their results.

use std::time::Duration;

use segue_protocol::handoff::advance::{Ack, acknowledge};
use segue_protocol::ids::{HandoffId, PartitionId};
use segue_protocol::records::{RouterCutoverAck, RouterDrainedAck};
use segue_protocol::txn::Txn;

use super::driver::Router;
use crate::session::{WriteResults, unix_millis};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum AckKind {
    Drained,
    GaveUp,
    Cutover,
}

/// The identity of an ack: its partition, handoff and kind.
pub(super) type AckId = (PartitionId, HandoffId, AckKind);

impl Router {
    /// Queues an ack, unless it is already being written.
    pub(super) fn write(&mut self, id: AckId) {
        if let Some(again) = self.acks.want(id, self.view.revision) {
            self.timers.insert((again, id.0));
        }
    }

    pub(super) fn send_acks(&mut self) {
        let due = self.acks.take_due();
        let txns: Vec<Txn> = due.iter().map(|id| self.txn(*id)).collect();
        self.acks.send(due.into_iter().zip(txns.into_iter().map(Some)));
    }

    fn txn(&self, id: AckId) -> Txn {
        let writer = self.keys.router(&self.settings.name);
        acknowledge(&self.view, &self.ack(id), writer, self.incarnation, unix_millis())
    }

    fn ack(&self, (partition, handoff, kind): AckId) -> Ack {
        let (router_name, acked_at) = (self.settings.name.clone(), unix_millis());
        let severed = self.severed.get(&partition).copied().unwrap_or(0);
        match kind {
            AckKind::Drained | AckKind::GaveUp => {
                let gave_up = kind == AckKind::GaveUp;
                Ack::RouterDrained(RouterDrainedAck { handoff, gave_up, router_name, partition, acked_at, severed })
            }
            AckKind::Cutover => {
                let times = self.times.get(&partition).copied().unwrap_or_default();
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

    pub(super) fn written(&mut self, results: WriteResults<AckId>) {
        for (id, result) in &results {
            match result {
                Ok(outcome) if outcome.committed() && id.2 == AckKind::Cutover => {
                    self.times.remove(&id.0);
                    self.severed.remove(&id.0);
                }
                Ok(_) | Err(_) => {}
            }
        }
        self.stop_limiter.write_takes(self.acks.round_trip());
        let view = &self.view;
        self.acks.forget(|(partition, handoff, _)| {
            view.handoffs.get(partition).is_none_or(|record| record.id() != *handoff)
        });
        for (id, _) in results {
            self.reconcile(id.0);
        }
    }
}
