//! One service in two keyspaces behind a sidecar: what ends its work ends it in both, and what it does by its stream of
//! one keyspace leaves the other alone. Sidecars are real processes; services of the first tests too, and they log each
//! write.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use segue_grpc::proto::pods_client::PodsClient;
use segue_grpc::proto::task::Kind;
use segue_grpc::proto::{Ack, AckKind, AckOutcome, AckRequest, Heartbeat, Hello, LeaveRequest, Task};
use segue_protocol::keys::Keyspace;
use segue_tests::config::Config;
use segue_tests::http::is_ready;
use segue_tests::ports::free_address;
use segue_tests::process::until;
use serde_json::Value;
use tokio::sync::{mpsc, watch};
use tokio::time::interval;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;

use crate::service::{self, Write};
use crate::site::service::{Owned, serve};
use crate::site::supervised::{self, By, Pod};
use crate::site::{Site, ask, delete_by_hand, json};

const KEYSPACES: [&str; 2] = ["persons", "orders"];
/// A router and a coordinator of both keyspaces, each of one partition.
struct World {
    site: Site,
    /// Where coordinators answer pods.
    pods: SocketAddr,
}

impl World {
    fn start() -> Self {
        let pods = free_address();
        let listen = |_, config: Config| config.set("coordinator.listen", pods.to_string());
        World { site: Site::with_keyspaces(&KEYSPACES, 1, listen), pods }
    }

    fn config(&self) -> Config {
        KEYSPACES.iter().fold(self.site.config(), |config, name| config.keyspace(name, ""))
    }

    fn pod(&self, name: &str, by: By) -> Pod {
        let kind = if by == By::Lease { "lent" } else { "plain" };
        supervised::pod(&self.site, self.config().lease("pod", "6s"), name, by, kind)
    }

    fn writes(&self, keyspace: &str) -> Vec<Write> {
        let writes = service::writes(&supervised::log(&self.site));
        writes.into_iter().filter(|write| write.keyspace == keyspace).collect()
    }

    fn served_by(&self, keyspace: &str, pod: &str) {
        self.site.served_by(pod, &format!("/{keyspace}/"));
    }

    /// Starts `a`, which works for a minute in both keyspaces, and `b`, which would get the partitions.
    fn working(&self, by: By) -> (Pod, Pod) {
        let a = self.pod("a", by);
        KEYSPACES.iter().for_each(|keyspace| self.served_by(keyspace, "a"));
        let b = self.pod("b", by);
        until("registration of b", || is_ready(b.admin));
        for keyspace in KEYSPACES {
            let router = self.site.router;
            // Nobody waits for the answer.
            let _: JoinHandle<_> = std::thread::spawn(move || ask(router, &format!("/{keyspace}/work?60000")));
            until("write", || !self.writes(keyspace).is_empty());
        }
        (a, b)
    }

    /// Waits until a later owner has written in each keyspace. Asserts that none wrote after a later one had begun to.
    fn has_one_writer_after(&self, earlier: [u64; 2]) {
        for (keyspace, earlier) in KEYSPACES.into_iter().zip(earlier) {
            until(&format!("work of a later owner in {keyspace}"), || {
                self.site.ask(&format!("/{keyspace}/work?300")).is_some_and(|(status, _)| status == 200)
                    && self.writes(keyspace).last().is_some_and(|write| write.epoch > earlier)
            });
        }
        for keyspace in KEYSPACES {
            let writes = self.writes(keyspace);
            let order: Vec<_> = writes.iter().map(|write| (write.epoch, write.name.as_str(), write.pid)).collect();
            assert!(order.is_sorted_by_key(|(epoch, ..)| epoch), "{keyspace}: an earlier owner writes on: {order:?}");
        }
    }

    fn epochs(&self) -> [u64; 2] {
        KEYSPACES.map(|keyspace| self.writes(keyspace)[0].epoch)
    }
}

#[test]
fn a_service_writes_in_no_keyspace_beside_the_next_owner_when_its_sidecar_is_killed() {
    for by in [By::Exec, By::Lease] {
        let world = World::start();
        let (a, _b) = world.working(by);
        let epochs = world.epochs();
        a.sidecar.kill();
        world.has_one_writer_after(epochs);
    }
}

#[test]
fn a_service_writes_in_no_keyspace_beside_the_next_owner_when_its_pod_loses_one_registration() {
    for by in [By::Exec, By::Lease] {
        let world = World::start();
        let (a, _b) = world.working(by);
        let (epochs, worker) = (world.epochs(), world.writes("persons")[0].pid);
        let lives = || KEYSPACES.map(|keyspace| registered(world.site.admin, keyspace).remove("a"));
        until("registrations of a", || lives().iter().all(Option::is_some));
        let earlier = lives();
        delete_by_hand(world.site.etcd(), Keyspace::new("/segue/", "orders").pod("a"));
        world.has_one_writer_after(epochs);
        if by == By::Exec {
            assert!(!service::is_alive(worker), "{}", a.sidecar.output());
        }
        until("another life of a in both keyspaces", || {
            lives().iter().zip(&earlier).all(|(life, earlier)| life.is_some() && life != earlier)
        });
    }
}

/// Returns the incarnations of the pods that are registered.
fn registered(admin: SocketAddr, keyspace: &str) -> BTreeMap<String, u64> {
    let status = json(admin, &format!("/status?keyspace={keyspace}"));
    let pods = status["keyspace"]["pods"].as_array().cloned().unwrap_or_default();
    let registration = |pod: &Value| (pod["name"].as_str().unwrap().to_owned(), pod["incarnation"].as_u64().unwrap());
    pods.iter().map(registration).collect()
}

/// A service in this process that opens a stream for each keyspace.
#[derive(Default)]
struct Streaming {
    warmed: Mutex<BTreeSet<Owned>>,
    /// The requests that it was given without having been told to warm.
    wrong: Mutex<Vec<Owned>>,
}

impl Streaming {
    /// Starts to answer requests. Returns where.
    async fn start(self: Arc<Self>) -> SocketAddr {
        serve(move |call| {
            let owned = call.stamps();
            let answer = format!("a {}", owned.2);
            if !self.warmed.lock().unwrap().contains(&owned) {
                self.wrong.lock().unwrap().push(owned);
            }
            async move { (200, answer) }
        })
        .await
    }

    /// Opens a stream and serves it until it ends.
    async fn take_part(self: Arc<Self>, at: SocketAddr, keyspace: &'static str, token: watch::Sender<Vec<u8>>) {
        let hello = Hello {
            protocol_min: 1,
            protocol_max: 1,
            keyspace: keyspace.to_owned(),
            pod: "a".to_owned(),
            // A sidecar has its own.
            address: "127.0.0.1:1".to_owned(),
            capabilities: ["sync", "drained", "released", "fence"].map(str::to_owned).to_vec(),
            ..Hello::default()
        };
        let (mut client, beats, mut events) = loop {
            if let Ok(mut client) = PodsClient::connect(format!("http://{at}")).await {
                let (beats, received) = mpsc::channel(16);
                beats.send(Heartbeat { seq: 1, hello: Some(hello.clone()), ..Heartbeat::default() }).await.unwrap();
                match client.register(ReceiverStream::new(received)).await {
                    Ok(events) => break (client, beats, events.into_inner()),
                    Err(status) => assert_eq!(status.code(), Code::Unavailable, "{status}"),
                }
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        let (mut ticks, mut seq, mut seen) = (interval(Duration::from_millis(500)), 1, 0);
        loop {
            tokio::select! {
                _ = ticks.tick() => {
                    seq += 1;
                    let _ = beats.try_send(Heartbeat { seq, seen, ..Heartbeat::default() });
                }
                event = events.message() => {
                    let Ok(Some(event)) = event else { return };
                    seen = event.seq;
                    if let Some(welcome) = event.welcome {
                        token.send_replace(welcome.resume);
                    }
                    let acks: Vec<_> = event.tasks.iter().filter_map(|task| self.run(keyspace, task)).collect();
                    let request = AckRequest { resume: token.borrow().clone(), acks };
                    if !request.acks.is_empty() {
                        // A sidecar has each task that it tells. A coordinator's view may be behind.
                        while client.ack(request.clone()).await.unwrap().into_inner().outcomes
                            .contains(&AckOutcome::Again.into()) {}
                    }
                }
            }
        }
    }

    fn run(&self, keyspace: &str, task: &Task) -> Option<Ack> {
        let kind = match task.kind.as_ref().unwrap() {
            Kind::Warm(_) => {
                let owned = (keyspace.to_owned(), task.id.unwrap().partition.into(), task.epoch);
                self.warmed.lock().unwrap().insert(owned);
                AckKind::Ready
            }
            Kind::Sync(_) => AckKind::Synced,
            Kind::Drain(_) => AckKind::Drained,
            Kind::Release(_) => AckKind::Released,
            Kind::Checkpoint(_) => AckKind::Checkpointed,
            Kind::Leaving(_) => return None,
        };
        Some(Ack { id: task.id, kind: kind.into(), epoch: task.epoch, ..Ack::default() })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_that_leaves_by_its_stream_of_one_keyspace_goes_on_in_the_other() {
    let (world, service) = (tokio::task::block_in_place(World::start), Arc::<Streaming>::default());
    let (upstream, stream) = (service.clone().start().await, free_address());
    let config = world.config().pod("a", free_address(), upstream).set("pod.stream", stream.to_string()).quick();
    let _a = world.site.run("a", &config.admin(free_address()));
    let tokens = KEYSPACES.map(|keyspace| {
        let (token, told) = watch::channel(Vec::new());
        tokio::spawn(service.clone().take_part(stream, keyspace, token));
        told
    });
    let leave = async |number: usize, now: bool| {
        let mut client = PodsClient::connect(format!("http://{stream}")).await.unwrap();
        let resume = tokens[number].borrow().clone();
        client.leave(LeaveRequest { resume, now }).await.unwrap().into_inner()
    };
    let (_b, first) = tokio::task::block_in_place(|| {
        KEYSPACES.iter().for_each(|keyspace| world.served_by(keyspace, "a "));
        let b = world.pod("b", By::Exec);
        until("registration of b", || is_ready(b.admin));
        (b, world.site.ask("/persons/").unwrap())
    });
    assert!(leave(1, false).await.empty);
    tokio::task::block_in_place(|| {
        world.served_by("orders", "b");
        assert_eq!(world.site.ask("/persons/").unwrap(), first, "the same owner at the same epoch");
        assert!(registered(world.site.admin, "persons").keys().eq(["a", "b"]));
    });
    assert_eq!(leave(0, true).await.left, [0]);
    tokio::task::block_in_place(|| {
        world.served_by("persons", "b");
        until("the end of a's registration", || registered(world.site.admin, "persons").len() == 1);
    });
    assert_eq!(*service.wrong.lock().unwrap(), []);
    tokio::task::block_in_place(|| {
        for what in ["service takes part", "service leaves", "service takes no part by its stream"] {
            until(&format!("{what} in orders"), || names_keyspace(&world.site.output("a"), what, "orders"));
        }
    });
}

/// Returns whether the log has a line of this keyspace that says so.
fn names_keyspace(log: &str, what: &str, keyspace: &str) -> bool {
    let span = format!("keyspace{{name=\"{keyspace}\"}}");
    log.lines().any(|line| line.contains(what) && line.contains(&span))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_coordinator_logs_the_keyspace_of_a_pod_by_grpc() {
    let (world, service) = (tokio::task::block_in_place(World::start), Arc::<Streaming>::default());
    for keyspace in KEYSPACES {
        tokio::spawn(service.clone().take_part(world.pods, keyspace, watch::Sender::default()));
    }
    tokio::task::block_in_place(|| {
        for keyspace in KEYSPACES {
            let is_told = || names_keyspace(&world.site.output("control"), "pod registered", keyspace);
            until(&format!("the registration in {keyspace}"), is_told);
        }
    });
}
