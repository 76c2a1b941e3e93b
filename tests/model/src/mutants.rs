//! The rules of the protocol, each with the cluster and the faults in which its absence shows.
//!
//! A violation counts only if the same search with the rule in place finds none within as many steps.

use std::process::ExitCode;
use std::time::Duration;

use segue_protocol::records::Capabilities;

use crate::checkpoint_scenarios::with_checkpoints;
use crate::heartbeats;
use crate::round_scenarios::with_rounds;
use crate::rules::Rule;
use crate::scenario::{Scenario, Size, Verdict};
use crate::scenarios::{self, NO_FAULT};
use crate::search::{ANY_TIME, Found, MOST, Outcome, fails_within, search};
use crate::shared_lease;
use crate::state::Budget;
use crate::streams;

/// What taking out a rule leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expected {
    /// A violation.
    Caught,
    /// None in any state, for the reason given.
    Unnoticed(&'static str),
    /// None so far: the search is cut short, for the reason given.
    NotFound(&'static str),
}

/// Transitions that a search for a violation may take …
const PATIENCE: usize = 100_000_000;
/// … and the time for one that has no end.
const LITTLE_PATIENCE: Duration = Duration::from_secs(20);

struct Mutant {
    rule: Rule,
    scenario: Scenario,
    expected: Expected,
}

fn all() -> Vec<Mutant> {
    use Expected::{Caught, NotFound, Unnoticed};
    let of = |capabilities: Capabilities, requests: &[u8], budget: Budget| Scenario {
        pods: vec![capabilities; 2],
        requests: scenarios::requests(requests),
        budget,
        reaches: Vec::new(),
        ..scenarios::a_move("", "")
    };
    let (able, drained, none) = (scenarios::ABLE, scenarios::DRAINED, scenarios::NONE);
    let fenced = scenarios::DRAINED_AND_FENCE;
    let mutant = |rule, expected, scenario: Scenario| Mutant {
        rule,
        expected,
        scenario: Scenario { name: "mutant", without: Some(rule), ..scenario },
    };
    vec![
        mutant(
            Rule::AckIdentity,
            NotFound(
                "acks are written without end, and so the search has none; the simulation notices it as a stale ack",
            ),
            of(none, &[0, 1], Budget { delays: 1, phase_timeouts: 1, ..NO_FAULT }),
        ),
        mutant(
            Rule::AckOfTheLiving,
            NotFound("an ack names its handoff, and who comes back registers and sees it first"),
            of(fenced, &[0, 1], Budget { delays: 1, router_clocks: 1, router_starts: 1, ..NO_FAULT }),
        ),
        mutant(
            Rule::LeaderGuard,
            NotFound("record and assignment are compared too; the simulation notices it as two leaders"),
            of(able, &[0, 1], Budget { leader_losses: 1, delays: 1, phase_timeouts: 1, ..NO_FAULT }),
        ),
        mutant(Rule::RecordCompare, Caught, of(none, &[0, 1], Budget { delays: 1, phase_timeouts: 1, ..NO_FAULT })),
        mutant(
            Rule::RangeCompare,
            Unnoticed(
                "a router that registers in Ready or later holds from its first snapshot on, and so needs no waiting for",
            ),
            Scenario { routers_up: 1, ..of(none, &[0, 1], Budget { router_starts: 1, ..NO_FAULT }) },
        ),
        mutant(
            Rule::PhaseCompare,
            NotFound("the phase is written without end, and so the search has none"),
            of(none, &[0, 1], Budget { delays: 1, phase_timeouts: 1, ..NO_FAULT }),
        ),
        mutant(Rule::NewOwnerLives, Caught, of(none, &[0, 1], Budget { pod_crashes: 1, ..NO_FAULT })),
        mutant(
            Rule::OldOwnerCompare,
            Unnoticed("a dead owner has nothing more to confirm"),
            of(able, &[0, 1], Budget { pod_crashes: 1, pod_starts: 1, ..NO_FAULT }),
        ),
        mutant(
            Rule::NewOwnerGone,
            NotFound("a life that a view shows to be over never comes back"),
            of(able, &[0, 1], Budget { pod_crashes: 1, pod_starts: 1, delays: 1, ..NO_FAULT }),
        ),
        mutant(
            Rule::RegisterFirst,
            Caught,
            Scenario { routers_up: 1, ..of(none, &[0, 1], Budget { router_starts: 1, ..NO_FAULT }) },
        ),
        mutant(Rule::OneRevision, Caught, of(none, &[0, 1], NO_FAULT)),
        mutant(
            Rule::RouterLeaseClock,
            Caught,
            of(drained, &[0, 1], Budget { router_clocks: 1, pod_crashes: 1, pod_starts: 1, ..NO_FAULT }),
        ),
        mutant(
            Rule::PodLeaseClock,
            Caught,
            of(fenced, &[0, 1], Budget { pod_clocks: 1, router_clocks: 1, ..NO_FAULT }),
        ),
        mutant(Rule::FencingEpoch, Caught, of(fenced, &[0, 1], Budget { router_clocks: 1, pod_clocks: 1, ..NO_FAULT })),
        mutant(Rule::Incarnation, Caught, of(able, &[0, 1], Budget { pod_crashes: 1, pod_starts: 1, ..NO_FAULT })),
        mutant(
            Rule::EndAcceptedWork,
            Caught,
            of(able, &[0, 1], Budget { pod_clocks: 1, router_crashes: 1, ..NO_FAULT }),
        ),
        mutant(Rule::PutBack, Caught, of(able, &[0, 0, 0], NO_FAULT)),
        mutant(Rule::CancelBeforeSwitching, Caught, of(none, &[0, 1], NO_FAULT)),
        mutant(Rule::Pinning, Caught, of(none, &[0, 1], NO_FAULT)),
        mutant(Rule::DrainUntilDone, Caught, of(none, &[0, 1], Budget { hang_ups: 1, ..NO_FAULT })),
        mutant(Rule::SnapshotIsCutover, Caught, of(able, &[0, 0], Budget { router_clocks: 1, ..NO_FAULT })),
        mutant(Rule::Barrier, Caught, of(none, &[0, 1], NO_FAULT)),
        mutant(Rule::OldOwnerConfirms, Caught, of(able, &[0, 1], Budget { breaks: 1, ..NO_FAULT })),
        mutant(Rule::FlushFirst, Caught, of(able, &[0, 0], NO_FAULT)),
        mutant(Rule::NeverSendTwice, Caught, of(able, &[0], Budget { breaks: 1, ..NO_FAULT })),
        mutant(Rule::TailAtRest, Caught, of(able, &[0, 1], NO_FAULT)),
        mutant(
            Rule::UnreadableIsNotAbsent,
            Caught,
            of(fenced, &[0, 1], Budget { detachments: 1, breaks: 1, ..NO_FAULT }),
        ),
        mutant(
            Rule::BoundIsWaitedOut,
            Caught,
            Scenario { is_bounded: true, ..of(fenced, &[0, 1], Budget { pod_crashes: 1, ..NO_FAULT }) },
        ),
    ]
}

/// The rules of assignment rounds.
fn of_rounds() -> Vec<Mutant> {
    use Expected::{Caught, Unnoticed};
    let mutant = |rule, expected, participants_up, budget| Mutant {
        rule,
        expected,
        scenario: Scenario {
            is_planned: false,
            without: Some(rule),
            reaches: Vec::new(),
            budget,
            ..with_rounds("mutant", "", 2, participants_up)
        },
    };
    let joins = Budget { participant_starts: 1, delays: 1, phase_timeouts: 1, ..NO_FAULT };
    let is_led = Budget { leaders: 1, delays: 1, phase_timeouts: 1, ..NO_FAULT };
    // What they would let through, the guards of records and of the last end refuse.
    let refused = Unnoticed("a decision that did not see the other's writes is refused by what these changed");
    let no_leader = mutant(Rule::NoLeader, refused, 2, is_led);
    let window_waits = mutant(Rule::WindowWaits, Caught, 1, Budget { participant_starts: 1, ..NO_FAULT });
    vec![
        mutant(Rule::RoundInForce, Caught, 1, joins),
        // A leader that knows rounds ends them first, so that this rule is needed only beside one that does not.
        Mutant { scenario: Scenario { leader_knows_rounds: false, ..no_leader.scenario }, ..no_leader },
        mutant(Rule::NoneEndedSince, Caught, 2, Budget { delays: 1, phase_timeouts: 1, ..NO_FAULT }),
        mutant(Rule::OneActor, Caught, 2, NO_FAULT),
        mutant(Rule::LeaderEndsRounds, refused, 2, Budget { leader_losses: 1, ..is_led }),
        mutant(Rule::ClearLeader, Caught, 2, Budget { foreign_leaders: 1, ..NO_FAULT }),
        // Nothing moves.
        Mutant { scenario: Scenario { drains: false, ..window_waits.scenario }, ..window_waits },
        mutant(
            Rule::ParticipantLives,
            Unnoticed("until the next round nobody else acts for the partitions of one that is gone"),
            2,
            Budget { participant_crashes: 1, delays: 1, ..NO_FAULT },
        ),
    ]
}

/// The rules of assignments without handoffs.
fn of_first_assignments() -> Vec<Mutant> {
    let mutant = |rule, pods_up, budget| Mutant {
        rule,
        expected: Expected::Caught,
        scenario: Scenario {
            without: Some(rule),
            reaches: Vec::new(),
            pods_up,
            budget,
            ..scenarios::assigned_at_once("mutant", "")
        },
    };
    vec![
        mutant(Rule::NewOwnerLives, 2, Budget { pod_crashes: 1, delays: 1, ..NO_FAULT }),
        mutant(Rule::RecordCompare, 1, Budget { pod_starts: 1, delays: 1, ..NO_FAULT }),
    ]
}

/// The rules of checkpoints.
fn of_checkpoints() -> Vec<Mutant> {
    use Expected::{Caught, Unnoticed};
    let mutant = |rule, expected, budget| Mutant {
        rule,
        expected,
        scenario: Scenario { without: Some(rule), reaches: Vec::new(), budget, ..with_checkpoints("mutant", "") },
    };
    vec![
        mutant(Rule::CheckpointWaitEnds, Caught, Budget { hangs: 1, ..NO_FAULT }),
        mutant(Rule::CheckpointOfTheOwner, Caught, Budget { delays: 1, ..NO_FAULT }),
        mutant(
            Rule::CheckpointOfTheLiving,
            Unnoticed("until another pod owns the partition, there is no newer state than that of its last owner"),
            Budget { pod_crashes: 1, delays: 1, ..NO_FAULT },
        ),
        mutant(Rule::CheckpointNamesHandoff, Caught, Budget { intervals: 1, ..NO_FAULT }),
    ]
}

/// What the searches have shown so far.
#[derive(Default)]
struct Tally {
    rules: usize,
    caught: usize,
    unexpected: usize,
}

impl Tally {
    /// Counts a search and prints its line, with the steps to the violation if they are wanted.
    #[allow(clippy::print_stdout)]
    fn note(&mut self, rule: &str, outcome: &Outcome, (is_expected, said): (bool, String), trace: bool) {
        let found = shortest(outcome);
        self.rules += 1;
        self.caught += usize::from(is_expected && found.is_some());
        self.unexpected += usize::from(!is_expected);
        println!("{rule:<24} {:>12} {:>8.1}  {said}", outcome.states, outcome.took.as_secs_f64());
        for step in found.iter().filter(|_| trace).flat_map(|found| &found.steps) {
            println!("      {step}");
        }
    }
}

fn shortest(outcome: &Outcome) -> Option<&Found> {
    outcome.found.iter().min_by_key(|found| found.steps.len())
}

fn failure(found: &Found) -> String {
    format!("{} fails in {} steps", found.property, found.steps.len())
}

/// Searches without each of the rules.
#[allow(clippy::print_stdout)]
pub(crate) fn run(only: &str, quick: bool, trace: bool) -> ExitCode {
    println!("{:<24} {:>12} {:>8}  without the rule", "rule", "states", "seconds");
    let mut tally = Tally::default();
    for Mutant { rule, scenario, expected } in
        all().into_iter().chain(of_rounds()).chain(of_first_assignments()).chain(of_checkpoints())
    {
        let name = format!("{rule:?}");
        if !name.starts_with(only) || (quick && expected != Expected::Caught) {
            continue;
        }
        let (patience, within, size) = match expected {
            Expected::Caught => (PATIENCE, ANY_TIME, Size::Usual),
            Expected::Unnoticed(_) => (MOST, ANY_TIME, Size::Large),
            Expected::NotFound(_) => (PATIENCE, LITTLE_PATIENCE, Size::Usual),
        };
        let with_all_rules = Scenario { without: None, ..scenario.clone() };
        let outcome = search(Scenario { verdict: Verdict::Holds, size, ..scenario }, patience, within);
        let how_far = if outcome.is_complete { "anywhere" } else { "so far" };
        let verdict = match (shortest(&outcome), expected) {
            (Some(found), Expected::Caught) if fails_within(with_all_rules, found.steps.len()) => {
                (false, format!("NO PROOF: with the rule {} fails as well", found.property))
            }
            (Some(found), Expected::Caught) => (true, failure(found)),
            (None, Expected::Unnoticed(why)) => (outcome.is_complete, format!("nothing fails {how_far}: {why}")),
            (None, Expected::NotFound(why)) => (true, format!("nothing fails {how_far}: {why}")),
            (None, Expected::Caught) => (false, format!("NOT CAUGHT: nothing fails {how_far}")),
            (Some(found), Expected::Unnoticed(_) | Expected::NotFound(_)) => {
                (false, format!("NOT AS CLAIMED: {}", failure(found)))
            }
        };
        tally.note(&name, &outcome, verdict, trace);
    }
    // The same searches find nothing with the rule in place: `check` makes them.
    for (rule, of) in streams::mutants().into_iter().filter(|(rule, _)| format!("{rule:?}").starts_with(only)) {
        let outcome = streams::search(&of, Some(rule), PATIENCE);
        let found = shortest(&outcome);
        let verdict = (found.is_some(), found.map_or("NOT CAUGHT: nothing fails".to_owned(), failure));
        tally.note(&format!("{rule:?}"), &outcome, verdict, trace);
    }
    let of_heartbeats = heartbeats::mutants();
    for (rule, of) in of_heartbeats.into_iter().filter(|(rule, _)| format!("{rule:?}").starts_with(only)) {
        let outcome = heartbeats::search(&of, Some(rule), PATIENCE);
        let found = shortest(&outcome);
        let verdict = (found.is_some(), found.map_or("NOT CAUGHT: nothing fails".to_owned(), failure));
        tally.note(&format!("{rule:?}"), &outcome, verdict, trace);
    }
    let of_shared = shared_lease::mutants();
    for (rule, of, steps) in of_shared.into_iter().filter(|(rule, ..)| format!("{rule:?}").starts_with(only)) {
        let outcome = shared_lease::search(&of, Some(rule), PATIENCE);
        let found = shortest(&outcome);
        let is_as_pinned = found.is_some_and(|found| found.steps.len() == steps);
        let verdict = (is_as_pinned, found.map_or("NOT CAUGHT: nothing fails".to_owned(), failure));
        tally.note(&format!("{rule:?}"), &outcome, verdict, trace);
    }
    let Tally { rules, caught, unexpected } = tally;
    println!("mutants: rules={rules} caught={caught} missed={}", rules - caught);
    if unexpected == 0 && rules > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
