//! A real etcd for tests: started on free ports with a data directory of its own, stopped when dropped.
//!
//! It is one member, or some that know each other from the start; later only learners join. Calls block their
//! thread (a start takes some 0.3 s), so they work in any runtime and under a paused clock.
//!
//! # Invariants
//!
//! * An etcd never outlives the test process, however that ends, also when the [`Etcd`] is a static that is never
//!   dropped.
//! * A healthy response comes from this very etcd, not from another process that took the same port.

use std::env;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Write as _;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::certificates::Issued;
use crate::http::{self, Request};
use crate::ports::{free_port, random};
use crate::process::send_signal;

/// How long an etcd may take to answer. Two cores full of other tests have needed several seconds.
const START_TIMEOUT: Duration = Duration::from_secs(30);
const READ_TIMEOUT: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(10);
/// Bytes in memory for the data of many etcds at once. Each allocates 128 MB for its log.
const ROOM_IN_MEMORY: u64 = 8 << 30;

const MISSING: &str = "no etcd found. These tests need a real one (3.4 or later): install it with `apt-get install \
     etcd-server`, or put the binary of https://github.com/etcd-io/etcd/releases at .tools/etcd, or name it in SEGUE_ETCD";

/// One running etcd.
#[derive(Debug)]
pub struct Etcd {
    name: String,
    client: u16,
    peer: u16,
    tls: Option<Tls>,
    /// Whether it syncs writes to the disk, as in production.
    syncs: bool,
    /// The member and its peers, in the form of `--initial-cluster`.
    members: String,
    /// Whether it joins a cluster that exists, as a learner.
    joins: bool,
    data: TempDir,
    process: Mutex<Option<Process>>,
}

/// Certificates, and the port on which health and metrics are served without any.
#[derive(Debug)]
struct Tls {
    files: Vec<OsString>,
    plain: u16,
}

/// The process, and a watchdog that kills it when this process is gone.
#[derive(Debug)]
struct Process {
    etcd: Child,
    watchdog: Child,
}

impl Etcd {
    /// Starts an etcd and waits until it answers a linearizable read.
    ///
    /// # Panics
    /// When there is no etcd on this machine, or it does not come up.
    pub fn start() -> Self {
        let [etcd] = Self::start_at(|| None, false);
        etcd
    }

    /// Starts an etcd that has every write on its disk before it answers, as one in production does: for measurements.
    ///
    /// # Panics
    /// When there is no etcd on this machine, or it does not come up.
    pub fn start_on_disk() -> Self {
        let [etcd] = Self::start_at(|| None, true);
        etcd
    }

    /// Starts an etcd that speaks TLS alone, and only to clients with a certificate of the authority at `ca`.
    ///
    /// # Panics
    /// When there is no etcd on this machine, or it does not come up.
    pub fn start_with_tls(own: &Issued, ca: &Path) -> Self {
        let files = ["--cert-file".into(), own.cert.clone().into(), "--key-file".into(), own.key.clone().into()];
        let files = files.into_iter().chain(["--trusted-ca-file".into(), ca.into(), "--client-cert-auth".into()]);
        let files: Vec<OsString> = files.collect();
        let [etcd] = Self::start_at(|| Some(Tls { files: files.clone(), plain: free_port() }), false);
        etcd
    }

    /// Starts a cluster and waits until each member answers a linearizable read.
    ///
    /// # Panics
    /// When there is no etcd on this machine, or it does not come up.
    pub fn cluster<const N: usize>() -> [Self; N] {
        Self::start_at(|| None, false)
    }

    /// Starts a learner of this member's cluster, and waits until it says that it is one.
    ///
    /// # Panics
    /// When it does not come up.
    pub fn start_learner(&self) -> Self {
        let (name, peer) = (format!("segue-{:016x}", random()), free_port());
        let mut learner = Etcd {
            members: format!("{},{name}=http://127.0.0.1:{peer}", self.members),
            name,
            client: free_port(),
            peer,
            tls: None,
            syncs: false,
            joins: true,
            data: data_folder(false),
            process: Mutex::new(None),
        };
        let member = format!(r#"{{"peerURLs":["{}"],"isLearner":true}}"#, learner.peer_url());
        ask(Request::post("/v3/cluster/member/add", &member), self.client).expect("the learner is added");
        let deadline = Instant::now() + START_TIMEOUT;
        learner.launch();
        let is_learner = |learner: &Etcd| {
            let status = ask(Request::post("/v3/maintenance/status", "{}"), learner.client);
            status.is_some_and(|status| status.contains(r#""isLearner":true"#))
        };
        while !is_learner(&learner) {
            assert!(Instant::now() < deadline, "the learner does not start: {:?}", fs::read_to_string(learner.log()));
            // Another process may have taken its port.
            let ended = learner.process().as_mut().is_some_and(|process| process.etcd.try_wait().unwrap().is_some());
            if ended {
                learner.client = free_port();
                learner.launch();
            }
            thread::sleep(POLL);
        }
        learner
    }

    fn start_at<const N: usize>(tls: impl Fn() -> Option<Tls>, syncs: bool) -> [Self; N] {
        let mut last = String::new();
        for _ in 0..5 {
            let mut members = [(); N].map(|()| Etcd {
                name: format!("segue-{:016x}", random()),
                client: free_port(),
                peer: free_port(),
                tls: tls(),
                syncs,
                members: String::new(),
                joins: false,
                data: data_folder(syncs),
                process: Mutex::new(None),
            });
            let all = members.each_ref().map(|member| format!("{}={}", member.name, member.peer_url())).join(",");
            for member in &mut members {
                member.members.clone_from(&all);
                member.launch();
            }
            match members.iter().try_for_each(Etcd::comes_up) {
                Ok(()) => match members.iter().find(|member| !member.is_ours()) {
                    None => return members,
                    Some(member) => last = format!("another etcd answers at {}", member.endpoint()),
                },
                // Another process took a port between the check and the bind: try others.
                Err(error) => last = error,
            }
        }
        panic!("etcd does not start: {last}");
    }

    /// Returns the client URL: `http://127.0.0.1:port`, or `https://`.
    pub fn endpoint(&self) -> String {
        format!("{}://127.0.0.1:{}", if self.tls.is_some() { "https" } else { "http" }, self.client)
    }

    /// Returns the port of health and metrics.
    fn plain(&self) -> u16 {
        self.tls.as_ref().map_or(self.client, |tls| tls.plain)
    }

    /// Kills it at once, as a crash would. Its data stay.
    pub fn kill(&self) {
        self.process().take();
    }

    /// Starts it again on the same port with the same data, and waits until it answers.
    ///
    /// # Panics
    /// When it does not come up.
    pub fn restart(&self) {
        self.kill();
        let deadline = Instant::now() + START_TIMEOUT;
        self.launch();
        while let Err(error) = self.comes_up() {
            assert!(Instant::now() < deadline, "etcd does not start again: {error}");
            self.launch();
        }
    }

    /// Returns a copy of its data, as a backup of its volume would be. It stands still meanwhile.
    pub fn back_up(&self) -> TempDir {
        let copy = tempfile::Builder::new().prefix("segue-etcd-backup-").tempdir().unwrap();
        self.pause();
        copy_data(self.data.path(), copy.path());
        self.resume();
        copy
    }

    /// Puts a copy of its data in the place of the data and starts it again: its revisions go back, and its cluster stays.
    ///
    /// # Panics
    /// When it does not come up.
    pub fn restore(&self, backup: &TempDir) {
        self.kill();
        fs::remove_dir_all(self.data.path().join("data")).unwrap();
        copy_data(backup.path(), self.data.path());
        self.restart();
    }

    /// Stops it without closing a connection (SIGSTOP): the way a stuck machine looks from outside.
    pub fn pause(&self) {
        let threads = PathBuf::from(format!("/proc/{}/task", self.signal("STOP")));
        // Each of its threads stops at its own next chance; until then it still answers.
        while fs::read_dir(&threads).is_ok_and(|mut all| all.any(|thread| thread.is_ok_and(|it| runs(&it.path())))) {
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Resumes it after [`pause`](Self::pause).
    pub fn resume(&self) {
        self.signal("CONT");
    }

    /// Raises the alarm of a full database, with which etcd refuses every put, or ends it.
    ///
    /// # Panics
    /// When etcd does not do so.
    pub fn set_full(&self, is_full: bool) {
        let action = if is_full { "ACTIVATE" } else { "DEACTIVATE" };
        let alarm = format!(r#"{{"action":"{action}","memberID":"0","alarm":"NOSPACE"}}"#);
        let answer = ask(Request::post("/v3/maintenance/alarm", &alarm), self.plain());
        assert!(answer.is_some(), "etcd sets no alarm");
    }

    /// Returns a series of its metrics, named with its labels.
    pub fn metric(&self, name: &str) -> Option<f64> {
        http::metric(&ask(Request::get("/metrics"), self.plain())?, name)
    }

    fn signal(&self, signal: &str) -> u32 {
        let process = self.process();
        let etcd = &process.as_ref().expect("etcd is running").etcd;
        send_signal(etcd, signal).unwrap_or_else(|error| panic!("cannot signal etcd: {error}"));
        etcd.id()
    }

    fn process(&self) -> MutexGuard<'_, Option<Process>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn peer_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.peer)
    }

    fn log(&self) -> PathBuf {
        self.data.path().join("log")
    }

    fn launch(&self) {
        let (client, peer, log) = (self.endpoint(), self.peer_url(), self.log());
        let etcd = Command::new(binary())
            .args(["--name", &self.name, "--data-dir"])
            .arg(self.data.path().join("data"))
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &self.members])
            .args(["--initial-cluster-state", if self.joins { "existing" } else { "new" }])
            // The shortest TTL that etcd grants follows from the election timeout: 2 s with its default, 1 s with this.
            .args(["--heartbeat-interval", "50", "--election-timeout", "500", "--logger", "zap"])
            .args(["--log-level", "warn"])
            .args(unsafe_no_fsync().filter(|_| !self.syncs))
            .args(self.tls.iter().flat_map(|tls| &tls.files))
            .args(self.tls.iter().map(|tls| format!("--listen-metrics-urls=http://127.0.0.1:{}", tls.plain)))
            .stdin(Stdio::null())
            .stdout(File::create(&log).unwrap())
            .stderr(File::options().append(true).open(&log).unwrap())
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}", binary().display()));
        let watchdog = watch_over(etcd.id(), self.data.path());
        *self.process() = Some(Process { etcd, watchdog });
    }

    /// Waits until it is healthy, and kills it if it does not become so.
    fn comes_up(&self) -> Result<(), String> {
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            if self.is_healthy() {
                return Ok(());
            }
            let ended = self.process().as_mut().and_then(|process| process.etcd.try_wait().unwrap());
            if ended.is_some() || Instant::now() > deadline {
                self.kill();
                let log = fs::read_to_string(self.log()).unwrap_or_default();
                let tail = log.lines().rev().take(5).collect::<Vec<_>>().join("\n");
                return Err(format!("{ended:?} after this (newest first):\n{tail}"));
            }
            thread::sleep(POLL);
        }
    }

    /// Returns whether it serves linearizable reads, which is etcd's own definition of health.
    fn is_healthy(&self) -> bool {
        ask(Request::get("/health"), self.plain()).is_some_and(|answer| answer.contains(r#""health":"true""#))
    }

    /// Returns whether the response is this etcd's: another test's may have won the race for the port.
    fn is_ours(&self) -> bool {
        // With TLS its certificate identifies it.
        self.tls.is_some()
            || ask(Request::post("/v3/cluster/member/list", "{}"), self.client)
                .is_some_and(|answer| answer.contains(&self.name))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.etcd.kill();
        let _ = self.etcd.wait();
        // After a line the watchdog ends; it acts only at the end of the pipe.
        let _ = self.watchdog.stdin.take().map(|mut pipe| pipe.write_all(b"done\n"));
        let _ = self.watchdog.wait();
    }
}

/// Returns whether the thread behind this folder of /proc runs.
fn runs(thread: &Path) -> bool {
    let stat = fs::read_to_string(thread.join("stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|state| !state.starts_with('T'))
}

/// Copies an etcd's data from one folder into another.
fn copy_data(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").arg(from.join("data")).arg(to).status().unwrap();
    assert!(copied.success(), "{} is not copied to {}", from.display(), to.display());
}

/// A shell that kills `pid` and removes `data` when its standard input ends without a line, which it does with this
/// process. Rust's statics are not dropped, and a killed test drops nothing at all.
fn watch_over(pid: u32, data: &Path) -> Child {
    Command::new("sh")
        .args(["-c", r#"trap "" INT; read line || { kill -9 "$1"; rm -rf "$2"; }"#, "sh", &pid.to_string()])
        .arg(data)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// `SEGUE_ETCD`, else `etcd` on the PATH, else `.tools/etcd` of the workspace.
fn binary() -> PathBuf {
    if let Some(named) = env::var_os("SEGUE_ETCD") {
        return named.into();
    }
    let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.tools");
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).chain([tools]).map(|folder| folder.join("etcd")).find(|file| file.is_file()).expect(MISSING)
}

/// Returns an empty folder for the data. An etcd that has no flag to save the disk gets one in memory, if there is room: it syncs
/// each write, and beside builds that takes seconds.
fn data_folder(syncs: bool) -> TempDir {
    let has_room = |path: &&str| {
        rustix::fs::statvfs(*path).is_ok_and(|system| system.f_bavail * system.f_frsize >= ROOM_IN_MEMORY)
    };
    let in_memory = Some("/dev/shm").filter(|_| !syncs && unsafe_no_fsync().is_none()).filter(has_room);
    let mut folder = tempfile::Builder::new();
    folder.prefix("segue-etcd-");
    in_memory.map_or_else(|| folder.tempdir(), |memory| folder.tempdir_in(memory)).unwrap()
}

/// The flag that saves the disk, for an etcd that has it (3.5 and later).
fn unsafe_no_fsync() -> Option<&'static str> {
    const FLAG: &str = "--unsafe-no-fsync";
    static KNOWN: LazyLock<bool> = LazyLock::new(|| {
        let help = Command::new(binary()).arg("--help").output();
        help.is_ok_and(|it| [it.stdout, it.stderr].iter().any(|text| String::from_utf8_lossy(text).contains(FLAG)))
    });
    KNOWN.then_some(FLAG)
}

/// Returns the body of a response with status 200.
fn ask(request: Request, port: u16) -> Option<String> {
    let response = request.timeout(READ_TIMEOUT).send((Ipv4Addr::LOCALHOST, port).into())?;
    (response.status == 200).then_some(response.body)
}
