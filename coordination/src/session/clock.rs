//! The clock of leases, which includes the time in which this machine was suspended.
//!
//! The store's lease runs on while its holder's machine sleeps, but `Instant` does not: CLOCK_MONOTONIC stops
//! meanwhile. The moments of a lease are therefore Instants on a clock that runs ahead of the monotonic one by as much
//! as CLOCK_BOOTTIME has. Without a suspension the two are the same, and under tokio's paused clock they are virtual. A
//! virtual machine that its host pauses may count neither; nothing here helps against that.

use std::cell::Cell;
use std::sync::OnceLock;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::time::Instant;

thread_local! {
    static VIRTUAL: Cell<Option<Virtual>> = const { Cell::new(None) };
}

/// A virtual clock in place of the machine's.
#[derive(Clone, Copy)]
struct Virtual {
    began: Instant,
    suspended: Duration,
}

/// Makes this thread count leases by tokio's clock, which may be paused. For simulations, whose participants all run on
/// one thread.
pub fn count_by_tokio() {
    VIRTUAL.set(Some(Virtual { began: Instant::now(), suspended: Duration::ZERO }));
}

/// Simulates a suspension of the machine that has just ended, for a thread that counts by tokio's clock.
pub fn suspend(duration: Duration) {
    VIRTUAL.set(VIRTUAL.get().map(|clock| Virtual { suspended: clock.suspended + duration, ..clock }));
}

/// Returns the time since a fixed moment in the past, suspensions included. It costs as much as reading `Instant`.
#[inline]
pub fn boottime() -> Duration {
    match VIRTUAL.get() {
        None => read(ClockId::Boottime),
        Some(clock) => clock.began.elapsed() + clock.suspended,
    }
}

/// Returns the present moment on the clock of leases.
pub fn lease_now() -> Instant {
    static FIRST: OnceLock<Duration> = OnceLock::new();
    // In this order: a process that is stopped between any two of these reads gets a moment within the call.
    let now = Instant::now();
    if let Some(clock) = VIRTUAL.get() {
        return now + clock.suspended;
    }
    let monotonic = read(ClockId::Monotonic);
    let suspended = read(ClockId::Boottime).saturating_sub(monotonic);
    let first = *FIRST.get_or_init(|| suspended);
    match suspended.checked_sub(first) {
        Some(since) => now + since,
        None => now - (first - suspended),
    }
}

/// Returns when tokio's clock will show what the lease's clock shows at `at`, if the machine is not suspended.
pub fn wakes_at(at: Instant) -> Instant {
    let now = Instant::now();
    now + at.saturating_duration_since(lease_now())
}

#[inline]
fn read(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    // Neither clock is ever negative.
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_suspension_moves_the_clock_of_leases_and_no_other() {
        count_by_tokio();
        let (now, leases, boot) = (Instant::now(), lease_now(), boottime());
        suspend(Duration::from_secs(60));
        assert_eq!(Instant::now(), now);
        assert_eq!(lease_now() - leases, Duration::from_secs(60));
        assert_eq!(boottime() - boot, Duration::from_secs(60));
        assert_eq!(wakes_at(leases), now, "it is past");
    }

    #[test]
    fn without_a_suspension_the_clock_of_leases_goes_with_the_monotonic_one() {
        let (before, leases, boot) = (Instant::now(), lease_now(), boottime());
        std::thread::sleep(Duration::from_millis(20));
        let (at_least, at_most) = (Duration::from_millis(20), before.elapsed() + Duration::from_secs(5));
        let (by_leases, by_boot) = (lease_now() - leases, boottime() - boot);
        assert!((at_least..at_most).contains(&by_leases) && (at_least..at_most).contains(&by_boot));
    }
}
