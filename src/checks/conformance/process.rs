//! The process of the pod under test, which a scene can kill and start again.
//!
//! # Invariants
//!
//! * The process and all that it has started are dead once they were killed, and at the end of this program's run.

use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process_group};

/// The process.
#[derive(Debug)]
pub(super) struct PodProcess {
    command: String,
    child: Child,
}

impl PodProcess {
    /// Starts a pod by a command of the shell. The pod's output goes to standard error, because standard output is for the
    /// report.
    pub(super) fn start(command: &str) -> anyhow::Result<Self> {
        Ok(PodProcess { command: command.to_owned(), child: spawn(command)? })
    }

    /// Kills the pod with SIGKILL. Returns once its process has ended.
    pub(super) fn kill(&mut self) {
        // The group is the shell and what it has started. Without it there is nothing to kill.
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        // The process is a child of this one, which nobody else waits for.
        let _ = self.child.wait();
    }

    /// Starts a pod that was killed again.
    pub(super) fn start_again(&mut self) -> anyhow::Result<()> {
        self.child = spawn(&self.command)?;
        Ok(())
    }

    /// Returns how the process has ended without having been killed by a scene.
    pub(super) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }
}

impl Drop for PodProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

fn spawn(command: &str) -> anyhow::Result<Child> {
    let output = Stdio::from(std::io::stderr());
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).stdin(Stdio::null()).stdout(output).process_group(0);
    shell.spawn().with_context(|| format!("cannot start the pod by --command {command:?}"))
}
