//! Tells the log why roles of this process are not ready: each change once at `info`, and what lasts at `warn`.
//!
//! The reasons are those of `/ready`.

use std::sync::Arc;
use std::time::Duration;

use segue_coordination::repeats::{RepeatedCauses, Repeats};
use tokio::time::{Instant, MissedTickBehavior, interval};
use tracing::{Span, info, warn};

use crate::admin::StatusSource;

/// Time between two looks.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// How long a role may not be ready before that is a warning.
const PATIENCE: Duration = Duration::from_secs(10);

/// What was told of a role.
#[derive(Debug, Default)]
struct RoleReadiness {
    not_ready: Option<Lack>,
    reasons: RepeatedCauses,
}

/// The time for which a role has not been ready.
#[derive(Debug)]
struct Lack {
    since: Instant,
    reason: String,
    warnings: Repeats,
}

/// A line that is due.
#[derive(Debug, PartialEq, Eq)]
enum ReadinessLine {
    Changed(String),
    Lasts(Duration, String),
    Ready(Duration),
}

impl RoleReadiness {
    /// Returns the line that is due at `now`, when the role is as `state` says.
    fn line(&mut self, state: Result<(), String>, now: Instant) -> Option<ReadinessLine> {
        let Err(reason) = state else {
            let lack = self.not_ready.take()?;
            return Some(ReadinessLine::Ready(now - lack.since));
        };
        let new = || Lack { since: now, reason: String::new(), warnings: Repeats::default() };
        let lack = self.not_ready.get_or_insert_with(new);
        // A reason may count: seconds, attempts.
        let words = |reason: &str| reason.replace(|c: char| c.is_ascii_digit(), "");
        let is_new = words(&lack.reason) != words(&reason);
        lack.reason.clone_from(&reason);
        let lasts = now - lack.since;
        if lasts >= PATIENCE && lack.warnings.note(1, now).is_some() {
            return Some(ReadinessLine::Lasts(lasts, reason));
        }
        let is_due = is_new && self.reasons.note(&words(&reason), now).is_some();
        is_due.then_some(ReadinessLine::Changed(reason))
    }
}

/// Tells of these roles, each in the span of its keyspace, until it is dropped.
pub(super) async fn tell_readiness(roles: Vec<(Span, Arc<dyn StatusSource>)>) {
    let mut looks = interval(LOOK_INTERVAL);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut roles: Vec<_> = roles.into_iter().map(|(span, role)| (span, role, RoleReadiness::default())).collect();
    loop {
        looks.tick().await;
        for (span, source, readiness) in &mut roles {
            let role = source.name();
            let Some(line) = readiness.line(source.ready(), Instant::now()) else { continue };
            span.in_scope(|| match line {
                ReadinessLine::Changed(reason) => info!(role, reason, "not ready"),
                ReadinessLine::Lasts(time, reason) => {
                    warn!(role, reason, "has not been ready for {} s", time.as_secs());
                }
                ReadinessLine::Ready(after) => info!(role, "ready after {} s", after.as_secs()),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn each_reason_is_told_once_and_what_lasts_is_a_warning() {
        let (began, mut role) = (Instant::now(), RoleReadiness::default());
        let mut lines = Vec::new();
        for second in 0..=100 {
            let reason =
                if second < 3 { "not registered".to_owned() } else { format!("the store is away for {second} s") };
            lines.extend(role.line(Err(reason), began + seconds(second)).map(|line| (second, line)));
        }
        let away = |second| format!("the store is away for {second} s");
        let lasts = |second| (second, ReadinessLine::Lasts(seconds(second), away(second)));
        let changed = |second, reason: String| (second, ReadinessLine::Changed(reason));
        assert_eq!(lines, [changed(0, "not registered".into()), changed(3, away(3)), lasts(10), lasts(20), lasts(80)]);
        assert_eq!(role.line(Ok(()), began + seconds(101)), Some(ReadinessLine::Ready(seconds(101))));
        assert_eq!(role.line(Ok(()), began + seconds(102)), None);
    }
}
