//! Isolates a run in network, mount and process namespaces.
//!
//! The process that the user starts only supervises the one inside, which is process 1 of its process namespace. When
//! that one ends, the kernel kills every process in the namespace, and the networks vanish with the last of them. A
//! folder and a cgroup remain, named after the outer process. They are removed at the end, or by the next start if this
//! process was killed. The process inside ends when its pipe from the outer one closes.

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::thread;

use anyhow::{Context as _, bail, ensure};
use tokio::signal::unix::{SignalKind, signal};

use crate::arguments::Arguments;
use crate::disk;

const PREFIX: &str = "segue-chaos-";
/// A folder with this file in it is never removed.
const KEPT: &str = "kept";
const TOOLS: [&str; 6] = ["ip", "tc", "nft", "nsenter", "unshare", "etcd"];
const NAMESPACES: [&str; 6] = ["--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child=SIGKILL"];

/// Plays inside, and tidies up behind it.
pub(crate) fn enter(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    check_machine()?;
    remove_leftovers();
    let name = format!("{PREFIX}{}", std::process::id());
    let folder = std::env::temp_dir().join(&name);
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let seed = arguments.seed.unwrap_or_else(|| u64::from(rand::random::<u32>()));
    let mut child = Command::new("unshare")
        .args(NAMESPACES)
        .arg("--")
        .arg(std::env::current_exe()?)
        .args(std::env::args_os().skip(1))
        .args(["--seed", &seed.to_string(), "--inside"])
        .arg(&folder)
        .stdin(Stdio::piped())
        .spawn()
        .context("cannot start unshare")?;
    let pipe = child.stdin.take();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    thread::spawn(move || {
        runtime.block_on(async {
            if let (Ok(mut terminated), Ok(mut interrupted)) =
                (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
            {
                tokio::select! {
                    _ = terminated.recv() => {}
                    _ = interrupted.recv() => {}
                }
                eprintln!("chaos: interrupted: ending everything");
                drop(pipe);
            }
        });
    });
    let status = child.wait()?;
    disk::remove_group(&name);
    if status.success() && !arguments.keep {
        fs::remove_dir_all(&folder)?;
    } else {
        fs::write(folder.join(KEPT), "")?;
        eprintln!("chaos: seed {seed}; logs, configuration and timeline are in {}", folder.display());
    }
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Prepares the process inside: it ends with the one outside, and its network names stay private.
pub(crate) fn settle_in() -> anyhow::Result<()> {
    thread::spawn(|| {
        // Nothing is ever written to it; it ends.
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(130);
    });
    fs::create_dir_all("/run/netns")?;
    run("mount", &["-t", "tmpfs", "segue-chaos", "/run/netns"])?;
    run("ip", &["link", "set", "lo", "up"])
}

/// Runs a tool to its end.
pub(crate) fn run(tool: &str, arguments: &[&str]) -> anyhow::Result<()> {
    let output = Command::new(tool).args(arguments).output().with_context(|| format!("cannot start {tool}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{tool} {}: {}", arguments.join(" "), said.trim());
    Ok(())
}

fn check_machine() -> anyhow::Result<()> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there = |tool: &&str| std::env::split_paths(&path).any(|folder| folder.join(tool).is_file());
    let missing: Vec<&str> = TOOLS.into_iter().filter(|tool| !is_there(tool)).collect();
    ensure!(
        missing.is_empty(),
        "not found: {}; `scripts/setup etcd netns` installs them on Debian",
        missing.join(", ")
    );
    let tried = Command::new("unshare").args(NAMESPACES).args(["--", "true"]).output()?;
    if !tried.status.success() {
        let said = String::from_utf8_lossy(&tried.stderr);
        bail!("this needs root and the right to create namespaces, and has it not: {}", said.trim());
    }
    Ok(())
}

/// What runs that were killed have left.
fn remove_leftovers() {
    let folders = fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten().map(|entry| entry.path());
    for folder in folders.filter(|folder| is_leftover(folder)) {
        if let Some(name) = folder.file_name().and_then(|name| name.to_str()) {
            disk::remove_group(name);
        }
        let _ = fs::remove_dir_all(&folder);
    }
}

fn is_leftover(folder: &Path) -> bool {
    let name = folder.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let pid = name.strip_prefix(PREFIX).and_then(|pid| pid.parse::<u32>().ok());
    pid.is_some_and(|pid| !PathBuf::from(format!("/proc/{pid}")).exists()) && !folder.join(KEPT).exists()
}
