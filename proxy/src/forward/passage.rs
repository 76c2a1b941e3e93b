//! The right to send a request to its pod: a permit of its partition, or that of a request without a key, which may also go to
//! a service that is no pod.
//!
//! # Invariants
//!
//! * A request without a key is in no partition and has no epoch. It holds no place in a flush, and is never severed.

use std::sync::Arc;

use segue_protocol::ids::{Epoch, PartitionId};
use tokio_util::sync::CancellationToken;

use crate::message::headers::Stamp;
use crate::routing::permit::{KeylessPermit, Permit};
use crate::routing::request_summary::RequestSummary;
use crate::routing::table::{Pod, WorkerTraffic};

/// The right to send a request to its pod.
#[derive(Debug)]
pub(crate) enum Passage {
    /// By its partition.
    Owned(Permit),
    /// To any pod, or to a service that is none.
    Keyless(KeylessPermit),
}

impl Passage {
    fn permit(&self) -> Option<&Permit> {
        match self {
            Passage::Owned(permit) => Some(permit),
            Passage::Keyless(_) => None,
        }
    }

    #[inline]
    pub(super) fn pod(&self) -> &Arc<Pod> {
        match self {
            Passage::Owned(permit) => permit.pod(),
            Passage::Keyless(permit) => permit.pod(),
        }
    }

    #[inline]
    pub(super) fn traffic(&self) -> &WorkerTraffic {
        match self {
            Passage::Owned(permit) => permit.traffic(),
            Passage::Keyless(permit) => permit.traffic(),
        }
    }

    /// Returns the partition and the epoch.
    #[inline]
    pub(super) fn ownership(&self) -> Option<(PartitionId, Epoch)> {
        self.permit().map(|permit| (permit.partition(), permit.epoch()))
    }

    /// Returns what the pod is told of them.
    #[inline]
    pub(super) fn stamp(&self) -> Stamp {
        match self {
            Passage::Owned(permit) => Stamp::Partition(permit.partition(), permit.epoch()),
            Passage::Keyless(permit) if permit.pod().is_upstream => Stamp::Nothing,
            Passage::Keyless(_) => Stamp::NoPartition,
        }
    }

    /// Returns whether the request goes to a service that is no pod.
    #[inline]
    pub(super) fn is_outside(&self) -> bool {
        matches!(self, Passage::Keyless(permit) if permit.pod().is_upstream)
    }

    #[inline]
    pub(super) fn was_held(&self) -> bool {
        self.permit().is_some_and(Permit::was_held)
    }

    #[inline]
    pub(super) fn holds_place(&self) -> bool {
        self.permit().is_some_and(Permit::holds_place)
    }

    #[inline]
    pub(super) fn may_still_go(&self) -> bool {
        self.permit().is_none_or(Permit::may_still_go)
    }

    /// As [`Permit::lasts`].
    pub(super) fn lasts(&self, summary: impl FnOnce() -> Option<Arc<RequestSummary>>) -> CancellationToken {
        match self {
            Passage::Owned(permit) => permit.lasts(summary),
            Passage::Keyless(permit) => permit.sever_token(),
        }
    }

    #[inline]
    pub(super) fn sent(&self) {
        if let Some(permit) = self.permit() {
            permit.sent();
        }
    }

    pub(super) fn give_way(&self) {
        if let Some(permit) = self.permit() {
            permit.give_way();
        }
    }

    pub(super) fn streams(&self) {
        if let Some(permit) = self.permit() {
            permit.streams();
        }
    }

    #[inline]
    pub(super) fn delivered(&mut self) {
        if let Passage::Owned(permit) = self {
            permit.delivered();
        }
    }
}
