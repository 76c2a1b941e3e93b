//! Runs models of threads on loom's primitives, in every interleaving: `make loom`.
//!
//! Router and pod take what their threads share from `routing/sync` and `pod/sync`: the real primitives, or loom's. Those two
//! folders and what stands on them are compiled here once more, with loom's (`build.rs`). So production's code is what runs,
//! and no other crate is built with another flag.
//!
//! The models of the router are in `routing_models`. Those of the pod look into its state, so they are part of its sources.

// All targets are built as tests too, and the unit tests of the included sources need the real primitives.
#![cfg(not(test))]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "it is a command-line program")]
#![allow(clippy::unwrap_used, reason = "a model that panics has failed")]

mod model;
mod pod;
#[allow(unused, unreachable_pub, reason = "the models use a part of it")]
#[allow(clippy::modulo_one, reason = "a segment has one place here")]
#[path = "../../../proxy/src/routing/mod.rs"]
mod routing;
mod routing_models;
#[allow(unused, unreachable_pub, reason = "the models use a part of it")]
#[path = "../../../proxy/src/runtime/single_writer.rs"]
mod single_writer;

use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;

pub(crate) use model::{Model, explore, models};

/// What the included sources of the router need of their own crate.
mod runtime {
    pub(crate) use crate::single_writer;
}

/// What the included sources of the pod need of their own crate.
mod session {
    pub(crate) use segue_coordination::session::{LeaseState, lease_now, wakes_at};
}

/// Runs the models whose names contain one of the arguments, or all.
fn main() -> ExitCode {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let is_wanted = |model: &&Model| wanted.is_empty() || wanted.iter().any(|part| model.name.contains(part.as_str()));
    let models = routing_models::MODELS.into_iter().chain([pod::MODELS]).flatten();
    let models: Vec<&Model> = models.filter(is_wanted).collect();
    if models.is_empty() {
        eprintln!("loom: no model's name contains {}", wanted.join(" or "));
        return ExitCode::from(2);
    }
    let next = AtomicUsize::new(0);
    let run_some = || {
        let (mut executions, mut failed) = (0, 0);
        while let Some(model) = models.get(next.fetch_add(1, Relaxed)) {
            match model.run() {
                Some(count) => executions += count,
                None => failed += 1,
            }
        }
        (executions, failed)
    };
    let (mut executions, mut failed) = (0, 0);
    thread::scope(|scope| {
        let workers = thread::available_parallelism().map_or(1, usize::from);
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(run_some)).collect();
        for worker in workers {
            let (more_executions, more_failed) = worker.join().unwrap_or((0, 1));
            executions += more_executions;
            failed += more_failed;
        }
    });
    println!("loom: models={} executions={executions} failed={failed}", models.len());
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
