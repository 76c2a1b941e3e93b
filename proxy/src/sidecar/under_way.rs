//! The exchanges that are under way with the service, by their age.
//!
//! # Invariants
//!
//! * Numbers grow with time, so of a partition's exchanges the one with the least number is the oldest.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use segue_protocol::ids::PartitionId;
use tokio::time::Instant;

use crate::routing::request_summary::RequestSummary;

/// The number of an exchange.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ExchangeNumber(u64);

#[derive(Debug, Default)]
pub(super) struct Exchanges(Mutex<ByAge>);

#[derive(Debug, Default)]
struct ByAge {
    last: ExchangeNumber,
    exchanges: BTreeMap<ExchangeNumber, RunningExchange>,
}

#[derive(Debug)]
struct RunningExchange {
    /// `None` for a request without a key.
    partition: Option<PartitionId>,
    since: Instant,
    request: RequestSummary,
}

impl Exchanges {
    fn lock(&self) -> MutexGuard<'_, ByAge> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn begin(&self, partition: Option<PartitionId>, request: RequestSummary) -> ExchangeNumber {
        let exchange = RunningExchange { partition, since: Instant::now(), request };
        let mut by_age = self.lock();
        by_age.last.0 += 1;
        let number = by_age.last;
        by_age.exchanges.insert(number, exchange);
        number
    }

    /// Takes an exchange off the list. Returns how long it lasted.
    pub(super) fn end(&self, number: ExchangeNumber) -> Option<Duration> {
        // Freed after the lock has been released.
        let ended = self.lock().exchanges.remove(&number);
        ended.map(|exchange| exchange.since.elapsed())
    }

    /// Returns the oldest exchange of each partition that has any, and since when it has lasted.
    pub(super) fn oldest(&self) -> BTreeMap<PartitionId, (Instant, RequestSummary)> {
        let mut oldest = BTreeMap::new();
        for RunningExchange { partition, since, request } in self.lock().exchanges.values() {
            if let Some(partition) = partition {
                oldest.entry(*partition).or_insert_with(|| (*since, request.clone()));
            }
        }
        oldest
    }
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;

    #[test]
    fn the_oldest_of_a_partition_is_the_one_that_has_lasted_for_longest() {
        let exchanges = Exchanges::default();
        let [p0, p1] = [0, 1].map(PartitionId::new);
        let begin = |partition, path: &str| {
            exchanges.begin(Some(partition), RequestSummary::new(&Method::GET, &path.parse().unwrap(), ""))
        };
        let oldest = || {
            let paths = exchanges.oldest().into_iter();
            paths.map(|(partition, (_, request))| (partition, request.path().to_owned())).collect::<Vec<_>>()
        };
        let numbers = [begin(p0, "/a"), begin(p1, "/b"), begin(p0, "/c")];
        assert_eq!(oldest(), [(p0, "/a".to_owned()), (p1, "/b".to_owned())]);
        exchanges.end(numbers[0]);
        exchanges.end(numbers[1]);
        assert_eq!(oldest(), [(p0, "/c".to_owned())]);
        exchanges.end(numbers[2]);
        assert!(oldest().is_empty());
    }
}
