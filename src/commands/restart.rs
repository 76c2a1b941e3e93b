//! `segue restart`: starts the successor of a running router, and returns once that serves.
//!
//! The successor reports to a socket of this command, as a service does to systemd. The command then names the successor
//! to its own service manager, which takes it for the main process of the unit from there on. The successor inherits
//! `NOTIFY_SOCKET`, so it tells that manager of its end.

use std::io::ErrorKind;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail};
use sd_notify::NotifyState;

use super::service_manager::REPORT_SOCKET;
use super::{CommandFailure, load_with_certificates};
use crate::process::hot_restart;

/// How often the command looks whether the successor still runs.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Added to the time in which the new process gives up by itself, so that its own reason is printed.
///
/// Five steps with the old process may each take ten seconds.
const MARGIN: Duration = Duration::from_secs(60);
/// Longest message that is read. Further bytes are cut off.
const MAX_MESSAGE: usize = 4096;

/// The configuration.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Configuration file of the running router, possibly changed.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

pub(super) fn restart(args: &Args) -> Result<(), CommandFailure> {
    let (located, _) = load_with_certificates(&args.config)?;
    let router = located.config.router.as_ref();
    let found = router.and_then(|router| Some((router.lease_ttl, router.hot_restart_socket.as_ref()?)));
    let Some((lease_ttl, hot_restart_socket)) = found else {
        let file = args.config.display();
        return Err(CommandFailure::BadInput(format!("{file}: segue restart needs the key router.hot_restart_socket")));
    };

    let socket = ReportSocket::bind(hot_restart_socket)?;
    let binary = std::env::current_exe().context("cannot find this program's file")?;
    let successor = Command::new(binary)
        .args(["run", "--config"])
        .arg(&args.config)
        .env(REPORT_SOCKET, &socket.path)
        .stdin(Stdio::null())
        // Standard error has the successor's log until it serves, which then goes on where the running process has its own.
        .stdout(Stdio::null())
        // Ctrl-C on this command's terminal is not for the successor.
        .process_group(0)
        .spawn()
        .context("cannot start the new process")?;
    let pid = successor.id();
    wait_until_it_serves(successor, &socket.socket, hot_restart::patience(lease_ttl) + MARGIN)?;
    sd_notify::notify(&[NotifyState::MainPid(pid), NotifyState::Ready])
        .context("the new process serves, but the service manager cannot be told")?;
    Ok(())
}

/// The socket through which the successor reports, beside the one for hot restarts. Removed when dropped.
struct ReportSocket {
    path: PathBuf,
    socket: UnixDatagram,
}

impl ReportSocket {
    fn bind(beside: &Path) -> anyhow::Result<Self> {
        let mut path = beside.as_os_str().to_owned();
        path.push(format!(".report-{}", std::process::id()));
        let path = PathBuf::from(path);
        let socket = UnixDatagram::bind(&path).with_context(|| format!("cannot listen at {}", path.display()))?;
        Ok(ReportSocket { path, socket })
    }
}

impl Drop for ReportSocket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn wait_until_it_serves(mut successor: Child, socket: &UnixDatagram, patience: Duration) -> anyhow::Result<()> {
    socket.set_read_timeout(Some(LOOK_EVERY)).context("cannot wait for the new process")?;
    let deadline = Instant::now() + patience;
    let mut message = [0; MAX_MESSAGE];
    while Instant::now() < deadline {
        match socket.recv(&mut message) {
            Ok(length) if message[..length].split(|byte| *byte == b'\n').any(|line| line == b"READY=1") => {
                return Ok(());
            }
            Ok(_) => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => return Err(anyhow!(error).context("cannot wait for the new process")),
        }
        if let Some(status) = successor.try_wait().context("cannot wait for the new process")? {
            bail!("the new process ended before it served ({status}); the running one keeps serving");
        }
    }
    // It may serve all the same, so it is left alone. Otherwise it gives up by itself.
    bail!("process {} has not reported within {} s that it serves; read its log", successor.id(), patience.as_secs())
}
