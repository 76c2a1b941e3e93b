//! `segue conformance` against pods that each break one rule on purpose, and against correct ones.

use std::net::SocketAddr;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use segue_coordination::store::{EtcdStore, Store as _};
use segue_protocol::ids::{Epoch, Incarnation, PartitionId};
use segue_protocol::keys::Keyspace;
use segue_protocol::records::{Assignment, KeyspaceConfig, PodRecord, encode};
use segue_protocol::txn::{Op, Txn};
use segue_tests::cluster::TestCluster;
use segue_tests::examples::example;
use segue_tests::ports::free_address;
use segue_tests::process::Process;

use crate::site::service::{serve_routes, serve_text};
use crate::site::{SEGUE, store};

const P0: PartitionId = PartitionId::new(0);
const EPOCH: u64 = 42;

const RIGHT: &str = "the right partition and epoch";
const STALE: &str = "an epoch that is over";
const FUTURE: &str = "an epoch that has not begun";
const FOREIGN: &str = "a partition that the pod does not own";
const ELSEWHERE: &str = "another keyspace";
const UNSTAMPED: &str = "no stamps at all";
const NO_PARTITION: &str = "no partition";
const NO_EPOCH: &str = "no epoch";
const GARBAGE_EPOCH: &str = "an epoch that is no number";
const GARBAGE_PARTITION: &str = "a partition that is no number";
const TWO_EPOCHS: &str = "two epochs";
const AFTERWARDS: &str = "the right partition and epoch, after the refusals";
const REFUSALS: [&str; 10] = [
    STALE,
    FUTURE,
    FOREIGN,
    ELSEWHERE,
    UNSTAMPED,
    NO_PARTITION,
    NO_EPOCH,
    GARBAGE_EPOCH,
    GARBAGE_PARTITION,
    TWO_EPOCHS,
];

/// What is wrong with a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flaw {
    Nothing,
    ServesEverything,
    AcceptsOlderEpochs,
    AcceptsNewerEpochs,
    ServesEveryPartition,
    IgnoresTheKeyspace,
    TakesMissingStampsForItsOwn,
    TakesGarbageForItsOwn,
    ReadsTheFirstOfTwoEpochs,
    RefusesWithAnotherStatus,
    MarksRefusalsAsTheServicesOwn,
    RefusesEverything,
    StopsServingAfterARefusal,
    HangsInsteadOfRefusing,
}

/// A pod that owns partition 0 at epoch 42 of a keyspace.
struct Pod {
    flaw: Flaw,
    keyspace: String,
    has_refused: AtomicBool,
}

impl Pod {
    fn accepts(&self, headers: &HeaderMap) -> bool {
        let flaw = self.flaw;
        // `Ok(None)`: missing; an error: no single number.
        let number = |name: &str, own: u64| -> Result<Option<u64>, ()> {
            let mut values = headers.get_all(name).iter();
            let Some(first) = values.next() else { return Ok(None) };
            if values.next().is_some() && flaw != Flaw::ReadsTheFirstOfTwoEpochs {
                return Err(());
            }
            match first.to_str().unwrap().parse() {
                Err(_) if flaw == Flaw::TakesGarbageForItsOwn => Ok(Some(own)),
                number => number.map(Some).map_err(drop),
            }
        };
        let (Ok(partition), Ok(epoch)) = (number("segue-partition", 0), number("segue-epoch", EPOCH)) else {
            return flaw == Flaw::ServesEverything;
        };
        let is_right = |stamp: Option<u64>, own: u64| match stamp {
            None => flaw == Flaw::TakesMissingStampsForItsOwn,
            Some(stamp) => stamp == own,
        };
        let partition = is_right(partition, 0) || (flaw == Flaw::ServesEveryPartition && partition.is_some());
        let epoch = is_right(epoch, EPOCH)
            || (flaw == Flaw::AcceptsOlderEpochs && epoch.is_some_and(|epoch| epoch < EPOCH))
            || (flaw == Flaw::AcceptsNewerEpochs && epoch.is_some_and(|epoch| epoch > EPOCH));
        let keyspace = headers.get("segue-keyspace").is_none_or(|stamp| *stamp == *self.keyspace);
        let right = partition && epoch && (keyspace || flaw == Flaw::IgnoresTheKeyspace);
        match flaw {
            Flaw::ServesEverything => true,
            Flaw::RefusesEverything => false,
            Flaw::StopsServingAfterARefusal => right && !self.has_refused.load(SeqCst),
            _ => right,
        }
    }
}

async fn serve(State(pod): State<Arc<Pod>>, headers: HeaderMap) -> (StatusCode, [(&'static str, &'static str); 1]) {
    let misdirected = "segue-misdirected";
    if pod.accepts(&headers) {
        return (StatusCode::OK, [("x-served", "yes")]);
    }
    pod.has_refused.store(true, SeqCst);
    match pod.flaw {
        Flaw::RefusesWithAnotherStatus => (StatusCode::CONFLICT, [(misdirected, "1")]),
        Flaw::MarksRefusalsAsTheServicesOwn => (StatusCode::MISDIRECTED_REQUEST, [(misdirected, "0")]),
        Flaw::HangsInsteadOfRefusing => std::future::pending().await,
        _ => (StatusCode::MISDIRECTED_REQUEST, [(misdirected, "1")]),
    }
}

/// Starts a pod and registers it as the owner of partition 0, in a keyspace of its own.
async fn start(store: &EtcdStore, flaw: Flaw) -> (SocketAddr, String) {
    let keyspace = format!("{flaw:?}");
    let pod = Arc::new(Pod { flaw, keyspace: keyspace.clone(), has_refused: AtomicBool::new(false) });
    let address = serve_routes(axum::Router::new().fallback(serve).with_state(pod)).await;
    let keys = Keyspace::new("/segue/", &keyspace);
    let lease = store.grant(Duration::from_secs(300)).await.unwrap();
    let put = async |key: String, value: Vec<u8>, lease| {
        let then = vec![Op::Put { key, value, lease }];
        store.commit(Txn { then, ..Txn::default() }).await.unwrap().revision
    };
    let registered = put(keys.pod("w"), encode(&PodRecord::new("w", address.to_string())), Some(lease)).await;
    put(keys.config(), encode(&KeyspaceConfig::new(1)), None).await;
    let assignment = Assignment::new(P0, "w", Incarnation::registered_at(registered), Epoch::new(EPOCH));
    put(keys.assignment(P0), encode(&assignment), None).await;
    (address, keyspace)
}

fn conformance(cluster: &TestCluster, pod: SocketAddr, more: &[&str]) -> Output {
    let (url, etcd) = (format!("http://{pod}"), cluster.etcd().endpoint());
    crate::cli::segue().args(["conformance", "--pod", &url, "--etcd", &etcd]).args(more).output().unwrap()
}

/// The requests that a run of the program says the pod got wrong.
fn wrong(output: &Output) -> Vec<String> {
    let text = String::from_utf8_lossy(&output.stdout);
    let wrong = text.lines().filter_map(|line| line.strip_prefix("WRONG  ")?.split_once(": "));
    let wrong: Vec<String> = wrong.map(|(request, _)| request.to_owned()).collect();
    let last = format!("requests=12 wrong={}", wrong.len());
    assert!(text.trim_end().ends_with(&last), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(i32::from(!wrong.is_empty())), "{text}");
    wrong
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_flaw_of_a_pod_is_found_and_nothing_else_is() {
    let cluster = TestCluster::start(SEGUE);
    let store = store(cluster.etcd());
    let flaws: [(Flaw, &[&str]); 14] = [
        (Flaw::Nothing, &[]),
        (Flaw::ServesEverything, &REFUSALS),
        (Flaw::AcceptsOlderEpochs, &[STALE]),
        (Flaw::AcceptsNewerEpochs, &[FUTURE]),
        (Flaw::ServesEveryPartition, &[FOREIGN]),
        (Flaw::IgnoresTheKeyspace, &[ELSEWHERE]),
        (Flaw::TakesMissingStampsForItsOwn, &[UNSTAMPED, NO_PARTITION, NO_EPOCH]),
        (Flaw::TakesGarbageForItsOwn, &[GARBAGE_EPOCH, GARBAGE_PARTITION]),
        (Flaw::ReadsTheFirstOfTwoEpochs, &[TWO_EPOCHS]),
        (Flaw::RefusesWithAnotherStatus, &REFUSALS),
        (Flaw::MarksRefusalsAsTheServicesOwn, &REFUSALS),
        (Flaw::RefusesEverything, &[RIGHT, AFTERWARDS]),
        (Flaw::StopsServingAfterARefusal, &[AFTERWARDS]),
        (Flaw::HangsInsteadOfRefusing, &REFUSALS),
    ];
    let mut pods = Vec::new();
    for (flaw, expected) in flaws {
        pods.push((flaw, start(&store, flaw).await, expected));
    }
    tokio::task::block_in_place(|| {
        std::thread::scope(|scope| {
            for (flaw, (address, keyspace), expected) in &pods {
                let cluster = &cluster;
                scope.spawn(move || {
                    let output = conformance(cluster, *address, &["--keyspace", keyspace]);
                    assert_eq!(wrong(&output), *expected, "{flaw:?}");
                });
            }
        });
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_tested_is_said_with_its_reason() {
    let cluster = TestCluster::start(SEGUE);
    let store = store(cluster.etcd());
    let (address, keyspace) = start(&store, Flaw::Nothing).await;
    let keys = Keyspace::new("/segue/", &keyspace);
    let says = |pod: SocketAddr, code: i32, what: &str| {
        let output = tokio::task::block_in_place(|| conformance(&cluster, pod, &["--keyspace", &keyspace]));
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(code) && text.contains(what), "{text}");
    };
    let other = free_address();
    says(other, 1, &format!("no pod at {other} is registered; registered: w at {address}"));
    let gone = Op::Delete(segue_protocol::txn::Keys::One(keys.assignment(P0)));
    store.commit(Txn { then: vec![gone], ..Txn::default() }).await.unwrap();
    says(address, 1, "pod w owns no partition at rest");
    let output = crate::cli::segue().args(["conformance", "--pod", "https://a:1", "--etcd", "http://e:1"]).output();
    let text = String::from_utf8_lossy(&output.as_ref().unwrap().stderr).into_owned();
    assert!(output.unwrap().status.code() == Some(2) && text.contains("expected http://HOST:PORT"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sidecar_and_the_axum_example_conform() {
    let (cluster, upstream) = (TestCluster::start(SEGUE), serve_text("hello").await);
    let config = cluster.config().router("r-0", free_address()).coordinator("c-0", 4).quick();
    let _control = cluster.run("control", &config);
    let (sidecar, direct) = (free_address(), free_address());
    let _sidecar = cluster.run("sidecar", &cluster.config().pod("sidecar", sidecar, upstream).quick());
    tokio::task::block_in_place(|| {
        let mut command = Command::new(example("axum_pod"));
        command.args([&*cluster.etcd().endpoint(), "axum", &direct.to_string()]).arg(cluster.path());
        let _axum = Process::start("axum", cluster.path(), &mut command);
        cluster.settles(4, &["axum", "sidecar"]);
        for (name, address) in [("sidecar", sidecar), ("axum", direct)] {
            let output = conformance(&cluster, address, &["--name", name]);
            assert_eq!(wrong(&output), [""; 0], "{name}");
        }
    });
}
