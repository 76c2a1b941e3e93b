//! Tells the log that the store does not answer: one line in half a minute for the whole process, whatever its roles try
//! meanwhile.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval};
use tracing::{info, warn};

use super::store::{OUTAGE_PATIENCE, StoreHealth};

/// Time between two lines about one outage.
const REPEAT: Duration = Duration::from_secs(30);
/// Time between two checks.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// The lines that were logged about an outage.
#[derive(Debug, Default)]
struct Outage {
    /// Since when the store is silent, and when that was told last.
    told: Option<(Instant, Instant)>,
}

/// A line that is due.
#[derive(Debug, PartialEq, Eq)]
enum OutageLine {
    Silent(Duration),
    Answers(Duration),
}

impl Outage {
    /// Returns the line that is due at `now`. `silent_since`: since when the store is silent, if it is.
    fn line(&mut self, silent_since: Option<Instant>, now: Instant) -> Option<OutageLine> {
        let Some(since) = silent_since else {
            let (since, _) = self.told.take()?;
            return Some(OutageLine::Answers(now - since));
        };
        let since = self.told.map_or(since, |(since, _)| since);
        let due = self.told.map_or(since + OUTAGE_PATIENCE, |(_, at)| at + REPEAT);
        if now < due {
            return None;
        }
        self.told = Some((since, now));
        Some(OutageLine::Silent(now - since))
    }
}

/// Tells of each outage, for as long as the process lives.
pub(crate) async fn tell_outages(health: Arc<StoreHealth>) {
    let (mut outage, mut looks) = (Outage::default(), interval(LOOK_INTERVAL));
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        looks.tick().await;
        let (since, error) = health.silence().unzip();
        match outage.line(since, Instant::now()) {
            None => {}
            Some(OutageLine::Silent(time)) => {
                let (time, error) = (time.as_secs(), error.flatten().unwrap_or_else(|| "no response".to_owned()));
                warn!(error, "the store has not answered for {time} s; next line in {} s", REPEAT.as_secs());
            }
            Some(OutageLine::Answers(time)) => info!("the store answers again, after {} s", time.as_secs()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_told_after_five_seconds_each_half_a_minute_and_at_its_end() {
        let (began, mut outage) = (Instant::now(), Outage::default());
        let seconds = Duration::from_secs;
        let mut lines = Vec::new();
        for second in 0..=70 {
            lines.extend(outage.line(Some(began), began + seconds(second)).map(|line| (second, line)));
        }
        let silent = |second| (second, OutageLine::Silent(seconds(second)));
        assert_eq!(lines, [silent(5), silent(35), silent(65)]);
        assert_eq!(outage.line(None, began + seconds(71)), Some(OutageLine::Answers(seconds(71))));
        assert_eq!(outage.line(None, began + seconds(72)), None);
        // A request that takes a moment is no outage.
        assert_eq!(outage.line(Some(began + seconds(73)), began + seconds(74)), None);
        assert_eq!(outage.line(None, began + seconds(75)), None);
    }
}
