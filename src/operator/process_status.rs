//! The status of a process about a partition or a pod, in words.

use anyhow::{Context as _, anyhow};
use segue_protocol::ids::{Epoch, PartitionId};
use serde::{Deserialize, Serialize};

use super::explain::AskedParticipant;
use super::lasting;

/// The answer of a pod by gRPC if nothing is due.
const NO_TASK: &str = "no task is due";

/// The part of a process's status that is used here.
#[derive(Debug, Deserialize)]
pub(super) struct ProcessStatus {
    coordinator: Option<CoordinatorPart>,
    router: Option<RouterPart>,
    pod: Option<PodPart>,
    keyspace: Option<KeyspacePart>,
    /// The names of the keyspaces, if the process has several and was asked of none.
    keyspaces: Option<Vec<String>>,
}

#[derive(Debug, Deserialize)]
struct KeyspacePart {
    /// In which words the store refuses the writes of this process, if it does.
    store_refuses_writes: Option<String>,
}

#[derive(Debug, Deserialize)]
struct CoordinatorPart {
    /// The pods that use its gRPC service, if it has one.
    pod_streams: Option<Vec<PodStreamLine>>,
}

#[derive(Debug, Deserialize)]
struct RouterPart {
    not_ready: Option<String>,
    partitions: Vec<PartitionLine>,
}

#[derive(Debug, Deserialize)]
struct PartitionLine {
    partition: PartitionId,
    stage: String,
    #[serde(default)]
    pod: Option<String>,
    #[serde(default)]
    epoch: Option<Epoch>,
    in_flight: u64,
    /// How many of those are streams.
    #[serde(default)]
    streams: u64,
    #[serde(flatten)]
    oldest: Oldest,
    /// When the drain severs the streams, and when all else.
    severs_streams_in_ms: Option<u64>,
    severs_in_ms: Option<u64>,
    /// When the router asks for the handoff to be cancelled instead.
    gives_up_in_ms: Option<u64>,
    stashed: u64,
}

#[derive(Debug, Deserialize)]
struct PodPart {
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

/// The oldest exchange of a partition.
#[derive(Debug, Deserialize)]
struct Oldest {
    /// For how long it has lasted.
    oldest_ms: Option<u64>,
    #[serde(rename = "oldest")]
    request: Option<RequestLine>,
}

#[derive(Debug, Deserialize)]
struct RequestLine {
    method: String,
    path: String,
    client: String,
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
pub(super) struct Work {
    pub(super) partition: PartitionId,
    /// `warm`, `sync`, `drain`, `release` or `checkpoint`.
    callback: String,
    /// The progress that the service has reported, from 0 to 1.
    progress: Option<f64>,
    /// The service's description of its progress.
    detail: Option<String>,
    /// All of it in words.
    pub(super) says: String,
    /// How often it has failed in a row.
    #[serde(skip)]
    failures: u32,
}

/// Number of failures in a row from which on a hook needs help.
const FAILS_FOR_GOOD: u32 = 3;

impl Work {
    /// Returns how it fails, as the end of a sentence, if it does so again and again.
    pub(super) fn failing(&self) -> Option<String> {
        let Work { partition, callback, failures, .. } = self;
        (*failures >= FAILS_FOR_GOOD).then(|| format!("{callback} of partition {partition} fails with"))
    }
}

/// The activity of a pod.
#[derive(Debug)]
struct Activity {
    /// Its faults, in words.
    faults: Vec<String>,
    work: Vec<Work>,
    /// What it says without work.
    idle: &'static str,
    /// Its requests, if they go through the process that was asked.
    in_flight: Option<u64>,
    requests: Vec<PartitionRequests>,
}

impl ProcessStatus {
    /// Returns in which words the store refuses the writes of this process, if it does.
    pub(super) fn refusal(&self) -> Option<&str> {
        self.keyspace.as_ref()?.store_refuses_writes.as_deref()
    }

    /// Returns whether this router sends the partition's requests to its owner, or holds them if it has none. `None` if
    /// the process does not say.
    pub(super) fn routes_to(&self, partition: PartitionId, owner: Option<(&str, Epoch)>) -> Option<bool> {
        let lines = &self.router.as_ref()?.partitions;
        let line = lines.iter().find(|line| line.partition == partition)?;
        let target = line.pod.as_deref().zip(line.epoch);
        Some(target == owner)
    }

    /// Returns what this participant says of the partition.
    pub(super) fn of_partition(self, one: &AskedParticipant, partition: PartitionId) -> anyhow::Result<String> {
        match &*one.kind {
            "router" => {
                let router = self.one_keyspace()?.router;
                Ok(router.context("the process at its admin address runs no router")?.says(partition))
            }
            _ => Ok(self.activity(one)?.on(partition)),
        }
    }

    /// Returns what this pod says of itself, and the work that it has not finished.
    pub(super) fn of_pod(self, pod: &AskedParticipant) -> anyhow::Result<(String, Vec<Work>)> {
        let activity = self.activity(pod)?;
        Ok((activity.in_all(), activity.work))
    }

    fn activity(self, pod: &AskedParticipant) -> anyhow::Result<Activity> {
        let status = self.one_keyspace()?;
        if pod.by_stream {
            let part = status.coordinator.context("the process that served it runs no coordinator now")?;
            return part.activity(&pod.name);
        }
        Ok(status.pod.context("the process at its admin address runs no sidecar")?.activity())
    }

    fn one_keyspace(self) -> anyhow::Result<Self> {
        let Some(names) = self.keyspaces else { return Ok(self) };
        let names = names.join(", ");
        Err(anyhow!("its process has several keyspaces; expected --keyspace, one of {names}"))
    }
}

impl Activity {
    /// Returns what the pod says of a partition.
    fn on(&self, partition: PartitionId) -> String {
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
    fn in_all(&self) -> String {
        let mut parts = self.faults.clone();
        if self.work.is_empty() {
            parts.push(self.idle.to_owned());
        }
        parts.extend(self.in_flight.map(|count| format!("{count} requests in flight")));
        parts.join("; ")
    }
}

impl CoordinatorPart {
    fn activity(self, pod: &str) -> anyhow::Result<Activity> {
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
    fn activity(self) -> Activity {
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

impl RouterPart {
    fn says(&self, partition: PartitionId) -> String {
        let not_ready = self.not_ready.as_ref().map_or(String::new(), |reason| format!("not ready: {reason}; "));
        let line = self.partitions.iter().find(|line| line.partition == partition);
        let line = line.map_or("it does not know the partition".to_owned(), |line| {
            format!(
                "the partition is {}, {} in flight{}, {} held",
                line.stage,
                line.in_flight,
                line.lasting(),
                line.stashed
            )
        });
        not_ready + &line
    }
}

impl PartitionLine {
    /// Describes the exchanges that last.
    fn lasting(&self) -> String {
        let streams = match self.streams {
            0 => None,
            1 => Some("1 is a stream".to_owned()),
            count => Some(format!("{count} are streams")),
        };
        let facts: Vec<_> = streams.into_iter().chain(self.oldest.says()).collect();
        let ends = self.ends();
        match (facts.is_empty(), ends.is_empty()) {
            (true, true) => String::new(),
            (false, true) => format!(" ({})", facts.join(", ")),
            (true, false) => format!(" ({ends})"),
            (false, false) => format!(" ({}; {ends})", facts.join(", ")),
        }
    }

    /// Says when the drain ends what is in flight.
    fn ends(&self) -> String {
        let streams = self.severs_streams_in_ms.filter(|_| self.streams > 0);
        let all = self.severs_in_ms.filter(|_| self.in_flight > 0);
        let ends = [
            streams.map(|left| format!("streams are severed in {}", lasting(left))),
            all.map(|left| format!("whatever is left is severed in {}", lasting(left))),
            self.gives_up_in_ms.map(|left| format!("the router gives the move up in {}", lasting(left))),
        ];
        ends.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }
}

impl Oldest {
    fn says(&self) -> Option<String> {
        let lasts = format!("the oldest for {}", lasting(self.oldest_ms?));
        Some(match &self.request {
            Some(RequestLine { method, path, client }) => format!("{lasts}: {method} {path} of {client}"),
            None => lasts,
        })
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn says(kind: &str, status: serde_json::Value) -> String {
        says_by(kind, false, status)
    }

    fn says_by(kind: &str, by_stream: bool, status: serde_json::Value) -> String {
        let status: ProcessStatus = serde_json::from_value(status).unwrap();
        let (kind, name) = (kind.to_owned(), "a".to_owned());
        let one = AskedParticipant { kind, name, admin: None, by_stream, says: None };
        status.of_partition(&one, PartitionId::new(3)).unwrap_or_else(|error| error.to_string())
    }

    #[test]
    fn a_router_says_what_it_does_with_the_partition() {
        let line = |partition| json!({ "partition": partition, "stage": "draining", "in_flight": 4, "stashed": 12 });
        let router = json!({ "router": { "not_ready": null, "partitions": [line(3)] } });
        assert_eq!(says("router", router), "the partition is draining, 4 in flight, 12 held");
        let lasting = json!({ "partition": 3, "stage": "draining", "in_flight": 4, "streams": 1, "oldest_ms": 12340, "stashed": 0 });
        let router = json!({ "router": { "not_ready": null, "partitions": [lasting] } });
        let expected = "the partition is draining, 4 in flight (1 is a stream, the oldest for 12.3 s), 0 held";
        assert_eq!(says("router", router), expected);
        let known = json!({ "partition": 3, "stage": "draining", "in_flight": 4, "streams": 1, "oldest_ms": 12340,
            "oldest": { "method": "GET", "path": "/feed/7", "client": "203.0.113.7" }, "severs_streams_in_ms": 1200,
            "severs_in_ms": 19_000, "gives_up_in_ms": null, "stashed": 0 });
        let router = json!({ "router": { "not_ready": null, "partitions": [known] } });
        let expected = "the partition is draining, 4 in flight (1 is a stream, the oldest for 12.3 s: GET /feed/7 of \
                        203.0.113.7; streams are severed in 1.2 s, whatever is left is severed in 19.0 s), 0 held";
        assert_eq!(says("router", router), expected);
        let given_up = json!({ "partition": 3, "stage": "draining", "in_flight": 4, "streams": 1, "oldest_ms": null,
            "oldest": null, "severs_streams_in_ms": null, "severs_in_ms": null, "gives_up_in_ms": 500, "stashed": 0 });
        let router = json!({ "router": { "not_ready": null, "partitions": [given_up] } });
        let expected = "the partition is draining, 4 in flight (1 is a stream; the router gives the move up in 500 ms), \
                        0 held";
        assert_eq!(says("router", router), expected);
        let router = json!({ "router": { "not_ready": "no store", "partitions": [line(2)] } });
        assert_eq!(says("router", router), "not ready: no store; it does not know the partition");
    }

    #[test]
    fn a_sidecar_says_how_far_its_hook_is_and_why_it_failed() {
        let hook = |more: serde_json::Value| {
            let mut hook = json!({ "partition": 3, "hook": "warm", "running": true, "for_ms": 1500, "progress": null,
                "detail": null, "failures": 0, "failure": null });
            hook.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let requests = json!([{ "partition": 4, "in_flight": 2 }]);
            json!({ "pod": { "not_ready": null, "service_up": true, "in_flight": 7, "requests": requests, "hooks": [hook] } })
        };
        let running = hook(json!({ "progress": 0.4, "detail": "7 of 20 files" }));
        assert_eq!(says("pod", running), "hook warm runs, for 1.5 s, 40 % done (7 of 20 files)");
        let failed = hook(json!({ "running": false, "failures": 3, "failure": "503" }));
        let expected = "hook warm waits for its next attempt, for 1.5 s; it has failed 3 times in a row, with: 503";
        assert_eq!(says("pod", failed), expected);
        assert_eq!(
            says("pod", hook(json!({ "partition": 2 }))),
            "no hook runs for the partition, 7 requests in flight in all"
        );
        let requests = json!([{ "partition": 4, "in_flight": 5 }, { "partition": 3, "in_flight": 2 }]);
        let pod = json!({ "not_ready": null, "service_up": true, "in_flight": 7, "requests": requests, "hooks": [] });
        let expected = "no hook runs for the partition, 2 of 7 requests in flight are its own";
        assert_eq!(says("pod", json!({ "pod": pod })), expected);
        let oldest = json!({ "method": "POST", "path": "/w/7", "client": "203.0.113.7" });
        let requests = json!([{ "partition": 3, "in_flight": 2, "oldest_ms": 12340, "oldest": oldest }]);
        let pod = json!({ "not_ready": null, "service_up": true, "in_flight": 7, "requests": requests, "hooks": [] });
        let expected = "no hook runs for the partition, 2 of 7 requests in flight are its own (the oldest for 12.3 s: \
                        POST /w/7 of 203.0.113.7)";
        assert_eq!(says("pod", json!({ "pod": pod })), expected);
    }

    #[test]
    fn a_sidecar_with_a_stream_says_which_task_is_due_and_how_far_it_is() {
        let pod = |stream: serde_json::Value| {
            let pod = json!({ "not_ready": null, "service_up": true, "in_flight": 7, "hooks": [], "stream": stream });
            json!({ "pod": pod })
        };
        let task =
            |partition, progress| json!({ "partition": partition, "handoff": 9, "task": "warm", "progress": progress });
        let stream = |tasks| pod(json!({ "pod": "a", "behind": 0, "is_stuck": false, "tasks": tasks, "load": null }));
        let half = json!({ "fraction": 0.5, "detail": "7 of 14 files" });
        let two = stream(vec![task(2, json!(null)), task(3, half)]);
        assert_eq!(says("pod", two), "task warm is due, 50 % done (7 of 14 files)");
        let silent = stream(vec![task(3, json!(null))]);
        assert_eq!(says("pod", silent), "task warm is due, no progress reported");
        let none = stream(vec![task(2, json!(null))]);
        assert_eq!(says("pod", none), "no task is due for the partition, 7 requests in flight in all");
        let unopened = pod(json!(null));
        assert_eq!(says("pod", unopened), "no hook runs for the partition, 7 requests in flight in all");
    }

    #[test]
    fn the_coordinator_that_serves_a_pod_says_which_task_is_due_and_how_far_it_is() {
        let stream = |pod, is_stuck, partition| {
            let progress = json!({ "fraction": 0.5, "detail": "7 of 14 files" });
            let task = json!({ "partition": partition, "handoff": 9, "task": "warm", "progress": progress });
            json!({ "pod": pod, "behind": 0, "is_stuck": is_stuck, "tasks": [task], "load": null })
        };
        let status = |streams: serde_json::Value| json!({ "coordinator": { "leads": true, "pod_streams": streams } });
        let served = |is_stuck, partition| {
            says_by("pod", true, status(json!([stream("b", false, 3), stream("a", is_stuck, partition)])))
        };
        assert_eq!(served(false, 3), "task warm is due, 50 % done (7 of 14 files)");
        assert_eq!(
            served(true, 2),
            "it applies no events, so its lease is not renewed; no task is due for the partition"
        );
        for gone in [json!([stream("b", false, 3)]), json!(null)] {
            let expected = "the coordinator that served it last does not serve it now";
            assert_eq!(says_by("pod", true, status(gone)), expected);
        }
        let other = json!({ "router": null, "pod": null });
        assert_eq!(says_by("pod", true, other), "the process that served it runs no coordinator now");
    }

    #[test]
    fn a_pod_says_all_that_it_works_on_and_what_is_wrong_with_it() {
        let all = |status: serde_json::Value, by_stream| {
            let status: ProcessStatus = serde_json::from_value(status).unwrap();
            let (kind, name) = ("pod".to_owned(), "a".to_owned());
            let (says, work) =
                status.of_pod(&AskedParticipant { kind, name, admin: None, by_stream, says: None }).unwrap();
            (says, work.into_iter().map(|work| (work.partition.get(), work.says)).collect::<Vec<_>>())
        };
        let tasks = json!([
            { "partition": 2, "task": "sync", "progress": null },
            { "partition": 3, "task": "warm", "progress": { "fraction": 0.25, "detail": "" } },
        ]);
        let due = vec![
            (2, "task sync is due, no progress reported".to_owned()),
            (3, "task warm is due, 25 % done".to_owned()),
        ];
        let stream = json!({ "pod": "a", "is_stuck": true, "tasks": tasks });
        let served = json!({ "coordinator": { "pod_streams": [stream] } });
        assert_eq!(all(served, true), ("it applies no events, so its lease is not renewed".to_owned(), due.clone()));
        let sidecar = |hooks: serde_json::Value, stream: serde_json::Value| {
            let pod =
                json!({ "not_ready": null, "service_up": false, "in_flight": 7, "hooks": hooks, "stream": stream });
            json!({ "pod": pod })
        };
        let stuck = "its service is down; it applies no events, so its lease is not renewed; 7 requests in flight";
        assert_eq!(all(sidecar(json!([]), stream), false), (stuck.to_owned(), due));
        let idle = "its service is down; no hook runs; 7 requests in flight";
        assert_eq!(all(sidecar(json!([]), json!(null)), false), (idle.to_owned(), vec![]));
    }

    #[test]
    fn a_process_says_in_which_words_the_store_refuses_its_writes() {
        let refusal = |keyspace: serde_json::Value| {
            let status: ProcessStatus = serde_json::from_value(json!({ "pod": null, "keyspace": keyspace })).unwrap();
            status.refusal().map(str::to_owned)
        };
        assert_eq!(
            refusal(json!({ "store_refuses_writes": "permission denied" })).as_deref(),
            Some("permission denied")
        );
        assert_eq!((refusal(json!({ "store_refuses_writes": null })), refusal(json!({}))), (None, None));
    }

    #[test]
    fn a_process_with_several_keyspaces_is_not_taken_for_one_without_a_router() {
        let several = json!({ "keyspaces": ["a", "b"], "by_keyspace": { "a": {}, "b": {} } });
        let expected = "its process has several keyspaces; expected --keyspace, one of a, b";
        assert_eq!(says("router", several), expected);
        let other = json!({ "keyspace": {}, "pod": null });
        assert_eq!(says("router", other), "the process at its admin address runs no router");
    }
}
