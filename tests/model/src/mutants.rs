//! The rules of the protocol, each with the cluster and the faults in which its absence shows.
//!
//! A violation counts only if the same search with the rule in place finds none within as many steps.

use std::process::ExitCode;
use std::time::Duration;

use segue_protocol::records::Capabilities;

use crate::rules::Rule;
use crate::scenario::{Scenario, Size, Verdict};
use crate::scenarios::{self, NO_FAULT};
use crate::search::{ANY_TIME, MOST, fails_within, search};
use crate::state::Budget;

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

/// Searches without each of the rules.
#[allow(clippy::print_stdout)]
pub(crate) fn run(only: &str, quick: bool, trace: bool) -> ExitCode {
    println!("{:<24} {:>12} {:>8}  without the rule", "rule", "states", "seconds");
    let (mut rules, mut caught, mut missed) = (0, 0, 0);
    let mut as_claimed = true;
    for Mutant { rule, scenario, expected } in all() {
        let name = format!("{rule:?}");
        if !name.starts_with(only) || (quick && expected != Expected::Caught) {
            continue;
        }
        rules += 1;
        let (patience, within, size) = match expected {
            Expected::Caught => (PATIENCE, ANY_TIME, Size::Usual),
            Expected::Unnoticed(_) => (MOST, ANY_TIME, Size::Large),
            Expected::NotFound(_) => (PATIENCE, LITTLE_PATIENCE, Size::Usual),
        };
        let with_all_rules = Scenario { without: None, ..scenario.clone() };
        let outcome = search(Scenario { verdict: Verdict::Holds, size, ..scenario }, patience, within);
        let found = outcome.found.iter().min_by_key(|found| found.steps.len());
        let how_far = if outcome.is_complete { "anywhere" } else { "so far" };
        let (is_expected, said) = match (found, expected) {
            (Some(found), Expected::Caught) if fails_within(with_all_rules, found.steps.len()) => {
                (false, format!("NO PROOF: with the rule {} fails as well", found.property))
            }
            (Some(found), Expected::Caught) => {
                (true, format!("{} fails in {} steps", found.property, found.steps.len()))
            }
            (None, Expected::Unnoticed(why)) => (outcome.is_complete, format!("nothing fails {how_far}: {why}")),
            (None, Expected::NotFound(why)) => (true, format!("nothing fails {how_far}: {why}")),
            (None, Expected::Caught) => (false, format!("NOT CAUGHT: nothing fails {how_far}")),
            (Some(found), Expected::Unnoticed(_) | Expected::NotFound(_)) => {
                (false, format!("NOT AS CLAIMED: {} fails in {} steps", found.property, found.steps.len()))
            }
        };
        let is_caught = is_expected && found.is_some();
        caught += usize::from(is_caught);
        missed += usize::from(!is_caught);
        as_claimed &= is_expected;
        println!("{name:<24} {:>12} {:>8.1}  {said}", outcome.states, outcome.took.as_secs_f64());
        for step in found.iter().filter(|_| trace).flat_map(|found| &found.steps) {
            println!("      {step}");
        }
    }
    println!("mutants: rules={rules} caught={caught} missed={missed}");
    if as_claimed && rules > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
