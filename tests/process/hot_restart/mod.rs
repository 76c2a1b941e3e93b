//! Hot restart of a router, by starting it once more: real processes, a real etcd, real clients, and no lost request.
mod sockets;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use segue_coordination::store::Store as _;
use segue_demo::check::{Evidence, check};
use segue_demo::load::{LoadSettings, RunningLoad};
use segue_demo::log::Log;
use segue_demo::record::Outcome;
use segue_protocol::txn::{Op, Txn};
use segue_tests::http::{get, is_ready};
use segue_tests::ports::free_address;
use segue_tests::process::{Process, until};
use serde_json::Value;

use crate::site::{self, store};
use crate::writers::{PARTITIONS, WriterCluster};

/// Clients of a router; what is kept are errors.
type Askers = site::load::Load<String>;

/// A router whose processes succeed each other.
struct Restarting {
    cluster: WriterCluster,
    listen: SocketAddr,
    admin: SocketAddr,
    started: u32,
}

impl Restarting {
    /// With a coordinator and writers that have all partitions.
    fn start(writers: &[&str]) -> Self {
        let mut cluster = WriterCluster::start();
        cluster.coordinator("c-0");
        for name in writers {
            cluster.writer(name);
        }
        Restarting { cluster, listen: free_address(), admin: free_address(), started: 0 }
    }

    fn socket(&self) -> PathBuf {
        self.cluster.path().join("r.sock")
    }

    fn admin_socket(&self) -> PathBuf {
        self.cluster.path().join("admin.sock")
    }

    /// Checks that operators can use the admin endpoint's Unix socket.
    #[track_caller]
    fn assert_socket_answers(&self) {
        let server = format!("unix:{}", self.admin_socket().display());
        let output = Command::new(env!("CARGO_BIN_EXE_segue")).args(["status", "--server", &server]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// One more process of the router.
    fn process(&mut self, workers: u32) -> Process {
        self.started += 1;
        let config = self.cluster.router_config("r", self.listen, self.admin).set("router.workers", workers);
        let config = config.set("router.drain.timeout", "25s");
        let config = config.set("router.hot_restart_socket", self.socket().to_str().unwrap());
        let config = config.set("admin.socket", self.admin_socket().to_str().unwrap());
        self.cluster.run(&process_name(self.started), &config)
    }

    /// The first process, serving.
    fn first(&mut self, pods: &[&str]) -> Process {
        let mut process = self.process(2);
        let admin = self.admin;
        process.until("/ready", || is_ready(admin));
        self.cluster.settles(pods);
        process
    }

    /// Returns the names of the registered routers.
    fn registered(&self) -> Vec<String> {
        self.cluster.status().routers().into_iter().map(str::to_owned).collect()
    }

    fn part(&self) -> Value {
        let status = get(self.admin, "/status").map(|(_, body)| body).unwrap_or_default();
        serde_json::from_str::<Value>(&status).map_or(Value::Null, |status| status["router"].clone())
    }

    /// Starts the next process, and waits until it has taken over and the old one has ended well.
    fn restart(&mut self, mut old: Process, workers: u32) -> Process {
        let mut new = self.process(workers);
        new.until("word of its predecessor's end", || self.output(self.started).contains("hot restart complete"));
        let status = old.wait();
        assert!(status.success(), "{status}:\n{}", old.output());
        new
    }

    /// What the process of this number has printed.
    fn output(&self, number: u32) -> String {
        self.cluster.output(&process_name(number))
    }

    /// What the process that was started last has printed.
    fn newest_output(&self) -> String {
        self.output(self.started)
    }

    /// Takes a name, so that nobody can register by it, or gives it back.
    async fn name_is_taken(&self, name: &str, taken: bool) {
        let store = store(self.cluster.etcd());
        let key = format!("/segue/default/routers/{name}");
        let op = match taken {
            true => Op::Put { key, value: b"{}".to_vec(), lease: None },
            false => Op::Delete(segue_protocol::txn::Keys::One(key)),
        };
        store.commit(Txn { when: Vec::new(), then: vec![op], otherwise: None }).await.unwrap();
    }
}

fn process_name(number: u32) -> String {
    format!("r-{number}")
}

/// Starts clients that never repeat a request. `fresh` of them make a connection for each, and `keeping` keep theirs and pause.
/// The errors are kept.
fn askers(address: SocketAddr, fresh: usize, keeping: usize) -> Askers {
    Askers::start(fresh + keeping, 0, |number| {
        let pause = number.checked_sub(fresh).map(|number| Duration::from_millis(1 + 7 * number as u64));
        let mut kept = None;
        move |_| {
            let asked = ask(address, &mut kept, pause.is_some(), number as u64 % u64::from(PARTITIONS));
            std::thread::sleep(pause.unwrap_or(Duration::from_millis(2)));
            asked.err()
        }
    })
}

/// Ends the clients and fails if a request failed.
fn finish(clients: Askers) {
    let (sent, failed) = clients.end();
    assert!(failed.is_empty(), "{} of {sent} failed: {:?}", failed.len(), &failed[..failed.len().min(5)]);
}

/// Sends one request, and keeps the connection if both sides allow it.
fn ask(address: SocketAddr, kept: &mut Option<BufReader<TcpStream>>, keep: bool, partition: u64) -> Result<(), String> {
    let age = if kept.is_some() { "on a kept connection" } else { "on a new connection" };
    let exchange = || -> std::io::Result<bool> {
        let mut stream = match kept.take() {
            Some(stream) => stream,
            None => BufReader::new(TcpStream::connect(address)?),
        };
        stream.get_ref().set_read_timeout(Some(Duration::from_secs(60)))?;
        stream.get_ref().set_nodelay(true)?;
        let connection = if keep { "keep-alive" } else { "close" };
        let head = format!(
            "GET /keys/asked HTTP/1.1\r\nhost: h\r\nx-partition: {partition}\r\nx-key: asked\r\nconnection: {connection}\r\n\r\n"
        );
        stream.get_mut().write_all(head.as_bytes())?;
        let (mut first, mut length, mut last) = (String::new(), 0, !keep);
        stream.read_line(&mut first)?;
        loop {
            let mut line = String::new();
            if stream.read_line(&mut line)? == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            let line = line.trim().to_ascii_lowercase();
            match line.split_once(": ") {
                Some(("content-length", value)) => length = value.parse().unwrap_or(0),
                Some(("connection", "close")) => last = true,
                Some(_) => {}
                None => break,
            }
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body)?;
        if !last {
            *kept = Some(stream);
        }
        Ok(first.starts_with("HTTP/1.1 2") || first.starts_with("HTTP/1.1 404"))
    };
    match { exchange }() {
        Ok(true) => Ok(()),
        Ok(false) => Err(format!("a refusal {age}")),
        Err(error) => Err(format!("{error} {age}")),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_is_lost_while_a_router_restarts_and_partitions_move() {
    let mut router = Restarting::start(&["w-0", "w-1"]);
    let first = router.first(&["w-0", "w-1"]);
    let load = RunningLoad::start(LoadSettings {
        routers: vec![router.listen.into()],
        partitions: PARTITIONS,
        clients: 16,
        bursts: 0,
        rate: 1500,
        paces_bursts: false,
        patience: Duration::from_secs(60),
        seed: 7,
        partition_header: Some("x-partition".parse().unwrap()),
        snapshot: None,
    });
    let clients = askers(router.listen, 3, 12);
    let running = tokio::task::block_in_place(|| {
        let mut running = first;
        for (round, workers) in [1, 3, 2, 4, 1, 2].into_iter().enumerate() {
            clients.goes_on(100);
            // Partitions move while the router does.
            if round % 2 == 0 {
                router.cluster.writer("w-2");
            } else {
                router.cluster.processes["w-2"].signal("TERM");
            }
            running = router.restart(running, workers);
            let name = if round % 2 == 0 { "r~next" } else { "r" };
            assert_eq!(router.registered(), [name], "after restart {round}");
            assert_eq!(router.part()["name"], name);
            if round % 2 == 0 {
                router.cluster.settles(&["w-0", "w-1", "w-2"]);
            } else {
                assert!(router.cluster.take("w-2").wait().success());
                router.cluster.settles(&["w-0", "w-1"]);
            }
        }
        clients.goes_on(100);
        running
    });
    finish(clients);
    let exchanges = load.finish().await;
    let failed: Vec<_> = exchanges.iter().filter(|exchange| exchange.outcome != Outcome::Ok).collect();
    assert!(failed.is_empty(), "{} of {} failed: {:?}", failed.len(), exchanges.len(), &failed[..failed.len().min(5)]);
    let answered = exchanges.len();
    let log = Log::in_directory(&router.cluster.logs()).unwrap().read_all().unwrap();
    let harm = check(&Evidence { exchanges, log: Some(log), owners: None });
    for (name, count) in harm.counts() {
        assert_eq!(count.count, 0, "{name}: {:?}", count.examples);
    }
    assert!(answered > 1_000 && harm.reads_checked > 100, "{answered} answered: too little to tell");
    let (status, output) = running.terminate();
    assert!(status.success(), "{output}");
    assert!(!router.socket().exists());
    assert_eq!(router.registered(), Vec::<String>::new());
}

/// Stops a process, and waits until all of its threads have stopped.
fn stop(process: &Process) {
    process.signal("STOP");
    let threads = format!("/proc/{}/task", process.id());
    let stands = |thread: std::io::Result<std::fs::DirEntry>| {
        let stat = std::fs::read_to_string(thread.unwrap().path().join("stat")).unwrap_or_default();
        stat.rsplit(") ").next().is_none_or(|state| state.starts_with('T'))
    };
    while !std::fs::read_dir(&threads).unwrap().all(stands) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Sends one request on a connection of its own, which must succeed.
fn answered(address: SocketAddr) {
    let answer = ask(address, &mut None, false, 0);
    assert_eq!(answer, Ok(()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_process_that_dies_before_it_is_ready_harms_nothing() {
    let mut router = Restarting::start(&["w-0"]);
    let old = router.first(&["w-0"]);
    let clients = askers(router.listen, 2, 2);
    for _ in 0..2 {
        router.name_is_taken("r~next", true).await;
        let mut new = router.process(4);
        new.until("the wait for its name", || router.newest_output().contains("never ends by itself"));
        assert!(router.part()["hot_restart"].as_str().unwrap().contains("prepares to take over"));
        // A third one is refused.
        let mut third = router.process(1);
        assert_eq!(third.wait().code(), Some(1));
        let told = third.output();
        assert!(told.contains("another hot restart is in progress"), "{told}");
        clients.goes_on(100);
        new.kill();
        tokio::task::block_in_place(|| {
            until("the end of that hot restart", || {
                router.part()["hot_restart"].is_null() && router.output(1).contains("was gone before it was ready")
            });
        });
        router.name_is_taken("r~next", false).await;
        router.assert_socket_answers();
        clients.goes_on(100);
    }
    let metrics = get(router.admin, "/metrics").unwrap().1;
    assert!(metrics.contains("segue_hot_restarts_total{result=\"failed\"} 2"), "{metrics}");
    assert!(metrics.contains("segue_hot_restarts_total{result=\"refused\"} 2"), "{metrics}");
    let new = router.restart(old, 2);
    router.assert_socket_answers();
    clients.goes_on(100);
    finish(clients);
    assert!(new.terminate().0.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_process_starts_alone_when_the_old_one_dies_in_the_middle() {
    let mut router = Restarting::start(&["w-0"]);
    router.cluster.leases.router = 2;
    let old = router.first(&["w-0"]);
    router.name_is_taken("r~next", true).await;
    let mut new = router.process(3);
    new.until("the wait for its name", || router.newest_output().contains("never ends by itself"));
    // Connections in the listen backlog survive the process that did not accept them.
    stop(&old);
    let address = router.listen;
    let queued: Vec<_> = (0..24).map(|_| TcpStream::connect(address).unwrap()).collect();
    old.kill();
    new.until("that it starts alone", || router.newest_output().contains("starting without it"));
    // It serves, and admits that it is not ready.
    assert_eq!(get(router.admin, "/ready").unwrap().0, 503);
    router.name_is_taken("r~next", false).await;
    for stream in queued {
        assert_eq!(ask(address, &mut Some(BufReader::new(stream)), false, 0), Ok(()));
    }
    answered(address);
    router.assert_socket_answers();
    let new = router.restart(new, 1);
    assert!(new.terminate().0.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_request_is_finished_by_the_process_that_took_it_and_handoffs_wait_for_that() {
    let mut router = Restarting::start(&["w-0"]);
    let mut old = router.first(&["w-0"]);
    stop(&router.cluster.processes["w-0"]);
    let long = std::thread::spawn({
        let address = router.listen;
        move || answered(address)
    });
    let admin = router.admin;
    let in_flight = || {
        let metrics = get(admin, "/metrics").map(|(_, text)| text).unwrap_or_default();
        metrics.lines().any(|line| line.starts_with("segue_requests_in_flight") && line.ends_with(" 1"))
    };
    old.until("the request to be in flight", in_flight);
    let mut new = router.process(2);
    new.until("that it took over", || router.newest_output().contains("took over"));
    assert_eq!(router.registered(), ["r", "r~next"]);
    assert!(old.ended().is_none());
    // One that starts now is refused until the first has ended.
    let mut third = router.process(1);
    assert_eq!(third.wait().code(), Some(1));
    assert!(third.output().contains("has not ended yet"), "{}", third.output());
    assert!(!long.is_finished());
    router.cluster.processes["w-0"].signal("CONT");
    long.join().unwrap();
    assert!(old.wait().success());
    assert_eq!(router.registered(), ["r~next"]);
    assert!(new.terminate().0.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_may_change_the_address() {
    let mut router = Restarting::start(&["w-0"]);
    let old = router.first(&["w-0"]);
    let before = (router.listen, router.admin);
    (router.listen, router.admin) = (free_address(), free_address());
    let new = router.restart(old, 2);
    answered(router.listen);
    assert_eq!(get(router.admin, "/ready").unwrap().0, 200);
    for address in [before.0, before.1] {
        assert!(TcpStream::connect(address).is_err(), "somebody still listens on {address}");
    }
    assert!(new.terminate().0.success());
}
