//! Long exchanges beside short ones while their partition moves: a whole router over the embedded store, and real
//! sockets. The test plays coordinator and pods.

use std::sync::Arc;
use std::time::Duration;

use segue_coordination::router::{DataPlane, DrainEnd, DrainSettings, RouterSettings};
use segue_coordination::store::MemoryStore;
use segue_coordination::test_util::StoredKeyspace;
use segue_protocol::handoff::router::{GateStage, OnDrainTimeout, OnStoreLoss};
use segue_protocol::ids::{Epoch, Incarnation, PartitionId};
use segue_protocol::records::{Assignment, Capabilities, Handoff, KeyspaceConfig, Phase, PodRecord, encode};
use segue_protocol::txn::Op;
use segue_proxy::router::{BoundRouter, Membership, Router};
use segue_proxy::routing::keyspace_choice::KeyspaceChoice;
use tokio::time::{Instant, sleep};

use crate::support::client::RawHttp1Client;
use crate::support::pod::{Connection, ScriptedPod};
use crate::support::{GET, OK, P0, P1, POST, Settings, get_at, soon, until};

/// Longer than a test waits for anything.
const NEVER: Duration = Duration::from_secs(3600);
const UPGRADE: &str = "connection: upgrade\r\nupgrade: websocket\r\n";

/// Two pods, `old` with all partitions, and a router.
struct Site {
    stored: StoredKeyspace,
    old: ScriptedPod,
    new: ScriptedPod,
    lives: [Incarnation; 2],
    router: Router,
}

impl Site {
    async fn new(drain: DrainSettings) -> Self {
        let stored = StoredKeyspace::new(Arc::new(MemoryStore::new()), "test");
        let (store, keys) = (stored.store.clone(), stored.keys.clone());
        let (old, new) = (ScriptedPod::new().await, ScriptedPod::new().await);
        stored.put(keys.config(), encode(&KeyspaceConfig::new(2))).await;
        for (name, pod) in [("old", &old), ("new", &new)] {
            let record = PodRecord { capabilities: Capabilities::ALL, ..PodRecord::new(name, pod.address.to_string()) };
            stored.put_leased(keys.pod(name), encode(&record)).await;
        }
        let view = stored.view().await;
        let lives = ["old", "new"].map(|name| view.incarnation_of(name));
        for partition in [P0, P1] {
            let owned = Assignment::new(partition, "old", lives[0], Epoch::new(1));
            stored.put(keys.assignment(partition), encode(&owned)).await;
        }
        let Settings { server, stash, forward, .. } = Settings::default();
        let settings = RouterSettings {
            name: "r".to_owned(),
            lease_ttl: Duration::from_secs(10),
            on_store_loss: OnStoreLoss::Auto,
            drain,
            admin: None,
            partitioner: None,
            request_timeout: NEVER,
            max_wait: NEVER,
        };
        let joining = BoundRouter::bind(server, KeyspaceChoice::Only, &[stash])
            .unwrap()
            .join(store, vec![Membership::new(keys, settings)]);
        soon(joining.state().ready()).await;
        let router = joining.accept((&forward).into(), vec![forward]).await.unwrap();
        Site { stored, old, new, lives, router }
    }

    async fn client(&self) -> RawHttp1Client {
        RawHttp1Client::connect(self.router.local_addr()).await
    }

    /// Brings a request from a new client to the old owner, which sends this.
    async fn begun(&self, request: impl AsRef<[u8]>, response: impl AsRef<[u8]>) -> (RawHttp1Client, Connection) {
        let mut client = self.client().await;
        let mut connection = self.old.accept_from(&mut client, request).await;
        connection.write(response).await;
        (client, connection)
    }

    /// Waits until an exchange of partition 0 is shown, and returns its method, path and client.
    async fn shown(&self) -> [String; 3] {
        let table = self.router.state().table();
        let oldest = || table.lasting_of(P0).oldest;
        until(|| oldest().is_some(), "an exchange that lasts").await;
        let request = oldest().unwrap().request.expect("a request that is known");
        [request.method(), request.path(), request.client()].map(str::to_owned)
    }

    /// Returns when the drain of partition 0 ends what is in flight, in whole seconds from now.
    async fn drain_end(&self) -> [Option<u64>; 3] {
        let table = self.router.state().table();
        until(|| table.drain_end(P0).is_some(), "a drain").await;
        let DrainEnd { severs_streams, severs, gives_up } = table.drain_end(P0).unwrap();
        [severs_streams, severs, gives_up].map(|at| Some(at?.saturating_duration_since(Instant::now()).as_secs()))
    }

    fn stage(&self) -> GateStage {
        DataPlane::stage(&**self.router.state().table(), P0).0
    }

    fn handoff(&self, partition: PartitionId, phase: Phase) -> Op {
        let [old, new] = self.lives;
        let handoff = Handoff::new(partition, "new", new, Epoch::new(100)).taken_from("old", old);
        Op::Put { key: self.stored.keys.handoff(partition), value: encode(&handoff.entering(phase, 0)), lease: None }
    }

    /// Lets handoffs of these partitions be in `Ready`.
    async fn ready(&self, partitions: &[PartitionId]) {
        let then = partitions.iter().map(|partition| self.handoff(*partition, Phase::Ready)).collect();
        self.stored.write(then).await;
    }

    async fn has_drained(&self, partition: PartitionId) -> bool {
        self.stored.get(self.stored.keys.router_drained(partition, "r")).await.is_some()
    }

    /// Waits for the router's ack.
    async fn drained(&self, partition: PartitionId) {
        soon(async {
            while !self.has_drained(partition).await {
                sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    }

    /// Gives a partition that has drained to the new owner.
    async fn switch(&self, partition: PartitionId) {
        let owned = Assignment::new(partition, "new", self.lives[1], Epoch::new(100));
        let owned = Op::Put { key: self.stored.keys.assignment(partition), value: encode(&owned), lease: None };
        let then = vec![owned, self.handoff(partition, Phase::Switching)];
        self.stored.write(then).await;
    }
}

/// Streams end after a moment, everything else never; a planned move waits for nothing.
fn streams_end() -> DrainSettings {
    let streams = Duration::from_millis(500);
    DrainSettings { timeout: NEVER, streams, patience: Duration::ZERO, ..DrainSettings::default() }
}

/// Moves partition 0 while this stream of it is open, and a short request beside it waits for the move.
async fn moves_beside_a_stream(request: String, response: String) {
    let site = Site::new(streams_end()).await;
    let (mut stream, mut at_old) = site.begun(request, &response).await;
    stream.head().await;
    site.ready(&[P0]).await;
    until(|| !matches!(site.stage(), GateStage::Open(_)), "the stop").await;
    let mut client = site.client().await;
    client.write(POST).await;
    at_old.rest().await;
    drop(at_old);
    site.drained(P0).await;
    site.switch(P0).await;
    let mut connection = site.new.accept().await;
    connection.receive(POST).await;
    connection.write(OK).await;
    assert_eq!(client.answer().await.status, 200);
}

#[tokio::test]
async fn a_post_beside_a_websocket_waits_for_the_end_of_streams_alone() {
    let switched = format!("HTTP/1.1 101 Switching Protocols\r\n{UPGRADE}\r\n");
    moves_beside_a_stream(get_at(P0, UPGRADE), switched).await;
}

#[tokio::test]
async fn a_post_beside_an_event_stream_waits_for_the_end_of_streams_alone() {
    let begun = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n3\r\n:1\n\r\n";
    moves_beside_a_stream(GET.to_owned(), begun.to_owned()).await;
}

#[tokio::test]
async fn a_download_is_finished_while_streams_of_its_partition_are_severed() {
    let site = Site::new(streams_end()).await;
    let part = "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhel";
    let (mut download, mut from_old) = site.begun(GET, part).await;
    download.head().await;
    let switched = format!("HTTP/1.1 101 Switching Protocols\r\n{UPGRADE}\r\n");
    let (mut stream, mut at_old) = site.begun(get_at(P0, UPGRADE), switched).await;
    stream.head().await;
    site.ready(&[P0]).await;
    at_old.rest().await;
    drop(at_old);
    assert!(!site.has_drained(P0).await);
    from_old.write("lo").await;
    assert_eq!(download.exactly(5).await, b"hello");
    site.drained(P0).await;
}

#[tokio::test]
async fn requests_are_routed_while_a_long_download_is_finished_before_a_planned_move() {
    let site = Site::new(DrainSettings { timeout: NEVER, patience: NEVER, ..DrainSettings::default() }).await;
    let part = "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhel";
    let (mut download, mut from_old) = site.begun(GET, part).await;
    download.head().await;
    let table = site.router.state().table();
    let is_long = |since: Instant| since.elapsed() > Duration::from_millis(1_100);
    until(|| table.oldest_exchange(P0).is_some_and(is_long), "the download to be long").await;
    assert_eq!(table.lasting_of(P0).oldest.map(|oldest| oldest.since), table.oldest_exchange(P0), "it is shown");
    site.ready(&[P0, P1]).await;
    // The other partition of the same write has no long exchange.
    site.drained(P1).await;
    for _ in 0..2 {
        let (mut client, _connection) = site.begun(POST, OK).await;
        assert_eq!(client.answer().await.status, 200, "from the old owner");
    }
    assert!(!site.has_drained(P0).await);
    from_old.write("lo").await;
    assert_eq!(download.exactly(5).await, b"hello");
    site.drained(P0).await;
}

#[tokio::test]
async fn a_planned_move_does_not_wait_for_streams_before_it_stops() {
    let site = Site::new(DrainSettings { patience: NEVER, ..streams_end() }).await;
    let switched = format!("HTTP/1.1 101 Switching Protocols\r\n{UPGRADE}\r\n");
    let (mut stream, mut at_old) = site.begun(get_at(P0, UPGRADE), switched).await;
    stream.head().await;
    sleep(Duration::from_millis(1_500)).await;
    site.ready(&[P0]).await;
    at_old.rest().await;
    drop(at_old);
    site.drained(P0).await;
}

/// A request with a secret in its query, to partition 0.
fn asks(method: &str, fields: &str, body: &str) -> String {
    format!("{method} /feed/7?token=secret HTTP/1.1\r\nhost: h\r\nx-partition: 0\r\n{fields}\r\n{body}")
}

#[tokio::test]
async fn an_exchange_that_lasts_is_shown_with_its_request_whatever_it_waits_for() {
    let shown = |method: &str| [method, "/feed/7", "127.0.0.1"].map(str::to_owned);
    let switched = format!("HTTP/1.1 101 Switching Protocols\r\n{UPGRADE}\r\n");
    let sized = "content-length: 5\r\n";
    for (request, response) in [
        (asks("GET", "", ""), ""),
        (asks("GET", "", ""), "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhel"),
        (asks("GET", UPGRADE, ""), &*switched),
        // The response has ended, and the request has not.
        (asks("POST", sized, "hel"), OK),
    ] {
        let site = Site::new(streams_end()).await;
        let (_client, _connection) = site.begun(&request, response).await;
        assert_eq!(site.shown().await, shown(&request[..request.find(' ').unwrap()]), "{request} {response}");
    }
    let site = Site::new(streams_end()).await;
    let (client, _connection) = site.begun(asks("POST", sized, "hello"), "").await;
    drop(client);
    assert_eq!(site.shown().await, shown("POST"), "its client is gone");
}

#[tokio::test]
async fn a_drain_tells_when_it_ends_what_is_in_flight() {
    let drain =
        DrainSettings { timeout: Duration::from_secs(3000), streams: Duration::from_secs(2000), ..streams_end() };
    let site = Site::new(drain.clone()).await;
    assert_eq!(site.router.state().table().drain_end(P0), None, "nothing drains");
    let (_client, _connection) = site.begun(GET, "").await;
    site.ready(&[P0]).await;
    let is_near = |left: Option<u64>, seconds| left.is_some_and(|left| (seconds - 60..seconds).contains(&left));
    let [streams, all, gives_up] = site.drain_end().await;
    assert!(is_near(streams, 2000) && is_near(all, 3000), "{streams:?} {all:?}");
    assert_eq!(gives_up, None);

    let site = Site::new(DrainSettings { on_timeout: OnDrainTimeout::Cancel, ..drain }).await;
    let (_client, _connection) = site.begun(GET, "").await;
    site.ready(&[P0]).await;
    let [streams, all, gives_up] = site.drain_end().await;
    assert_eq!([streams, all], [None, None]);
    assert!(is_near(gives_up, 3000), "{gives_up:?}");
}
