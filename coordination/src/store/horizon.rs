//! A process's memory of its store, which [`HorizonStore`](super::HorizonStore) keeps and any participant reads.
//!
//! [`Horizon`] decides from the revisions of the responses whether the store went back.

use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use segue_protocol::horizon::{Horizon, RequestMoment, WentBack, ends_life};
use segue_protocol::ids::{Epoch, Revision};
use segue_protocol::view::View;
use tokio::sync::Notify;
use tracing::error;

use super::tap::Tap;

/// The part of a store that a process shares: how far its participants have seen the store, and where readers get
/// copies of what the participants follow. Clones refer to the same part.
#[derive(Debug, Clone, Default)]
pub struct SharedHorizon(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    horizon: Mutex<Horizon>,
    /// Wakes those who wait for the store to go back, in the order in which they began to wait, so that a simulation repeats.
    went_back: Notify,
    tap: Tap,
}

impl SharedHorizon {
    /// Returns how often the store went back.
    pub fn times(&self) -> u64 {
        self.lock().times()
    }

    /// Returns once the store has gone back more often than this. Cancel-safe.
    pub(crate) async fn beyond(&self, times: u64) {
        loop {
            let mut went_back = pin!(self.0.went_back.notified());
            // Enabled before the look, so that no change is missed.
            went_back.as_mut().enable();
            if self.times() > times {
                return;
            }
            went_back.await;
        }
    }

    /// Returns why a life ends that began under the floor `began`, if the view or what is remembered ends it. The view's floor
    /// is remembered.
    pub fn ends_life(&self, view: &View, began: Epoch) -> Option<&'static str> {
        let used = {
            let mut horizon = self.lock();
            horizon.saw_floor(view);
            horizon.used(view.keys())
        };
        ends_life(view, began, used)
    }

    /// Returns where readers of this process ask for copies of what its participants follow.
    pub(crate) fn tap(&self) -> &Tap {
        &self.0.tap
    }

    /// Locks the record.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Horizon> {
        // No method of the record panics half-way, so the record behind a poisoned lock is whole.
        self.0.horizon.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn answered(&self, asked: RequestMoment, revision: Revision) {
        let went_back = self.lock().answered(asked, revision);
        if let Some(WentBack { from, to }) = went_back {
            self.0.went_back.notify_waiters();
            error!(from = from.get(), to = to.get(), "the store went back; ending every life and raising epoch_floor");
        }
    }
}

/// Records the batches of a watch as they are read.
#[derive(Debug)]
pub(super) struct Observer {
    horizon: SharedHorizon,
    asked: RequestMoment,
}

impl Observer {
    pub(super) fn new(horizon: SharedHorizon, asked: RequestMoment) -> Self {
        Observer { horizon, asked }
    }

    pub(super) fn saw(&self, revision: Revision) {
        self.horizon.lock().saw(self.asked, revision);
    }
}
