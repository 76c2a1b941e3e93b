//! A writer pod as a process of its own.
//!
//! ```text
//! etcd &
//! cargo run --release --example writer -- --name writer-0 --listen 127.0.0.1:8181 --log-dir /tmp/segue-log &
//! cargo run --release --example writer -- --name writer-1 --listen 127.0.0.1:8182 --log-dir /tmp/segue-log &
//! segue run --config …            # a router and a coordinator of the same keyspace
//! curl -X PUT -H 'x-partition: 7' -H 'x-request-id: 1' -H 'x-sequence: 1' -d hello 127.0.0.1:8080/keys/a
//! curl -H 'x-partition: 7' 127.0.0.1:8080/keys/a
//! ```
//!
//! # How a service takes part
//!
//! 1. It says what it does when a partition comes or goes: a `HandoffHandler` with `warm` (copy the state while the old
//!    owner still serves), `sync` (read what that one has written since; requests wait), `drain` (end what outlives a
//!    request) and `release` (forget). Here these are four short functions in `segue_demo::writer::pod`: the state is
//!    a cache, and the log, which all pods share, is where it comes from.
//! 2. `PodHandle::start` registers it and calls these when they are due.
//! 3. `PodHandle::layer` goes in front of its HTTP service. It lets through what the pod owns at the request's epoch,
//!    answers `421` to the rest (the router then tries elsewhere), and counts what is in flight, so that "drained" is
//!    known.
//! 4. On SIGTERM `PodHandle::shutdown` hands over all it has before the process ends: no request is lost by a restart.
//!
//! That is all. The service never asks whom a partition belongs to.

use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::Parser;
use segue_coordination::store::{EtcdOptions, EtcdStore};
use segue_demo::log::Log;
use segue_demo::writer::pod::{Membership, Pod};
use segue_demo::writer::{Writer, WriterSettings};
use segue_protocol::keys::Keyspace;
use segue_protocol::records::Capabilities;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

/// A writer pod that keeps the last value of each key.
#[derive(Debug, Parser)]
struct Arguments {
    /// A client URL of etcd; may be given several times.
    #[arg(long, default_value = "http://127.0.0.1:2379")]
    etcd: Vec<String>,
    /// The keyspace.
    #[arg(long, default_value = "default")]
    keyspace: String,
    /// What the keyspace's keys begin with.
    #[arg(long, default_value = "/segue/")]
    prefix: String,
    /// This pod's name, unique in the keyspace.
    #[arg(long)]
    name: String,
    /// Where routers reach it.
    #[arg(long)]
    listen: String,
    /// The folder with the logs, which all writers of the keyspace share.
    #[arg(long)]
    log_dir: PathBuf,
    /// The log refuses writes of an epoch that is over. Needed where processes may be stopped for longer than a lease.
    #[arg(long)]
    fence: bool,
    /// How long it works on a request, in milliseconds, give or take a half.
    #[arg(long, default_value_t = 0)]
    service_time: u64,
    /// How long getting warm takes, in milliseconds, on top of reading the log.
    #[arg(long, default_value_t = 0)]
    warm_time: u64,
    /// The life of its registration without renewal, in seconds.
    #[arg(long, default_value_t = 5)]
    lease_ttl: u64,
    /// How long it may take to hand over when it is told to end, in seconds.
    #[arg(long, default_value_t = 30)]
    patience: u64,
}

#[tokio::main]
async fn main() -> ExitCode {
    let colours = std::io::stderr().is_terminal();
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(colours).init();
    match serve(Arguments::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn serve(arguments: Arguments) -> anyhow::Result<()> {
    let open = if arguments.fence { Log::fenced_in_directory } else { Log::in_directory };
    let log = open(&arguments.log_dir).context("--log-dir")?;
    let listener =
        TcpListener::bind(&arguments.listen).await.with_context(|| format!("--listen {}", arguments.listen))?;
    let store = EtcdStore::connect(EtcdOptions::new(arguments.etcd)).context("--etcd")?;
    let settings = WriterSettings {
        service_time: Duration::from_millis(arguments.service_time),
        warm_time: Duration::from_millis(arguments.warm_time),
        ..WriterSettings::default()
    };
    let writer = Writer::new(&arguments.name, log, settings);
    let member = Membership {
        store: Arc::new(store),
        keys: Keyspace::new(&arguments.prefix, &arguments.keyspace),
        keyspace: arguments.keyspace,
        lease_ttl: Duration::from_secs(arguments.lease_ttl),
    };
    let pod = Pod::start(&writer, &member, listener, Capabilities::ALL)?;
    let (mut terminated, mut interrupted) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::select! {
        _ = terminated.recv() => {}
        _ = interrupted.recv() => {}
    }
    tracing::info!("handing over what this pod has");
    pod.shut_down(Duration::from_secs(arguments.patience)).await;
    Ok(())
}
