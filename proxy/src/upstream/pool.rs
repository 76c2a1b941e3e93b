//! Idle HTTP/1.1 connections of one worker to one pod.
//!
//! Last in, first out: a few connections stay warm, the others grow old and are closed. No lock: a pool belongs to one
//! worker. Not here: making connections ([`upstream`](super)).

use std::cell::RefCell;
use std::time::Duration;

use tokio::time::Instant;

use super::http1::Connection;
use crate::watch::Watch;

/// Idle connections older than this are closed: services close theirs after a minute or more, and a request that is
/// on its way at that moment is lost.
pub(super) const MAX_IDLE_AGE: Duration = Duration::from_secs(50);

pub(crate) struct Pool {
    idle: RefCell<Vec<Connection>>,
    max_idle: usize,
    idle_timeout: Duration,
    watch: Watch,
}

impl Pool {
    pub(super) fn new(max_idle: usize, idle_timeout: Duration, watch: Watch) -> Self {
        Pool { idle: RefCell::default(), max_idle, idle_timeout, watch }
    }

    /// A connection that is open, as far as can be told.
    pub(super) fn take(&self) -> Option<Connection> {
        let now = self.watch.now();
        let mut idle = self.idle.borrow_mut();
        std::iter::from_fn(|| idle.pop()).find_map(|mut connection| connection.is_open(now).then_some(connection))
    }

    pub(super) fn give_back(&self, connection: Connection) {
        let mut idle = self.idle.borrow_mut();
        if idle.len() < self.max_idle {
            idle.push(connection);
        }
    }

    /// Closes what has grown old or was closed by the pod.
    pub(super) fn sweep(&self) {
        let now = self.watch.now();
        self.idle.borrow_mut().retain_mut(|connection| {
            now.saturating_duration_since(connection.idle_since) < MAX_IDLE_AGE && connection.is_open(now)
        });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.idle.borrow().is_empty()
    }

    pub(super) fn now(&self) -> Instant {
        self.watch.now()
    }

    pub(super) fn idle_timeout(&self) -> Duration {
        self.idle_timeout
    }
}
