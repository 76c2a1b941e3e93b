//! The course of a demo: the steps of the scenario, the cutovers with their pauses, and the leading coordinator.
//!
//! The parts of the cluster write to the story; the progress display and the report read it.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use segue_coordination::router::CutoverTimes;
use segue_protocol::ids::{Epoch, Incarnation, PartitionId};
use serde::Serialize;

use super::clock::{self, Nanos};
use super::measure::{Distribution, Windows};
use super::witness::Seen;

/// The story so far.
#[derive(Debug)]
pub struct Story {
    began: Nanos,
    told: Mutex<Told>,
}

/// The content of a story.
#[derive(Debug, Default)]
pub struct Told {
    /// The steps. The last one may still be in progress.
    pub steps: Vec<Step>,
    /// The holds that have ended.
    pub holds: Vec<Hold>,
    /// Times at which pods crashed, by name and incarnation.
    pub crashed: HashMap<(String, Incarnation), Nanos>,
    /// The leading coordinator.
    pub leader: Option<String>,
    /// Number of handoffs in flight.
    pub in_flight: usize,
    /// Number of cancelled handoffs.
    pub cancelled: u64,
    /// The work in progress after the load.
    pub closing: Option<&'static str>,
}

/// A step of the scenario.
#[derive(Debug, Clone, Serialize)]
pub struct Step {
    /// The scenario that the step belongs to.
    pub scenario: &'static str,
    /// Description of the step.
    pub what: String,
    /// Start of the step, in milliseconds from the start of the story.
    pub at_ms: u64,
    /// Time until the cluster was settled again, in milliseconds. `None` if it is not settled, or was not in time.
    pub took_ms: Option<u64>,
    /// Number of partitions that changed their owner.
    pub handoffs: u64,
    /// Pauses of the partitions that changed their owner, one for each router.
    pub pause_us: Distribution,
    /// The same pauses in order of time, for the display.
    #[serde(skip)]
    pub pauses: Vec<Duration>,
}

/// A hold that has ended: a router held a partition, and its requests flow again.
#[derive(Debug, Clone)]
pub struct Hold {
    /// Number of the router.
    pub router: u32,
    /// The partition.
    pub partition: PartitionId,
    /// The pod that gets the requests now.
    pub pod: String,
    /// The epoch of that pod.
    pub epoch: Epoch,
    /// Times of the cutover.
    pub times: CutoverTimes,
    /// Time at which the end of the hold was reported, a little after the fact.
    pub at: Nanos,
}

/// The change of owner behind a hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// The partition got its first owner.
    First,
    /// The partition moved from one living pod to another.
    Cutover,
    /// The partition moved away from a pod that had crashed.
    Failover,
    /// The owner is the same. It refused for a moment, or a handoff was cancelled.
    None,
}

impl Default for Story {
    fn default() -> Self {
        Story { began: clock::now(), told: Mutex::default() }
    }
}

impl Story {
    /// Returns the content so far, locked.
    pub fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the time since the story began.
    pub fn elapsed(&self) -> Duration {
        Duration::from_nanos(clock::now() - self.began)
    }

    /// Begins a step.
    pub fn begin(&self, scenario: &'static str, what: String) {
        let at_ms = self.elapsed().as_millis() as u64;
        let pause_us = Distribution::default();
        self.told().steps.push(Step {
            scenario,
            what,
            at_ms,
            took_ms: None,
            handoffs: 0,
            pause_us,
            pauses: Vec::new(),
        });
    }

    /// Ends the last step. `settled` tells whether the cluster was settled in time.
    pub fn end(&self, settled: bool, seen: &Seen) {
        let now = self.elapsed().as_millis() as u64;
        let mut told = self.told();
        let Some(began) = told.steps.last().map(|step| self.began + step.at_ms * 1_000_000) else { return };
        let changes: Vec<_> =
            changes(&told, seen).filter(|(hold, change, _)| hold.at >= began && change.moved()).collect();
        let moved: HashSet<(PartitionId, Epoch)> =
            changes.iter().map(|(hold, ..)| (hold.partition, hold.epoch)).collect();
        let pauses: Vec<Duration> = changes.iter().map(|(.., pause)| *pause).collect();
        let handoffs = moved.len() as u64;
        if let Some(step) = told.steps.last_mut() {
            step.took_ms = settled.then(|| now.saturating_sub(step.at_ms));
            step.handoffs = handoffs;
            step.pause_us = Distribution::of(pauses.iter().map(|pause| clock::nanos(*pause)));
            step.pauses = pauses;
        }
    }
}

impl Change {
    /// Returns whether the partition moved from one owner to another.
    pub fn moved(self) -> bool {
        matches!(self, Change::Cutover | Change::Failover)
    }
}

/// Returns each hold with its change of owner and its pause. A router's first hold under an epoch is the change of
/// owner; later ones are not. After a crash a router tries the dead pod repeatedly, so the pause of a failover counts
/// from the crash to the end of the hold.
pub fn changes<'told>(told: &'told Told, seen: &'told Seen) -> impl Iterator<Item = (&'told Hold, Change, Duration)> {
    let mut newest = HashMap::new();
    told.holds.iter().map(move |hold| {
        let known: &mut Epoch = newest.entry((hold.router, hold.partition)).or_default();
        let is_new = hold.epoch > *known;
        *known = hold.epoch.max(*known);
        let pause = hold.times.pause;
        match seen.before.get(&(hold.partition, hold.epoch)) {
            _ if !is_new => (hold, Change::None, pause),
            None => (hold, Change::First, pause),
            Some(before) => match told.crashed.get(before) {
                // A pod that crashed later no longer owned the partition.
                Some(crashed) if *crashed < hold.at => {
                    (hold, Change::Failover, Duration::from_nanos(hold.at - crashed))
                }
                _ => (hold, Change::Cutover, pause),
            },
        }
    })
}

/// Returns the intervals in which partitions were held.
pub fn windows(told: &Told) -> Windows {
    let mut windows = Windows::new();
    for hold in &told.holds {
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

    fn hold(router: u32, epoch: u64, at: Nanos) -> Hold {
        let times = CutoverTimes { pause: Duration::from_nanos(5), ..CutoverTimes::default() };
        Hold { router, partition: P1, pod: "w".into(), epoch: epoch.into(), times, at }
    }

    #[test]
    fn a_cutover_stays_one_when_its_old_owner_is_cut_off_later() {
        let (mut told, mut seen) = (Told::default(), Seen::default());
        seen.before.insert((P1, Epoch::new(2)), ("a".into(), I7));
        seen.before.insert((P1, Epoch::new(3)), ("b".into(), I8));
        told.crashed.insert(("a".into(), I7), 250);
        told.crashed.insert(("b".into(), I8), 260);
        told.holds = vec![hold(0, 1, 100), hold(0, 2, 200), hold(1, 2, 201), hold(0, 2, 210), hold(0, 3, 300)];
        let found: Vec<(Change, u128)> =
            changes(&told, &seen).map(|(_, change, pause)| (change, pause.as_nanos())).collect();
        let expected =
            [(Change::First, 5), (Change::Cutover, 5), (Change::Cutover, 5), (Change::None, 5), (Change::Failover, 40)];
        assert_eq!(found, expected);
    }
}
