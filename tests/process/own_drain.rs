//! `segue drain --self`, `/drain` and `/settled`: a sidecar's pod leaves under load, as in a rollout.
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use segue_tests::http::{Request, get, is_ready};
use segue_tests::ports::free_address;
use segue_tests::process::Process;
use tokio::net::TcpListener;

use crate::site::load::Load;
use crate::site::service::serve;
use crate::site::{LONGEST_REQUEST, Site, says};

const PARTITIONS: u32 = 8;
const CLIENTS: usize = 4;

/// The requests that the services have carried out, by number.
type Done = Arc<Mutex<Vec<u64>>>;

/// Starts a service that notes each request.
async fn service(done: &Done) -> SocketAddr {
    let done = done.clone();
    serve(move |call| {
        done.lock().unwrap().push(call.path.strip_prefix("/work/").unwrap().parse().unwrap());
        async { (200, String::new()) }
    })
    .await
}

struct Pod {
    process: Process,
    admin: SocketAddr,
    file: PathBuf,
    life: u64,
}

struct Drained {
    site: Site,
    done: Done,
}

impl Drained {
    fn start() -> Self {
        let mut site = Site::start(PARTITIONS);
        site.control.until("a ready router", || is_ready(site.admin));
        Drained { site, done: Done::default() }
    }

    /// Starts a sidecar and its service, and waits until the pod has its partitions.
    async fn pod(&self, name: &str) -> Pod {
        let (admin, upstream) = (free_address(), service(&self.done).await);
        let config = self.site.config().pod(name, free_address(), upstream).admin(admin).quick();
        let config = config.set("admin.socket", self.site.path().join(format!("{name}.sock")).to_str().unwrap());
        let mut process = self.site.run(name, &config);
        process.until("a settled pod", || get(admin, "/settled").is_some_and(|(status, _)| status == 200));
        let life = self.owned(name).0;
        Pod { process, admin, file: self.site.path().join(format!("{name}.toml")), life }
    }

    /// Returns a pod's incarnation and number of partitions.
    fn owned(&self, name: &str) -> (u64, u64) {
        let status = self.site.stored("default");
        let pods = status["pods"].as_array().unwrap();
        let pod = pods.iter().find(|pod| pod["name"] == name).cloned().unwrap_or_default();
        (pod["incarnation"].as_u64().unwrap_or(0), pod["partitions"].as_u64().unwrap_or(0))
    }
}

/// Clients that send numbered requests. Those that fail are kept.
fn load(router: SocketAddr) -> Load<String> {
    Load::start(CLIENTS, 0, |_| {
        move |number| {
            let request = Request::post(&format!("/work/{number}"), "").timeout(LONGEST_REQUEST);
            match request.header("x-partition", number % u64::from(PARTITIONS)).send(router) {
                Some(response) if response.status == 200 => None,
                other => Some(format!("{number}: {other:?}")),
            }
        }
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_process_that_cannot_start_leaves_the_socket_of_another_alone() {
    let site = Drained::start();
    let a = site.pod("a").await;
    let socket = site.site.path().join("a.sock");
    let pod = |name: &str, listen: SocketAddr| {
        let config = site.site.config().pod(name, listen, free_address()).admin(free_address()).quick();
        config.set("admin.socket", socket.to_str().unwrap())
    };
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    for (name, listen, says) in [
        ("no-address", taken.local_addr().unwrap(), "cannot listen"),
        ("no-socket", free_address(), "admin.socket: another process listens at"),
    ] {
        let mut other = site.site.run(name, &pod(name, listen));
        assert_eq!(other.wait().code(), Some(1), "{}", other.output());
        assert!(other.output().contains(says), "{}", other.output());
    }
    let (code, said) = drain_itself(&["--server", &format!("unix:{}", socket.display()), "--no-wait"]);
    assert!(code == Some(0) && said.contains("pod a"), "{said}");
    drop(a);
}

/// Returns the exit code of `segue drain --self`, and what it printed.
fn drain_itself(words: &[&str]) -> (Option<i32>, String) {
    says(&[&["drain", "--self"][..], words].concat())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_pre_stop_hook_empties_its_pod_under_load_and_the_next_life_gets_partitions() {
    let site = Drained::start();
    let a = site.pod("a").await;
    let b = site.pod("b").await;
    let load = load(site.site.router);
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
    let server = format!("unix:{}", site.site.path().join("b.sock").display());
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
