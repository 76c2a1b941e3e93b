//! A whole router over the embedded store: when it is registered, and when it answers.
//!
//! Elsewhere: keyspaces that come and go while it runs ([`keyspaces`]).

mod keyspaces;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use segue_coordination::router::{DrainSettings, RouterSettings};
use segue_coordination::store::{MemoryStore, Store};
use segue_coordination::test_util::StoredKeyspace;
use segue_protocol::handoff::router::OnStoreLoss;
use segue_protocol::ids::PartitionId;
use segue_proxy::router::{BoundRouter, JoiningRouter, Membership, Router};
use segue_proxy::routing::keyspace_choice::{KeyspaceChoice, KeyspaceMatch, PathPrefix};
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::support::client::RawHttp1Client;
use crate::support::pod::ScriptedPod;
use crate::support::{Settings, TEST_TIMEOUT, soon};

const P0: PartitionId = PartitionId::new(0);
const GET: &str = "GET / HTTP/1.1\r\nhost: h\r\nx-partition: 0\r\n\r\n";
const TTL: Duration = Duration::from_secs(2);

struct Site(StoredKeyspace);

impl Site {
    /// A keyspace that nobody has made yet.
    fn empty() -> Self {
        Site(StoredKeyspace::new(Arc::new(MemoryStore::new()), "test"))
    }

    /// A keyspace of one partition without an owner.
    async fn new() -> Self {
        let site = Site::empty();
        site.0.put(site.0.keys.config(), r#"{"partitions":1}"#).await;
        site
    }

    /// Gives the partition to a pod.
    async fn assign(&self, pod: SocketAddr) {
        let record = format!(r#"{{"pod_name":"w","address":"{pod}"}}"#);
        self.0.put_leased(self.0.keys.pod("w"), record).await;
        let incarnation = self.0.get(self.0.keys.pod("w")).await.unwrap().create_revision;
        let assignment = format!(r#"{{"partition":0,"owner":"w","incarnation":{incarnation},"epoch":7}}"#);
        self.0.put(self.0.keys.assignment(P0), assignment).await;
    }

    fn membership(&self, name: &str) -> Membership {
        let settings = RouterSettings {
            name: name.to_owned(),
            lease_ttl: TTL,
            on_store_loss: OnStoreLoss::Auto,
            drain: DrainSettings::default(),
            admin: None,
            partitioner: None,
            request_timeout: TEST_TIMEOUT,
            max_wait: TEST_TIMEOUT,
        };
        Membership::new(self.0.keys.clone(), settings)
    }

    fn join(&self, name: &str) -> JoiningRouter {
        bound().join(self.0.store.clone(), vec![self.membership(name)])
    }

    async fn router(&self) -> Router {
        let router = self.join("r");
        soon(router.state().ready()).await;
        accept(router).await
    }

    async fn is_registered(&self, name: &str) -> bool {
        self.0.get(self.0.keys.router(name)).await.is_some()
    }
}

async fn accept(router: JoiningRouter) -> Router {
    let forward = Settings::default().forward;
    router.accept((&forward).into(), vec![forward]).await.unwrap()
}

fn bound() -> BoundRouter {
    let Settings { server, stash, .. } = Settings::default();
    BoundRouter::bind(server, KeyspaceChoice::Only, &[stash]).unwrap()
}

async fn until_held(router: &Router) {
    crate::support::until(|| router.state().table().stashed(P0).0 == 1, "the request to be held").await;
}

#[tokio::test]
async fn a_router_without_clients_is_ready_once_it_knows_the_keyspace() {
    let site = Site::empty();
    let router = site.join("r");
    crate::support::until(
        || router.state().not_ready().is_some_and(|why| why.contains("no settings")),
        "a registration",
    )
    .await;
    assert!(site.is_registered("r").await);
    site.0.put(site.0.keys.config(), r#"{"partitions":1}"#).await;
    soon(router.state().ready()).await;
    soon(router.give_up()).await;
    assert!(!site.is_registered("r").await);
}

/// `/ready` asks for the longest silence of a worker.
#[tokio::test]
async fn the_workers_of_an_only_keyspace_count_where_the_listener_does() {
    let site = Site::new().await;
    let router = bound();
    let listener = router.listener_metrics().clone();
    let joining = router.join(site.0.store.clone(), vec![site.membership("r")]);
    let router = accept(joining).await;
    crate::support::until(|| listener.longest_silence().is_some(), "a worker's first turn").await;
    soon(router.stop(Instant::now())).await;
}

#[tokio::test]
async fn a_router_of_two_keyspaces_serves_each_from_its_own_pods_and_leaves_both() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let [orders, persons] = ["orders", "persons"].map(|name| Site(StoredKeyspace::new(store.clone(), name)));
    let pod = ScriptedPod::new().await;
    for site in [&orders, &persons] {
        site.0.put(site.0.keys.config(), r#"{"partitions":1}"#).await;
    }
    orders.assign(pod.address).await;
    let Settings { server, stash, forward, .. } = Settings::default();
    let prefixes = ["/orders", "/persons"].map(|path| KeyspaceMatch::PathPrefix(PathPrefix::new(path).unwrap()));
    let choice = KeyspaceChoice::Among(prefixes.map(Some).into());
    let router = BoundRouter::bind(server, choice, &[stash, stash]).unwrap();
    let joining = router.join(store, vec![orders.membership("r"), persons.membership("r")]);
    for state in joining.states() {
        soon(state.ready()).await;
    }
    let router = joining.accept((&forward).into(), vec![forward.clone(), forward]).await.unwrap();
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nhost: h\r\nx-partition: 0\r\n\r\n");
    let client = async || RawHttp1Client::connect(router.local_addr()).await;
    // The second keyspace has no owner: its request waits, and no other one with it.
    let mut held = client().await;
    held.write(get("/persons/1")).await;
    let mut served = client().await;
    let mut connection = pod.accept_from(&mut served, get("/orders/1")).await;
    connection.write("HTTP/1.1 204 No Content\r\n\r\n").await;
    assert_eq!(served.answer().await.status, 204);
    let nowhere = client().await.ask(get("/other")).await;
    assert_eq!((nowhere.status, nowhere.header("segue-reason")), (400, "no-partition"));
    soon(router.stop(Instant::now() + Duration::from_secs(2))).await;
    assert_eq!(held.answer().await.header("segue-reason"), "shutdown");
    assert!(!orders.is_registered("r").await && !persons.is_registered("r").await);
}

#[tokio::test]
async fn a_router_that_stops_deregisters_only_after_its_last_request() {
    let site = Site::new().await;
    let pod = ScriptedPod::new().await;
    site.assign(pod.address).await;
    let router = site.router().await;
    let address = router.local_addr();
    let mut client = RawHttp1Client::connect(address).await;
    client.write(GET).await;
    let mut connection = pod.accept().await;
    connection.head().await;
    let stopping = tokio::spawn(router.stop(Instant::now() + TEST_TIMEOUT));
    soon(async { while TcpStream::connect(address).await.is_ok() {} }).await;
    assert!(site.is_registered("r").await, "a request is in flight");
    connection.write("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
    assert_eq!(client.answer().await.text(), "ok");
    soon(stopping).await.unwrap();
    assert!(!site.is_registered("r").await);
}

#[tokio::test]
async fn a_router_that_stops_refuses_what_it_still_holds_when_its_time_is_nearly_up() {
    let site = Site::new().await;
    let router = site.router().await;
    let mut client = RawHttp1Client::connect(router.local_addr()).await;
    client.write(GET).await;
    until_held(&router).await;
    let stopping = tokio::spawn(router.stop(Instant::now() + Duration::from_secs(2)));
    let answer = client.answer().await;
    assert_eq!((answer.status, answer.header("segue-reason")), (503, "shutdown"));
    soon(stopping).await.unwrap();
    assert!(!site.is_registered("r").await);
}

#[tokio::test]
async fn a_router_that_cannot_start_its_workers_deregisters() {
    let site = Site::new().await;
    let router = site.join("r");
    soon(router.state().ready()).await;
    let mut forward = Settings::default().forward;
    forward.router = "not a\nheader".to_owned();
    soon(router.accept((&forward).into(), vec![forward])).await.unwrap_err();
    assert!(!site.is_registered("r").await);
}

#[tokio::test]
async fn a_router_that_is_dropped_closes_its_connections_and_lets_its_lease_end() {
    let site = Site::new().await;
    let router = site.router().await;
    let mut client = RawHttp1Client::connect(router.local_addr()).await;
    client.write(GET).await;
    until_held(&router).await;
    drop(router);
    assert!(site.is_registered("r").await, "it did not deregister");
    assert_eq!(soon(client.rest()).await, "");
    soon(async {
        while site.is_registered("r").await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}
