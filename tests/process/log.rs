//! A log that nobody reads: standard output and error are a pipe that is full, as behind a log driver that hangs.
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use segue_tests::http::{get, is_ready, metric};
use segue_tests::ports::free_address;
use segue_tests::process::{full_output, until};
use tempfile::TempDir;

/// A process whose standard output and error have no room for a byte.
struct Unread {
    process: Child,
    reader: UnixStream,
}

impl Unread {
    fn start(folder: &Path, config: &str) -> Self {
        let file = folder.join("segue.toml");
        std::fs::write(&file, config).unwrap();
        let (writer, reader) = full_output();
        let mut command = Command::new(env!("CARGO_BIN_EXE_segue"));
        let command = command.args(["run", "--config"]).arg(file).stdin(Stdio::null());
        let command = command.stdout(writer.try_clone().unwrap()).stderr(writer);
        Unread { process: command.spawn().unwrap(), reader }
    }

    fn terminate(&self) {
        let pid = rustix::process::Pid::from_child(&self.process);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    }

    fn end(&mut self) -> ExitStatus {
        let mut status = None;
        until("end of the process", || {
            status = self.process.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A client that makes the router's HTTP/2 log some lines for each PING.
struct Pinging(TcpStream);

impl Pinging {
    fn start(router: SocketAddr) -> Self {
        let mut stream = TcpStream::connect(router).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap();
        Pinging(stream)
    }

    /// Sends a PING and waits for its acknowledgement.
    fn ping(&mut self, number: u64) {
        self.0.write_all(&[&[0, 0, 8, 6, 0, 0, 0, 0, 0][..], &number.to_be_bytes()].concat()).unwrap();
        loop {
            let mut head = [0; 9];
            self.0.read_exact(&mut head).unwrap();
            let mut body = vec![0; usize::from(u16::from_be_bytes([head[1], head[2]]))];
            self.0.read_exact(&mut body).unwrap();
            if (head[3], head[4]) == (6, 1) {
                assert_eq!(body, number.to_be_bytes());
                return;
            }
        }
    }
}

fn dropped_lines(admin: SocketAddr) -> f64 {
    metric(&get(admin, "/metrics").unwrap().1, "segue_log_lines_dropped_total").unwrap()
}

/// Has a router log until the queue of its lines is full. Returns the client that made it.
fn fill_queue(router: SocketAddr, admin: SocketAddr) -> Pinging {
    let mut client = Pinging::start(router);
    let mut number = 0;
    while dropped_lines(admin) == 0.0 {
        for _ in 0..100 {
            client.ping(number);
            number += 1;
        }
        assert!(number < 100_000, "no line is missing");
    }
    client
}

fn site(level: &str, router: SocketAddr, admin: SocketAddr) -> String {
    format!(
        "[store]\nkind = \"memory\"\n[coordinator]\n[router]\nlisten = \"{router}\"\n[admin]\nlisten = \"{admin}\"\n\
         [log]\nlevel = \"{level}\"\n"
    )
}

#[test]
fn a_log_that_nobody_reads_delays_no_request_and_its_lost_lines_are_counted() {
    let folder = TempDir::new().unwrap();
    let (router, admin) = (free_address(), free_address());
    let mut unread = Unread::start(folder.path(), &site("trace", router, admin));
    until("/ready", || is_ready(admin));
    let client = fill_queue(router, admin);
    let reader = unread.reader.try_clone().unwrap();
    let told = BufReader::new(reader).lines().map(Result::unwrap).find(|line| line.contains("log lines dropped"));
    assert!(told.unwrap().contains("standard error did not take them lines="));
    drop(client);
    let mut rest = unread.reader.try_clone().unwrap();
    let rest = std::thread::spawn(move || rest.read_to_end(&mut Vec::new()).unwrap());
    unread.terminate();
    assert!(unread.end().success());
    rest.join().unwrap();
}

#[test]
fn lines_that_cannot_be_written_are_counted() {
    let folder = TempDir::new().unwrap();
    let (router, admin) = (free_address(), free_address());
    let file = folder.path().join("segue.toml");
    std::fs::write(&file, site("info", router, admin)).unwrap();
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_segue"));
    let command = command.args(["run", "--config"]).arg(file).stdin(Stdio::null());
    let (_, reader) = full_output();
    let mut disk = Unread { process: command.stdout(Stdio::null()).stderr(full).spawn().unwrap(), reader };
    until("/ready", || is_ready(admin));
    until("lost lines", || dropped_lines(admin) > 0.0);
    disk.terminate();
    assert!(disk.end().success());
}

#[test]
fn a_process_ends_though_nobody_reads_its_last_lines() {
    let folder = TempDir::new().unwrap();
    let (router, admin) = (free_address(), free_address());
    let mut unread = Unread::start(folder.path(), &site("info", router, admin));
    until("/ready", || is_ready(admin));
    unread.terminate();
    assert!(unread.end().success());
}

#[test]
fn a_process_whose_queue_of_lines_is_full_ends_though_nobody_reads_them() {
    let folder = TempDir::new().unwrap();
    let (router, admin) = (free_address(), free_address());
    let mut unread = Unread::start(folder.path(), &site("trace", router, admin));
    until("/ready", || is_ready(admin));
    drop(fill_queue(router, admin));
    unread.terminate();
    assert!(unread.end().success());
}

#[test]
fn a_refused_file_ends_a_process_though_nobody_reads_the_reason() {
    let folder = TempDir::new().unwrap();
    let mut unread = Unread::start(folder.path(), "[route]\n");
    assert_eq!(unread.end().code(), Some(2));
}
