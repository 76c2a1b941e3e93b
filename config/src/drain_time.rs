//! How long the drain of a cutover takes at most, beside the phase that it has to end in.
//!
//! A router waits for `drain.timeout` and severs what is left. A sidecar then resets what it has towards its service, and its
//! acknowledgement goes through the store. If that outlasted `phase_timeout`, the handoff would be cancelled each time.
//!
//! Pure. Not here: which files belong together (`deployment`).

use std::time::Duration;

use segue_proxy::sidecar::UNREAD_TIMEOUT;

use crate::error::Wrong;
use crate::reader::ConfigReader;
use crate::units::show_duration;
use crate::validated::Config;

pub(crate) const DRAIN: &str = "router.drain.timeout";
pub(crate) const PHASE: &str = "coordinator.phase_timeout";

/// Time for acknowledgements to pass through the store.
const MARGIN: Duration = Duration::from_secs(2);

/// A drain that may outlast its phase.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Overrun {
    drain: Duration,
    phase: Duration,
}

impl Overrun {
    /// Returns the overrun, if there is one.
    pub(crate) fn of(drain: Duration, phase: Duration) -> Option<Self> {
        let overrun = Overrun { drain, phase };
        (overrun.sum() >= phase).then_some(overrun)
    }

    fn sum(self) -> Duration {
        self.drain.saturating_add(UNREAD_TIMEOUT).saturating_add(MARGIN)
    }

    fn what_follows() -> String {
        let (reset, margin) = (show_duration(UNREAD_TIMEOUT), show_duration(MARGIN));
        format!("{reset} until sidecars have reset what was severed and {margin} for acknowledgements")
    }

    /// Returns what is wrong with the drain, and what is expected. `origin`: of the phase's timeout.
    pub(crate) fn of_drain(self, origin: &str) -> (String, String) {
        let (drain, sum, phase) = (show_duration(self.drain), show_duration(self.sum()), show_duration(self.phase));
        let fact = format!(
            "{drain}, {} are together {sum}, which is not below {PHASE}, which is {phase} ({origin})",
            Self::what_follows()
        );
        let most = self.phase.checked_sub(UNREAD_TIMEOUT + MARGIN).filter(|most| !most.is_zero());
        let remedy = most.map_or_else(
            || format!("expected {PHASE} to be more than {sum}"),
            |most| format!("expected less than {}", show_duration(most)),
        );
        (fact, remedy)
    }

    /// Returns what is wrong with the phase, and what is expected. `origin`: of the drain's timeout.
    pub(crate) fn of_phase(self, origin: &str) -> (String, String) {
        let (drain, sum, phase) = (show_duration(self.drain), show_duration(self.sum()), show_duration(self.phase));
        let fact = format!(
            "{phase} is not above {DRAIN}, which is {drain} ({origin}), {}, which are together {sum}",
            Self::what_follows()
        );
        (fact, format!("expected more than {sum}"))
    }
}

/// Refuses a drain that may outlast its phase, where one file has both.
pub(crate) fn drain_fits_into_a_phase(r: &mut ConfigReader<'_>, config: &Config) {
    // `phase_timeout` is set once for all keyspaces, so the first keyspace's policy has it.
    let policy = config.keyspaces.first().and_then(|keyspace| keyspace.policy.as_ref());
    let Some((router, policy)) = config.router.as_ref().zip(policy) else { return };
    let Some(overrun) = Overrun::of(router.drain.timeout, policy.phase_timeout) else { return };
    if r.is_refused(DRAIN) || r.is_refused(PHASE) {
        return;
    }
    let (key, (fact, remedy)) = match r.is_given(DRAIN) {
        true => (DRAIN, overrun.of_drain(&r.origin(PHASE))),
        false => (PHASE, overrun.of_phase(&r.origin(DRAIN))),
    };
    r.report_value(key, Wrong::new(fact, remedy));
}
