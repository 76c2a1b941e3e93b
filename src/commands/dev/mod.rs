//! `segue dev -- COMMAND…`: a whole site for a service on one machine, in one process.
//!
//! The roles are those of `segue run`: an embedded store, a coordinator, a router, and a sidecar for each copy of the command,
//! which is supervised as by `pod.exec`. [`site`] runs them. Here is the course of the command: what it prints meanwhile is made
//! in [`report`] and [`welcome`]. Not for production: the store dies with the process, and everybody on the machine may
//! operate the site.
//!
//! # Invariants
//!
//! * No copy outlives the command, however it ends.
//! * Standard output has only lines of the copies.

mod console;
mod key;
mod report;
mod settings;
mod shell;
mod site;
mod welcome;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::ValueHint;
use futures_util::FutureExt as _;
use futures_util::future::select_all;
use segue_proxy::open_files;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, sleep};

use self::console::Console;
use self::key::RoutingKey;
use self::report::SiteReport;
use self::settings::SiteSettings;
use self::site::{BoundSite, Site};
use super::logging::{Log, start_logging};
use super::run::{cut_off_at_signal, run_to_end};
use super::{CommandFailure, runtime};
use crate::process::last_words::say;
use crate::process::surroundings::of_program;
use crate::process::{any_address, files};

/// The service and its site.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Copies of the command, each a pod: dev-1, dev-2 and so on.
    #[arg(long, value_name = "NUMBER", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=32))]
    pods: u16,
    /// What of a request is its key: path:/persons/{key}, header:x-key, query:id, cookie:sid, json:person.id or host. Requests of
    /// one key go to one pod; longer paths that begin so have it as well.
    #[arg(long, value_name = "SOURCE", default_value = "path:/{key}", value_parser = RoutingKey::parse)]
    key: RoutingKey,
    /// Address of the router, for clients.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// Address of the live page, and of operators' commands.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9090")]
    admin: SocketAddr,
    /// Partitions of the keyspace.
    #[arg(long, value_name = "NUMBER", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65536))]
    partitions: u32,
    /// How long the first copy may take until it listens on its port.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = segue_config::parse_duration)]
    start_timeout: Duration,
    /// The service: a program and its arguments. `{port}` in them, and the variable PORT, are the port to listen on.
    #[arg(trailing_var_arg = true, required = true, value_name = "COMMAND", value_hint = ValueHint::CommandWithArguments)]
    command: Vec<String>,
}

/// How often the site is looked at although nothing was told of it.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

pub(super) fn dev(args: &Args) -> Result<(), CommandFailure> {
    if let Some((fact, expected)) = args.command.first().and_then(|program| of_program(program, None)) {
        return Err(anyhow::anyhow!("{fact}; {expected}").into());
    }
    let mut settings = SiteSettings::new(args)?;
    let log = start_logging(&settings.config);
    let files = open_files::raise_limit();
    files::fit(&mut settings.config, files)?;
    any_address::fit(&mut settings.config);
    match run_to_end(runtime()?, run(args, settings, files, &log))? {
        None => Ok(()),
        Some(failure) => {
            say(failure.trim_end());
            Err(CommandFailure::Exit(ExitCode::FAILURE))
        }
    }
}

/// Runs the site until it is told to end. Returns why no copy serves, if none ever did.
async fn run(args: &Args, settings: SiteSettings, files: usize, log: &Log) -> anyhow::Result<Option<String>> {
    let mut ending = Signals::new()?;
    let console = Console::start(settings.pods.len())?;
    let site = BoundSite::bind(&settings, files).await?;
    console.say(&format!("starting {}", welcome::copies(args.pods, &args.command)));
    let site = site.start(&settings, log, &console).await?;
    let failure = tokio::select! {
        failure = follow(&site, args, &console) => Some(failure),
        () = ending.come() => {
            cut_off_at_signal(1);
            console.say("ending; a second signal exits at once");
            None
        }
    };
    let ended = site.end().await;
    console.finish();
    ended.map(|()| failure)
}

/// Says what becomes of the copies. Returns why none of them serves, if none ever does.
async fn follow(site: &Site, args: &Args, console: &Console) -> String {
    let mut report = SiteReport::new(site.copies.len(), args.start_timeout, Instant::now());
    loop {
        // Before the look, so that nothing goes unseen.
        let changes: Vec<_> = site.copies.iter().map(|copy| copy.changed().boxed()).collect();
        let now = Instant::now();
        for line in report.note(&site.copies.iter().map(site::Copy::phase).collect::<Vec<_>>(), now) {
            console.say(&line);
        }
        if let Some(failure) = report.failure(now) {
            let ports: Vec<u16> = site.copies.iter().map(|copy| copy.port).collect();
            return welcome::failure(failure, &args.command, &ports, &site.copies[0].last_lines());
        }
        if report.is_time_to_welcome(now) {
            console.show(&welcome::welcome(&site.facts(&args.key)));
        }
        tokio::select! {
            _ = select_all(changes) => {}
            () = sleep(LOOK_INTERVAL) => {}
        }
    }
}

/// The signals that end the command; the last one says that its terminal is gone.
struct Signals([tokio::signal::unix::Signal; 3]);

impl Signals {
    fn new() -> anyhow::Result<Self> {
        let listen = |kind| signal(kind).context("cannot listen for signals");
        let [interrupt, terminate, hang_up] = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
        Ok(Signals([listen(interrupt)?, listen(terminate)?, listen(hang_up)?]))
    }

    async fn come(&mut self) {
        select_all(self.0.iter_mut().map(|signal| signal.recv().boxed())).await;
    }
}
