//! What a process asks the admin endpoints of others.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use segue_tests::certificates::Authority;
use segue_tests::http::{Request, is_ready};
use segue_tests::ports::free_address;
use segue_tests::process::until;
use serde_json::Value;

use super::site::{Site, TOKEN, receive, says, text};
use crate::writers::PARTITIONS;

/// Starts an admin endpoint of another process, which responds with this status to everything. Returns its address and
/// the heads of the requests that it has been sent.
fn responding(status: &Value) -> (SocketAddr, Arc<Mutex<Vec<String>>>) {
    responding_with("200 OK", status.to_string())
}

fn responding_with(line: &'static str, body: String) -> (SocketAddr, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
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
            let _ = write!(stream, "HTTP/1.1 {line}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        }
    });
    (address, asked)
}

/// Starts an admin endpoint that accepts connections and is silent. Returns its address and its connections.
fn silent() -> (SocketAddr, Arc<Mutex<Vec<TcpStream>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, connections) = (listener.local_addr().unwrap(), Arc::<Mutex<Vec<TcpStream>>>::default());
    let accepted = connections.clone();
    std::thread::spawn(move || listener.incoming().for_each(|stream| accepted.lock().unwrap().push(stream.unwrap())));
    (address, connections)
}

/// Registers a pod with this admin address, which never gets warm, and orders partition 3 to be moved to it. Its share is
/// no partition, so that the move does not wait for others to warm.
fn move_to_a_pod_at(site: &Site, admin: SocketAddr) {
    let admin = admin.to_string();
    let record = serde_json::json!({ "pod_name": "w-9", "address": "127.0.0.1:1", "weight": 0.001, "admin": admin });
    site.register(|keys| keys.pod("w-9"), &record);
    site.does("POST", "/v1/moves", r#"{"partition":3,"to":"w-9"}"#);
    until("the pod that the handoff waits for", || awaited(&site.read("/v1/partitions/3"))["name"] == "w-9");
}

/// Returns what is known of the first participant that the explained partition's handoff waits for.
fn awaited(explained: &Value) -> &Value {
    &explained["handoff"]["awaited"][0]
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
    let mut router = site.cluster.run("r-0", &site.cluster.router_config("r-0", free_address(), admin));
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
    move_to_a_pod_at(&site, admin);
    let unasked = site.read("/v1/partitions/3");
    assert!(awaited(&unasked)["says"].is_null() && asked.lock().unwrap().is_empty(), "nobody wants to know it");
    let expected = "hook warm runs, for 1.5 s, 40 % done (7 of 20 files)";
    assert_eq!(site.send("GET", "/v1/partitions/3?ask=true", "").status, 200);
    assert_eq!(awaited(&site.read("/v1/partitions/3?ask=true"))["says"], expected);
    assert_eq!(site.send("GET", "/v1/partitions/3?ask=whom", "").status, 400);
    let (server, token) = (format!("http://{}", site.admin), site.cluster.path().join("token"));
    let (code, said) = says(&["explain", "3", "--server", &server, "--token-file", token.to_str().unwrap()]);
    assert!(code == Some(0) && said.contains(&format!("it says     pod w-9: {expected}\n")), "{said}");

    let explained = |query: &str| site.read(&format!("/v1/pods/w-9{query}"));
    let before = asked.lock().unwrap().len();
    assert!(explained("")["process"]["says"].is_null() && asked.lock().unwrap().len() == before);
    assert_eq!(explained("?ask=true")["works_on"][0]["says"], expected);
    assert_eq!(site.send("GET", "/v1/pods/w-9?ask=whom", "").status, 400);
    let (code, said) = says(&["explain", "w-9", "--server", &server, "--token-file", token.to_str().unwrap()]);
    assert!(code == Some(0) && said.contains(&format!("works on    3: {expected}\n")), "{said}");
    only_the_status_was_asked_for(&asked);
}

#[test]
fn a_participant_that_is_too_busy_to_answer_is_said_to_be_so() {
    let site = Site::with_token(&["w-0"]);
    let (admin, _) = responding_with("503 Service Unavailable", "too many connections".to_owned());
    move_to_a_pod_at(&site, admin);
    let explained = site.read("/v1/partitions/3?ask=true");
    assert_eq!(awaited(&explained)["says"], "cannot be asked: /status is answered with 503 Service Unavailable");
}

#[test]
fn while_eight_requests_have_others_asked_a_further_one_is_answered_without() {
    let site = Site::with_token(&["w-0"]);
    let (admin, _) = silent();
    move_to_a_pod_at(&site, admin);
    let unasked =
        "not asked: this process is already asking for eight other requests; try again, or ask another process";
    let mut said = Vec::new();
    // On a busy machine the first of them may have ended before the ninth begins.
    until("a request that is answered without", || {
        let asking: Vec<TcpStream> = (0..9).map(|_| site.ask("/v1/partitions/3?ask=true")).collect();
        let explained = asking.into_iter().map(receive);
        said = explained.map(|explained| awaited(&explained)["says"].as_str().unwrap().to_owned()).collect();
        said.iter().any(|says| says == unasked)
    });
    said.retain(|says| says != unasked);
    assert!(!said.is_empty() && said.iter().all(|says| says == "cannot be asked: no response within 3s"), "{said:?}");
}

#[test]
fn while_a_process_asks_eight_routers_it_asks_nobody_else_and_says_so() {
    let site = Site::with_token(&["w-0"]);
    let pod = serde_json::json!({ "not_ready": null, "service_up": true, "in_flight": 0, "hooks": [] });
    let (admin, _) = responding(&serde_json::json!({ "pod": pod }));
    move_to_a_pod_at(&site, admin);
    let (routers, connections) = silent();
    for router in 0..8 {
        let name = format!("r-{router}");
        let record = serde_json::json!({ "router_name": name, "admin": routers.to_string() });
        site.register(|keys| keys.router(&name), &record);
    }
    let (mut says, mut refused) = (Value::Null, None);
    // On a busy machine the routers' five seconds may end while the pod waits for its turn.
    until("a pod that is not asked", || {
        connections.lock().unwrap().clear();
        let comparison = site.ask("/v1/routers");
        until("eight routers that are asked", || connections.lock().unwrap().len() == 8);
        refused = Request::get("/v1/routers").send(site.admin);
        says = awaited(&site.read("/v1/partitions/3?ask=true"))["says"].clone();
        let compared = receive(comparison);
        let errors = compared["routers"].as_array().unwrap().iter().map(|router| &router["error"]);
        assert!(errors.into_iter().all(|error| error == "no response within 5s"), "{compared}");
        says == "cannot be asked: not asked within 3s: this process is asking too many others; try again"
    });
    let refused = refused.unwrap();
    assert_eq!((refused.status, text(&refused, "reason").as_str()), (503, "busy"), "{}", refused.body);
    let explained = site.read("/v1/partitions/3?ask=true");
    assert_eq!(awaited(&explained)["says"], "no hook runs for the partition, 0 requests in flight in all");
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
