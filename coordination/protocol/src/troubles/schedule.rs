//! When a router writes its report into the store, and when it deletes it.

use std::time::Duration;

use crate::back_off::BackOff;
use crate::ids::Incarnation;
use crate::records::{RouterTroubles, TroubleKind};

/// The shortest time between two writes.
pub const WRITE_INTERVAL: Duration = Duration::from_secs(1);
/// The shortest time between two writes that differ in figures alone.
pub const FIGURES_INTERVAL: Duration = Duration::from_secs(5);
/// Pauses after writes that failed.
const RETRY: BackOff = BackOff { first: Duration::from_secs(1), longest: Duration::from_secs(30) };

/// A write of the report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReportStep {
    /// Put it.
    Put,
    /// Delete it: all is well.
    Delete,
}

/// The content of a report without its figures: the pods with their troubles, and whether nothing waits.
type Subjects = (Vec<(String, Incarnation, TroubleKind)>, bool);

/// The report of one life of a router, as it is in the store.
#[derive(Debug, Default)]
pub struct ReportSchedule {
    /// The content of the report in the store. `None` if there is none.
    stands: Option<Subjects>,
    /// When the next write may begin.
    not_before: Duration,
    /// When the next write of mere figures may begin.
    figures_not_before: Duration,
    failures: u32,
}

fn subjects(troubles: &RouterTroubles) -> Option<Subjects> {
    let is_empty = troubles.pods.is_empty() && troubles.held.is_empty();
    let mut pods: Vec<_> = troubles.pods.iter().map(|pod| (pod.pod_name.clone(), pod.incarnation, pod.kind)).collect();
    pods.sort();
    (!is_empty).then_some((pods, troubles.held.is_empty()))
}

impl ReportSchedule {
    /// Returns what is due at `now`, if anything is.
    pub fn due(&self, now: Duration, troubles: &RouterTroubles) -> Option<ReportStep> {
        if now < self.not_before {
            return None;
        }
        match subjects(troubles) {
            None => self.stands.is_some().then_some(ReportStep::Delete),
            says if says == self.stands && now < self.figures_not_before => None,
            Some(_) => Some(ReportStep::Put),
        }
    }

    /// Records that a write has ended at `now`. `succeeded` if it took place.
    pub fn written(&mut self, now: Duration, troubles: &RouterTroubles, succeeded: bool) {
        if !succeeded {
            self.failures = self.failures.saturating_add(1);
            self.not_before = now + RETRY.after(self.failures);
            // It may have taken place all the same.
            self.stands = self.stands.take().or(Some((Vec::new(), true)));
            return;
        }
        self.failures = 0;
        self.stands = subjects(troubles);
        self.not_before = now + WRITE_INTERVAL;
        self.figures_not_before = now + FIGURES_INTERVAL;
    }

    /// Returns whether a report may be in the store.
    pub fn stands(&self) -> bool {
        self.stands.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::PartitionId;
    use crate::records::HeldRequests;

    fn held(requests: u64) -> RouterTroubles {
        let held = HeldRequests { partition: PartitionId::new(1), requests, oldest_ms: 2000 };
        RouterTroubles { held: vec![held], held_requests: requests, ..RouterTroubles::default() }
    }

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn nothing_is_written_while_all_is_well() {
        assert_eq!(ReportSchedule::default().due(ms(9), &RouterTroubles::default()), None);
    }

    #[test]
    fn a_trouble_is_written_at_once_its_figures_now_and_then_and_its_end_a_second_later_at_the_earliest() {
        let mut schedule = ReportSchedule::default();
        assert_eq!(schedule.due(ms(0), &held(1)), Some(ReportStep::Put));
        schedule.written(ms(0), &held(1), true);
        assert_eq!(schedule.due(ms(4999), &held(2)), None);
        assert_eq!(schedule.due(ms(5000), &held(2)), Some(ReportStep::Put));
        schedule.written(ms(5000), &held(2), true);
        let well = RouterTroubles::default();
        assert_eq!([schedule.due(ms(5999), &well), schedule.due(ms(6000), &well)], [None, Some(ReportStep::Delete)]);
        schedule.written(ms(6000), &well, true);
        assert_eq!((schedule.due(ms(60_000), &well), schedule.stands()), (None, false));
    }

    #[test]
    fn a_store_that_refuses_is_asked_ever_more_rarely() {
        let mut schedule = ReportSchedule::default();
        let (mut now, mut pauses) = (ms(0), Vec::new());
        for _ in 0..8 {
            schedule.written(now, &held(1), false);
            let failed = now;
            while schedule.due(now, &held(1)).is_none() {
                now += ms(100);
            }
            pauses.push((now - failed).as_secs());
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30, 30]);
    }

    #[test]
    fn a_report_whose_write_failed_is_deleted_all_the_same() {
        let mut schedule = ReportSchedule::default();
        schedule.written(ms(0), &held(1), false);
        assert_eq!(schedule.due(ms(1000), &RouterTroubles::default()), Some(ReportStep::Delete));
    }
}
