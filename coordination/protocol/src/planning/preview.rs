//! A dry run of the planner: what a leader would do about a view, without delays and without a limit on concurrent
//! moves.
//!
//! The dry run calls the planner with an empty memory. A real leader also remembers failed moves, waits for the next pod
//! of a rolling restart, and begins only as many moves at a time as its budget allows.

use std::time::Duration;

use super::{Memory, Plan, Policy, REBIRTH_GRACE, ROLL_PATIENCE, decide, in_force};
use crate::authority::Authority;
use crate::ids::Revision;
use crate::view::View;

/// Returns everything that a leader wants to do about this view by the policy that is in force. It leaves out what a
/// leader with another configuration file writes.
pub fn preview(view: &View, own: &Policy) -> Plan {
    let policy = Policy {
        settle: Duration::ZERO,
        settle_max: Duration::ZERO,
        min_interval: Duration::ZERO,
        max_concurrent_handoffs: usize::MAX,
        max_warming_per_pod: usize::MAX,
        cool_down: Duration::ZERO,
        ..in_force(view, own)
    };
    let mut memory = Memory::default();
    // A rolling restart that began long ago holds no move back.
    memory.rolls.observe(view, Duration::ZERO);
    // The first call notices which owners are dead. Their partitions move once the grace period has passed.
    let all = Authority::Leader { term: Revision::ZERO };
    decide(view, &policy, &all, &mut memory, ROLL_PATIENCE, Plan::default());
    decide(view, &policy, &all, &mut memory, ROLL_PATIENCE + REBIRTH_GRACE, Plan::default())
}
