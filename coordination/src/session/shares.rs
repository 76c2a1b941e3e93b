//! Tells each participant that shares a lease what it may presume about it, after every decision of
//! [`Holders`](segue_protocol::holders::Holders).

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use segue_protocol::holders::{HolderId, HolderShare, Holders};
use segue_protocol::lease::LeaseTimes;
use segue_protocol::registration::OwnKeys;
use tokio::sync::watch;
use tokio::time::Instant;

use super::clock::lease_now;

/// The known state of a lease. Its moments are on the clock of [`lease_now`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseState {
    /// New work may begin before this moment.
    pub trusted_until: Instant,
    /// The lease is valid at least until this moment.
    pub stands_until: Instant,
    /// The lease is gone: the store has said so, the store went back, or the holder was stuck for so long that its key is
    /// deleted. An unreachable store leaves this `false` for ever; the times above then limit what may be presumed.
    pub lost: bool,
}

/// The holders of one lease, and a channel to each.
#[derive(Debug)]
pub(super) struct LeaseHolders {
    base: Instant,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    holders: Holders,
    told: BTreeMap<HolderId, watch::Sender<LeaseState>>,
}

impl LeaseHolders {
    /// Begins with nobody, for a lease of `ttl` that was requested at `base`.
    pub(super) fn new(base: Instant, ttl: Duration) -> Self {
        let inner = Inner { holders: Holders::new(ttl.as_micros() as u64), told: BTreeMap::new() };
        LeaseHolders { base, inner: Mutex::new(inner) }
    }

    /// Returns a moment as the holders count it.
    pub(super) fn micros(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.base).as_micros() as u64
    }

    /// Adds a participant, unless the lease is over. Returns the channel by which it is told the state of the lease.
    pub(super) fn join(&self, keys: OwnKeys) -> Option<(HolderId, watch::Receiver<LeaseState>)> {
        let mut inner = self.lock();
        let id = inner.holders.join(self.micros(lease_now()), keys)?;
        let (sender, state) = watch::channel(self.state(inner.holders.share(id)?));
        inner.told.insert(id, sender);
        Some((id, state))
    }

    /// Records that the participant's loop has made progress. That changes nobody's share.
    pub(super) fn made_progress(&self, id: HolderId) {
        self.lock().holders.made_progress(id, self.micros(lease_now()));
    }

    /// Records that the participant's loop turns, and waits for the store. That changes nobody's share.
    pub(super) fn waits_for_the_store(&self, id: HolderId) {
        self.lock().holders.waits_for_the_store(id, self.micros(lease_now()));
    }

    /// Returns what the holders decide, and tells each participant whose share that has changed.
    pub(super) fn decide<T>(&self, decide: impl FnOnce(&mut Holders) -> T) -> T {
        let mut inner = self.lock();
        let Inner { holders, told } = &mut *inner;
        let decided = decide(holders);
        told.retain(|id, sender| {
            let known = holders.share(*id).map(|share| self.state(share));
            known.inspect(|known| tell(sender, *known)).is_some()
        });
        decided
    }

    fn state(&self, share: HolderShare) -> LeaseState {
        let at = |micros| self.base + Duration::from_micros(micros);
        let LeaseTimes { trusted_until, stands_until } = share.times;
        LeaseState { trusted_until: at(trusted_until), stands_until: at(stands_until), lost: share.lost }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn tell(sender: &watch::Sender<LeaseState>, known: LeaseState) {
    sender.send_if_modified(|state| std::mem::replace(state, known) != known);
}
