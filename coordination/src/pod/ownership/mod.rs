//! The partitions that this pod accepts requests for, under which epoch, and the requests in flight for each.
//!
//! A mechanism: the shell sets what is accepted, every request checks, and neither waits for the other. The lease clock
//! decides until when anything is accepted at all ([`LeaseWindow`]).
//!
//! # Invariants
//!
//! * Accepting a request and counting it is one decision under the partition's lock. Once the shell has closed a
//!   partition and seen nothing in flight there, nothing follows.
//! * The lock is held for a few instructions and never across an await.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use segue_protocol::handoff::epoch_fence::{EpochCheck, EpochFence};
use segue_protocol::ids::{Epoch, PartitionId};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use super::lease_window::LeaseWindow;
use super::sync::{Mutex, MutexGuard, Notify, OwnedNotified, RwLock, RwLockReadGuard, RwLockWriteGuard};
use crate::session::{LeaseState, lease_now};

/// How long a request whose epoch is above the known one waits for this pod's view to catch up.
const CATCH_UP_TIMEOUT: Duration = Duration::from_millis(250);
/// How long the state of a lost ownership waits for requests that were told to end and have not been dropped yet. A
/// connection does not poll a response whose client reads nothing.
const LOST_TIMEOUT: Duration = Duration::from_secs(1);

/// Why a request was refused. It was not processed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Rejection {
    /// The request has no readable partition or epoch, or names another keyspace: it did not come through a router.
    Unstamped,
    /// This pod has no registration that it may trust.
    Fenced,
    /// The request's epoch is over, or is just ending on this pod.
    Stale,
    /// The request's epoch is not this pod's.
    NotOwner,
}

impl Rejection {
    /// All reasons.
    pub const ALL: [Rejection; 4] = [Rejection::Unstamped, Rejection::Fenced, Rejection::Stale, Rejection::NotOwner];

    /// Returns the reason's name in responses and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Rejection::Unstamped => "unstamped",
            Rejection::Fenced => "fenced",
            Rejection::Stale => "stale-epoch",
            Rejection::NotOwner => "not-owner",
        }
    }
}

/// The partitions that a pod accepts requests for, each with its epoch.
#[derive(Debug)]
pub struct Ownership {
    keyspace: String,
    table: RwLock<OwnershipTable>,
    /// Notifies of a partition that was not known before.
    grown: Arc<Notify>,
    refused: [AtomicU64; Rejection::ALL.len()],
}

#[derive(Debug)]
struct OwnershipTable {
    window: Arc<LeaseWindow>,
    slots: BTreeMap<PartitionId, Arc<Slot>>,
    /// The requests in flight when an ownership was lost, until its state has been released.
    lost: BTreeMap<PartitionId, Arc<Slot>>,
    /// The requests without a key, which are for no partition.
    keyless: Arc<Slot>,
    /// Nothing is ever accepted again.
    closed: bool,
}

#[derive(Debug, Default)]
struct Slot {
    state: Mutex<SlotState>,
    /// Notifies that another epoch is accepted or known, or that the last request of a closed partition has left.
    changed: Arc<Notify>,
}

#[derive(Debug, Default)]
struct SlotState {
    fence: EpochFence,
    in_flight: u64,
    /// How much of it is held beyond a response.
    held: u64,
    /// Number of requests accepted so far.
    admitted: u64,
}

/// The verdict on a request.
#[derive(Debug)]
pub(super) enum EntryVerdict {
    /// The request is accepted and counted.
    In(InFlight),
    /// The request is to be examined again after this notice.
    Wait(OwnedNotified),
    /// Refused.
    Refused(Rejection),
}

impl Ownership {
    pub(super) fn new(keyspace: &str) -> Self {
        Ownership {
            keyspace: keyspace.to_owned(),
            table: RwLock::new(OwnershipTable {
                window: LeaseWindow::over(),
                slots: BTreeMap::new(),
                lost: BTreeMap::new(),
                keyless: Arc::default(),
                closed: false,
            }),
            grown: Arc::default(),
            refused: Default::default(),
        }
    }

    /// Returns the keyspace of the partitions.
    pub fn keyspace(&self) -> &str {
        &self.keyspace
    }

    /// Returns the number of a partition's requests in flight.
    pub fn in_flight(&self, partition: PartitionId) -> u64 {
        self.slot(partition).map_or(0, |slot| slot.lock().in_flight)
    }

    /// Returns how often each partition is held in flight beyond a response ([`Owned::hold`]), if it is. A sidecar holds
    /// it once for each of its exchanges.
    pub fn held_by_partition(&self) -> BTreeMap<PartitionId, u64> {
        let table = self.read();
        let counts = table.slots.iter().map(|(partition, slot)| (*partition, slot.lock().held));
        counts.filter(|(_, count)| *count > 0).collect()
    }

    /// Returns the number of requests in flight.
    pub fn total_in_flight(&self) -> u64 {
        let table = self.read();
        table.slots.values().chain([&table.keyless]).map(|slot| slot.lock().in_flight).sum()
    }

    /// Returns the number of requests accepted so far of each partition that this pod accepts.
    pub(super) fn admitted(&self) -> BTreeMap<PartitionId, u64> {
        let table = self.read();
        let count = |(partition, slot): (&PartitionId, &Arc<Slot>)| {
            let state = slot.lock();
            state.fence.accepted.map(|_| (*partition, state.admitted))
        };
        table.slots.iter().filter_map(count).collect()
    }

    /// Returns the number of requests refused for this reason.
    pub fn refused(&self, why: Rejection) -> u64 {
        self.refused[why as usize].load(Relaxed)
    }

    pub(super) fn count_refused(&self, why: Rejection) {
        self.refused[why as usize].fetch_add(1, Relaxed);
    }

    /// Decides about a request once. `now` is on the clock of [`lease_now`].
    pub(super) fn try_enter(&self, partition: PartitionId, epoch: Epoch, now: Instant) -> EntryVerdict {
        let (window, slot) = {
            let table = self.read();
            let Some(slot) = table.slots.get(&partition) else {
                return match table.window.is_trusted(now) {
                    true => EntryVerdict::Wait(self.grown.clone().notified_owned()),
                    false => EntryVerdict::Refused(Rejection::Fenced),
                };
            };
            (table.window.clone(), slot.clone())
        };
        if !window.is_trusted(now) {
            return EntryVerdict::Refused(Rejection::Fenced);
        }
        let mut state = slot.lock();
        match state.fence.check(epoch) {
            EpochCheck::Accept => {
                state.in_flight += 1;
                state.admitted += 1;
                drop(state);
                EntryVerdict::In(InFlight { slot, window, epoch, is_hold: false })
            }
            // Created under the lock, so that no change between this check and the wait is missed.
            EpochCheck::Wait => EntryVerdict::Wait(slot.changed.clone().notified_owned()),
            EpochCheck::Stale => EntryVerdict::Refused(Rejection::Stale),
            EpochCheck::NotOwner => EntryVerdict::Refused(Rejection::NotOwner),
        }
    }

    /// Decides about a request without a key, for which the lease alone counts.
    pub(super) fn enter_without_key(&self, now: Instant) -> Result<InFlight, Rejection> {
        let table = self.read();
        if !table.window.is_trusted(now) {
            return Err(Rejection::Fenced);
        }
        let (window, slot) = (table.window.clone(), table.keyless.clone());
        slot.lock().in_flight += 1;
        Ok(InFlight { slot, window, epoch: Epoch::default(), is_hold: false })
    }

    /// Retries after each `change`, until this pod's view has caught up with the request or the time for that is up.
    pub(super) async fn enter(
        self: Arc<Self>,
        partition: PartitionId,
        epoch: Epoch,
        mut change: OwnedNotified,
        arrived: Instant,
    ) -> Result<InFlight, Rejection> {
        let deadline = arrived + CATCH_UP_TIMEOUT;
        while timeout_at(deadline, change).await.is_ok() {
            match self.try_enter(partition, epoch, lease_now()) {
                EntryVerdict::In(in_flight) => return Ok(in_flight),
                EntryVerdict::Wait(next) => change = next,
                EntryVerdict::Refused(why) => return Err(why),
            }
        }
        Err(Rejection::NotOwner)
    }

    /// Accepts one epoch of a partition, or none. `known` is the newest epoch that the view shows.
    pub(super) fn set(&self, partition: PartitionId, accepted: Option<Epoch>, known: Epoch) {
        let (slot, is_new) = match self.slot(partition) {
            Some(slot) => (slot, false),
            None => (self.write().slots.entry(partition).or_default().clone(), true),
        };
        slot.set(accepted, known);
        if is_new {
            self.grown.notify_waiters();
        }
    }

    /// Adopts the state of the lease.
    pub(super) fn trust(&self, state: LeaseState) {
        if self.read().window.extend(state) {
            return;
        }
        let mut table = self.write();
        if !table.closed
            && let Some(window) = LeaseWindow::begin(state)
        {
            table.window = window;
        }
    }

    /// Fences for good ([`fence`](Self::fence)).
    pub(super) fn close(&self) {
        self.write().closed = true;
        self.fence();
    }

    /// Refuses everything from now on, and ends all accepted requests with a failure.
    pub(super) fn fence(&self) {
        let slots = {
            let mut table = self.write();
            table.window.end();
            std::mem::take(&mut table.slots)
        };
        for slot in slots.values() {
            slot.set(None, Epoch::default());
        }
        self.write().lost.extend(slots.into_iter().filter(|(_, slot)| slot.lock().in_flight > 0));
        self.grown.notify_waiters();
    }

    /// Returns once no request of a closed partition is in flight.
    pub(super) async fn idle(&self, partition: PartitionId) {
        let lost = self.read().lost.get(&partition).cloned();
        if let Some(slot) = lost {
            let _ = timeout(LOST_TIMEOUT, slot.idle()).await;
            self.write().lost.remove(&partition);
        }
        if let Some(slot) = self.slot(partition) {
            slot.idle().await;
        }
    }

    fn slot(&self, partition: PartitionId) -> Option<Arc<Slot>> {
        self.read().slots.get(&partition).cloned()
    }

    fn read(&self) -> RwLockReadGuard<'_, OwnershipTable> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, OwnershipTable> {
        self.table.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slot {
    fn lock(&self) -> MutexGuard<'_, SlotState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, accepted: Option<Epoch>, known: Epoch) {
        if self.lock().fence.set(accepted, known) {
            self.changed.notify_waiters();
        }
    }

    async fn idle(&self) {
        loop {
            let changed = self.changed.clone().notified_owned();
            if self.lock().in_flight == 0 {
                return;
            }
            changed.await;
        }
    }

    fn leave(&self, is_hold: bool) {
        let mut state = self.lock();
        state.in_flight -= 1;
        state.held -= u64::from(is_hold);
        let is_last = state.in_flight == 0 && state.fence.accepted.is_none();
        drop(state);
        if is_last {
            self.changed.notify_waiters();
        }
    }
}

/// A request, or other work, that is in flight until this is dropped.
#[derive(Debug)]
pub struct InFlight {
    slot: Arc<Slot>,
    window: Arc<LeaseWindow>,
    epoch: Epoch,
    is_hold: bool,
}

impl InFlight {
    /// Returns whether the lease that this was accepted under is over, or so near its end that the work must stop.
    /// Nothing of it may take effect or be acknowledged then.
    pub fn is_lost(&self) -> bool {
        self.window.is_over(lease_now())
    }

    /// Completes when [`is_lost`](Self::is_lost) becomes true.
    pub fn lost(&self) -> WaitForCancellationFutureOwned {
        self.window.ended()
    }

    pub(super) fn keyless(&self, abandoned: CancellationToken) -> KeylessRequest {
        KeylessRequest { slot: self.slot.clone(), window: self.window.clone(), abandoned }
    }

    pub(super) fn owned(&self, partition: PartitionId, abandoned: CancellationToken) -> Owned {
        Owned { partition, epoch: self.epoch, slot: self.slot.clone(), window: self.window.clone(), abandoned }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.slot.leave(self.is_hold);
    }
}

/// The ownership under which a request was accepted; an extension of every request that passes the layer. A service
/// that writes to a log adds the epoch to its writes.
#[derive(Debug, Clone)]
pub struct Owned {
    /// The partition.
    pub partition: PartitionId,
    /// The epoch under which this pod owns it.
    pub epoch: Epoch,
    slot: Arc<Slot>,
    window: Arc<LeaseWindow>,
    abandoned: CancellationToken,
}

impl Owned {
    /// Completes when the client has gone, if that happens before the response has begun.
    pub fn abandoned(&self) -> WaitForCancellationFutureOwned {
        self.abandoned.clone().cancelled_owned()
    }

    /// Keeps the partition in flight beyond the response: for an upgraded connection, or for work that outlives the
    /// request that began it. `None` if the partition has already been given up.
    pub fn hold(&self) -> Option<InFlight> {
        let mut state = self.slot.lock();
        let stands = state.fence.last == self.epoch && (state.fence.accepted.is_some() || state.in_flight > 0);
        if !stands || self.window.is_over(lease_now()) {
            return None;
        }
        state.in_flight += 1;
        state.held += 1;
        drop(state);
        Some(InFlight { slot: self.slot.clone(), window: self.window.clone(), epoch: self.epoch, is_hold: true })
    }
}

/// A request without a key; an extension of such requests, which have no [`Owned`]. Any pod may get them, so what they write
/// is fenced by nothing.
#[derive(Debug, Clone)]
pub struct KeylessRequest {
    slot: Arc<Slot>,
    window: Arc<LeaseWindow>,
    abandoned: CancellationToken,
}

impl KeylessRequest {
    /// As [`Owned::abandoned`].
    pub fn abandoned(&self) -> WaitForCancellationFutureOwned {
        self.abandoned.clone().cancelled_owned()
    }

    /// Keeps the pod from ending while work goes on. `None` once its lease is over.
    pub fn hold(&self) -> Option<InFlight> {
        if self.window.is_over(lease_now()) {
            return None;
        }
        let mut state = self.slot.lock();
        state.in_flight += 1;
        state.held += 1;
        drop(state);
        let (slot, window) = (self.slot.clone(), self.window.clone());
        Some(InFlight { slot, window, epoch: Epoch::default(), is_hold: true })
    }
}

#[cfg(segue_loom)]
pub(super) mod loom;
#[cfg(test)]
mod tests;
