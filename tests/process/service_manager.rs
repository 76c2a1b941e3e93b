//! What a service manager such as systemd is told: when a process serves, when it ends, and which process replaces it.
use std::io::Read as _;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use segue_tests::cluster::TestCluster;
use segue_tests::config::Config;
use segue_tests::http::{get, is_ready};
use segue_tests::ports::free_address;
use segue_tests::process::{Process, until};

const PATIENCE: Duration = Duration::from_secs(60);

/// The socket of a service manager.
struct Manager {
    path: PathBuf,
    socket: UnixDatagram,
}

impl Manager {
    fn start(folder: &Path) -> Self {
        let path = folder.join("notify.sock");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Manager { path, socket }
    }

    /// Returns the next message, line by line.
    fn told(&self) -> Vec<String> {
        let mut message = [0; 1024];
        let length = self.socket.recv(&mut message).unwrap();
        std::str::from_utf8(&message[..length]).unwrap().lines().map(str::to_owned).collect()
    }

    fn is_told_nothing_more(&self) -> bool {
        self.socket.set_nonblocking(true).unwrap();
        self.socket.recv(&mut [0; 1024]).is_err()
    }
}

/// A router that can be restarted, and its service manager.
struct Unit {
    cluster: TestCluster,
    manager: Manager,
    listen: SocketAddr,
    admin: SocketAddr,
    _coordinator: Process,
}

impl Unit {
    fn new() -> Self {
        let cluster = TestCluster::start(env!("CARGO_BIN_EXE_segue"));
        let manager = Manager::start(cluster.path());
        // Without a keyspace's settings no router is ready.
        let coordinator = cluster.run("c", &cluster.config().coordinator("c", 8).quick());
        Unit { cluster, manager, listen: free_address(), admin: free_address(), _coordinator: coordinator }
    }

    fn config(&self) -> Config {
        let config = self.cluster.config().router("r", self.listen).admin(self.admin).quick();
        config.set("router.hot_restart_socket", self.cluster.path().join("r.sock").to_str().unwrap())
    }

    fn process(&self, name: &str, command: &str, config: &Config) -> Process {
        let mut process = Command::new(self.cluster.segue());
        self.cluster.run_with(name, config, process.arg(command).env("NOTIFY_SOCKET", &self.manager.path))
    }

    fn started(&self) -> Process {
        let mut process = self.process("r", "run", &self.config());
        process.until("/ready", || is_ready(self.admin));
        assert_eq!(self.manager.told(), ["READY=1"]);
        process
    }
}

/// A process that a test has not started itself, and ends.
struct Orphan(Pid);

impl Orphan {
    fn runs(&self) -> bool {
        test_kill_process(self.0).is_ok()
    }
}

impl Drop for Orphan {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::KILL);
    }
}

#[test]
fn a_process_tells_when_it_serves_and_when_it_ends() {
    let unit = Unit::new();
    let process = unit.started();
    assert!(process.terminate().0.success());
    assert_eq!(unit.manager.told(), ["STOPPING=1"]);
}

#[test]
fn restart_returns_once_the_new_process_serves_and_names_it() {
    let unit = Unit::new();
    let mut old = unit.started();
    let mut restart = unit.process("restart", "restart", &unit.config());
    assert!(restart.wait().success(), "{}", restart.output());

    let told = unit.manager.told();
    assert_eq!(told[1..], ["READY=1"]);
    let pid: i32 = told[0].strip_prefix("MAINPID=").unwrap().parse().unwrap();
    let new = Orphan(Pid::from_raw(pid).unwrap());
    assert!(new.runs() && pid.cast_unsigned() != old.id());
    assert!(old.wait().success(), "{}", old.output());
    let (_, status) = get(unit.admin, "/status").unwrap();
    assert!(status.contains("r~next"), "{status}");
    // The unit goes on, so the old process is silent about its end.
    assert!(unit.manager.is_told_nothing_more());
    kill_process(new.0, Signal::TERM).unwrap();
    until("the end of the new process", || get(unit.admin, "/health").is_none());
    unit.manager.socket.set_nonblocking(false).unwrap();
    assert_eq!(unit.manager.told(), ["STOPPING=1"]);
}

#[test]
fn the_output_of_restart_ends_with_that_command_and_the_log_goes_on_where_it_was() {
    let unit = Unit::new();
    let old = unit.started();
    let file = unit.config().write(unit.cluster.path(), "restart");
    let mut restart = Command::new(unit.cluster.segue());
    restart.args(["restart", "--config"]).arg(file).env("NOTIFY_SOCKET", &unit.manager.path);
    let mut restart = restart.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (mut output, mut errors) = (restart.stdout.take().unwrap(), restart.stderr.take().unwrap());
    let (ended, end) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let both = output.read_to_end(&mut Vec::new()).and(errors.read_to_end(&mut Vec::new()));
        ended.send(both.is_ok())
    });
    let status = restart.wait().unwrap();
    let new = unit.manager.told()[0].strip_prefix("MAINPID=").unwrap().parse().unwrap();
    let new = Orphan(Pid::from_raw(new).unwrap());
    assert!(status.success());
    assert_eq!(end.recv_timeout(PATIENCE), Ok(true), "the new process holds on to the output");
    kill_process(new.0, Signal::TERM).unwrap();
    until("the new process's last line in the log", || old.output().contains("shutting down gracefully"));
}

#[test]
fn a_restart_that_fails_leaves_the_running_process_alone() {
    let unit = Unit::new();
    let mut old = unit.started();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let impossible = unit.config().set("router.listen", taken.local_addr().unwrap().to_string());
    let mut restart = unit.process("restart", "restart", &impossible);
    assert_eq!(restart.wait().code(), Some(1));
    let output = restart.output();
    assert!(output.contains("in use") && output.contains("the running one keeps serving"), "{output}");
    assert!(old.ended().is_none() && is_ready(unit.admin));
    assert!(unit.manager.is_told_nothing_more());
}

#[test]
fn a_restart_without_a_socket_for_it_is_bad_usage() {
    let unit = Unit::new();
    let config = unit.cluster.config().router("r", unit.listen);
    let mut restart = unit.process("restart", "restart", &config);
    assert_eq!(restart.wait().code(), Some(2));
    assert!(restart.output().contains("needs the key router.hot_restart_socket"), "{}", restart.output());
}
