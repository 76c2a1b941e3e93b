//! The command line: one file per command, and their common parts.

mod bench;
mod check;
mod demo;
mod forget;
mod run;
mod status;
mod store;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use segue_config::{Located, Problem};

use crate::certificates::Certificates;
use crate::supervise;

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
    /// With router.hot_restart_socket in the file, starting it a second time is a hot restart of the router: the new process
    /// takes over the sockets of the running one once it is ready, and that one finishes its requests and exits 0. If the new
    /// one fails before, it says why and exits 1, and the running one keeps serving.
    /// SIGHUP reads the file again and takes over what can change while running (the log level, what certificate files hold).
    Run(run::Args),
    /// Validate configuration files, each by itself and several against each other.
    ///
    /// Prints every problem with its place and what was expected, and exits 2; else exits 0 and prints nothing, or of several
    /// files how far the promise reaches with their pods. Warnings change no exit code.
    Check(check::Args),
    /// Show the keyspace at a glance: leader, pods, routers, balance, and what moves and waits for whom.
    Status(status::Args),
    /// Delete the registration of a pod or router that is gone, where it does not end by itself.
    ///
    /// A registration that another hand wrote has lost its lease, and one that cannot be read may have: it stands for ever
    /// if its process is gone, and `segue status` names it. To forget it says that the process is gone and its work is over.
    /// Exits 0 if it was deleted, 1 if that was refused, 2 on bad usage, 3 if no store was reached.
    Forget(forget::Args),
    /// Watch the main job: pods join, leave and crash in front of you while checked requests flow.
    ///
    /// One process, nothing installed: an embedded store, a coordinator and a standby, routers, writer pods and clients
    /// over real loopback sockets. Ends with a report; exits 0 only if every invariant held.
    Demo(demo::Args),
    /// Send the demo's load to routers and check that nothing is lost, duplicated or reordered.
    Bench(bench::Args),
    /// Hold the deadline of a service for a sidecar, which starts this.
    #[command(hide = true)]
    Supervise {
        #[arg(long)]
        files: Option<u64>,
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
    /// Become a supervised service; the supervisor starts this.
    #[command(hide = true)]
    BecomeService {
        supervisor: i32,
        #[arg(long)]
        files: Option<u64>,
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
}

/// Why a command failed.
#[derive(Debug)]
pub enum Failure {
    /// The user's input cannot be used. The text says where, and what was expected.
    BadInput(String),
    /// The work failed.
    Work(anyhow::Error),
    /// No process that could have done the work was reached.
    Unreachable(anyhow::Error),
    /// The work failed, and the command has already reported it.
    Told,
    /// The process exits with this code, and the reason has already been reported.
    Exit(ExitCode),
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
            Command::Forget(args) => forget::forget(&args),
            Command::Demo(args) => demo::demo(&args),
            Command::Bench(args) => bench::run(&args),
            Command::Supervise { files, command } => Err(Failure::Exit(supervise::supervise(&command, files)?)),
            Command::BecomeService { supervisor, files, command } => {
                Err(Failure::Exit(supervise::become_service(supervisor, &command, files)?))
            }
        }
    }
}

/// Returns the configuration of a file. Its problems are bad input.
fn load(path: &std::path::Path) -> Result<Located, Failure> {
    segue_config::load(path).map_err(|error| Failure::BadInput(error.to_string()))
}

/// Returns the configuration of a file and the certificates that it names.
fn load_with_certificates(path: &std::path::Path) -> Result<(Located, Certificates), Failure> {
    let located = load(path)?;
    match Certificates::load(&located) {
        Ok(certificates) => Ok((located, certificates)),
        Err(problems) => Err(bad(located, problems)),
    }
}

/// Returns the problems of a configuration as one text.
fn bad(located: Located, problems: Vec<Problem>) -> Failure {
    let errors = located.unless(problems).err();
    Failure::BadInput(errors.map(|errors| errors.to_string()).unwrap_or_default())
}

/// Returns a runtime for commands that are not performance-critical.
fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.map_err(|error| Failure::Work(anyhow::Error::new(error).context("cannot start the runtime")))
}
