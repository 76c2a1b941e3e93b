//! Time-outs and severing for exchanges, at almost no cost for exchanges that end at once.
//!
//! Nearly every exchange ends within a few milliseconds and needs no timer. So an exchange only enrols with its
//! worker's coarse timer, which ticks. What is still registered after two ticks is notified, and then takes a real
//! timer and waits for its partition to be severed. The timer is also a coarse clock.
//!
//! # Invariants
//!
//! * Every entry that was registered and not cancelled is notified.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::Waker;
use std::time::Duration;

use slab::Slab;
use tokio::time::{Instant, MissedTickBehavior};

/// One worker's coarse timer.
#[derive(Clone)]
pub(crate) struct CoarseTimer(Rc<Inner>);

struct Inner {
    tick: Duration,
    now: Cell<Instant>,
    count: Cell<u32>,
    registered: RefCell<Slab<(u32, TimerEntry)>>,
}

/// The receiver of a notification.
pub(crate) enum TimerEntry {
    /// Wake this task.
    Task(Waker),
    /// Call this.
    Call(Rc<dyn OnExpiry>),
}

/// A callback for an entry that has lasted.
pub(crate) trait OnExpiry {
    /// Is called when two ticks have passed.
    fn overdue(self: Rc<Self>);
}

/// The key of an entry. It is gone once the entry is notified or [cancelled](CoarseTimer::cancel).
#[derive(Debug, Clone, Copy)]
pub(crate) struct TimerKey {
    key: usize,
    since: u32,
}

impl CoarseTimer {
    pub(crate) fn new(tick: Duration) -> Self {
        CoarseTimer(Rc::new(Inner {
            tick,
            now: Cell::new(Instant::now()),
            count: Cell::new(0),
            registered: RefCell::default(),
        }))
    }

    /// Returns the time at the last tick.
    #[inline]
    pub(crate) fn now(&self) -> Instant {
        self.0.now.get()
    }

    /// Returns how far [`now`](Self::now) may lag on an idle thread.
    pub(crate) fn tick(&self) -> Duration {
        self.0.tick
    }

    #[inline]
    pub(crate) fn register(&self, whom: TimerEntry) -> TimerKey {
        let since = self.0.count.get();
        let key = self.0.registered.borrow_mut().insert((since, whom));
        TimerKey { key, since }
    }

    /// Returns whether the entry has been notified.
    #[inline]
    pub(crate) fn has_fired(&self, key: TimerKey) -> bool {
        self.0.count.get().wrapping_sub(key.since) >= 2
    }

    #[inline]
    pub(crate) fn cancel(&self, key: TimerKey) {
        if !self.has_fired(key) {
            self.0.registered.borrow_mut().try_remove(key.key);
        }
    }

    /// Sets the task to notify.
    #[inline]
    pub(crate) fn renew(&self, key: TimerKey, waker: &Waker) {
        if let Some((_, TimerEntry::Task(old))) = self.0.registered.borrow_mut().get_mut(key.key)
            && !old.will_wake(waker)
        {
            old.clone_from(waker);
        }
    }

    /// Ticks until `each`, which is called at every tick, returns `false`.
    pub(crate) async fn run(&self, mut each: impl FnMut() -> bool) {
        let mut ticks = tokio::time::interval(self.0.tick);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.advance(Instant::now());
            if !each() {
                break;
            }
        }
    }

    fn advance(&self, now: Instant) {
        self.0.now.set(now);
        let count = self.0.count.get().wrapping_add(1);
        self.0.count.set(count);
        let mut told = Vec::new();
        {
            let mut registered = self.0.registered.borrow_mut();
            let due = |(key, (since, _)): (usize, &(u32, TimerEntry))| (count.wrapping_sub(*since) >= 2).then_some(key);
            let keys: Vec<usize> = registered.iter().filter_map(due).collect();
            told.extend(keys.into_iter().map(|key| registered.remove(key).1));
        }
        // Outside the borrow: a notified entry may register again.
        for whom in told {
            match whom {
                TimerEntry::Task(waker) => waker.wake(),
                TimerEntry::Call(overdue) => overdue.overdue(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Told(Cell<u32>);

    impl OnExpiry for Told {
        fn overdue(self: Rc<Self>) {
            self.0.set(self.0.get() + 1);
        }
    }

    #[tokio::test]
    async fn only_what_lasts_for_two_ticks_is_told_and_only_once() {
        let timer = CoarseTimer::new(Duration::from_millis(10));
        let (stays, leaves) = (Rc::new(Told(Cell::new(0))), Rc::new(Told(Cell::new(0))));
        timer.register(TimerEntry::Call(stays.clone()));
        let key = timer.register(TimerEntry::Call(leaves.clone()));
        timer.advance(Instant::now());
        assert_eq!(stays.0.get(), 0);
        timer.cancel(key);
        timer.advance(Instant::now());
        timer.advance(Instant::now());
        assert_eq!((stays.0.get(), leaves.0.get()), (1, 0));
        assert!(timer.has_fired(key));
    }

    #[tokio::test]
    async fn withdrawing_late_does_not_evict_whoever_has_the_place_now() {
        let timer = CoarseTimer::new(Duration::from_millis(10));
        let first = timer.register(TimerEntry::Call(Rc::new(Told(Cell::new(0)))));
        timer.advance(Instant::now());
        timer.advance(Instant::now());
        let second = Rc::new(Told(Cell::new(0)));
        timer.register(TimerEntry::Call(second.clone()));
        timer.cancel(first);
        timer.advance(Instant::now());
        timer.advance(Instant::now());
        assert_eq!(second.0.get(), 1);
    }
}
