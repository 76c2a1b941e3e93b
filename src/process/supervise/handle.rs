//! The sidecar's side of supervision: it starts the service, extends its deadline, and ends it.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use anyhow::Context as _;
use segue_config::Exec;
use segue_coordination::pod::boottime_millis;
use segue_protocol::back_off::BackOff;
use segue_proxy::open_files;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};
use tracing::{error, info, warn};

use super::descendants;
use super::launch::Launch;
use super::output::{OutputReaders, ServiceOutput};
use crate::process::last_words;

/// How long a supervisor may take to kill a service before its sidecar does.
const KILL_TIMEOUT: Duration = Duration::from_secs(1);
/// The exit code of a killed service.
const KILLED_CODE: u8 = 128 + 9;
/// A service that has run for so long is not taken for one that fails again and again.
const STEADY: Duration = Duration::from_secs(10);

/// The supervisors of this process that live. Each has descendants of its own.
static LIVING: Mutex<BTreeSet<i32>> = Mutex::new(BTreeSet::new());

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
    output: Option<Arc<dyn ServiceOutput>>,
    restarts: Option<BackOff>,
    running: tokio::sync::Mutex<Option<RunningProcess>>,
    state: watch::Sender<ServiceState>,
    /// The pipe to the supervisor, for orders that cannot wait for `running`.
    orders: Mutex<Option<OwnedWriteHalf>>,
}

#[derive(Debug)]
struct RunningProcess {
    process: Child,
    output: OutputReaders,
    since: Instant,
    /// How often the service had ended by itself before, each time soon after its start.
    failures: u32,
}

/// The known state of the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ServiceState {
    /// Not started, or killed on purpose.
    Stopped,
    /// Runs, with this process id as soon as its supervisor has told it.
    Runs(Option<u32>),
    /// Ended by itself.
    Ended {
        /// The exit code, as shells report it.
        code: u8,
        /// When it may be started again; `None`: never.
        again: Option<Instant>,
        /// How often it has ended so in a row, each time soon after its start.
        failures: u32,
    },
}

impl ServiceState {
    fn runs(&self) -> bool {
        matches!(self, ServiceState::Runs(_))
    }
}

impl Supervisor {
    /// Returns the supervisor of this service. [`start`](Self::start) starts it.
    pub(crate) fn new(exec: Exec) -> anyhow::Result<Self> {
        // The descendants of a dead supervisor become children of this process.
        descendants::adopt().context("cannot become the subreaper of the service")?;
        Ok(Supervisor {
            launch: Launch::of(&exec),
            command: exec.command,
            output: None,
            restarts: None,
            running: tokio::sync::Mutex::new(None),
            state: watch::channel(ServiceState::Stopped).0,
            orders: Mutex::new(None),
        })
    }

    /// Has the service's lines go there, in place of this process's own output.
    pub(crate) fn with_output(self, output: Arc<dyn ServiceOutput>) -> Self {
        Supervisor { output: Some(output), ..self }
    }

    /// Lets the service be started again after it has ended by itself, after a pause. Without this it is not.
    pub(crate) fn with_restarts(self, pauses: BackOff) -> Self {
        Supervisor { restarts: Some(pauses), ..self }
    }

    /// Returns a channel with the known state of the service.
    pub(crate) fn state(&self) -> watch::Receiver<ServiceState> {
        self.state.subscribe()
    }

    /// Starts the service, unless it runs. One that has ended by itself is started after its pause, if it ever is.
    pub(crate) async fn start(self: &Arc<Self>) -> anyhow::Result<()> {
        let known = *self.state.borrow();
        let failures = match known {
            ServiceState::Stopped => 0,
            ServiceState::Ended { again: Some(again), failures, .. } => {
                sleep_until(again).await;
                failures
            }
            ServiceState::Runs(_) | ServiceState::Ended { again: None, .. } => return Ok(()),
        };
        let mut running = self.running.lock().await;
        if *self.state.borrow() != known {
            return Ok(());
        }
        let (near, far) = StdStream::pair()?;
        let mut process = spawn(&mut self.command(far))?;
        let output = self.output.as_ref().map(|output| OutputReaders::start(&mut process, output)).transpose();
        let output = output.context("cannot read what the service writes")?.unwrap_or_else(OutputReaders::none);
        let id = process.id();
        near.set_nonblocking(true)?;
        let (replies, orders) = UnixStream::from_std(near)?.into_split();
        info!(service = self.command.first(), supervisor = id, "service started");
        *self.orders() = Some(orders);
        self.state.send_replace(ServiceState::Runs(None));
        *running = Some(RunningProcess { process, output, since: Instant::now(), failures });
        tokio::spawn(follow(Arc::downgrade(self), id, replies));
        Ok(())
    }

    /// Returns the command line of the supervisor's process, which reads orders from this stream.
    fn command(&self, orders: StdStream) -> Command {
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
        if self.output.is_some() {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
        command.stdin(Stdio::from(OwnedFd::from(orders))).process_group(0);
        command
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
        let _ = self.state.subscribe().wait_for(|state| !state.runs()).await;
    }

    /// Returns once the service has ended by itself and may be started again.
    pub(crate) async fn awaits_restart(&self) {
        let may_restart = |state: &ServiceState| matches!(state, ServiceState::Ended { again: Some(_), .. });
        let _ = self.state.subscribe().wait_for(may_restart).await;
    }

    /// Returns once the service has ended by itself.
    pub(crate) async fn ended(&self) -> UnexpectedExit {
        loop {
            let mut state = self.state.subscribe();
            let ended = state.wait_for(|state| matches!(state, ServiceState::Ended { .. })).await;
            if let Ok(ServiceState::Ended { code, .. }) = ended.map(|state| *state) {
                return UnexpectedExit { code };
            }
        }
    }

    /// Ends the service: asks it to end until `by`, then kills it. Returns once all its processes are dead.
    pub(crate) async fn end(&self, by: Instant) {
        if self.state.borrow().runs() && by > Instant::now() {
            self.signal(rustix::process::Signal::TERM.as_raw());
            let _ = timeout_at(by, self.stopped()).await;
        }
        if !self.state.borrow().runs() {
            return;
        }
        self.order("kill\n");
        if timeout(KILL_TIMEOUT, self.stopped()).await.is_err() {
            error!("supervisor does not respond; killing it and the service");
            let mut running = self.running.lock().await;
            if let Some(RunningProcess { process, .. }) = running.take() {
                living().remove(&(process.id() as i32));
                kill_descendants().await;
            }
            self.state.send_replace(ServiceState::Stopped);
        }
    }

    /// Handles the first message of the supervisor with this process id.
    async fn runs_as(&self, id: u32, service: u32) {
        if self.running.lock().await.as_ref().is_some_and(|running| running.process.id() == id) {
            self.state.send_replace(ServiceState::Runs(Some(service)));
        }
    }

    /// Handles the last message of the supervisor with this process id, or its end without one.
    async fn ended_with(&self, id: u32, reply: Option<&str>) {
        let mut running = self.running.lock().await;
        // The supervisor may have been killed and replaced by another one meanwhile.
        let Some(RunningProcess { mut process, output, since, failures }) =
            running.take_if(|running| running.process.id() == id)
        else {
            return;
        };
        living().remove(&(id as i32));
        if reply.is_none() {
            error!("supervisor is gone; killing the service");
            kill_descendants().await;
        } else {
            // The process ends now.
            let _ = tokio::task::spawn_blocking(move || process.wait()).await;
        }
        output.ended().await;
        let by_itself = |code| {
            let failures = if since.elapsed() < STEADY { failures.saturating_add(1) } else { 1 };
            let again = self.restarts.map(|pauses| Instant::now() + pauses.after(failures));
            ServiceState::Ended { code, again, failures }
        };
        let state = match reply {
            Some("killed") => ServiceState::Stopped,
            Some(reply) => {
                let code = reply.strip_prefix("ended ").and_then(|code| code.parse().ok()).unwrap_or(KILLED_CODE);
                warn!(code, "service exited");
                by_itself(code)
            }
            None => by_itself(KILLED_CODE),
        };
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

    fn orders(&self) -> MutexGuard<'_, Option<OwnedWriteHalf>> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Starts a supervisor, which lives from now on.
fn spawn(command: &mut Command) -> anyhow::Result<Child> {
    let mut living = living();
    let process = command.spawn().context("pod.exec: cannot start the supervisor")?;
    living.insert(process.id() as i32);
    Ok(process)
}

fn living() -> MutexGuard<'static, BTreeSet<i32>> {
    LIVING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Passes on what the supervisor with this process id writes, until its end.
async fn follow(supervisor: Weak<Supervisor>, id: u32, replies: OwnedReadHalf) {
    let mut replies = BufReader::new(replies).lines();
    loop {
        let reply = replies.next_line().await.ok().flatten();
        let Some(supervisor) = supervisor.upgrade() else { return };
        match reply.as_deref().and_then(|reply| reply.strip_prefix("runs ")?.parse().ok()) {
            Some(service) => supervisor.runs_as(id, service).await,
            None => return supervisor.ended_with(id, reply.as_deref()).await,
        }
    }
}

/// Kills the processes that a supervisor has left behind, and the supervisor: all descendants of this process but those of
/// supervisors that live. Logs those that do not die: nothing else shows why the pod keeps its registration.
async fn kill_descendants() {
    let mut warned = Instant::now();
    loop {
        let spared = living().clone();
        let left = descendants::kill(&spared);
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
