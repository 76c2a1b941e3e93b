//! Named scenarios: sequences that have found bugs in systems of this kind, each a short function.
//!
//! A scenario adds its own checks to those that always run. It heals everything before it returns; its caller then
//! waits until the cluster is at rest.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::ensure;
use segue_protocol::ids::{PartitionId, Revision};
use segue_protocol::records::Phase;
use segue_protocol::txn::{Keys, Op};
use segue_tests::http::{Request, Response};

use crate::cluster::{COORDINATORS, FIRST_PODS, LEASE_TTL, MAX_WAIT, PODS, ROUTERS};
use crate::etcd::{self, MEMBERS};
use crate::fault::{Fault, TERMINATE};
use crate::network::Cut;
use crate::run::{REST, Stage};

/// A scenario by its name.
pub(crate) struct Scenario {
    name: &'static str,
    pub(crate) says: &'static str,
    pub(crate) play: fn(&mut Stage<'_>) -> anyhow::Result<()>,
}

/// The name for faults drawn from the seed.
pub(crate) const RANDOM: &str = "random";

/// Long enough for leases to end.
const BEYOND_LEASE: Duration = Duration::from_secs(5);

const ALL: [Scenario; 14] = [
    Scenario {
        name: "stuck-router",
        says: "a router is stopped before it holds; no other may go on before its lease is gone",
        play: stuck_router,
    },
    Scenario {
        name: "router-joins-midway",
        says: "a router registers in the middle of handoffs and gets requests at once",
        play: router_joins_midway,
    },
    Scenario {
        name: "handoff-deleted",
        says: "the record of a handoff is deleted by hand in the middle of it",
        play: handoff_deleted,
    },
    Scenario {
        name: "all-pods-die",
        says: "every pod is killed: requests get 503 with Retry-After at their deadline",
        play: all_pods_die,
    },
    Scenario {
        name: "router-and-pod-cut-off",
        says: "a router and a pod lose etcd together and still reach each other",
        play: router_and_pod_cut_off,
    },
    Scenario {
        name: "compaction",
        says: "etcd compacts past what a router and a pod have seen while they cannot watch",
        play: compaction,
    },
    Scenario {
        name: "new-owner-refuses",
        says: "a new owner refuses connections for 500 ms after it got a partition",
        play: new_owner_refuses,
    },
    Scenario { name: "rolling-restart", says: "everything but etcd is restarted in turn", play: rolling_restart },
    Scenario {
        name: "etcd-leader-dies",
        says: "etcd's leader is killed in the middle of handoffs",
        play: etcd_leader_dies,
    },
    Scenario {
        name: "etcd-leader-cut-off",
        says: "etcd's leader is cut off from its peers and still reached by everyone else",
        play: etcd_leader_cut_off,
    },
    Scenario {
        name: "etcd-without-quorum",
        says: "two members of etcd are killed for longer than leases last",
        play: etcd_without_quorum,
    },
    Scenario {
        name: "etcd-leader-stuck",
        says: "etcd's leader is stopped for longer than leases last, and wakes up",
        play: etcd_leader_stuck,
    },
    Scenario {
        name: "vanished-host",
        says: "a pod's host vanishes without closing any connection; its partitions are served a second after its lease",
        play: vanished_host,
    },
    Scenario { name: "slow-disk", says: "etcd's leader has a slow disk while pods join and leave", play: slow_disk },
];

pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    ALL.iter().map(|scenario| scenario.name)
}

pub(crate) fn find(name: &str) -> Option<&'static Scenario> {
    const { &ALL }.iter().find(|scenario| scenario.name == name)
}

/// For the command line.
pub(crate) fn known(text: &str) -> Result<String, String> {
    let is_known = text == RANDOM || text == "list" || find(text).is_some();
    is_known.then(|| text.to_owned()).ok_or_else(|| "no such scenario; `--scenario list` shows them".into())
}

pub(crate) fn list() -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    for Scenario { name, says, .. } in &ALL {
        writeln!(out, "{name:24}{says}")?;
    }
    writeln!(out, "{RANDOM:24}faults drawn from the seed, for --duration")
}

/// A pod that is not there.
const JOINER: &str = PODS[4];

fn leave(stage: &mut Stage<'_>) {
    stage.settle();
    stage.cluster.terminate(&[JOINER], TERMINATE);
}

fn in_phase(stage: &Stage<'_>, phase: Phase) -> Option<PartitionId> {
    let seen = stage.history.seen();
    seen.view.handoffs.values().find(|handoff| handoff.value.phase == phase).map(|handoff| handoff.value.partition)
}

fn is_registered(stage: &Stage<'_>, router: &str) -> bool {
    stage.history.seen().view.routers.contains_key(router)
}

fn stuck_router(stage: &mut Stage<'_>) -> anyhow::Result<()> {
    let stuck = ROUTERS[1];
    stage.cluster.stop(stuck);
    stage.cluster.start(JOINER)?;
    let waits = stage.until(LEASE_TTL, |stage| in_phase(stage, Phase::Ready).is_some());
    let before = stage.seen();
    // Whatever flips now flips without the router that is still registered: the contract is checked at each.
    let gone = stage.until(2 * LEASE_TTL, |stage| !is_registered(stage, stuck));
    let meanwhile = stage.seen().moved - before.moved;
    stage.until(LEASE_TTL, |stage| stage.seen().moved > before.moved);
    stage.timeline.say(&format!(
        "  handoffs waited: {waits}; {meanwhile} owners changed before the stuck router's lease was gone: {gone}"
    ));
    stage.pause(500);
    stage.cluster.resume(stuck);
    leave(stage);
    Ok(())
}

fn router_joins_midway(stage: &mut Stage<'_>) -> anyhow::Result<()> {
    let (slow, joins) = (ROUTERS[0], ROUTERS[2]);
    stage.cluster.kill(joins);
    stage.until(2 * LEASE_TTL, |stage| !is_registered(stage, joins));
    // Holds handoffs in their middle, for less than its lease lasts.
    stage.cluster.stop(slow);
    stage.cluster.start(JOINER)?;
    stage.until(LEASE_TTL / 2, |stage| in_phase(stage, Phase::Ready).is_some());
    stage.cluster.start(joins)?;
    let joined = stage.until(LEASE_TTL / 2, |stage| is_registered(stage, joins));
    let midway = in_phase(stage, Phase::Ready).is_some();
    stage.timeline.say(&format!("  the router has joined: {joined}, with handoffs in Ready: {midway}"));
    stage.cluster.resume(slow);
    leave(stage);
    Ok(())
}

fn handoff_deleted(stage: &mut Stage<'_>) -> anyhow::Result<()> {
    let slow = ROUTERS[2];
    stage.cluster.stop(slow);
    stage.cluster.start(JOINER)?;
    stage.until(LEASE_TTL, |stage| in_phase(stage, Phase::Ready).is_some());
    if let Some(partition) = in_phase(stage, Phase::Ready) {
        let key = stage.history.keys().handoff(partition);
        stage.timeline.say(&format!("  deleting {key}"));
        stage.history.by_hand(Op::Delete(Keys::One(key)))?;
    }
    stage.pause(300);
    stage.cluster.resume(slow);
    leave(stage);
    Ok(())
}

/// Reads a key of a partition, waiting for longer than a router holds a request.
fn probe(partition: PartitionId, router: SocketAddr) -> Option<Response> {
    let request = Request::get("/keys/probe").header("x-partition", partition).header("x-key", "probe");
    request.timeout(2 * MAX_WAIT).send(router)
}

fn all_pods_die(stage: &mut Stage<'_>) -> anyhow::Result<()> {
    let pods = stage.cluster.running(&PODS);
    pods.iter().for_each(|pod| stage.cluster.kill(pod));
    let router = stage.cluster.routers()[0];
    let begun = Instant::now();
    let response = probe(PartitionId::new(0), router);
    let took = begun.elapsed();
    let seen = response.map(|Response { status, head, .. }| {
        let says = head.lines().find(|line| line.starts_with("segue-reason")).unwrap_or("no reason").to_owned();
        (status, head.contains("retry-after: "), says)
    });
    stage.timeline.say(&format!("  a held request was answered after {:.1} s: {seen:?}", took.as_secs_f64()));
    if !matches!(seen, Some((503, true, _))) || took > MAX_WAIT + Duration::from_secs(2) {
        stage.verdict.add("unbounded", format!("without pods a request was answered after {took:?}: {seen:?}"));
    }
    for pod in pods {
        stage.cluster.start(pod)?;
    }
    Ok(())
}

fn router_and_pod_cut_off(stage: &mut Stage<'_>) -> anyhow::Result<()> {
    let pairs: Vec<_> = MEMBERS.into_iter().flat_map(|member| [(ROUTERS[0], member), (PODS[0], member)]).collect();
    let whom = format!("{} and {} and etcd", ROUTERS[0], PODS[0]);
    play_fault(stage, Fault::Cut(pairs, Cut::Silent, whom), 2 * BEYOND_LEASE)
}

fn compaction(stage: &mut Stage<'_>) -> anyhow::Result<()> {
    let pairs: Vec<_> = MEMBERS.into_iter().flat_map(|member| [(ROUTERS[1], member), (PODS[1], member)]).collect();
    let mut cut = Fault::Cut(pairs, Cut::Refused, format!("{} and {} and etcd", ROUTERS[1], PODS[1]));
    stage.timeline.say(&format!("  {}", cut.in_words(stage.cluster)));
    cut.inflict(stage.cluster)?;
    stage.cluster.start(JOINER)?;
    stage.pause(2_500);
    let revision = stage.history.catch_up()?;
    let mut compacted = Revision::ZERO;
    for member in stage.cluster.members() {
        if etcd::compact(member, revision).is_ok() {
            compacted = revision;
            break;
        }
    }
    stage.timeline.say(&format!("  history before revision {compacted} is gone"));
    stage.pause(500);
    cut.heal(stage.cluster)?;
    leave(stage);
    Ok(())
}

fn new_owner_refuses(stage: &mut Stage<'_>) -> anyhow::Result<()> {
    let before = stage.seen();
    let pairs = ROUTERS.map(|router| (router, JOINER));
    stage.cluster.network.cut(&pairs, Cut::RefusedOneWay)?;
    stage.cluster.start(JOINER)?;
    let owns = |stage: &Stage<'_>| {
        stage.history.seen().view.assignments.values().any(|assignment| assignment.value.owner == JOINER)
    };
    // A scenario before may have ended it in the midst of a move, for which the coordinator shuns its name for a while.
    let owned = stage.until(REST, owns);
    stage.pause(500);
    stage.cluster.network.heal(&pairs, Cut::RefusedOneWay)?;
    stage.settle();
    let errors = stage.errors();
    if !owned || errors != before.errors {
        stage.verdict.add("unheld", format!("owned: {owned}; errors before {:?}, then {errors:?}", before.errors));
    }
    leave(stage);
    Ok(())
}

fn rolling_restart(stage: &mut Stage<'_>) -> anyhow::Result<()> {
    let pods = stage.cluster.running(&PODS);
    for name in pods.into_iter().chain(COORDINATORS).chain(ROUTERS) {
        stage.cluster.terminate(&[name], TERMINATE);
        stage.cluster.start(name)?;
        stage.pause(300);
    }
    Ok(())
}

fn etcd_leader_dies(stage: &mut Stage<'_>) -> anyhow::Result<()> {
    stage.cluster.start(JOINER)?;
    stage.until(BEYOND_LEASE, |stage| !stage.history.seen().view.handoffs.is_empty());
    if let Some(leader) = stage.cluster.etcd_leader() {
        play_fault(stage, Fault::Kill(leader), Duration::from_secs(3))?;
    }
    leave(stage);
    Ok(())
}

fn etcd_leader_cut_off(stage: &mut Stage<'_>) -> anyhow::Result<()> {
    let Some(leader) = stage.cluster.etcd_leader() else { return Ok(()) };
    let pairs = MEMBERS.into_iter().filter(|member| *member != leader).map(|member| (leader, member));
    let cut = Fault::Cut(pairs.collect(), Cut::Silent, format!("{leader} and its peers"));
    play_fault(stage, cut, BEYOND_LEASE)
}

fn etcd_without_quorum(stage: &mut Stage<'_>) -> anyhow::Result<()> {
    let (one, other) = (MEMBERS[0], MEMBERS[1]);
    stage.cluster.kill(one);
    stage.cluster.kill(other);
    stage.pause(BEYOND_LEASE.as_millis() as u64);
    stage.cluster.start(one)?;
    stage.cluster.start(other)
}

/// While the leader is stopped nobody loses a lease: the new one gives each its whole TTL again, and clients find it in
/// time. When it wakes up, up to etcd 3.4.30 and 3.5.12, it takes itself for the leader for a moment, finds every lease
/// at its end and has all of them revoked, by the new leader (etcd-io/etcd#15247). So everyone registers anew, and no
/// harm may come of it; there is nothing that a client could do about that.
fn etcd_leader_stuck(stage: &mut Stage<'_>) -> anyhow::Result<()> {
    let Some(leader) = stage.cluster.etcd_leader() else { return Ok(()) };
    play_fault(stage, Fault::Stop(leader), BEYOND_LEASE)
}

fn slow_disk(stage: &mut Stage<'_>) -> anyhow::Result<()> {
    let Some(leader) = stage.cluster.etcd_leader() else { return Ok(()) };
    let mut fault = Fault::SlowDisk(leader, None);
    fault.inflict(stage.cluster)?;
    stage.cluster.start(JOINER)?;
    stage.hold(std::slice::from_ref(&fault), BEYOND_LEASE);
    stage.cluster.terminate(&[JOINER], TERMINATE);
    if let Some(said) = fault.heal(stage.cluster)? {
        stage.timeline.say(&format!("  {said}"));
    }
    Ok(())
}

/// How long after a vanished owner's lease its partitions may take to be served again: a second in which routers wait for
/// answers that are on their way, the warm-up, and what the machine adds.
const FAILOVER: Duration = Duration::from_millis(2_500);

fn vanished_host(stage: &mut Stage<'_>) -> anyhow::Result<()> {
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

fn play_fault(stage: &mut Stage<'_>, mut fault: Fault, lasts: Duration) -> anyhow::Result<()> {
    stage.timeline.say(&format!("  {}", fault.in_words(stage.cluster)));
    fault.inflict(stage.cluster)?;
    stage.hold(std::slice::from_ref(&fault), lasts);
    fault.heal(stage.cluster)?;
    Ok(())
}
