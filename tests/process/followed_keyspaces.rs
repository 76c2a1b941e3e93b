//! Keyspaces that come and go while processes run: a router with a coordinator, and sidecars, follow the list in the store.

use std::net::SocketAddr;

use segue_protocol::keyspace_list::KeyspaceList;
use segue_tests::config::Config;
use segue_tests::http::{Request, get, is_ready};
use segue_tests::ports::free_address;
use segue_tests::process::{Process, until};
use tokio::runtime::Runtime;

use crate::axum_pod::python;
use crate::site::load::Load;
use crate::site::service::serve;
use crate::site::{LONGEST_REQUEST, Site, ask, json, put_by_hand, says};

const PARTITIONS: u64 = 4;

/// A router, a coordinator and sidecars `a` and `b` of a keyspace `orders`, which follow the list.
struct World {
    site: Site,
    pods: Vec<Process>,
    _runtime: Runtime,
}

fn following(config: Config) -> Config {
    config.set("follow_keyspaces", true)
}

/// Returns a table of the list, as the file of `segue keyspace add` has it. The first part of a path names the keyspace.
fn table(name: &str) -> String {
    format!(
        "[[keyspaces]]\nname = \"{name}\"\nmatch = {{ path_prefix = \"/{name}\" }}\n\
         partition = {{ header = \"x-partition\" }}\npartitions = {PARTITIONS}\n"
    )
}

/// Adds a keyspace to the list.
fn add(site: &Site, name: &str) {
    let file = site.path().join("added.toml");
    std::fs::write(&file, table(name)).unwrap();
    let (code, said) = says(&["keyspace", "add", file.to_str().unwrap(), "--etcd", &site.etcd().endpoint()]);
    assert_eq!(code, Some(0), "{said}");
}

impl World {
    fn start() -> Self {
        let site = Site::with_keyspaces(&["orders"], PARTITIONS, |_, config| following(config));
        let runtime = Runtime::new().unwrap();
        let pod = |name: &'static str| {
            let service = runtime.block_on(serve(move |call| async move {
                (200, format!("{name} {} {}", call.text("segue-keyspace"), call.number("segue-epoch")))
            }));
            let config = following(site.config().keyspace("orders", ""));
            site.run(name, &config.pod(name, free_address(), service).quick())
        };
        let pods = ["a", "b"].map(pod).into();
        let world = World { site, pods, _runtime: runtime };
        world.site.settles_on("orders", &[("a", 2), ("b", 2)]);
        world
    }

    fn remove(&self, name: &str, more: &[&str]) -> (Option<i32>, String) {
        let endpoint = self.site.etcd().endpoint();
        says(&[&["keyspace", "remove", name, "--etcd", &endpoint], more].concat())
    }

    /// Returns the status of a request to a keyspace, and the keyspace that its pod saw.
    fn ask(&self, name: &str) -> Option<(u16, String)> {
        let (status, body) = self.site.ask(&format!("/{name}/x"))?;
        Some((status, body.split(' ').nth(1).unwrap_or_default().to_owned()))
    }

    fn serves(&self, name: &str) {
        until(&format!("{name} to be served"), || self.ask(name) == Some((200, name.to_owned())));
    }

    fn refuses(&self, name: &str) {
        until(&format!("{name} to be refused"), || self.ask(name).is_some_and(|(status, _)| status == 400));
    }

    fn shown(&self) -> Vec<String> {
        let shown = json(self.site.admin, "/v1/keyspaces");
        shown["keyspaces"].as_array().into_iter().flatten().map(|name| name.as_str().unwrap().to_owned()).collect()
    }
}

fn load(router: SocketAddr, path: &'static str) -> Load<(u16, String)> {
    Load::start(4, 0, move |_| move |_| ask(router, path))
}

#[test]
fn a_keyspace_comes_and_goes_while_processes_run_and_others_notice_nothing() {
    let world = World::start();
    world.refuses("persons");
    let others = load(world.site.router, "/orders/x");
    add(&world.site, "persons");
    world.serves("persons");
    world.site.settles_on("persons", &[("a", 2), ("b", 2)]);
    assert_eq!(world.shown(), ["orders", "persons"]);
    let status = json(world.site.admin, "/status?keyspace=persons");
    assert!(status["router"]["partitions"].as_array().is_some_and(|all| all.len() == PARTITIONS as usize), "{status}");
    let metrics = get(world.site.admin, "/metrics").unwrap().1;
    let described = metrics.lines().filter(|line| line.starts_with("# TYPE segue_requests_total ")).count();
    assert_eq!(described, 1, "{metrics}");
    assert!(metrics.contains("segue_requests_total{keyspace=\"persons\",code=\"200\""), "{metrics}");

    let (code, said) = world.remove("persons", &[]);
    assert!(code == Some(1) && said.contains("4 partitions of keyspace persons have an owner"), "{said}");
    world.serves("persons");
    assert_eq!(world.remove("persons", &["--yes"]).0, Some(0));
    world.refuses("persons");
    until("its page to go", || world.shown() == ["orders"]);
    let is_told = || get(world.site.admin, "/metrics").unwrap().1.contains("keyspace=\"persons\"");
    until("its series to go", || !is_told());

    // Whoever adds it again finds it as it was.
    let epochs = |keyspace: &str| world.site.stored(keyspace)["partitions"].clone();
    let before = epochs("persons");
    add(&world.site, "persons");
    world.serves("persons");
    assert_eq!(epochs("persons"), before);
    others.goes_on(100);
    let (_, answers) = others.end();
    let failed: Vec<_> = answers.iter().filter(|(status, _)| *status != 200).collect();
    assert!(failed.is_empty() && answers.len() > 100, "{} of {}: {failed:?}", failed.len(), answers.len());
}

#[test]
fn a_process_that_starts_has_the_keyspaces_of_the_list_from_the_beginning() {
    let mut world = World::start();
    add(&world.site, "persons");
    world.serves("persons");
    let router = free_address();
    let admin = free_address();
    let config = following(world.site.config().router("r-1", router).admin(admin));
    let _second = world.site.run("second", &config.quick());
    until("the second router to be ready", || is_ready(admin));
    let (status, body) = ask(router, "/persons/x").unwrap();
    assert_eq!((status, body.split(' ').nth(1)), (200, Some("persons")), "{body}");
    // It hands both keyspaces over.
    let (status, output) = world.pods.remove(0).terminate();
    assert!(status.success(), "{output}");
    for keyspace in ["orders", "persons"] {
        world.site.settles_on(keyspace, &[("b", 4)]);
    }
}

#[test]
fn a_keyspace_that_nobody_can_read_or_that_clashes_is_told_and_changes_nothing_for_others() {
    let world = World::start();
    let list = KeyspaceList::new("/segue/");
    for (name, value, why) in [
        ("broken", "{", "expected a JSON object with the keys of a table [[keyspaces]]"),
        ("clash", r#"{"match":{"path_prefix":"/orders"},"partition":{"header":"x"}}"#, "matches the same requests"),
        ("typo", r#"{"partition":{"heder":"x"}}"#, "did you mean header"),
        (
            "short",
            r#"{"match":{"host":"s"},"partition":{"header":"x"},"stash":{"max_wait":"1s"}}"#,
            "router.drain.timeout",
        ),
    ] {
        put_by_hand(world.site.etcd(), list.key(name), value, false);
        until(&format!("a word about {name}"), || {
            let output = world.site.control.output();
            output.lines().any(|line| line.contains(name) && line.contains(why))
        });
    }
    add(&world.site, "persons");
    world.serves("persons");
    world.serves("orders");
    assert_eq!(world.shown(), ["orders", "persons"]);
    put_by_hand(world.site.etcd(), list.key("persons"), "{", false);
    until("a word about persons", || world.site.control.output().contains("its settings have changed in the list"));
    assert_eq!(world.ask("persons"), Some((200, "persons".to_owned())));
}

#[test]
fn a_pod_by_grpc_takes_part_in_a_keyspace_whenever_the_list_has_it() {
    let service = free_address();
    let site = Site::with_keyspaces(&["orders"], PARTITIONS, |_, config| {
        following(config).set("coordinator.listen", service.to_string())
    });
    let folder = site.path().join("counters");
    std::fs::create_dir(&folder).unwrap();
    // The pod is there first.
    let mut command = python(service, "counters", "p", &folder);
    let pod = Process::start("p", site.path(), &mut command);
    let mut last = 0;
    for _ in 0..3 {
        add(&site, "counters");
        let mut count = 0;
        until("a count", || {
            let request = Request::post("/counters/x", "").header("x-partition", 0).timeout(LONGEST_REQUEST);
            let counted = request.send(site.router).filter(|response| response.status == 200);
            count = counted.map_or(0, |response| response.body.parse().unwrap());
            count > 0
        });
        assert!(count > last, "{count} after {last}: {}", pod.output());
        last = count;
        let (code, said) = says(&["keyspace", "remove", "counters", "--yes", "--etcd", &site.etcd().endpoint()]);
        assert_eq!(code, Some(0), "{said}");
        until("counters to be refused", || site.ask("/counters/x").is_some_and(|(status, _)| status == 400));
    }
}
