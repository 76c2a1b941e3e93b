//! Asks the participants that a handoff waits for what they say of its partition.
//!
//! Each is asked at the admin address in its registration. A pod that uses the gRPC service has none: the coordinator that
//! serves its stream is asked in its place. One that cannot be asked is part of the explanation, and no failure.

use std::time::Duration;

use anyhow::{Context as _, anyhow, ensure};
use futures_util::future::join_all;
use segue_coordination::store::StoreError;
use segue_protocol::ids::PartitionId;
use segue_protocol::records::PodStream;
use segue_protocol::txn::Keys;
use segue_proxy::tls::ClientTls;
use serde::Deserialize;

use super::explain::Awaited;
use super::{Link, process};

/// How long a participant may take to respond.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(3);
/// Most participants that are asked.
const MOST: usize = 8;

/// The part of a process's status that tells of a partition.
#[derive(Debug, Deserialize)]
struct ProcessStatus {
    coordinator: Option<CoordinatorPart>,
    router: Option<RouterPart>,
    pod: Option<PodPart>,
    /// The names of the keyspaces, if the process has several and was asked of none.
    keyspaces: Option<Vec<String>>,
}

#[derive(Debug, Deserialize)]
struct CoordinatorPart {
    /// The pods that use its gRPC service, if it has one.
    pod_streams: Option<Vec<Stream>>,
}

#[derive(Debug, Deserialize)]
struct RouterPart {
    not_ready: Option<String>,
    partitions: Vec<Line>,
}

#[derive(Debug, Deserialize)]
struct Line {
    partition: PartitionId,
    stage: String,
    in_flight: u64,
    stashed: u64,
}

#[derive(Debug, Deserialize)]
struct PodPart {
    not_ready: Option<String>,
    service_up: bool,
    in_flight: u64,
    hooks: Vec<Hook>,
    /// The service's stream, if it has opened one.
    stream: Option<Stream>,
}

#[derive(Debug, Deserialize)]
struct Stream {
    pod: String,
    /// Whether the pod's lease is not renewed because the pod applies no events.
    is_stuck: bool,
    /// The tasks that are due.
    tasks: Vec<Task>,
}

#[derive(Debug, Deserialize)]
struct Task {
    partition: PartitionId,
    task: String,
    progress: Option<Progress>,
}

#[derive(Debug, Deserialize)]
struct Progress {
    fraction: f64,
    detail: String,
}

#[derive(Debug, Deserialize)]
struct Hook {
    partition: PartitionId,
    hook: String,
    running: bool,
    for_ms: u64,
    progress: Option<f64>,
    detail: Option<String>,
    failures: u32,
    failure: Option<String>,
}

/// Notes which coordinators serve the pods among these that have no admin address of their own.
pub(super) async fn find_streams(awaited: &mut [Awaited], link: &Link) -> Result<(), StoreError> {
    for pod in awaited.iter_mut().filter(|one| one.kind == "pod" && one.admin.is_none()).take(MOST) {
        let found = link.store.snapshot(&Keys::One(link.keys.pod_stream(&pod.name))).await?;
        let stream = found.entries.first().and_then(|entry| serde_json::from_slice::<PodStream>(&entry.value).ok());
        pod.by_stream = stream.is_some();
        pod.admin = stream.and_then(|stream| stream.admin);
    }
    Ok(())
}

/// Asks the first few of these participants. Their admin endpoints are asked by TLS if `tls` is given.
pub(super) async fn ask(
    awaited: &mut [Awaited],
    partition: PartitionId,
    tls: Option<&ClientTls>,
    keyspace: Option<&str>,
) {
    let asked = awaited.iter_mut().take(MOST).map(|one| async move {
        let said = answer(one, partition, tls, keyspace).await;
        one.says = Some(said.unwrap_or_else(|error| format!("cannot be asked: {error:#}")));
    });
    join_all(asked).await;
}

async fn answer(
    one: &Awaited,
    partition: PartitionId,
    tls: Option<&ClientTls>,
    keyspace: Option<&str>,
) -> anyhow::Result<String> {
    let is_reachable = !one.by_stream || one.admin.is_some();
    ensure!(is_reachable, "the coordinator that serves it has no admin address: set [admin] advertise in its file");
    let status: ProcessStatus = process::status(one.admin.as_deref(), tls, keyspace, RESPONSE_TIMEOUT).await?;
    status.says(one, partition)
}

impl ProcessStatus {
    /// Returns what this participant says of the partition.
    fn says(self, one: &Awaited, partition: PartitionId) -> anyhow::Result<String> {
        if let Some(names) = self.keyspaces {
            let names = names.join(", ");
            return Err(anyhow!("its process has several keyspaces; expected --keyspace, one of {names}"));
        }
        match &*one.kind {
            "pod" if one.by_stream => {
                let part = self.coordinator.context("the process that served it runs no coordinator now")?;
                part.says(&one.name, partition)
            }
            "router" => Ok(self.router.context("the process at its admin address runs no router")?.says(partition)),
            _ => Ok(self.pod.context("the process at its admin address runs no sidecar")?.says(partition)),
        }
    }
}

impl CoordinatorPart {
    fn says(&self, pod: &str, partition: PartitionId) -> anyhow::Result<String> {
        let stream = self.pod_streams.iter().flatten().find(|stream| stream.pod == pod);
        let stream = stream.context("the coordinator that served it last does not serve it now")?;
        let mut parts: Vec<String> = stream.tasks_of(partition).map(Task::in_words).collect();
        if parts.is_empty() {
            parts.push("no task is due for the partition".to_owned());
        }
        if stream.is_stuck {
            parts.push("it applies no events, so its lease is not renewed".to_owned());
        }
        Ok(parts.join("; "))
    }
}

impl Stream {
    fn tasks_of(&self, partition: PartitionId) -> impl Iterator<Item = &Task> {
        self.tasks.iter().filter(move |task| task.partition == partition)
    }
}

impl RouterPart {
    fn says(&self, partition: PartitionId) -> String {
        let not_ready = self.not_ready.as_ref().map_or(String::new(), |reason| format!("not ready: {reason}; "));
        let line = self.partitions.iter().find(|line| line.partition == partition);
        let line = line.map_or("it does not know the partition".to_owned(), |line| {
            format!("the partition is {}, {} in flight, {} held", line.stage, line.in_flight, line.stashed)
        });
        not_ready + &line
    }
}

impl PodPart {
    fn says(&self, partition: PartitionId) -> String {
        let mut parts: Vec<String> = self.not_ready.iter().map(|reason| format!("not ready: {reason}")).collect();
        if !self.service_up {
            parts.push("its service is down".to_owned());
        }
        let stream = self.stream.as_ref();
        let tasks = stream.iter().flat_map(|stream| stream.tasks_of(partition));
        let hooks = self.hooks.iter().filter(|hook| hook.partition == partition);
        let work: Vec<String> = hooks.map(Hook::in_words).chain(tasks.map(Task::in_words)).collect();
        if work.is_empty() {
            let none = if stream.is_some() { "no task is due" } else { "no hook runs" };
            parts.push(format!("{none} for the partition, {} requests in flight in all", self.in_flight));
        }
        parts.extend(work);
        parts.join("; ")
    }
}

impl Task {
    fn in_words(&self) -> String {
        let mut text = format!("task {} is due", self.task);
        match &self.progress {
            Some(Progress { fraction, detail }) => {
                text += &format!(", {:.0} % done", 100.0 * fraction);
                if !detail.is_empty() {
                    text += &format!(" ({detail})");
                }
            }
            None => text += ", no progress reported",
        }
        text
    }
}

impl Hook {
    fn in_words(&self) -> String {
        let seconds = self.for_ms as f64 / 1000.0;
        let state = if self.running { "runs" } else { "waits for its next attempt" };
        let mut text = format!("hook {} {state}, for {seconds:.1} s", self.hook);
        if let Some(progress) = self.progress {
            text += &format!(", {:.0} % done", 100.0 * progress);
        }
        if let Some(detail) = &self.detail {
            text += &format!(" ({detail})");
        }
        if let Some(failure) = &self.failure {
            let times =
                if self.failures == 1 { "once".to_owned() } else { format!("{} times in a row", self.failures) };
            text += &format!("; it has failed {times}, with: {failure}");
        }
        text
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
        let one = Awaited { kind, name, admin: None, by_stream, says: None };
        status.says(&one, PartitionId::new(3)).unwrap_or_else(|error| error.to_string())
    }

    #[test]
    fn a_router_says_what_it_does_with_the_partition() {
        let line = |partition| json!({ "partition": partition, "stage": "draining", "in_flight": 4, "stashed": 12 });
        let router = json!({ "router": { "not_ready": null, "partitions": [line(3)] } });
        assert_eq!(says("router", router), "the partition is draining, 4 in flight, 12 held");
        let router = json!({ "router": { "not_ready": "no store", "partitions": [line(2)] } });
        assert_eq!(says("router", router), "not ready: no store; it does not know the partition");
    }

    #[test]
    fn a_sidecar_says_how_far_its_hook_is_and_why_it_failed() {
        let hook = |more: serde_json::Value| {
            let mut hook = json!({ "partition": 3, "hook": "warm", "running": true, "for_ms": 1500, "progress": null,
                "detail": null, "failures": 0, "failure": null });
            hook.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            json!({ "pod": { "not_ready": null, "service_up": true, "in_flight": 7, "hooks": [hook] } })
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
            "no task is due for the partition; it applies no events, so its lease is not renewed"
        );
        for gone in [json!([stream("b", false, 3)]), json!(null)] {
            let expected = "the coordinator that served it last does not serve it now";
            assert_eq!(says_by("pod", true, status(gone)), expected);
        }
        let other = json!({ "router": null, "pod": null });
        assert_eq!(says_by("pod", true, other), "the process that served it runs no coordinator now");
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
