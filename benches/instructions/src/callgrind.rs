//! Runs the router under callgrind and reads the number of instructions.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, anyhow, ensure};

use crate::load::Load;
use crate::{client, pod};

/// Returns the instructions that the router in `program` takes to start, serve `requests` requests and end. Callgrind
/// writes its output to `profile`.
pub(crate) fn instructions(
    program: &Path,
    load: &Load,
    requests: u32,
    profile: Option<PathBuf>,
) -> anyhow::Result<u64> {
    let folder = tempfile::tempdir()?;
    let profile = profile.unwrap_or_else(|| folder.path().join("profile"));
    let pods = (0..3).map(|_| pod::start(load.grpc)).collect::<anyhow::Result<Vec<_>>>()?;
    let mut router = start_router(program, load, &pods, &profile)?;
    let played = address_of(&mut router).and_then(|address| client::play(load, address, requests));
    if let Err(error) = played {
        // An error means that the process has already ended.
        let _ = router.kill();
        let _ = router.wait();
        return Err(error.context(format!("{} with {requests} requests", load.name)));
    }
    // The router ends when its standard input does.
    drop(router.stdin.take());
    let status = router.wait()?;
    ensure!(status.success(), "the router under callgrind ended with {status}");
    total(&profile)
}

fn start_router(program: &Path, load: &Load, pods: &[SocketAddr], profile: &Path) -> anyhow::Result<Child> {
    let mut out_file = std::ffi::OsString::from("--callgrind-out-file=");
    out_file.push(profile);
    let mut command = Command::new("valgrind");
    command.arg("--quiet").arg("--tool=callgrind").arg(out_file).arg(program).arg("serve");
    if load.grpc {
        command.arg("--http2");
    }
    if load.tracing {
        command.arg("--tracing");
    }
    command.args(pods.iter().map(SocketAddr::to_string)).stdin(Stdio::piped()).stdout(Stdio::piped());
    command.spawn().context("cannot run valgrind; `scripts/setup instructions` installs it on Debian")
}

fn address_of(router: &mut Child) -> anyhow::Result<SocketAddr> {
    let output = router.stdout.take().ok_or_else(|| anyhow!("the router's output is not connected"))?;
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line)?;
    line.trim().parse().with_context(|| format!("expected the router's address, got {line:?}"))
}

/// Returns the total from callgrind's output.
fn total(profile: &Path) -> anyhow::Result<u64> {
    let text = std::fs::read_to_string(profile).with_context(|| format!("callgrind wrote no {}", profile.display()))?;
    let total = text.lines().find_map(|line| line.strip_prefix("totals:"));
    let total = total.with_context(|| format!("{} has no line `totals:`", profile.display()))?;
    total.trim().parse().with_context(|| format!("expected a number of instructions, got {total:?}"))
}
