//! Requests without a key, through a router and sidecars as processes: any pod gets them, and knows that they have none.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use segue_tests::http::{Request, get, metric};
use segue_tests::ports::free_address;

use crate::site::curl::Protocol;
use crate::site::service::serve_both_versions;
use crate::site::{Site, json};

/// Starts a service that speaks both versions and responds with its name and what the request is stamped with.
async fn service(name: &'static str) -> SocketAddr {
    let respond = move |request: axum::extract::Request| async move {
        let (head, body) = request.into_parts();
        // curl takes a response before the end of its request for a failure.
        axum::body::to_bytes(body, usize::MAX).await.unwrap();
        let header = |name| head.headers.get(name).map_or("-", |value| value.to_str().unwrap()).to_owned();
        let body = format!("{name} {} {} ", header("segue-partition"), header("segue-epoch"));
        ([("grpc-status", "0"), ("content-type", "application/grpc")], body)
    };
    serve_both_versions(axum::Router::new().fallback(respond)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_pod_serves_a_request_without_a_key_and_only_the_owner_one_with_a_key() {
    let services = [service("a").await, service("b").await];
    tokio::task::spawn_blocking(move || {
        let site = Site::with(|_, config| {
            let config = config.coordinator("c-0", 4);
            config.with("router.partition", "key = { header = \"x-key\" }\nwithout_key = \"any\"")
        });
        let sidecar = free_address();
        let _a = site.run("a", &site.config().pod("a", sidecar, services[0]).quick());
        let _b = site.pod("b", services[1]);
        site.settles_on("default", &[("a", 2), ("b", 2)]);
        let mut seen = BTreeSet::new();
        for _ in 0..40 {
            let forged = Request::get("/").header("segue-partition", 1).header("segue-epoch", 1);
            let response = forged.send(site.router).unwrap();
            assert_eq!(response.status, 200, "{response:?}");
            seen.insert(response.body);
            for protocol in [Protocol::Http2, Protocol::Grpc] {
                let url = format!("http://{}/grpc.health.v1.Health/Check", site.router);
                seen.insert(protocol.post(&url, &[], b"x").body().to_owned());
            }
        }
        let expected = ["a none - ", "b none - "].map(str::to_owned);
        assert_eq!(seen, BTreeSet::from(expected));

        // Who has a key is told its partition and epoch, by the owner alone.
        let owned: BTreeSet<_> =
            (0..20).map(|_| Request::get("/").header("x-key", "anna").send(site.router).unwrap().body).collect();
        assert_eq!(owned.len(), 1, "{owned:?}");
        assert!(!owned.iter().next().unwrap().contains("none"), "{owned:?}");

        // A sidecar takes no request without a router's word.
        assert_eq!(get(sidecar, "/").unwrap().0, 421);
        let metrics = get(site.admin, "/metrics").unwrap().1;
        assert_eq!(metric(&metrics, "segue_requests_total{code=\"200\",reason=\"\"}"), Some(140.0), "{metrics}");
        assert!(json(site.admin, "/status")["router"]["partitions"].as_array().is_some_and(|all| all.len() == 4));
    })
    .await
    .unwrap();
}
