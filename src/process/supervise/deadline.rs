//! The time by which a service must be dead, on the clock that includes suspended time.
//!
//! Tokio's timers stop during a suspension, and registering a descriptor with its reactor requires unsafe code or a
//! deprecated call. A thread blocks on the timer instead.

use std::io;
use std::sync::Arc;
use std::thread;

use rustix::fd::OwnedFd;
use rustix::io::{read, retry_on_intr};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tokio::sync::oneshot;

/// A deadline that can be moved until it has passed. A new one never passes.
#[derive(Debug)]
pub(super) struct Deadline(Arc<OwnedFd>);

/// The notification that a [`Deadline`] has passed.
#[derive(Debug)]
pub(super) struct DeadlinePassed(oneshot::Receiver<()>);

impl Deadline {
    /// Returns a deadline and the notification that it has passed.
    pub(super) fn new() -> io::Result<(Deadline, DeadlinePassed)> {
        let timer = Arc::new(timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC)?);
        let (passed, is_passed) = oneshot::channel();
        let blocks = timer.clone();
        thread::Builder::new().name("deadline".to_owned()).spawn(move || {
            // Returns when the timer expires. A timer that cannot be read has to count as expired.
            let _ = retry_on_intr(|| read(&*blocks, &mut [0; size_of::<u64>()]));
            let _ = passed.send(());
        })?;
        Ok((Deadline(timer), DeadlinePassed(is_passed)))
    }

    /// Moves the deadline to `millis` of `CLOCK_BOOTTIME`.
    pub(super) fn set(&self, millis: u64) -> io::Result<()> {
        // Zero would disarm the timer.
        let millis = millis.max(1);
        let at = Timespec { tv_sec: (millis / 1000) as i64, tv_nsec: (millis % 1000 * 1_000_000) as i64 };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: at };
        timerfd_settime(&self.0, TimerfdTimerFlags::ABSTIME, &once)?;
        Ok(())
    }
}

impl DeadlinePassed {
    /// Returns once the deadline has passed.
    pub(super) async fn wait(&mut self) {
        let _ = (&mut self.0).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_deadline_passes_when_it_is_moved_into_the_past_and_not_before() {
        let (deadline, mut passed) = Deadline::new().unwrap();
        deadline.set(u64::from(u32::MAX) * 1000).unwrap();
        assert!(passed.0.try_recv().is_err());
        deadline.set(0).unwrap();
        passed.wait().await;
    }
}
