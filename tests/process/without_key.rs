//! Requests without a key, through a router and sidecars as processes: any pod gets them, and knows that they have none.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::process::Command;

use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use segue_tests::http::{Request, get, metric};
use segue_tests::ports::free_address;
use tokio::net::TcpListener;

use crate::site::{Site, json};

/// Starts a service that speaks both versions and responds with its name and what the request is stamped with.
async fn service(name: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let respond = move |request: axum::extract::Request| async move {
        let (head, body) = request.into_parts();
        // curl takes a response before the end of its request for a failure.
        axum::body::to_bytes(body, usize::MAX).await.unwrap();
        let header = |name| head.headers.get(name).map_or("-", |value| value.to_str().unwrap()).to_owned();
        let body = format!("{name} {} {} ", header("segue-partition"), header("segue-epoch"));
        ([("grpc-status", "0"), ("content-type", "application/grpc")], body)
    };
    let routes = axum::Router::new().fallback(respond);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let service = TowerToHyperService::new(routes.clone());
            tokio::spawn(async move {
                let builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
                let _ = builder.serve_connection(TokioIo::new(stream), service).await;
            });
        }
    });
    address
}

/// Returns what curl prints of the response to a request by HTTP/2: the status, and the body.
fn by_http2(router: SocketAddr, words: &[&str]) -> String {
    let curl = Command::new("curl")
        .args([
            "--silent",
            "--show-error",
            "--max-time",
            "60",
            "--http2-prior-knowledge",
            "--write-out",
            "%{http_code}",
        ])
        .args(words)
        .arg(format!("http://{router}/grpc.health.v1.Health/Check"))
        .output();
    let curl = curl.unwrap();
    let said = String::from_utf8(curl.stdout).unwrap();
    assert!(curl.status.success(), "{words:?}: {said}\n{}", String::from_utf8_lossy(&curl.stderr));
    said
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
            seen.insert(by_http2(site.router, &[]));
            let grpc = ["--header", "content-type: application/grpc", "--header", "te: trailers", "--data-binary", "x"];
            seen.insert(by_http2(site.router, &grpc));
        }
        let expected = ["a none - ", "a none - 200", "b none - ", "b none - 200"].map(str::to_owned);
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
