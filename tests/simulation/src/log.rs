//! The durable log behind each partition, which outlives the pods that write to it, as a Kafka partition would.
//!
//! A write takes effect when it is appended. The log checks the epoch of a writer with the capability `fence` and
//! refuses one that is older than the newest epoch it knows. A writer without it is not checked: a late write of an old
//! owner lands, and the new owner, which has read the tail already, never sees it. That is how a write gets lost.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use segue_protocol::ids::{Epoch, PartitionId};

use crate::trace::Trace;

/// The logs of all partitions.
#[derive(Debug)]
pub(crate) struct Logs {
    logs: Vec<Mutex<Log>>,
    trace: Arc<Trace>,
}

#[derive(Debug, Default)]
struct Log {
    entries: Vec<Entry>,
    /// The newest epoch that a fencing writer has shown.
    fenced: Epoch,
    applied: BTreeSet<u64>,
    acked: BTreeSet<u64>,
    missed: BTreeSet<u64>,
}

#[derive(Debug)]
struct Entry {
    request: u64,
    /// Which life of which pod wrote it.
    writer: u64,
}

/// A writer of an older epoch is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fenced;

/// How a writer writes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Writer {
    /// Which life of which pod.
    pub(crate) id: u64,
    pub(crate) epoch: Epoch,
    pub(crate) fences: bool,
}

impl Logs {
    pub(crate) fn new(partitions: u32, trace: Arc<Trace>) -> Self {
        Logs { logs: (0..partitions).map(|_| Mutex::default()).collect(), trace }
    }

    /// Reads the whole log; from here on older epochs are refused, if the reader fences. How far it has read.
    pub(crate) fn read(&self, partition: PartitionId, writer: Writer) -> Result<usize, Fenced> {
        let mut log = self.log(partition);
        log.check(writer)?;
        Ok(log.entries.len())
    }

    /// How long the log is.
    pub(crate) fn len(&self, partition: PartitionId) -> usize {
        self.log(partition).entries.len()
    }

    /// Appends what `request` writes. `known`: how much of the log the writer's state holds; moved on.
    pub(crate) fn append(
        &self,
        partition: PartitionId,
        writer: Writer,
        request: u64,
        known: &mut usize,
    ) -> Result<(), Fenced> {
        let mut log = self.log(partition);
        log.check(writer)?;
        self.find_missed(&mut log, partition, writer, *known);
        log.entries.push(Entry { request, writer: writer.id });
        *known = log.entries.len();
        if !log.applied.insert(request) {
            self.trace
                .violation("no_double_apply", format!("request {request} was applied twice to partition {partition}"));
        }
        Ok(())
    }

    /// The writer serves: its state must hold whatever was acked.
    pub(crate) fn serves(&self, partition: PartitionId, writer: Writer, known: usize) {
        let mut log = self.log(partition);
        self.find_missed(&mut log, partition, writer, known);
    }

    /// A client was told that its write is done.
    pub(crate) fn acked(&self, partition: PartitionId, request: u64) {
        let mut log = self.log(partition);
        log.acked.insert(request);
        if !log.applied.contains(&request) {
            self.trace.violation("no_lost_request", format!("request {request} was acknowledged and never applied"));
        }
        if log.missed.contains(&request) {
            self.trace.violation(
                "no_lost_request",
                format!("request {request} is acknowledged, and the next owner lacks it"),
            );
        }
    }

    fn find_missed(&self, log: &mut Log, partition: PartitionId, writer: Writer, known: usize) {
        let others = log.entries.iter().skip(known).filter(|entry| entry.writer != writer.id);
        let missed: Vec<u64> = others.map(|entry| entry.request).collect();
        for request in missed {
            if log.missed.insert(request) && log.acked.contains(&request) {
                let epoch = writer.epoch;
                self.trace.violation(
                    "no_lost_request",
                    format!("request {request} was acknowledged and the owner of partition {partition} at epoch {epoch} lacks it"),
                );
            }
        }
    }

    fn log(&self, partition: PartitionId) -> MutexGuard<'_, Log> {
        self.logs[partition.index()].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Log {
    fn check(&mut self, writer: Writer) -> Result<(), Fenced> {
        if writer.fences {
            if writer.epoch < self.fenced {
                return Err(Fenced);
            }
            self.fenced = writer.epoch;
        }
        Ok(())
    }
}
