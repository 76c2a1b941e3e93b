//! Keyspaces that a running router takes and gives up.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;

use http::{HeaderName, HeaderValue, Response};
use segue_coordination::store::{MemoryStore, Store};
use segue_coordination::test_util::StoredKeyspace;
use segue_proxy::router::{AddError, BoundRouter, Router, RouterState};
use segue_proxy::routing::keyspace_choice::{KeyspaceChoice, KeyspaceMatch, PathPrefix};
use segue_proxy::routing::partition_key::WithoutKey;
use segue_proxy::routing::table::Table;
use segue_proxy::settings::{ForwardSettings, ServerSettings};
use tokio::time::Instant;
use tower_http::set_header::SetResponseHeaderLayer;

use super::{P0, Site, bound};
use crate::support::client::{Answer, Http2Client, RawHttp1Client, full};
use crate::support::pod::{Pod, ScriptedPod, Speaks};
use crate::support::{OK, Settings, TEST_TIMEOUT, soon, until};

const LEASE: Duration = Duration::from_secs(60);

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: h\r\nx-partition: 0\r\n\r\n")
}

fn store() -> Arc<dyn Store> {
    Arc::new(MemoryStore::new())
}

/// Makes a keyspace of one partition without an owner.
async fn site(store: &Arc<dyn Store>, name: &str) -> Site {
    let site = Site(StoredKeyspace::new(store.clone(), name));
    site.0.put(site.0.keys.config(), r#"{"partitions":1}"#).await;
    site
}

/// Makes one whose partition is that of a pod which answers with the keyspace's name.
async fn served(store: &Arc<dyn Store>, name: &'static str) -> (Site, Pod) {
    let site = site(store, name).await;
    let pod = Pod::start(Speaks::Http1, move |_| async move { Response::new(full(name)) }).await;
    site.assign(pod.address).await;
    (site, pod)
}

/// Starts a router with two workers and without a keyspace.
async fn router(store: &Arc<dyn Store>) -> Router {
    let Settings { server, forward, .. } = Settings::default();
    let server = ServerSettings { workers: 2, ..server };
    let bound = BoundRouter::bind(server, KeyspaceChoice::Among(Vec::new()), &[]).unwrap();
    bound.join(store.clone(), Vec::new()).accept((&forward).into(), Vec::new()).await.unwrap()
}

fn prefix(path: &str) -> Option<KeyspaceMatch> {
    Some(KeyspaceMatch::PathPrefix(PathPrefix::new(path).unwrap()))
}

/// Has the router take a keyspace whose requests have this path.
async fn add(router: &mut Router, site: &Site, path: &str) -> Result<RouterState, AddError> {
    add_with(router, site, path, Settings::default().forward).await
}

async fn add_with(
    router: &mut Router,
    site: &Site,
    path: &str,
    forward: ForwardSettings,
) -> Result<RouterState, AddError> {
    let bound = router.bind_keyspace(Settings::default().stash);
    let mut membership = site.membership("r");
    membership.settings.lease_ttl = LEASE;
    let forward = ForwardSettings { keyspace: site.0.keys.name().to_owned(), ..forward };
    soon(router.add(bound, membership, forward, prefix(path))).await
}

async fn remove(router: &mut Router, site: &Site) {
    assert!(soon(router.remove(site.0.keys.name(), Instant::now() + TEST_TIMEOUT)).await);
}

fn is_refused(answer: &Answer) {
    assert_eq!(answer.reason(), (400, "no-partition"));
}

/// Waits until the worker of this connection finds no keyspace for the path. The request names a partition that no keyspace
/// has, so it is refused in any case.
async fn until_unmatched(client: &mut RawHttp1Client, path: &str) {
    let asked = get(path).replace("x-partition: 0", "x-partition: 9");
    soon(async { while client.ask(&asked).await.header("segue-reason") != "no-partition" {} }).await;
}

/// Returns connections to every worker, by HTTP/1.1 and HTTP/2. The kernel spreads them at random.
async fn clients(router: &Router) -> (Vec<RawHttp1Client>, Vec<Http2Client>) {
    let (mut http1, mut http2) = (Vec::new(), Vec::new());
    for _ in 0..16 {
        http1.push(RawHttp1Client::connect(router.local_addr()).await);
        http2.push(Http2Client::connect(router.local_addr()).await);
    }
    (http1, http2)
}

#[tokio::test]
async fn open_connections_find_a_keyspace_once_it_is_added_and_no_longer_once_it_is_removed() {
    let store = store();
    let (orders, _pod) = served(&store, "orders").await;
    let mut router = router(&store).await;
    let (mut http1, http2) = clients(&router).await;
    for round in 0..3 {
        for client in &mut http1 {
            is_refused(&client.ask(get("/orders/1")).await);
        }
        for client in &http2 {
            is_refused(&client.get("/orders/1").await);
        }
        add(&mut router, &orders, "/orders").await.unwrap();
        for client in &mut http1 {
            assert_eq!(client.ask(get("/orders/1")).await.text(), "orders", "round {round}");
            is_refused(&client.ask(get("/other")).await);
        }
        for client in &http2 {
            assert_eq!(client.get("/orders/1").await.text(), "orders", "round {round}");
        }
        assert!(orders.is_registered("r").await);
        remove(&mut router, &orders).await;
        assert!(!orders.is_registered("r").await);
    }
    for client in &mut http1 {
        is_refused(&client.ask(get("/orders/1")).await);
    }
    soon(router.stop(Instant::now())).await;
}

#[tokio::test]
async fn a_layer_stays_around_a_keyspace_that_is_added() {
    let store = store();
    let (orders, _pod) = served(&store, "orders").await;
    let Settings { server, forward, .. } = Settings::default();
    let bound = BoundRouter::bind(server, KeyspaceChoice::Among(Vec::new()), &[]).unwrap();
    let north = HeaderValue::from_static("north");
    let layer = SetResponseHeaderLayer::overriding(HeaderName::from_static("x-site"), north);
    let joining = bound.join(store.clone(), Vec::new());
    let mut router = joining.accept_with_layer((&forward).into(), Vec::new(), layer).await.unwrap();
    let mut client = RawHttp1Client::connect(router.local_addr()).await;
    add(&mut router, &orders, "/orders").await.unwrap();
    let answer = client.ask(get("/orders/1")).await;
    assert_eq!((answer.text(), answer.header("x-site")), ("orders", "north"));
    remove(&mut router, &orders).await;
    let answer = client.ask(get("/orders/1")).await;
    assert_eq!((answer.status, answer.header("x-site")), (400, "north"));
}

#[tokio::test]
async fn a_request_waits_until_the_keyspace_that_was_added_for_it_is_ready() {
    let store = store();
    let orders = Site(StoredKeyspace::new(store.clone(), "orders"));
    let mut router = router(&store).await;
    let state = add(&mut router, &orders, "/orders").await.unwrap();
    let mut client = RawHttp1Client::connect(router.local_addr()).await;
    client.write(get("/orders/1")).await;
    until(|| state.not_ready().is_some_and(|why| why.contains("no settings")), "a registration").await;
    orders.0.put(orders.0.keys.config(), r#"{"partitions":1}"#).await;
    until(|| state.table().partitions() == 1 && state.table().stashed(P0).0 == 1, "the request to be held").await;
    let pod = Pod::start(Speaks::Http1, |_| async { Response::new(full("ok")) }).await;
    orders.assign(pod.address).await;
    assert_eq!(client.answer().await.text(), "ok");
}

/// Requests that both keyspaces could get, and requests of a third keyspace, are sent all the time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_of_others_fails_and_none_gets_to_another_keyspace_while_one_comes_and_goes() {
    let store = store();
    let (outer, _outer) = served(&store, "outer").await;
    let (inner, _inner) = served(&store, "inner").await;
    let (other, _other) = served(&store, "other").await;
    let mut router = router(&store).await;
    add(&mut router, &outer, "/a").await.unwrap();
    add(&mut router, &other, "/other").await.unwrap();
    let (over, seen) = (Arc::new(AtomicBool::new(false)), Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]));
    let mut loads = Vec::new();
    for number in 0..8 {
        let (address, over, seen) = (router.local_addr(), over.clone(), seen.clone());
        loads.push(tokio::spawn(async move {
            let mut client = RawHttp1Client::connect(address).await;
            let http2 = Http2Client::connect(address).await;
            while !over.load(Relaxed) {
                let (path, names): (_, &[&str]) = match number % 4 {
                    0 => ("/other/1", &["other"]),
                    1 => ("/a/1", &["outer"]),
                    _ => ("/a/b/1", &["outer", "inner"]),
                };
                let answer = if number < 4 { client.ask(get(path)).await } else { http2.get(path).await };
                assert_eq!(answer.status, 200, "{path}: {}", answer.text());
                assert!(names.contains(&answer.text()), "{path}: {}", answer.text());
                if names.len() > 1 {
                    seen[usize::from(answer.text() == "inner")].fetch_add(1, Relaxed);
                }
            }
        }));
    }
    let flows = async |number: usize| {
        let before = seen[number].load(Relaxed);
        until(|| seen[number].load(Relaxed) > before + 20 || loads.iter().any(|load| load.is_finished()), "load").await;
    };
    for _ in 0..20 {
        flows(0).await;
        let state = add(&mut router, &inner, "/a/b").await.unwrap();
        soon(state.ready()).await;
        flows(1).await;
        remove(&mut router, &inner).await;
    }
    over.store(true, Relaxed);
    for load in loads {
        soon(load).await.unwrap();
    }
}

#[tokio::test]
async fn a_removed_keyspace_ends_its_requests_before_it_is_left_and_closes_its_connections() {
    let store = store();
    let orders = site(&store, "orders").await;
    let (other, _pod) = served(&store, "other").await;
    let mut router = router(&store).await;
    add(&mut router, &other, "/other").await.unwrap();
    let pod = ScriptedPod::new().await;
    orders.assign(pod.address).await;
    let state = add(&mut router, &orders, "/orders").await.unwrap();
    let mut idle = RawHttp1Client::connect(router.local_addr()).await;
    let mut idle_connection = pod.accept_from(&mut idle, get("/orders/1")).await;
    // A second exchange needs a second connection.
    let mut client = RawHttp1Client::connect(router.local_addr()).await;
    let mut connection = pod.accept_from(&mut client, get("/orders/2")).await;
    idle_connection.write(OK).await;
    assert_eq!(idle.answer().await.status, 200);
    connection.write("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nha").await;
    assert_eq!(client.head().await.status, 200);
    let address = router.local_addr();
    let (table, was_removed) = (Arc::downgrade(state.table()), Arc::new(AtomicBool::new(false)));
    drop(state);
    let removed = was_removed.clone();
    let removing = tokio::spawn(async move {
        remove(&mut router, &orders).await;
        removed.store(true, Relaxed);
        (router, orders)
    });
    let mut newcomer = RawHttp1Client::connect(address).await;
    until_unmatched(&mut newcomer, "/orders/3").await;
    until_unmatched(&mut idle, "/orders/3").await;
    is_refused(&idle.ask(get("/orders/1")).await);
    assert_eq!(newcomer.ask(get("/other/1")).await.text(), "other");
    assert!(!was_removed.load(Relaxed) && table.strong_count() > 0, "a request is in flight");
    connection.write("lf").await;
    assert_eq!(client.exactly(4).await, b"half");
    let (router, orders) = soon(removing).await.unwrap();
    assert!(!orders.is_registered("r").await && other.is_registered("r").await);
    assert_eq!(table.strong_count(), 0, "something of the keyspace is kept");
    assert_eq!((connection.rest().await, idle_connection.rest().await), (String::new(), String::new()));
    is_refused(&client.ask(get("/orders/1")).await);
    soon(router.stop(Instant::now())).await;
}

#[tokio::test]
async fn held_requests_of_a_removed_keyspace_are_sent_if_their_turn_comes_and_refused_at_last() {
    let store = store();
    for comes in [true, false] {
        let orders = site(&store, "orders").await;
        let mut router = router(&store).await;
        let state = add(&mut router, &orders, "/orders").await.unwrap();
        soon(state.ready()).await;
        let mut client = RawHttp1Client::connect(router.local_addr()).await;
        client.write(get("/orders/1")).await;
        until(|| state.table().stashed(P0).0 == 1, "the request to be held").await;
        let time = if comes { TEST_TIMEOUT } else { Duration::from_secs(1) };
        let removing = tokio::spawn(async move { router.remove("orders", Instant::now() + time).await });
        if comes {
            let pod = Pod::start(Speaks::Http1, |_| async { Response::new(full("ok")) }).await;
            orders.assign(pod.address).await;
            assert_eq!(client.answer().await.text(), "ok");
        } else {
            assert_eq!(client.answer().await.reason(), (503, "shutdown"));
        }
        assert!(soon(removing).await.unwrap());
        assert!(!orders.is_registered("r").await);
    }
}

#[tokio::test]
async fn exchanges_that_do_not_end_are_broken_off_at_the_deadline_of_a_removal() {
    let store = store();
    let orders = site(&store, "orders").await;
    let (other, _pod) = served(&store, "other").await;
    let mut router = router(&store).await;
    add(&mut router, &other, "/other").await.unwrap();
    let pod = ScriptedPod::new().await;
    orders.assign(pod.address).await;
    let mut forward = Settings::default().forward;
    forward.exceptions.without_key = WithoutKey::Any;
    let state = add_with(&mut router, &orders, "/orders", forward).await.unwrap();
    soon(state.ready()).await;
    let address = router.local_addr();
    let client = async || RawHttp1Client::connect(address).await;
    let (mut unanswered, mut begun, mut keyless) = (client().await, client().await, client().await);
    let mut connections = vec![pod.accept_from(&mut unanswered, get("/orders/1")).await];
    connections.push(pod.accept_from(&mut begun, get("/orders/2")).await);
    connections[1].write("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nha").await;
    assert_eq!(begun.head().await.status, 200);
    connections.push(pod.accept_from(&mut keyless, "GET /orders/3 HTTP/1.1\r\nhost: h\r\n\r\n").await);
    let mut websocket = client().await;
    let upgrade = "connection: upgrade\r\nupgrade: websocket\r\n";
    let asks = get("/orders/4").replace("\r\n\r\n", &format!("\r\n{upgrade}\r\n"));
    let mut switched = pod.accept_from(&mut websocket, asks).await;
    switched.write(format!("HTTP/1.1 101 Switching Protocols\r\n{upgrade}\r\n")).await;
    assert_eq!(websocket.head().await.status, 101);
    assert!(soon(router.remove("orders", Instant::now() + Duration::from_millis(100))).await);
    assert_eq!(unanswered.answer().await.header("segue-reason"), "severed");
    assert_eq!(keyless.answer().await.header("segue-reason"), "severed");
    assert_eq!(begun.rest().await, "ha");
    // A close frame that says that the service restarts.
    assert_eq!(websocket.exactly(4).await[2..], 1012u16.to_be_bytes());
    assert!(!orders.is_registered("r").await);
    assert_eq!(client().await.ask(get("/other/1")).await.text(), "other");
}

#[tokio::test]
async fn a_keyspace_that_comes_and_goes_leaves_nothing_behind() {
    let store = store();
    let (orders, pod) = served(&store, "orders").await;
    let mut router = router(&store).await;
    let mut client = RawHttp1Client::connect(router.local_addr()).await;
    let mut tables: Vec<Weak<Table>> = Vec::new();
    for round in 1..=30 {
        let state = add(&mut router, &orders, "/orders").await.unwrap();
        tables.push(Arc::downgrade(state.table()));
        drop(state);
        assert_eq!(client.ask(get("/orders/1")).await.text(), "orders");
        remove(&mut router, &orders).await;
        assert!(tables.iter().all(|table| table.strong_count() == 0), "round {round}");
        assert_eq!(pod.connections.load(Relaxed), round, "each time has a connection of its own");
    }
}

#[tokio::test]
async fn nothing_is_left_of_a_keyspace_that_a_router_was_started_with() {
    let store = store();
    let (orders, _pod) = served(&store, "orders").await;
    let Settings { server, stash, forward, .. } = Settings::default();
    let forward = ForwardSettings { keyspace: "orders".to_owned(), ..forward };
    let choice = KeyspaceChoice::Among(vec![prefix("/orders")]);
    let joining = BoundRouter::bind(server, choice, &[stash]).unwrap().join(store, vec![orders.membership("r")]);
    let table = Arc::downgrade(joining.state().table());
    let mut router = joining.accept((&forward).into(), vec![forward]).await.unwrap();
    let mut client = RawHttp1Client::connect(router.local_addr()).await;
    assert_eq!(client.ask(get("/orders/1")).await.text(), "orders");
    remove(&mut router, &orders).await;
    assert_eq!(table.strong_count(), 0);
    is_refused(&client.ask(get("/orders/1")).await);
}

#[tokio::test]
async fn a_router_takes_no_keyspace_that_it_could_not_tell_from_another() {
    let store = store();
    let [one, two] = [site(&store, "one").await, site(&store, "two").await];
    let mut router = router(&store).await;
    add(&mut router, &one, "/one").await.unwrap();
    let again = add(&mut router, &one, "/other").await.unwrap_err();
    assert_eq!(again.to_string(), "the router has keyspace one already");
    let same = add(&mut router, &two, "/one").await.unwrap_err();
    assert_eq!(same.to_string(), "keyspace two would get the same requests as keyspace one");
    let mut forward = Settings::default().forward;
    forward.router = "not a\nheader".to_owned();
    assert!(matches!(add_with(&mut router, &two, "/two", forward).await, Err(AddError::Name(_))));
    assert!(!two.is_registered("r").await);
    assert!(!soon(router.remove("two", Instant::now())).await);

    let only = bound().join(store.clone(), vec![one.membership("only")]);
    let mut only = super::accept(only).await;
    assert!(matches!(add(&mut only, &two, "/two").await, Err(AddError::OnlyKeyspace)));
    assert!(!soon(only.remove("default", Instant::now())).await);
}

#[tokio::test]
async fn a_removal_that_is_no_longer_awaited_is_completed_by_the_next_or_by_a_stop() {
    let store = store();
    for stops in [true, false] {
        let orders = site(&store, "orders").await;
        let mut router = router(&store).await;
        let pod = ScriptedPod::new().await;
        orders.assign(pod.address).await;
        add(&mut router, &orders, "/orders").await.unwrap();
        let mut client = RawHttp1Client::connect(router.local_addr()).await;
        let mut connection = pod.accept_from(&mut client, get("/orders/1")).await;
        let removal = router.remove("orders", Instant::now() + TEST_TIMEOUT);
        assert!(tokio::time::timeout(Duration::from_millis(200), removal).await.is_err(), "a request is in flight");
        let mut other = RawHttp1Client::connect(router.local_addr()).await;
        until_unmatched(&mut other, "/orders/2").await;
        assert!(orders.is_registered("r").await);
        assert!(matches!(add(&mut router, &orders, "/orders").await, Err(AddError::Present(_))));
        let ending = tokio::spawn(async move {
            let deadline = Instant::now() + TEST_TIMEOUT;
            if stops {
                router.stop(deadline).await;
            } else {
                assert!(router.remove("orders", deadline).await);
            }
        });
        connection.write(OK).await;
        assert_eq!(client.answer().await.status, 200);
        soon(ending).await.unwrap();
        assert!(!orders.is_registered("r").await);
    }
}
