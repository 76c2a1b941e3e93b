//! Measures failovers: how long the partitions of a pod are not served after its host vanishes, and after it dies beside
//! another pod that dies again and again. The former is a scenario of its own, the latter is a part of `crash-loop`.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::ensure;
use segue_protocol::ids::PartitionId;

use super::probe;
use crate::cluster::{COORDINATORS, FIRST_PODS, LEASE_TTL, PODS, ROUTERS};
use crate::etcd::MEMBERS;
use crate::network::Cut;
use crate::run::{REST, Stage};

/// How long after a vanished owner's lease its partitions may take to be served again: a second in which routers wait for
/// answers that are on their way, the warm-up, and what the machine adds.
const FAILOVER: Duration = Duration::from_millis(2_500);

/// The failovers of all runs. Each lasts until every partition that the pod owned is served again.
#[derive(Debug, Default)]
pub(crate) struct Failovers {
    /// Since the end of the lease of a pod whose host has vanished.
    vanished: Vec<Duration>,
    /// Since the death of a pod beside one in a crash loop.
    beside_crash_loop: Vec<Duration>,
}

impl Failovers {
    pub(crate) fn merge(&mut self, other: Failovers) {
        self.vanished.extend(other.vanished);
        self.beside_crash_loop.extend(other.beside_crash_loop);
    }

    /// Returns a line for each kind that was measured.
    pub(crate) fn in_words(mut self) -> Vec<String> {
        let kinds = [
            (&mut self.vanished, "after the end of the lease"),
            (&mut self.beside_crash_loop, "after the death of a pod beside one in a crash loop"),
        ];
        let measured = kinds.into_iter().filter_map(|(times, since)| {
            times.sort_unstable();
            let (runs, slowest) = (times.len(), times.last()?.as_secs_f64());
            let middle = times[runs / 2].as_secs_f64();
            Some(format!("failover: runs={runs} p50={middle:.2}s max={slowest:.2}s {since}"))
        });
        measured.collect()
    }
}

fn owned_by(stage: &Stage<'_>, pod: &str) -> Vec<PartitionId> {
    let seen = stage.history.seen();
    let assignments = seen.view.assignments.iter();
    assignments.filter(|(_, it)| it.value.owner == pod).map(|(partition, _)| *partition).collect()
}

pub(super) fn vanished_host(stage: &mut Stage<'_>) -> anyhow::Result<()> {
    let pod = PODS[stage.failovers.vanished.len() % FIRST_PODS];
    // A pod that lost its lease a moment ago owns partitions again only after the back-off for its name.
    let is_ready =
        |stage: &Stage<'_>| stage.history.seen().view.handoffs.is_empty() && !owned_by(stage, pod).is_empty();
    ensure!(stage.until(REST, is_ready), "{pod} owns nothing after {REST:?}");
    let before = stage.errors();
    let others = MEMBERS.into_iter().chain(COORDINATORS).chain(ROUTERS);
    let pairs: Vec<_> = others.map(|other| (pod, other)).collect();
    stage.cluster.network.cut(&pairs, Cut::Silent)?;
    let vanished = Instant::now();
    let owned = owned_by(stage, pod);
    ensure!(!owned.is_empty(), "{pod} has lost its partitions");
    while stage.history.seen().view.pods.contains_key(pod) {
        ensure!(vanished.elapsed() < 4 * LEASE_TTL, "the lease of {pod} does not end");
        stage.pause(1);
    }
    let (gone, routers) = (Instant::now(), stage.cluster.routers());
    let asking: Vec<_> = owned
        .iter()
        .map(|partition| {
            let (partition, router) = (*partition, routers[partition.index() % routers.len()]);
            std::thread::spawn(move || {
                let status = first_answer(partition, router, gone);
                (status, gone.elapsed())
            })
        })
        .collect();
    let answers: Vec<_> = asking.into_iter().filter_map(|asked| asked.join().ok()).collect();
    let slowest = answers.iter().map(|(_, took)| *took).max().unwrap_or_default();
    stage.timeline.say(&format!(
        "  {pod} owned {} partitions; its lease ended {:.2} s after it vanished, and all were served {:.2} s later",
        owned.len(),
        (gone - vanished).as_secs_f64(),
        slowest.as_secs_f64()
    ));
    stage.failovers.vanished.push(slowest);
    let unserved = answers.iter().filter(|(status, _)| status.is_none_or(|status| status >= 500)).count();
    let refused = |errors: &BTreeMap<(u16, Arc<str>), u64>| -> u64 {
        errors.iter().filter(|((_, reason), _)| &**reason == "stash-timeout").map(|(_, count)| count).sum()
    };
    let refused = refused(&stage.errors()) - refused(&before);
    if slowest > FAILOVER || unserved > 0 || refused > 0 {
        stage.verdict.add("unbounded", format!("a failover took {slowest:?}; {unserved} unserved, {refused} refused"));
    }
    stage.cluster.network.heal(&pairs, Cut::Silent)
}

/// The status of the first answer that is not from before the end of the lease: a router that learns of it later than the
/// checker still sends the request to the vanished pod, and severs it like all those in flight to there.
fn first_answer(partition: PartitionId, router: SocketAddr, gone: Instant) -> Option<u16> {
    loop {
        let response = probe(partition, router)?;
        if !response.head.contains("segue-reason: severed") || gone.elapsed() > FAILOVER {
            return Some(response.status);
        }
    }
}

/// How often a partition of a dead pod is asked for, after a request that did not succeed.
const AGAIN: Duration = Duration::from_millis(20);
/// How long its partitions are asked for.
const GIVE_UP: Duration = Duration::from_secs(40);

/// A pod that has died, and requests for each partition that it owned.
pub(super) struct Death {
    pod: &'static str,
    asking: Vec<JoinHandle<Option<Duration>>>,
}

impl Death {
    /// Kills the pod and begins to ask for its partitions.
    pub(super) fn inflict(stage: &mut Stage<'_>, pod: &'static str) -> Self {
        let (owned, routers) = (owned_by(stage, pod), stage.cluster.routers());
        stage.cluster.kill(pod);
        let died = Instant::now();
        let asking = owned.into_iter().map(|partition| {
            let router = routers[partition.index() % routers.len()];
            std::thread::spawn(move || served_after(partition, router, died))
        });
        Death { pod, asking: asking.collect() }
    }

    /// Waits until all partitions are served, and starts the pod again.
    pub(super) fn conclude(self, stage: &mut Stage<'_>) -> anyhow::Result<()> {
        let Death { pod, asking } = self;
        let times: Vec<_> = asking.into_iter().map(|asked| asked.join().ok().flatten()).collect();
        let unserved = times.iter().filter(|time| time.is_none()).count();
        let slowest = times.iter().flatten().max().copied().unwrap_or_default();
        stage.timeline.say(&format!(
            "  {pod} owned {} partitions when it died; all were served {:.2} s later",
            times.len(),
            slowest.as_secs_f64()
        ));
        if unserved > 0 {
            stage.verdict.add("unbounded", format!("{unserved} partitions of {pod} were not served in {GIVE_UP:?}"));
        }
        stage.failovers.beside_crash_loop.extend((!times.is_empty()).then_some(slowest));
        stage.cluster.start(pod)
    }
}

/// How long after the death of its owner a partition is served.
fn served_after(partition: PartitionId, router: SocketAddr, died: Instant) -> Option<Duration> {
    while died.elapsed() < GIVE_UP {
        if probe(partition, router).is_some_and(|response| response.status == 200) {
            return Some(died.elapsed());
        }
        std::thread::sleep(AGAIN);
    }
    None
}
