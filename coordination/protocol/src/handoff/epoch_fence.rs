//! Decides which epoch of a partition a pod admits, and what becomes of the others.
//!
//! Pure. The pod's gate (`pod::Ownership` of `segue-coordination`) keeps one [`EpochFence`] for each partition under
//! its lock and checks the lease clock first.
//!
//! # Invariants
//!
//! * Only the accepted epoch is admitted.
//! * No request waits for an epoch that this pod has seen pass.

use super::pod::Duty;
use crate::ids::Epoch;

/// What a pod knows of the epochs of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct EpochFence {
    /// The epoch that is admitted.
    pub accepted: Option<Epoch>,
    /// The newest epoch that this pod has seen of the partition, of any owner. A request with this epoch or an older
    /// one has nothing to wait for.
    pub known: Epoch,
    /// The epoch that was accepted last.
    pub last: Epoch,
}

/// The verdict on a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EpochCheck {
    /// The request is admitted.
    Accept,
    /// The pod's view may be behind the request's epoch.
    Wait,
    /// The request's epoch is over, or is just ending on this pod.
    Stale,
    /// The request's epoch is not this pod's.
    NotOwner,
}

impl EpochFence {
    /// Admits one epoch, or none. `known` is the newest epoch that the view shows. Returns whether anything changed.
    pub fn set(&mut self, accepted: Option<Epoch>, known: Epoch) -> bool {
        let changed = (self.accepted, self.known) != (accepted, known);
        (self.accepted, self.known) = (accepted, known);
        self.last = accepted.unwrap_or(self.last);
        changed
    }

    /// Returns the verdict on a request that is stamped with `epoch`.
    pub fn check(&self, epoch: Epoch) -> EpochCheck {
        match self.accepted {
            Some(accepted) if accepted == epoch => EpochCheck::Accept,
            _ if epoch > self.known => EpochCheck::Wait,
            Some(_) => EpochCheck::Stale,
            None if epoch == self.last => EpochCheck::Stale,
            None => EpochCheck::NotOwner,
        }
    }
}

/// Returns the newest epoch that requests need not wait for, given the accepted epoch, the pod's duty and the epoch of
/// the partition's assignment.
pub fn known_epoch(accepted: Option<Epoch>, duty: Duty, assigned: Option<Epoch>) -> Epoch {
    match (accepted, duty) {
        (Some(epoch), _) => epoch,
        // The pod's own epoch, not ready yet: worth waiting for.
        (None, Duty::Serve { epoch }) => Epoch::new(epoch.get().saturating_sub(1)),
        _ => assigned.unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fence(accepted: Option<u64>, known: u64) -> EpochFence {
        let mut fence = EpochFence::default();
        fence.set(accepted.map(Epoch::new), Epoch::new(known));
        fence
    }

    fn checks(fence: &EpochFence) -> Vec<EpochCheck> {
        (2..6).map(|epoch| fence.check(Epoch::new(epoch))).collect()
    }

    #[test]
    fn only_the_accepted_epoch_is_admitted_and_only_a_later_one_waits() {
        use EpochCheck::{Accept, NotOwner, Stale, Wait};
        let mut fence = fence(Some(4), 4);
        assert_eq!(checks(&fence), [Stale, Stale, Accept, Wait]);
        assert!(fence.set(None, Epoch::new(4)), "the partition drains");
        assert_eq!(checks(&fence), [NotOwner, NotOwner, Stale, Wait]);
        assert!(fence.set(None, Epoch::new(5)), "another pod has it");
        assert_eq!(checks(&fence), [NotOwner, NotOwner, Stale, NotOwner]);
        assert!(!fence.set(None, Epoch::new(5)));
    }

    #[test]
    fn a_pod_that_owns_nothing_waits_for_what_its_view_may_be_behind_of() {
        assert_eq!(
            checks(&fence(None, 3)),
            [EpochCheck::NotOwner, EpochCheck::NotOwner, EpochCheck::Wait, EpochCheck::Wait]
        );
    }
}
