//! Looks now and then whether the store fills up because nobody compacts it, while a coordinator acts for the keyspace as a
//! whole. It reads alone: who else uses the store may need its history, so Segue never compacts.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use segue_protocol::ids::Revision;
use segue_protocol::keys::Keyspace;
use segue_protocol::planning::Notice;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tokio_util::task::AbortOnDropHandle;
use tracing::{Instrument as _, debug};

use crate::store::{Store, Usage};

/// Time between two looks.
const LOOK_INTERVAL: Duration = Duration::from_secs(600);
/// How long a revision may be readable before nobody is taken to compact. Until a process has seen for so long, that is decided by
/// the first revision of all.
const OLD: Duration = Duration::from_secs(24 * 3600);

/// Watches how full the store is, until this is dropped.
#[derive(Debug)]
pub(super) struct Upkeep {
    usage: watch::Receiver<Option<Usage>>,
    _task: AbortOnDropHandle<()>,
}

impl Upkeep {
    pub(super) fn start(store: Arc<dyn Store>, keys: &Keyspace) -> Self {
        let (sender, usage) = watch::channel(None);
        let task = tokio::spawn(run(store, keys.config(), sender).in_current_span());
        Upkeep { usage, _task: AbortOnDropHandle::new(task) }
    }

    /// Returns what the operator has to know.
    pub(super) fn notice(&self) -> Option<Notice> {
        let usage = (*self.usage.borrow()).filter(Usage::fills_up)?;
        Some(Notice::StoreFillsUp { bytes: usage.bytes, quota: usage.quota() })
    }
}

async fn run(store: Arc<dyn Store>, key: String, found: watch::Sender<Option<Usage>>) {
    let mut seen = RevisionTimes::default();
    loop {
        let now = Instant::now();
        match store.usage(&key, seen.oldest(now)).await {
            Ok(Some(usage)) => {
                seen.note(now, usage.revision);
                found.send_replace(Some(usage));
            }
            Ok(None) => {}
            Err(error) => debug!(%error, "the store does not tell how full it is"),
        }
        sleep(LOOK_INTERVAL).await;
    }
}

/// The revisions of the last day, each with when it was seen.
#[derive(Debug, Default)]
struct RevisionTimes(VecDeque<(Instant, Revision)>);

impl RevisionTimes {
    fn note(&mut self, now: Instant, revision: Revision) {
        self.0.push_back((now, revision));
    }

    /// Returns the newest revision that is old at `now`, and forgets those before it.
    fn oldest(&mut self, now: Instant) -> Revision {
        let is_old = |seen: Option<&(Instant, Revision)>| seen.is_some_and(|(at, _)| now - *at >= OLD);
        while is_old(self.0.get(1)) {
            self.0.pop_front();
        }
        self.0.front().filter(|first| is_old(Some(first))).map_or(Usage::FIRST, |(_, revision)| *revision)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_day_old_revision_is_asked_about_once_there_is_one() {
        let (began, mut seen) = (Instant::now(), RevisionTimes::default());
        assert_eq!(seen.oldest(began), Usage::FIRST);
        for hour in 0..50 {
            seen.note(began + Duration::from_secs(3600 * hour), Revision::new(100 + hour));
        }
        assert_eq!(seen.oldest(began + OLD - Duration::from_secs(1)), Usage::FIRST);
        assert_eq!(seen.oldest(began + OLD), Revision::new(100));
        assert_eq!(seen.oldest(began + OLD + Duration::from_secs(5400)), Revision::new(101));
    }
}
