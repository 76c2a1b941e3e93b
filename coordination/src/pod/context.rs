//! The subject of a callback, as the view shows it.

use segue_protocol::handoff::checkpoint::newest;
use segue_protocol::handoff::pod_reconcile::{Callback, Task};
use segue_protocol::ids::{HandoffId, PartitionId};
use segue_protocol::records::{Phase, PodRecord};

use super::membership::Membership;
use super::{HandoffContext, PodAddress};

/// Returns the subject of a callback of this pod.
pub(super) fn context(pod: &Membership, keyspace: &str, partition: PartitionId, task: Task) -> HandoffContext {
    let (view, Task { callback, epoch, .. }) = (&pod.view, task);
    let moves = view.handoffs.get(&partition).filter(|it| it.value.phase == Phase::Warming);
    let handoff = match callback {
        Callback::Checkpoint => moves.map_or(HandoffId::NONE, |record| record.id()),
        _ => task.handoff,
    };
    let start = newest(view, partition).filter(|_| callback == Callback::Warm);
    let checkpoint = start.map(|name| name.as_str().to_owned());
    let (from, to) = sides(pod, partition, task);
    let (keyspace, partitions) = (keyspace.to_owned(), view.partitions());
    HandoffContext { keyspace, partition, epoch, handoff, checkpoint, partitions, from, to }
}

/// Returns the living pods of the handoff that moves the partition to this pod or away from it.
fn sides(pod: &Membership, partition: PartitionId, task: Task) -> (Option<PodAddress>, Option<PodAddress>) {
    let Some(standing) = pod.view.handoffs.get(&partition) else { return (None, None) };
    let record = &standing.value;
    let (me, life) = (pod.settings.name.as_str(), pod.incarnation);
    let leaves = (record.old_owner.as_deref(), record.old_incarnation) == (Some(me), life);
    // The state of an earlier handoff may be released while another one begins.
    let comes = (record.new_owner.as_str(), record.new_incarnation, standing.id()) == (me, life, task.handoff);
    if !leaves && !comes {
        return (None, None);
    }
    let side = |pod: &PodRecord| PodAddress { pod: pod.pod_name.clone(), address: pod.address.clone() };
    (pod.view.live_old_owner(record).map(side), pod.view.live_new_owner(record).map(side))
}
