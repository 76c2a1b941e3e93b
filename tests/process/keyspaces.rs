//! One process with a router and a coordinator for several keyspaces, with etcd and sidecars as processes.
//!
//! Clients mix requests for two keyspaces on each connection while the pods of one keyspace change. The services write
//! down what reached them, and that is compared with what clients were told.
use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use segue_tests::cluster::TestCluster;
use segue_tests::http::{Request, get, is_ready, metric};
use segue_tests::ports::free_address;
use segue_tests::process::{Process, until};

const SEGUE: &str = env!("CARGO_BIN_EXE_segue");
const PATIENCE: Duration = Duration::from_secs(60);

/// Writes `keyspace key number` of each request into its file and responds with it.
const SERVICE: &str = "
import http.server, sys, threading
log, lock = open(sys.argv[2], 'a'), threading.Lock()
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def do_POST(self):
        self.rfile.read(int(self.headers.get('content-length', '0')))
        line = ' '.join([self.headers['segue-keyspace'], self.headers['x-key'], self.headers['x-number']])
        with lock:
            log.write(line + '\\n')
            log.flush()
        self.send_response(200)
        self.send_header('content-length', str(len(line)))
        self.end_headers()
        self.wfile.write(line.encode())
    def log_message(self, *_): pass
host, port = sys.argv[1].split(':')
http.server.ThreadingHTTPServer((host, int(port)), Handler).serve_forever()
";

/// The keyspaces: one by host, one by path, and one for the rest, which has no pods.
const KEYSPACES: &str = r#"
[[keyspaces]]
name = "orders"
match = { host = "orders.example" }
partition = { key = { header = "x-key" } }
partitions = 8

[[keyspaces]]
name = "persons"
match = { path_prefix = "/persons" }
partition = { key = { path = "/persons/{key}" }, hash = "crc32" }
partitions = 4

[[keyspaces]]
name = "idle"
match = { path_prefix = "/idle" }
partition = { header = "x-partition" }
stash = { max_wait = "10s" }
partitions = 2
strategy = "jump"
"#;

struct Site {
    cluster: TestCluster,
    router: SocketAddr,
    admin: SocketAddr,
    processes: BTreeMap<String, (Process, Process)>,
    segue: Option<Process>,
}

impl Site {
    fn start(http1_server: &str) -> Self {
        let cluster = TestCluster::start(SEGUE);
        let (router, admin) = (free_address(), free_address());
        let config = cluster
            .config()
            .router("r-0", router)
            .set("coordinator.name", "c-0")
            .set("router.http1_server", http1_server)
            .set("router.workers", 2)
            // Below the shortest `max_wait`. A busy machine may stop a service for seconds, which must sever no request.
            .set("router.drain.timeout", "9s")
            .with("", KEYSPACES)
            .admin(admin)
            .quick();
        let mut segue = cluster.run("segue", &config);
        segue.until("/ready", || is_ready(admin));
        Site { cluster, router, admin, processes: BTreeMap::new(), segue: Some(segue) }
    }

    fn log(&self, pod: &str) -> PathBuf {
        self.cluster.path().join(format!("{pod}.requests"))
    }

    /// Starts a sidecar and its service in a keyspace.
    fn pod(&mut self, keyspace: &str, name: &str) {
        let (listen, upstream) = (free_address(), free_address());
        let mut command = Command::new("python3");
        command.args(["-c", SERVICE, &upstream.to_string()]).arg(self.log(name));
        let mut service = Process::start(&format!("{name}-service"), self.cluster.path(), &mut command);
        service.until("the service listens", || TcpStream::connect(upstream).is_ok());
        let config = self.cluster.config().pod(name, listen, upstream).set("keyspace", keyspace);
        let sidecar = self.cluster.run(name, &config.quick());
        self.processes.insert(name.to_owned(), (sidecar, service));
    }

    /// Waits until just this pod owns all partitions of a keyspace and none moves.
    fn settles(&self, keyspace: &str, pods: &[&str]) {
        until(&format!("{keyspace} settles on {pods:?}"), || {
            let mut command = Command::new(SEGUE);
            command.args(["status", "--json", "--keyspace", keyspace, "--etcd", &self.cluster.etcd().endpoint()]);
            let output = command.output().unwrap();
            let Ok(status) = serde_json::from_slice::<serde_json::Value>(&output.stdout) else { return false };
            let list = |name: &str| status[name].as_array().cloned().unwrap_or_default();
            let named: Vec<_> = list("pods").iter().map(|pod| pod["name"].as_str().unwrap().to_owned()).collect();
            let owns = list("pods").iter().all(|pod| pod["partitions"].as_u64() > Some(0));
            named == pods && owns && list("handoffs").is_empty() && status["unowned"] == 0
        });
    }

    fn metric(&self, series: &str) -> f64 {
        let (_, page) = get(self.admin, "/metrics").unwrap();
        metric(&page, series).unwrap_or_else(|| panic!("{series} is missing in {page}"))
    }
}

/// A client that sends requests for both keyspaces in turn on one connection.
struct Client {
    thread: JoinHandle<Vec<String>>,
    ending: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
}

impl Client {
    fn start(router: SocketAddr, number: usize) -> Self {
        let (ending, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (ends, counts) = (ending.clone(), done.clone());
        let thread = std::thread::spawn(move || {
            let mut connection = TcpStream::connect(router).unwrap();
            connection.set_read_timeout(Some(PATIENCE)).unwrap();
            let mut sent = Vec::new();
            for index in 0.. {
                if ends.load(Relaxed) {
                    break;
                }
                let key = format!("c{number}k{}", index % 7);
                for (keyspace, host, path) in [
                    ("orders", "Orders.example:80", "/persons/x".to_owned()),
                    ("persons", "h", format!("/persons/{key}")),
                ] {
                    let head = format!(
                        "POST {path} HTTP/1.1\r\nhost: {host}\r\nx-key: {key}\r\nx-number: {index}\r\ncontent-length: 0\r\n\r\n"
                    );
                    connection.write_all(head.as_bytes()).unwrap();
                    let (status, body) = response(&mut connection);
                    let expected = format!("{keyspace} {key} {index}");
                    assert_eq!((&*status, &*body), ("HTTP/1.1 200 OK", &*expected));
                    sent.push(expected);
                    counts.fetch_add(1, Relaxed);
                }
            }
            sent
        });
        Client { thread, ending, done }
    }
}

/// Reads one response with a body of known length. Returns its first line and its body.
fn response(connection: &mut TcpStream) -> (String, String) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        connection.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    let length = head.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    connection.read_exact(&mut body).unwrap();
    (head.lines().next().unwrap().to_owned(), String::from_utf8(body).unwrap())
}

/// Lets the pods of one keyspace change under load, and checks that each request reached its own keyspace once.
fn moves_one_keyspace(http1_server: &str) {
    let mut site = Site::start(http1_server);
    site.pod("orders", "o-0");
    site.pod("persons", "p-0");
    site.settles("orders", &["o-0"]);
    site.settles("persons", &["p-0"]);
    let cutovers = |site: &Site, keyspace: &str| {
        site.metric(&format!("segue_cutovers_total{{keyspace=\"{keyspace}\",result=\"switched\"}}"))
    };
    let (orders, persons) = (cutovers(&site, "orders"), cutovers(&site, "persons"));

    let clients: Vec<_> = (0..6).map(|number| Client::start(site.router, number)).collect();
    let flows = |what: &str| {
        let count = || clients.iter().map(|client| client.done.load(Relaxed)).sum::<u64>();
        let before = count();
        until(&format!("requests flow {what}"), || count() > before + 200);
    };
    flows("at rest");
    site.pod("orders", "o-1");
    site.settles("orders", &["o-0", "o-1"]);
    flows("after a pod has joined");
    let (sidecar, service) = site.processes.remove("o-0").unwrap();
    let (status, output) = sidecar.terminate();
    assert!(status.success(), "o-0 did not leave gracefully:\n{output}");
    site.settles("orders", &["o-1"]);
    flows("after a pod has left");
    drop(service);

    clients.iter().for_each(|client| client.ending.store(true, Relaxed));
    let mut told: Vec<String> = clients.into_iter().flat_map(|client| client.thread.join().unwrap()).collect();
    let mut reached = Vec::new();
    for (keyspace, pods) in [("orders", &["o-0", "o-1"][..]), ("persons", &["p-0"])] {
        for pod in pods {
            let log = std::fs::read_to_string(site.log(pod)).unwrap();
            assert!(log.lines().all(|line| line.starts_with(&format!("{keyspace} "))), "{pod} of {keyspace}: {log}");
            reached.extend(log.lines().map(str::to_owned));
        }
    }
    told.sort_unstable();
    reached.sort_unstable();
    assert_eq!(told, reached);

    // Four partitions moved to the new pod, and then the other four.
    assert_eq!(cutovers(&site, "orders") - orders, 8.0);
    assert_eq!(cutovers(&site, "persons"), persons);
    let passed = |keyspace: &str| {
        site.metric(&format!("segue_requests_total{{keyspace=\"{keyspace}\",code=\"200\",reason=\"\"}}"))
    };
    assert_eq!((passed("orders"), passed("persons")), (told.len() as f64 / 2.0, told.len() as f64 / 2.0));
    let (status, output) = site.segue.take().unwrap().terminate();
    assert!(status.success(), "{output}");
}

#[test]
fn a_handoff_in_one_keyspace_loses_nothing_and_leaves_the_other_alone() {
    moves_one_keyspace("hyper");
}

#[test]
fn the_same_holds_with_the_other_http1_server() {
    moves_one_keyspace("segue");
}

#[test]
fn requests_of_one_keyspace_do_not_wait_for_another_without_pods() {
    let mut site = Site::start("hyper");
    site.pod("persons", "p-0");
    site.pod("orders", "o-0");
    site.settles("persons", &["p-0"]);
    site.settles("orders", &["o-0"]);

    let begun = Instant::now();
    let router = site.router;
    let request = Request::post("/idle", "").header("x-partition", 1).timeout(PATIENCE);
    let idle = std::thread::spawn(move || request.send(router).unwrap());
    until("a request waits in the keyspace without pods", || {
        site.metric("segue_stash_requests{keyspace=\"idle\"}") == 1.0
    });
    let post = |path: &str| {
        let request = Request::post(path, "").header("x-key", "k").header("x-number", 1);
        request.timeout(PATIENCE).send(router).unwrap()
    };
    let served = post("/persons/k");
    assert_eq!((served.status, &*served.body), (200, "persons k 1"));
    assert_eq!(site.metric("segue_stash_requests{keyspace=\"persons\"}"), 0.0);
    let idle = idle.join().unwrap();
    assert_eq!(idle.status, 503, "{}", idle.body);
    assert!(idle.head.contains("segue-reason: no-owner"), "{}", idle.head);
    // Its own bound, not the 30 s of the others.
    assert!((10..30).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());

    let unmatched = post("/personsx");
    assert_eq!(unmatched.status, 400);
    assert!(unmatched.body.contains("no keyspace matches this host and path"), "{}", unmatched.body);
    assert!(unmatched.head.contains("segue-reason: no-partition"), "{}", unmatched.head);
    let ambiguous = post("/x/../persons/k");
    assert!(ambiguous.head.contains("segue-reason: bad-partition"), "{}", ambiguous.head);
    assert_eq!(site.metric("segue_requests_total{code=\"400\",reason=\"no-partition\"}"), 1.0);
    assert_eq!(site.metric("segue_requests_total{keyspace=\"persons\",code=\"400\",reason=\"no-partition\"}"), 0.0);

    // By HTTP/2 the host is `:authority`.
    let url = |host: &str, path: &str| {
        let mut command = Command::new("curl");
        command.args(["--silent", "--max-time", "30", "--http2-prior-knowledge", "--request", "POST"]);
        command.args(["--header", &format!("host: {host}"), "--header", "x-key: k", "--header", "x-number: 2"]);
        command.arg(format!("http://{router}{path}"));
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    assert_eq!(url("other.example", "/persons/k"), "persons k 2");
    assert_eq!(url("ORDERS.example:81", "/persons/k"), "orders k 2");
}
