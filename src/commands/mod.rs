//! The command line: one file per command, and what they share.

mod bench;
mod check;
mod demo;
mod run;
mod status;
mod store;

use clap::{Parser, Subcommand};
use segue_config::{Located, Problem};

use crate::certificates::Certificates;

/// A router-side proxy that moves partitions between writer pods while clients keep sending, and loses nothing.
#[derive(Debug, Parser)]
#[command(name = "segue", version, about, arg_required_else_help = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start every role that the file has a section for: [router], [coordinator], [pod].
    ///
    /// SIGTERM or SIGINT ends it gracefully: partitions are handed over, what is in flight is finished, then it exits 0.
    /// With router.handover in the file, starting it a second time is a restart of a router: the new process takes over the
    /// sockets of the running one once it is ready, and that one finishes its requests and exits 0. If the new one fails
    /// before, it says why and exits 1, and the running one goes on.
    /// SIGHUP reads the file again and takes over what can change while running (the log level, what certificate files hold).
    Run(run::Args),
    /// Validate a configuration file.
    ///
    /// Prints nothing and exits 0 if it is good; else prints every problem with its place and what was expected, and exits 2.
    Check(check::Args),
    /// Show the keyspace at a glance: leader, pods, routers, balance, and what moves and waits for whom.
    Status(status::Args),
    /// Watch the main job: pods join, leave and crash in front of you while checked requests flow.
    ///
    /// One process, nothing installed: an embedded store, a coordinator and a standby, routers, writer pods and clients
    /// over real loopback sockets. Ends with a report; exits 0 only if every invariant held.
    Demo(demo::Args),
    /// Send the demo's load to routers and check that nothing is lost, duplicated or reordered.
    Bench(bench::Args),
}

/// Why a command did not succeed.
#[derive(Debug)]
pub enum Failure {
    /// What the user gave cannot be used; the text says where and what was expected.
    BadInput(String),
    /// The work failed.
    Work(anyhow::Error),
    /// The work failed, and the command has said so itself.
    Told,
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Failure::Work(error)
    }
}

impl Cli {
    /// Runs the command.
    pub fn run(self) -> Result<(), Failure> {
        match self.command {
            Command::Run(args) => run::run(&args),
            Command::Check(args) => check::check(&args),
            Command::Status(args) => status::status(&args),
            Command::Demo(args) => demo::demo(&args),
            Command::Bench(args) => bench::run(&args),
        }
    }
}

/// A file's configuration; its problems are bad input.
fn load(path: &std::path::Path) -> Result<Located, Failure> {
    segue_config::load(path).map_err(|error| Failure::BadInput(error.to_string()))
}

/// The same, with the certificates that it names.
fn load_with_certificates(path: &std::path::Path) -> Result<(Located, Certificates), Failure> {
    let located = load(path)?;
    match Certificates::load(&located) {
        Ok(certificates) => Ok((located, certificates)),
        Err(problems) => Err(bad(located, problems)),
    }
}

/// The problems of a configuration as one text.
fn bad(located: Located, problems: Vec<Problem>) -> Failure {
    let errors = located.unless(problems).err();
    Failure::BadInput(errors.map(|errors| errors.to_string()).unwrap_or_default())
}

/// A runtime for commands that are not hot.
fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.map_err(|error| Failure::Work(anyhow::Error::new(error).context("cannot start the runtime")))
}
