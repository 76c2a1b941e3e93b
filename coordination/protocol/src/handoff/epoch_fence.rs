//! Which epoch of a partition a pod lets in, and what it answers to the others.
//!
//! Pure. The pod's gate (`pod::Ownership` of `segue-coordination`) keeps one [`Door`] for each partition under its lock
//! and asks the lease clock first. Promise: exactly the accepted epoch gets in; and nobody waits for an epoch that this pod
//! has seen pass.

use super::pod::Duty;
use crate::ids::Epoch;

/// What a pod knows of the epochs of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Door {
    /// The epoch that is let in.
    pub accepted: Option<Epoch>,
    /// The newest epoch seen of the partition, whoever's. A request of it or an older one has nothing to wait for.
    pub known: Epoch,
    /// The epoch that was accepted last.
    pub last: Epoch,
}

/// The answer to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Answer {
    /// It is let in.
    In,
    /// The pod's view may be behind it.
    Wait,
    /// Its epoch is over, or is just ending here.
    Stale,
    /// Its epoch is not this pod's.
    NotOwner,
}

impl Door {
    /// Lets in one epoch, or none. `known`: the newest epoch that the view shows. Whether that changed anything.
    pub fn set(&mut self, accepted: Option<Epoch>, known: Epoch) -> bool {
        let changed = (self.accepted, self.known) != (accepted, known);
        (self.accepted, self.known) = (accepted, known);
        self.last = accepted.unwrap_or(self.last);
        changed
    }

    /// What a request that is stamped with `epoch` is told.
    pub fn ask(&self, epoch: Epoch) -> Answer {
        match self.accepted {
            Some(accepted) if accepted == epoch => Answer::In,
            _ if epoch > self.known => Answer::Wait,
            Some(_) => Answer::Stale,
            None if epoch == self.last => Answer::Stale,
            None => Answer::NotOwner,
        }
    }
}

/// The newest epoch that requests need not wait for, given what is accepted, the pod's duty and the epoch of the
/// partition's assignment.
pub fn known_epoch(accepted: Option<Epoch>, duty: Duty, assigned: Option<Epoch>) -> Epoch {
    match (accepted, duty) {
        (Some(epoch), _) => epoch,
        // Its own, but not ready yet: worth waiting for.
        (None, Duty::Serve { epoch }) => Epoch::new(epoch.get().saturating_sub(1)),
        _ => assigned.unwrap_or_default(),
    }
}
