//! Attacks, overload and a soak of a real router, while well-behaved clients continue and each of their responses is
//! checked.
//!
//! [`cluster`] starts etcd, a coordinator and routers; [`service`] is the pod. [`good`] are the clients that must not
//! be harmed, [`attacks`] is what others do meanwhile, and [`judge`] decides. [`overload`], [`memory`] and [`soak`] do
//! the same without malice.
//!
//! # Invariants
//!
//! * An attack that could not run counts as harm.
//! * An attack whose outcome is not the documented one counts as harm.
//! * An attack that made others slow is played twice more, and is harmless if they were not slow each time. Any other harm counts
//!   the first time, unless this machine stood still.

mod attacks;
mod cluster;
mod few_files;
mod gauge;
mod good;
mod held;
mod hot_key;
mod judge;
mod memory;
mod overload;
mod service;
mod soak;
mod wire;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;
use clap::{Parser, Subcommand};
use segue_tests::certificates::Authority;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use self::attacks::Target;
use self::cluster::{Cluster, PARTITIONS};
use self::gauge::{FileLimits, files, raise_file_limit, rss_kib};
use self::good::Good;
use self::judge::{Calm, Verdict, millis, play, undisturbed};

/// Files that this process may have open. Routers get the limits that it was started with, but for the one whose memory is
/// measured with 8,000 clients.
const FILES: u64 = 40_000;
const CALM: Duration = Duration::from_secs(4);

/// Attacks a router, one attack after the other, and reports the responses to each attacker and harm to anybody else.
///
/// Well-behaved clients send the whole time, by HTTP/1.1 and HTTP/2. An attack is harmless if the attacker got what it
/// should get, no such client saw an error or got slower than ten times its calm p99 and 250 ms, no request was applied
/// twice, the router took no more than 128 MiB for it, and its files were closed again. A line each, and at the end
/// `abuse: attacks=… harmless=…`. Exits 0 only if all are.
#[derive(Debug, Parser)]
#[command(name = "segue-abuse", version)]
struct Arguments {
    /// Only those whose name contains this; `few-files`, `hot-key`, `held-uploads`, `overload`, `outage` and `memory` are among
    /// them.
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// A steady load with handoffs: does anything grow?
    Soak {
        /// How long.
        #[arg(long, default_value_t = 10)]
        minutes: u64,
    },
    /// Runs a router whose allocator counts, for `soak`.
    #[command(hide = true)]
    CountedRouter {
        #[arg(long)]
        config: std::path::PathBuf,
    },
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(Command::CountedRouter { config }) = &arguments.command {
        return soak::counted_router(config);
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&error.into()),
    };
    let done = runtime.block_on(async {
        match arguments.command {
            Some(Command::Soak { minutes }) => soak::run(Duration::from_secs(60 * minutes)).await,
            _ => abuse(arguments.only.as_deref()).await,
        }
    });
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => failed(&error),
    }
}

fn failed(error: &anyhow::Error) -> ExitCode {
    eprintln!("abuse: {error:#}");
    ExitCode::FAILURE
}

#[expect(clippy::print_stdout, reason = "that is what it is for")]
fn say(line: &str) {
    println!("{line}");
}

/// Returns what makes connections by TLS to a router with a certificate of this authority.
fn trusting(authority: &Authority) -> anyhow::Result<TlsConnector> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&authority.file)?)?;
    let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

/// Plays attacks against a router that speaks to pods by `protocol`.
async fn play_all(
    cluster: &Cluster,
    protocol: &str,
    keyed: SocketAddr,
    attacks: &[attacks::Attack],
    count: &mut impl FnMut(Verdict),
) -> anyhow::Result<()> {
    if attacks.is_empty() {
        return Ok(());
    }
    let mut router = cluster.victim(protocol).await?;
    let authority = Authority::new(cluster.folder(), &format!("ours-{protocol}"));
    let shown = authority.issue("router");
    let keys =
        format!("tls = {{ cert = {:?}, key = {:?} }}\nlimits.header_read_timeout = \"2s\"", shown.cert, shown.key);
    let secure = cluster.router(&format!("r-tls-{protocol}"), &keys).await?;
    let (seen, admin) = (cluster.pods.seen.clone(), router.admin);
    let target = Target {
        router: router.address,
        secure: secure.address,
        secure_pid: secure.pid(),
        connector: trusting(&authority)?,
        keyed,
        seen,
        admin,
    };
    let good = Good::start(router.address, PARTITIONS);
    tokio::time::sleep(Duration::from_secs(1)).await;
    good.take();
    tokio::time::sleep(CALM).await;
    let measured = good.take();
    ensure!(measured.errors.is_empty(), "not even calm: {:?}", measured.errors.first());
    let calm = Calm { p99: measured.p99(), rss_kib: rss_kib(router.pid()), files: files(router.pid()) };
    say(&format!(
        "calm, protocol = {protocol}: p99 {} ms, {} requests in {} s, rss {} MiB, {} files; bound under attack: {} ms",
        millis(calm.p99),
        measured.requests,
        CALM.as_secs(),
        calm.rss_kib >> 10,
        calm.files,
        millis(calm.bound())
    ));
    for attack in attacks {
        count(undisturbed(async || Ok(play(attack, &target, &mut router, &good, &calm).await)).await?);
    }
    Ok(())
}

async fn abuse(only: Option<&str>) -> anyhow::Result<bool> {
    let files_allowed = raise_file_limit(FILES);
    let mut attacks = attacks::all();
    let chosen = |name: &str| only.is_none_or(|only| name.contains(only));
    attacks.retain(|attack| chosen(attack.name));
    let mut shared = attacks::on_shared_connections();
    shared.retain(|attack| chosen(attack.name));
    let mut cluster = Cluster::start().await?;
    let (mut played, mut harmless) = (0, 0);
    let mut count = |verdict: Verdict| {
        say(&verdict.line);
        played += 1;
        harmless += usize::from(verdict.harm.is_none());
    };
    if !attacks.is_empty() || !shared.is_empty() {
        let keyed = cluster.keyed_router("keys", "path = \"/persons/{key}\"").await?;
        for (protocol, attacks) in [("auto", attacks), ("http2", shared)] {
            play_all(&cluster, protocol, keyed.router.address, &attacks, &mut count).await?;
        }
    }
    if chosen("few-files") {
        count(few_files::run(&cluster).await?);
    }
    if chosen("hot-key") {
        count(undisturbed(async || hot_key::run(&cluster).await).await?);
    }
    if chosen("held-uploads") {
        count(held::run(&mut cluster).await?);
    }
    if chosen("overload") {
        count(undisturbed(async || overload::run(&cluster).await).await?);
    }
    if chosen("outage") {
        count(undisturbed(async || overload::outage(&cluster).await).await?);
    }
    if chosen("memory") {
        ensure!(files_allowed >= 18_000, "needs 18,000 open files, and may have {files_allowed}: raise `ulimit -n`");
        for line in memory::run(&mut cluster, FileLimits::of(files_allowed)).await? {
            count(line);
        }
        count(memory::crumbs(&mut cluster).await?);
        count(memory::awaited_keys(&cluster).await?);
    }
    ensure!(played > 0, "no attack is called {only:?}");
    say(&format!("abuse: attacks={played} harmless={harmless}"));
    Ok(played == harmless)
}
