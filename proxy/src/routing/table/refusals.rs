//! The refusals of one request. They show that its pod is not ready, or that the pod does not accept the request
//! itself.
//!
//! A pod that is not ready refuses whatever it is sent. A pod that accepts others and refuses one request again and
//! again will refuse it for ever, and that request must hold up only its own key. A service that is just coming up looks
//! the same for some milliseconds, so refusals count as the request's own only after [`LEAST_DURATION`]. Plain data; the [`table`](super) asks
//! it when a request comes back and when it starts again.

use std::time::Duration;

use segue_protocol::ids::Epoch;
use tokio::time::Instant;

use super::bounce::Bounce;
use super::route::GateRoute;

/// Tries of a request with one owner before another key's request is tried in its place.
pub(super) const TRIES_IN_A_ROW: u32 = 3;
/// Time between the first refusal of a request and the one that is for good.
const LEAST_DURATION: Duration = Duration::from_secs(1);

/// How often one owner has refused a request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OwnerRefusals {
    slot: u32,
    epoch: Epoch,
    /// Number of times that the request came back.
    returns: u16,
    /// Number of times that the pod itself refused it.
    refused: u16,
    /// When it did so first.
    first_refused: Option<Instant>,
    /// Number of other requests that the pod had accepted when this one came back last.
    taken: u32,
}

impl OwnerRefusals {
    /// Returns the refusals after one more return of a request that was admitted by `route`.
    pub(super) fn after(
        before: Option<Self>,
        route: GateRoute,
        bounce: Bounce,
        taken: u32,
        at: Instant,
    ) -> Option<Self> {
        let before = before.filter(|before| before.are_of(route.slot, route.epoch));
        let follows = bounce.consequences();
        if before.is_none() && follows.refusal.is_none() {
            return None;
        }
        let (slot, epoch) = (route.slot, route.epoch);
        let none = OwnerRefusals { slot, epoch, returns: 0, refused: 0, first_refused: None, taken };
        let mut after = before.unwrap_or(none);
        after.returns = after.returns.saturating_add(1);
        if follows.is_of_request {
            after.refused = after.refused.saturating_add(1);
            after.first_refused.get_or_insert(at);
        }
        after.taken = taken;
        Some(after)
    }

    pub(crate) fn are_of(&self, slot: u32, epoch: Epoch) -> bool {
        (self.slot, self.epoch) == (slot, epoch)
    }

    /// Returns the rank that lets others go first: see
    /// [`Stash::insert_ranked`](crate::routing::stash::Stash::insert_ranked).
    pub(super) fn rank(&self) -> u32 {
        u32::from(self.returns) / TRIES_IN_A_ROW
    }

    /// Returns whether the next try is the last one: the owner has refused the request often enough and for long enough,
    /// and has accepted another since.
    pub(super) fn leave_one_try(&self, slot: u32, epoch: Epoch, taken: u32, at: Instant) -> bool {
        self.are_of(slot, epoch)
            && u32::from(self.refused) >= TRIES_IN_A_ROW
            && self.first_refused.is_some_and(|first| at.saturating_duration_since(first) >= LEAST_DURATION)
            && taken != self.taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::gate::Gate;

    fn to(epoch: u64) -> GateRoute {
        GateRoute { slot: 1, epoch: epoch.into(), severs: Gate::default().severs(), last_try: false }
    }

    fn after(bounces: &[(Bounce, u32)], at: Instant) -> Option<OwnerRefusals> {
        bounces.iter().fold(None, |before, (bounce, taken)| OwnerRefusals::after(before, to(7), *bounce, *taken, at))
    }

    #[test]
    fn three_refusals_over_a_second_and_another_request_taken_since_leave_one_try() {
        use Bounce::{BackedOff, Misdirected, Unreachable};
        let first = Instant::now();
        let late = first + LEAST_DURATION;
        let three = after(&[(Misdirected, 0), (Misdirected, 0), (Misdirected, 4)], first).unwrap();
        assert!(!three.leave_one_try(1, Epoch::new(7), 4, late), "nothing was taken since");
        assert!(three.leave_one_try(1, Epoch::new(7), 5, late));
        let early = late - Duration::from_millis(1);
        assert!(!three.leave_one_try(1, Epoch::new(7), 5, early), "the pod may be coming up");
        assert!(
            !three.leave_one_try(1, Epoch::new(8), 5, late) && !three.leave_one_try(2, Epoch::new(7), 5, late),
            "another owner has not refused it"
        );
        let again = OwnerRefusals::after(Some(three), to(7), Misdirected, 5, late).unwrap();
        assert!(again.leave_one_try(1, Epoch::new(7), 6, late), "the first refusal counts, not the last");
        let unreachable =
            after(&[(Misdirected, 0), (Unreachable, 0), (BackedOff, 0), (Misdirected, 0)], first).unwrap();
        assert!(
            !unreachable.leave_one_try(1, Epoch::new(7), 1, late),
            "a pod that cannot be reached says nothing about a request"
        );
        assert!(after(&[(BackedOff, 0)], first).is_none());
    }

    #[test]
    fn a_request_lets_others_go_first_after_every_third_return() {
        let now = Instant::now();
        let ranks = (1..=7).map(|returns| after(&vec![(Bounce::Unreachable, 0); returns], now).unwrap().rank());
        assert_eq!(ranks.collect::<Vec<_>>(), [0, 0, 1, 1, 1, 2, 2]);
        let before = after(&[(Bounce::Misdirected, 0); 3], now);
        assert_eq!(OwnerRefusals::after(before, to(8), Bounce::Misdirected, 0, now).unwrap().rank(), 0);
    }
}
