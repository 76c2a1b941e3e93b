//! Reports of the hooks' calls, for `/status`.
//!
//! # Invariants
//!
//! * A partition has at most one report: its callbacks run one at a time.
//! * A call that has succeeded or is no longer due leaves no report.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use segue_protocol::handoff::pod_reconcile::Callback;
use segue_protocol::ids::{Epoch, HandoffId, PartitionId};
use tokio::time::Instant;

use super::HookError;
use super::answer::HookProgress;
use crate::pod::HandoffContext;

/// A call that has not succeeded yet.
#[derive(Debug, Clone, PartialEq)]
pub struct HookReport {
    /// Which hook.
    pub callback: Callback,
    /// The handoff that the call is about.
    pub handoff: HandoffId,
    /// The epoch that the call is about.
    pub epoch: Epoch,
    /// Since when the call runs or, between two attempts, waits.
    pub since: Instant,
    /// Whether it runs.
    pub is_running: bool,
    /// The progress that the service last reported, from 0 to 1.
    pub progress: Option<f64>,
    /// The service's description of its progress.
    pub detail: Option<String>,
    /// Failures in a row.
    pub failures: u32,
    /// The last failure.
    pub failure: Option<String>,
}

/// The reports of all partitions. Clones refer to the same reports.
#[derive(Debug, Clone, Default)]
pub struct HookReports(Arc<Mutex<BTreeMap<PartitionId, HookReport>>>);

impl HookReports {
    /// Returns the present reports.
    pub fn all(&self) -> BTreeMap<PartitionId, HookReport> {
        self.lock().clone()
    }

    pub(super) fn begin(&self, callback: Callback, context: &HandoffContext) -> CallReport<'_> {
        let HandoffContext { partition, epoch, handoff, .. } = *context;
        let mut reports = self.lock();
        let before = reports.remove(&partition);
        let before = before.filter(|before| before.callback == callback && before.handoff == handoff);
        let (failures, failure) = before.map_or((0, None), |before| (before.failures, before.failure));
        let (since, is_running) = (Instant::now(), true);
        let report =
            HookReport { callback, handoff, epoch, since, is_running, progress: None, detail: None, failures, failure };
        reports.insert(partition, report);
        CallReport { reports: self, partition }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<PartitionId, HookReport>> {
        // A report is plain data: a panic elsewhere leaves none half-written.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A running call. Dropped when the call has succeeded or is no longer due.
#[derive(Debug)]
pub(super) struct CallReport<'a> {
    reports: &'a HookReports,
    partition: PartitionId,
}

impl CallReport<'_> {
    pub(super) fn says(&self, progress: &HookProgress) {
        if let Some(report) = self.reports.lock().get_mut(&self.partition) {
            (report.progress, report.detail) = (Some(progress.progress), progress.detail.clone());
        }
    }

    pub(super) fn end<T>(self, result: &Result<T, HookError>) {
        let Err(error) = result else { return };
        if let Some(report) = self.reports.lock().get_mut(&self.partition) {
            (report.is_running, report.since) = (false, Instant::now());
            (report.failures, report.failure) = (report.failures.saturating_add(1), Some(error.to_string()));
        }
    }
}

impl Drop for CallReport<'_> {
    fn drop(&mut self) {
        let mut reports = self.reports.lock();
        if reports.get(&self.partition).is_some_and(|report| report.is_running) {
            reports.remove(&self.partition);
        }
    }
}
