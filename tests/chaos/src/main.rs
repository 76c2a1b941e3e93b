//! Chaos: Segue as real processes on hosts of their own, a real etcd cluster of three, and everything that can happen to
//! machines and networks, under a load whose every answer is checked.
//!
//! [`namespaces`] builds a place that leaves nothing behind (own network, own processes), [`network`] the hosts in it,
//! [`cluster`] the processes; [`fault`] and [`scenario`] are what happens to them, [`run`] plays them; [`history`] and
//! [`contract`] watch the store, and [`verdict`] says what harm was done. Choices come from a seed and repeat with it;
//! timings are the machine's, so a seed repeats the story and not each interleaving: that is what the simulation is for.
//!
//! What must stay true: nothing here is part of production, and nothing in production knows of it; whatever cannot be
//! done on a machine is said, never skipped.

mod arguments;
mod cluster;
mod contract;
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
