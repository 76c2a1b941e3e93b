//! The hooks of a sidecar as processes: a service's responses decide the outcome of the handoff, and `/status` shows
//! them.
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use segue_tests::http::get;
use segue_tests::ports::free_address;
use segue_tests::process::Process;
use serde_json::Value;

use crate::site::service::{Answer, Call, serve};
use crate::site::{Site, blocking, eventually, said as said_by, segue};

const SECRET: &str = "knock-knock";
const HOOKS: [&str; 4] = ["warm", "sync", "drain", "release"];

/// A service whose hooks respond as the test says, by default with `200`.
#[derive(Default)]
struct Service {
    answers: Mutex<HashMap<String, (u16, &'static str)>>,
    called: Mutex<Vec<String>>,
}

impl Service {
    async fn start(name: &'static str) -> (SocketAddr, Arc<Service>) {
        let service = Arc::<Service>::default();
        let responds = service.clone();
        let address = serve(move |call| {
            let response = responds.response(name, &call);
            async move { response }
        });
        (address.await, service)
    }

    fn response(&self, name: &str, call: &Call) -> Answer {
        let Some(hook) = call.path.strip_prefix("/hooks/") else { return (200, name.to_owned()) };
        if call.text("segue-hook-secret") != SECRET {
            return (401, "who are you?".to_owned());
        }
        let (status, body) = self.answers.lock().unwrap().get(hook).copied().unwrap_or((200, ""));
        if status == 200 {
            self.called.lock().unwrap().push(hook.to_owned());
        }
        (status, body.to_owned())
    }

    fn answers(&self, hook: &str, status: u16, body: &'static str) {
        self.answers.lock().unwrap().insert(hook.to_owned(), (status, body));
    }

    fn called(&self) -> Vec<String> {
        self.called.lock().unwrap().clone()
    }
}

/// A router, a coordinator and one partition.
struct OnePartition(Site);

impl OnePartition {
    fn start() -> Self {
        let site = Site::start(1);
        std::fs::write(site.path().join("secret"), SECRET).unwrap();
        OnePartition(site)
    }

    /// Starts a sidecar with all hooks, each called with the secret. Returns the address of its admin endpoint.
    fn pod(&self, name: &str, service: SocketAddr) -> (Process, SocketAddr) {
        let admin = free_address();
        let config = self.0.config().pod(name, free_address(), service).admin(admin).quick();
        let secret = self.0.path().join("secret");
        let config = config.set("pod.hooks.secret_file", secret.to_str().unwrap());
        (self.0.run(name, &config.hooks(&format!("http://{service}/hooks"), &HOOKS)), admin)
    }

    /// Returns what `segue explain` says with these words. The coordinator's process is asked, which in turn knows only the
    /// store.
    async fn explained(&self, words: &'static [&'static str]) -> String {
        let server = format!("http://{}", self.0.admin);
        let (code, said) =
            blocking(move || said_by(segue(&[&["explain"][..], words, &["--server", &server]].concat()))).await;
        assert_eq!(code, Some(0), "{said}");
        said
    }

    /// Waits until `segue explain` says all of this.
    async fn explains(&self, words: &'static [&'static str], parts: &[&str]) {
        eventually(&format!("{parts:?} in the explanation of {words:?}"), async || {
            let explained = self.explained(words).await;
            parts.iter().all(|part| explained.contains(part))
        })
        .await;
    }

    async fn served_by(&self) -> Option<String> {
        let router = self.0.router;
        let (status, body) = blocking(move || crate::site::ask(router, "/")).await?;
        (status == 200).then_some(body)
    }
}

async fn page(admin: SocketAddr, path: &'static str) -> String {
    blocking(move || get(admin, path)).await.map(|(_, text)| text).unwrap_or_default()
}

/// Returns what the sidecar's status page says of the call of a hook that has not succeeded.
async fn said(admin: SocketAddr) -> Option<Value> {
    let status: Value = serde_json::from_str(&page(admin, "/status").await).ok()?;
    status["pod"]["hooks"].get(0).cloned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_goes_to_another_pod_when_the_first_one_fails_for_good() {
    let fixture = OnePartition::start();
    let ((a_address, a), (b_address, b)) = (Service::start("a").await, Service::start("b").await);
    a.answers("warm", 409, r#"{"permanent":true,"reason":"no disk"}"#);
    let (_a, a_admin) = fixture.pod("a", a_address);
    let permanent = r#"segue_pod_hook_seconds_count{hook="warm",result="permanent"} 0"#;
    eventually("failure of a", async || {
        let metrics = page(a_admin, "/metrics").await;
        metrics.contains("segue_pod_hook_seconds_count") && !metrics.contains(permanent)
    })
    .await;
    let (_b, _) = fixture.pod("b", b_address);
    eventually("answer of b", async || fixture.served_by().await.as_deref() == Some("b")).await;
    assert_eq!(b.called(), ["warm"], "nobody had it, so there is no tail to read");
    assert!(!a.called().contains(&"warm".to_owned()));
    let cancelled = r#"segue_handoffs_total{result="cancelled",cause="new_owner_failed"} 0"#;
    let metrics = page(fixture.0.admin, "/metrics").await;
    assert!(metrics.contains("new_owner_failed") && !metrics.contains(cancelled), "{metrics}");
    let log = fixture.0.output("control");
    assert!(log.contains("the new owner cannot take the partition: no disk"), "{log}");
    let log = fixture.0.output("a");
    assert!(log.contains("warm failed for good; asking for another pod"), "{log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_hooks_say_is_shown_and_the_old_owner_drains_before_the_new_one_syncs() {
    let fixture = OnePartition::start();
    let ((a_address, a), (b_address, b)) = (Service::start("a").await, Service::start("b").await);
    let secret = fixture.0.path().join("secret");
    std::fs::write(&secret, "the wrong one").unwrap();
    let (a_process, a_admin) = fixture.pod("a", a_address);
    eventually("refusal of a stranger", async || {
        let failure = said(a_admin).await.and_then(|said| Some(said["failure"].as_str()?.to_owned()));
        failure.is_some_and(|failure| failure.ends_with("/hooks/warm responded 401 Unauthorized: who are you?"))
    })
    .await;
    assert!(a.called().is_empty());
    std::fs::write(&secret, SECRET).unwrap();
    eventually("answer of a", async || fixture.served_by().await.as_deref() == Some("a")).await;
    // A page may be a second old.
    eventually("end of what has succeeded", async || page(a_admin, "/status").await.contains(r#""hooks":[]"#)).await;

    b.answers("warm", 202, r#"{"progress":0.4,"detail":"7 of 20 files"}"#);
    a.answers("drain", 503, "a batch is open");
    let (_b, b_admin) = fixture.pod("b", b_address);
    let leaving = tokio::task::spawn_blocking(move || a_process.terminate());
    eventually("progress of b", async || said(b_admin).await.is_some_and(|said| said["progress"] == 0.4)).await;
    let shown = said(b_admin).await.unwrap();
    assert_eq!((&shown["hook"], &shown["detail"]), (&"warm".into(), &"7 of 20 files".into()), "{shown}");
    assert_eq!((&shown["partition"], &shown["failures"]), (&0.into(), &0.into()), "{shown}");
    assert_eq!(fixture.served_by().await.as_deref(), Some("a"), "while b warms");
    let runs = "it says     pod b: hook warm runs, for ";
    fixture.explains(&["0"], &["waits for   pod b to warm", runs, ", 40 % done (7 of 20 files)"]).await;
    let runs = "works on    0: hook warm runs, for ";
    fixture.explains(&["b"], &["arriving    0", runs, ", 40 % done (7 of 20 files)"]).await;
    let explained: Value = serde_json::from_str(&fixture.explained(&["b", "--json"]).await).unwrap();
    let work = &explained["works_on"][0];
    let far = (&work["callback"], &work["progress"], &work["detail"]);
    assert_eq!(far, (&"warm".into(), &0.4.into(), &"7 of 20 files".into()), "{explained}");
    b.answers("warm", 200, "");
    eventually("drain of a", async || {
        said(a_admin).await.is_some_and(|said| said["hook"] == "drain" && said["failures"].as_u64() > Some(0))
    })
    .await;
    assert!(!b.called().contains(&"sync".to_owned()), "the log of a is not at rest");
    fixture.explains(&["0"], &["it says     pod a: hook drain ", ": a batch is open"]).await;
    fixture.explains(&["a"], &["works on    0: hook drain ", ": a batch is open"]).await;
    a.answers("drain", 200, "");
    eventually("answer of b", async || fixture.served_by().await.as_deref() == Some("b")).await;
    let (status, output) = leaving.await.unwrap();
    assert!(status.success(), "{output}");
    assert_eq!(b.called(), ["warm", "sync"]);
    assert_eq!(a.called(), ["warm", "drain", "release"]);
}
