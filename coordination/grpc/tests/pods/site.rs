//! A keyspace on a real etcd, or on a store in memory, with a coordinator and several instances of the service.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use segue_coordination::coordinator::{CoordinatorSettings, CoordinatorStatus, run_coordinator};
use segue_coordination::store::{EtcdOptions, EtcdStore, FaultyStore, MemoryStore, Store};
use segue_coordination::test_util::StoredKeyspace;
use segue_grpc::proto::AckOutcome;
use segue_grpc::{PodsKeyspace, PodsObserver, PodsServer, PodsSettings, PodsStatus, PodsTls, PodsToken};
use segue_protocol::handoff::pod_reconcile::Callback;
use segue_protocol::ids::PartitionId;
use segue_protocol::planning::Policy;
use segue_tests::etcd::Etcd;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

pub(crate) const PARTITIONS: u32 = 4;
/// Of the coordinator that leads, and so of the keyspace. The instances of the service have the usual one in their files.
pub(crate) const WARM_TIMEOUT: Duration = Duration::from_secs(240);

static ETCD: LazyLock<Etcd> = LazyLock::new(Etcd::start);

pub(crate) struct Site {
    pub(crate) name: String,
    stored: StoredKeyspace,
    /// The store, unless it is the etcd of all sites.
    memory: Option<MemoryStore>,
    pub(crate) instances: Vec<Instance>,
    pub(crate) counts: Arc<Counts>,
    _coordinator: DropGuard,
}

pub(crate) struct Instance {
    pub(crate) address: SocketAddr,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) status: PodsStatus,
    shutdown: CancellationToken,
    _guard: DropGuard,
}

/// What the instances of a site counted.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) stuck: AtomicI64,
    pub(crate) was_stuck: AtomicU32,
}

impl PodsObserver for Counts {
    fn stream_began(&self, _: bool) {}
    fn stream_ended(&self) {}
    fn polled(&self) {}
    fn acknowledged(&self, _: Callback, _: bool, _: AckOutcome) {}
    fn reader_stuck(&self, stuck: bool) {
        self.was_stuck.fetch_add(stuck.into(), Relaxed);
        self.stuck.fetch_add(if stuck { 1 } else { -1 }, Relaxed);
    }
}

fn store() -> Arc<dyn Store> {
    Arc::new(EtcdStore::connect(EtcdOptions::new([ETCD.endpoint()])).unwrap())
}

/// Returns a store with its own connection, as each process has.
fn store_of(memory: Option<&MemoryStore>) -> Arc<dyn Store> {
    memory.map_or_else(store, |memory| Arc::new(memory.clone()))
}

impl Deref for Site {
    type Target = StoredKeyspace;

    fn deref(&self) -> &StoredKeyspace {
        &self.stored
    }
}

impl Site {
    /// Starts a coordinator, and two instances of the service beside it.
    pub(crate) async fn start() -> Self {
        Self::start_with(Policy::default()).await
    }

    /// Starts a site whose times are short where `policy` leaves them to the test.
    pub(crate) async fn start_with(policy: Policy) -> Self {
        Self::start_on(None, policy).await
    }

    /// Starts a site on a store that the test can back up and restore.
    pub(crate) async fn start_in(memory: &MemoryStore) -> Self {
        Self::start_on(Some(memory.clone()), Policy::default()).await
    }

    async fn start_on(memory: Option<MemoryStore>, policy: Policy) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("site-{}", NEXT.fetch_add(1, Relaxed));
        let stored = StoredKeyspace::new(store_of(memory.as_ref()), &name);
        let settings = CoordinatorSettings {
            name: "c".to_owned(),
            lease_ttl: Duration::from_secs(5),
            policy: Policy {
                partitions: PARTITIONS,
                settle: Duration::from_millis(50),
                min_interval: Duration::from_millis(100),
                heartbeat: Duration::from_secs(1),
                warm_timeout: WARM_TIMEOUT,
                ..policy
            },
        };
        let (shutdown, (status, _)) = (CancellationToken::new(), watch::channel(CoordinatorStatus::default()));
        let ended = shutdown.clone();
        tokio::spawn(run_coordinator(stored.store.clone(), stored.keys.clone(), settings, Arc::new(()), status, ended));
        let (instances, counts) = (Vec::new(), Arc::default());
        let mut site = Site { name, stored, memory, instances, counts, _coordinator: shutdown.drop_guard() };
        for _ in 0..2 {
            site.instance(None).await;
        }
        site
    }

    /// Starts an instance of the service. Returns its address.
    pub(crate) async fn instance(&mut self, tls: Option<PodsTls>) -> SocketAddr {
        self.instance_as(tls, |server| server).await
    }

    /// Starts an instance whose callers have to present a token.
    pub(crate) async fn instance_with_token(&mut self, token: PodsToken) -> SocketAddr {
        self.instance_as(None, |server| server.with_token(token)).await
    }

    /// Starts an instance whose calls to the store the test decides about.
    pub(crate) async fn instance_on_faulty_store(&mut self) -> (SocketAddr, Arc<FaultyStore>) {
        let store = Arc::new(FaultyStore::new(store_of(self.memory.as_ref())));
        (self.instance_on(store.clone(), None, |server| server).await, store)
    }

    async fn instance_as(&mut self, tls: Option<PodsTls>, with: impl FnOnce(PodsServer) -> PodsServer) -> SocketAddr {
        self.instance_on(store_of(self.memory.as_ref()), tls, with).await
    }

    async fn instance_on(
        &mut self,
        store: Arc<dyn Store>,
        tls: Option<PodsTls>,
        with: impl FnOnce(PodsServer) -> PodsServer,
    ) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, shutdown) = (listener.local_addr().unwrap(), CancellationToken::new());
        let keyspace = self.keyspace(&store);
        let status = keyspace.status();
        let server = with(PodsServer::new([keyspace]));
        tokio::spawn(server.serve(listener, tls, shutdown.clone()));
        self.instances.push(Instance { address, store, status, _guard: shutdown.clone().drop_guard(), shutdown });
        address
    }

    fn keyspace(&self, store: &Arc<dyn Store>) -> PodsKeyspace {
        let settings = PodsSettings { keyspace: self.name.clone(), policy: Policy::default(), admin: None };
        PodsKeyspace::new(store.clone(), self.keys.clone(), settings, self.counts.clone())
    }

    /// Starts an instance for the keyspaces of several sites. It ends with the guard.
    pub(crate) async fn instance_of_all(sites: &[&Site]) -> (SocketAddr, DropGuard) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, shutdown, store) = (listener.local_addr().unwrap(), CancellationToken::new(), store());
        let server = PodsServer::new(sites.iter().map(|site| site.keyspace(&store)));
        tokio::spawn(server.serve(listener, None, shutdown.clone()));
        (address, shutdown.drop_guard())
    }

    pub(crate) fn address(&self, instance: usize) -> SocketAddr {
        self.instances[instance].address
    }

    /// Returns the owner of each partition with its epoch.
    pub(crate) async fn owners(&self) -> BTreeMap<u32, (String, u64)> {
        let view = self.view().await;
        let owner = |(partition, it): (&PartitionId, &segue_protocol::view::Versioned<_>)| {
            let it: &segue_protocol::records::Assignment = &it.value;
            (partition.get(), (it.owner.clone(), it.epoch.get()))
        };
        view.assignments.iter().map(owner).collect()
    }
}

impl Instance {
    pub(crate) fn end(&self) {
        self.shutdown.cancel();
    }
}
