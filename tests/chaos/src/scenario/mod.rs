//! Named scenarios: sequences that have found bugs in systems of this kind, each a short function.
//!
//! A scenario adds its own checks to those that always run. It heals everything before it returns; its caller then
//! waits until the cluster is at rest.

mod failover;
mod processes;
mod store;

use std::io::Write as _;
use std::net::SocketAddr;
use std::time::Duration;

use segue_protocol::ids::PartitionId;
use segue_protocol::records::Phase;
use segue_tests::http::{Request, Response};

pub(crate) use self::failover::Failovers;
use crate::cluster::{MAX_WAIT, PODS};
use crate::fault::{Fault, TERMINATE};
use crate::run::Stage;

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

const ALL: [Scenario; 19] = [
    Scenario {
        name: "stuck-router",
        says: "a router is stopped before it holds; no other may go on before its lease is gone",
        play: processes::stuck_router,
    },
    Scenario {
        name: "router-joins-midway",
        says: "a router registers in the middle of handoffs and gets requests at once",
        play: processes::router_joins_midway,
    },
    Scenario {
        name: "handoff-deleted",
        says: "the record of a handoff is deleted by hand in the middle of it",
        play: processes::handoff_deleted,
    },
    Scenario {
        name: "all-pods-die",
        says: "every pod is killed: requests get 503 with Retry-After at their deadline",
        play: processes::all_pods_die,
    },
    Scenario {
        name: "router-and-pod-cut-off",
        says: "a router and a pod lose etcd together and still reach each other",
        play: store::router_and_pod_cut_off,
    },
    Scenario {
        name: "compaction",
        says: "etcd compacts past what a router and a pod have seen while they cannot watch",
        play: store::compaction,
    },
    Scenario {
        name: "new-owner-refuses",
        says: "a new owner refuses connections for 500 ms after it got a partition",
        play: processes::new_owner_refuses,
    },
    Scenario {
        name: "rolling-restart",
        says: "everything but etcd is restarted in turn",
        play: processes::rolling_restart,
    },
    Scenario {
        name: "etcd-leader-dies",
        says: "etcd's leader is killed in the middle of handoffs",
        play: store::etcd_leader_dies,
    },
    Scenario {
        name: "etcd-leader-cut-off",
        says: "etcd's leader is cut off from its peers and still reached by everyone else",
        play: store::etcd_leader_cut_off,
    },
    Scenario {
        name: "etcd-without-quorum",
        says: "two members of etcd are killed for longer than leases last",
        play: store::etcd_without_quorum,
    },
    Scenario {
        name: "etcd-leader-stuck",
        says: "etcd's leader is stopped for longer than leases last, and wakes up",
        play: store::etcd_leader_stuck,
    },
    Scenario {
        name: "vanished-host",
        says: "a pod's host vanishes without closing any connection; its partitions are served a second after its lease",
        play: failover::vanished_host,
    },
    Scenario {
        name: "full-store",
        says: "etcd refuses every write in the midst of handoffs, for longer than a phase may last",
        play: store::full_store,
    },
    Scenario {
        name: "replaced-password",
        says: "the password of Segue's user is replaced, in etcd first",
        play: store::replaced_password,
    },
    Scenario {
        name: "restored-store",
        says: "etcd's disks are put back to an earlier state: no life and no epoch of before goes on",
        play: store::restored_store,
    },
    Scenario {
        name: "unread-log",
        says: "nobody reads the logs of a router and of the leader, and their queues are full, while a pod dies",
        play: processes::unread_log,
    },
    Scenario {
        name: "crash-loop",
        says: "a pod dies soon after each start, and another one once: others take their partitions",
        play: processes::crash_loop,
    },
    Scenario {
        name: "slow-disk",
        says: "etcd's leader has a slow disk while pods join and leave",
        play: store::slow_disk,
    },
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

/// Reads a key of a partition, waiting for longer than a router holds a request.
fn probe(partition: PartitionId, router: SocketAddr) -> Option<Response> {
    let request = Request::get("/keys/probe").header("x-partition", partition).header("x-key", "probe");
    request.timeout(2 * MAX_WAIT).send(router)
}

fn play_fault(stage: &mut Stage<'_>, mut fault: Fault, lasts: Duration) -> anyhow::Result<()> {
    stage.timeline.say(&format!("  {}", fault.in_words(stage.cluster)));
    fault.inflict(stage.cluster)?;
    stage.hold(std::slice::from_ref(&fault), lasts);
    fault.heal(stage.cluster)?;
    Ok(())
}
