//! Runs one search and compares its result with the expected one.

use std::fmt::Display;
use std::time::{Duration, Instant};

use stateright::{Checker, CheckerBuilder, HasDiscoveries, Model, Path};

use crate::cluster::Cluster;
use crate::scenario::{Scenario, Size, Verdict};
use crate::state::Reached;

/// Most transitions of a search; one that meets more has not looked everywhere, which is a failure.
pub(crate) const MOST: usize = 4_000_000_000;

/// A violation, with the way to it.
pub(crate) struct Found {
    pub(crate) property: &'static str,
    /// In words.
    pub(crate) steps: Vec<String>,
}

/// What a search has seen.
pub(crate) struct Outcome {
    /// Different states.
    pub(crate) states: usize,
    /// Steps between them.
    pub(crate) transitions: usize,
    pub(crate) depth: usize,
    pub(crate) took: Duration,
    pub(crate) found: Vec<Found>,
    /// What it should have met on its way and did not.
    pub(crate) unreached: Vec<Reached>,
    pub(crate) is_complete: bool,
}

impl Outcome {
    /// What is wrong with it, given what was expected.
    pub(crate) fn complaint(&self, verdict: Verdict) -> Option<String> {
        let found = || {
            let found: Vec<String> =
                self.found.iter().map(|found| format!("{} in {} steps", found.property, found.steps.len())).collect();
            found.join(", ")
        };
        match verdict {
            Verdict::Holds if !self.found.is_empty() => Some(format!("violated: {}", found())),
            Verdict::Holds if !self.is_complete => Some(format!("not finished after {MOST} transitions")),
            Verdict::Holds if !self.unreached.is_empty() => Some(format!("never met: {:?}", self.unreached)),
            Verdict::Holds => None,
            Verdict::Violates { property, steps } => {
                let is_found = self.found.iter().any(|found| found.property == property && found.steps.len() == steps);
                (!is_found).then(|| format!("expected {property} in {steps} steps, found: {}", found()))
            }
        }
    }
}

/// No search takes so long.
pub(crate) const ANY_TIME: Duration = Duration::from_secs(86_400);

/// Searches everything, or up to the first violation; gives up after `most` transitions or as much time. A large search goes into the depth
/// first: it keeps a number for each state that it has met, where one in order of depth keeps its whole frontier too. A
/// violation that it finds is not the shortest.
pub(crate) fn search(scenario: Scenario, most: usize, within: Duration) -> Outcome {
    let (verdict, reaches) = (scenario.verdict, scenario.reaches.clone());
    // With one thread a search is in order of depth, and the same each time.
    let threads = if verdict == Verdict::Holds { 2 } else { 1 };
    let begun = Instant::now();
    let builder = builder(scenario.clone()).target_state_count(most).timeout(within).threads(threads);
    let mut outcome = match scenario.size {
        Size::Large => reached(&builder.spawn_dfs().join(), reaches, most),
        Size::Quick | Size::Usual => reached(&builder.spawn_bfs().join(), reaches, most),
    };
    if let Verdict::Violates { property, .. } = verdict {
        shorten(&scenario, property, &mut outcome.found);
    }
    outcome.took = begun.elapsed();
    outcome.is_complete &= outcome.took < within;
    outcome
}

fn reached(checker: &impl Checker<Cluster>, reaches: Vec<Reached>, most: usize) -> Outcome {
    let unreached = reaches.into_iter().filter(|reached| !checker.model().has_reached(*reached)).collect();
    Outcome { unreached, ..outcome(checker, most) }
}

/// What a search of any model has found.
pub(crate) fn outcome<M>(checker: &impl Checker<M>, most: usize) -> Outcome
where
    M: Model,
    M::State: Clone + PartialEq,
    M::Action: Clone + PartialEq + Display,
{
    let mut found: Vec<Found> = checker.discoveries().into_iter().map(as_found).collect();
    found.sort_by_key(|found| found.property);
    Outcome {
        states: checker.unique_state_count(),
        transitions: checker.state_count(),
        depth: checker.max_depth(),
        took: Duration::ZERO,
        found,
        unreached: Vec::new(),
        is_complete: checker.state_count() < most,
    }
}

/// stateright keeps the last counterexample that it met: looks for shorter ones until there is none.
fn shorten(scenario: &Scenario, property: &'static str, found: &mut [Found]) {
    let Some(found) = found.iter_mut().find(|found| found.property == property) else { return };
    loop {
        // A path of n steps ends in a state of depth n + 1, and states at the depth that is given are not looked at.
        let checker = builder(scenario.clone()).target_max_depth(found.steps.len() + 1).spawn_bfs().join();
        match checker.discovery(property) {
            Some(path) => *found = as_found((property, path)),
            None => return,
        }
    }
}

/// Whether anything is violated within so many steps.
pub(crate) fn fails_within(scenario: Scenario, steps: usize) -> bool {
    let checker = builder(scenario).threads(2).target_max_depth(steps + 2).spawn_bfs().join();
    !checker.discoveries().is_empty()
}

fn builder(scenario: Scenario) -> CheckerBuilder<Cluster> {
    Cluster::new(scenario).checker().finish_when(HasDiscoveries::AnyFailures)
}

fn as_found<S, A: Display>((property, path): (&'static str, Path<S, A>)) -> Found {
    Found { property, steps: path.into_actions().iter().map(ToString::to_string).collect() }
}
