//! Idle HTTP/1.1 connections of one worker to one pod.
//!
//! Last in, first out: a few connections stay warm, the others grow old and are closed. No lock: a pool belongs to one
//! worker. Not here: making connections ([`upstream`](super)).

use std::cell::RefCell;

use tokio::time::Instant;

use crate::runtime::coarse_timer::CoarseTimer;

/// A connection that can wait for its next request.
pub(crate) trait Idle {
    /// Returns whether it is open, as far as can be told, and not too old at `now`.
    fn is_open(&mut self, now: Instant) -> bool;
}

pub(crate) struct Pool<C> {
    idle: RefCell<Vec<C>>,
    max_idle: usize,
    timer: CoarseTimer,
}

impl<C: Idle> Pool<C> {
    pub(super) fn new(max_idle: usize, timer: CoarseTimer) -> Self {
        Pool { idle: RefCell::default(), max_idle, timer }
    }

    /// Returns a connection that is open, as far as can be told.
    pub(super) fn take(&self) -> Option<C> {
        let now = self.timer.now();
        let mut idle = self.idle.borrow_mut();
        std::iter::from_fn(|| idle.pop()).find_map(|mut connection| connection.is_open(now).then_some(connection))
    }

    pub(super) fn give_back(&self, connection: C) {
        let mut idle = self.idle.borrow_mut();
        if idle.len() < self.max_idle {
            idle.push(connection);
        }
    }

    /// Closes connections that have grown too old or that the pod has closed.
    pub(super) fn sweep(&self) {
        let now = self.timer.now();
        self.idle.borrow_mut().retain_mut(|connection| connection.is_open(now));
    }

    /// Closes all connections. Returns their number.
    pub(super) fn clear(&self) -> usize {
        std::mem::take(&mut *self.idle.borrow_mut()).len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.idle.borrow().is_empty()
    }

    pub(super) fn now(&self) -> Instant {
        self.timer.now()
    }
}
