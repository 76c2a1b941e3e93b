//! The searches with assignment rounds in place of a leader.
//!
//! What coordinators can do depends neither on the number of routers nor on what pods confirm, and requests see only the
//! handoffs. So most searches have no router and pods without capabilities.

use crate::scenario::{Scenario, Size};
use crate::scenarios::{ABLE, NO_FAULT, NONE, a_move, requests};
use crate::state::{Budget, Reached};

/// A partition that moves while `up` of `participants` hold the rounds.
pub(crate) fn with_rounds(name: &'static str, about: &'static str, participants: u8, up: u8) -> Scenario {
    Scenario {
        routers: 0,
        routers_up: 0,
        pods: vec![NONE; 2],
        requests: Vec::new(),
        participants,
        participants_up: up,
        reaches: vec![Reached::Completed, Reached::Rounds],
        ..a_move(name, about)
    }
}

pub(crate) fn all() -> Vec<Scenario> {
    let of = |(name, about), (participants, up), budget, also: &[Reached]| Scenario {
        budget,
        reaches: [&[Reached::Completed], also].concat(),
        ..with_rounds(name, about, participants, up)
    };
    let large = |scenario| Scenario { size: Size::Large, ..scenario };
    let old_leader = |name, about, budget| Scenario {
        leader_knows_rounds: false,
        is_planned: false,
        ..of((name, about), (2, 2), budget, &[Reached::Cancelled])
    };
    let (rounds, cancelled) = (Reached::Rounds, Reached::Cancelled);
    vec![
        large(of(
            ("rounds-join", "rounds: another participant joins while a write is slow"),
            (2, 1),
            Budget { participant_starts: 1, delays: 1, phase_timeouts: 1, ..NO_FAULT },
            &[rounds, cancelled],
        )),
        large(of(
            ("rounds-crash", "rounds: a participant loses its lease, its writes still under way"),
            (2, 2),
            Budget { participant_crashes: 1, participant_starts: 1, delays: 1, ..NO_FAULT },
            &[rounds],
        )),
        large(of(
            ("rounds-stuck", "rounds: a participant lives and does nothing"),
            (2, 2),
            Budget { stuck_participants: 1, delays: 1, phase_timeouts: 1, ..NO_FAULT },
            &[rounds, cancelled],
        )),
        large(of(
            ("rounds-window", "rounds: a window ends before one of three has joined"),
            (3, 2),
            Budget { participant_starts: 1, windows: 1, heartbeats: 1, ..NO_FAULT },
            &[rounds],
        )),
        of(
            ("rounds-leader", "rounds: a leader comes and goes while a write is slow"),
            (2, 2),
            Budget { leaders: 1, leader_losses: 1, delays: 1, ..NO_FAULT },
            &[rounds],
        ),
        of(
            ("rounds-no-leader", "rounds: another hand puts a leader's key without a lease"),
            (2, 2),
            Budget { foreign_leaders: 1, delays: 1, ..NO_FAULT },
            &[],
        ),
        old_leader(
            "rounds-old-leader-1",
            "rounds: a leader whose version knows none takes over",
            Budget { leaders: 1, delays: 1, phase_timeouts: 1, ..NO_FAULT },
        ),
        old_leader(
            "rounds-old-leader-2",
            "rounds: a leader whose version knows none comes and goes",
            Budget { leaders: 1, leader_losses: 1, delays: 1, phase_timeouts: 1, ..NO_FAULT },
        ),
        large(of(
            ("rounds-pod-crash", "rounds: a pod crashes and another participant joins"),
            (2, 1),
            Budget { pod_crashes: 1, pod_starts: 1, participant_starts: 1, ..NO_FAULT },
            &[rounds, Reached::Abandoned],
        )),
        Scenario {
            pods: vec![ABLE; 2],
            routers: 1,
            routers_up: 1,
            requests: requests(&[0]),
            ..of(
                ("rounds-request", "rounds: a request, while another participant joins"),
                (2, 1),
                Budget { participant_starts: 1, ..NO_FAULT },
                &[Reached::Flushed, rounds],
            )
        },
    ]
}
