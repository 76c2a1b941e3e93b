//! What a log tells: each refusal, each lost pod and each reason of not being ready once and then rarely, rounds in place of
//! partitions, and requests as `[log] requests` says.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use segue_tests::cluster::TestCluster;
use segue_tests::http::{Request, is_ready};
use segue_tests::ports::free_address;
use segue_tests::process::Process;
use serde_json::Value;

use crate::site::SEGUE;
use crate::site::service::serve;

/// Returns the lines of a log that have these texts.
fn lines<'log>(log: &'log str, texts: &[&str]) -> Vec<&'log str> {
    log.lines().filter(|line| texts.iter().all(|text| line.contains(text))).collect()
}

fn ask(router: SocketAddr, partition: u64) -> Option<segue_tests::http::Response> {
    let request = Request::get("/orders?token=secret").header("x-partition", partition);
    request.timeout(Duration::from_secs(60)).send(router)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_lost_pods_and_moves_are_told_once_and_partitions_in_sums() {
    let service = serve(|_| async { (200, "done".to_owned()) }).await;
    let cluster = TestCluster::start(SEGUE);
    let (router, admin) = (free_address(), free_address());
    let config = cluster.config().coordinator("c-0", 8).router("r-0", router).admin(admin).quick();
    let config = config.set("router.stash.max_wait", "1s").set("router.drain.timeout", "500ms");
    let mut process = cluster.run("segue", &config);
    process.until("/ready", || is_ready(admin));
    let log = || cluster.output("segue");
    for _ in 0..3 {
        assert!(ask(router, 3).is_some_and(|answer| answer.head.contains("segue-reason: no-owner")));
    }
    process.until("a refusal", || {
        !lines(&log(), &["WARN", "the router refuses requests", r#"reason="no-owner""#]).is_empty()
    });
    let request = ["INFO request", r#"method="GET""#, "status=503", r#"reason="no-owner""#, "partition=3"];
    process.until("a line of each request", || lines(&log(), &request).len() == 3);
    let requests = log();
    let requests = lines(&requests, &request);
    assert!(
        requests.iter().all(|line| line.contains(r#"path="/orders""#) && line.contains("held_ms=")),
        "{requests:?}"
    );
    assert!(!log().contains("secret"));

    let pod = |name: &str| {
        let config = cluster.config().pod(name, free_address(), service).admin(free_address()).quick();
        cluster.run(name, &config.lease("pod", "3s"))
    };
    let (a, _b) = (pod("a"), pod("b"));
    cluster.settles(8, &["a", "b"]);
    a.kill();
    let gone =
        ["WARN a pod is gone; its partitions have no owner until they have moved", r#"pod="a""#, "its lease ended"];
    process.until("the loss of a pod", || !lines(&log(), &gone).is_empty());
    process.until("its end", || !lines(&log(), &["have owners again", r#"pod="a""#]).is_empty());
    process.until("a sum of moves", || !lines(&log(), &["INFO moved ", " in "]).is_empty());
    assert_eq!(lines(&log(), &["WARN a pod is gone"]).len(), 1, "{}", log());
    for name in ["segue", "a", "b"] {
        let output = cluster.output(name);
        let of_one: Vec<_> =
            lines(&output, &["INFO", "partition="]).into_iter().filter(|it| !it.contains("INFO request")).collect();
        assert!(of_one.is_empty(), "{name}: {of_one:#?}");
    }
    process.until("a sum of what the pod has", || {
        !lines(&cluster.output("b"), &["INFO partitions of this pod have changed", "gained="]).is_empty()
    });
    // Requests that succeed have no line.
    assert!(ask(router, 3).is_some_and(|answer| answer.status == 200));
    assert!(lines(&log(), &["INFO request", "status=200"]).is_empty());
}

#[test]
fn a_request_is_logged_with_the_client_that_a_trusted_proxy_or_a_balancer_names() {
    const HEADER: &str =
        "GET / HTTP/1.1\r\nhost: h\r\nconnection: close\r\nx-forwarded-for: 198.51.100.1, 203.0.113.7\r\n\r\n";
    let named = format!("PROXY TCP4 203.0.113.8 10.0.0.1 4711 80\r\n{HEADER}");
    for (setting, request, client) in [
        ("router.trust_forwarded", HEADER, "203.0.113.7"),
        ("router.limits.proxy_protocol", &*named, "203.0.113.8"),
        ("", HEADER, "127.0.0.1"),
    ] {
        let cluster = TestCluster::start(SEGUE);
        let router = free_address();
        let config = cluster.config().coordinator("c-0", 2).router("r-0", router).admin(free_address()).quick();
        let config = if setting.is_empty() { config } else { config.set(setting, true) };
        let mut process = cluster.run("segue", &config);
        let log = || cluster.output("segue");
        process.until("an answer", || {
            let Ok(mut stream) = TcpStream::connect(router) else { return false };
            let mut answer = String::new();
            let _ = stream.write_all(request.as_bytes()).and_then(|()| stream.read_to_string(&mut answer));
            answer.starts_with("HTTP/1.1 400")
        });
        let line = ["INFO request", r#"reason="no-partition""#, &format!("client=\"{client}\"")];
        process.until("its line", || !lines(&log(), &line).is_empty());
        assert!(process.terminate().0.success());
    }
}

#[test]
fn a_second_process_under_a_living_name_is_told_who_has_it_and_what_to_set() {
    let cluster = TestCluster::start(SEGUE);
    let service = TcpListener::bind("127.0.0.1:0").unwrap();
    let (first, second) = (free_address(), free_address());
    let coordinator =
        |name: &str| cluster.run(name, &cluster.config().coordinator(name, 2).admin(free_address()).quick());
    let mut leader = coordinator("c-0");
    leader.until("a leader", || cluster.output("c-0").contains("leading"));
    let mut standby = coordinator("c-1");
    standby.until("its line", || !lines(&cluster.output("c-1"), &["INFO standing by", r#"leader="c-0""#]).is_empty());
    let pod = |file: &str, listen: SocketAddr| -> Process {
        let config = cluster.config().pod("twin", listen, service.local_addr().unwrap()).admin(free_address()).quick();
        cluster.run(file, &config.lease("pod", "2s"))
    };
    let mut one = pod("one", first);
    one.until("its registration", || cluster.output("one").contains("registered"));
    let mut two = pod("two", second);
    let address = format!(r#"address="{first}""#);
    let twin = ["WARN another process lives under this process's name; set pod.name", r#"name="twin""#, &address];
    two.until("the other's address", || !lines(&cluster.output("two"), &twin).is_empty());
    two.until("a warning", || {
        !lines(&cluster.output("two"), &["WARN has not been ready for", r#"role="pod""#, r#"reason="not registered""#])
            .is_empty()
    });
    let output = cluster.output("two");
    assert_eq!(lines(&output, &["INFO not ready", r#"role="pod""#, r#"reason="not registered""#]).len(), 1, "{output}");
    assert!(lines(&output, &["WARN another process lives"]).len() <= 2, "{output}");
    assert!(!cluster.output("one").contains("WARN has not been ready"));
}

#[test]
fn each_line_of_a_log_in_json_is_json_to_the_end_of_the_process() {
    let cluster = TestCluster::start(SEGUE);
    let (service, router) = (free_address(), free_address());
    let json = |config: segue_tests::config::Config| config.set("log.format", "json").set("log.requests", "all");
    let _coordinator = cluster.run("c-0", &json(cluster.config().coordinator("c-0", 2).router("r-0", router).quick()));
    let port = service.port().to_string();
    let exec = format!(r#"exec = ["python3", "-m", "http.server", "{port}", "--bind", "127.0.0.1"]"#);
    let pod = cluster.config().pod("w-0", free_address(), service).admin(free_address()).quick().with("pod", &exec);
    let mut pod = cluster.run("w-0", &json(pod));
    pod.until("a pod that serves", || ask(router, 0).is_some_and(|answer| answer.status == 404));
    pod.until("the line of a request", || {
        let log = cluster.output("c-0");
        let of_request = |line: &str| {
            let line: Value = serde_json::from_str(line).unwrap();
            let fields = &line["fields"];
            line["target"] == "segue::requests"
                && fields["status"] == 404
                && fields["pod"] == "w-0"
                && fields["epoch"].is_u64()
        };
        log.lines().any(of_request)
    });
    // The supervisor outlives the sidecar, and says so.
    pod.kill();
    let words = "the sidecar is gone: the service was killed";
    segue_tests::process::until("the supervisor's last words", || cluster.output("w-0").contains(words));
    // The port is in use.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let config = json(cluster.config().router("r-1", taken.local_addr().unwrap()));
    assert!(!cluster.run("r-1", &config).wait().success());
    assert!(cluster.output("r-1").contains("cannot listen"));
    for name in ["c-0", "w-0", "r-1"] {
        let output = cluster.output(name);
        // The service writes its own lines, as it likes.
        let of_segue = |line: &&str| !line.starts_with("127.0.0.1 - - ") && !line.starts_with("Serving HTTP");
        for line in output.lines().filter(of_segue) {
            let parsed: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{name}: {error}: {line}"));
            let has = |field: &str| parsed[field].is_string();
            assert!(has("timestamp") && has("level") && parsed["fields"]["message"].is_string(), "{name}: {line}");
        }
    }
}
