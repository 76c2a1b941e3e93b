//! A small service in a process of its own, and the log of its writes. The test executable is the service: tests start
//! it again with other arguments, so that only Rust is needed.

use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use rustix::time::{ClockId, clock_gettime};

/// The time between two writes of a request's work.
const STEP: Duration = Duration::from_millis(20);

/// What a service is to be.
pub(crate) struct Settings<'a> {
    pub(crate) name: &'a str,
    /// `plain` works whatever becomes of its client; `eager` begins before it has read the body; `prefork` has a child
    /// write; `leaves-a-child` has a child write in a session of its own, and ends without an error once it does;
    /// `hangs` answers no health check while it works; `lent` writes only as long as it may, and confirms an end once it
    /// has stopped; `stubborn` does so too and confirms no end.
    pub(crate) kind: &'a str,
    pub(crate) listen: SocketAddr,
    pub(crate) log: &'a Path,
}

impl Settings<'_> {
    pub(crate) fn set(&self, command: &mut Command) {
        command.env("SERVICE_NAME", self.name).env("SERVICE_KIND", self.kind);
        command.env("SERVICE_LISTEN", self.listen.to_string()).env("SERVICE_LOG", self.log);
    }
}

/// The command line of the service.
pub(crate) fn command() -> Vec<String> {
    let program = std::env::current_exe().unwrap().to_str().unwrap().to_owned();
    [&program, "service::the_service", "--exact", "--ignored", "--nocapture"].map(str::to_owned).to_vec()
}

/// One write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Write {
    pub(crate) name: String,
    pub(crate) epoch: u64,
    pub(crate) pid: i32,
    /// Which one of its request.
    pub(crate) number: u32,
    /// Empty if the request did not name it.
    pub(crate) keyspace: String,
}

/// All writes, in order.
pub(crate) fn writes(log: &Path) -> Vec<Write> {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let write = |line: &str| {
        let mut words = line.split(' ');
        let name = words.next()?.to_owned();
        let (epoch, pid) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let (number, keyspace) = (words.next()?.parse().ok()?, words.next()?.to_owned());
        Some(Write { name, epoch, pid, number, keyspace })
    };
    text.lines().filter_map(write).collect()
}

pub(crate) fn kill(pid: i32) {
    rustix::process::kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
}

pub(crate) fn is_alive(pid: i32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

pub(crate) fn stop(pid: i32) {
    rustix::process::kill_process(Pid::from_raw(pid).unwrap(), Signal::STOP).unwrap();
}

/// The children of a process.
pub(crate) fn children(of: u32) -> Vec<i32> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let parent = |pid: &i32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(1)?.parse::<u32>().ok()
    };
    pids.filter(|pid| parent(pid) == Some(of)).collect()
}

/// How many connections to this address are open at the side that made them.
pub(crate) fn connections_to(address: SocketAddr) -> usize {
    let SocketAddr::V4(address) = address else { unreachable!("tests listen on 127.0.0.1") };
    // Local address, remote address, state: both addresses as the kernel prints them, in hexadecimal.
    let remote = format!("{:08X}:{:04X}", u32::from_le_bytes(address.ip().octets()), address.port());
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let is_open = |line: &&str| {
        let mut words = line.split_ascii_whitespace().skip(2);
        // 01: established; 08: closed by the other side alone.
        words.next() == Some(&remote) && matches!(words.next(), Some("01" | "08"))
    };
    table.lines().filter(is_open).count()
}

/// Until when a `lent` service may write, in milliseconds of `CLOCK_BOOTTIME`.
static LENT: AtomicU64 = AtomicU64::new(0);
static WORKING: AtomicU64 = AtomicU64::new(0);

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_default()
}

/// Is the service, for ever.
#[test]
#[ignore = "the service behind the sidecars of the other tests, which start it"]
fn the_service() {
    if let Ok(worker) = std::env::var("SERVICE_WORKER") {
        let (place, millis) = worker.rsplit_once(' ').unwrap();
        let (epoch, keyspace) = place.split_once(' ').unwrap();
        if variable("SERVICE_KIND") == "leaves-a-child" {
            rustix::process::setsid().unwrap();
        }
        return work(epoch, keyspace, millis.parse().unwrap());
    }
    let Ok(listen) = std::env::var("SERVICE_LISTEN") else { return };
    let listener = TcpListener::bind(listen).unwrap();
    while let Ok((stream, _)) = listener.accept() {
        std::thread::spawn(move || serve(stream));
    }
}

fn serve(mut stream: TcpStream) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    loop {
        let (mut request, mut epoch, mut keyspace, mut length) = (String::new(), "0".to_owned(), String::new(), 0);
        reader.read_line(&mut request).ok()?;
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).ok()? == 0 {
                return None;
            }
            match line.trim_end().to_lowercase().split_once(": ") {
                Some(("segue-epoch", value)) => epoch = value.to_owned(),
                Some(("segue-keyspace", value)) => keyspace = value.to_owned(),
                Some(("content-length", value)) => length = value.parse().ok()?,
                Some(_) => {}
                None => break,
            }
        }
        let path = request.split(' ').nth(1)?;
        let is_eager = variable("SERVICE_KIND") == "eager" && path.starts_with("/work");
        let early = is_eager.then(|| answer(path, (&epoch, &keyspace), ""));
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        let (status, answer) =
            early.unwrap_or_else(|| answer(path, (&epoch, &keyspace), &String::from_utf8_lossy(&body)));
        write!(stream, "HTTP/1.1 {status} x\r\ncontent-length: {}\r\n\r\n{answer}", answer.len()).ok()?;
    }
}

fn answer(path: &str, (epoch, keyspace): (&str, &str), body: &str) -> (u16, String) {
    let (name, kind) = (variable("SERVICE_NAME"), variable("SERVICE_KIND"));
    let (path, value) = path.split_once('?').unwrap_or((path, ""));
    // With several keyspaces each has paths of its own.
    let path = path.rfind('/').map_or(path, |last| &path[last..]);
    match (path, kind.as_str()) {
        ("/work", "prefork") => drop(worker(epoch, keyspace, value).status().unwrap()),
        ("/work", "leaves-a-child") => {
            let child = worker(epoch, keyspace, value).spawn().unwrap().id() as i32;
            let log = variable("SERVICE_LOG");
            while !writes(Path::new(&log)).iter().any(|write| write.pid == child) {
                std::thread::sleep(STEP);
            }
            std::process::exit(0);
        }
        ("/work", _) => {
            WORKING.fetch_add(1, SeqCst);
            work(epoch, keyspace, value.parse().unwrap());
            WORKING.fetch_sub(1, SeqCst);
        }
        ("/health", "hangs") => {
            while WORKING.load(SeqCst) > 0 {
                std::thread::sleep(STEP)
            }
        }
        ("/lease", kind) => {
            let until = body.split("\"until_boottime_ms\":").nth(1).unwrap();
            let until: String = until.chars().take_while(char::is_ascii_digit).collect();
            if kind == "stubborn" && until == "0" && LENT.load(SeqCst) > 0 {
                return (500, "it goes on".to_owned());
            }
            LENT.store(until.parse().unwrap(), SeqCst);
            while kind == "lent" && until == "0" && WORKING.load(SeqCst) > 0 {
                std::thread::sleep(STEP);
            }
        }
        ("/exit", _) => std::process::exit(value.parse().unwrap()),
        _ => {}
    }
    (200, name)
}

/// Returns the command of a child that does the work.
fn worker(epoch: &str, keyspace: &str, millis: &str) -> Command {
    let words = command();
    let mut child = Command::new(&words[0]);
    child.args(&words[1..]).env("SERVICE_WORKER", format!("{epoch} {keyspace} {millis}"));
    child
}

/// Writes for so long, on a machine that is busy too: a step that comes late does not put off the next one.
fn work(epoch: &str, keyspace: &str, millis: u32) {
    let (name, kind, pid) = (variable("SERVICE_NAME"), variable("SERVICE_KIND"), std::process::id());
    let mut log: File = OpenOptions::new().create(true).append(true).open(variable("SERVICE_LOG")).unwrap();
    let begun = Instant::now();
    for number in 0..millis / STEP.as_millis() as u32 {
        let now = clock_gettime(ClockId::Boottime);
        let now = now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000;
        if matches!(kind.as_str(), "lent" | "stubborn") && now >= LENT.load(SeqCst) {
            return;
        }
        // One call: services of several keyspaces append at once.
        log.write_all(format!("{name} {epoch} {pid} {number} {keyspace}\n").as_bytes()).unwrap();
        std::thread::sleep((begun + STEP * (number + 1)).saturating_duration_since(Instant::now()));
    }
}
