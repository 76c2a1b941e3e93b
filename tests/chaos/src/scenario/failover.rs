//! The scenario of a host that vanishes, which measures a failover.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
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

pub(super) fn vanished_host(stage: &mut Stage<'_>) -> anyhow::Result<()> {
    let pod = PODS[stage.failovers.len() % FIRST_PODS];
    let owned_by_it = |stage: &Stage<'_>| -> Vec<PartitionId> {
        let seen = stage.history.seen();
        let assignments = seen.view.assignments.iter();
        assignments.filter(|(_, it)| it.value.owner == pod).map(|(partition, _)| *partition).collect()
    };
    // A pod that lost its lease a moment ago owns partitions again only after the back-off for its name.
    let is_ready = |stage: &Stage<'_>| stage.history.seen().view.handoffs.is_empty() && !owned_by_it(stage).is_empty();
    ensure!(stage.until(REST, is_ready), "{pod} owns nothing after {REST:?}");
    let before = stage.errors();
    let others = MEMBERS.into_iter().chain(COORDINATORS).chain(ROUTERS);
    let pairs: Vec<_> = others.map(|other| (pod, other)).collect();
    stage.cluster.network.cut(&pairs, Cut::Silent)?;
    let vanished = Instant::now();
    let owned = owned_by_it(stage);
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
    stage.failovers.push(slowest);
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
