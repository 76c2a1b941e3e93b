//! Encodes what a pod is told as messages.

use std::time::Duration;

use segue_protocol::handoff::checkpoint::newest;
use segue_protocol::handoff::pod_reconcile::Callback;
use segue_protocol::handoff::remote_pod::{PodMessages, RemoteTask};
use segue_protocol::ids::{HandoffId, PartitionId};
use segue_protocol::lease::keepalive_interval;
use segue_protocol::planning::{Policy, in_force};
use segue_protocol::records::PodRecord;
use segue_protocol::view::View;

use crate::attach::AttachedPod;
use crate::event_stream::{WINDOW, span};
use crate::hello::PROTOCOL;
use crate::hub::micros;
use crate::proto::task::Kind;
use crate::proto::{Assignment, Checkpoint, Drain, Event, Leaving, Owned, Release, Sync, Task, TaskId, Warm, Welcome};
use crate::shared::PodsSettings;

/// Returns the event with these changes, not numbered yet. `full` marks them as the complete state.
pub(crate) fn event(view: &View, settings: &PodsSettings, changes: PodMessages, full: bool) -> Event {
    // Only tasks need it, and reading it takes longer than the rest.
    let policy = (!changes.tasks.is_empty()).then(|| in_force(view, &settings.policy));
    let assignment = Assignment {
        full,
        owned: changes
            .owned
            .iter()
            .map(|(partition, epoch)| Owned { partition: partition.get(), epoch: epoch.get() })
            .collect(),
        gone: changes.gone.iter().map(|partition| partition.get()).collect(),
    };
    let is_told = full || !assignment.owned.is_empty() || !assignment.gone.is_empty();
    Event {
        revision: view.revision.get(),
        assignment: is_told.then_some(assignment),
        tasks: policy.iter().flat_map(|policy| changes.tasks.iter().map(|due| task(view, policy, *due))).collect(),
        dropped: changes.dropped.into_iter().map(|(partition, handoff)| task_id(partition, handoff)).collect(),
        ..Event::default()
    }
}

pub(crate) fn welcome(attached: &AttachedPod, view: &View) -> Welcome {
    let ttl = attached.token.ttl();
    Welcome {
        protocol: PROTOCOL,
        incarnation: attached.incarnation().get(),
        resume: attached.token.to_bytes(),
        resumed: attached.resumed,
        lease_ttl: span(ttl),
        trust: span(ttl * 2 / 3),
        heartbeat_every: span(Duration::from_micros(keepalive_interval(micros(ttl)))),
        partitions: view.partitions(),
        window: u32::try_from(WINDOW).unwrap_or(u32::MAX),
    }
}

fn task(view: &View, policy: &Policy, due: RemoteTask) -> Task {
    let RemoteTask { partition, callback, handoff, epoch, cancelled } = due;
    let record = view.handoffs.get(&partition).filter(|record| record.id() == handoff).map(|record| &record.value);
    let named = |pod: &PodRecord| (pod.pod_name.clone(), pod.address.clone());
    let from = || record.and_then(|record| view.live_old_owner(record)).map(named).unwrap_or_default();
    let to = || record.and_then(|record| view.live_new_owner(record)).map(named).unwrap_or_default();
    let (within, kind) = match callback {
        Callback::Warm => {
            let (from_pod, from_address) = from();
            let checkpoint = newest(view, partition).map_or_else(Vec::new, |name| name.as_str().into());
            (Some(policy.warm_timeout), Kind::Warm(Warm { from_pod, from_address, checkpoint }))
        }
        Callback::Sync => {
            let (from_pod, from_address) = from();
            (Some(policy.phase_timeout), Kind::Sync(Sync { from_pod, from_address }))
        }
        Callback::Leaving => {
            let (to_pod, to_address) = to();
            (Some(policy.phase_timeout), Kind::Leaving(Leaving { to_pod, to_address }))
        }
        Callback::Drain => {
            let (to_pod, to_address) = to();
            (Some(policy.phase_timeout), Kind::Drain(Drain { to_pod, to_address }))
        }
        Callback::Release => {
            // The new owner releases what it has copied once the handoff is cancelled.
            let (to_pod, to_address) = if cancelled { Default::default() } else { to() };
            (None, Kind::Release(Release { cancelled, to_pod, to_address }))
        }
        Callback::Checkpoint => (None, Kind::Checkpoint(Checkpoint {})),
    };
    Task {
        id: Some(task_id(partition, handoff)),
        epoch: epoch.get(),
        // Without a handoff there is nothing to cancel.
        within: within.filter(|_| record.is_some()).and_then(span),
        why: record.map_or_else(String::new, |record| record.reason.clone()),
        kind: Some(kind),
    }
}

fn task_id(partition: PartitionId, handoff: HandoffId) -> TaskId {
    TaskId { partition: partition.get(), handoff: handoff.get() }
}
