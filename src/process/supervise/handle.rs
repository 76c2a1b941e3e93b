//! The sidecar's side of supervision: it starts the service, extends its deadline, and ends it.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use segue_config::Exec;
use segue_coordination::pod::boottime_millis;
use segue_proxy::open_files;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedWriteHalf;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tracing::{error, info, warn};

use super::descendants;
use super::launch::Launch;
use crate::process::last_words;

/// How long a supervisor may take to kill a service before its sidecar does.
const KILL_TIMEOUT: Duration = Duration::from_secs(1);
/// The exit code of a killed service.
const KILLED_CODE: u8 = 128 + 9;

/// The unrequested end of a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct UnexpectedExit {
    /// The exit code, as shells report it.
    pub code: u8,
}

/// A supervised service, which may be started repeatedly.
#[derive(Debug)]
pub(crate) struct Supervisor {
    command: Vec<String>,
    launch: Launch,
    running: tokio::sync::Mutex<Option<RunningProcess>>,
    state: watch::Sender<ServiceState>,
    /// The pipe to the supervisor, for orders that cannot wait for `running`.
    orders: Mutex<Option<OwnedWriteHalf>>,
}

#[derive(Debug)]
struct RunningProcess {
    process: Child,
}

/// The known state of the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ServiceState {
    /// Not started, or killed on purpose.
    Stopped,
    Runs,
    /// Ended by itself.
    Ended(u8),
}

impl Supervisor {
    /// Returns the supervisor of this service. [`start`](Self::start) starts it.
    pub(crate) fn new(exec: Exec) -> anyhow::Result<Self> {
        // The descendants of a dead supervisor become children of this process.
        descendants::adopt().context("cannot become the subreaper of the service")?;
        Ok(Supervisor {
            launch: Launch::of(&exec),
            command: exec.command,
            running: tokio::sync::Mutex::new(None),
            state: watch::channel(ServiceState::Stopped).0,
            orders: Mutex::new(None),
        })
    }

    /// Starts the service, unless it runs. A service that has ended by itself is not started again.
    pub(crate) async fn start(self: &std::sync::Arc<Self>) -> anyhow::Result<()> {
        let mut running = self.running.lock().await;
        if *self.state.borrow() != ServiceState::Stopped {
            return Ok(());
        }
        let (near, far) = StdStream::pair()?;
        let mut command = Command::new("/proc/self/exe");
        command.arg0("segue").arg("supervise");
        if let Some(files) = open_files::found() {
            command.args(["--files", &files.to_string()]);
        }
        if last_words::is_json() {
            command.arg("--json");
        }
        command.arg("--").args(&self.command);
        self.launch.give(&mut command);
        command.stdin(Stdio::from(OwnedFd::from(far))).process_group(0);
        let process = command.spawn().context("pod.exec: cannot start the supervisor")?;
        let id = process.id();
        near.set_nonblocking(true)?;
        let (replies, orders) = UnixStream::from_std(near)?.into_split();
        info!(service = self.command.first(), supervisor = id, "service started");
        *self.orders() = Some(orders);
        self.state.send_replace(ServiceState::Runs);
        *running = Some(RunningProcess { process });
        let supervisor = std::sync::Arc::downgrade(self);
        tokio::spawn(async move {
            let reply = BufReader::new(replies).lines().next_line().await.ok().flatten();
            if let Some(supervisor) = supervisor.upgrade() {
                supervisor.ended_with(id, reply.as_deref()).await;
            }
        });
        Ok(())
    }

    /// Sets the deadline after which nothing that the service does may take effect.
    pub(crate) fn lend(&self, until: Instant) {
        self.order(&format!("until {}\n", boottime_millis(until)));
    }

    /// Passes a signal on to the service.
    pub(crate) fn signal(&self, number: i32) {
        self.order(&format!("signal {number}\n"));
    }

    /// Returns once the service is not running.
    pub(crate) async fn stopped(&self) {
        let _ = self.state.subscribe().wait_for(|state| *state != ServiceState::Runs).await;
    }

    /// Returns once the service has ended by itself.
    pub(crate) async fn ended(&self) -> UnexpectedExit {
        loop {
            let mut state = self.state.subscribe();
            let ended = state.wait_for(|state| matches!(state, ServiceState::Ended(_))).await.map(|state| *state);
            if let Ok(ServiceState::Ended(code)) = ended {
                return UnexpectedExit { code };
            }
        }
    }

    /// Ends the service: asks it to end until `by`, then kills it. Returns once all its processes are dead.
    pub(crate) async fn end(&self, by: Instant) {
        if *self.state.borrow() == ServiceState::Runs && by > Instant::now() {
            self.signal(rustix::process::Signal::TERM.as_raw());
            let _ = timeout_at(by, self.stopped()).await;
        }
        if *self.state.borrow() != ServiceState::Runs {
            return;
        }
        self.order("kill\n");
        if timeout(KILL_TIMEOUT, self.stopped()).await.is_err() {
            error!("supervisor does not respond; killing it and the service");
            let mut running = self.running.lock().await;
            kill_descendants().await;
            *running = None;
            self.state.send_replace(ServiceState::Stopped);
        }
    }

    /// Handles the last message of the supervisor with this process id, or its end without one.
    async fn ended_with(&self, id: u32, reply: Option<&str>) {
        let mut running = self.running.lock().await;
        // The supervisor may have been killed and replaced by another one meanwhile.
        let Some(RunningProcess { mut process }) = running.take_if(|running| running.process.id() == id) else {
            return;
        };
        let state = match reply {
            Some("killed") => ServiceState::Stopped,
            Some(reply) => {
                let code = reply.strip_prefix("ended ").and_then(|code| code.parse().ok()).unwrap_or(KILLED_CODE);
                warn!(code, "service exited");
                ServiceState::Ended(code)
            }
            None => {
                error!("supervisor is gone; killing the service");
                ServiceState::Ended(KILLED_CODE)
            }
        };
        if reply.is_none() {
            kill_descendants().await;
        } else {
            // The process ends now.
            let _ = tokio::task::spawn_blocking(move || process.wait()).await;
        }
        *self.orders() = None;
        self.state.send_replace(state);
    }

    /// Does not wait: a supervisor that does not read is one that does not live.
    fn order(&self, order: &str) {
        if let Some(orders) = &*self.orders()
            && let Err(error) = orders.try_write(order.as_bytes())
        {
            warn!(%error, order = order.trim_end(), "supervisor does not accept an order");
        }
    }

    fn orders(&self) -> std::sync::MutexGuard<'_, Option<OwnedWriteHalf>> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Kills the processes that a supervisor has left behind, and the supervisor. Logs those that do not die: nothing else
/// shows why the pod keeps its registration.
async fn kill_descendants() {
    let mut warned = Instant::now();
    loop {
        let left = descendants::kill();
        descendants::reap_only(&left);
        if left.is_empty() {
            return;
        }
        if warned.elapsed() >= KILL_TIMEOUT {
            warned = Instant::now();
            let pids: Vec<String> = left.iter().map(ToString::to_string).collect();
            error!(pids = pids.join(" "), "processes of the service cannot be killed; retrying");
        }
        sleep(descendants::RETRY_PAUSE).await;
    }
}
