//! Which partitions this pod accepts requests for, under which epoch, and what is in flight for each.
//!
//! A mechanism: the shell says what is accepted, every request asks, neither waits for the other. Until when anything at
//! all is accepted is the lease clock's word ([`Term`]). What must stay true: whether a request is accepted and that it
//! is counted is one decision under the partition's lock, so once the shell has closed a partition and seen nothing in
//! flight there, nothing comes after. The lock is held for a few instructions and never across an await.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use segue_protocol::handoff::epoch_fence::{Answer, Door};
use segue_protocol::ids::{Epoch, PartitionId};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use super::sync::{Mutex, MutexGuard, Notify, OwnedNotified, RwLock, RwLockReadGuard, RwLockWriteGuard};
use super::term::Term;
use crate::participant::{LeaseState, lease_now};

/// How long a request whose epoch is above the one known waits for this pod's view to catch up.
const CATCH_UP: Duration = Duration::from_millis(250);
/// How long the state of a lost ownership waits for requests that were told to end and have not been dropped yet: one
/// whose client reads nothing is not looked at by its connection.
const LOST_PATIENCE: Duration = Duration::from_secs(1);

/// Why a request was refused. Nothing was done then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// It names no partition or epoch that can be read, or another keyspace: it did not come through a router.
    Unstamped,
    /// This pod has no registration that it may trust.
    Fenced,
    /// Its epoch is over, or is just ending here.
    Stale,
    /// Its epoch is not this pod's.
    NotOwner,
}

impl Refusal {
    /// All of them.
    pub const ALL: [Refusal; 4] = [Refusal::Unstamped, Refusal::Fenced, Refusal::Stale, Refusal::NotOwner];

    /// The name in answers and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Refusal::Unstamped => "unstamped",
            Refusal::Fenced => "fenced",
            Refusal::Stale => "stale-epoch",
            Refusal::NotOwner => "not-owner",
        }
    }
}

/// What a pod accepts.
#[derive(Debug)]
pub struct Ownership {
    keyspace: String,
    table: RwLock<Table>,
    /// A partition was seen for the first time.
    grown: Arc<Notify>,
    refused: [AtomicU64; Refusal::ALL.len()],
}

#[derive(Debug)]
struct Table {
    term: Arc<Term>,
    slots: BTreeMap<PartitionId, Arc<Slot>>,
    /// What was in flight when an ownership was lost, until its state has been let go.
    lost: BTreeMap<PartitionId, Arc<Slot>>,
    /// Nothing is ever accepted again.
    closed: bool,
}

#[derive(Debug, Default)]
struct Slot {
    state: Mutex<SlotState>,
    /// Another epoch is accepted or known, or the last request of a closed partition has left.
    changed: Arc<Notify>,
}

#[derive(Debug, Default)]
struct SlotState {
    door: Door,
    in_flight: u64,
}

/// What became of a request at the door.
#[derive(Debug)]
pub(super) enum Entry {
    /// Accepted and counted.
    In(InFlight),
    /// To be asked again after this.
    Wait(OwnedNotified),
    /// Refused.
    Refused(Refusal),
}

impl Ownership {
    pub(super) fn new(keyspace: &str) -> Self {
        Ownership {
            keyspace: keyspace.to_owned(),
            table: RwLock::new(Table {
                term: Term::over(),
                slots: BTreeMap::new(),
                lost: BTreeMap::new(),
                closed: false,
            }),
            grown: Arc::default(),
            refused: Default::default(),
        }
    }

    /// The keyspace that the partitions are of.
    pub fn keyspace(&self) -> &str {
        &self.keyspace
    }

    /// How many requests of a partition are in flight.
    pub fn in_flight(&self, partition: PartitionId) -> u64 {
        self.slot(partition).map_or(0, |slot| slot.lock().in_flight)
    }

    /// How many requests are in flight.
    pub fn total_in_flight(&self) -> u64 {
        let table = self.read();
        table.slots.values().map(|slot| slot.lock().in_flight).sum()
    }

    /// How many requests were refused for this reason.
    pub fn refused(&self, why: Refusal) -> u64 {
        self.refused[why as usize].load(Relaxed)
    }

    pub(super) fn count_refused(&self, why: Refusal) {
        self.refused[why as usize].fetch_add(1, Relaxed);
    }

    /// Asks once. `now`: of [`lease_now`].
    pub(super) fn try_enter(&self, partition: PartitionId, epoch: Epoch, now: Instant) -> Entry {
        let (term, slot) = {
            let table = self.read();
            let Some(slot) = table.slots.get(&partition) else {
                return match table.term.is_trusted(now) {
                    true => Entry::Wait(self.grown.clone().notified_owned()),
                    false => Entry::Refused(Refusal::Fenced),
                };
            };
            (table.term.clone(), slot.clone())
        };
        if !term.is_trusted(now) {
            return Entry::Refused(Refusal::Fenced);
        }
        let mut state = slot.lock();
        match state.door.ask(epoch) {
            Answer::In => {
                state.in_flight += 1;
                drop(state);
                Entry::In(InFlight { slot, term, epoch })
            }
            // Made under the lock, so that no change between this look and the wait is missed.
            Answer::Wait => Entry::Wait(slot.changed.clone().notified_owned()),
            Answer::Stale => Entry::Refused(Refusal::Stale),
            Answer::NotOwner => Entry::Refused(Refusal::NotOwner),
        }
    }

    /// Asks again after each `change`, until this pod's view has caught up with the request or may take no longer.
    pub(super) async fn enter(
        self: Arc<Self>,
        partition: PartitionId,
        epoch: Epoch,
        mut change: OwnedNotified,
        arrived: Instant,
    ) -> Result<InFlight, Refusal> {
        let deadline = arrived + CATCH_UP;
        while timeout_at(deadline, change).await.is_ok() {
            match self.try_enter(partition, epoch, lease_now()) {
                Entry::In(in_flight) => return Ok(in_flight),
                Entry::Wait(next) => change = next,
                Entry::Refused(why) => return Err(why),
            }
        }
        Err(Refusal::NotOwner)
    }

    /// Accepts one epoch of a partition, or none. `known`: the newest epoch that the view shows.
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

    /// The lease stands as `state` says.
    pub(super) fn trust(&self, state: LeaseState) {
        if self.read().term.extend(state) {
            return;
        }
        let mut table = self.write();
        if !table.closed
            && let Some(term) = Term::begin(state)
        {
            table.term = term;
        }
    }

    /// [`fence`](Self::fence), for good.
    pub(super) fn close(&self) {
        self.write().closed = true;
        self.fence();
    }

    /// Refuses everything from here on and has all that was accepted end, answered as failed.
    pub(super) fn fence(&self) {
        let slots = {
            let mut table = self.write();
            table.term.end();
            std::mem::take(&mut table.slots)
        };
        for slot in slots.values() {
            slot.set(None, Epoch::default());
        }
        self.write().lost.extend(slots.into_iter().filter(|(_, slot)| slot.lock().in_flight > 0));
        self.grown.notify_waiters();
    }

    /// Returns once nothing of a closed partition is in flight.
    pub(super) async fn idle(&self, partition: PartitionId) {
        let lost = self.read().lost.get(&partition).cloned();
        if let Some(slot) = lost {
            let _ = timeout(LOST_PATIENCE, slot.idle()).await;
            self.write().lost.remove(&partition);
        }
        if let Some(slot) = self.slot(partition) {
            slot.idle().await;
        }
    }

    fn slot(&self, partition: PartitionId) -> Option<Arc<Slot>> {
        self.read().slots.get(&partition).cloned()
    }

    fn read(&self) -> RwLockReadGuard<'_, Table> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Table> {
        self.table.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slot {
    fn lock(&self) -> MutexGuard<'_, SlotState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, accepted: Option<Epoch>, known: Epoch) {
        if self.lock().door.set(accepted, known) {
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

    fn leave(&self) {
        let mut state = self.lock();
        state.in_flight -= 1;
        let is_last = state.in_flight == 0 && state.door.accepted.is_none();
        drop(state);
        if is_last {
            self.changed.notify_waiters();
        }
    }
}

/// One request, or other work, that is in flight until this is dropped.
#[derive(Debug)]
pub struct InFlight {
    slot: Arc<Slot>,
    term: Arc<Term>,
    epoch: Epoch,
}

impl InFlight {
    /// Whether the lease that this was accepted under is over, or so near its end that the work must stop: nothing of
    /// it may take effect or be acknowledged.
    pub fn is_lost(&self) -> bool {
        self.term.is_over(lease_now())
    }

    /// Returns when [`is_lost`](Self::is_lost) comes true.
    pub fn lost(&self) -> WaitForCancellationFutureOwned {
        self.term.ended()
    }

    pub(super) fn owned(&self, partition: PartitionId, abandoned: CancellationToken) -> Owned {
        Owned { partition, epoch: self.epoch, slot: self.slot.clone(), term: self.term.clone(), abandoned }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.slot.leave();
    }
}

/// What a request was accepted for; an extension of every request that passes the layer. A service that writes to a log
/// puts the epoch into its writes.
#[derive(Debug, Clone)]
pub struct Owned {
    /// The partition.
    pub partition: PartitionId,
    /// The epoch under which this pod owns it.
    pub epoch: Epoch,
    slot: Arc<Slot>,
    term: Arc<Term>,
    abandoned: CancellationToken,
}

impl Owned {
    /// Returns once nobody waits for the answer any more, if that is before it has begun.
    pub fn abandoned(&self) -> WaitForCancellationFutureOwned {
        self.abandoned.clone().cancelled_owned()
    }

    /// Keeps the partition in flight beyond the response: for an upgraded connection, or for work that a request began
    /// and that outlives it. `None`: too late, the partition is given up already.
    pub fn hold(&self) -> Option<InFlight> {
        let mut state = self.slot.lock();
        let stands = state.door.last == self.epoch && (state.door.accepted.is_some() || state.in_flight > 0);
        if !stands || self.term.is_over(lease_now()) {
            return None;
        }
        state.in_flight += 1;
        drop(state);
        Some(InFlight { slot: self.slot.clone(), term: self.term.clone(), epoch: self.epoch })
    }
}

#[cfg(all(test, segue_loom))]
mod loom;
#[cfg(test)]
mod tests;
