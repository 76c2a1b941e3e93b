//! The example files agree with the program.

use std::time::Duration;

use segue_config::{
    Admin, AdminWrite, Config, Coordinator, KeyspaceSection, Log, LogFormat, LogLevel, Pod, Router, Routing, Store,
    StoreKind, parse,
};
use segue_coordination::pod::HookSettings;
use segue_coordination::router::DrainSettings as Drain;
use segue_protocol::handoff::router::{OnDrainTimeout, OnStoreLoss};
use segue_protocol::planning::{Coordination, Policy, Strategy};
use segue_protocol::records::Mode;
use segue_proxy::routing::partition_key::{KeySource, PartitionSource as Partition, WithoutKey};
use segue_proxy::routing::table::StashLimits as Stash;
use segue_proxy::settings::{
    ClientLimits as Limits, LoggedRequests, OwnerExceptions, UpstreamProtocol as Protocol, UpstreamSettings as Upstream,
};
use segue_proxy::sidecar::Checks as HealthCheck;

const EXAMPLE: &str = include_str!("../segue.example.toml");

fn accepted(file: &str, text: &str) -> Config {
    parse(file, text, [], "host-1").unwrap_or_else(|errors| panic!("{errors}"))
}

#[test]
fn the_example_shows_the_defaults() {
    assert_eq!(accepted("example", EXAMPLE), accepted("empty", "[router]\n[coordinator]\n[pod]\n[admin]\n"));
}

fn default_keyspace() -> KeyspaceSection {
    let seconds = Duration::from_secs;
    KeyspaceSection {
        name: "default".to_owned(),
        service: None,
        routing: Some(Routing {
            matching: None,
            partition: Partition::Number { header: "x-partition".parse().unwrap(), order_by: None },
            exceptions: OwnerExceptions::default(),
            stash: Stash {
                max_requests: 10_000,
                max_bytes: 64 << 20,
                max_total_bytes: 512 << 20,
                max_wait: seconds(30),
                flush_concurrency: 64,
            },
            protocol: None,
            key_limits: None,
        }),
        policy: Some(Policy {
            partitions: 64,
            strategy: Strategy::Sticky,
            settle: seconds(1),
            settle_max: seconds(5),
            min_interval: seconds(2),
            heartbeat: seconds(30),
            max_concurrent_handoffs: 64,
            max_warming_per_pod: 8,
            cool_down: seconds(10),
            balance_load: false,
            max_keys_per_partition: 0,
            config_wins: false,
            coordination: Coordination::Leader,
            mode: Mode::Barrier,
            warm_timeout: seconds(300),
            phase_timeout: seconds(25),
            checkpoint_interval: Duration::ZERO,
            checkpoint_timeout: seconds(10),
        }),
    }
}

#[test]
fn the_defaults_are_those_that_users_were_told() {
    let seconds = Duration::from_secs;
    let told = Config {
        keyspaces: vec![default_keyspace()],
        lists_keyspaces: false,
        follow_keyspaces: false,
        store: Store {
            kind: StoreKind::Etcd,
            endpoints: vec!["http://127.0.0.1:2379".to_owned()],
            tls: None,
            prefix: "/segue/".to_owned(),
            credentials: None,
        },
        router: Some(Router {
            tls: None,
            name: "host-1".to_owned(),
            listen: "127.0.0.1:8080".parse().unwrap(),
            lease_ttl: seconds(15),
            on_store_loss: OnStoreLoss::Auto,
            workers: None,
            hot_restart_socket: None,
            trust_forwarded: false,
            drain: Drain {
                timeout: seconds(20),
                on_timeout: OnDrainTimeout::Auto,
                streams: seconds(2),
                patience: seconds(10),
            },
            upstream: Upstream {
                tls: None,
                protocol: Protocol::Auto,
                connect_timeout: seconds(1),
                request_timeout: seconds(60),
                idle_timeout: seconds(300),
                max_idle_per_pod: 256,
                max_in_flight_per_pod: 10_000,
                max_header_bytes_http2: 16 << 10,
            },
            limits: Limits {
                max_connections: 10_000,
                max_streams_per_connection: 128,
                max_in_flight_per_client: 1_000,
                min_upload_rate: 100,
                header_read_timeout: seconds(10),
                max_header_bytes: 64 << 10,
                max_connection_age: None,
                proxy_protocol: false,
                max_body_bytes: None,
            },
        }),
        coordinator: Some(Coordinator {
            name: "host-1".to_owned(),
            lease_ttl: seconds(10),
            listen: None,
            token_file: None,
            tls: None,
        }),
        pod: Some(Pod {
            tls: None,
            name: "host-1".to_owned(),
            listen: "127.0.0.1:8181".parse().unwrap(),
            advertise: "127.0.0.1:8181".to_owned(),
            upstream: "127.0.0.1:8182".parse().unwrap(),
            upstream_tls: None,
            protocol: Protocol::Auto,
            lease_ttl: seconds(15),
            weight: 1.0,
            load_interval: None,
            zone: None,
            version: None,
            stream: None,
            hooks: HookSettings::default(),
            exec: None,
            work_ends_within: None,
            health: HealthCheck { path: None, every: seconds(1), unhealthy_after: 3 },
            shutdown_timeout: seconds(60),
        }),
        admin: Some(Admin {
            listen: "127.0.0.1:9090".parse().unwrap(),
            advertise: Some("127.0.0.1:9090".into()),
            hosts: vec!["host-1".into()],
            socket: None,
            write: AdminWrite::None,
            tls: None,
            peers_tls: None,
        }),
        log: Log { level: LogLevel::Info, format: LogFormat::Text, requests: LoggedRequests::Failed },
        tracing: None,
    };
    assert_eq!(accepted("example", EXAMPLE), told);
}

#[test]
fn each_commented_key_of_the_example_is_accepted() {
    let common = EXAMPLE.lines().take_while(|line| !line.starts_with("# [["));
    let commented = common.filter(|line| line.starts_with("# ") && line.contains(" = "));
    let mut tried = 0;
    for line in commented.filter(|line| !line.contains('`')) {
        let bare = line.trim_start_matches("# ");
        let mut text = EXAMPLE.replace(&format!("\n{line}\n"), &format!("\n{bare}\n"));
        assert_ne!(text, EXAMPLE, "{line}");
        if ["key = ", "hash = ", "ambiguous_paths = "].iter().any(|key| bare.starts_with(key)) {
            text = text.replace("\nheader = \"x-partition\"\n", "\n");
        }
        if bare.starts_with("without_key = ") {
            text = text.replace("\nwithout_key = \"refuse\"\n", "\n");
        }
        if bare.starts_with("hash = ") {
            text = text.replace("\n# key = { query", "\nkey = { query");
        }
        if bare.starts_with("ambiguous_paths = ") {
            text = text.replace("\n# key = { path = ", "\nkey = { path = ");
        }
        if bare.starts_with("exec_") {
            text = text.replace("\n# exec = ", "\nexec = ");
        }
        if bare.starts_with("username = ") || bare.starts_with("password_file = ") {
            text = text.replace("\n# username", "\nusername").replace("\n# password_file", "\npassword_file");
        }
        if bare.contains("/client.key") {
            text = text.replace("\nendpoints = [\"http:", "\nendpoints = [\"https:");
        }
        if bare.starts_with("write = ") || bare.contains("/segue-admin-token") {
            let (commented, given) =
                ("\n# token_file = \"/run/secrets/segue-admin", "\ntoken_file = \"/run/secrets/segue-admin");
            text = text.replace("\n# write = ", "\nwrite = ").replace(commented, given);
        }
        if bare.contains("/admin.key") {
            text = text.replace("\n# write = \"token\"", "\nwrite = \"client_cert\"");
        }
        if bare.contains("/coordinator.key") || bare.contains("/segue-pods-token") {
            text = text.replace("\n# listen = \"127.0.0.1:7070\"", "\nlisten = \"127.0.0.1:7070\"");
        }
        if bare.starts_with("secret_file = ") {
            text = text.replace("\n# warm = ", "\nwarm = ");
        }
        if bare.starts_with("sample = ") {
            text = text.replace("\n# endpoint = ", "\nendpoint = ");
        }
        if bare.starts_with("follow_keyspaces = ") {
            text = text.replace("\nkeyspace = \"default\"", "");
            let (partition, stash) =
                (text.find("\n[router.partition]").unwrap(), text.find("\n[router.stash]").unwrap());
            text.replace_range(partition..stash, "");
        }
        if bare.starts_with("hot_restart_socket = ") {
            let (pod, admin) = (text.find("\n[pod]").unwrap(), text.find("\n[admin]").unwrap());
            text.replace_range(pod..admin, "");
        }
        if let Err(errors) = parse("example", &text, [], "host-1") {
            panic!("{line}: {errors}");
        }
        tried += 1;
    }
    assert_eq!(tried, 67);
}

#[test]
fn each_commented_key_of_a_table_is_accepted() {
    let (_, table) = EXAMPLE.split_once("# [[keyspaces]]\n").unwrap();
    let lines = || table.lines().filter(|line| !line.contains('`')).filter_map(|line| line.strip_prefix("# "));
    let mut tried = 0;
    for line in lines().filter(|line| line.contains(" = ")) {
        let needed = ["name = ", "partition = "].map(|key| lines().find(|line| line.starts_with(key)).unwrap());
        let others = needed.into_iter().filter(|other| line.split(" = ").next() != other.split(" = ").next());
        let table: String = others.chain([line]).map(|line| format!("{line}\n")).collect();
        accepted(line, &format!("[router]\n[coordinator]\n[[keyspaces]]\n{table}"));
        tried += 1;
    }
    assert_eq!(tried, 26);
}

#[test]
fn each_commented_key_of_a_route_is_accepted() {
    let (_, table) = EXAMPLE.split_once("# [[router.route]]\n").unwrap();
    let lines = || table.lines().take_while(|line| line.starts_with('#')).filter_map(|line| line.strip_prefix("# "));
    let of = |key: &'static str| lines().filter(move |line| line.starts_with(key));
    let mut tried = 0;
    for (matching, to) in of("match = ").flat_map(|matching| of("to = ").map(move |to| (matching, to))) {
        accepted(to, &format!("[router]\nlisten = \"127.0.0.1:8080\"\n[[router.route]]\n{matching}\n{to}\n"));
        tried += 1;
    }
    assert_eq!(tried, 4);
}

#[test]
fn the_examples_of_single_roles_are_accepted() {
    let router = accepted("router", include_str!("../examples/router.toml"));
    let partition = router.keyspaces[0].routing.clone().unwrap().partition;
    assert!(matches!(partition, Partition::Key { source: KeySource::Header(_), .. }));
    assert!(router.coordinator.is_none() && router.pod.is_none());
    let coordinator = accepted("coordinator", include_str!("../examples/coordinator.toml"));
    assert_eq!(coordinator.keyspaces[0].policy.as_ref().unwrap().partitions, 256);
    let persons = accepted("persons", include_str!("../examples/person-service.toml"));
    let routing = persons.keyspaces[0].routing.clone().unwrap();
    assert_eq!(routing.partition.partitioner().to_string(), "the murmur2 hash of grpc:1,2 joined by :");
    assert_eq!((routing.exceptions.without_key, routing.exceptions.zone.as_deref()), (WithoutKey::Refuse, Some("a")));
    assert_eq!(routing.exceptions.routes.upstreams().map(|it| &**it).collect::<Vec<_>>(), ["127.0.0.1:50052"]);
    let several = accepted("keyspaces", include_str!("../examples/keyspaces.toml"));
    assert_eq!(several.keyspaces.len(), 3);
    let file = segue_config::locate("keyspaces", include_str!("../examples/keyspaces.toml"), [], "h").unwrap();
    assert_eq!(segue_config::compare(&[file]), segue_config::ComparisonFindings::default());
    let pod = accepted("pod", include_str!("../examples/pod.toml"));
    assert_eq!(pod.pod.unwrap().advertise, "writer-0.writers:8181");
}
