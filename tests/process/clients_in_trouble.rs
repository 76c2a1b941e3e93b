//! Clients that wait while the store is at rest: what operators are shown of a pod that is dead, hangs, or is slow.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use segue_tests::cluster::TestCluster;
use segue_tests::http::{Request, get, metric};
use segue_tests::ports::free_address;
use segue_tests::process::{Process, until};

use crate::site::service::serve;
use crate::site::{SEGUE, says};

/// A site of two partitions, each with a pod of its own: a router and a coordinator in one process, and two sidecars.
struct TroubledSite {
    cluster: TestCluster,
    router: SocketAddr,
    admin: SocketAddr,
    ended: Arc<AtomicBool>,
    _process: Process,
}

impl TroubledSite {
    fn start() -> Self {
        let cluster = TestCluster::start(SEGUE);
        let (router, admin) = (free_address(), free_address());
        let config = cluster.config().coordinator("c-0", 2).router("r-0", router).admin(admin).quick();
        let process = cluster.run("segue", &config);
        TroubledSite { cluster, router, admin, ended: Arc::default(), _process: process }
    }

    /// Starts a sidecar whose lease outlives the test.
    fn pod(&self, name: &str, service: SocketAddr) -> Process {
        let config = self.cluster.config().pod(name, free_address(), service).admin(free_address()).quick();
        self.cluster.run(name, &config.lease("pod", "120s"))
    }

    /// Returns the partition of a pod.
    fn partition_of(&self, pod: &str) -> u64 {
        let explained = self.says(&["explain", pod]);
        let owns = explained.lines().find_map(|line| line.strip_prefix("owns        1: "));
        owns.unwrap_or_else(|| panic!("{explained}")).parse().unwrap()
    }

    /// Has so many clients ask for both partitions until the test ends.
    fn load(&self, clients: usize) {
        for _ in 0..clients {
            for partition in [0, 1] {
                let (router, ended) = (self.router, self.ended.clone());
                thread::spawn(move || {
                    while !ended.load(Relaxed) {
                        let ask = Request::get("/").header("x-partition", partition);
                        ask.timeout(Duration::from_secs(20)).send(router);
                    }
                });
            }
        }
    }

    fn says(&self, words: &[&str]) -> String {
        says(&[words, &["--server", &format!("http://{}", self.admin)]].concat()).1
    }

    fn metrics(&self) -> String {
        get(self.admin, "/metrics").unwrap().1
    }
}

impl Drop for TroubledSite {
    fn drop(&mut self) {
        self.ended.store(true, Relaxed);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_pod_is_named_with_the_requests_that_wait_while_its_lease_lives() {
    let service = serve(|_| async { (200, "done".to_owned()) }).await;
    tokio::task::spawn_blocking(move || {
        let site = TroubledSite::start();
        let (a, _b) = (site.pod("a", service), site.pod("b", service));
        site.cluster.settles(2, &["a", "b"]);
        let partition = site.partition_of("a").to_string();
        site.load(2);
        until("answers of both pods", || {
            let metrics = site.metrics();
            let answered =
                |pod| metric(&metrics, &format!("segue_upstream_requests_total{{pod=\"{pod}\",code_class=\"2xx\"}}"));
            answered("a") > Some(9.0) && answered("b") > Some(9.0)
        });
        let healthy = site.says(&["explain", &partition]);
        assert!(healthy.contains("next steps  none: it is as it should be"), "{healthy}");
        assert!(healthy.contains("router      r-0: the partition is open"), "{healthy}");
        assert!(!site.says(&["status"]).contains("trouble"));

        a.kill();
        until("the pod's name", || {
            site.says(&["status"]).contains("trouble     a: unreachable from 1 of 1 router for ")
        });
        until("the requests that wait", || site.says(&["status"]).contains("requests held, the oldest for "));
        for subject in ["a", &partition] {
            let explained = site.says(&["explain", subject]);
            assert!(explained.contains("trouble     a: unreachable from 1 of 1 router for "), "{explained}");
            assert!(
                explained.contains("next step   wait: if its process is gone, its lease ends within "),
                "{explained}"
            );
            assert!(!explained.contains("as it should be"), "{explained}");
        }
        let direct = says(&["status", "--etcd", &site.cluster.etcd().endpoint()]).1;
        assert!(direct.contains("trouble     a: unreachable from 1 of 1 router for "), "{direct}");
        let metrics = site.metrics();
        assert_eq!(metric(&metrics, "segue_pod_trouble{pod=\"a\",kind=\"unreachable\"}"), Some(1.0), "{metrics}");
        assert!(!metrics.contains("segue_pod_trouble{pod=\"b\""), "{metrics}");
        let log = site.cluster.output("segue");
        assert_eq!(log.matches("clients of a pod suffer").count(), 1, "{log}");

        let words = ["forget", "pod", "a", "--force", "--yes", "--etcd", &site.cluster.etcd().endpoint()];
        let forgotten = says(&words).1;
        assert!(forgotten.contains("pod a is forgotten"), "{forgotten}");
        until("the end of the trouble", || !site.says(&["status"]).contains("trouble"));
        until("the end of its series", || !site.metrics().contains("segue_pod_trouble{"));
        until("the end of the dead pod's traffic", || {
            !site.metrics().contains("segue_upstream_requests_total{pod=\"a\"")
        });
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_that_hangs_and_one_that_fails_are_named_beside_one_that_serves() {
    let hangs = Arc::new(AtomicBool::new(false));
    let (fails, is_hung) = (Arc::new(AtomicBool::new(false)), hangs.clone());
    let is_broken = fails.clone();
    let hanging = serve(move |_| {
        let hangs = is_hung.load(Relaxed);
        async move {
            if hangs {
                std::future::pending::<()>().await;
            }
            (200, "done".to_owned())
        }
    })
    .await;
    let failing = serve(move |_| {
        let status = if is_broken.load(Relaxed) { 500 } else { 200 };
        async move { (status, "done".to_owned()) }
    })
    .await;
    tokio::task::spawn_blocking(move || {
        let site = TroubledSite::start();
        let _pods = (site.pod("hanging", hanging), site.pod("failing", failing));
        site.cluster.settles(2, &["failing", "hanging"]);
        site.load(4);
        hangs.store(true, Relaxed);
        until("the hanging pod", || {
            let status = site.says(&["status"]);
            status.contains("trouble     hanging: does not answer 1 of 1 router for ")
                && status.contains("4 requests without a response, the oldest for ")
        });
        fails.store(true, Relaxed);
        until("the failing pod", || {
            let status = site.says(&["status"]);
            status.contains("trouble     failing: fails the requests of 1 of 1 router for ")
                && status
                    .contains("next step   look at its service and at segue explain failing, or segue drain failing")
        });
        fails.store(false, Relaxed);
        until("its end", || !site.says(&["status"]).contains("failing: fails"));
    })
    .await
    .unwrap();
}
