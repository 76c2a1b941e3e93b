//! The searches with checkpoints.
//!
//! What pods and the store do about them depends on no router, and requests see only the handoffs. So most searches have
//! neither.

use segue_protocol::records::Capabilities;

use crate::scenario::{Scenario, Size};
use crate::scenarios::{ABLE, NO_FAULT, a_move, requests};
use crate::state::{Budget, Reached};

/// A partition that moves between two pods that make checkpoints, before anything is planned.
pub(crate) fn with_checkpoints(name: &'static str, about: &'static str) -> Scenario {
    Scenario {
        routers: 0,
        routers_up: 0,
        requests: Vec::new(),
        pods: vec![Capabilities { checkpoint: true, ..ABLE }; 2],
        checkpoints: true,
        is_planned: false,
        reaches: vec![Reached::Completed, Reached::StartedFromCheckpoint, Reached::WaitedInVain],
        ..a_move(name, about)
    }
}

pub(crate) fn all() -> Vec<Scenario> {
    vec![
        Scenario {
            size: Size::Quick,
            budget: Budget { intervals: 1, delays: 1, ..NO_FAULT },
            ..with_checkpoints("checkpoint", "a new owner starts from a checkpoint; a write is slow")
        },
        Scenario {
            size: Size::Quick,
            budget: Budget { hangs: 1, intervals: 1, ..NO_FAULT },
            ..with_checkpoints("checkpoint-stuck", "an owner makes no more checkpoints")
        },
        Scenario {
            budget: Budget { pod_crashes: 1, pod_starts: 1, delays: 1, ..NO_FAULT },
            ..with_checkpoints("checkpoint-crash", "checkpoints: a pod crashes and comes back, a write is slow")
        },
        Scenario {
            routers: 1,
            routers_up: 1,
            requests: requests(&[0]),
            budget: Budget { intervals: 1, ..NO_FAULT },
            reaches: vec![Reached::Completed, Reached::Flushed, Reached::StartedFromCheckpoint],
            ..with_checkpoints("checkpoint-request", "checkpoints: a request while the partition moves")
        },
    ]
}
