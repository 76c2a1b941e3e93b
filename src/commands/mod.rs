//! The command line: one file per command, and their common parts.

mod bash_words;
mod bench;
mod check;
mod compare_store;
mod conformance;
mod demo;
mod dev;
mod generate;
mod guides;
mod keyspace;
mod logging;
mod measure_store;
mod operator;
mod output;
mod reload;
mod restart;
mod run;
mod server;
mod service_manager;
mod status;
mod store;
mod target;

use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use segue_config::{LocatedConfig, Problem};

use crate::admin::token_file;
use crate::process::certificates::Certificates;
use crate::process::{last_words, supervise};

/// An L7 proxy that moves partitions between writer pods while clients keep sending, without losing a request.
#[derive(Debug, Parser)]
#[command(name = "segue", version, about, arg_required_else_help = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the roles that the file has a section for: [router], [coordinator], [pod].
    ///
    /// SIGTERM or SIGINT shuts down gracefully: the process hands its partitions over, finishes the requests in flight
    /// and exits 0. A second signal exits 1 at once. SIGHUP reloads the log level, the limits of the stash and the share of
    /// traced requests from the file, and the certificate files; the log names the other settings that have changed.
    ///
    /// If the file sets router.hot_restart_socket, starting a second process is a hot restart of the router: once the
    /// new process is ready it takes over the sockets of the running one, which finishes its requests and exits 0. A
    /// new process that does not become ready exits, and the running one keeps serving.
    Run(run::Args),
    /// Run a whole site for a service on this machine: copies of a command, each a pod, behind a router.
    ///
    /// Runs an embedded store, a coordinator, a router and a sidecar for each copy, in one process; nothing has to be
    /// installed. Each copy listens on the port that `{port}` in its arguments, or its variable PORT, names. A copy that
    /// dies is started again, and its partitions move meanwhile. `segue status` and the other commands work on the site
    /// without an option, and the live page shows it; on this machine both may change it. It is no place for data: the
    /// store ends with the process. Variables SEGUE__SECTION__KEY override settings of the roles. Ctrl-C ends everything.
    Dev(dev::Args),
    /// Replace the running router by a new process, without losing a request.
    ///
    /// Starts `segue run` in the background and returns once that has taken over from the process at
    /// router.hot_restart_socket. If the new process does not become ready, the running one keeps serving.
    /// As ExecReload= of a systemd unit it names the new process to systemd.
    Restart(restart::Args),
    /// Validate configuration files, each by itself and against the others, and Kubernetes manifests with them.
    ///
    /// Prints every mistake with its line, its column and the expected value. For several files without a mistake it prints
    /// the guarantee that their pods allow. Warnings do not change the exit code.
    Check(check::Args),
    /// Show the state of a keyspace: leader, pods, routers, balance, handoffs and what they wait for.
    ///
    /// With --routers, asks every router at its admin endpoint and compares its table with the store. A partition that
    /// moves is not compared. With --server that process asks the routers. If that process has lost the store, prints
    /// what the process saw last.
    Status(status::Args),
    /// Delete the registration of a pod or router that is gone, if it does not expire by itself.
    ///
    /// A registration that another writer has put has lost its lease, and never expires if its process is gone. One
    /// that cannot be read may have. `segue status` names both. Run this command only if the process is gone and its
    /// work is over. Without --yes it deletes nothing and prints the consequences.
    Forget(operator::ForgetArgs),
    /// Empty a pod: it gives up its partitions and gets no more until `segue undrain`.
    ///
    /// The drain is a key in the store. It outlives this command, the coordinator and the pod: a pod that comes back
    /// under this name gets no partition. No request is lost; each partition moves by an ordinary handoff. Waits until
    /// the pod is empty.
    ///
    /// With --self the drain is of this host's sidecar and ends with its process: segue drain --self --wait 50s.
    Drain(operator::DrainArgs),
    /// End the drain of a pod: it may be given partitions again.
    Undrain(operator::UndrainArgs),
    /// Stop planned moves: balance, moves and drains by operators. Failover continues.
    ///
    /// Partitions whose owner is dead still move, and so do those of a pod that shuts down by itself, because its
    /// process ends anyway. Moves in flight are completed. With --for the store ends the pause.
    Pause(operator::PauseArgs),
    /// Resume planned moves.
    Resume(operator::ResumeArgs),
    /// Move a partition to a pod, and wait until it is there.
    ///
    /// The coordinator answers at once whether it accepts the move, and moves the partition as soon as its budget
    /// allows. Without --pin the partition stays there until the pod is gone; with it, until `segue unpin`. The move is
    /// refused if the pod is not registered, is not Ready or is drained.
    Move(operator::MoveArgs),
    /// Keep a partition on the pod that has it, until `segue unpin`.
    ///
    /// While the pod is gone or draining, another pod owns the partition. It returns when the pod does.
    Pin(operator::PartitionArgs),
    /// Let the strategy place a partition again. This also ends the effect of `segue move`.
    Unpin(operator::PartitionArgs),
    /// Cancel the move of a partition: it stays with its old owner.
    ///
    /// Cancels the handoff in flight and no later one. The cancel is refused once the new owner may have been sent
    /// requests: from then on the move completes by itself.
    Cancel(operator::CancelArgs),
    /// Write the owners that coordinators with strategy = "external" follow.
    ///
    /// The file contains all of them, as JSON: {"generation":41,"owners":{"0":"writer-1"}}. It replaces what is stored
    /// only if its generation is later. Partitions that it does not name stay where they are.
    Wanted(operator::WantedArgs),
    /// Show or change the settings of the keyspace.
    Config(operator::ConfigArgs),
    /// Show or change the list of keyspaces that processes with follow_keyspaces = true take part in.
    ///
    /// Coordinators, routers and sidecars begin their part in a keyspace that is added, and end it in one that is removed, while
    /// they run and without touching others.
    Keyspace(keyspace::Args),
    /// Replace the mapping of keys to partitions by that of a router's file.
    ///
    /// A router never replaces the keyspace's mapping: with another `[router.partition]` it stays not ready. Under
    /// another mapping keys are in other partitions, whose owners do not have their state. Without --yes it changes nothing
    /// and prints both mappings and the number of partitions with an owner. Refused while a router is registered.
    Remap(operator::RemapArgs),
    /// Show what the planner would do now, without doing it.
    ///
    /// Runs the planner on the current state of the keyspace, with the [coordinator] of --config or its defaults. Shows
    /// all moves, including those that would wait for a place in the budget. The leader delays moves that have failed;
    /// this command does not know them.
    Plan(operator::PlanArgs),
    /// Explain the state of a partition, a pod or a key: reasons, participants that it waits for, and next steps.
    Explain(operator::ExplainArgs),
    /// Show what goes through the routers now: pods, partitions or keys by requests, errors and latency.
    ///
    /// Asks all routers at their admin endpoints, which measure for two seconds, and adds their answers up; again and again
    /// until it is interrupted, or once with --once. A router that does not respond is named. With --server that process
    /// asks the routers.
    Top(operator::TopArgs),
    /// Show the handoffs that have ended: result, duration of the phases, pauses, held and severed requests, reason.
    ///
    /// The store keeps the last 16 handoffs of each partition and 4096 in all. Durations are differences between the
    /// clocks of the participants that moved the handoff on.
    History(operator::HistoryArgs),
    /// Wait until the keyspace is settled, a partition moved, or a pod drained.
    Wait(operator::WaitArgs),
    /// Play a cluster in one process: pods join, leave and crash under load, and every response is checked.
    ///
    /// Runs an embedded store, two coordinators, routers, writer pods and clients over loopback sockets. Nothing has to
    /// be installed. Prints a report.
    Demo(segue_demo::command::DemoArgs),
    /// Send the demo's load to running routers, and check that no request is lost, duplicated or reordered.
    ///
    /// SIGTERM or SIGINT ends the load before its time; the report follows. A second signal exits 1 at once.
    Bench(bench::Args),
    /// Send requests with right and wrong stamps to a running pod, and print the responses that do not conform.
    ///
    /// Reads in the store what the pod owns. The pod has to accept requests of its partition at its epoch, and to
    /// refuse every other request with 421. The accepted requests reach the service, so choose a path that changes
    /// nothing.
    ///
    /// With --handoffs the program takes the place of the coordinator, the routers and another pod in a keyspace of the
    /// pod's own. It plays handoffs, cancels, older epochs and the loss of the lease, and with --listen, for a pod by
    /// gRPC, the restart and the silence of the coordinators.
    Conformance(conformance::Args),
    /// Print completions of the command line for a shell.
    ///
    /// The shell asks this program at each Tab: names of pods, routers and partitions are those of the keyspace that the
    /// command line or the variables name.
    Completions(generate::CompletionsArgs),
    /// Write manual pages of all commands, and of the configuration file.
    Man(generate::ManArgs),
    /// Enforce the deadline of a sidecar's service. Started by the sidecar.
    #[command(hide = true)]
    Supervise {
        #[arg(long)]
        files: Option<u64>,
        /// What it says is JSON.
        #[arg(long)]
        json: bool,
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
    /// Become a supervised service. Started by the supervisor.
    #[command(hide = true)]
    BecomeService {
        supervisor: i32,
        #[arg(long)]
        files: Option<u64>,
        /// What it says is JSON.
        #[arg(long)]
        json: bool,
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
}

/// Why a command failed.
#[derive(Debug)]
pub enum CommandFailure {
    /// The user's input cannot be used. The text says where, and what was expected.
    BadInput(String),
    /// The work failed.
    Work(anyhow::Error),
    /// The store, or the admin endpoint in its place, is unreachable.
    Unreachable(anyhow::Error),
    /// The admin endpoint was sent a request and gave no answer: the request may have taken effect.
    Lost(anyhow::Error),
    /// The condition did not hold in time.
    Waiting(anyhow::Error),
    /// The work failed, and the command has already reported it.
    AlreadyReported,
    /// The process exits with this code, and the reason has already been reported.
    Exit(ExitCode),
}

impl CommandFailure {
    /// Returns the failure as a part of a longer report.
    fn into_error(self) -> anyhow::Error {
        match self {
            CommandFailure::BadInput(text) => anyhow::Error::msg(text),
            CommandFailure::Work(error)
            | CommandFailure::Unreachable(error)
            | CommandFailure::Lost(error)
            | CommandFailure::Waiting(error) => error,
            CommandFailure::AlreadyReported | CommandFailure::Exit(_) => anyhow::Error::msg("failed"),
        }
    }
}

impl From<anyhow::Error> for CommandFailure {
    fn from(error: anyhow::Error) -> Self {
        CommandFailure::Work(error)
    }
}

/// Returns the command line with its examples and exit codes, and with the commands in groups.
fn command_line() -> clap::Command {
    guides::grouped(guides::with_guides(Cli::command()))
}

impl Cli {
    /// Reads the arguments of this process. Exits if they are wrong, or if they ask for help; or if a shell asks how they may
    /// be completed.
    pub fn read() -> Self {
        generate::answer_shell();
        Cli::from_arg_matches(&command_line().get_matches()).unwrap_or_else(|error| error.exit())
    }

    /// Runs the command.
    pub fn run(self) -> Result<(), CommandFailure> {
        match self.command {
            Command::Run(args) => run::run(&args),
            Command::Dev(args) => dev::dev(&args),
            Command::Restart(args) => restart::restart(&args),
            Command::Check(args) => check::check(&args),
            Command::Status(args) => status::status(&args),
            Command::Forget(args) => operator::forget(&args),
            Command::Drain(args) => operator::drain(&args),
            Command::Undrain(args) => operator::undrain(&args),
            Command::Pause(args) => operator::pause(&args),
            Command::Resume(args) => operator::resume(&args),
            Command::Move(args) => operator::move_partition(&args),
            Command::Pin(args) => operator::pin(&args),
            Command::Unpin(args) => operator::unpin(&args),
            Command::Cancel(args) => operator::cancel(&args),
            Command::Wanted(args) => operator::wanted(&args),
            Command::Config(args) => operator::config(&args),
            Command::Keyspace(args) => keyspace::keyspace(&args),
            Command::Remap(args) => operator::remap(&args),
            Command::Plan(args) => operator::plan(&args),
            Command::Explain(args) => operator::explain(&args),
            Command::Top(args) => operator::top(&args),
            Command::History(args) => operator::history(&args),
            Command::Wait(args) => operator::wait(&args),
            Command::Demo(args) => demo::demo(&args),
            Command::Bench(args) => bench::run(&args),
            Command::Conformance(args) => conformance::conformance(&args),
            Command::Completions(args) => generate::completions(&args),
            Command::Man(args) => generate::man(&args),
            Command::Supervise { files, json, command } => {
                last_words::speak_json_if(json);
                Err(CommandFailure::Exit(supervise::supervise(&command, files)?))
            }
            Command::BecomeService { supervisor, files, json, command } => {
                last_words::speak_json_if(json);
                Err(CommandFailure::Exit(supervise::become_service(supervisor, &command, files)?))
            }
        }
    }
}

/// Returns the configuration of a file. Its problems are bad input.
fn load(path: &std::path::Path) -> Result<LocatedConfig, CommandFailure> {
    segue_config::load(path).map_err(|error| CommandFailure::BadInput(error.to_string()))
}

/// Returns the configuration of a file and the certificates that it names. A file of a token that cannot be used is bad
/// input, too.
fn load_with_certificates(path: &std::path::Path) -> Result<(LocatedConfig, Certificates), CommandFailure> {
    with_certificates(load(path)?)
}

/// Returns the configuration and the certificates that it names.
fn with_certificates(located: LocatedConfig) -> Result<(LocatedConfig, Certificates), CommandFailure> {
    let tokens = token_file::problems(&located);
    match Certificates::load(&located) {
        Ok(certificates) if tokens.is_empty() => Ok((located, certificates)),
        Ok(_) => Err(bad(located, tokens)),
        Err(problems) => Err(bad(located, problems.into_iter().chain(tokens).collect())),
    }
}

/// Returns the problems of a configuration as one text.
fn bad(located: LocatedConfig, problems: Vec<Problem>) -> CommandFailure {
    let errors = located.unless(problems).err();
    CommandFailure::BadInput(errors.map(|errors| errors.to_string()).unwrap_or_default())
}

/// Returns a runtime for commands that are not performance-critical.
fn runtime() -> Result<tokio::runtime::Runtime, CommandFailure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.map_err(|error| CommandFailure::Work(anyhow::Error::new(error).context("cannot start the runtime")))
}
