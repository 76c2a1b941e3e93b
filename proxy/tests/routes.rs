//! Routes: requests that do not go to the owner of their key's partition.

use std::future::pending;
use std::sync::Arc;

use http::{Method, Response};
use segue_protocol::handoff::router::HoldCause;
use segue_protocol::ids::PartitionId;
use segue_proxy::routing::key_hash::KeyHash;
use segue_proxy::routing::keyspace_choice::PathPrefix;
use segue_proxy::routing::partition_key::{KeySource, PartitionSource, WithoutKey};
use segue_proxy::routing::route_rules::{Destination, HeaderMatch, PathMatch, RouteRule, RouteRules};
use segue_proxy::settings::UpstreamProtocol;
use tokio::sync::Notify;

use crate::support::client::{empty, full};
use crate::support::pod::{Pod, Speaks};
use crate::support::{Fixture, Settings, soon};

/// A route of reads that need not be fresh, behind one of writes that have the same mark.
fn rules(to: Destination) -> RouteRules {
    let rule = |path: Option<&str>, methods: &[Method], to| RouteRule {
        path: path.map(|path| PathMatch::Beginning(PathPrefix::new(path).unwrap())),
        methods: methods.to_vec(),
        header: Some(HeaderMatch { name: "x-consistency".parse().unwrap(), value: Some("eventual".parse().unwrap()) }),
        to,
    };
    RouteRules::new(vec![rule(None, &[Method::PUT], Destination::Owner), rule(Some("/persons"), &[], to)])
}

fn settings(to: Destination, protocol: UpstreamProtocol) -> Settings {
    Settings::with(|settings| {
        let source = KeySource::Header("x-key".parse().unwrap());
        settings.forward.partition = PartitionSource::Key { source, hash: KeyHash::Murmur2 };
        settings.forward.exceptions.routes = rules(to);
        settings.forward.exceptions.zone = Some("a".to_owned());
        settings.forward.upstream.protocol = protocol;
    })
}

/// Starts a pod that answers with its name and the partition that it was told.
async fn named(speaks: Speaks, name: &'static str) -> Pod {
    Pod::start(speaks, move |request| async move {
        let partition = request.headers()["segue-partition"].to_str().unwrap().to_owned();
        let is_marked =
            request.headers().contains_key("x-consistency") || request.headers().contains_key("x_consistency");
        let told = format!(
            "{name} {}{}",
            if partition == "none" { "none" } else { "owned" },
            if is_marked { "" } else { " unmarked" }
        );
        Response::builder().header("told", told).header("grpc-status", "0").body(empty()).unwrap()
    })
    .await
}

const EVENTUAL: &str = "x-key: anna\r\nx-consistency: eventual\r\n";

#[tokio::test]
async fn what_goes_to_any_pod_and_comes_before_the_partitions_are_known_holds_up_nobody() {
    for (path, key) in [("/persons", "anna"), ("/", "")] {
        let mut settings = settings(Destination::Any, UpstreamProtocol::Http1);
        settings.forward.exceptions.without_key = WithoutKey::Any;
        let fixture = Fixture::with(Settings { partitions: 0, ..settings });
        let asked = Arc::new(Notify::new());
        let asks = asked.clone();
        let silent = Pod::start(Speaks::Http1, move |_| {
            asks.notify_one();
            pending()
        });
        let (silent, owner) = (silent.await, named(Speaks::Http1, "owner").await);
        fixture.ready(&[silent.address]);
        let client = fixture.http2_client().await;
        let ask = |method, path, key: &str| {
            let request = client.request(method, path).header("x-key", key).header("x-consistency", "eventual");
            client.spawn_ask(request.body(empty()).unwrap())
        };
        let to_any = ask("GET", path, key);
        let to_owner = ask("PUT", "/", "anna");
        // The router refuses it at once, so it has taken those before it.
        assert_eq!(soon(ask("TRACE", "/", "")).await.unwrap().status, 405);
        fixture.table.set_partitions(8);
        PartitionId::all(8).for_each(|partition| fixture.route(partition, owner.address, 1));
        assert_eq!(soon(to_owner).await.unwrap().status, 200, "{path}");
        soon(asked.notified()).await;
        assert!(!to_any.is_finished());
    }
}

#[tokio::test]
async fn a_route_leads_to_any_pod_while_the_partition_is_held_and_everything_else_to_its_owner() {
    for (protocol, speaks) in [(UpstreamProtocol::Http1, Speaks::Http1), (UpstreamProtocol::Http2, Speaks::Http2)] {
        let fixture = Fixture::with(settings(Destination::Any, protocol));
        let (owner, other) = (named(speaks, "owner").await, named(speaks, "other").await);
        PartitionId::all(8).for_each(|partition| fixture.hold(partition, HoldCause::Handoff));
        fixture.ready(&[other.address]);
        let ask = |method, path, lines| fixture.ask(format!("{method} {path} HTTP/1.1\r\nhost: h\r\n{lines}\r\n"));
        let told = |answer: crate::support::client::Answer| (answer.status, answer.header("told").to_owned());
        let of_other = (200, "other none".to_owned());
        assert_eq!(told(ask("GET", "/persons/7", EVENTUAL).await), of_other);
        assert_eq!(told(ask("GET", "/persons/7", "x-consistency: eventual\r\n").await), of_other, "without a key");
        let http2 = fixture.http2_client().await;
        let request = http2.request("GET", "/persons").header("x-consistency", "eventual").body(empty()).unwrap();
        assert_eq!(told(http2.ask(request).await), of_other);
        let call = http2.request("POST", "/persons/Get").header("content-type", "application/grpc");
        let call = call.header("x-consistency", "eventual").header("x-key", "anna").body(full("call")).unwrap();
        assert_eq!(told(http2.ask(call).await), of_other);

        PartitionId::all(8).for_each(|partition| fixture.route(partition, owner.address, 1));
        let of_owner = |unmarked: &str| (200, format!("owner owned{unmarked}"));
        assert_eq!(told(ask("PUT", "/persons/7", EVENTUAL).await), of_owner(""), "the first route counts");
        assert_eq!(told(ask("GET", "/orders/7", EVENTUAL).await), of_owner(""));
        assert_eq!(told(ask("GET", "/persons/7", "x-key: anna\r\n").await), of_owner(" unmarked"));
        // No pod can take another header for the one that the route looks at.
        let disguised = ask("GET", "/persons/7", "x-key: anna\r\nx_consistency: eventual\r\n").await;
        assert_eq!(told(disguised), of_owner(" unmarked"));
    }
}

#[tokio::test]
async fn what_a_pod_may_read_as_a_request_of_another_route_is_refused() {
    let fixture = Fixture::with(settings(Destination::Any, UpstreamProtocol::Http1));
    let pod = named(Speaks::Http1, "a").await;
    fixture.ready(&[pod.address]);
    PartitionId::all(8).for_each(|partition| fixture.route(partition, pod.address, 1));
    let ask = |path, lines| fixture.ask(format!("GET {path} HTTP/1.1\r\nhost: h\r\n{lines}\r\n"));
    for path in ["/persons/../orders", "//persons", "/persons;x", "/%2e%2e/persons", "/persons%2f"] {
        assert_eq!(ask(path, EVENTUAL).await.reason(), (400, "bad-partition"), "{path}");
    }
    let both = format!("{EVENTUAL}x-consistency: strong\r\n");
    assert_eq!(ask("/persons", &both).await.reason(), (400, "bad-partition"));
    let away = format!("{EVENTUAL}connection: x-consistency\r\n");
    assert_eq!(ask("/persons", &away).await.reason(), (400, "ambiguous"));
}

#[tokio::test]
async fn a_pod_of_the_routers_zone_is_preferred_to_others_while_one_takes_requests() {
    let fixture = Fixture::with(settings(Destination::Zone, UpstreamProtocol::Http1));
    let (near, far) = (named(Speaks::Http1, "near").await, named(Speaks::Http1, "far").await);
    let unreachable = segue_tests::ports::free_address();
    let ask = || fixture.ask(format!("GET /persons HTTP/1.1\r\nhost: h\r\n{EVENTUAL}\r\n"));
    fixture.ready_in(&[(far.address, "b"), (near.address, "a")]);
    for _ in 0..20 {
        assert_eq!(ask().await.header("told"), "near none");
    }
    fixture.ready_in(&[(far.address, "b"), (unreachable, "a")]);
    for _ in 0..20 {
        assert_eq!(ask().await.header("told"), "far none");
    }
    fixture.ready_in(&[(far.address, "b")]);
    assert_eq!(ask().await.header("told"), "far none");
}
