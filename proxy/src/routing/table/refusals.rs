//! The refusals of one request. They show that its pod is not ready, or that the pod does not accept the request
//! itself.
//!
//! A pod that is not ready refuses whatever it is sent. A pod that accepts others and refuses one request again and
//! again will refuse it for ever, and that request must hold up only its own key. Plain data; the [`table`](super) asks
//! it when a request comes back and when it starts again.

use segue_protocol::ids::Epoch;

use super::route::Route;

/// Tries of a request with one owner before another key's request is tried in its place.
pub(super) const TRIES_IN_A_ROW: u32 = 3;

/// Why a request came back although no pod acted on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Returned {
    /// The pod received the request and refused it.
    Refused,
    /// The pod could not be reached.
    Unreachable,
    /// The request was not tried: its pod is backed off from.
    Untried,
}

/// How often one owner has refused a request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Refusals {
    slot: u32,
    epoch: Epoch,
    /// Number of times that the request came back.
    returns: u16,
    /// Number of times that the pod itself refused it.
    refused: u16,
    /// Number of other requests that the pod had accepted when this one came back last.
    taken: u32,
}

impl Refusals {
    /// Returns the refusals after one more return of a request that was admitted by `way`.
    pub(super) fn after(before: Option<Self>, route: Route, returned: Returned, taken: u32) -> Option<Self> {
        let before = before.filter(|before| before.are_of(route.slot, route.epoch));
        let tried = returned != Returned::Untried;
        if before.is_none() && !tried {
            return None;
        }
        let mut now =
            before.unwrap_or(Refusals { slot: route.slot, epoch: route.epoch, returns: 0, refused: 0, taken });
        now.returns = now.returns.saturating_add(1);
        now.refused = now.refused.saturating_add(u16::from(returned == Returned::Refused));
        now.taken = taken;
        Some(now)
    }

    pub(crate) fn are_of(&self, slot: u32, epoch: Epoch) -> bool {
        (self.slot, self.epoch) == (slot, epoch)
    }

    /// Returns the rank that lets others go first: see
    /// [`Stash::insert_ranked`](crate::routing::stash::Stash::insert_ranked).
    pub(super) fn rank(&self) -> u32 {
        u32::from(self.returns) / TRIES_IN_A_ROW
    }

    /// Returns whether the next try is the last one: the owner has refused the request often enough, and has accepted
    /// another since.
    pub(super) fn leave_one_try(&self, slot: u32, epoch: Epoch, taken: u32) -> bool {
        self.are_of(slot, epoch) && u32::from(self.refused) >= TRIES_IN_A_ROW && taken != self.taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::gate::Gate;

    fn to(epoch: u64) -> Route {
        Route { slot: 1, epoch: epoch.into(), severs: Gate::default().severs(), last_try: false }
    }

    fn after(returns: &[(Returned, u32)]) -> Option<Refusals> {
        returns.iter().fold(None, |before, (returned, taken)| Refusals::after(before, to(7), *returned, *taken))
    }

    #[test]
    fn three_refusals_and_another_request_taken_since_leave_one_try() {
        use Returned::{Refused, Unreachable, Untried};
        let three = after(&[(Refused, 0), (Refused, 0), (Refused, 4)]).unwrap();
        assert!(!three.leave_one_try(1, Epoch::new(7), 4), "nothing was taken since");
        assert!(three.leave_one_try(1, Epoch::new(7), 5));
        assert!(
            !three.leave_one_try(1, Epoch::new(8), 5) && !three.leave_one_try(2, Epoch::new(7), 5),
            "another owner has not refused it"
        );
        let unreachable = after(&[(Refused, 0), (Unreachable, 0), (Untried, 0), (Refused, 0)]).unwrap();
        assert!(
            !unreachable.leave_one_try(1, Epoch::new(7), 1),
            "a pod that cannot be reached says nothing about a request"
        );
        assert!(after(&[(Untried, 0)]).is_none());
    }

    #[test]
    fn a_request_lets_others_go_first_after_every_third_return() {
        let ranks = (1..=7).map(|returns| after(&vec![(Returned::Unreachable, 0); returns]).unwrap().rank());
        assert_eq!(ranks.collect::<Vec<_>>(), [0, 0, 1, 1, 1, 2, 2]);
        let elsewhere = Refusals::after(after(&[(Returned::Refused, 0); 3]), to(8), Returned::Refused, 0).unwrap();
        assert_eq!(elsewhere.rank(), 0);
    }
}
