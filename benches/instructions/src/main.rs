//! Counts the instructions that a router needs for one request, and fails when they have grown.
//!
//! The router runs under callgrind with one worker, and a client sends one request at a time, so scheduling cannot
//! change the count. Each load is played twice, with few and with many requests. The difference, divided by the
//! requests between them, contains neither the start nor the first requests.
//!
//! Not here: time. Only `make peers` measures that, because instructions in the kernel are not counted.
//!
//! # Invariants
//!
//! * Client and pods always send the same bytes, each message in one write.

mod accepted;
mod callgrind;
mod client;
mod load;
mod pod;
mod router;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use segue_proxy::settings::UpstreamProtocol;

use crate::accepted::Accepted;
use crate::load::LOADS;

/// Requests of the two runs. The first ones grow buffers and tables, which later ones use again.
const FEW: u32 = 500;
const MANY: u32 = 2_500;

/// Counts the instructions that a router needs for one request.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    /// Take the counts of this run as the accepted ones.
    #[arg(long)]
    accept: bool,
    /// Only loads whose name contains this.
    #[arg(long, default_value = "", conflicts_with = "accept")]
    only: String,
    /// Measure the router in this build of the program, for a comparison under the same load.
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
        pods: Vec<SocketAddr>,
    },
}

fn main() -> anyhow::Result<ExitCode> {
    let arguments = Arguments::parse();
    if let Some(Command::Serve { http2, pods }) = arguments.command {
        let protocol = if http2 { UpstreamProtocol::Http2 } else { UpstreamProtocol::Http1 };
        router::serve(protocol, &pods)?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(folder) = &arguments.profiles {
        std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    let router = arguments.router.map_or_else(std::env::current_exe, Ok)?;
    let mut counts = Vec::new();
    for load in LOADS.iter().filter(|load| load.name.contains(&arguments.only)) {
        let few = callgrind::instructions(&router, load, FEW, None)?;
        let profile = arguments.profiles.as_ref().map(|folder| folder.join(load.name));
        let many = callgrind::instructions(&router, load, MANY, profile)?;
        counts.push((load.name, many.saturating_sub(few) / u64::from(MANY - FEW)));
    }
    anyhow::ensure!(!counts.is_empty(), "no load has {:?} in its name", arguments.only);
    if arguments.accept {
        Accepted::write(&counts)?;
    }
    let grown = Accepted::read()?.compare(&counts)?;
    let figures: Vec<String> = counts.iter().map(|(name, count)| format!("{name}={count}")).collect();
    say(&format!("instructions: {} grown={grown}", figures.join(" ")));
    Ok(if grown == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Writes a line to standard output.
#[expect(clippy::print_stdout, reason = "it is what this program is for")]
fn say(line: &str) {
    println!("{line}");
}
