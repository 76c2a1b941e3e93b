//! Each rule of the protocol taken out, one at a time, with the cluster and the faults in which its absence shows.

use std::process::ExitCode;

use segue_coordination::protocol::records::Capabilities;

use crate::rules::Rule;
use crate::scenario::{Scenario, Verdict};
use crate::scenarios::{self, NO_FAULT};
use crate::search::search;
use crate::state::Budget;

/// What taking out a rule is expected to lead to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expected {
    /// A violation.
    Caught,
    /// None, for the reason given: another rule covers for it.
    Covered(&'static str),
}

struct Mutant {
    rule: Rule,
    scenario: Scenario,
    expected: Expected,
}

fn all() -> Vec<Mutant> {
    use Expected::{Caught, Covered};
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
        mutant(Rule::AckIdentity, Caught, of(none, &[0, 1], Budget { delays: 1, phase_timeouts: 1, ..NO_FAULT })),
        mutant(
            Rule::AckOfTheLiving,
            Covered(""),
            of(none, &[0, 1], Budget { delays: 1, router_clocks: 1, router_starts: 1, ..NO_FAULT }),
        ),
        mutant(
            Rule::LeaderGuard,
            Covered(""),
            of(able, &[0, 1], Budget { leader_losses: 1, delays: 1, phase_timeouts: 1, ..NO_FAULT }),
        ),
        mutant(Rule::RecordCompare, Caught, of(none, &[0, 1], Budget { delays: 1, phase_timeouts: 1, ..NO_FAULT })),
        mutant(
            Rule::RangeCompare,
            Covered(
                "a router that registers in Ready or later holds from its first snapshot on, and so needs no waiting for",
            ),
            Scenario { routers_up: 1, ..of(none, &[0, 1], Budget { router_starts: 1, ..NO_FAULT }) },
        ),
        mutant(Rule::PhaseCompare, Caught, of(none, &[0, 1], Budget { delays: 1, phase_timeouts: 1, ..NO_FAULT })),
        mutant(
            Rule::NewOwnerLives,
            Covered(""),
            of(able, &[0, 1], Budget { pod_crashes: 1, pod_starts: 1, ..NO_FAULT }),
        ),
        mutant(
            Rule::OldOwnerCompare,
            Covered(""),
            of(able, &[0, 1], Budget { pod_crashes: 1, pod_starts: 1, ..NO_FAULT }),
        ),
        mutant(
            Rule::NewOwnerGone,
            Covered(""),
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
    ]
}

/// Searches without each of the rules.
#[allow(clippy::print_stdout)]
pub(crate) fn run(only: &str, trace: bool) -> ExitCode {
    println!("{:<24} {:>12} {:>8}  without the rule", "rule", "states", "seconds");
    let (mut rules, mut caught, mut missed) = (0, 0, 0);
    for Mutant { rule, scenario, expected } in all() {
        let name = format!("{rule:?}");
        if !name.starts_with(only) {
            continue;
        }
        rules += 1;
        let outcome = search(Scenario { verdict: Verdict::Holds, ..scenario });
        let found = outcome.found.iter().min_by_key(|found| found.steps.len());
        let said = match (found, expected) {
            (Some(found), Expected::Caught) => {
                caught += 1;
                format!("{} fails in {} steps", found.property, found.steps.len())
            }
            (None, Expected::Covered(why)) => format!("nothing fails: {why}"),
            (None, Expected::Caught) => {
                missed += 1;
                "MISSED, nothing fails".to_owned()
            }
            (Some(found), Expected::Covered(_)) => {
                missed += 1;
                format!("NOT COVERED AS CLAIMED: {} fails in {} steps", found.property, found.steps.len())
            }
        };
        println!("{name:<24} {:>12} {:>8.1}  {said}", outcome.states, outcome.took.as_secs_f64());
        for step in found.iter().filter(|_| trace).flat_map(|found| &found.steps) {
            println!("      {step}");
        }
    }
    println!("mutants: rules={rules} caught={caught} missed={missed}");
    if missed == 0 && rules > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
