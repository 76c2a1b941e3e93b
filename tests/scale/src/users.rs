//! Measures how long many processes take to be ready at an etcd with users, after a start of all of them and after a restart of
//! etcd.
//!
//! Each check of a password costs etcd some 0.1 s of CPU time, and a restart makes every token void.

use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use segue_tests::config::Config;
use segue_tests::etcd::Etcd;
use segue_tests::ports::free_address;
use segue_tests::process::Process;
use segue_tests::{etcd_admin, http};
use tempfile::TempDir;

const ROUTERS: u32 = 4;
/// The time that etcd is gone: less than any lease lasts.
const GONE: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(100);
/// All authentications that etcd was asked for.
const AUTHENTICATIONS: &str =
    r#"grpc_server_started_total{grpc_method="Authenticate",grpc_service="etcdserverpb.Auth",grpc_type="unary"}"#;

/// Starts a coordinator, four routers and sidecars, `processes` in all, and prints the times.
pub(crate) fn measure(processes: u32, patience: Duration) -> anyhow::Result<()> {
    let segue = std::env::current_exe()?.with_file_name("segue");
    ensure!(segue.is_file(), "{} is missing: build it in the same profile", segue.display());
    let (etcd, folder) = (Etcd::start_on_disk(), TempDir::new()?);
    let address = etcd.endpoint().trim_start_matches("http://").parse()?;
    etcd_admin::enable_users(address, "password").map_err(anyhow::Error::msg)?;
    let password = folder.path().join("password");
    std::fs::write(&password, "password")?;
    let base = Config::new([etcd.endpoint()])
        .set("store.username", etcd_admin::USER)
        .set("store.password_file", password.to_string_lossy().into_owned());

    // What all sidecars stand in front of. It only has to accept connections.
    let service = TcpListener::bind("127.0.0.1:0")?;
    let began = Instant::now();
    let mut admins = Vec::new();
    let mut all = Vec::new();
    for number in 0..processes {
        let (name, admin) = (format!("process-{number}"), free_address());
        let config =
            with_role(base.clone().admin(admin), number, &name, service.local_addr()?).write(folder.path(), &name);
        let mut command = std::process::Command::new(&segue);
        all.push(Process::start(&name, folder.path(), command.args(["run", "--config"]).arg(config)));
        admins.push(admin);
    }
    let started = all_ready(&admins, began, patience).context("after the start")?;
    let first = etcd.metric(AUTHENTICATIONS).unwrap_or(0.0);

    etcd.kill();
    std::thread::sleep(GONE);
    let before = admins.iter().map(|admin| (*admin, trusted_until(*admin))).collect();
    etcd.restart();
    let back = Instant::now();
    all_confirmed(before, back, patience).context("after the restart of etcd")?;
    let restarted = back.elapsed();
    let second = etcd.metric(AUTHENTICATIONS).unwrap_or(0.0);
    println!(
        "users: processes={processes} ready_s={:.1} after_restart_s={:.1} authentications={first}+{second}",
        started.as_secs_f64(),
        restarted.as_secs_f64()
    );
    Ok(())
}

fn with_role(config: Config, number: u32, name: &str, service: SocketAddr) -> Config {
    match number {
        0 => config.coordinator(name, 64),
        1..=ROUTERS => config.router(name, free_address()).set("router.partition.header", "x-partition"),
        _ => config.pod(name, free_address(), service),
    }
}

/// Waits until every process is ready. Returns how long that took.
fn all_ready(admins: &[SocketAddr], since: Instant, patience: Duration) -> anyhow::Result<Duration> {
    let mut waiting: Vec<SocketAddr> = admins.to_vec();
    while !waiting.is_empty() {
        waiting.retain(|admin| !http::is_ready(*admin));
        if since.elapsed() > patience {
            let why = http::get(waiting[0], "/ready").map(|(_, reason)| reason).unwrap_or_default();
            bail!("{} of {} processes are not ready after {patience:?}: {why}", waiting.len(), admins.len());
        }
        std::thread::sleep(POLL);
    }
    Ok(since.elapsed())
}

/// Waits until every process has had its lease confirmed since it trusted it until then, and is ready.
fn all_confirmed(mut waiting: Vec<(SocketAddr, f64)>, since: Instant, patience: Duration) -> anyhow::Result<()> {
    while !waiting.is_empty() {
        waiting.retain(|(admin, before)| trusted_until(*admin) <= *before || !http::is_ready(*admin));
        if since.elapsed() > patience {
            bail!("{} processes have no lease confirmed after {patience:?}", waiting.len());
        }
        std::thread::sleep(POLL);
    }
    Ok(())
}

/// Returns until when a process may trust its leases, as its metrics say.
fn trusted_until(admin: SocketAddr) -> f64 {
    let page = http::get(admin, "/metrics").map(|(_, page)| page).unwrap_or_default();
    let series = page.lines().filter(|line| line.starts_with("segue_lease_trusted_until_timestamp_seconds{"));
    series.filter_map(|line| line.rsplit(' ').next()?.parse().ok()).fold(0.0, f64::max)
}
