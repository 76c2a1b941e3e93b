//! What becomes of the copies, in words, and whether the site is a failure.
//!
//! Pure: the site is looked at elsewhere.
//!
//! # Invariants
//!
//! * A site of which one copy has ever been ready goes on, whatever its copies do.

use std::time::Duration;

use tokio::time::Instant;

/// How long the others may take after the first copy is ready.
const OTHERS_PATIENCE: Duration = Duration::from_secs(3);
/// Time after which a copy that does not listen deserves a hint.
const HINT_AFTER: Duration = Duration::from_secs(5);

/// A copy of the service, as it is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CopyPhase {
    pub(super) name: String,
    pub(super) port: u16,
    pub(super) state: CopyState,
}

/// The state of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CopyState {
    /// It is being started.
    Starts,
    /// It runs, and its pod is not ready.
    Runs,
    /// Its pod is ready.
    Ready { pid: Option<u32>, owns: usize },
    /// It has ended by itself, so often in a row, and will be started again.
    Ended { code: u8, failures: u32, again: Instant },
}

/// Why no copy serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SiteFailure {
    /// Every copy has ended; the code is that of the first.
    Ended { code: u8 },
    /// None listens on its port after this time.
    Silent { after: Duration },
}

/// What was told of a site.
#[derive(Debug)]
pub(super) struct SiteReport {
    began: Instant,
    start_timeout: Duration,
    copies: Vec<ToldCopy>,
    /// When the first copy was ready.
    ready_since: Option<Instant>,
    is_welcomed: bool,
    is_hinted: bool,
}

#[derive(Debug, Clone, Default)]
struct ToldCopy {
    state: Option<CopyState>,
    /// The code of its last end.
    code: Option<u8>,
    was_ready: bool,
}

impl SiteReport {
    /// Returns the report of a site that begins now.
    pub(super) fn new(copies: usize, start_timeout: Duration, now: Instant) -> Self {
        SiteReport {
            began: now,
            start_timeout,
            copies: vec![ToldCopy::default(); copies],
            ready_since: None,
            is_welcomed: false,
            is_hinted: false,
        }
    }

    /// Takes the copies as they are now. Returns what there is to say of them. Before a copy has ever been ready, an end is
    /// told only when the copy starts again: it may be the end of the site.
    pub(super) fn note(&mut self, copies: &[CopyPhase], now: Instant) -> Vec<String> {
        let mut lines = Vec::new();
        let (moves, is_up) = (copies.len() > 1, self.ready_since.is_some());
        for (CopyPhase { name, state, .. }, told) in copies.iter().zip(&mut self.copies) {
            let before = told.state.replace(*state);
            match (*state, before) {
                (CopyState::Ended { code, failures, again }, before) if before != Some(*state) => {
                    told.code = Some(code);
                    let held = match (std::mem::take(&mut told.was_ready), moves) {
                        (true, true) => ": its partitions move; it",
                        (true, false) => ": its requests wait; it",
                        (false, _) => "; it",
                    };
                    if is_up {
                        let pause = again.saturating_duration_since(now).as_secs_f64().ceil().max(1.0);
                        let end = end_in_words(code, failures);
                        lines.push(format!("{name} {end}{held} restarts in {pause} s"));
                    }
                }
                (CopyState::Starts | CopyState::Runs, Some(CopyState::Ended { code, failures, .. })) if !is_up => {
                    lines.push(format!("{name} {}; starting it again", end_in_words(code, failures)));
                }
                (CopyState::Ready { pid, .. }, _) if !told.was_ready => {
                    told.was_ready = true;
                    self.ready_since.get_or_insert(now);
                    if self.is_welcomed {
                        let pid = pid.map(|pid| format!(", with pid {pid}")).unwrap_or_default();
                        lines.push(format!("{name} is ready{pid}"));
                    }
                }
                (CopyState::Starts | CopyState::Runs, _) if told.was_ready => {
                    told.was_ready = false;
                    lines.push(format!("{name} is not ready any more"));
                }
                _ => {}
            }
        }
        lines.extend(self.hint(copies, now));
        lines
    }

    /// Returns what to look for if copies run and do not listen on their ports.
    fn hint(&mut self, copies: &[CopyPhase], now: Instant) -> Option<String> {
        if self.is_hinted || self.ready_since.is_some() || now < self.began + HINT_AFTER {
            return None;
        }
        let CopyPhase { name, port, .. } = copies.iter().find(|copy| copy.state == CopyState::Runs)?;
        self.is_hinted = true;
        Some(format!("{name} does not listen on port {port} yet; does it use {{port}} or $PORT?"))
    }

    /// Returns why no copy serves, if that is so and is not going to change.
    pub(super) fn failure(&self, now: Instant) -> Option<SiteFailure> {
        if self.ready_since.is_some() {
            return None;
        }
        let codes: Vec<u8> = self.copies.iter().filter_map(|copy| copy.code).collect();
        if let Some(code) = codes.first().filter(|_| codes.len() == self.copies.len()) {
            return Some(SiteFailure::Ended { code: *code });
        }
        (now >= self.began + self.start_timeout).then_some(SiteFailure::Silent { after: self.start_timeout })
    }

    /// Returns whether the user is to be told now, this once, what there is.
    pub(super) fn is_time_to_welcome(&mut self, now: Instant) -> bool {
        let Some(since) = self.ready_since.filter(|_| !self.is_welcomed) else { return false };
        let owns = |copy: &ToldCopy| matches!(copy.state, Some(CopyState::Ready { owns: 1.., .. }));
        self.is_welcomed = self.copies.iter().all(owns) || now >= since + OTHERS_PATIENCE;
        self.is_welcomed
    }
}

/// Returns how a service has ended that had this exit code, as shells report it, and how often in a row.
pub(super) fn end_in_words(code: u8, times: u32) -> String {
    let end = one_end_in_words(code);
    if times > 1 { format!("{end} ({times} times in a row)") } else { end }
}

fn one_end_in_words(code: u8) -> String {
    const SIGNALS: [(u8, &str); 7] =
        [(1, "HUP"), (2, "INT"), (3, "QUIT"), (6, "ABRT"), (9, "KILL"), (11, "SEGV"), (15, "TERM")];
    match code.checked_sub(128).filter(|signal| (1..=64).contains(signal)) {
        None => format!("exited with code {code}"),
        Some(signal) => match SIGNALS.iter().find(|(known, _)| *known == signal) {
            Some((_, name)) => format!("was killed (SIG{name})"),
            None => format!("was killed (signal {signal})"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READY: CopyState = CopyState::Ready { pid: Some(7), owns: 1 };

    fn site(copies: usize) -> (SiteReport, Instant) {
        let now = Instant::now();
        (SiteReport::new(copies, Duration::from_secs(60), now), now)
    }

    fn copies<const N: usize>(states: [CopyState; N]) -> Vec<CopyPhase> {
        let copy =
            |(number, state): (u16, CopyState)| CopyPhase { name: format!("dev-{number}"), port: 8080 + number, state };
        (1..).zip(states).map(copy).collect()
    }

    fn ended(code: u8, failures: u32, again: Instant) -> CopyState {
        CopyState::Ended { code, failures, again }
    }

    #[test]
    fn a_death_and_a_return_are_told_once_each() {
        let (mut report, now) = site(2);
        assert_eq!(report.note(&copies([READY, READY]), now), [""; 0]);
        assert!(report.is_time_to_welcome(now) && !report.is_time_to_welcome(now));
        let killed = ended(137, 1, now + Duration::from_millis(990));
        let told = report.note(&copies([killed, READY]), now);
        assert_eq!(told, ["dev-1 was killed (SIGKILL): its partitions move; it restarts in 1 s"]);
        assert!(format!("segue | {}", told[0]).len() <= 80);
        assert_eq!(report.note(&copies([killed, READY]), now), [""; 0]);
        let again = ended(1, 2, now + Duration::from_secs(2));
        let told = report.note(&copies([again, READY]), now);
        assert_eq!(told, ["dev-1 exited with code 1 (2 times in a row); it restarts in 2 s"]);
        assert_eq!(report.note(&copies([CopyState::Runs, READY]), now), [""; 0]);
        assert_eq!(report.note(&copies([READY, READY]), now), ["dev-1 is ready, with pid 7"]);
        assert_eq!(report.note(&copies([CopyState::Runs, READY]), now), ["dev-1 is not ready any more"]);
        assert_eq!(report.failure(now + Duration::from_secs(600)), None);
    }

    #[test]
    fn an_end_that_may_be_that_of_the_site_is_told_when_the_copy_starts_again() {
        let (mut report, now) = site(2);
        let end = ended(1, 1, now + Duration::from_secs(1));
        assert_eq!(report.note(&copies([end, CopyState::Runs]), now), [""; 0]);
        let told = report.note(&copies([CopyState::Runs, CopyState::Runs]), now);
        assert_eq!(told, ["dev-1 exited with code 1; starting it again"]);
    }

    #[test]
    fn a_site_is_a_failure_once_every_copy_has_ended_and_none_was_ready() {
        let (mut report, now) = site(2);
        let end = ended(1, 1, now + Duration::from_secs(1));
        report.note(&copies([end, CopyState::Runs]), now);
        assert_eq!(report.failure(now), None);
        report.note(&copies([CopyState::Runs, ended(2, 1, now)]), now);
        assert_eq!(report.failure(now), Some(SiteFailure::Ended { code: 1 }));
        let (mut report, now) = site(1);
        report.note(&copies([READY]), now);
        report.note(&copies([end]), now);
        assert_eq!(report.failure(now), None, "it was ready once");
    }

    #[test]
    fn a_port_that_does_not_open_is_told_and_then_a_failure() {
        let (mut report, now) = site(1);
        let runs = copies([CopyState::Runs]);
        assert_eq!(report.note(&runs, now), [""; 0]);
        let told = report.note(&runs, now + HINT_AFTER);
        assert!(told[0].contains("dev-1 does not listen on port 8081"), "{told:?}");
        assert!(format!("segue | {}", told[0]).len() <= 80);
        assert_eq!(report.note(&runs, now + HINT_AFTER), [""; 0]);
        assert_eq!(report.failure(now + Duration::from_secs(59)), None);
        let after = Duration::from_secs(60);
        assert_eq!(report.failure(now + after), Some(SiteFailure::Silent { after }));
    }

    #[test]
    fn the_welcome_waits_for_partitions_of_all_but_not_for_ever() {
        let (mut report, now) = site(2);
        report.note(&copies([READY, CopyState::Runs]), now);
        assert!(!report.is_time_to_welcome(now));
        report.note(&copies([READY, CopyState::Ready { pid: None, owns: 0 }]), now);
        assert!(!report.is_time_to_welcome(now));
        assert!(report.is_time_to_welcome(now + OTHERS_PATIENCE));
    }

    #[test]
    fn an_end_is_told_as_shells_report_it() {
        assert_eq!(end_in_words(0, 1), "exited with code 0");
        assert_eq!(end_in_words(137, 1), "was killed (SIGKILL)");
        assert_eq!(end_in_words(128 + 31, 2), "was killed (signal 31) (2 times in a row)");
        assert_eq!(end_in_words(255, 1), "exited with code 255");
    }
}
