//! The timeline of a demo: the steps of the scenario, the cutovers with their pauses, and the leader.
//!
//! The parts of the cluster write it; the progress display and the report read it.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use segue_coordination::router::CutoverTimes;
use segue_protocol::ids::{Epoch, Incarnation, PartitionId};
use serde::Serialize;

use super::clock::{self, Nanos};
use super::history::WriteRecord;
use super::measure::{Distribution, Windows};

/// The timeline so far.
#[derive(Debug)]
pub struct Timeline {
    began: Nanos,
    events: Mutex<Events>,
}

/// The events so far.
#[derive(Debug, Default)]
pub struct Events {
    /// The steps. The last one may still be in progress.
    pub steps: Vec<ScenarioStep>,
    /// Every end of a hold.
    pub holds: Vec<HoldEnd>,
    /// Pods that were cut off, by name and incarnation, with the moment.
    pub crashed: HashMap<(String, Incarnation), Nanos>,
    /// The leading coordinator.
    pub leader: Option<String>,
    /// Number of handoffs in flight.
    pub in_flight: usize,
    /// Cancelled handoffs.
    pub cancelled: u64,
    /// The work after the load.
    pub closing: Option<&'static str>,
}

/// A step of the scenario.
#[derive(Debug, Clone, Serialize)]
pub struct ScenarioStep {
    /// The scenario of the step.
    pub scenario: &'static str,
    /// The event and its subject.
    pub what: String,
    /// The beginning, in milliseconds from the start of the load.
    pub at_ms: u64,
    /// How long it took until every partition had its owner; `None` if that did not happen.
    pub took_ms: Option<u64>,
    /// Number of partitions that changed their owner.
    pub handoffs: u64,
    /// How long partitions were held, each counted once per router.
    pub pause_us: Distribution,
    /// The same pauses in order of time, for the display.
    #[serde(skip)]
    pub pauses: Vec<Duration>,
}

/// The end of a hold of a partition in a router.
#[derive(Debug, Clone)]
pub struct HoldEnd {
    /// The router.
    pub router: u32,
    /// The partition.
    pub partition: PartitionId,
    /// The owner that the partition is routed to.
    pub pod: String,
    /// The epoch.
    pub epoch: Epoch,
    /// The kind of hold and its length.
    pub times: CutoverTimes,
    /// When it was known, slightly after the event.
    pub at: Nanos,
}

/// The kind of a hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HoldKind {
    /// The partition got its first owner.
    First,
    /// The partition moved between living pods.
    Cutover,
    /// The partition moved away from a pod that was cut off.
    Failover,
    /// The owner is the same: it refused for a moment, or a handoff was cancelled.
    None,
}

impl Default for Timeline {
    fn default() -> Self {
        Timeline { began: clock::now(), events: Mutex::default() }
    }
}

impl Timeline {
    /// Returns the events so far.
    pub fn events(&self) -> MutexGuard<'_, Events> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the time since the beginning.
    pub fn elapsed(&self) -> Duration {
        Duration::from_nanos(clock::now() - self.began)
    }

    /// Records the beginning of a step.
    pub fn begin(&self, scenario: &'static str, what: String) {
        let at_ms = self.elapsed().as_millis() as u64;
        let pause_us = Distribution::default();
        self.events().steps.push(ScenarioStep {
            scenario,
            what,
            at_ms,
            took_ms: None,
            handoffs: 0,
            pause_us,
            pauses: Vec::new(),
        });
    }

    /// Records the end of the last step. `settled` states that every partition has its owner.
    pub fn end(&self, settled: bool, seen: &WriteRecord) {
        let now = self.elapsed().as_millis() as u64;
        let mut events = self.events();
        let Some(began) = events.steps.last().map(|step| self.began + step.at_ms * 1_000_000) else { return };
        let changes: Vec<_> =
            changes(&events, seen).filter(|(hold, change, _)| hold.at >= began && change.moved()).collect();
        let moved: HashSet<(PartitionId, Epoch)> =
            changes.iter().map(|(hold, ..)| (hold.partition, hold.epoch)).collect();
        let pauses: Vec<Duration> = changes.iter().map(|(.., pause)| *pause).collect();
        let handoffs = moved.len() as u64;
        if let Some(step) = events.steps.last_mut() {
            step.took_ms = settled.then(|| now.saturating_sub(step.at_ms));
            step.handoffs = handoffs;
            step.pause_us = Distribution::of(pauses.iter().map(|pause| clock::nanos(*pause)));
            step.pauses = pauses;
        }
    }
}

impl HoldKind {
    /// Returns whether the partition has another owner than before.
    pub fn moved(self) -> bool {
        matches!(self, HoldKind::Cutover | HoldKind::Failover)
    }
}

/// Returns the kind of each hold, and how long it held the partition's requests. A router's first hold under an epoch
/// is the change of owner; later ones are not. After a crash a router tries the dead pod repeatedly, so the pause lasts
/// from the crash until no request waits.
pub fn changes<'events>(
    events: &'events Events,
    seen: &'events WriteRecord,
) -> impl Iterator<Item = (&'events HoldEnd, HoldKind, Duration)> {
    let mut newest = HashMap::new();
    events.holds.iter().map(move |hold| {
        let known: &mut Epoch = newest.entry((hold.router, hold.partition)).or_default();
        let is_new = hold.epoch > *known;
        *known = hold.epoch.max(*known);
        let pause = hold.times.pause;
        match seen.before.get(&(hold.partition, hold.epoch)) {
            _ if !is_new => (hold, HoldKind::None, pause),
            None => (hold, HoldKind::First, pause),
            Some(before) => match events.crashed.get(before) {
                // The pod may have been cut off later, when it no longer owned the partition.
                Some(crashed) if *crashed < hold.at => {
                    (hold, HoldKind::Failover, Duration::from_nanos(hold.at - crashed))
                }
                _ => (hold, HoldKind::Cutover, pause),
            },
        }
    })
}

/// Returns when partitions were held.
pub fn windows(events: &Events) -> Windows {
    let mut windows = Windows::new();
    for hold in &events.holds {
        let lasted = clock::nanos(hold.times.pause + hold.times.flush);
        windows.entry(hold.partition).or_default().push((hold.at.saturating_sub(lasted), hold.at));
    }
    windows
}

#[cfg(test)]
mod tests {

    use segue_protocol::ids::Revision;

    use super::*;

    const I7: Incarnation = Incarnation::registered_at(Revision::new(7));
    const I8: Incarnation = Incarnation::registered_at(Revision::new(8));
    const P1: PartitionId = PartitionId::new(1);

    fn hold(router: u32, epoch: u64, at: Nanos) -> HoldEnd {
        let times = CutoverTimes { pause: Duration::from_nanos(5), ..CutoverTimes::default() };
        HoldEnd { router, partition: P1, pod: "w".into(), epoch: epoch.into(), times, at }
    }

    #[test]
    fn a_cutover_stays_one_when_its_old_owner_is_cut_off_later() {
        let (mut events, mut seen) = (Events::default(), WriteRecord::default());
        seen.before.insert((P1, Epoch::new(2)), ("a".into(), I7));
        seen.before.insert((P1, Epoch::new(3)), ("b".into(), I8));
        events.crashed.insert(("a".into(), I7), 250);
        events.crashed.insert(("b".into(), I8), 260);
        events.holds = vec![hold(0, 1, 100), hold(0, 2, 200), hold(1, 2, 201), hold(0, 2, 210), hold(0, 3, 300)];
        let found: Vec<(HoldKind, u128)> =
            changes(&events, &seen).map(|(_, change, pause)| (change, pause.as_nanos())).collect();
        let expected = [
            (HoldKind::First, 5),
            (HoldKind::Cutover, 5),
            (HoldKind::Cutover, 5),
            (HoldKind::None, 5),
            (HoldKind::Failover, 40),
        ];
        assert_eq!(found, expected);
    }
}
