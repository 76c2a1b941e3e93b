//! The state of the pods that have a stream at this instance, for operators.

use std::collections::{BTreeMap, BTreeSet};

use segue_coordination::pod::LoadReport;
use segue_protocol::handoff::remote_pod::RemoteTask;
use segue_protocol::ids::{HandoffId, PartitionId};
use segue_protocol::records::{MAX_PARTITIONS, one_line};
use serde::Serialize;
use tonic::Status;

use crate::proto;

/// A pod's stream, or a pod that polls.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StreamStatus {
    /// The pod's name.
    pub pod: String,
    /// How many events the pod has not applied.
    pub behind: u64,
    /// Whether the pod's lease is not renewed because the pod applies no events.
    pub is_stuck: bool,
    /// The tasks that are due.
    pub tasks: Vec<TaskStatus>,
    /// The load that the pod reported last.
    pub load: Option<ReportedLoad>,
}

impl StreamStatus {
    pub(crate) fn new(pod: &str) -> Self {
        StreamStatus { pod: pod.to_owned(), behind: 0, is_stuck: false, tasks: Vec::new(), load: None }
    }
}

/// A task that is due.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TaskStatus {
    /// The partition.
    pub partition: PartitionId,
    /// The handoff; 0 without one.
    pub handoff: HandoffId,
    /// `warm`, `sync`, `drain`, `release` or `checkpoint`.
    pub task: &'static str,
    /// The progress that the pod reported last.
    pub progress: Option<TaskProgress>,
}

/// The progress of a task.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TaskProgress {
    /// From 0 to 1.
    pub fraction: f32,
    /// The pod's description.
    pub detail: String,
}

/// A pod's load, in the unit of its keyspace.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct ReportedLoad {
    /// The whole load.
    pub total: f64,
    /// The shares of partitions.
    pub by_partition: BTreeMap<PartitionId, f64>,
    /// The number of keys of partitions, where the pod knows it.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub keys: BTreeMap<PartitionId, u64>,
}

impl ReportedLoad {
    /// Returns the load that a heartbeat reports.
    pub(crate) fn in_heartbeat(heartbeat: &proto::Heartbeat) -> Result<Option<Self>, Status> {
        heartbeat.load.as_ref().map(ReportedLoad::read).transpose()
    }

    fn read(load: &proto::Load) -> Result<Self, Status> {
        let (shares, keys) = (load.by_partition.iter(), load.keys.iter());
        let read = ReportedLoad {
            total: load.total,
            by_partition: shares.map(|(&partition, &share)| (PartitionId::new(partition), share)).collect(),
            keys: keys.map(|(&partition, &keys)| (PartitionId::new(partition), keys)).collect(),
        };
        let is_amount = |amount: &f64| amount.is_finite() && *amount >= 0.0;
        if !is_amount(&read.total) || !read.by_partition.values().all(is_amount) {
            return Err(Status::invalid_argument("`load`: expected finite numbers, not below 0"));
        }
        if let Some(partition) =
            read.partitions().max().filter(|partition| *partition >= PartitionId::new(MAX_PARTITIONS))
        {
            let text = format!("`load`: partition {partition}; no keyspace has more than {MAX_PARTITIONS}");
            return Err(Status::invalid_argument(text));
        }
        Ok(read)
    }

    /// Returns each partition of which the pod reports something.
    pub(crate) fn partitions(&self) -> impl Iterator<Item = PartitionId> {
        self.by_partition.keys().chain(self.keys.keys()).copied()
    }

    /// Returns what the pod reports of a partition. One that reports keys alone leaves the load to others.
    pub(crate) fn of(&self, partition: PartitionId) -> LoadReport {
        let measures = self.total > 0.0 || !self.by_partition.is_empty() || self.keys.is_empty();
        let load = measures.then(|| self.by_partition.get(&partition).copied().unwrap_or_default());
        LoadReport { load, keys: self.keys.get(&partition).copied() }
    }
}

/// A pod's reports on its unfinished tasks.
#[derive(Debug, Default)]
pub(crate) struct Reports {
    progress: BTreeMap<PartitionId, (HandoffId, TaskProgress)>,
}

impl Reports {
    /// Takes the progress of tasks that are due, and forgets that of all others.
    pub(crate) fn take(&mut self, due: &[RemoteTask], reported: &[proto::Progress]) {
        let due: BTreeSet<_> = due.iter().map(|task| (task.partition, task.handoff)).collect();
        self.progress.retain(|partition, (handoff, _)| due.contains(&(*partition, *handoff)));
        for proto::Progress { id, fraction, detail } in reported {
            let Some((partition, handoff)) = id.map(task_of) else { continue };
            if due.contains(&(partition, handoff)) {
                let fraction = if fraction.is_nan() { 0.0 } else { fraction.clamp(0.0, 1.0) };
                self.progress.insert(partition, (handoff, TaskProgress { fraction, detail: one_line(detail) }));
            }
        }
    }

    pub(crate) fn of(&self, due: &[RemoteTask]) -> Vec<TaskStatus> {
        let status = |task: &RemoteTask| {
            let reported = self.progress.get(&task.partition).filter(|(handoff, _)| *handoff == task.handoff);
            TaskStatus {
                partition: task.partition,
                handoff: task.handoff,
                task: task.callback.as_str(),
                progress: reported.map(|(_, progress)| progress.clone()),
            }
        };
        due.iter().map(status).collect()
    }
}

/// Returns the tasks that a pod reports the progress of.
pub(crate) fn tasks_in(reported: &[proto::Progress]) -> impl Iterator<Item = (PartitionId, HandoffId)> {
    reported.iter().filter_map(|progress| progress.id).map(task_of)
}

fn task_of(id: proto::TaskId) -> (PartitionId, HandoffId) {
    (PartitionId::new(id.partition), HandoffId::created_at(id.handoff.into()))
}
