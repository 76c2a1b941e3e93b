//! Whether a role that has reported to be ready has gone on since: `/ready` is read by another thread than the roles'.

use std::time::Duration;

use segue_coordination::session::lease_now;
use tokio::time::Instant;

/// How long a worker may have no turn. It has one every second.
const MAX_SILENCE: Duration = Duration::from_secs(10);

/// Returns why a participant that reports to be ready is not: nobody has noticed yet that its lease may have ended.
pub(super) fn of_lease(trusted_until: Option<Instant>) -> Result<(), String> {
    match trusted_until {
        Some(until) if until <= lease_now() => Err("the lease has not been renewed in time".to_owned()),
        _ => Ok(()),
    }
}

/// Returns why workers that have started are not ready. `silence` is that of the worker which is silent for longest.
pub(super) fn of_workers(silence: Option<Duration>) -> Result<(), String> {
    match silence {
        Some(silence) if silence > MAX_SILENCE => Err(format!("a worker thread hangs for {} s", silence.as_secs())),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_stops_without_a_word_is_not_ready() {
        assert_eq!(of_lease(None), Ok(()));
        assert_eq!(of_lease(Some(lease_now() + Duration::from_secs(60))), Ok(()));
        assert!(of_lease(Some(lease_now())).is_err());
        assert_eq!(of_workers(None), Ok(()));
        assert_eq!(of_workers(Some(Duration::from_secs(2))), Ok(()));
        assert_eq!(of_workers(Some(Duration::from_secs(12))), Err("a worker thread hangs for 12 s".to_owned()));
    }
}
