//! An exhaustive model of the handoff.
//!
//! The decisions are production's own: planning, the moves of phases, the next step of routers and pods, the gate's
//! moves, the stash, the pod's epoch fence. Modelled is what surrounds them: the store, the network, leases and their clocks,
//! crashes. A search goes through every order of events within a budget of faults and checks the protocol's invariants
//! in every state. It is deterministic. Long runs with many faults are the simulation's part.

mod action;
mod canonical;
mod checkpoint_scenarios;
mod checkpoints;
mod cluster;
mod delivery;
mod enabled_actions;
mod gate_model;
mod heartbeats;
mod initial_state;
mod leader;
mod model;
mod mutants;
mod pod;
mod round_scenarios;
mod rounds;
mod router;
mod rules;
mod scenario;
mod scenarios;
mod search;
mod shared_lease;
mod state;
mod step;
mod store;
mod streams;
mod writes;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::scenario::{Scenario, Size, Verdict};
use crate::search::{ANY_TIME, MOST, Outcome, search};

/// Searches every state of a small cluster for a violation of the protocol.
#[derive(Parser)]
#[command(name = "segue-model")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the scenarios and compare each verdict with the one that is claimed.
    ///
    /// The last line is `model: scenarios=… states=… violated=…`, where a violation that is expected does not count.
    Check {
        /// Also the searches that take longer: some ten minutes, and an unknown time for those of rounds and streams.
        #[arg(long)]
        large: bool,
        /// Only the searches that take seconds.
        #[arg(long, conflicts_with = "large")]
        quick: bool,
        /// Only scenarios whose name begins like this.
        #[arg(long, default_value = "")]
        scenario: String,
        /// Print every counterexample, the expected ones too, step by step.
        #[arg(long)]
        trace: bool,
    },
    /// Take out one rule of the protocol at a time, and see whether a violation is found.
    ///
    /// The last line is `mutants: rules=… caught=… missed=…`; missed are those whose absence nothing notices here, each with
    /// its reason.
    Mutants {
        /// Only rules whose name begins like this.
        #[arg(long, default_value = "")]
        rule: String,
        /// Only rules whose absence a search finds: the searches that find nothing take the most time.
        #[arg(long)]
        quick: bool,
        /// Print every counterexample step by step.
        #[arg(long)]
        trace: bool,
    },
}

fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Check { large, quick, scenario, trace } => {
            let most = match (quick, large) {
                (true, _) => Size::Quick,
                (_, true) => Size::Large,
                _ => Size::Usual,
            };
            let is_chosen = |it: &Scenario| it.name.starts_with(&scenario) && it.size <= most;
            let streams = streams::all().into_iter().filter(|it| it.name.starts_with(&scenario) && it.size <= most);
            let heartbeats =
                heartbeats::all().into_iter().filter(|it| it.name.starts_with(&scenario) && it.size <= most);
            let shared = shared_lease::all().into_iter().filter(|it| it.name.starts_with(&scenario) && it.size <= most);
            check(
                scenarios::all().into_iter().filter(is_chosen).collect(),
                streams.collect(),
                heartbeats.collect(),
                shared.collect(),
                trace,
            )
        }
        Command::Mutants { rule, quick, trace } => mutants::run(&rule, quick, trace),
    }
}

#[allow(clippy::print_stdout)]
fn check(
    scenarios: Vec<Scenario>,
    streams: Vec<streams::Search>,
    heartbeats: Vec<heartbeats::Search>,
    shared: Vec<shared_lease::Search>,
    trace: bool,
) -> ExitCode {
    println!("{:<20} {:>12} {:>13} {:>6} {:>8}  verdict", "scenario", "states", "transitions", "depth", "seconds");
    let (mut count, mut states, mut violated) = (0, 0, 0);
    let searches = scenarios.into_iter().map(|scenario| {
        let (name, about, verdict) = (scenario.name, scenario.about, scenario.verdict);
        (name, about, verdict, search(scenario, MOST, ANY_TIME))
    });
    let streams = streams.into_iter().map(|of| (of.name, of.about, Verdict::Holds, streams::search(&of, None, MOST)));
    let heartbeats =
        heartbeats.into_iter().map(|of| (of.name, of.about, Verdict::Holds, heartbeats::search(&of, None, MOST)));
    let shared =
        shared.into_iter().map(|of| (of.name, of.about, Verdict::Holds, shared_lease::search(&of, None, MOST)));
    for (name, about, verdict, outcome) in searches.chain(streams).chain(heartbeats).chain(shared) {
        let complaint = outcome.complaint(verdict);
        let Outcome { states: met, transitions, depth, took, .. } = &outcome;
        let said = match (&complaint, verdict) {
            (Some(complaint), _) => format!("NOT AS CLAIMED, {complaint}"),
            (None, Verdict::Holds) => "holds".to_owned(),
            (None, Verdict::Violates { property, steps }) => format!("{property} fails in {steps} steps, as claimed"),
        };
        println!("{name:<20} {met:>12} {transitions:>13} {depth:>6} {:>8.1}  {said}: {about}", took.as_secs_f64());
        if trace || complaint.is_some() {
            print_paths(&outcome);
        }
        count += 1;
        states += met;
        violated += usize::from(complaint.is_some());
    }
    println!("model: scenarios={count} states={states} violated={violated}");
    if violated == 0 && count > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[allow(clippy::print_stdout)]
fn print_paths(outcome: &Outcome) {
    for found in &outcome.found {
        println!("    {}:", found.property);
        for (number, step) in (1..).zip(&found.steps) {
            println!("    {number:>4}. {step}");
        }
    }
}
