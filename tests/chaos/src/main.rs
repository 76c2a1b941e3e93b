//! Chaos: Segue as real processes on hosts of their own with a real etcd cluster of three, and all that can happen to
//! machines and networks, under a load whose every response is checked.
//!
//! [`namespaces`] isolates the run (network, mounts, processes), [`network`] builds the hosts and [`cluster`] runs the
//! processes. [`fault`] and [`scenario`] are what happens to them, and [`run`] plays them. [`history`] and `segue_contract`
//! watch the store, and [`verdict`] counts the harm. A seed repeats the choices, but not each interleaving, since
//! timings are the machine's; that is what the simulation is for.
//!
//! # Invariants
//!
//! * Nothing here is part of production, and nothing in production knows of it.
//! * What cannot be done on a machine is reported, never skipped.

mod arguments;
mod cluster;
mod disk;
mod etcd;
mod fault;
mod history;
mod namespaces;
mod network;
mod run;
mod sabotage;
mod scenario;
mod timeline;
mod verdict;

use std::process::ExitCode;

use clap::Parser as _;

use self::arguments::Arguments;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.scenario.iter().any(|name| name == "list") {
        return if scenario::list().is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let ended = match &arguments.inside {
        None => namespaces::enter(&arguments),
        Some(folder) => run::play(&arguments, folder),
    };
    ended.unwrap_or_else(|error| {
        eprintln!("chaos: {error:#}");
        ExitCode::FAILURE
    })
}
