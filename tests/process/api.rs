//! Operators' actions over the admin endpoint: with a token, a client certificate or the Unix socket, by hand and by the
//! commands with `--server`.
#![allow(clippy::unwrap_used)]

mod writers;

use std::io::{Read as _, Write as _, copy};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use segue_coordination::store::{EtcdOptions, EtcdStore, Store as _};
use segue_protocol::keys::Keyspace;
use segue_protocol::txn::{Keys, Op, Txn};
use segue_tests::certificates::Authority;
use segue_tests::config::Config;
use segue_tests::http::{Request, Response, get, is_ready};
use segue_tests::ports::free_address;
use segue_tests::process::until;
use serde_json::Value;
use writers::{PARTITIONS, WriterCluster};

const TOKEN: &str = "correct-horse-battery-staple";

/// A cluster with one coordinator that has an admin endpoint, and writers.
struct Site {
    cluster: WriterCluster,
    admin: SocketAddr,
}

impl Site {
    /// Starts a coordinator whose endpoint admits those with the token.
    fn with_token(pods: &[&str]) -> Self {
        Self::start(pods, |site, config| {
            let file = site.path().join("token");
            std::fs::write(&file, format!("{TOKEN}\n")).unwrap();
            config.set("admin.write", "token").set("admin.token_file", file.to_str().unwrap())
        })
    }

    fn start(pods: &[&str], with: impl FnOnce(&WriterCluster, Config) -> Config) -> Self {
        let (mut cluster, admin) = (WriterCluster::start(), free_address());
        // No test waits for the end of a writer's lease, and the store is away for a while in one.
        cluster.lease_ttl = 60;
        let config = Config::new([cluster.etcd().endpoint()]).coordinator("c-0", PARTITIONS).admin(admin).quick();
        let config = with(&cluster, config);
        let mut process = cluster.run("c-0", &config);
        process.until("the admin endpoint", || is_ready(admin) || TcpProbe(admin).answers());
        cluster.processes.insert("c-0".to_owned(), process);
        for pod in pods {
            cluster.writer(pod);
        }
        cluster.settles(pods);
        Site { cluster, admin }
    }

    /// Sends a request with the token.
    #[track_caller]
    fn send(&self, method: &str, path: &str, body: &str) -> Response {
        let request = Request::json(method, path, body).header("authorization", format!("Bearer {TOKEN}"));
        let response = request.send(self.admin).unwrap();
        eprintln!("{method} {path} {body}\n{} {}", response.status, response.body);
        response
    }

    /// Sends a request with the token that has to succeed. Returns the text of the response.
    #[track_caller]
    fn does(&self, method: &str, path: &str, body: &str) -> String {
        let response = self.send(method, path, body);
        assert_eq!(response.status, 200, "{method} {path} {body}: {}", response.body);
        text(&response, "text")
    }

    fn read(&self, path: &str) -> Value {
        let (status, body) = get(self.admin, path).unwrap();
        assert_eq!(status, 200, "{path}: {body}");
        serde_json::from_str(&body).unwrap()
    }

    /// Returns the keys that operators write.
    fn intentions(&self) -> Vec<String> {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let store = || EtcdStore::connect(EtcdOptions::new([self.cluster.etcd().endpoint()])).unwrap();
        let root = Keyspace::new("/segue/", "default").root().to_owned();
        let snapshot = runtime.block_on(async { store().snapshot(&Keys::Prefix(root)).await.unwrap() });
        let keys = snapshot.entries.into_iter().map(|entry| entry.key);
        keys.filter(|key| ["/operator/", "/operations/", "/wanted"].iter().any(|part| key.contains(part))).collect()
    }

    /// Registers a participant that only has an admin address.
    fn register(&self, key: impl FnOnce(&Keyspace) -> String, record: &Value) {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            let store = EtcdStore::connect(EtcdOptions::new([self.cluster.etcd().endpoint()])).unwrap();
            let lease = Some(store.grant(Duration::from_secs(600)).await.unwrap());
            let key = key(&Keyspace::new("/segue/", "default"));
            let then = vec![Op::Put { key, value: record.to_string().into(), lease }];
            store.commit(Txn { then, ..Txn::default() }).await.unwrap();
        });
    }

    fn owner(&self, partition: u32) -> String {
        self.read(&format!("/v1/partitions/{partition}"))["owner"].as_str().unwrap().to_owned()
    }
}

/// An endpoint by TLS, which is only known to listen.
struct TcpProbe(SocketAddr);

impl TcpProbe {
    fn answers(&self) -> bool {
        std::net::TcpStream::connect(self.0).is_ok()
    }
}

fn text(response: &Response, field: &str) -> String {
    let value: Value = serde_json::from_str(&response.body).unwrap_or_default();
    value[field].as_str().unwrap_or_default().to_owned()
}

fn segue(words: &[&str]) -> Output {
    let output = Command::new(env!("CARGO_BIN_EXE_segue")).args(words).env("USER", "ann").output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    eprintln!("$ segue {}\n{err}{out}[{}]", words.join(" "), output.status);
    output
}

/// Returns the exit code of a command, and what it printed.
fn says(words: &[&str]) -> (Option<i32>, String) {
    let output = segue(words);
    (output.status.code(), String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap())
}

/// A request that changes something, each by its method, path and body.
const WRITES: [(&str, &str, &str); 11] = [
    ("POST", "/v1/moves", r#"{"partition":3,"to":"w-0"}"#),
    ("PUT", "/v1/partitions/3/pin", "{}"),
    ("DELETE", "/v1/partitions/3/pin", "{}"),
    ("POST", "/v1/pods/w-1/drain", "{}"),
    ("DELETE", "/v1/pods/w-1/drain", "{}"),
    ("POST", "/v1/planner", r#"{"paused":true,"for":"1h"}"#),
    ("POST", "/v1/handoffs/3/cancel", "{}"),
    ("PUT", "/v1/wanted", r#"{"generation":1,"owners":{"0":"w-0"}}"#),
    ("DELETE", "/v1/pods/w-1", r#"{"yes":true,"force":true}"#),
    ("DELETE", "/v1/routers/r-0", r#"{"yes":true,"force":true}"#),
    ("POST", "/drain", "{}"),
];

#[test]
fn nothing_is_changed_without_the_token_or_for_another_site() {
    let site = Site::with_token(&["w-0", "w-1"]);
    assert_eq!(site.read("/v1/access")["write"], "token");
    let bearer = |token: &str| format!("Bearer {token}");
    for (method, path, body) in WRITES {
        let plain = || Request::json(method, path, body);
        let authorized = || plain().header("authorization", bearer(TOKEN));
        let (longer, prefix) = (format!("{TOKEN}x"), &TOKEN[..8]);
        let foreign = format!("http://{}.example", site.admin);
        for (request, status, reason) in [
            (plain(), 401, "unauthorized"),
            (plain().header("authorization", bearer(&longer)), 401, "unauthorized"),
            (plain().header("authorization", bearer(prefix)), 401, "unauthorized"),
            (plain().header("authorization", format!("Basic {TOKEN}")), 401, "unauthorized"),
            (authorized().header("origin", foreign), 403, "origin"),
            (authorized().header("origin", "null"), 403, "origin"),
            (authorized().header("sec-fetch-site", "cross-site"), 403, "origin"),
        ] {
            let response = request.send(site.admin).unwrap();
            let (given, why) = (response.status, text(&response, "reason"));
            assert_eq!((given, why.as_str()), (status, reason), "{method} {path}: {}", response.body);
        }
        let typed = Request::json(method, path, "").header("content-type", "text/plain").header("content-length", 2);
        let typed = typed.header("authorization", bearer(TOKEN)).send(site.admin).unwrap();
        assert_eq!((typed.status, text(&typed, "reason").as_str()), (415, "content-type"), "{method} {path}");
        if path.starts_with("/v1") {
            let unknown = site.send(method, path, r#"{"news":1}"#);
            assert_eq!(unknown.status, 400, "{method} {path}: {}", unknown.body);
        }
    }
    let large = format!(r#"{{"partition":3,"to":"w-0","why":"{}"}}"#, "x".repeat(70_000));
    assert_eq!(site.send("POST", "/v1/moves", &large).status, 413);
    let long = format!(r#"{{"partition":3,"to":"w-0","why":"{}"}}"#, "x".repeat(2_000));
    for (method, path, body) in [
        ("POST", "/v1/moves", long.as_str()),
        ("POST", "/v1/moves", "[]"),
        ("POST", "/v1/moves", r#"{"partition":3,"to":"w-0","id":"a/b"}"#),
        ("PUT", "/v1/partitions/x/pin", "{}"),
        ("POST", "/v1/planner", r#"{"paused":true,"for":"0s"}"#),
        ("POST", "/v1/planner", r#"{"paused":false,"for":"1h"}"#),
        ("POST", "/v1/moves?wait=long", r#"{"partition":3,"to":"w-0"}"#),
    ] {
        let response = site.send(method, path, body);
        assert_eq!(response.status, 400, "{method} {path}: {}", response.body);
        assert_eq!(text(&response, "reason"), "bad-request");
    }
    assert_eq!(site.intentions(), [""; 0]);
    assert_eq!(site.cluster.status().pods(), ["w-0", "w-1"]);
    assert_eq!(site.send("PATCH", "/v1/moves", "{}").status, 405);

    std::fs::write(site.cluster.path().join("token"), "replaced").unwrap();
    assert_eq!(site.send("POST", "/v1/planner", r#"{"paused":true}"#).status, 401, "the old token");
}

#[test]
fn every_action_of_an_operator_is_carried_out_over_http() {
    let mut site = Site::with_token(&["w-0", "w-1"]);
    let from = site.owner(3);
    let to = if from == "w-0" { "w-1" } else { "w-0" };
    assert!(site.does("POST", "/v1/moves", &format!(r#"{{"partition":3,"to":"{to}"}}"#)).contains("moves to"));
    assert!(site.does("GET", &format!("/v1/wait/moved/3?to={to}"), "").contains(&format!("partition 3 is on {to}")));
    assert_eq!(site.owner(3), to);
    assert!(site.does("PUT", "/v1/partitions/3/pin", r#"{"why":"hot","who":"bea"}"#).contains("is pinned to"));
    let explained = site.read("/v1/partitions/3");
    assert!(explained["pinned"].as_str().unwrap().contains("bea from 127.0.0.1 (hot)"), "{explained}");
    let stale = site.send("PUT", "/v1/partitions/3/pin", &format!(r#"{{"to":"{from}"}}"#));
    assert_eq!((stale.status, text(&stale, "reason").as_str()), (409, "refused"));
    assert!(text(&stale, "error").contains(&format!("would be pinned to {to} and not to {from}")), "{}", stale.body);
    assert!(site.does("DELETE", "/v1/partitions/3/pin", "").contains("was pinned"));

    assert!(site.does("POST", "/v1/pods/w-1/drain", r#"{"why":"kernel"}"#).contains("gives up its partitions"));
    assert!(site.does("GET", "/v1/wait/drained/w-1?by_operator=true", "").contains("pod w-1 is empty"));
    assert!(
        site.read("/v1/pods/w-1")["state"].as_str().unwrap().contains("drained by somebody from 127.0.0.1 (kernel)")
    );
    let refused = site.send("POST", "/v1/moves", r#"{"partition":3,"to":"w-1"}"#);
    assert_eq!((refused.status, text(&refused, "reason").as_str()), (409, "refused"));
    assert!(text(&refused, "error").contains("pod w-1 is drained"), "{}", refused.body);
    assert!(site.does("DELETE", "/v1/pods/w-1/drain", "").contains("may be given partitions again"));
    site.does("GET", "/v1/wait/settled", "");

    assert!(site.does("POST", "/v1/planner", r#"{"paused":true,"for":"1h"}"#).contains("paused for 1h"));
    let planned = site.read("/v1/plan?without=w-0");
    assert_eq!(planned["moves"], serde_json::json!([]), "while paused: {planned}");
    assert!(site.does("POST", "/v1/planner", r#"{"paused":false}"#).contains("planned moves go on"));
    let planned = site.read("/v1/plan?without=w-0");
    assert!(!planned["moves"].as_array().unwrap().is_empty() && planned["policy_is_known"] == true, "{planned}");
    assert_eq!(site.send("POST", "/v1/handoffs/3/cancel", "{}").status, 409, "nothing moves");
    for path in ["/v1/pods/w-9", "/v1/partitions/99", "/v1/nothing"] {
        assert_eq!(site.send("GET", path, "").status, 404, "{path}");
    }

    let asked = site.send("DELETE", "/v1/pods/w-1", r#"{"force":true}"#);
    assert!(asked.status == 409 && text(&asked, "error").contains("nothing was deleted"), "{}", asked.body);
    site.cluster.take("w-1").kill();
    assert!(site.does("DELETE", "/v1/pods/w-1", r#"{"force":true,"yes":true}"#).contains("pod w-1 is forgotten"));
    until("the failover", || site.read("/v1/pods/w-0")["owns"].as_array().unwrap().len() == PARTITIONS as usize);
    assert_eq!(site.send("GET", "/settled", "").status, 404, "no pod here");
}

#[test]
fn a_repeated_id_has_no_second_effect() {
    let site = Site::with_token(&["w-0", "w-1"]);
    let to = if site.owner(3) == "w-0" { "w-1" } else { "w-0" };
    let body = format!(r#"{{"partition":3,"to":"{to}","id":"m-1"}}"#);
    let first = site.does("POST", "/v1/moves", &body);
    site.does("GET", &format!("/v1/wait/moved/3?to={to}"), "");
    site.does("DELETE", "/v1/partitions/3/pin", "");
    assert_eq!(site.does("POST", "/v1/moves", &body), first, "the first answer");
    assert!(site.read("/v1/partitions/3")["pinned"].is_null(), "no second move");

    let pause = |id: &str, body: &str| {
        let request = Request::json("POST", "/v1/planner", body).header("idempotency-key", id);
        request.header("authorization", format!("Bearer {TOKEN}")).send(site.admin).unwrap()
    };
    let first = pause("p-1", r#"{"paused":true}"#);
    assert_eq!(first.status, 200, "{}", first.body);
    site.does("POST", "/v1/planner", r#"{"paused":false}"#);
    let again = pause("p-1", r#"{"paused":true}"#);
    assert_eq!((again.status, text(&again, "text")), (200, text(&first, "text")));
    assert!(site.read("/status")["keyspace"]["paused"].is_null(), "no second pause");
    for (id, body) in
        [("p-1", r#"{"paused":false}"#), ("m-1", r#"{"paused":true}"#), ("p-2", r#"{"paused":true,"id":"x"}"#)]
    {
        let other = pause(id, body);
        assert!(other.status == 409 || other.status == 400, "{id} {body}: {} {}", other.status, other.body);
    }
    let operations = site.intentions();
    assert!(operations.iter().any(|key| key.ends_with("/operations/p-1")), "{operations:?}");
}

#[test]
fn commands_need_nothing_but_a_server() {
    let site = Site::with_token(&["w-0", "w-1"]);
    let (server, token) = (format!("http://{}", site.admin), site.cluster.path().join("token"));
    let run = |words: &[&str]| {
        let with = ["--server", &server, "--token-file", token.to_str().unwrap()];
        says(&[words, &with].concat())
    };
    #[track_caller]
    fn done((code, said): (Option<i32>, String), part: &str) {
        assert!(code == Some(0) && said.contains(part), "{code:?} {said}");
    }
    let to = if site.owner(3) == "w-0" { "w-1" } else { "w-0" };
    done(run(&["move", "3", "--to", to, "--pin"]), &format!("partition 3 is on {to}"));
    done(run(&["explain", "3"]), &format!("pinned      to {to}, by ann@"));
    done(run(&["explain", to]), "state       registered");
    done(run(&["unpin", "3", "--why", "cooler"]), "was pinned");
    done(run(&["pin", "4"]), "is pinned to");
    done(run(&["drain", "w-1", "--why", "kernel"]), "pod w-1 is empty");
    done(run(&["status"]), "drained     w-1, by ann@");
    done(run(&["wait", "drained", "w-1"]), "pod w-1 is empty");
    done(run(&["undrain", "w-1"]), "may be given partitions again");
    done(run(&["wait", "settled"]), "at rest");
    done(run(&["wait", "moved", "4"]), "partition 4 is on");
    done(run(&["pause", "--for", "90s"]), "paused for 90s");
    done(run(&["resume"]), "planned moves go on");
    done(run(&["plan", "--without", "w-0"]), "would move");
    let file = site.cluster.path().join("wanted.json");
    for (generation, code) in [(2, Some(0)), (1, Some(1))] {
        std::fs::write(&file, format!(r#"{{"generation":{generation},"owners":{{"0":"w-0"}}}}"#)).unwrap();
        assert_eq!(run(&["wanted", file.to_str().unwrap()]).0, code, "generation {generation}");
    }
    let (code, said) = run(&["move", "3", "--to", "w-9"]);
    assert!(code == Some(1) && said.contains("no pod w-9 is registered"), "{said}");
    let (code, said) = run(&["forget", "pod", "w-0"]);
    assert!(code == Some(1) && said.contains("ends with the lease"), "{said}");
    let (code, said) = run(&["pause", "--for", "0s"]);
    assert!(code == Some(2) && said.contains("above zero"), "{said}");
    done(run(&["pause"]), "paused until segue resume");
    let (code, said) = run(&["move", "3", "--to", "w-0", "--timeout", "1s"]);
    let is_there = said.contains("partition 3 is on w-0\n");
    assert!(is_there || (code == Some(4) && said.contains("segue resume")), "{code:?} {said}");

    let (code, said) = says(&["drain", "w-0", "--server", &server]);
    assert!(code == Some(1) && said.contains("Bearer"), "{said}");
    let nowhere = format!("http://{}", free_address());
    for words in [&["drain", "w-0"][..], &["status"], &["plan"], &["wait", "settled"], &["explain", "3"]] {
        let (code, said) = says(&[words, &["--server", &nowhere]].concat());
        assert!(code == Some(3) && said.contains(&nowhere), "{words:?}: {code:?} {said}");
    }
    for server in ["127.0.0.1:9090", "ftp://a", "http://a/b", "https://a", "unix:"] {
        let (code, said) = says(&["status", "--server", server]);
        assert!(code == Some(2) && said.contains("expected"), "{server}: {code:?} {said}");
    }
    assert_eq!(says(&["status", "--server", &server, "--etcd", "http://a:1"]).0, Some(2));
}

#[test]
fn the_unix_socket_is_its_users_alone_and_may_always_write() {
    let site = Site::start(&["w-0"], |site, config| {
        config.set("admin.socket", site.path().join("admin.sock").to_str().unwrap())
    });
    let socket = site.cluster.path().join("admin.sock");
    assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(site.read("/v1/access")["write"], "none", "by TCP");
    let refused = site.send("POST", "/v1/planner", r#"{"paused":true}"#);
    assert_eq!((refused.status, text(&refused, "reason").as_str()), (403, "read-only"), "by TCP");
    assert!(text(&refused, "error").contains("admin.socket"), "{}", refused.body);
    assert_eq!(site.read("/v1/partitions/3")["owner"], "w-0");
    let server = format!("unix:{}", socket.display());
    let (code, said) = says(&["pause", "--server", &server, "--why", "incident"]);
    assert!(code == Some(0) && said.contains("paused until"), "{said}");
    let mut paused = String::new();
    // The status follows the store by a watch of its own.
    until("the pause", || {
        let shown = site.read("/status")["keyspace"]["paused"].clone();
        shown.as_str().inspect(|shown| (*shown).clone_into(&mut paused)).is_some()
    });
    assert!(paused.starts_with("ann@") && paused.ends_with("(incident)"), "{paused}");
    let mut site = site;
    assert!(site.cluster.take("c-0").terminate().0.success());
    assert!(!socket.exists(), "the socket goes with its process");
}

#[test]
fn a_client_certificate_is_needed_to_write_and_not_to_read() {
    let folder = tempfile::tempdir().unwrap();
    let (ours, others) = (Authority::new(folder.path(), "ours"), Authority::new(folder.path(), "others"));
    let served = ours.issue("served");
    let site = Site::start(&["w-0"], |_, config| {
        let (cert, key, ca) = (served.cert.display(), served.key.display(), ours.file.display());
        let tls = format!("cert = \"{cert}\"\nkey = \"{key}\"\nclient_ca = \"{ca}\"");
        config.set("admin.write", "client_cert").with("admin.tls", &tls)
    });
    let server = format!("https://{}", site.admin);
    let with = |words: &[&str], authority: Option<&Authority>| {
        let own = authority.map(|authority| authority.issue("operator"));
        let mut words = words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        words.extend(["--server".to_owned(), server.clone(), "--ca".to_owned(), ours.file.display().to_string()]);
        if let Some(own) = own {
            words.extend(["--cert".to_owned(), own.cert.display().to_string()]);
            words.extend(["--key".to_owned(), own.key.display().to_string()]);
        }
        says(&words.iter().map(String::as_str).collect::<Vec<_>>())
    };
    assert_eq!(with(&["status"], None).0, Some(0));
    let access = |own: &[&Path]| {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--show-error", "--cacert"]).arg(&ours.file).args(own);
        let output = curl.arg(format!("{server}/v1/access")).output().unwrap();
        serde_json::from_slice::<Value>(&output.stdout).unwrap()["write"].clone()
    };
    let own = ours.issue("operator");
    assert_eq!(access(&[]), "none");
    assert_eq!(access(&["--cert".as_ref(), &own.cert, "--key".as_ref(), &own.key]), "allowed");
    let (code, said) = with(&["pause"], None);
    assert!(code == Some(1) && said.contains("client certificate"), "{said}");
    assert_eq!(with(&["pause"], Some(&others)).0, Some(3), "a certificate of others");
    assert_eq!(site.intentions(), [""; 0]);
    let (code, said) = with(&["pause"], Some(&ours));
    assert!(code == Some(0) && said.contains("paused until"), "{said}");
}

/// Starts an endpoint that passes requests on to `admin`, and loses the answers to the first `lost` of them.
fn losing_answers(admin: SocketAddr, lost: usize) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for (number, client) in listener.incoming().enumerate() {
            let (mut client, mut server) = (client.unwrap(), TcpStream::connect(admin).unwrap());
            let (mut from, mut to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            std::thread::spawn(move || {
                let _ = copy(&mut from, &mut to);
                let _ = to.shutdown(Shutdown::Write);
            });
            if number < lost {
                let _ = server.read(&mut [0]);
            } else {
                let _ = copy(&mut server, &mut client);
            }
            let _ = client.shutdown(Shutdown::Both);
        }
    });
    address
}

#[test]
fn a_command_asks_again_for_an_answer_that_was_lost_and_takes_effect_once() {
    let site = Site::with_token(&["w-0", "w-1"]);
    let token = site.cluster.path().join("token");
    let run = |words: &[&str], lost: usize| {
        let server = format!("http://{}", losing_answers(site.admin, lost));
        says(&[words, &["--server", &server, "--token-file", token.to_str().unwrap()]].concat())
    };
    let to = if site.owner(3) == "w-0" { "w-1" } else { "w-0" };
    let (code, said) = run(&["move", "3", "--to", to], 2);
    assert!(code == Some(0) && said.contains(&format!("partition 3 is on {to}")), "{code:?} {said}");
    let operations = site.intentions().into_iter().filter(|key| key.contains("/operations/"));
    assert_eq!(operations.count(), 1, "one move");
    assert_eq!(run(&["wait", "settled"], 1).0, Some(0));

    let (code, said) = run(&["pause", "--id", "p-1"], usize::MAX);
    assert!(code == Some(3) && said.contains("--id p-1"), "{code:?} {said}");
    assert!(site.intentions().iter().any(|key| key.ends_with("/operations/p-1")), "the pause took effect");
}

#[test]
fn a_process_that_has_lost_its_store_says_how_old_its_view_is() {
    let site = Site::with_token(&["w-0"]);
    let server = format!("http://{}", site.admin);
    let stale = || site.read("/status")["keyspace"]["stale"].clone();
    assert!(stale().is_null());
    assert_eq!(says(&["status", "--server", &server]).0, Some(0));

    site.cluster.etcd().pause();
    until("a status that is known to be old, though the connection stands", || stale().is_object());
    site.cluster.etcd().resume();
    until("a status of the present", || stale().is_null());

    site.cluster.etcd().kill();
    until("a status that is known to be old", || stale().is_object());
    let age = || stale()["age_ms"].as_u64().unwrap();
    let first = age();
    until("an older one", || age() > first);
    let (code, said) = says(&["status", "--server", &server]);
    assert!(code == Some(3) && said.contains("stale       ") && said.contains("w-0  Ready"), "{code:?} {said}");
    let (code, said) = says(&["status", "--json", "--server", &server]);
    assert!(code == Some(3) && said.contains(r#""stale":{"since":"#), "{code:?} {said}");
    let get = |path| Request::get(path).timeout(Duration::from_secs(30)).send(site.admin).unwrap();
    for path in ["/v1/partitions/3", "/v1/pods/w-0", "/v1/plan", "/v1/wait/settled"] {
        let response = get(path);
        assert_eq!(response.status, 503, "{path}: {}", response.body);
    }
    // A reading of the history, such as that of `segue status`, serves others for a second.
    until("a history that cannot be read", || get("/v1/history").status == 503);

    site.cluster.etcd().restart();
    until("a status of the present", || stale().is_null());
    assert_eq!(says(&["status", "--server", &server]).0, Some(0));
}

/// Starts an admin endpoint of another process, which responds with this status to everything. Returns its address and
/// the heads of the requests that it has been sent.
fn responding(status: &Value) -> (SocketAddr, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, body) = (listener.local_addr().unwrap(), status.to_string());
    let asked = Arc::<Mutex<Vec<String>>>::default();
    let heads = asked.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, mut head) = (stream.unwrap(), Vec::new());
            let mut bytes = [0; 4096];
            while !head.ends_with(b"\r\n\r\n") {
                let count = stream.read(&mut bytes).unwrap_or(0);
                if count == 0 {
                    break;
                }
                head.extend_from_slice(&bytes[..count]);
            }
            heads.lock().unwrap().push(String::from_utf8(head).unwrap());
            let _ = write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        }
    });
    (address, asked)
}

/// Fails unless each of these requests asks for the status of the keyspace, and has nothing of the operator's.
#[track_caller]
fn only_the_status_was_asked_for(asked: &Mutex<Vec<String>>) {
    let asked = asked.lock().unwrap();
    assert!(!asked.is_empty());
    for head in &*asked {
        let is_plain = !head.to_lowercase().contains("authorization") && !head.contains(TOKEN);
        assert!(head.starts_with("GET /status?keyspace=default HTTP/1.1\r\n") && is_plain, "{head}");
    }
}

#[test]
fn any_process_compares_the_tables_of_routers_with_the_store() {
    let mut site = Site::with_token(&["w-0"]);
    let (server, token) = (format!("http://{}", site.admin), site.cluster.path().join("token"));
    let compare = |more: &[&str]| {
        let words = ["status", "--routers", "--server", &server, "--token-file", token.to_str().unwrap()];
        says(&[&words, more].concat())
    };
    assert_eq!(compare(&[]), (Some(0), "no router is registered\n".to_owned()));
    let admin = free_address();
    // A shorter lease may end on a busy machine; the table would then differ.
    let config = site.cluster.router_config("r-0", free_address(), admin).set("router.lease_ttl", "60s");
    let mut router = site.cluster.run("r-0", &config);
    router.until("/ready", || is_ready(admin));
    site.cluster.processes.insert("r-0".to_owned(), router);
    assert_eq!(compare(&[]), (Some(0), format!("same     r-0 at {admin}\n")));

    let lines = |pod: &str| -> Vec<Value> {
        let line =
            |partition: u32| serde_json::json!({ "partition": partition, "stage": "open", "pod": pod, "epoch": 1 });
        (0..PARTITIONS).map(line).collect()
    };
    let (stale, asked) = responding(&serde_json::json!({ "router": { "name": "r-1", "partitions": lines("w-7") } }));
    for (name, admin) in [("r-1", Some(stale.to_string())), ("r-2", Some(free_address().to_string())), ("r-3", None)] {
        site.register(|keys| keys.router(name), &serde_json::json!({ "router_name": name, "admin": admin }));
    }
    let (code, said) = compare(&[]);
    assert!(code == Some(1) && said.contains(&format!("same     r-0 at {admin}\n")), "{said}");
    assert!(said.contains(&format!("DIFFERS  r-1 at {stale}: {PARTITIONS} partitions\n")), "{said}");
    assert!(said.contains("; router: w-7 at epoch 1, open\n"), "{said}");
    assert!(said.contains("UNKNOWN  r-2 at "), "{said}");
    assert!(said.contains("UNKNOWN  r-3 at no address: ") && said.contains("[admin] advertise"), "{said}");
    only_the_status_was_asked_for(&asked);

    let (code, said) = compare(&["--json"]);
    let said: Value = serde_json::from_str(&said).unwrap();
    let response = Request::get("/v1/routers").timeout(Duration::from_secs(60)).send(site.admin).unwrap();
    let read: Value = serde_json::from_str(&response.body).unwrap();
    assert!(code == Some(1) && said == read, "{said} {read}");
    assert_eq!(read["routers"][1]["differences"].as_array().unwrap().len(), PARTITIONS as usize, "{read}");
    assert_eq!(compare(&["--admin-ca", "ca.pem"]).0, Some(2), "the process asks, by authorities of its own");
}

#[test]
fn any_process_asks_the_participant_that_a_handoff_waits_for() {
    let site = Site::with_token(&["w-0"]);
    let hook = serde_json::json!({ "partition": 3, "hook": "warm", "running": true, "for_ms": 1500, "progress": 0.4,
        "detail": "7 of 20 files", "failures": 0, "failure": null });
    let pod = serde_json::json!({ "not_ready": null, "service_up": true, "in_flight": 0, "hooks": [hook] });
    let (admin, asked) = responding(&serde_json::json!({ "pod": pod }));
    // Its share is no partition, so that the move does not wait for others to warm.
    let admin = admin.to_string();
    let record = serde_json::json!({ "pod_name": "w-9", "address": "127.0.0.1:1", "weight": 0.001, "admin": admin });
    site.register(|keys| keys.pod("w-9"), &record);
    site.does("POST", "/v1/moves", r#"{"partition":3,"to":"w-9"}"#);
    let awaited = |query: &str| site.read(&format!("/v1/partitions/3{query}"))["handoff"]["awaited"][0].clone();
    until("the pod that the handoff waits for", || awaited("")["name"] == "w-9");
    assert!(awaited("")["says"].is_null() && asked.lock().unwrap().is_empty(), "nobody wants to know it");
    let expected = "hook warm runs, for 1.5 s, 40 % done (7 of 20 files)";
    assert_eq!(site.send("GET", "/v1/partitions/3?ask=true", "").status, 200);
    assert_eq!(awaited("?ask=true")["says"], expected);
    assert_eq!(site.send("GET", "/v1/partitions/3?ask=whom", "").status, 400);
    let (server, token) = (format!("http://{}", site.admin), site.cluster.path().join("token"));
    let (code, said) = says(&["explain", "3", "--server", &server, "--token-file", token.to_str().unwrap()]);
    assert!(code == Some(0) && said.contains(&format!("it says     pod w-9: {expected}\n")), "{said}");
    only_the_status_was_asked_for(&asked);
}

#[test]
fn a_process_asks_others_by_tls_if_it_has_their_authorities() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new(folder.path(), "ours");
    let served = authority.issue("served");
    let mut site = Site::start(&["w-0"], |_, config| {
        config.with("admin.peers_tls", &format!("ca = \"{}\"", authority.file.display()))
    });
    let admin = free_address();
    let tls = format!("cert = \"{}\"\nkey = \"{}\"", served.cert.display(), served.key.display());
    let config = site.cluster.router_config("r-0", free_address(), admin).with("admin.tls", &tls);
    let router = site.cluster.run("r-0", &config);
    site.cluster.processes.insert("r-0".to_owned(), router);
    until("the router", || site.read("/status")["keyspace"]["routers"] == serde_json::json!(["r-0"]));
    until("the router's table", || {
        let server = format!("http://{}", site.admin);
        says(&["status", "--routers", "--server", &server]) == (Some(0), format!("same     r-0 at {admin}\n"))
    });
}
