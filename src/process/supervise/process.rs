//! The supervisor's process, and the step between it and the service.

use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream as StdStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode, Stdio};

use anyhow::Context as _;
use rustix::process::{
    Pid, Resource, Rlimit, Signal, WaitStatus, getpid, getppid, getrlimit, kill_process_group,
    set_parent_process_death_signal, setrlimit, setsid,
};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::signal::unix::{SignalKind, signal};

use super::deadline::Deadline;
use super::descendants;
use super::launch::Launch;
use crate::process::last_words::{self, say};

/// The exit codes of shells for a program that cannot be run, or does not exist.
const CANNOT_RUN: u8 = 126;
const NOT_FOUND: u8 = 127;

/// Why the service is killed.
enum Kill {
    Told,
    Deadline,
    SidecarGone,
}

/// Supervises `command` until it has ended. Must be called on the main thread: the service's parent-death signal
/// follows the thread that forked.
pub(crate) fn supervise(command: &[String], files: Option<u64>) -> anyhow::Result<ExitCode> {
    // The runtime has only this thread.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(run(command, files))
}

async fn run(command: &[String], files: Option<u64>) -> anyhow::Result<ExitCode> {
    descendants::adopt().context("cannot become the subreaper of the service's children")?;
    // A signal to a whole group or session is meant for the sidecar, which forwards those for the service.
    let ignored = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup(), SignalKind::quit()];
    let _ignored = ignored.map(signal).into_iter().collect::<io::Result<Vec<_>>>()?;
    let mut children = signal(SignalKind::child())?;
    let control = StdStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    control.set_nonblocking(true)?;
    let (orders, mut replies) = UnixStream::from_std(control)?.into_split();
    let mut orders = BufReader::new(orders).lines();
    let (deadline, mut passed) = Deadline::new().context("cannot watch the deadline")?;

    let started = Command::new("/proc/self/exe")
        .arg0("segue")
        .arg("become-service")
        .args(last_words::is_json().then_some("--json"))
        .args(files.iter().flat_map(|files| ["--files".to_owned(), files.to_string()]))
        .arg(getpid().as_raw_nonzero().to_string())
        .arg("--")
        .args(command)
        .stdin(Stdio::null())
        .spawn();
    let service = Pid::from_child(&started.context("cannot start the service")?);
    let _ = replies.write_all(format!("runs {}\n", service.as_raw_nonzero()).as_bytes()).await;
    let mut code = None;
    let kill = loop {
        tokio::select! {
            _ = children.recv() => {
                descendants::reap(|pid, status| if pid == service { code = Some(exit_code(status)) });
                if code.is_some() {
                    break None;
                }
            }
            order = orders.next_line() => match order.ok().flatten().as_deref().map(|order| order.split_once(' ')) {
                Some(Some(("until", at))) => deadline.set(at.parse().context("a deadline is no number")?)?,
                Some(Some(("signal", number))) => forward(service, number),
                Some(_) => break Some(Kill::Told),
                None => break Some(Kill::SidecarGone),
            },
            () = passed.wait() => break Some(Kill::Deadline),
        }
    };
    // Kills the group at once, in one call, even where /proc cannot be read.
    let _ = kill_process_group(service, Signal::KILL);
    descendants::kill_all(|pid, status| {
        if pid == service && code.is_none() {
            code = Some(exit_code(status))
        }
    })
    .await;
    let reply = match (&kill, code) {
        (None, Some(code)) => format!("ended {code}\n"),
        _ => "killed\n".to_owned(),
    };
    let _ = replies.write_all(reply.as_bytes()).await;
    // Only now: standard error may be a pipe that nobody reads.
    match kill {
        Some(Kill::Deadline) => say("segue: the lease may have ended: the service was killed"),
        Some(Kill::SidecarGone) => say("segue: the sidecar is gone: the service was killed"),
        Some(Kill::Told) | None => {}
    }
    Ok(ExitCode::SUCCESS)
}

fn forward(service: Pid, number: &str) {
    if let Some(signal) = number.parse().ok().and_then(Signal::from_named_raw) {
        // Only the service itself gets the signal, as from an init: it forwards signals to its children as it likes.
        let _ = rustix::process::kill_process(service, signal);
    }
}

/// Returns the exit code as shells report it.
fn exit_code(status: WaitStatus) -> u8 {
    let signal = || status.terminating_signal().map(|signal| 128 + signal);
    status.exit_status().or_else(signal).map_or(u8::MAX, |code| code as u8)
}

/// Becomes the service: dies with the supervisor, leads a session of its own, and runs `command` in its place. Returns
/// only if that fails. `files` is the soft limit of open files that the sidecar had before it raised it, for programs
/// that cannot handle descriptors above 1,024.
pub(crate) fn become_service(supervisor: i32, command: &[String], files: Option<u64>) -> anyhow::Result<ExitCode> {
    let Some((program, arguments)) = command.split_first() else { return Ok(ExitCode::from(CANNOT_RUN)) };
    let mut service = Command::new(program);
    service.args(arguments);
    let launch = Launch::received().context("cannot read how the service starts")?;
    if let Err(error) = launch.become_user(&mut service) {
        say(&format!("segue: pod.exec_user: {error:#}"));
        return Ok(ExitCode::from(CANNOT_RUN));
    }
    // Only now: a process that becomes another user's forgets the signal.
    set_parent_process_death_signal(Some(Signal::KILL)).context("cannot have the service die with its supervisor")?;
    if getppid().map(|parent| parent.as_raw_nonzero().get()) != Some(supervisor) {
        // The supervisor died before the signal was requested.
        return Ok(ExitCode::FAILURE);
    }
    setsid().context("cannot lead a session")?;
    if files.is_some() {
        let limit = Rlimit { current: files, ..getrlimit(Resource::Nofile) };
        setrlimit(Resource::Nofile, limit).context("cannot set the limit of open files back")?;
    }
    if let Err(error) = launch.enter() {
        say(&format!("segue: pod.exec_cwd: {error:#}"));
        return Ok(ExitCode::from(CANNOT_RUN));
    }
    let error = service.exec();
    say(&format!("segue: pod.exec: cannot run {program}: {error}"));
    Ok(ExitCode::from(if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { CANNOT_RUN }))
}
