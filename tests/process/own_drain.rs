//! `segue drain --self`, `/drain` and `/settled`: a sidecar's pod leaves under load, as in a rollout.
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::{Path, State};
use axum::routing::post;
use segue_tests::cluster::TestCluster;
use segue_tests::http::{Request, get, is_ready};
use segue_tests::ports::free_address;
use segue_tests::process::{Process, until};
use tokio::net::TcpListener;

const SEGUE: &str = env!("CARGO_BIN_EXE_segue");
const PARTITIONS: u32 = 8;
const CLIENTS: u64 = 4;

/// The requests that the services have carried out, by number.
type Done = Arc<Mutex<Vec<u64>>>;

/// Starts a service that notes each request.
async fn service(done: &Done) -> SocketAddr {
    let note = |State(done): State<Done>, Path(number): Path<u64>| async move { done.lock().unwrap().push(number) };
    let routes = Router::new().route("/work/{number}", post(note)).with_state(done.clone());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, routes).await });
    address
}

struct Pod {
    process: Process,
    admin: SocketAddr,
    file: PathBuf,
    life: u64,
}

struct Site {
    cluster: TestCluster,
    router: SocketAddr,
    done: Done,
    _control: Process,
}

impl Site {
    fn start() -> Self {
        let (cluster, router, admin) = (TestCluster::start(SEGUE), free_address(), free_address());
        let config = cluster.config().router("r-0", router).coordinator("c-0", PARTITIONS).admin(admin).quick();
        let mut control = cluster.run("control", &config);
        control.until("a ready router", || is_ready(admin));
        Site { cluster, router, done: Done::default(), _control: control }
    }

    /// Starts a sidecar and its service, and waits until the pod has its partitions.
    async fn pod(&self, name: &str) -> Pod {
        let (admin, upstream) = (free_address(), service(&self.done).await);
        let config = self.cluster.config().pod(name, free_address(), upstream).admin(admin).quick();
        let config = config.set("admin.socket", self.cluster.path().join(format!("{name}.sock")).to_str().unwrap());
        let mut process = self.cluster.run(name, &config);
        process.until("a settled pod", || get(admin, "/settled").is_some_and(|(status, _)| status == 200));
        let life = self.owned(name).0;
        Pod { process, admin, file: self.cluster.path().join(format!("{name}.toml")), life }
    }

    /// Returns a pod's incarnation and number of partitions.
    fn owned(&self, name: &str) -> (u64, u64) {
        let output = Command::new(SEGUE).args(["status", "--json", "--etcd", &self.cluster.etcd().endpoint()]).output();
        let status: serde_json::Value = serde_json::from_slice(&output.unwrap().stdout).unwrap();
        let pods = status["pods"].as_array().unwrap();
        let pod = pods.iter().find(|pod| pod["name"] == name).cloned().unwrap_or_default();
        (pod["incarnation"].as_u64().unwrap_or(0), pod["partitions"].as_u64().unwrap_or(0))
    }
}

/// Clients that send numbered requests, each again and again, until they are dropped.
struct Load {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    clients: Vec<std::thread::JoinHandle<Vec<String>>>,
}

impl Load {
    fn start(router: SocketAddr) -> Self {
        let (stop, sent) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let client = |_| {
            let (stop, sent) = (stop.clone(), sent.clone());
            std::thread::spawn(move || {
                let mut failed = Vec::new();
                while !stop.load(SeqCst) {
                    let number = sent.fetch_add(1, SeqCst);
                    let request = Request::post(&format!("/work/{number}"), "");
                    let request = request.header("x-partition", number % u64::from(PARTITIONS));
                    let request = request.timeout(std::time::Duration::from_secs(60));
                    match request.send(router) {
                        Some(response) if response.status == 200 => {}
                        other => failed.push(format!("{number}: {other:?}")),
                    }
                }
                failed
            })
        };
        let clients = (0..CLIENTS).map(client).collect();
        Load { stop, sent, clients }
    }

    /// Waits until this many more requests have been sent.
    fn goes_on(&self, more: u64) {
        let from = self.sent.load(SeqCst);
        until("more requests", || self.sent.load(SeqCst) >= from + more);
    }

    /// Ends the clients. Returns how many requests they sent, and those that failed.
    fn end(self) -> (u64, Vec<String>) {
        self.stop.store(true, SeqCst);
        let failed = self.clients.into_iter().flat_map(|client| client.join().unwrap()).collect();
        (self.sent.load(SeqCst), failed)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_process_that_cannot_start_leaves_the_socket_of_another_alone() {
    let site = Site::start();
    let a = site.pod("a").await;
    let socket = site.cluster.path().join("a.sock");
    let pod = |name: &str, listen: SocketAddr| {
        let config = site.cluster.config().pod(name, listen, free_address()).admin(free_address()).quick();
        config.set("admin.socket", socket.to_str().unwrap())
    };
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    for (name, listen, says) in [
        ("no-address", taken.local_addr().unwrap(), "cannot listen"),
        ("no-socket", free_address(), "admin.socket: another process listens at"),
    ] {
        let mut other = site.cluster.run(name, &pod(name, listen));
        assert_eq!(other.wait().code(), Some(1), "{}", other.output());
        assert!(other.output().contains(says), "{}", other.output());
    }
    let (code, said) = drain_itself(&["--server", &format!("unix:{}", socket.display()), "--no-wait"]);
    assert!(code == Some(0) && said.contains("pod a"), "{said}");
    drop(a);
}

/// Returns the exit code of `segue drain --self`, and what it printed.
fn drain_itself(words: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(SEGUE).args(["drain", "--self"]).args(words).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
    eprintln!("$ segue drain --self {}\n{said}[{}]", words.join(" "), output.status);
    (output.status.code(), said)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_pre_stop_hook_empties_its_pod_under_load_and_the_next_life_gets_partitions() {
    let site = Site::start();
    let a = site.pod("a").await;
    let b = site.pod("b").await;
    let load = Load::start(site.router);
    load.goes_on(200);

    let by_tcp = Request::json("POST", "/drain", "").header("content-type", "application/json").send(a.admin).unwrap();
    assert_eq!(by_tcp.status, 403, "{}", by_tcp.body);
    let (code, said) = drain_itself(&["--config", a.file.to_str().unwrap(), "--wait", "50s"]);
    assert!(code == Some(0) && said.contains("pod a is empty"), "{said}");
    assert_eq!(site.owned("a"), (a.life, 0), "the same life, without a partition");
    load.goes_on(200);
    let (status, output) = a.process.terminate();
    assert!(status.success(), "{output}");

    // The drain was of that life: its successor gets partitions.
    let a = site.pod("a").await;
    assert!(site.owned("a").1 > 0);
    let server = format!("unix:{}", site.cluster.path().join("b.sock").display());
    let (code, said) = drain_itself(&["--server", &server, "--no-wait"]);
    assert!(code == Some(0) && said.contains("pod b"), "{said}");
    let (code, said) = drain_itself(&["--server", &server, "--wait", "50s"]);
    assert!(code == Some(0) && said.contains("pod b is empty"), "{said}");
    load.goes_on(200);
    let (code, said) = drain_itself(&["--config", a.file.to_str().unwrap(), "--wait", "1s"]);
    assert!(code == Some(4) && said.contains("it still has 8"), "nobody can take over: {said}");
    let (code, said) = drain_itself(&["--server", &server, "--keyspace", "other", "--wait", "1s"]);
    assert!(code == Some(2) && said.contains("is about the pod in all keyspaces"), "{said}");
    for words in [&["a"][..], &["--etcd", "http://a:1"], &["--why", "because"]] {
        assert_eq!(drain_itself(words).0, Some(2), "{words:?}");
    }

    let (sent, failed) = load.end();
    assert_eq!(failed, [""; 0], "of {sent} requests");
    let mut done = site.done.lock().unwrap().clone();
    done.sort_unstable();
    assert_eq!(done, (0..sent).collect::<Vec<_>>(), "each request was carried out once");
    drop(b);
}
