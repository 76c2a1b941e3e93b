//! The table's data: a cell for each partition, counters for each worker, and the router's lease.
//!
//! Not here: what changes a partition ([`cutover`](super::cutover)), and what requests do ([`admission`](super::admission)).
//!
//! # Invariants
//!
//! * Cells and counters are made before the number of partitions grows, so a checked number can always be looked up.
//! * The lease is trusted only as long as both of its clocks agree.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use segue_coordination::session::{boottime, lease_now};
use segue_protocol::ids::{Epoch, Incarnation, PartitionId};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::hold::ClosedGate;
use super::key_counts::KeyCounts;
use super::lasting::LastingExchanges;
use super::limits::{LimitsInForce, StashLimits, StashTotal};
use super::pods::{Pod, Pods};
use super::preconnect::PreconnectChannels;
use super::ready_pods::{ReadyPod, ReadyPods};
use super::route::GateRoute;
use crate::routing::gate::{AbortGeneration, Gate, GateState, Inside};
use crate::routing::segmented_vec::Segments;
use crate::routing::sync::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Mutex, MutexGuard};

#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct Cell {
    pub(super) gate: Gate,
    pub(super) slot: AtomicU32,
    pub(super) epoch: AtomicU64,
    /// `None` while the gate is open and nothing of the last cutover is kept.
    pub(super) closed: Mutex<Option<Box<ClosedGate>>>,
}

impl Cell {
    /// Returns where the gate leads. The caller is inside or holds the lock, so that this does not change meanwhile.
    #[inline]
    pub(super) fn route(&self, severs: AbortGeneration) -> GateRoute {
        GateRoute {
            slot: self.slot.load(Relaxed),
            epoch: Epoch::new(self.epoch.load(Relaxed)),
            severs,
            last_try: false,
        }
    }
}

/// A partition's state as the control side sees it.
pub(crate) struct PartitionSnapshot {
    pub(crate) position: GateState,
    /// The pod that it leads to; meaningless while the gate is closed.
    pub(crate) slot: u32,
    pub(crate) epoch: Epoch,
    /// When a pod that has refused may be tried again.
    pub(crate) retry_at: Option<Instant>,
    /// Whether requests are passed on. The gate may still be closed to newcomers.
    pub(crate) flows: bool,
}

/// The routing table of one router, shared by its workers.
pub struct Table {
    pub(super) cells: Segments<Cell>,
    pub(in crate::routing) partitions: AtomicU32,
    /// Cancelled once the number of partitions is known, or the router shuts down.
    pub(in crate::routing) known: CancellationToken,
    /// Number of requests that came before and have not entered yet.
    pub(super) early: AtomicUsize,
    pub(super) inside: Vec<Segments<Inside>>,
    /// For each worker, its exchanges that last.
    pub(super) lasting: Vec<Mutex<LastingExchanges>>,
    pub(super) key_counts: KeyCounts,
    pub(super) pods: Pods,
    pub(super) ready: ReadyPods,
    pub(super) expected: PreconnectChannels,
    pub(super) limits: LimitsInForce,
    /// Shared by the tables that share a total.
    pub(super) stashed_bytes: Arc<AtomicUsize>,
    /// Until when the router's lease may be trusted, by two clocks: nanoseconds since `base`, on tokio's clock, which tests
    /// pause, and nanoseconds of CLOCK_BOOTTIME, which also counts suspended time. Both have to agree.
    pub(super) trusted_until: AtomicU64,
    pub(super) trusted_until_boottime: AtomicU64,
    pub(super) base: Instant,
    pub(super) shutting_down: AtomicBool,
    /// Cancelled to sever requests without a key, which are in no partition.
    pub(in crate::routing) keyless: CancellationToken,
    pub(super) notices: mpsc::UnboundedSender<PartitionId>,
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
pub(super) fn whole_nanos(time: Duration) -> u64 {
    time.as_secs() * 1_000_000_000 + u64::from(time.subsec_nanos())
}

impl Table {
    /// Returns an empty table for so many workers, and the channel that names each partition that the control side has to look
    /// at because it drained, opened, or was refused by its pod.
    pub fn new(workers: usize, limits: StashLimits) -> (Arc<Self>, mpsc::UnboundedReceiver<PartitionId>) {
        Self::sharing(workers, limits, &StashTotal::default())
    }

    /// Does the same for a table whose `max_total_bytes` bounds what waits in all tables with this total.
    pub fn sharing(
        workers: usize,
        limits: StashLimits,
        total: &StashTotal,
    ) -> (Arc<Self>, mpsc::UnboundedReceiver<PartitionId>) {
        let (notices, noticed) = mpsc::unbounded_channel();
        let table = Arc::new(Table {
            cells: Segments::new(),
            partitions: AtomicU32::new(0),
            known: CancellationToken::new(),
            early: AtomicUsize::new(0),
            inside: (0..workers).map(|_| Segments::new()).collect(),
            lasting: (0..workers).map(|_| Mutex::default()).collect(),
            key_counts: KeyCounts::new(workers),
            pods: Pods::new(workers),
            ready: ReadyPods::default(),
            expected: PreconnectChannels::new(workers),
            limits: LimitsInForce::new(limits),
            stashed_bytes: total.0.clone(),
            trusted_until: AtomicU64::new(0),
            trusted_until_boottime: AtomicU64::new(0),
            base: Instant::now(),
            shutting_down: AtomicBool::new(false),
            keyless: CancellationToken::new(),
            notices,
        });
        (table, noticed)
    }

    /// Sets the limits for what is held from now on. Requests that wait keep their place and their time. One whose body
    /// still arrives is refused if the memory that it adds exceeds the new limits.
    pub fn set_limits(&self, limits: StashLimits) {
        self.limits.set(limits);
    }

    /// Returns the number of partitions, 0 until it has been read from the store.
    #[inline]
    pub fn partitions(&self) -> u32 {
        // Acquires the cells that were made before the number grew.
        self.partitions.load(Acquire)
    }

    /// Makes the partitions `0..partitions`; new ones are closed. Never shrinks.
    pub fn set_partitions(&self, partitions: u32) {
        self.cells.grow(partitions);
        self.inside.iter().for_each(|inside| inside.grow(partitions));
        // In one order with the counts of early requests.
        self.partitions.fetch_max(partitions, SeqCst);
        if partitions > 0 {
            self.known.cancel();
        }
    }

    /// Allows new requests until then, on the clock of [`lease_now`]. Afterwards only requests to pods that are safe without
    /// this router's lease pass.
    pub fn trust_until(&self, until: Instant) {
        // In this order, so that time that passes between the two reads shortens the trust.
        let boottime = boottime();
        let left = until.saturating_duration_since(lease_now());
        self.trusted_until_boottime.store(whole_nanos(boottime + left), Relaxed);
        self.trusted_until.store(self.nanos(until), Relaxed);
    }

    /// Returns the time on the table's clock: nanoseconds since it was made.
    #[inline]
    pub(crate) fn nanos(&self, at: Instant) -> u64 {
        whole_nanos(at.saturating_duration_since(self.base))
    }

    /// Returns the number of this incarnation of a pod at this address, the same one each time.
    pub(crate) fn intern_pod(
        &self,
        name: &str,
        incarnation: Incarnation,
        address: &str,
        serves_without_lease: bool,
    ) -> u32 {
        self.pods.intern(name, incarnation, address, serves_without_lease)
    }

    /// Returns the service at this address, which is no pod. It is counted as pods are.
    pub(crate) fn upstream(&self, address: &str) -> &Arc<Pod> {
        self.pod(self.pods.intern_upstream(address))
    }

    /// Returns all such services.
    pub(crate) fn upstreams(&self) -> impl Iterator<Item = &Arc<Pod>> {
        self.pods.upstreams()
    }

    /// Has every worker connect to the pod unless it is connected already, because requests will go there.
    pub(crate) fn expect(&self, slot: u32) {
        self.expected.tell(slot);
    }

    /// Returns the channel by which [`expect`](Self::expect) reaches the worker. To be taken once.
    pub(crate) fn expected(&self, worker: usize) -> Option<mpsc::UnboundedReceiver<u32>> {
        self.expected.take(worker)
    }

    pub(crate) fn pod(&self, slot: u32) -> &Arc<Pod> {
        self.pods.get(slot)
    }

    /// Sets the pods that requests without a key may go to, by their numbers and zones.
    pub(crate) fn set_ready_pods(&self, pods: &[(u32, Option<&str>)]) {
        self.ready.set(pods.iter().map(|(slot, zone)| (self.pod(*slot), *zone)));
    }

    /// Returns these pods.
    pub(crate) fn ready_pods(&self) -> Arc<[ReadyPod]> {
        self.ready.get()
    }

    pub(super) fn cell(&self, partition: PartitionId) -> &Cell {
        // Partitions are checked against `partitions()` before they get here, and cells are made before that grows.
        self.cells.get(partition.index()).expect("a partition of the keyspace")
    }

    /// Returns how many workers share the table.
    pub(in crate::routing) fn workers(&self) -> usize {
        self.inside.len()
    }

    pub(super) fn inside(&self, worker: usize, partition: PartitionId) -> &Inside {
        self.inside[worker].get(partition.index()).expect("a partition of the keyspace")
    }

    pub(super) fn lock(cell: &Cell) -> MutexGuard<'_, Option<Box<ClosedGate>>> {
        // The state is consistent between any two statements that can panic.
        cell.closed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the pods that partitions lead to or last led to, and those that got requests without a key.
    pub(crate) fn pods(&self) -> impl Iterator<Item = &Arc<Pod>> {
        let slots = PartitionId::all(self.partitions()).filter_map(|partition| self.slot(partition));
        let slots: BTreeSet<u32> = slots.chain(self.ready.asked()).collect();
        slots.into_iter().map(|slot| self.pod(slot))
    }

    /// Returns the number of the pod that the partition leads to or last led to.
    pub(super) fn slot(&self, partition: PartitionId) -> Option<u32> {
        let cell = self.cell(partition);
        // An epoch is written with the first switch.
        (cell.epoch.load(Relaxed) > 0).then(|| cell.slot.load(Relaxed))
    }

    /// Returns those among them that have refused too many requests or broken off too many responses in a row.
    pub fn outliers(&self) -> Vec<Arc<Pod>> {
        self.pods().filter(|pod| pod.health.is_outlier()).cloned().collect()
    }

    /// Returns how many requests of the partition are in flight.
    pub fn in_flight(&self, partition: PartitionId) -> u32 {
        (0..self.inside.len()).map(|worker| self.inside(worker, partition).count()).sum()
    }

    /// Returns how many requests have arrived for the partition. The number begins anew after 2^32.
    pub fn arrivals(&self, partition: PartitionId) -> u32 {
        let of_worker = |worker| self.inside(worker, partition).arrivals();
        (0..self.inside.len()).map(of_worker).fold(0, u32::wrapping_add)
    }

    /// Returns the pod that the partition leads to or last led to.
    pub fn leads_to(&self, partition: PartitionId) -> Option<&Arc<Pod>> {
        self.slot(partition).map(|slot| self.pod(slot))
    }

    /// Returns how many requests wait for the partition, and their bytes.
    pub fn stashed(&self, partition: PartitionId) -> (usize, usize) {
        Self::lock(self.cell(partition))
            .as_ref()
            .map_or((0, 0), |closed| (closed.state.stash().waiting(), closed.state.stash().bytes()))
    }

    /// Returns the partition's state.
    pub(crate) fn position(&self, partition: PartitionId) -> PartitionSnapshot {
        let cell = self.cell(partition);
        let closed = Self::lock(cell);
        PartitionSnapshot {
            position: cell.gate.position(),
            slot: cell.slot.load(Relaxed),
            epoch: Epoch::new(cell.epoch.load(Relaxed)),
            retry_at: closed.as_ref().and_then(|closed| closed.retry_at),
            flows: closed.as_ref().is_some_and(|closed| closed.flows()),
        }
    }

    pub(super) fn notify(&self, partition: PartitionId) {
        // Benchmarks have no control side that would receive it.
        let _ = self.notices.send(partition);
    }
}
