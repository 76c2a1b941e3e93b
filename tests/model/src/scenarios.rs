//! The searches: a cluster, its faults, and the expected verdict.
//!
//! Together they are the claim of `docs/verification.md`: every fault alone, the combinations that break weaker
//! protocols, and every row of the table of capabilities with its documented verdict.

use segue_protocol::handoff::router::OnStoreLoss;
use segue_protocol::records::{Capabilities, Mode};

use crate::scenario::{Planned, Scenario, Size, Verdict};
use crate::state::{Budget, Reached};
use crate::{checkpoint_scenarios, round_scenarios};

pub(crate) const ABLE: Capabilities = Capabilities { released: false, ..Capabilities::ALL };
pub(crate) const DRAINED_AND_FENCE: Capabilities =
    Capabilities { sync: false, drained: true, released: false, fence: true, checkpoint: false };
pub(crate) const DRAINED: Capabilities =
    Capabilities { sync: false, drained: true, released: false, fence: false, checkpoint: false };
const FENCE: Capabilities =
    Capabilities { sync: false, drained: false, released: false, fence: true, checkpoint: false };
pub(crate) const NONE: Capabilities =
    Capabilities { sync: false, drained: false, released: false, fence: false, checkpoint: false };

pub(crate) const NO_FAULT: Budget = Budget {
    pod_crashes: 0,
    pod_starts: 0,
    pod_clocks: 0,
    router_crashes: 0,
    router_starts: 0,
    router_clocks: 0,
    leader_losses: 0,
    delays: 0,
    breaks: 0,
    hang_ups: 0,
    expiries: 0,
    drain_timeouts: 0,
    phase_timeouts: 0,
    deletions: 0,
    detachments: 0,
    participant_crashes: 0,
    participant_starts: 0,
    stuck_participants: 0,
    windows: 0,
    heartbeats: 0,
    leaders: 0,
    foreign_leaders: 0,
    intervals: 0,
    hangs: 0,
};

/// Requests by their router, all of one partition and key.
pub(crate) fn requests(routers: &[u8]) -> Vec<Planned> {
    routers.iter().map(|router| Planned { router: *router, partition: 0, key: 1 }).collect()
}

/// What every search meets, and what this one has to meet in addition: one in which its fault has no effect proves nothing.
fn also(more: &[Reached]) -> Vec<Reached> {
    [&[Reached::Completed, Reached::Flushed][..], more].concat()
}

/// Two routers, and a partition that moves from a draining pod to another, both of which can do everything.
pub(crate) fn a_move(name: &'static str, about: &'static str) -> Scenario {
    Scenario {
        name,
        about,
        pods: vec![ABLE; 2],
        pods_up: 2,
        routers: 2,
        routers_up: 2,
        partitions: 1,
        participants: 0,
        participants_up: 0,
        leader_knows_rounds: true,
        is_placed: true,
        nothing_to_warm: false,
        drains: true,
        is_planned: true,
        mode: Mode::Barrier,
        on_store_loss: OnStoreLoss::Auto,
        requests: requests(&[0, 0, 1]),
        budget: NO_FAULT,
        is_bounded: false,
        checkpoints: false,
        spares_new_owner: false,
        verdict: Verdict::Holds,
        reaches: also(&[]),
        size: Size::Usual,
        without: None,
    }
}

/// A new keyspace whose pods have nothing to warm, so that nothing in it begins with a handoff.
pub(crate) fn assigned_at_once(name: &'static str, about: &'static str) -> Scenario {
    Scenario {
        is_placed: false,
        nothing_to_warm: true,
        drains: false,
        is_planned: false,
        requests: requests(&[0, 1]),
        ..a_move(name, about)
    }
}

pub(crate) fn all() -> Vec<Scenario> {
    let of = |capabilities: Capabilities| vec![capabilities; 2];
    let two = || requests(&[0, 1]);
    let mut all = vec![
        Scenario {
            pods: of(Capabilities::ALL),
            is_planned: false,
            reaches: vec![Reached::Completed, Reached::Flushed, Reached::PutBack, Reached::Refused],
            ..a_move("move", "a partition moves, nothing fails")
        },
        Scenario {
            pods: of(Capabilities::ALL),
            routers: 1,
            routers_up: 1,
            requests: requests(&[0]),
            budget: Budget { pod_crashes: 1, delays: 1, ..NO_FAULT },
            ..a_move("release", "the old owner's release ends the handoff; a pod crashes, a write is slow")
        },
        Scenario {
            is_placed: false,
            drains: false,
            size: Size::Quick,
            ..a_move("first-placement", "a partition gets its first owner")
        },
        Scenario {
            budget: Budget { pod_crashes: 1, leader_losses: 1, delays: 1, ..NO_FAULT },
            ..assigned_at_once(
                "assigned-at-once",
                "a new keyspace is assigned without handoffs; its owner or leader is lost",
            )
        },
        Scenario {
            budget: Budget { pod_crashes: 1, pod_starts: 1, delays: 1, ..NO_FAULT },
            size: Size::Large,
            ..assigned_at_once("assigned-owner-back", "the same; the owner crashes and comes back under its name")
        },
        Scenario {
            requests: two(),
            budget: Budget { router_crashes: 1, router_starts: 1, ..NO_FAULT },
            ..a_move("router-crash", "a router crashes at any moment and comes back under its name")
        },
        Scenario {
            routers_up: 1,
            requests: two(),
            budget: Budget { router_starts: 1, ..NO_FAULT },
            ..a_move("late-router", "a router joins at any moment of a handoff")
        },
        Scenario {
            requests: two(),
            budget: Budget { router_clocks: 1, ..NO_FAULT },
            reaches: also(&[Reached::Fenced]),
            ..a_move("zombie-router", "a router loses its lease and goes on serving")
        },
        Scenario {
            size: Size::Large,
            spares_new_owner: true,
            requests: two(),
            budget: Budget { pod_clocks: 1, router_clocks: 1, ..NO_FAULT },
            reaches: also(&[Reached::Fenced]),
            ..a_move("double-zombie", "a pod and a router lose their leases and go on, at once")
        },
        Scenario {
            requests: two(),
            budget: Budget { breaks: 1, hang_ups: 1, ..NO_FAULT },
            ..a_move("broken-exchange", "a connection breaks while the pod works on; a client hangs up")
        },
        Scenario {
            requests: two(),
            budget: Budget { drain_timeouts: 1, phase_timeouts: 1, expiries: 1, ..NO_FAULT },
            reaches: vec![Reached::Completed, Reached::Flushed, Reached::Cancelled, Reached::Severed],
            ..a_move("time-outs", "a drain, a phase and a wait last too long")
        },
        Scenario {
            pods: of(NONE),
            requests: two(),
            budget: Budget { drain_timeouts: 1, ..NO_FAULT },
            reaches: vec![Reached::Completed, Reached::Cancelled, Reached::GaveUp],
            ..a_move("give-up", "a drain lasts too long and the old owner cannot confirm its end")
        },
        Scenario {
            requests: two(),
            budget: Budget { deletions: 1, ..NO_FAULT },
            ..a_move("hand-deleted", "an operator deletes a handoff by hand")
        },
        Scenario {
            routers: 1,
            routers_up: 1,
            requests: requests(&[0]),
            budget: Budget { detachments: 1, breaks: 1, pod_crashes: 1, ..NO_FAULT },
            reaches: also(&[Reached::PutBackKey]),
            ..a_move("unreadable-pod", "garbage over a pod's registration, a broken exchange, a crash")
        },
        Scenario {
            is_bounded: true,
            spares_new_owner: true,
            requests: two(),
            budget: Budget { pod_crashes: 1, leader_losses: 1, ..NO_FAULT },
            reaches: also(&[Reached::BoundPassed]),
            ..a_move("bounded-owner", "a sidecar dies and its service works on within its bound; the leader changes")
        },
        // The table of capabilities.
        Scenario {
            spares_new_owner: true,
            pods: of(DRAINED_AND_FENCE),
            requests: two(),
            budget: Budget { pod_clocks: 1, router_crashes: 1, ..NO_FAULT },
            reaches: also(&[Reached::Fenced]),
            ..a_move("drained-fence-1", "drained and fence: a pod goes on without its lease while a router dies")
        },
        Scenario {
            size: Size::Large,
            spares_new_owner: true,
            pods: of(DRAINED_AND_FENCE),
            requests: two(),
            budget: Budget { pod_clocks: 1, router_clocks: 1, ..NO_FAULT },
            reaches: also(&[Reached::Fenced]),
            ..a_move("drained-fence-2", "drained and fence: the double zombie")
        },
        Scenario {
            pods: of(DRAINED),
            requests: two(),
            budget: Budget { router_crashes: 1, breaks: 1, ..NO_FAULT },
            ..a_move("drained-1", "drained alone: a router dies and an exchange breaks")
        },
        Scenario {
            spares_new_owner: true,
            pods: of(DRAINED),
            requests: two(),
            budget: Budget { pod_clocks: 1, ..NO_FAULT },
            reaches: also(&[Reached::Fenced]),
            ..a_move("drained-2", "drained alone: a pod goes on without its lease")
        },
        Scenario {
            pods: of(DRAINED),
            requests: two(),
            budget: Budget { pod_clocks: 1, router_crashes: 1, ..NO_FAULT },
            verdict: Verdict::Violates { property: "single_writer", steps: 11 },
            ..a_move("drained-3", "drained alone: a pod goes on without its lease while a router dies")
        },
        Scenario {
            pods: of(NONE),
            requests: two(),
            budget: Budget { pod_crashes: 1, ..NO_FAULT },
            reaches: also(&[Reached::Abandoned]),
            ..a_move("none-1", "no capability: a pod crashes")
        },
        Scenario {
            pods: of(NONE),
            requests: two(),
            budget: Budget { router_crashes: 1, ..NO_FAULT },
            verdict: Verdict::Violates { property: "single_writer", steps: 9 },
            size: Size::Quick,
            ..a_move("none-2", "no capability: a router dies with work still in a pod")
        },
        Scenario {
            pods: of(NONE),
            requests: two(),
            budget: Budget { breaks: 1, ..NO_FAULT },
            verdict: Verdict::Violates { property: "single_writer", steps: 9 },
            size: Size::Quick,
            ..a_move("none-3", "no capability: an exchange breaks with work still in a pod")
        },
        Scenario {
            pods: of(NONE),
            requests: two(),
            budget: Budget { router_clocks: 1, ..NO_FAULT },
            verdict: Verdict::Violates { property: "single_writer", steps: 9 },
            ..a_move("none-4", "no capability: a router loses its lease with work still in a pod")
        },
        Scenario {
            pods: of(FENCE),
            requests: two(),
            budget: Budget { router_crashes: 1, ..NO_FAULT },
            verdict: Verdict::Violates { property: "single_writer", steps: 10 },
            ..a_move("fence-1", "fence alone: a router dies with work still in a pod")
        },
        // The mode without the barrier.
        Scenario {
            pods: of(DRAINED_AND_FENCE),
            mode: Mode::Independent,
            routers: 1,
            routers_up: 1,
            requests: requests(&[0, 0]),
            size: Size::Quick,
            ..a_move("independent-1", "independent mode with one router")
        },
        Scenario {
            pods: of(DRAINED_AND_FENCE),
            mode: Mode::Independent,
            routers_up: 1,
            requests: two(),
            budget: Budget { router_starts: 1, ..NO_FAULT },
            verdict: Verdict::Violates { property: "single_writer", steps: 9 },
            size: Size::Quick,
            ..a_move("independent-2", "independent mode: a second router joins during the handoff")
        },
    ];
    // What pods, leaders and writes can do shows with one router; with two it is searched on demand.
    for (scenario, with_two_routers) in both_ways() {
        let one = |(key, planned): (u64, &Planned)| Planned { router: 0, key, ..*planned };
        let requests = (0..).zip(&scenario.requests).map(one).collect();
        all.push(Scenario { routers: 1, routers_up: 1, requests, ..scenario.clone() });
        all.push(Scenario { name: with_two_routers, size: Size::Large, ..scenario });
    }
    all.extend(checkpoint_scenarios::all());
    all.extend(round_scenarios::all());
    all
}

fn both_ways() -> Vec<(Scenario, &'static str)> {
    let two = || requests(&[0, 1]);
    vec![
        (
            Scenario {
                requests: two(),
                budget: Budget { pod_crashes: 1, pod_starts: 1, ..NO_FAULT },
                reaches: also(&[Reached::Abandoned]),
                ..a_move("pod-crash", "a pod crashes at any moment and comes back under its name")
            },
            "pod-crash-2",
        ),
        (
            Scenario {
                requests: two(),
                budget: Budget { leader_losses: 1, delays: 1, ..NO_FAULT },
                ..a_move("zombie-leader", "the leader changes while a write of the old one is under way")
            },
            "zombie-leader-2",
        ),
        (
            Scenario {
                requests: two(),
                budget: Budget { delays: 2, ..NO_FAULT },
                ..a_move("unknown-outcome", "writes whose outcome their writer never learns")
            },
            "unknown-outcome-2",
        ),
        (
            Scenario {
                requests: two(),
                budget: Budget { pod_clocks: 1, ..NO_FAULT },
                reaches: also(&[Reached::Fenced]),
                ..a_move("zombie-pod", "a pod loses its lease and goes on running")
            },
            "zombie-pod-2",
        ),
        (
            Scenario {
                pods: vec![ABLE; 3],
                pods_up: 2,
                requests: two(),
                budget: Budget { pod_crashes: 1, pod_starts: 1, ..NO_FAULT },
                reaches: also(&[Reached::Abandoned]),
                ..a_move("three-pods", "a third pod joins and one crashes")
            },
            "three-pods-2",
        ),
        (
            Scenario {
                pods_up: 2,
                partitions: 2,
                requests: vec![
                    Planned { router: 0, partition: 0, key: 1 },
                    Planned { router: 1, partition: 1, key: 1 },
                ],
                ..a_move("two-partitions", "two partitions move at once")
            },
            "two-partitions-2",
        ),
    ]
}
