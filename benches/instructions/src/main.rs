//! Counts the instructions that a router needs for one request, and fails when they have grown.
//!
//! The router runs under callgrind with one worker, and a client sends one request at a time, so scheduling cannot
//! change the count. Each load runs twice, with few and with many requests. The difference of the counts, divided by
//! the difference of the numbers of requests, contains neither the start nor the first requests.
//!
//! The rest depends on the time that a run takes, such as ticks of timers, and on how the client's writes and
//! the router's reads interleave. It only adds, so a count that is too large is taken again, and the least one counts.
//! Accepted is the median: the least of few counts may be one that later ones seldom reach.
//!
//! Not here: time. Callgrind does not count instructions in the kernel, so `make peers` measures time.
//!
//! # Invariants
//!
//! * The client and the pods send the same bytes in each run, and each message in one write.

mod accepted;
mod callgrind;
mod client;
mod load;
mod pod;
mod router;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use segue_proxy::settings::UpstreamProtocol;

use crate::accepted::Accepted;
use crate::load::{LOADS, Load};

/// Numbers of requests in the two runs. The first requests grow buffers and tables, which later ones reuse.
const FEW: u32 = 500;
const MANY: u32 = 2_500;

/// How often a load is counted at most.
const MAX_COUNTS: usize = 3;

/// Counts the instructions that a router needs for one request.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    /// Accept the counts of this run.
    #[arg(long)]
    accept: bool,
    /// Run only loads whose name contains this text.
    #[arg(long, default_value = "", conflicts_with = "accept")]
    only: String,
    /// Measure the router in this other build of the program, under the same load.
    #[arg(long, value_name = "FILE", conflicts_with = "accept")]
    router: Option<PathBuf>,
    /// Keep callgrind's profiles of the longer runs in this folder.
    #[arg(long, value_name = "FOLDER")]
    profiles: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve as the router that is measured. Callgrind runs this command.
    #[command(hide = true)]
    Serve {
        #[arg(long)]
        http2: bool,
        /// Trace, and record none of the requests.
        #[arg(long)]
        tracing: bool,
        pods: Vec<SocketAddr>,
    },
}

fn main() -> anyhow::Result<ExitCode> {
    let arguments = Arguments::parse();
    if let Some(Command::Serve { http2, tracing, pods }) = arguments.command {
        let protocol = if http2 { UpstreamProtocol::Http2 } else { UpstreamProtocol::Http1 };
        router::serve(protocol, tracing, &pods)?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(folder) = &arguments.profiles {
        std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    let router = arguments.router.map_or_else(std::env::current_exe, Ok)?;
    // Counts that are to be accepted are taken as often as possible.
    let accepted = if arguments.accept { None } else { Some(Accepted::read()?) };
    let mut counts = Vec::new();
    for load in LOADS.iter().filter(|load| load.name.contains(&arguments.only)) {
        let profile = arguments.profiles.as_ref().map(|folder| folder.join(load.name));
        let mut taken = Vec::new();
        for _ in 0..MAX_COUNTS {
            taken.push(count(&router, load, profile.clone())?);
            if accepted.as_ref().is_some_and(|accepted| taken.iter().any(|count| accepted.allows(load.name, *count))) {
                break;
            }
        }
        taken.sort_unstable();
        counts.push((load.name, taken[if accepted.is_some() { 0 } else { taken.len() / 2 }]));
    }
    anyhow::ensure!(!counts.is_empty(), "no load has {:?} in its name", arguments.only);
    if arguments.accept {
        Accepted::write(&counts)?;
    }
    let grown = accepted.map_or_else(Accepted::read, Ok)?.compare(&counts)?;
    let figures: Vec<String> = counts.iter().map(|(name, count)| format!("{name}={count}")).collect();
    say(&format!("instructions: {} grown={grown}", figures.join(" ")));
    Ok(if grown == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns the instructions per request of a load.
fn count(router: &Path, load: &Load, profile: Option<PathBuf>) -> anyhow::Result<u64> {
    let few = callgrind::instructions(router, load, FEW, None)?;
    let many = callgrind::instructions(router, load, MANY, profile)?;
    Ok(many.saturating_sub(few) / u64::from(MANY - FEW))
}

/// Writes a line to standard output.
#[expect(clippy::print_stdout, reason = "it is what this program is for")]
fn say(line: &str) {
    println!("{line}");
}
