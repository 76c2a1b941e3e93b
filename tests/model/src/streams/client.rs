//! A pod's process: it serves what it was told, and does its tasks in order.

use segue_protocol::handoff::pod_reconcile::Callback;
use segue_protocol::handoff::remote_pod::TaskReport;
use segue_protocol::ids::{Epoch, HandoffId};
use segue_protocol::records::PodAckKind;

use super::state::State;
use super::{PARTITION, PODS, Streams};

impl Streams {
    pub(super) fn deliver(&self, state: &mut State, pod: usize) {
        let Some(stream) = state.streams[pod].as_mut() else { return };
        let Some((is_full, changes)) = stream.events.pop_front() else { return };
        let client = &mut state.clients[pod];
        if !std::mem::replace(&mut stream.has_begun, true) {
            client.token = Some(stream.life);
        }
        if is_full {
            client.owned = None;
            // A report that is no longer due is not repeated.
            client.tasks.clear();
        }
        if !changes.gone.is_empty() {
            client.owned = None;
        }
        client.owned = changes.owned.last().map(|(_, epoch)| *epoch).or(client.owned);
        client.tasks.retain(|task| !changes.dropped.iter().any(|(_, handoff)| task.handoff == *handoff));
        for task in changes.tasks {
            client.tasks.retain(|before| before.callback == Callback::Release && *before != task);
            client.tasks.push_back(task);
        }
    }

    pub(super) fn work(&self, state: &mut State, pod: usize) {
        let log = state.log.1;
        let client = &mut state.clients[pod];
        let Some(task) = client.tasks.pop_front() else { return };
        match task.callback {
            Callback::Warm if client.held.is_some_and(|(held, _)| held == task.epoch) => {}
            Callback::Warm => client.held = Some((task.epoch, log)),
            Callback::Sync => client.held = client.held.map(|(epoch, _)| (epoch, log)),
            // A Warm of an earlier stream may have ended since this stream began.
            Callback::Release => {
                let is_later = |held: Epoch| task.epoch != Epoch::default() && held > task.epoch;
                client.held.take_if(|(held, _)| !is_later(*held));
            }
            // Its writes are over as soon as they are accepted. It makes no checkpoints.
            Callback::Leaving | Callback::Drain | Callback::Checkpoint => {}
        }
        if task.handoff != HandoffId::NONE {
            let (partition, handoff, callback) = (task.partition, task.handoff, task.callback);
            let report = TaskReport { partition, handoff, callback, failure: None };
            if !client.reports.contains(&report) {
                client.reports.push(report);
            }
        }
    }

    /// A write reaches a pod. It accepts it if it was told to serve the partition.
    pub(super) fn write(&self, state: &mut State, pod: usize) {
        let view = self.store.view(state.now);
        let (last, log) = state.log;
        let client = &mut state.clients[pod];
        let Some(epoch) = client.owned else { return };
        let at_rest = view
            .handoffs
            .get(&PARTITION)
            .is_some_and(|handoff| view.pod_ack(PARTITION, PODS[pod], PodAckKind::Drained, handoff.id()).is_some());
        let is_later_owner = view.assignments.get(&PARTITION).is_some_and(|owner| owner.value.epoch > epoch);
        if at_rest || is_later_owner || last > epoch {
            state.violated = Some("single_writer");
        } else if client.held != Some((epoch, log)) {
            state.violated = Some("no_lost_request");
        }
        state.log = (epoch, log + 1);
        client.held = Some((epoch, log + 1));
    }
}
