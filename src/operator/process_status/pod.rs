//! What a pod works on, as its sidecar or the coordinator that serves its stream tells.

use anyhow::Context as _;
use segue_protocol::ids::PartitionId;
use serde::{Deserialize, Serialize};

use super::super::lasting;
use super::oldest::Oldest;

/// The answer of a pod by gRPC if nothing is due.
const NO_TASK: &str = "no task is due";

#[derive(Debug, Deserialize)]
pub(super) struct CoordinatorPart {
    /// The pods that use its gRPC service, if it has one.
    pod_streams: Option<Vec<PodStreamLine>>,
}

#[derive(Debug, Deserialize)]
pub(super) struct PodPart {
    not_ready: Option<String>,
    service_up: bool,
    in_flight: u64,
    /// The requests in flight of each partition that has any.
    #[serde(default)]
    requests: Vec<PartitionRequests>,
    hooks: Vec<HookState>,
    /// The service's stream, if it has opened one.
    stream: Option<PodStreamLine>,
}

#[derive(Debug, Deserialize)]
struct PartitionRequests {
    partition: PartitionId,
    in_flight: u64,
    #[serde(flatten)]
    oldest: Oldest,
}

#[derive(Debug, Deserialize)]
struct PodStreamLine {
    pod: String,
    /// Whether the pod's lease is not renewed because the pod applies no events.
    is_stuck: bool,
    /// The tasks that are due.
    tasks: Vec<TaskLine>,
}

#[derive(Debug, Deserialize)]
struct TaskLine {
    partition: PartitionId,
    task: String,
    progress: Option<TaskFraction>,
}

#[derive(Debug, Deserialize)]
struct TaskFraction {
    fraction: f64,
    detail: String,
}

#[derive(Debug, Deserialize)]
struct HookState {
    partition: PartitionId,
    hook: String,
    running: bool,
    for_ms: u64,
    progress: Option<f64>,
    detail: Option<String>,
    failures: u32,
    failure: Option<String>,
}

/// Work that a pod has not finished: a call of a hook, or a task of the gRPC service.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(in crate::operator) struct Work {
    pub(in crate::operator) partition: PartitionId,
    /// `warm`, `sync`, `drain`, `release` or `checkpoint`.
    callback: String,
    /// The progress that the service has reported, from 0 to 1.
    progress: Option<f64>,
    /// The service's description of its progress.
    detail: Option<String>,
    /// All of it in words.
    pub(in crate::operator) says: String,
    /// How often it has failed in a row.
    #[serde(skip)]
    failures: u32,
}

/// Number of failures in a row from which on a hook needs help.
const FAILS_FOR_GOOD: u32 = 3;

impl Work {
    /// Returns how it fails, as the end of a sentence, if it does so again and again.
    pub(in crate::operator) fn failing(&self) -> Option<String> {
        let Work { partition, callback, failures, .. } = self;
        (*failures >= FAILS_FOR_GOOD).then(|| format!("{callback} of partition {partition} fails with"))
    }
}

/// The activity of a pod.
#[derive(Debug)]
pub(super) struct Activity {
    /// Its faults, in words.
    faults: Vec<String>,
    pub(super) work: Vec<Work>,
    /// What it says without work.
    idle: &'static str,
    /// Its requests, if they go through the process that was asked.
    in_flight: Option<u64>,
    requests: Vec<PartitionRequests>,
}

impl Activity {
    /// Returns what the pod says of a partition.
    pub(super) fn on(&self, partition: PartitionId) -> String {
        let mut parts = self.faults.clone();
        let work = self.work.iter().filter(|work| work.partition == partition);
        parts.extend(work.map(|work| work.says.clone()));
        if parts.len() == self.faults.len() {
            let of_partition = self.requests.iter().find(|requests| requests.partition == partition);
            let requests = self.in_flight.map_or(String::new(), |count| match of_partition {
                Some(PartitionRequests { in_flight, oldest, .. }) => {
                    let oldest = oldest.says().map_or(String::new(), |oldest| format!(" ({oldest})"));
                    format!(", {in_flight} of {count} requests in flight are its own{oldest}")
                }
                None => format!(", {count} requests in flight in all"),
            });
            parts.push(format!("{} for the partition{requests}", self.idle));
        }
        parts.join("; ")
    }

    /// Returns what the pod says besides its work.
    pub(super) fn in_all(&self) -> String {
        let mut parts = self.faults.clone();
        if self.work.is_empty() {
            parts.push(self.idle.to_owned());
        }
        parts.extend(self.in_flight.map(|count| format!("{count} requests in flight")));
        parts.join("; ")
    }
}

impl CoordinatorPart {
    /// Returns what a pod does whose stream the coordinator serves.
    pub(super) fn activity(self, pod: &str) -> anyhow::Result<Activity> {
        let stream = self.pod_streams.into_iter().flatten().find(|stream| stream.pod == pod);
        let stream = stream.context("the coordinator that served it last does not serve it now")?;
        Ok(Activity {
            faults: stream.faults(),
            work: stream.work().collect(),
            idle: NO_TASK,
            in_flight: None,
            requests: Vec::new(),
        })
    }
}

impl PodPart {
    pub(super) fn activity(self) -> Activity {
        let mut faults: Vec<String> = self.not_ready.iter().map(|reason| format!("not ready: {reason}")).collect();
        if !self.service_up {
            faults.push("its service is down".to_owned());
        }
        let stream = self.stream.as_ref();
        faults.extend(stream.iter().flat_map(|stream| stream.faults()));
        let tasks = stream.into_iter().flat_map(PodStreamLine::work);
        let work = self.hooks.iter().map(HookState::work).chain(tasks).collect();
        let idle = if stream.is_some() { NO_TASK } else { "no hook runs" };
        Activity { faults, work, idle, in_flight: Some(self.in_flight), requests: self.requests }
    }
}

impl PodStreamLine {
    fn faults(&self) -> Vec<String> {
        let stuck = self.is_stuck.then(|| "it applies no events, so its lease is not renewed".to_owned());
        stuck.into_iter().collect()
    }

    fn work(&self) -> impl Iterator<Item = Work> {
        self.tasks.iter().map(TaskLine::work)
    }
}

impl TaskLine {
    fn work(&self) -> Work {
        let mut says = format!("task {} is due", self.task);
        match &self.progress {
            Some(TaskFraction { fraction, detail }) => {
                says += &format!(", {:.0} % done", 100.0 * fraction);
                if !detail.is_empty() {
                    says += &format!(" ({detail})");
                }
            }
            None => says += ", no progress reported",
        }
        Work {
            partition: self.partition,
            callback: self.task.clone(),
            progress: self.progress.as_ref().map(|progress| progress.fraction),
            detail: self.progress.as_ref().map(|progress| progress.detail.clone()).filter(|detail| !detail.is_empty()),
            says,
            failures: 0,
        }
    }
}

impl HookState {
    fn work(&self) -> Work {
        let lasts = lasting(self.for_ms);
        let state = if self.running { "runs" } else { "waits for its next attempt" };
        let mut says = format!("hook {} {state}, for {lasts}", self.hook);
        if let Some(progress) = self.progress {
            says += &format!(", {:.0} % done", 100.0 * progress);
        }
        if let Some(detail) = &self.detail {
            says += &format!(" ({detail})");
        }
        if let Some(failure) = &self.failure {
            let times =
                if self.failures == 1 { "once".to_owned() } else { format!("{} times in a row", self.failures) };
            says += &format!("; it has failed {times}, with: {failure}");
        }
        Work {
            partition: self.partition,
            callback: self.hook.clone(),
            progress: self.progress,
            detail: self.detail.clone(),
            says,
            failures: self.failures,
        }
    }
}
