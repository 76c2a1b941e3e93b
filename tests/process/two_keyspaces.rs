//! Pods, operators and hooks of processes with two keyspaces: what a sidecar registers, refuses and hands over, and what
//! the admin endpoint and the commands say.
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use segue_tests::config::Config;
use segue_tests::http::{self, Request};
use segue_tests::ports::free_address;
use segue_tests::process::{Process, until};
use serde_json::Value;
use tokio::runtime::Runtime;

use crate::site::load::Load;
use crate::site::service::{Answer, Call, Owned, serve};
use crate::site::{LONGEST_REQUEST, Site, json, says};

const KEYSPACES: [&str; 2] = ["persons", "orders"];
const PARTITIONS: u64 = 4;
const CLIENTS: usize = 4;
const WORKERS: u8 = 2;
/// Responses that a load waits for, at least.
const FLOW: u64 = 100;

/// What all services wrote and were told, in order.
#[derive(Default)]
struct Ledger {
    /// Each request with the service that wrote it.
    written: Vec<(u64, &'static str, Owned)>,
    warmed: BTreeSet<(&'static str, Owned)>,
    released: BTreeSet<(&'static str, Owned)>,
    /// What was written by a service that had not been told to warm it, or after a later epoch.
    wrong: Vec<String>,
    newest: BTreeMap<(String, u64), u64>,
}

impl Ledger {
    fn write(&mut self, pod: &'static str, id: u64, owned: Owned) -> String {
        let newest = self.newest.entry((owned.0.clone(), owned.1)).or_default();
        if owned.2 < *newest || !self.warmed.contains(&(pod, owned.clone())) {
            self.wrong.push(format!("{pod} wrote {id} of {owned:?} at {newest}"));
        }
        *newest = owned.2.max(*newest);
        let keyspace = owned.0.clone();
        self.written.push((id, pod, owned));
        keyspace
    }

    /// Returns the response to a write, which is the keyspace that it was stamped with, or to a hook.
    fn response(&mut self, pod: &'static str, call: &Call) -> Answer {
        match &*call.path {
            "/warm" => _ = self.warmed.insert((pod, call.told())),
            "/release" => _ = self.released.insert((pod, call.told())),
            "/lease" => {}
            _ => return (200, self.write(pod, call.number("x-id"), call.stamps())),
        }
        (200, String::new())
    }
}

/// Starts a service with hooks.
async fn service(pod: &'static str, ledger: Arc<Mutex<Ledger>>) -> SocketAddr {
    serve(move |call| {
        let response = ledger.lock().unwrap().response(pod, &call);
        async move { response }
    })
    .await
}

/// A router and a coordinator of both keyspaces, and services `a` and `b`.
struct World {
    site: Site,
    ledger: Arc<Mutex<Ledger>>,
    services: BTreeMap<&'static str, SocketAddr>,
    _runtime: Runtime,
}

impl World {
    fn start() -> Self {
        let runtime = Runtime::new().unwrap();
        let site = Site::with_keyspaces(&KEYSPACES, PARTITIONS, |admin, config| {
            // A connection to a pod carries one request at a time, so a pod's death breaks one request of each.
            config.set("admin.advertise", admin.to_string()).set("router.workers", WORKERS)
        });
        let ledger = Arc::<Mutex<Ledger>>::default();
        let services = ["a", "b"].map(|pod| (pod, runtime.block_on(service(pod, ledger.clone()))));
        World { site, ledger, services: services.into_iter().collect(), _runtime: runtime }
    }

    fn pod_config(&self, name: &str, listen: SocketAddr, admin: SocketAddr) -> Config {
        let upstream = self.services[name];
        let config = KEYSPACES.iter().fold(self.site.config(), |config, name| config.keyspace(name, ""));
        let config = config.pod(name, listen, upstream).admin(admin).quick();
        config.hooks(&format!("http://{upstream}"), &["warm", "release", "lease"])
    }

    /// Starts a sidecar. Returns it with the address of its admin endpoint.
    fn pod(&self, name: &str) -> (Process, SocketAddr) {
        let admin = free_address();
        (self.site.run(name, &self.pod_config(name, free_address(), admin)), admin)
    }

    /// Waits until each pod owns so many partitions in each keyspace, and none moves.
    fn settles(&self, expected: &[(&str, u64)]) {
        KEYSPACES.iter().for_each(|keyspace| self.site.settles_on(keyspace, expected));
    }
}

/// Stands for the status of a response that was cut off.
const NO_WHOLE_RESPONSE: u16 = 0;

/// A request's number, its keyspace, and the status and body of its response.
type Answered = (u64, &'static str, u16, String);

/// Starts clients that write to both keyspaces. The requests are numbered from `first` on.
fn writing(router: SocketAddr, first: u64) -> Load<Answered> {
    Load::start(CLIENTS, first, |_| {
        move |id| {
            let keyspace = KEYSPACES[(id % 2) as usize];
            let request = Request::get(&format!("/{keyspace}/write")).header("x-partition", id / 2 % PARTITIONS);
            let answer = request.header("x-id", id).timeout(LONGEST_REQUEST).send(router);
            let (status, body) =
                answer.map_or((NO_WHOLE_RESPONSE, String::new()), |answer| (answer.status, answer.body));
            Some((id, keyspace, status, body))
        }
    })
}

/// Checks that no request was lost, written twice, or written in another keyspace. Returns those that a pod's death broke.
fn check(world: &World, answers: &[Answered]) -> Vec<u64> {
    let ledger = world.ledger.lock().unwrap();
    assert_eq!(ledger.wrong, [""; 0]);
    let mut written = BTreeMap::new();
    for (id, _, (keyspace, _, _)) in &ledger.written {
        assert_eq!(written.insert(*id, keyspace.clone()), None, "{id} was written twice");
    }
    let mut broken = Vec::new();
    for (id, keyspace, status, answer) in answers {
        match *status {
            200 => {
                assert_eq!(answer, keyspace);
                assert_eq!(written.get(id).map(|keyspace| &**keyspace), Some(*keyspace), "{id} is lost");
            }
            // It was under way when its pod died, and so may have been its response's body.
            502 | NO_WHOLE_RESPONSE => broken.push(*id),
            other => panic!("{id} of {keyspace} was answered {other} {answer}"),
        }
    }
    broken
}

#[test]
fn both_keyspaces_of_a_pod_move_under_load_by_balance_rolling_and_crash() {
    let world = World::start();
    let (a, _) = world.pod("a");
    world.settles(&[("a", PARTITIONS)]);
    let load = writing(world.site.router, 0);
    let (b, _) = world.pod("b");
    world.settles(&[("a", PARTITIONS / 2), ("b", PARTITIONS / 2)]);
    // Rolling: each pod leaves and comes again.
    let (status, output) = a.terminate();
    assert!(status.success(), "{output}");
    world.settles(&[("b", PARTITIONS)]);
    // This life ends with a crash.
    let config = world.pod_config("a", free_address(), free_address()).lease("pod", "2s");
    let a = world.site.run("a", &config);
    world.settles(&[("a", PARTITIONS / 2), ("b", PARTITIONS / 2)]);
    let (status, output) = b.terminate();
    assert!(status.success(), "{output}");
    world.settles(&[("a", PARTITIONS)]);
    load.goes_on(FLOW);
    assert_eq!(check(&world, &load.end().1), [0; 0], "no pod has died");
    for keyspace in KEYSPACES {
        let ledger = world.ledger.lock().unwrap();
        let of_it = |all: &BTreeSet<(&str, Owned)>| all.iter().filter(|(_, owned)| owned.0 == keyspace).count() as u64;
        assert!(of_it(&ledger.warmed) >= PARTITIONS * 2, "{keyspace}: {:?}", ledger.warmed);
        assert!(of_it(&ledger.released) >= PARTITIONS, "{keyspace}: {:?}", ledger.released);
    }

    let load = writing(world.site.router, 1_000_000);
    let (_b, _) = world.pod("b");
    world.settles(&[("a", PARTITIONS / 2), ("b", PARTITIONS / 2)]);
    load.goes_on(FLOW);
    a.kill();
    world.settles(&[("b", PARTITIONS)]);
    let first_after = load.goes_on(FLOW);
    let broken = check(&world, &load.end().1);
    // A dying process closes one connection after the other, and a client may meet several.
    let connections = CLIENTS * usize::from(WORKERS) * KEYSPACES.len();
    assert!(broken.len() <= connections, "the death of one pod broke {broken:?}");
    assert!(broken.iter().all(|id| *id < first_after), "{broken:?} were broken, some after {first_after}");
}

#[test]
fn a_sidecar_refuses_what_names_none_of_its_keyspaces() {
    let world = World::start();
    let (listen, admin) = (free_address(), free_address());
    let _a = world.site.run("a", &world.pod_config("a", listen, admin));
    world.settles(&[("a", PARTITIONS)]);
    // The pod may see its last partition a moment after the coordinator.
    let epoch = |keyspace: &str| {
        let mut epoch = None;
        until(&format!("partition 0 of {keyspace}"), || {
            let owned = json(admin, &format!("/status?keyspace={keyspace}"))["pod"]["owned"].clone();
            let first = owned.as_array().and_then(|owned| owned.iter().find(|it| it["partition"] == 0));
            epoch = first.and_then(|it| it["epoch"].as_u64());
            epoch.is_some()
        });
        epoch.unwrap()
    };
    let ask = |stamp: Option<&str>, epoch: u64| {
        let request = Request::get("/persons/write").header("segue-partition", 0).header("segue-epoch", epoch);
        let request = stamp.into_iter().fold(request, |request, stamp| request.header("segue-keyspace", stamp));
        let response = request.send(listen).unwrap();
        (response.status, response.body)
    };
    for keyspace in KEYSPACES {
        assert_eq!(ask(Some(keyspace), epoch(keyspace)), (200, keyspace.to_owned()));
    }
    for stamp in [None, Some("other")] {
        let (status, body) = ask(stamp, epoch("persons"));
        assert!(status == 421 && body.contains("unstamped"), "{status} {body}");
    }
    // Each keyspace has epochs of its own.
    assert_eq!(ask(Some("orders"), epoch("orders") + 100_000).0, 421);
}

#[test]
fn the_admin_endpoint_and_the_commands_ask_which_of_several_keyspaces_is_meant() {
    let world = World::start();
    let (_a, of_pod) = world.pod("a");
    world.settles(&[("a", PARTITIONS)]);
    for admin in [world.site.admin, of_pod] {
        assert_eq!(json(admin, "/v1/keyspaces")["keyspaces"], serde_json::json!(KEYSPACES));
        // Each process follows the keyspaces by itself.
        for keyspace in KEYSPACES {
            let path = format!("/status?keyspace={keyspace}");
            until(&path, || json(admin, &path)["keyspace"]["pods"][0]["partitions"] == PARTITIONS);
        }
        let whole = json(admin, "/status");
        assert_eq!(whole["keyspaces"], serde_json::json!(KEYSPACES), "{whole}");
        for keyspace in KEYSPACES {
            let one = json(admin, &format!("/status?keyspace={keyspace}"));
            assert_eq!(one["keyspace"]["pods"][0]["partitions"], PARTITIONS, "{one}");
            assert_eq!(whole["by_keyspace"][keyspace]["keyspace"]["partitions"], PARTITIONS, "{whole}");
        }
        for path in ["/v1/plan", "/v1/plan?keyspace=other", "/v1/history", "/events", "/status?keyspace=other"] {
            let (status, said) = http::get(admin, path).unwrap();
            assert!(status == 400 && said.contains("one of persons, orders"), "{path}: {status} {said}");
        }
        assert_eq!(http::get(admin, "/v1/plan?keyspace=orders").unwrap().0, 200);
        assert_eq!(http::get(admin, "/ready"), Some((200, "ready\n".to_owned())));
    }
    for path in ["/settled?keyspace=persons", "/settled?keyspace=other", "/drain?keyspace=persons"] {
        let (status, said) = http::get(of_pod, path).unwrap();
        assert!(status == 400 || path.starts_with("/drain") && status == 403, "{path}: {status} {said}");
    }
    until("/settled", || http::get(of_pod, "/settled").is_some_and(|(status, _)| status == 200));
    let said = http::get(of_pod, "/settled").unwrap().1;
    assert!(KEYSPACES.iter().all(|keyspace| said.contains(&format!("keyspace {keyspace}: "))), "{said}");
    let page = http::get(of_pod, "/metrics").unwrap().1;
    for keyspace in KEYSPACES {
        assert!(
            page.contains(&format!("segue_pod_partitions_owned{{keyspace=\"{keyspace}\"}} {PARTITIONS}")),
            "{page}"
        );
    }

    let file = world.site.path().join("a.toml");
    let server = format!("http://{}", world.site.admin);
    for reach in [["--config", file.to_str().unwrap()], ["--server", &server]] {
        for words in [&["status"][..], &["plan"], &["explain", "0"], &["history"], &["pause"]] {
            let (code, said) = says(&[words, &reach].concat());
            assert!(code == Some(2) && said.contains("persons, orders"), "{words:?} {reach:?}: {code:?} {said}");
        }
        for keyspace in KEYSPACES {
            let (code, said) = says(&[&["status", "--json", "--keyspace", keyspace][..], &reach].concat());
            let status: Value = serde_json::from_str(&said).unwrap_or_default();
            assert!(code == Some(0) && status["pods"][0]["name"] == "a", "{reach:?}: {code:?} {said}");
            let (code, said) = says(&[&["explain", "3", "--keyspace", keyspace][..], &reach].concat());
            assert!(code == Some(0) && said.contains("owner       a"), "{code:?} {said}");
        }
        let (code, said) = says(&[&["status", "--keyspace", "other"][..], &reach].concat());
        assert!(code == Some(2) && said.contains("persons, orders"), "{reach:?}: {code:?} {said}");
    }
    // An action takes effect in the keyspace that it names, and in no other.
    let file = file.to_str().unwrap();
    let (code, said) = says(&["pause", "--keyspace", "orders", "--config", file]);
    assert_eq!(code, Some(0), "{said}");
    let paused = |keyspace: &str| {
        !json(world.site.admin, &format!("/status?keyspace={keyspace}"))["keyspace"]["paused"].is_null()
    };
    until("the pause", || paused("orders"));
    assert!(!paused("persons"));
    let etcd = world.site.etcd().endpoint();
    let (code, said) = says(&["status", "--routers", "--etcd", &etcd, "--keyspace", "persons"]);
    assert!(code == Some(0) && said.contains("same     r-0"), "{code:?} {said}");
}
