//! The routing table: for each partition its gate, where it leads, and who waits before it.
//!
//! The request path reads it without a lock; `plane` changes it as the protocol says. A dense
//! array by partition number, one cache line each; counters of its own for each worker.
//! What must stay true, for each partition:
//! * where it leads changes only while the gate is closed and empty, so whoever is inside may read it;
//! * the gate's position changes only under the partition's lock, and opens only when nobody waits and no request that
//!   had to wait can be overtaken by one of its key;
//! * a request is counted inside from before it can reach a pod until the pod is done with it.

mod admission;
mod hold;
mod pod_health;
mod pods;
mod preconnect;
mod refusals;

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use segue_coordination::participant::{boottime, lease_now};
use segue_coordination::protocol::ids::{Epoch, Incarnation, PartitionId};
use segue_coordination::protocol::router::HoldCause;
use segue_coordination::router::CutoverTimes;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub(crate) use self::admission::{ComesBack, Turn};
use self::hold::Closed;
pub use self::pod_health::{Health, Refused};
pub use self::pods::Pod;
use self::pods::Pods;
use self::preconnect::Expected;
pub(crate) use self::refusals::{Refusals, Returned};
use crate::routing::gate::{AbortGeneration, Gate, GateState, Inside};
use crate::routing::segmented_vec::Segments;
use crate::routing::sync::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Mutex, MutexGuard};

/// How much may wait, and how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StashLimits {
    /// Most requests that wait for one partition.
    pub max_requests: usize,
    /// Most bytes that wait for one partition.
    pub max_bytes: usize,
    /// Most bytes that wait in all.
    pub max_total_bytes: usize,
    /// Longest that a request waits, counted from when it was first held.
    pub max_wait: Duration,
    /// Most requests of a partition that a flush has in flight.
    pub flush_concurrency: usize,
}

/// The defaults of the file.
impl Default for StashLimits {
    fn default() -> Self {
        StashLimits {
            max_requests: 10_000,
            max_bytes: 64 << 20,
            max_total_bytes: 512 << 20,
            max_wait: Duration::from_secs(30),
            flush_concurrency: 64,
        }
    }
}

/// Why a request is not passed on and does not wait either.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The stash is full.
    #[error("too many requests wait for the partition")]
    Full,
    /// It has waited as long as it may.
    #[error("waited too long: {}", match .0 { HoldCause::NoOwner => "no pod owns the partition", HoldCause::Handoff => "the partition is being handed over", HoldCause::Fenced => "the store cannot be reached" })]
    Waited(HoldCause),
    /// The router is ending.
    #[error("the router is shutting down")]
    Shutdown,
}

#[derive(Debug, Default)]
#[repr(align(64))]
struct Cell {
    gate: Gate,
    slot: AtomicU32,
    epoch: AtomicU64,
    /// There only while the gate is not simply open.
    closed: Mutex<Option<Box<Closed>>>,
}

/// Where a gate led when a request passed it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Route {
    pub(crate) slot: u32,
    pub(crate) epoch: Epoch,
    /// How often the partition had been severed by then.
    pub(crate) severs: AbortGeneration,
    /// If the pod refuses the request again, that is for what it is.
    pub(crate) last_try: bool,
}

/// How a partition is, as the control side sees it.
pub(crate) struct Seen {
    pub(crate) position: GateState,
    /// Where it leads; meaningless while it is held.
    pub(crate) slot: u32,
    pub(crate) epoch: Epoch,
    /// Until when a pod that has refused is left alone.
    pub(crate) retry_at: Option<Instant>,
    /// Requests flow, although the gate may not be open yet.
    pub(crate) flows: bool,
}

impl Cell {
    /// For those who are inside, and under the lock, so that it does not change meanwhile.
    #[inline]
    fn way(&self, severs: AbortGeneration) -> Route {
        Route { slot: self.slot.load(Relaxed), epoch: Epoch::new(self.epoch.load(Relaxed)), severs, last_try: false }
    }
}

/// The routing table of one router, shared by its workers.
pub struct Table {
    cells: Segments<Cell>,
    partitions: AtomicU32,
    inside: Vec<Segments<Inside>>,
    /// What lasting exchanges of each worker listen to, by partition, until they are severed.
    severing: Vec<Mutex<HashMap<PartitionId, CancellationToken>>>,
    pods: Pods,
    expected: Expected,
    limits: StashLimits,
    stashed_bytes: AtomicUsize,
    /// Up to when the router's lease may be trusted: nanoseconds since `base`, which tokio's clock may be paused at, and of
    /// CLOCK_BOOTTIME, which also counts suspended time. Both must agree.
    trusted_until: AtomicU64,
    trusted_until_boottime: AtomicU64,
    base: Instant,
    shutting_down: AtomicBool,
    notices: mpsc::UnboundedSender<PartitionId>,
}

impl std::fmt::Debug for Table {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Table")
            .field("partitions", &self.partitions)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

#[inline]
fn whole_nanos(time: Duration) -> u64 {
    time.as_secs() * 1_000_000_000 + u64::from(time.subsec_nanos())
}

impl Table {
    /// An empty table for so many workers, and the partitions in which something happened that the control side has to
    /// look at: drained, opened, refused by its pod.
    pub fn new(workers: usize, limits: StashLimits) -> (Arc<Self>, mpsc::UnboundedReceiver<PartitionId>) {
        let (notices, noticed) = mpsc::unbounded_channel();
        let table = Arc::new(Table {
            cells: Segments::new(),
            partitions: AtomicU32::new(0),
            inside: (0..workers).map(|_| Segments::new()).collect(),
            severing: (0..workers).map(|_| Mutex::default()).collect(),
            pods: Pods::default(),
            expected: Expected::new(workers),
            limits,
            stashed_bytes: AtomicUsize::new(0),
            trusted_until: AtomicU64::new(0),
            trusted_until_boottime: AtomicU64::new(0),
            base: Instant::now(),
            shutting_down: AtomicBool::new(false),
            notices,
        });
        (table, noticed)
    }

    /// How many partitions there are; 0 until the store was seen.
    #[inline]
    pub fn partitions(&self) -> u32 {
        // With what was made before it grew.
        self.partitions.load(Acquire)
    }

    /// Makes the partitions `0..partitions`; new ones are closed. Never shrinks.
    pub fn set_partitions(&self, partitions: u32) {
        self.cells.grow(partitions);
        self.inside.iter().for_each(|inside| inside.grow(partitions));
        self.partitions.fetch_max(partitions, Release);
    }

    /// New work may begin until then, on the clock of [`lease_now`]; after it, only towards pods that are safe without this
    /// router's lease.
    pub fn trust_until(&self, until: Instant) {
        // In this order: whatever time passes between the two reads shortens the trust.
        let boottime = boottime();
        let left = until.saturating_duration_since(lease_now());
        self.trusted_until_boottime.store(whole_nanos(boottime + left), Relaxed);
        self.trusted_until.store(self.nanos(until), Relaxed);
    }

    /// The table's clock: nanoseconds since it was made.
    #[inline]
    pub(crate) fn nanos(&self, at: Instant) -> u64 {
        whole_nanos(at.saturating_duration_since(self.base))
    }

    /// The pod of this life at this address; the same one each time.
    pub(crate) fn intern_pod(
        &self,
        name: &str,
        incarnation: Incarnation,
        address: &str,
        serves_without_lease: bool,
    ) -> u32 {
        self.pods.intern(name, incarnation, address, serves_without_lease)
    }

    /// Requests will go to this pod: every worker has a connection made if it has none.
    pub(crate) fn expect(&self, slot: u32) {
        self.expected.tell(slot);
    }

    /// What [`expect`](Self::expect) tells a worker; once.
    pub(crate) fn expected(&self, worker: usize) -> Option<mpsc::UnboundedReceiver<u32>> {
        self.expected.take(worker)
    }

    pub(crate) fn pod(&self, slot: u32) -> &Arc<Pod> {
        self.pods.get(slot)
    }

    fn cell(&self, partition: PartitionId) -> &Cell {
        // Partitions are checked against `partitions()` before they get here, and cells are made before that grows.
        self.cells.get(partition.index()).expect("a partition of the keyspace")
    }

    pub(super) fn workers(&self) -> usize {
        self.inside.len()
    }

    fn inside(&self, worker: usize, partition: PartitionId) -> &Inside {
        self.inside[worker].get(partition.index()).expect("a partition of the keyspace")
    }

    fn lock(cell: &Cell) -> MutexGuard<'_, Option<Box<Closed>>> {
        // The state is consistent between any two statements that can panic.
        cell.closed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Pods that partitions lead to, or led to when they were last open, and that have refused too much in a row.
    pub fn outliers(&self) -> Vec<Arc<Pod>> {
        let led_to = |partition| {
            let seen = self.position(partition);
            (seen.position == GateState::Open || seen.epoch > Epoch::default()).then_some(seen.slot)
        };
        let slots: BTreeSet<u32> = PartitionId::all(self.partitions()).filter_map(led_to).collect();
        slots.into_iter().map(|slot| self.pod(slot)).filter(|pod| pod.health.is_outlier()).cloned().collect()
    }

    /// How many requests of the partition are in flight.
    pub fn in_flight(&self, partition: PartitionId) -> u32 {
        (0..self.inside.len()).map(|worker| self.inside(worker, partition).count()).sum()
    }

    /// How many requests wait for the partition, and their bytes.
    pub fn stashed(&self, partition: PartitionId) -> (usize, usize) {
        Self::lock(self.cell(partition))
            .as_ref()
            .map_or((0, 0), |closed| (closed.stash.waiting(), closed.stash.bytes()))
    }

    /// How a partition is.
    pub(crate) fn position(&self, partition: PartitionId) -> Seen {
        let cell = self.cell(partition);
        let closed = Self::lock(cell);
        Seen {
            position: cell.gate.position(),
            slot: cell.slot.load(Relaxed),
            epoch: Epoch::new(cell.epoch.load(Relaxed)),
            retry_at: closed.as_ref().and_then(|closed| closed.retry_at),
            flows: closed.as_ref().is_some_and(|closed| closed.flows()),
        }
    }

    /// Closes the gate: from here on, requests wait.
    pub fn stop(&self, partition: PartitionId, cause: HoldCause) {
        let cell = self.cell(partition);
        let mut closed = Self::lock(cell);
        self.close(partition, cell, &mut closed, cause);
    }

    /// Says what holds the partition back, for the answers to those who wait too long.
    pub(crate) fn name_cause(&self, partition: PartitionId, cause: HoldCause) {
        if let Some(closed) = Self::lock(self.cell(partition)).as_mut() {
            closed.cause = cause;
        }
    }

    /// Forgets that the pod refused: it may be tried at once.
    pub(crate) fn retry_now(&self, partition: PartitionId) {
        if let Some(closed) = Self::lock(self.cell(partition)).as_mut() {
            closed.retry_at = None;
        }
    }

    fn close(&self, partition: PartitionId, cell: &Cell, closed: &mut Option<Box<Closed>>, cause: HoldCause) {
        let was = cell.gate.position();
        let Some(stopped) = was.stopped() else {
            return;
        };
        let closed = closed.get_or_insert_with(|| Box::new(Closed::new(cause)));
        closed.cause = cause;
        closed.closed(was == GateState::Open);
        cell.gate.set(stopped);
        self.settle(partition, cell, closed);
    }

    /// `Draining` → `Held` once nobody is inside.
    fn settle(&self, partition: PartitionId, cell: &Cell, closed: &mut Closed) {
        if let Some(settled) = cell.gate.position().settled(self.in_flight(partition)) {
            cell.gate.set(settled);
            closed.drained_at.get_or_insert_with(Instant::now);
            self.notify(partition);
        }
    }

    /// Leads the partition to this pod and epoch and lets those who wait go first. The gate must be closed, and empty
    /// unless it led there already.
    pub(crate) fn switch(&self, partition: PartitionId, slot: u32, epoch: Epoch) {
        let cell = self.cell(partition);
        let mut guard = Self::lock(cell);
        let leads_there = cell.slot.load(Relaxed) == slot && cell.epoch.load(Relaxed) == epoch.get();
        let Some(switched) = cell.gate.position().switched(leads_there) else {
            return;
        };
        cell.slot.store(slot, Relaxed);
        cell.epoch.store(epoch.get(), Relaxed);
        let closed = guard.get_or_insert_with(|| Box::new(Closed::new(HoldCause::NoOwner)));
        let now = Instant::now();
        closed.retry_at = None;
        closed.drained_at.get_or_insert(now);
        closed.switched_at.get_or_insert(now);
        if !leads_there {
            closed.forgive();
            closed.stash.forget_ranks();
        }
        closed.begin_flush(self.limits.flush_concurrency);
        cell.gate.set(switched);
        self.flush(partition, cell, closed);
    }

    /// Starts whoever may start, and opens the gate when nobody waits.
    fn flush(&self, partition: PartitionId, cell: &Cell, closed: &mut Closed) {
        if cell.gate.position() != GateState::Flushing {
            return;
        }
        let before = closed.stash.bytes();
        let mut way = cell.way(cell.gate.severs());
        while let Some((place, waiter)) = closed.stash.start_next() {
            let inside = self.inside(waiter.worker, partition);
            cell.gate.admit(inside);
            way.last_try =
                waiter.refusals.is_some_and(|refusals| refusals.leave_one_try(way.slot, way.epoch, closed.taken));
            if waiter.granted.send(way).is_err() {
                // It gave up at this very moment. The gate is not draining, so leaving needs no look.
                let _ = cell.gate.leave(inside);
                closed.stash.done(place);
            }
        }
        self.stashed_bytes.fetch_sub(before - closed.stash.bytes(), Relaxed);
        let opens = cell.gate.position().flushed(closed.stash.is_flushed());
        let begins_to_flow = if opens.is_some() { closed.opened() } else { closed.begins_to_flow() };
        if let Some(open) = opens {
            cell.gate.set(open);
        }
        if begins_to_flow || opens.is_some() {
            self.notify(partition);
        }
    }

    /// How the cutover that ended last went; forgotten once asked for.
    pub(crate) fn take_times(&self, partition: PartitionId) -> Option<CutoverTimes> {
        let cell = self.cell(partition);
        let mut guard = Self::lock(cell);
        let times = guard.as_mut()?.times.take();
        Self::forget(cell, &mut guard);
        times
    }

    /// Frees what is kept for a closed gate once it is open and nobody is interested any more.
    fn forget(cell: &Cell, closed: &mut Option<Box<Closed>>) {
        let over = |closed: &Closed| closed.times.is_none() && closed.stash.is_idle();
        if cell.gate.position() == GateState::Open && closed.as_deref().is_some_and(over) {
            *closed = None;
        }
    }

    /// Whether nothing of the last cutover is kept.
    #[cfg(all(test, segue_loom))]
    pub(crate) fn is_forgotten(&self, partition: PartitionId) -> bool {
        Self::lock(self.cell(partition)).is_none()
    }

    /// Ends every exchange of the partition; how many there were.
    pub fn sever(&self, partition: PartitionId) -> u32 {
        let cell = self.cell(partition);
        let guard = Self::lock(cell);
        let severed = self.in_flight(partition);
        // Before the tokens go: an exchange takes one only when it lasts, and sees by this that it comes too late.
        cell.gate.sever();
        drop(guard);
        for tokens in &self.severing {
            let token = tokens.lock().unwrap_or_else(PoisonError::into_inner).remove(&partition);
            if let Some(token) = token {
                token.cancel();
            }
        }
        severed
    }

    /// From here on nobody waits any more: those who do are refused.
    pub fn shut_down(&self) {
        self.shutting_down.store(true, Relaxed);
        for partition in PartitionId::all(self.partitions()) {
            if let Some(closed) = Self::lock(self.cell(partition)).as_mut() {
                self.stashed_bytes.fetch_sub(closed.stash.bytes(), Relaxed);
                // Whoever waits sees its sender gone.
                drop(closed.stash.take_all());
            }
        }
    }

    fn notify(&self, partition: PartitionId) {
        // Without a control side, as in a bench, nobody needs to know.
        let _ = self.notices.send(partition);
    }
}
