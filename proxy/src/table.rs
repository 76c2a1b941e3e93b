//! The routing table: for each partition its gate, where it leads, and who waits before it.
//!
//! The request path reads it without a lock; [`Plane`](crate::plane) changes it as the protocol says. A dense
//! array by partition number, one cache line each; counters of its own for each worker.
//! What must stay true, for each partition:
//! * where it leads changes only while the gate is closed and empty, so whoever is inside may read it;
//! * the gate's position changes only under the partition's lock, and opens only when nobody waits;
//! * a request is counted inside from before it can reach a pod until the pod is done with it.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dashmap::DashMap;
use segue_coordination::protocol::router::HoldCause;
use segue_coordination::router::CutoverTimes;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::gate::{Gate, Inside, Position};
use crate::segments::Segments;
use crate::stash::{Place, Stash};

/// First wait before a pod that refused a partition is tried again; doubles up to [`LONGEST_BACK_OFF`].
const FIRST_BACK_OFF: Duration = Duration::from_millis(5);
const LONGEST_BACK_OFF: Duration = Duration::from_millis(250);

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

/// One life of a pod at one address.
#[derive(Debug)]
pub struct Pod {
    /// A dense number of its own, never used again for another.
    pub slot: u32,
    /// The pod's name.
    pub name: String,
    /// Which life of it.
    pub incarnation: u64,
    /// `host:port`.
    pub address: String,
    /// It is safe to send to it although this router's lease may have ended.
    pub(crate) serves_without_lease: bool,
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
    /// How often the partition's exchanges were severed. An exchange that began before the last time is one of them.
    severs: AtomicU32,
    /// There only while the gate is not simply open.
    closed: Mutex<Option<Box<Closed>>>,
}

/// Where a gate led when a request passed it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Way {
    pub(crate) slot: u32,
    pub(crate) epoch: u64,
    /// How often the partition had been severed by then.
    pub(crate) severs: u32,
}

impl Cell {
    /// For those who are inside, so that it does not change under them.
    #[inline]
    fn way(&self) -> Way {
        let (slot, epoch) = (self.slot.load(Relaxed), self.epoch.load(Relaxed));
        Way { slot, epoch, severs: self.severs.load(Relaxed) }
    }
}

/// What is known of a partition whose gate is closed, or was until just now.
#[derive(Debug)]
pub(crate) struct Closed {
    stash: Stash<Waiter>,
    cause: HoldCause,
    stopped_at: Instant,
    drained_at: Option<Instant>,
    switched_at: Option<Instant>,
    stashed: u64,
    bounces: u32,
    retry_at: Option<Instant>,
    /// Set when the gate opens, for the acknowledgement.
    times: Option<CutoverTimes>,
}

#[derive(Debug)]
pub(crate) struct Waiter {
    worker: usize,
    granted: oneshot::Sender<()>,
}

/// The routing table of one router, shared by its workers.
pub struct Table {
    cells: Segments<Cell>,
    partitions: AtomicU32,
    inside: Vec<Segments<Inside>>,
    severs: Vec<Mutex<std::collections::HashMap<u32, CancellationToken>>>,
    pods: boxcar::Vec<Arc<Pod>>,
    slots: DashMap<(String, u64, String, bool), u32>,
    limits: StashLimits,
    stashed_bytes: AtomicUsize,
    /// Microseconds since `base` up to which the router's lease may be trusted.
    trusted_until: AtomicU64,
    base: Instant,
    shutting_down: AtomicBool,
    notices: mpsc::UnboundedSender<u32>,
}

impl std::fmt::Debug for Table {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Table")
            .field("partitions", &self.partitions)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

impl Table {
    /// An empty table for so many workers, and the partitions in which something happened that the control side has to
    /// look at: drained, opened, refused by its pod.
    pub fn new(workers: usize, limits: StashLimits) -> (Arc<Self>, mpsc::UnboundedReceiver<u32>) {
        let (notices, noticed) = mpsc::unbounded_channel();
        let table = Arc::new(Table {
            cells: Segments::new(),
            partitions: AtomicU32::new(0),
            inside: (0..workers).map(|_| Segments::new()).collect(),
            severs: (0..workers).map(|_| Mutex::default()).collect(),
            pods: boxcar::Vec::new(),
            slots: DashMap::new(),
            limits,
            stashed_bytes: AtomicUsize::new(0),
            trusted_until: AtomicU64::new(0),
            base: Instant::now(),
            shutting_down: AtomicBool::new(false),
            notices,
        });
        (table, noticed)
    }

    /// How many partitions there are; 0 until the store was seen.
    #[inline]
    pub fn partitions(&self) -> u32 {
        self.partitions.load(Relaxed)
    }

    /// Makes the partitions `0..partitions`; new ones are closed. Never shrinks.
    pub fn set_partitions(&self, partitions: u32) {
        self.cells.grow(partitions);
        self.inside.iter().for_each(|inside| inside.grow(partitions));
        self.partitions.fetch_max(partitions, std::sync::atomic::Ordering::Release);
    }

    /// New work may begin until then; after it, only towards pods that are safe without this router's lease.
    pub fn trust_until(&self, until: Instant) {
        self.trusted_until.store(self.micros(until), Relaxed);
    }

    #[inline]
    pub(crate) fn may_pass(&self, cell_slot: u32, now: Instant) -> bool {
        self.micros(now) < self.trusted_until.load(Relaxed) || self.pod(cell_slot).serves_without_lease
    }

    fn micros(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.base).as_micros() as u64
    }

    /// The pod of this life at this address; the same one each time.
    pub(crate) fn intern_pod(&self, name: &str, incarnation: u64, address: &str, serves_without_lease: bool) -> u32 {
        let key = (name.to_owned(), incarnation, address.to_owned(), serves_without_lease);
        *self.slots.entry(key).or_insert_with(|| {
            self.pods.push_with(|slot| {
                Arc::new(Pod {
                    slot: slot as u32,
                    name: name.to_owned(),
                    incarnation,
                    address: address.to_owned(),
                    serves_without_lease,
                })
            }) as u32
        })
    }

    pub(crate) fn pod(&self, slot: u32) -> &Arc<Pod> {
        &self.pods[slot as usize]
    }

    fn cell(&self, partition: u32) -> &Cell {
        // Partitions are checked against `partitions()` before they get here, and cells are made before that grows.
        self.cells.get(partition).expect("a partition of the keyspace")
    }

    fn inside(&self, worker: usize, partition: u32) -> &Inside {
        self.inside[worker].get(partition).expect("a partition of the keyspace")
    }

    fn lock(cell: &Cell) -> MutexGuard<'_, Option<Box<Closed>>> {
        // The state is consistent between any two statements that can panic.
        cell.closed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many requests of the partition are in flight.
    pub fn in_flight(&self, partition: u32) -> u32 {
        (0..self.inside.len()).map(|worker| self.inside(worker, partition).count()).sum()
    }

    /// How many requests wait for the partition, and their bytes.
    pub fn stashed(&self, partition: u32) -> (usize, usize) {
        Self::lock(self.cell(partition))
            .as_ref()
            .map_or((0, 0), |closed| (closed.stash.waiting(), closed.stash.bytes()))
    }

    /// The gate's position, where it leads (meaningless while held), and until when a refusing pod is left alone.
    pub(crate) fn position(&self, partition: u32) -> (Position, u32, u64, Option<Instant>) {
        let cell = self.cell(partition);
        let closed = Self::lock(cell);
        let retry_at = closed.as_ref().and_then(|closed| closed.retry_at);
        (cell.gate.position(), cell.slot.load(Relaxed), cell.epoch.load(Relaxed), retry_at)
    }

    /// Closes the gate: from here on, requests wait.
    pub fn stop(&self, partition: u32, cause: HoldCause) {
        let cell = self.cell(partition);
        let mut closed = Self::lock(cell);
        self.close(partition, cell, &mut closed, cause);
    }

    /// Says what holds the partition back, for the answers to those who wait too long.
    pub(crate) fn name_cause(&self, partition: u32, cause: HoldCause) {
        if let Some(closed) = Self::lock(self.cell(partition)).as_mut() {
            closed.cause = cause;
        }
    }

    /// Forgets that the pod refused: it may be tried at once.
    pub(crate) fn retry_now(&self, partition: u32) {
        if let Some(closed) = Self::lock(self.cell(partition)).as_mut() {
            closed.retry_at = None;
        }
    }

    fn close(&self, partition: u32, cell: &Cell, closed: &mut Option<Box<Closed>>, cause: HoldCause) {
        let was = cell.gate.position();
        let Some(stopped) = was.stopped() else {
            return;
        };
        let closed = closed.get_or_insert_with(|| Box::new(Closed::new(cause)));
        closed.cause = cause;
        if was == Position::Flushing {
            // The pod that it led to refused, or is the wrong one by now: the pause goes on until it leads to another.
            closed.switched_at = None;
        } else {
            closed.restart();
        }
        closed.stash.end_flush();
        cell.gate.set(stopped);
        self.settle(partition, cell, closed);
    }

    /// `Draining` → `Held` once nobody is inside.
    fn settle(&self, partition: u32, cell: &Cell, closed: &mut Closed) {
        if let Some(settled) = cell.gate.position().settled(self.in_flight(partition)) {
            cell.gate.set(settled);
            closed.drained_at.get_or_insert_with(Instant::now);
            self.notify(partition);
        }
    }

    /// Leads the partition to this pod and epoch and lets those who wait go first. The gate must be closed, and empty
    /// unless it led there already.
    pub(crate) fn switch(&self, partition: u32, slot: u32, epoch: u64) {
        let cell = self.cell(partition);
        let mut guard = Self::lock(cell);
        let leads_there = cell.slot.load(Relaxed) == slot && cell.epoch.load(Relaxed) == epoch;
        let Some(switched) = cell.gate.position().switched(leads_there) else {
            return;
        };
        cell.slot.store(slot, Relaxed);
        cell.epoch.store(epoch, Relaxed);
        let closed = guard.get_or_insert_with(|| Box::new(Closed::new(HoldCause::NoOwner)));
        let now = Instant::now();
        closed.retry_at = None;
        closed.drained_at.get_or_insert(now);
        closed.switched_at.get_or_insert(now);
        closed.stash.begin_flush(self.limits.flush_concurrency);
        cell.gate.set(switched);
        self.flush(partition, cell, closed);
    }

    /// Starts whoever may start, and opens the gate when nobody waits.
    fn flush(&self, partition: u32, cell: &Cell, closed: &mut Closed) {
        if cell.gate.position() != Position::Flushing {
            return;
        }
        let before = closed.stash.bytes();
        while let Some((place, waiter)) = closed.stash.start_next() {
            let inside = self.inside(waiter.worker, partition);
            cell.gate.admit(inside);
            if waiter.granted.send(()).is_err() {
                // It gave up at this very moment. The gate is not draining, so leaving needs no look.
                let _ = cell.gate.leave(inside);
                closed.stash.done(place);
            }
        }
        self.stashed_bytes.fetch_sub(before - closed.stash.bytes(), Relaxed);
        if let Some(open) = cell.gate.position().flushed(closed.stash.is_flushed()) {
            let now = Instant::now();
            closed.times = Some(closed.times_until(now));
            closed.bounces = 0;
            closed.stash.end_flush();
            cell.gate.set(open);
            self.notify(partition);
        }
    }

    /// How the cutover that ended last went; forgotten once asked for.
    pub(crate) fn take_times(&self, partition: u32) -> Option<CutoverTimes> {
        let cell = self.cell(partition);
        let mut guard = Self::lock(cell);
        let times = guard.as_mut()?.times.take();
        Self::forget(cell, &mut guard);
        times
    }

    /// Frees what is kept for a closed gate once it is open and nobody is interested any more.
    fn forget(cell: &Cell, closed: &mut Option<Box<Closed>>) {
        let over = |closed: &Closed| closed.times.is_none() && closed.stash.is_idle();
        if cell.gate.position() == Position::Open && closed.as_deref().is_some_and(over) {
            *closed = None;
        }
    }

    /// Ends every exchange of the partition; how many there were.
    pub fn sever(&self, partition: u32) -> u32 {
        let severed = self.in_flight(partition);
        // Before the tokens go: an exchange takes one only when it lasts, and sees by this that it comes too late.
        self.cell(partition).severs.fetch_add(1, SeqCst);
        for tokens in &self.severs {
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
        for partition in 0..self.partitions() {
            if let Some(closed) = Self::lock(self.cell(partition)).as_mut() {
                self.stashed_bytes.fetch_sub(closed.stash.bytes(), Relaxed);
                // Whoever waits sees its sender gone.
                drop(closed.stash.take_all());
            }
        }
    }

    fn notify(&self, partition: u32) {
        // Without a control side, as in a bench, nobody needs to know.
        let _ = self.notices.send(partition);
    }
}

impl Closed {
    fn new(cause: HoldCause) -> Self {
        Closed {
            stash: Stash::default(),
            cause,
            stopped_at: Instant::now(),
            drained_at: None,
            switched_at: None,
            stashed: 0,
            bounces: 0,
            retry_at: None,
            times: None,
        }
    }

    fn restart(&mut self) {
        self.stopped_at = Instant::now();
        self.drained_at = None;
        self.switched_at = None;
        self.stashed = 0;
        self.times = None;
    }

    fn times_until(&self, opened: Instant) -> CutoverTimes {
        let since_stop =
            |at: Option<Instant>| at.map_or(Duration::ZERO, |at| at.saturating_duration_since(self.stopped_at));
        CutoverTimes {
            stashed: self.stashed,
            drain: since_stop(self.drained_at),
            pause: since_stop(self.switched_at),
            flush: self.switched_at.map_or(Duration::ZERO, |at| opened.saturating_duration_since(at)),
        }
    }
}

/// What the request path needs of a partition, one operation each; [`Worker`](crate::ticket::Worker) gives it a face.
impl Table {
    /// Tries to pass the open gate. On success the caller is inside, and where the gate leads is returned.
    #[inline]
    pub(crate) fn try_pass(&self, worker: usize, partition: u32, now: Instant) -> Option<Way> {
        let cell = self.cell(partition);
        let inside = self.inside(worker, partition);
        if cell.gate.enter(inside) {
            let slot = cell.slot.load(Relaxed);
            if self.may_pass(slot, now) {
                return Some(cell.way());
            }
            self.leave(worker, partition);
            // The control side sees the same clock; this closes the gap until it has acted.
            self.stop(partition, HoldCause::Fenced);
            self.notify(partition);
            return None;
        }
        self.leave(worker, partition);
        None
    }

    /// Where the gate led when the caller was let in; for callers inside.
    pub(crate) fn leads_to(&self, partition: u32) -> Way {
        self.cell(partition).way()
    }

    /// Counts the caller out.
    #[inline]
    pub(crate) fn leave(&self, worker: usize, partition: u32) {
        let cell = self.cell(partition);
        if cell.gate.leave(self.inside(worker, partition)) && self.in_flight(partition) == 0 {
            let mut closed = Self::lock(cell);
            if let Some(closed) = closed.as_mut() {
                self.settle(partition, cell, closed);
            }
        }
    }

    /// Waits before the gate, unless it has opened meanwhile (`Ok(None)`: the caller is inside).
    pub(crate) fn wait(
        &self,
        worker: usize,
        partition: u32,
        order: Option<u64>,
        bytes: usize,
        now: Instant,
    ) -> Result<Option<(Place, oneshot::Receiver<()>)>, Refusal> {
        let cell = self.cell(partition);
        let mut guard = Self::lock(cell);
        if cell.gate.position() == Position::Open && self.may_pass(cell.slot.load(Relaxed), now) {
            cell.gate.admit(self.inside(worker, partition));
            return Ok(None);
        }
        if self.shutting_down.load(Relaxed) {
            return Err(Refusal::Shutdown);
        }
        if cell.gate.position() == Position::Open {
            self.close(partition, cell, &mut guard, HoldCause::Fenced);
        }
        let closed = guard.get_or_insert_with(|| Box::new(Closed::new(HoldCause::NoOwner)));
        let limits = &self.limits;
        if closed.stash.waiting() >= limits.max_requests || closed.stash.bytes() + bytes > limits.max_bytes {
            return Err(Refusal::Full);
        }
        if self.stashed_bytes.fetch_add(bytes, Relaxed) + bytes > limits.max_total_bytes {
            self.stashed_bytes.fetch_sub(bytes, Relaxed);
            return Err(Refusal::Full);
        }
        let (granted, grant) = oneshot::channel();
        let place = closed.stash.push(order, bytes, Waiter { worker, granted });
        closed.stashed += 1;
        self.flush(partition, cell, closed);
        Ok(Some((place, grant)))
    }

    /// Puts a request back that is inside and that no pod has acted on, and holds the partition: other requests
    /// would be refused as well, or overtake this one. `cause`: why it cannot go on, if not because its pod refused.
    pub(crate) fn put_back(
        &self,
        worker: usize,
        partition: u32,
        place: Option<Place>,
        order: Option<u64>,
        bytes: usize,
        cause: Option<HoldCause>,
    ) -> (Place, oneshot::Receiver<()>) {
        let cell = self.cell(partition);
        let (granted, grant) = oneshot::channel();
        let mut guard = Self::lock(cell);
        let was_passing = matches!(cell.gate.position(), Position::Open | Position::Flushing);
        self.close(partition, cell, &mut guard, cause.unwrap_or(HoldCause::NoOwner));
        let closed = guard.get_or_insert_with(|| Box::new(Closed::new(HoldCause::NoOwner)));
        if was_passing && cause.is_none() {
            let back_off = FIRST_BACK_OFF.saturating_mul(1 << closed.bounces.min(6)).min(LONGEST_BACK_OFF);
            closed.retry_at = Some(Instant::now() + back_off);
            closed.bounces += 1;
        }
        // Limits do not apply: it was let in before.
        self.stashed_bytes.fetch_add(bytes, Relaxed);
        let new_place = closed.stash.put_back(place, order, bytes, Waiter { worker, granted });
        if let Some(place) = place {
            closed.stash.done(place);
        }
        drop(guard);
        self.leave(worker, partition);
        self.notify(partition);
        (new_place, grant)
    }

    /// The outcome of a request that had waited is definite.
    pub(crate) fn done(&self, partition: u32, place: Place) {
        let cell = self.cell(partition);
        let mut guard = Self::lock(cell);
        if let Some(closed) = guard.as_mut() {
            closed.stash.done(place);
            self.flush(partition, cell, closed);
        }
        Self::forget(cell, &mut guard);
    }

    /// Takes a request out that waits no longer; why it was held. `None`: it has been let in.
    pub(crate) fn give_up(&self, partition: u32, place: Place) -> Option<HoldCause> {
        let cell = self.cell(partition);
        let mut guard = Self::lock(cell);
        let closed = guard.as_mut()?;
        let before = closed.stash.bytes();
        closed.stash.remove(place)?;
        self.stashed_bytes.fetch_sub(before - closed.stash.bytes(), Relaxed);
        let cause = closed.cause;
        self.flush(partition, cell, closed);
        Some(cause)
    }

    pub(crate) fn max_requests(&self) -> usize {
        self.limits.max_requests
    }

    pub(crate) fn max_wait(&self) -> Duration {
        self.limits.max_wait
    }

    pub(crate) fn is_shutting_down(&self) -> bool {
        self.shutting_down.load(Relaxed)
    }

    /// Cancelled when the partition's exchanges are severed, or since `began` were.
    pub(crate) fn sever_token(&self, worker: usize, partition: u32, began: u32) -> CancellationToken {
        let mut tokens = self.severs[worker].lock().unwrap_or_else(PoisonError::into_inner);
        if self.cell(partition).severs.load(SeqCst) != began {
            let token = CancellationToken::new();
            token.cancel();
            return token;
        }
        tokens.entry(partition).or_default().clone()
    }
}
