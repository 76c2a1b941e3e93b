//! One process with a router and a coordinator for several keyspaces, with etcd and sidecars as processes.
//!
//! Clients mix requests for two keyspaces on each connection while the pods of one keyspace change. The services write
//! down what reached them, and that is compared with what clients were told.
use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use segue_tests::http::{Request, get, is_ready, metric};
use segue_tests::ports::free_address;
use segue_tests::process::{Process, until};
use tokio::runtime::Runtime;

use crate::site::Site;
use crate::site::load::Load;
use crate::site::service::serve;

const PATIENCE: Duration = Duration::from_secs(60);

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

/// What reached each pod: `keyspace key number`.
type Reached = Arc<Mutex<BTreeMap<String, Vec<String>>>>;

struct Keyspaces {
    site: Site,
    pods: BTreeMap<String, Process>,
    reached: Reached,
    runtime: Runtime,
}

impl Keyspaces {
    fn start() -> Self {
        let mut site = Site::with(|_, config| {
            let config = config.set("coordinator.name", "c-0");
            // Below the shortest `max_wait`. A busy machine may stop a service for seconds, which must sever no request.
            config.set("router.workers", 2).set("router.drain.timeout", "9s").with("", KEYSPACES)
        });
        site.control.until("/ready", || is_ready(site.admin));
        Keyspaces { site, pods: BTreeMap::new(), reached: Reached::default(), runtime: Runtime::new().unwrap() }
    }

    /// Starts a sidecar in a keyspace, and its service, which notes each request and responds with that.
    fn pod(&mut self, keyspace: &str, name: &str) {
        let (pod, reached) = (name.to_owned(), self.reached.clone());
        let upstream = self.runtime.block_on(serve(move |call| {
            let line = ["segue-keyspace", "x-key", "x-number"].map(|name| call.text(name)).join(" ");
            reached.lock().unwrap().entry(pod.clone()).or_default().push(line.clone());
            async move { (200, line) }
        }));
        let config = self.site.config().pod(name, free_address(), upstream).set("keyspace", keyspace);
        self.pods.insert(name.to_owned(), self.site.run(name, &config.quick()));
    }

    fn metric(&self, series: &str) -> f64 {
        let (_, page) = get(self.site.admin, "/metrics").unwrap();
        metric(&page, series).unwrap_or_else(|| panic!("{series} is missing in {page}"))
    }
}

/// Starts clients that send requests for both keyspaces in turn, each on one connection. What was answered is kept.
fn load(router: SocketAddr) -> Load<[String; 2]> {
    Load::start(6, 0, |number| {
        let mut connection = TcpStream::connect(router).unwrap();
        connection.set_read_timeout(Some(PATIENCE)).unwrap();
        move |index| {
            let key = format!("c{number}k{}", index % 7);
            let sent =
                [("orders", "Orders.example:80", "/persons/x".to_owned()), ("persons", "h", format!("/persons/{key}"))];
            Some(sent.map(|(keyspace, host, path)| {
                let head = format!(
                    "POST {path} HTTP/1.1\r\nhost: {host}\r\nx-key: {key}\r\nx-number: {index}\r\ncontent-length: 0\r\n\r\n"
                );
                connection.write_all(head.as_bytes()).unwrap();
                let (status, body) = response(&mut connection);
                let expected = format!("{keyspace} {key} {index}");
                assert_eq!((&*status, &*body), ("HTTP/1.1 200 OK", &*expected));
                expected
            }))
        }
    })
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

/// The pods of one keyspace change under load, and each request reaches its own keyspace once.
#[test]
fn a_handoff_in_one_keyspace_loses_nothing_and_leaves_the_other_alone() {
    let mut site = Keyspaces::start();
    site.pod("orders", "o-0");
    site.pod("persons", "p-0");
    site.site.settles_on("orders", &[("o-0", 8)]);
    site.site.settles_on("persons", &[("p-0", 4)]);
    let cutovers = |site: &Keyspaces, keyspace: &str| {
        site.metric(&format!("segue_cutovers_total{{keyspace=\"{keyspace}\",result=\"switched\"}}"))
    };
    let (orders, persons) = (cutovers(&site, "orders"), cutovers(&site, "persons"));

    // At rest, after a pod has joined, and after one has left.
    let load = load(site.site.router);
    load.goes_on(100);
    site.pod("orders", "o-1");
    site.site.settles_on("orders", &[("o-0", 4), ("o-1", 4)]);
    load.goes_on(100);
    let (status, output) = site.pods.remove("o-0").unwrap().terminate();
    assert!(status.success(), "o-0 did not leave gracefully:\n{output}");
    site.site.settles_on("orders", &[("o-1", 8)]);
    load.goes_on(100);

    let mut told: Vec<String> = load.end().1.into_iter().flatten().collect();
    let by_pod = site.reached.lock().unwrap().clone();
    for (pod, lines) in &by_pod {
        let keyspace = if pod.starts_with('o') { "orders " } else { "persons " };
        assert!(lines.iter().all(|line| line.starts_with(keyspace)), "{pod} of {keyspace}: {lines:?}");
    }
    let mut reached: Vec<String> = by_pod.into_values().flatten().collect();
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
    let Keyspaces { site: Site { control, .. }, .. } = site;
    let (status, output) = control.terminate();
    assert!(status.success(), "{output}");
}

#[test]
fn requests_of_one_keyspace_do_not_wait_for_another_without_pods() {
    let mut site = Keyspaces::start();
    site.pod("persons", "p-0");
    site.pod("orders", "o-0");
    site.site.settles_on("persons", &[("p-0", 4)]);
    site.site.settles_on("orders", &[("o-0", 8)]);

    let begun = Instant::now();
    let router = site.site.router;
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
    assert!(begun.elapsed() >= Duration::from_secs(10), "{:?}", begun.elapsed());

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
