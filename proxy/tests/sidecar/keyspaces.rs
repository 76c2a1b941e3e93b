//! Keyspaces that a running sidecar takes and gives up.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use http::Response;
use segue_coordination::pod::PodHandle;
use segue_coordination::store::{MemoryStore, Store};
use segue_coordination::test_util::StoredKeyspace;
use segue_proxy::sidecar::{Sidecar, SidecarPods, Upstream};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::pod;
use crate::support::client::{Answer, Http2Client, RawHttp1Client, empty, full};
use crate::support::pod::{Pod, Speaks};
use crate::support::{P0, soon, until};

/// A pod of one keyspace, which owns the only partition at epoch 7.
async fn owner(store: &Arc<dyn Store>, keyspace: &str, address: SocketAddr) -> PodHandle {
    let stored = StoredKeyspace::new(store.clone(), keyspace);
    let pod = pod(&stored, "w", address);
    let mut state = pod.status();
    let incarnation = soon(state.wait_for(|state| state.not_ready.is_none())).await.unwrap().incarnation;
    stored.put(stored.keys.config(), r#"{"partitions":1}"#).await;
    let assignment = format!(r#"{{"partition":0,"owner":"w","incarnation":{incarnation},"epoch":7}}"#);
    stored.put(stored.keys.assignment(P0), assignment).await;
    soon(state.wait_for(|state| state.owned.len() == 1)).await.unwrap();
    pod
}

struct Site {
    pods: SidecarPods,
    address: SocketAddr,
    orders: PodHandle,
    persons: PodHandle,
    _stop: DropGuard,
}

impl Site {
    /// Starts a sidecar that forwards nothing yet.
    async fn start() -> Self {
        let sidecar = Sidecar::bind("127.0.0.1:0".parse().unwrap(), None, 100).await.unwrap();
        let (address, pods, stop) = (sidecar.local_addr().unwrap(), SidecarPods::default(), CancellationToken::new());
        tokio::spawn(sidecar.serve(pods.clone(), stop.clone(), Duration::ZERO));
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let (orders, persons) = (owner(&store, "orders", address).await, owner(&store, "persons", address).await);
        Site { pods, address, orders, persons, _stop: stop.drop_guard() }
    }
}

fn service(address: SocketAddr) -> Upstream {
    Upstream::at(address.to_string().parse().unwrap())
}

async fn named(name: &'static str) -> Pod {
    Pod::start(Speaks::Http1, move |_| async move { Response::new(full(name)) }).await
}

/// Returns a request as a router stamps it.
fn stamped(keyspace: &str) -> String {
    format!("GET / HTTP/1.1\r\nhost: h\r\nsegue-partition: 0\r\nsegue-epoch: 7\r\nsegue-keyspace: {keyspace}\r\n\r\n")
}

async fn by_http2(client: &Http2Client, keyspace: &str) -> Answer {
    let request = client.request("GET", "/").header("segue-partition", 0).header("segue-epoch", 7);
    client.ask(request.header("segue-keyspace", keyspace).body(empty()).unwrap()).await
}

fn is_refused(answer: &Answer) {
    assert_eq!(answer.reason(), (421, "unstamped"));
    assert_eq!(answer.header("segue-misdirected"), "1");
}

#[tokio::test]
async fn open_connections_find_a_pod_once_it_is_added() {
    let site = Site::start().await;
    let (orders, persons) = (named("orders").await, named("persons").await);
    let mut http1 = RawHttp1Client::connect(site.address).await;
    let http2 = Http2Client::connect(site.address).await;
    is_refused(&http1.ask(stamped("orders")).await);
    is_refused(&by_http2(&http2, "orders").await);
    site.pods.add(site.orders.layer(), service(orders.address));
    assert_eq!(http1.ask(stamped("orders")).await.text(), "orders");
    assert_eq!(by_http2(&http2, "orders").await.text(), "orders");
    let nameless = stamped("orders").replace("segue-keyspace: orders\r\n", "");
    assert_eq!(http1.ask(&nameless).await.text(), "orders", "no other can be meant");
    is_refused(&http1.ask(stamped("persons")).await);
    site.pods.add(site.persons.layer(), service(persons.address));
    assert_eq!(http1.ask(stamped("persons")).await.text(), "persons");
    assert_eq!(by_http2(&http2, "persons").await.text(), "persons");
    is_refused(&http1.ask(&nameless).await);
    assert_eq!(http1.ask(stamped("orders")).await.text(), "orders");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_of_another_keyspace_fails_while_a_pod_is_added() {
    let site = Site::start().await;
    let (orders, persons) = (named("orders").await, named("persons").await);
    site.pods.add(site.persons.layer(), service(persons.address));
    let (over, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let loads = [(); 4].map(|()| {
        let (address, over, answered) = (site.address, over.clone(), answered.clone());
        tokio::spawn(async move {
            let mut http1 = RawHttp1Client::connect(address).await;
            let http2 = Http2Client::connect(address).await;
            while !over.load(Relaxed) {
                assert_eq!(http1.ask(stamped("persons")).await.text(), "persons");
                assert_eq!(by_http2(&http2, "persons").await.text(), "persons");
                answered.fetch_add(1, Relaxed);
            }
        })
    });
    let flows = async || {
        let before = answered.load(Relaxed);
        until(|| answered.load(Relaxed) > before + 8 || loads.iter().any(|load| load.is_finished()), "load").await;
    };
    flows().await;
    site.pods.add(site.orders.layer(), service(orders.address));
    assert_eq!(RawHttp1Client::connect(site.address).await.ask(stamped("orders")).await.text(), "orders");
    flows().await;
    over.store(true, Relaxed);
    for load in loads {
        soon(load).await.unwrap();
    }
}
