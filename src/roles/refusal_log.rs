//! Tells the log how many requests the router answers itself, by reason. The counters of the metrics are read now and then, so a
//! refusal costs its request nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use segue_coordination::repeats::Repeats;
use segue_proxy::message::local_reply::LocalReply;
use segue_proxy::metrics::Metrics;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tracing::{info, warn};

/// Time between two looks.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// The refusals that were counted so far.
#[derive(Debug, Default)]
struct Refusals {
    by_reason: BTreeMap<&'static str, CountedReason>,
}

#[derive(Debug, Default)]
struct CountedReason {
    counted: u64,
    repeats: Repeats,
}

/// A line that is due.
#[derive(Debug, PartialEq, Eq)]
struct RefusalLine {
    reason: &'static str,
    requests: u64,
    /// Whether the site is at fault: no client, and no router that ends.
    is_fault: bool,
}

impl Refusals {
    /// Returns the lines that are due at `now`. `count` returns how often the router has given a reply so far.
    fn lines(&mut self, count: impl Fn(LocalReply) -> u64, now: Instant) -> Vec<RefusalLine> {
        let mut counts: BTreeMap<&'static str, (u64, bool)> = BTreeMap::new();
        for reply in LocalReply::ALL.into_iter().filter(|reply| !reply.status().is_success()) {
            let counted = counts.entry(reply.reason()).or_default();
            counted.0 += count(reply);
            counted.1 |= reply.status().is_server_error() && reply != LocalReply::Shutdown;
        }
        let mut lines = Vec::new();
        for (reason, (counted, is_fault)) in counts {
            let before = self.by_reason.entry(reason).or_default();
            let new = counted.saturating_sub(std::mem::replace(&mut before.counted, counted));
            if new > 0
                && let Some(requests) = before.repeats.note(new, now)
            {
                lines.push(RefusalLine { reason, requests, is_fault });
            }
        }
        lines
    }
}

/// Tells of the refusals that these metrics count, until it is dropped.
pub(super) async fn tell_refusals(metrics: Metrics) {
    let (mut refusals, mut looks) = (Refusals::default(), interval(LOOK_INTERVAL));
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        looks.tick().await;
        for RefusalLine { reason, requests, is_fault } in
            refusals.lines(|reply| metrics.own_answers(reply), Instant::now())
        {
            match is_fault {
                true => warn!(reason, requests, "the router refuses requests"),
                false => info!(reason, requests, "the router refuses requests of clients"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_is_told_once_and_then_rarely_with_the_number_of_requests() {
        let (began, mut refusals) = (Instant::now(), Refusals::default());
        let line = |reason, requests, is_fault| RefusalLine { reason, requests, is_fault };
        assert_eq!(refusals.lines(|_| 0, began), []);
        let count = |no_owner, large| {
            move |reply| match reply {
                LocalReply::NoOwner => no_owner,
                LocalReply::HeadTooLarge | LocalReply::BodyTooLarge => large,
                _ => 0,
            }
        };
        assert_eq!(refusals.lines(count(3, 0), began), [line("no-owner", 3, true)]);
        let second = Duration::from_secs(1);
        assert_eq!(refusals.lines(count(7, 1), began + second), [line("limit", 2, false)]);
        assert_eq!(refusals.lines(count(9, 1), began + 10 * second), [line("no-owner", 6, true)]);
    }
}
