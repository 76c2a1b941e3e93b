//! A writer pod that takes part by gRPC alone: `membership` in front of the service in `writer`.

mod clock;
mod membership;
mod token;
mod writer;

/// Generated from `segue/v1/pods.proto`.
#[allow(missing_docs, unreachable_pub, clippy::all)]
mod proto {
    tonic::include_proto!("segue.v1");
}

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::Parser;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use membership::{Identity, Membership};
use token::Token;
use writer::{Pace, Writer};

/// A writer pod that keeps the last value of each key.
#[derive(Debug, Parser)]
struct Arguments {
    #[arg(long, required = true, help = "host:port; several are tried in turn")]
    coordinator: Vec<String>,
    #[arg(long, help = "File of the token that the coordinators require")]
    token_file: Option<PathBuf>,
    #[arg(long, default_value = "default", help = "The keyspace")]
    keyspace: String,
    #[arg(long, help = "This pod's name, unique in the keyspace")]
    name: String,
    #[arg(long, help = "Where routers reach it, host:port")]
    listen: String,
    #[arg(long, help = "The folder with the logs, which all writers of the keyspace share")]
    log_dir: PathBuf,
    #[arg(long, default_value_t = 15, help = "The life of its registration without renewal, in seconds")]
    lease_ttl: u64,
    #[arg(long, default_value_t = 0, help = "How long getting warm takes besides reading the log, in milliseconds")]
    warm_time: u64,
    #[arg(long, default_value_t = 0, help = "How long it works on a request, in milliseconds, give or take a half")]
    service_time: u64,
}

// All tasks share one thread, so an aborted task does not run on.
#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt().with_writer(io::stderr).init();
    let arguments = Arguments::parse();
    let listener = TcpListener::bind(&arguments.listen).await.context("--listen")?;
    std::fs::create_dir_all(&arguments.log_dir).context("--log-dir")?;

    let identity = Identity {
        keyspace: arguments.keyspace,
        name: arguments.name,
        address: listener.local_addr()?.to_string(),
        lease_ttl: Duration::from_secs(arguments.lease_ttl),
        token: Token(arguments.token_file),
    };
    let pace = Pace {
        warm: Duration::from_millis(arguments.warm_time),
        service: Duration::from_millis(arguments.service_time),
    };
    let writer = Arc::new(Writer::new(arguments.log_dir, pace));
    let membership = Membership::new(identity, writer.clone());
    tokio::spawn(axum::serve(listener, writer::routes(writer, membership.clone())).into_future());
    tokio::spawn(membership.clone().run(arguments.coordinator));

    let mut terminated = signal(SignalKind::terminate())?;
    tokio::select! {
        _ = terminated.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
    }
    tracing::info!("handing over what this pod has");
    anyhow::ensure!(membership.leave(Duration::from_secs(60)).await, "some partitions were not handed over in time");
    Ok(())
}
