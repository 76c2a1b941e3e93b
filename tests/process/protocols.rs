//! Routers and sidecars treat requests by HTTP/1.1, HTTP/2 and gRPC alike: the partition of a key, the target of a route, the
//! limit of a key, and what a service learns of its client.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use axum::Router;
use axum::extract::Request;
use segue_tests::certificates::Authority;
use segue_tests::config::Config;
use segue_tests::ports::free_address;
use segue_tests::process::until;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;

use crate::site::curl::{CurlOutput, Protocol};
use crate::site::service::{serve_both_versions, serve_both_versions_at};
use crate::site::{Site, says};

const PARTITIONS: u64 = 16;

/// The requests to `/held`, which wait at the service.
#[derive(Debug)]
struct HeldRequests {
    arrived: AtomicUsize,
    /// A permit ends the wait of one.
    ends: Semaphore,
}

/// Starts a service that responds with its name, the headers that it got, and the length of the body.
fn service(runtime: &Runtime, name: &'static str) -> (SocketAddr, Arc<HeldRequests>) {
    let (routes, held) = routes(name);
    (runtime.block_on(serve_both_versions(routes)), held)
}

fn routes(name: &'static str) -> (Router, Arc<HeldRequests>) {
    let held = Arc::new(HeldRequests { arrived: AtomicUsize::new(0), ends: Semaphore::new(0) });
    let waits = held.clone();
    let respond = async move |request: Request| {
        let (head, body) = request.into_parts();
        if head.uri.path() == "/held" {
            waits.arrived.fetch_add(1, SeqCst);
            waits.ends.acquire().await.unwrap().forget();
        }
        let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
        let mut headers = BTreeMap::<_, Vec<_>>::new();
        for (name, value) in &head.headers {
            headers.entry(name.to_string()).or_default().push(value.to_str().unwrap().to_owned());
        }
        let seen = json!({ "name": name, "headers": headers, "bytes": body.len() });
        ([("grpc-status", "0"), ("content-type", "application/grpc")], seen.to_string())
    };
    (Router::new().fallback(respond), held)
}

/// Returns what the service has seen of the request, from its response.
fn seen(output: &CurlOutput) -> Value {
    assert!(output.is_served(), "{output:?}");
    serde_json::from_str(output.body()).unwrap_or_else(|_| panic!("{output:?}"))
}

/// Returns the only value of a header that the service has seen.
fn header<'a>(seen: &'a Value, name: &str) -> &'a str {
    match seen["headers"][name].as_array().map(Vec::as_slice) {
        Some([only]) => only.as_str().unwrap(),
        _ => panic!("not one {name}: {seen}"),
    }
}

/// A keyspace that finds its key in a place of its own.
struct KeyedKeyspace {
    name: &'static str,
    key: &'static str,
    protocols: &'static [Protocol],
    /// Paths below the keyspace's, headers, bodies, and the key of each.
    requests: &'static [(&'static str, &'static [&'static str], &'static [u8], &'static str)],
}

const WEB: &[Protocol] = &[Protocol::Http1, Protocol::Http2];
const KEYSPACES: [KeyedKeyspace; 6] = [
    KeyedKeyspace {
        name: "paths",
        key: "paths = [\"/paths/teams/{team}/persons/{person}\", \"/paths/p/{person}\"], of = [\"team\", \"person\"]",
        protocols: &Protocol::ALL,
        requests: &[("/teams/2/persons/7/orders?x=1", &[], b"", "2:7"), ("/p/j%C3%B6rg", &[], b"", "jörg")],
    },
    KeyedKeyspace {
        name: "headers",
        key: "headers = [\"x-team\", \"x-person\"], join = \"/\"",
        protocols: &Protocol::ALL,
        requests: &[("/acme.Persons/Get", &["x-team: 2", "x-person: anna"], b"", "2/anna")],
    },
    KeyedKeyspace {
        name: "query",
        key: "query = \"id\"",
        protocols: &Protocol::ALL,
        requests: &[("/x?a=1&id=a%20b", &[], b"", "a b")],
    },
    KeyedKeyspace {
        name: "cookie",
        key: "cookie = \"sid\"",
        protocols: &Protocol::ALL,
        requests: &[("/x", &["cookie: a=1; sid=4711"], b"", "4711")],
    },
    KeyedKeyspace {
        name: "json",
        key: "json = [\"team\", \"person.id\"]",
        protocols: WEB,
        requests: &[("/x", &["content-type: application/json"], br#"{"person":{"id":"anna"},"team":2}"#, "2:anna")],
    },
    KeyedKeyspace {
        name: "grpc",
        key: "grpc = [1, 2]",
        protocols: &[Protocol::Grpc],
        requests: &[("/acme.Persons/Get", &[], b"\0\0\0\0\x08\x08\x02\x12\x04anna", "2:anna")],
    },
];

#[test]
fn a_key_is_of_the_same_partition_by_each_protocol_wherever_it_stands() {
    let runtime = Runtime::new().unwrap();
    let (service, _) = service(&runtime, "w-0");
    let site = Site::with(|_, config| {
        let add = |config: Config, KeyedKeyspace { name, key, .. }: &KeyedKeyspace| {
            let matching = format!("match = {{ path_prefix = \"/{name}\" }}\npartitions = {PARTITIONS}");
            config.keyspace(name, &format!("{matching}\npartition = {{ key = {{ {key} }} }}"))
        };
        let config = KEYSPACES.iter().fold(config, add).set("coordinator.name", "c-0");
        let by_host = format!("partitions = {PARTITIONS}\npartition = {{ key = {{ host = true }} }}");
        config.keyspace("host", &by_host)
    });
    let names = KEYSPACES.iter().map(|keyed| keyed.name).chain(["host"]);
    let config = names.clone().fold(site.config(), |config, name| config.keyspace(name, ""));
    let _pod = site.run("w-0", &config.pod("w-0", free_address(), service).quick());
    for name in names {
        site.settles_on(name, &[("w-0", PARTITIONS)]);
    }
    let mut asked = 0;
    let mut goes_to = |protocol: Protocol, keyspace: &str, path: &str, words: &[&str], body: &[u8], key: &str| {
        let seen = seen(&protocol.post(&format!("http://{}{path}", site.router), words, body));
        let server = format!("http://{}", site.admin);
        let (_, said) = says(&["explain", "--key", key, "--keyspace", keyspace, "--server", &server]);
        let partition = format!("\npartition   {}\n", header(&seen, "segue-partition"));
        assert!(said.contains(&partition), "{protocol:?} {keyspace} {key}: {partition}{said}");
        assert_eq!((header(&seen, "segue-keyspace"), seen["bytes"].as_u64()), (keyspace, Some(body.len() as u64)));
        asked += 1;
    };
    for KeyedKeyspace { name, protocols, requests, .. } in &KEYSPACES {
        for (path, headers, body, key) in *requests {
            let words: Vec<&str> = headers.iter().flat_map(|header| ["--header", header]).collect();
            for protocol in *protocols {
                goes_to(*protocol, name, &format!("/{name}{path}"), &words, body, key);
            }
        }
    }
    for protocol in Protocol::ALL {
        goes_to(protocol, "host", "/x", &["--header", "host: Acme.example:80"], b"", "acme.example");
    }
    assert_eq!(asked, 21);
}

#[test]
fn routes_lead_and_keys_are_limited_by_each_protocol() {
    let runtime = Runtime::new().unwrap();
    let [(owner, held), (replica, _)] = ["w-0", "replica"].map(|name| service(&runtime, name));
    let site = Site::with(|_, config| {
        let routes = format!(
            "route = [{{ match = {{ path_prefix = \"/stale\" }}, to = \"any\" }}, \
             {{ match = {{ header = \"x-read\", value = \"eventual\" }}, to = {{ upstream = \"{replica}\" }} }}]\n\
             limits.key = {{ max_in_flight = 1 }}"
        );
        let config = config.coordinator("c-0", 4).with("router.partition", "key = { header = \"x-key\" }");
        config.with("router", &routes)
    });
    let _pod = site.pod("w-0", owner);
    site.settles_on("default", &[("w-0", 4)]);
    let url = |path: &str| format!("http://{}{path}", site.router);
    for protocol in Protocol::ALL {
        let key = format!("x-key: {protocol:?}");
        let stale = seen(&protocol.post(&url("/stale/x"), &["--header", &key], b"x"));
        assert_eq!((stale["name"].as_str(), header(&stale, "segue-partition")), (Some("w-0"), "none"));
        let eventual = ["--header", &key, "--header", "x-read: eventual", "--header", "segue-epoch: 9"];
        let eventual = seen(&protocol.post(&url("/x"), &eventual, b"x"));
        assert_eq!(eventual["name"], "replica");
        assert!(eventual["headers"].as_object().unwrap().keys().all(|name| !name.starts_with("segue-")), "{eventual}");

        std::thread::scope(|scope| {
            let first = scope.spawn(|| protocol.post(&url("/held"), &["--header", &key], b"x"));
            until("the first request to arrive", || held.arrived.load(SeqCst) == 1);
            // curl takes a response that comes before the end of its request for a failure.
            let second = protocol.post(&url("/x"), &["--header", &key], b"").text;
            let refusal = match protocol {
                Protocol::Http1 => "HTTP/1.1 429",
                Protocol::Http2 => "HTTP/2 429",
                Protocol::Grpc => "grpc-status: 8",
            };
            assert!(second.contains(refusal) && second.contains("segue-reason: rate"), "{second}");
            let other = format!("x-key: {protocol:?} of another");
            assert_eq!(seen(&protocol.post(&url("/x"), &["--header", &other], b"x"))["name"], "w-0");
            held.ends.add_permits(1);
            seen(&first.join().unwrap());
        });
        until("the key to be free", || protocol.post(&url("/x"), &["--header", &key], b"").is_served());
        held.arrived.store(0, SeqCst);
    }
}

#[test]
fn a_service_learns_who_its_client_is_by_each_protocol() {
    let runtime = Runtime::new().unwrap();
    let (service, _) = service(&runtime, "w-0");
    let folder = tempfile::tempdir().unwrap();
    let ours = Authority::new(folder.path(), "ours");
    let [router, client] = ["router", "client"].map(|name| ours.issue(name));
    let site = Site::with(|_, config| {
        let (cert, key, ca) = (router.cert.display(), router.key.display(), ours.file.display());
        let tls = format!("cert = \"{cert}\"\nkey = \"{key}\"\nclient_ca = \"{ca}\"");
        config.coordinator("c-0", 1).with("router.tls", &tls)
    });
    let _pod = site.pod("w-0", service);
    site.settles_on("default", &[("w-0", 1)]);
    let files = [&ours.file, &client.cert, &client.key].map(|path| path.to_str().unwrap());
    let forged = ["x-forwarded-client-cert: Hash=1", "x-forwarded-for: 192.0.2.1", "x-forwarded-proto: http"];
    let forged = forged.iter().flat_map(|header| ["--header", header]);
    let words = ["--cacert", files[0], "--cert", files[1], "--key", files[2], "--header", "x-partition: 0"];
    let words: Vec<&str> = words.into_iter().chain(forged).collect();
    let mut certificates = Vec::new();
    for protocol in Protocol::ALL {
        let seen = seen(&protocol.post(&format!("https://{}/x", site.router), &words, b"x"));
        assert_eq!((header(&seen, "x-forwarded-for"), header(&seen, "x-forwarded-proto")), ("127.0.0.1", "https"));
        certificates.push(header(&seen, "x-forwarded-client-cert").to_owned());
    }
    certificates.dedup();
    let [certificate] = &certificates[..] else { panic!("{certificates:?}") };
    let hash = certificate.strip_prefix("Hash=").and_then(|rest| rest.split(';').next()).unwrap();
    assert!(hash.len() == 64 && certificate.contains("Subject="), "{certificate}");
}

#[test]
fn a_service_at_a_unix_socket_and_a_balancer_in_front_are_no_matter_of_the_protocol() {
    let runtime = Runtime::new().unwrap();
    let site = Site::with(|_, config| config.coordinator("c-0", 1).set("router.limits.proxy_protocol", true));
    let socket = site.path().join("service.sock");
    runtime.block_on(serve_both_versions_at(&socket, routes("w-0").0));
    let config = site.config().pod("w-0", free_address(), free_address());
    let _pod = site.run("w-0", &config.set("pod.upstream", format!("unix:{}", socket.display())).quick());
    site.settles_on("default", &[("w-0", 1)]);
    for protocol in Protocol::ALL {
        // As a balancer, curl names its own address.
        let words = ["--haproxy-protocol", "--interface", "127.0.0.7", "--header", "x-partition: 0"];
        let seen = seen(&protocol.post(&format!("http://{}/x", site.router), &words, b"x"));
        assert_eq!((header(&seen, "x-forwarded-for"), header(&seen, "segue-partition")), ("127.0.0.7", "0"));
    }
}
