//! The demo as a program of its own, which `make demo` builds in a fraction of the time that the whole `segue` takes.
//!
//! It plays what `segue demo` plays. It contains neither a client of etcd nor an admin endpoint.
//!
//! Exit codes: 0 every invariant held, 1 one did not or the demo failed, 2 bad usage.

use std::process::ExitCode;

use clap::Parser as _;
use segue_demo::command::DemoArgs;

/// Play a cluster in one process: pods join, leave and crash under load, and every response is checked.
///
/// Runs an embedded store, two coordinators, routers, writer pods and clients over loopback sockets. Prints a report, and
/// exits 0 only if every invariant held. The same as `segue demo`, which also has --etcd and --admin.
#[derive(Debug, clap::Parser)]
#[command(name = "segue-demo", version)]
struct Cli {
    #[command(flatten)]
    demo: DemoArgs,
}

fn main() -> ExitCode {
    let Cli { demo } = Cli::parse();
    if let Some(option) = demo.needs_segue() {
        eprintln!("segue-demo: {option} needs the whole segue; `make demo ARGS=\"{option}\"` builds and runs it");
        return ExitCode::from(2);
    }
    match demo.play(demo.options()) {
        Ok(true) => ExitCode::SUCCESS,
        // The report has said what went wrong.
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("segue-demo: {error:#}");
            ExitCode::from(1)
        }
    }
}
