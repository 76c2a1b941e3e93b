//! Processes that tests start and end: their output and their exit status.

use std::fs::File;
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Longest wait for something that takes no time on an idle machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes that a failing test shows from the end of each log.
const SHOWN_BYTES: usize = 16 * 1024;

/// A running process whose output goes to a file. Killed when dropped.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `command`; its output is kept in `folder` and shown when a wait for it fails.
    pub fn start(name: &str, folder: &Path, command: &mut Command) -> Self {
        let log = folder.join(format!("{name}.log"));
        let file = File::options().create(true).append(true).open(&log).unwrap();
        let command = command.stdin(Stdio::null()).stdout(file.try_clone().unwrap()).stderr(file);
        let child = command.spawn().unwrap_or_else(|error| panic!("cannot start {name}: {error}"));
        Process { name: name.to_owned(), child, log }
    }

    /// Starts `command` with an output that has no room for a byte, as behind a log driver that hangs. Its reader comes
    /// along: once it is dropped, the process writes to nobody.
    pub fn start_unread(name: &str, folder: &Path, command: &mut Command) -> (Self, UnixStream) {
        let (writer, reader) = full_output();
        let log = folder.join(format!("{name}.log"));
        File::options().create(true).append(true).open(&log).unwrap();
        let command = command.stdin(Stdio::null()).stdout(writer.try_clone().unwrap()).stderr(writer);
        let child = command.spawn().unwrap_or_else(|error| panic!("cannot start {name}: {error}"));
        (Process { name: name.to_owned(), child, log }, reader)
    }

    /// Returns its output so far.
    pub fn output(&self) -> String {
        let mut text = String::new();
        File::open(&self.log).unwrap().read_to_string(&mut text).unwrap();
        text
    }

    /// Returns its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns its exit status, or `None` while it runs.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// Sends it a signal, by name.
    pub fn signal(&self, signal: &str) {
        send_signal(&self.child, signal).unwrap_or_else(|error| panic!("cannot signal {}: {error}", self.name));
    }

    /// Kills it and waits for its end.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Sends it SIGTERM and waits for its end. Returns its exit status and output.
    pub fn terminate(mut self) -> (ExitStatus, String) {
        self.signal("TERM");
        let status = self.wait();
        (status, self.output())
    }

    /// Waits for its end. Returns its exit status.
    pub fn wait(&mut self) -> ExitStatus {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(begun.elapsed() < PATIENCE, "{} does not end:\n{}", self.name, self.output());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until `condition` holds.
    pub fn until(&mut self, what: &str, mut condition: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !condition() {
            if let Some(status) = self.child.try_wait().unwrap() {
                panic!("{} ended with {status} before {what}:\n{}", self.name, self.output());
            }
            assert!(begun.elapsed() < PATIENCE, "{}: no {what}:\n{}", self.name, self.output());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Returns an output that has no room for a byte, and its other end.
pub fn full_output() -> (OwnedFd, UnixStream) {
    let (mut writer, reader) = UnixStream::pair().unwrap();
    writer.set_nonblocking(true).unwrap();
    for size in [1024, 1] {
        let full = loop {
            match writer.write(&b"."[..].repeat(size)) {
                Ok(written) => assert!(written > 0),
                Err(error) => break error,
            }
        };
        assert_eq!(full.kind(), ErrorKind::WouldBlock);
    }
    writer.set_nonblocking(false).unwrap();
    (writer.into(), reader)
}

/// Waits until `condition` holds.
///
/// # Panics
/// When it takes longer than a minute.
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < PATIENCE, "no {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Prints the end of each log in `folder` to standard error if the test is failing. To be called in a `Drop`.
pub fn show_logs_of_a_failure(folder: &Path) {
    if !std::thread::panicking() {
        return;
    }
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    for log in files.filter(|path| path.extension().is_some_and(|extension| extension == "log")) {
        let text = std::fs::read(&log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text[text.len().saturating_sub(SHOWN_BYTES)..]);
        eprintln!("---- {} ----\n{text}", log.display());
    }
}

/// Sends a signal, given by its name without `SIG`.
pub(crate) fn send_signal(child: &Child, signal: &str) -> std::io::Result<()> {
    let signal = match signal {
        "CONT" => Signal::CONT,
        "HUP" => Signal::HUP,
        "INT" => Signal::INT,
        "KILL" => Signal::KILL,
        "QUIT" => Signal::QUIT,
        "STOP" => Signal::STOP,
        "TERM" => Signal::TERM,
        "USR1" => Signal::USR1,
        "USR2" => Signal::USR2,
        _ => return Err(std::io::Error::other(format!("unknown signal {signal:?}"))),
    };
    Ok(kill_process(Pid::from_child(child), signal)?)
}
