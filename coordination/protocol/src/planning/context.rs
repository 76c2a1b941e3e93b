//! The facts from which moves are created. Elsewhere: until when a move waits ([`waits`](super::waits)).

use std::time::Duration;

use super::Policy;
use super::backoff::BackOffs;
use super::budget::{MoveBudget, MoveCause};
use super::cool_downs::CoolDowns;
use super::departures::Departures;
use super::heartbeats::Heartbeats;
use super::phase_timeouts::PhaseTimeouts;
use super::slow_warms::SlowWarms;
use crate::authority::Authority;
use crate::ids::Incarnation;
use crate::view::View;

/// Everything that the creation of moves depends on.
pub(super) struct Context<'a> {
    pub(super) view: &'a View,
    pub(super) policy: &'a Policy,
    /// Only moves that it acts for take places and begin.
    pub(super) authority: &'a Authority,
    pub(super) backoffs: &'a BackOffs,
    pub(super) cool_downs: &'a CoolDowns,
    /// Until when balance waits for a rolling restart.
    pub(super) roll_ends: Option<Duration>,
    pub(super) departures: &'a Departures,
    pub(super) heartbeats: &'a Heartbeats,
    pub(super) slow_warms: &'a SlowWarms,
    pub(super) phase_timeouts: &'a PhaseTimeouts,
    /// Moves only the partitions of dead owners.
    pub(super) only_dead_owners: bool,
    pub(super) now: Duration,
    /// When to check whether the moves that begin now exist.
    pub(super) retry_at: Duration,
}

/// How long a pod may warm without progress before first placements that wait for it go to other pods.
const FIRST_CHOICE_HOLDS_FOR: Duration = Duration::from_secs(1);

impl<'a> Context<'a> {
    /// Returns the places that the handoffs in flight leave to each of `sharers` processes, with so many pods that accept
    /// partitions.
    pub(super) fn budget(&self, takers: usize, sharers: usize) -> MoveBudget<'a> {
        let age = |partition| self.phase_timeouts.age(partition, self.now);
        MoveBudget::left(self.view, self.policy, age, takers, sharers)
    }

    /// Returns whether an urgent move goes to another pod while its own, in this life, may warm nothing more. A first placement
    /// stays while its pod makes progress: it would have to move again for balance.
    pub(super) fn has_second_choice(&self, cause: MoveCause, own: Incarnation) -> bool {
        match cause {
            MoveCause::FirstPlacement => self.slow_warms.waited(own, self.now) >= FIRST_CHOICE_HOLDS_FOR,
            _ => cause.is_urgent(),
        }
    }
}
