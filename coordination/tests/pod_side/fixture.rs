//! A keyspace with a scripted coordinator, a service whose callbacks the test steers, and requests that the test answers.

use std::collections::HashMap;
use std::convert::Infallible;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Empty, Full};
use segue_coordination::pod::{
    HandlerError, HandoffContext, HandoffHandler, Owned, OwnedBody, PodHandle, PodSettings, PodState,
};
use segue_coordination::session::{Leases, count_by_tokio};
use segue_coordination::store::{Fault, FaultyStore, MemoryStore, Store, StoreCall};
use segue_coordination::test_util::StoredKeyspace;
use segue_protocol::handoff::advance::advance;
use segue_protocol::ids::{Epoch, HandoffId, Incarnation, PartitionId, Revision};
use segue_protocol::keys::Keyspace;
use segue_protocol::records::{Assignment, Handoff, Mode, Phase, PodAckKind, encode};
use segue_protocol::txn::{Compare, Keys, Op, Txn};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tower::{Layer as _, ServiceExt as _, service_fn};

pub(crate) const TTL: Duration = Duration::from_secs(15);
/// Longer than anything here takes; a paused clock passes it at once.
const TEST_TIMEOUT: Duration = Duration::from_secs(120);

/// The store, and the writes of the scripted coordinator.
#[derive(Clone)]
pub(crate) struct Fixture {
    stored: StoredKeyspace,
    /// The store as pods reach it.
    pub(crate) pods_store: Arc<dyn Store>,
}

impl Deref for Fixture {
    type Target = StoredKeyspace;

    fn deref(&self) -> &StoredKeyspace {
        &self.stored
    }
}

impl Fixture {
    pub(crate) fn new() -> (Fixture, MemoryStore) {
        count_by_tokio();
        let memory = MemoryStore::new();
        (Fixture::on(Arc::new(memory.clone())), memory)
    }

    pub(crate) fn on(store: Arc<dyn Store>) -> Fixture {
        Fixture { pods_store: store.clone(), stored: StoredKeyspace::new(store, "default") }
    }

    /// Returns another keyspace in the same store.
    pub(crate) fn in_keyspace(&self, name: &str) -> Fixture {
        Fixture { stored: StoredKeyspace::new(self.store.clone(), name), ..self.clone() }
    }

    /// Returns a keyspace where the test decides about what pods ask of the store.
    pub(crate) fn with_faults() -> (Fixture, Arc<FaultyStore>) {
        let (fixture, memory) = Fixture::new();
        let faulty = Arc::new(FaultyStore::new(Arc::new(memory)));
        (Fixture { pods_store: faulty.clone(), ..fixture }, faulty)
    }

    pub(crate) async fn commit(&self, when: Vec<Compare>, then: Vec<Op>) -> Revision {
        self.stored.commit(Txn::guarded(when, then)).await
    }

    pub(crate) async fn handoff(&self, partition: PartitionId) -> Option<Handoff> {
        self.view().await.handoffs.get(&partition).map(|record| record.value.clone())
    }

    pub(crate) async fn has_said(
        &self,
        partition: PartitionId,
        pod: &str,
        kind: PodAckKind,
        handoff: HandoffId,
    ) -> bool {
        self.view().await.pod_ack(partition, pod, kind, handoff).is_some()
    }

    /// Creates a handoff and returns its identity.
    pub(crate) async fn begin(
        &self,
        partition: PartitionId,
        from: Option<&Pod>,
        to: &Pod,
        epoch: impl Into<Epoch>,
    ) -> HandoffId {
        self.begin_in(Mode::Barrier, partition, from, to, epoch).await
    }

    pub(crate) async fn begin_in(
        &self,
        mode: Mode,
        partition: PartitionId,
        from: Option<&Pod>,
        to: &Pod,
        epoch: impl Into<Epoch>,
    ) -> HandoffId {
        let record = Handoff {
            old_owner: from.map(|pod| pod.name.clone()),
            old_incarnation: from.map_or(Incarnation::NONE, Pod::incarnation),
            mode,
            reason: "the test wants it".to_owned(),
            ..Handoff::new(partition, to.name.clone(), to.incarnation(), epoch.into())
        };
        let key = self.keys.handoff(partition);
        let create = Op::put(key.clone(), encode(&record));
        HandoffId::created_at(self.commit(vec![Compare::created_at(key, Revision::ZERO)], vec![create]).await)
    }

    pub(crate) async fn in_phase(&self, partition: PartitionId, phase: Phase) {
        self.until(phase.as_str(), |view| view.handoffs.get(&partition).is_some_and(|it| it.value.phase == phase))
            .await;
    }

    /// Waits until a handoff waits for nobody, and ends it, as a coordinator does.
    pub(crate) async fn end(&self, partition: PartitionId) {
        let ends = |view: &segue_protocol::view::View| advance(view, partition, 0).filter(|next| next.to.is_none());
        let view = self.until("released", |view| ends(view).is_some()).await;
        self.stored.commit(ends(&view).unwrap().txn).await;
    }

    /// Returns once the partition is assigned and its first placement over.
    pub(crate) async fn assigned(&self, partition: PartitionId) {
        let is_over = |view: &segue_protocol::view::View| {
            view.assignments.contains_key(&partition) && !view.handoffs.contains_key(&partition)
        };
        self.until("assigned", is_over).await;
    }

    fn moved(&self, record: Handoff, phase: Phase) -> Op {
        let key = self.keys.handoff(record.partition);
        Op::put(key, encode(&Handoff { phase, ..record }))
    }

    pub(crate) async fn move_to(&self, partition: PartitionId, phase: Phase) {
        let record = self.handoff(partition).await.unwrap();
        self.commit(vec![], vec![self.moved(record, phase)]).await;
    }

    /// Moves a handoff to this phase and flips the assignment with it.
    pub(crate) async fn flip(&self, partition: PartitionId, phase: Phase) {
        let record = self.handoff(partition).await.unwrap();
        let (owner, incarnation, epoch) = (record.new_owner.clone(), record.new_incarnation, record.epoch);
        let assign = self.assignment(partition, &owner, incarnation, epoch);
        self.commit(vec![], vec![self.moved(record, phase), assign]).await;
    }

    pub(crate) fn assignment(
        &self,
        partition: PartitionId,
        owner: &str,
        incarnation: Incarnation,
        epoch: impl Into<Epoch>,
    ) -> Op {
        let value = Assignment::new(partition, owner, incarnation, epoch.into());
        Op::put(self.keys.assignment(partition), encode(&value))
    }

    /// Deletes a handoff with its acks, because it is cancelled or complete.
    pub(crate) async fn delete(&self, partition: PartitionId) {
        let acks = self.keys.acks_of(partition).map(|prefix| Op::Delete(Keys::Prefix(prefix)));
        let record = Op::Delete(Keys::One(self.keys.handoff(partition)));
        self.commit(vec![], acks.into_iter().chain([record]).collect()).await;
    }

    /// Has a pod own a partition, by a first placement.
    pub(crate) async fn place(&self, partition: PartitionId, on: &Pod, epoch: impl Into<Epoch>) {
        let epoch = epoch.into();
        self.begin(partition, None, on, epoch).await;
        on.until("the partition is served", |state| state.owned.get(&partition) == Some(&epoch)).await;
    }
}

/// Fails as many of the next writes, which take effect all the same or not.
pub(crate) fn fail_writes(store: &FaultyStore, times: usize, carried_out: bool) {
    let verdict = move || if carried_out { Fault::LoseAnswer } else { Fault::Fail };
    store.next(times, |call| matches!(call, StoreCall::Commit(_)), verdict);
}

/// A running pod with its service.
pub(crate) struct Pod {
    name: String,
    pub(crate) handle: PodHandle,
    pub(crate) service: Arc<Service>,
    pub(crate) calls: mpsc::UnboundedReceiver<Call>,
    arrivals: mpsc::UnboundedSender<Arrival>,
    /// The requests that reached the service.
    pub(crate) arrived: mpsc::UnboundedReceiver<Arrival>,
}

pub(crate) type Answer = Response<BoxBody<Bytes, HandlerError>>;
pub(crate) type Received = Response<Pin<Box<OwnedBody<BoxBody<Bytes, HandlerError>>>>>;

/// A request that the service works on until the test answers it.
pub(crate) struct Arrival {
    pub(crate) owned: Owned,
    pub(crate) answer: oneshot::Sender<Answer>,
}

impl Pod {
    /// Starts a pod without waiting for its registration.
    pub(crate) fn launch(fixture: &Fixture, settings: PodSettings) -> Pod {
        Pod::launch_as(fixture, settings, PodHandle::start)
    }

    fn launch_as(
        fixture: &Fixture,
        settings: PodSettings,
        start: impl FnOnce(Arc<dyn Store>, &str, Keyspace, PodSettings, Arc<dyn HandoffHandler>) -> PodHandle,
    ) -> Pod {
        let (service, calls) = Service::new(&settings.name);
        let (name, store) = (settings.name.clone(), fixture.pods_store.clone());
        let handle = start(store, fixture.keys.name(), fixture.keys.clone(), settings, service.clone());
        let (arrivals, arrived) = mpsc::unbounded_channel();
        Pod { name, handle, service, calls, arrivals, arrived }
    }

    /// Starts a pod that vouches for this service.
    pub(crate) async fn start_behind(
        fixture: &Fixture,
        settings: PodSettings,
        behind: Arc<dyn segue_coordination::pod::Service>,
    ) -> Pod {
        let pod = Pod::launch_as(fixture, settings, |store, keyspace, keys, settings, handler| {
            PodHandle::start_before(store, keyspace, keys, settings, handler, behind)
        });
        pod.until("it is ready", |state| state.not_ready.is_none()).await;
        pod
    }

    /// Starts a pod that shares its lease.
    pub(crate) async fn start_sharing(fixture: &Fixture, leases: &Leases, settings: PodSettings) -> Pod {
        let pod = Pod::launch_as(fixture, settings, |_, keyspace, keys, settings, handler| {
            PodHandle::start(leases.clone(), keyspace, keys, settings, handler)
        });
        pod.until("it is ready", |state| state.not_ready.is_none()).await;
        pod
    }

    pub(crate) async fn start_with(fixture: &Fixture, settings: PodSettings) -> Pod {
        let pod = Pod::launch(fixture, settings);
        pod.until("it is ready", |state| state.not_ready.is_none()).await;
        pod
    }

    pub(crate) async fn start(fixture: &Fixture, name: &str) -> Pod {
        Pod::start_with(fixture, PodSettings { lease_ttl: TTL, ..PodSettings::new(name, "127.0.0.1:1") }).await
    }

    pub(crate) fn state(&self) -> PodState {
        self.handle.status().borrow().clone()
    }

    pub(crate) fn incarnation(&self) -> Incarnation {
        self.state().incarnation
    }

    pub(crate) async fn until(&self, what: &str, shows: impl Fn(&PodState) -> bool) -> PodState {
        let mut status = self.handle.status();
        let seen = timeout(TEST_TIMEOUT, status.wait_for(|state| shows(state))).await;
        seen.unwrap_or_else(|_| panic!("never came true: {what}")).unwrap().clone()
    }

    /// Waits for the next callback to begin or end.
    pub(crate) async fn call(&mut self) -> Call {
        timeout(TEST_TIMEOUT, self.calls.recv()).await.expect("no callback").unwrap()
    }

    /// Sends a request as a router would.
    pub(crate) fn send(&self, partition: PartitionId, epoch: impl Into<Epoch>) -> JoinHandle<Received> {
        let request = Request::post("/")
            .header("segue-partition", partition.get())
            .header("segue-epoch", epoch.into().get())
            .header("segue-router", "router-0")
            .header("segue-keyspace", "default");
        self.send_request(request.body(Empty::new()).unwrap())
    }

    pub(crate) fn send_request(&self, request: Request<Empty<Bytes>>) -> JoinHandle<Received> {
        let arrivals = self.arrivals.clone();
        let inner = service_fn(move |request: Request<Empty<Bytes>>| {
            let arrivals = arrivals.clone();
            async move {
                let (answer, answered) = oneshot::channel();
                let owned = request.extensions().get::<Owned>().unwrap().clone();
                arrivals.send(Arrival { owned, answer }).unwrap();
                Ok::<_, Infallible>(answered.await.unwrap())
            }
        });
        let service = self.handle.layer().layer(inner);
        tokio::spawn(async move { service.oneshot(request).await.unwrap().map(Box::pin) })
    }

    /// Returns the status of a request that the service answers at once if it gets it.
    pub(crate) async fn status_of(&mut self, partition: PartitionId, epoch: impl Into<Epoch>) -> u16 {
        let mut sent = self.send(partition, epoch);
        loop {
            tokio::select! {
                biased;
                response = &mut sent => return response.unwrap().status().as_u16(),
                Some(arrival) = self.arrived.recv() => arrival.answer.send(whole("done")).unwrap(),
            }
        }
    }

    pub(crate) async fn arrival(&mut self) -> Arrival {
        timeout(TEST_TIMEOUT, self.arrived.recv()).await.expect("no request came through").unwrap()
    }
}

pub(crate) fn whole(text: &'static str) -> Answer {
    Response::new(Full::new(Bytes::from(text)).map_err(|never| match never {}).boxed())
}

/// An event in the life of a callback.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Call {
    Began(&'static str, HandoffContext),
    Ended(&'static str, HandoffContext),
    /// Dropped before it ended.
    Dropped(&'static str, HandoffContext),
}

/// How a callback goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Conduct {
    Succeed,
    Fail,
    Panic,
    /// Goes on until the test sets another conduct.
    Last,
}

/// A service whose callbacks go as the test wants.
pub(crate) struct Service {
    calls: mpsc::UnboundedSender<Call>,
    conduct: Mutex<HashMap<&'static str, watch::Sender<Conduct>>>,
    /// The name of the next checkpoint; `None` if there is nothing new.
    checkpoint: Mutex<Option<String>>,
    checkpoints: AtomicU32,
    /// What each call was about, `leaving` included. [`Call`]s leave out the pods and the number of partitions.
    contexts: Mutex<Vec<(&'static str, HandoffContext)>>,
}

impl Service {
    fn new(pod: &str) -> (Arc<Service>, mpsc::UnboundedReceiver<Call>) {
        let (calls, receiver) = mpsc::unbounded_channel();
        let checkpoint = Mutex::new(Some(format!("{pod}/#")));
        let (conduct, contexts) = (Mutex::default(), Mutex::default());
        (Arc::new(Service { calls, conduct, checkpoint, checkpoints: AtomicU32::new(0), contexts }), receiver)
    }

    /// Sets the name of each further checkpoint. `None`: there is nothing new.
    pub(crate) fn name_checkpoints(&self, name: Option<&str>) {
        *self.checkpoint.lock().unwrap() = name.map(str::to_owned);
    }

    fn conduct(&self, name: &'static str) -> watch::Sender<Conduct> {
        let mut conduct = self.conduct.lock().unwrap();
        conduct.entry(name).or_insert_with(|| watch::Sender::new(Conduct::Succeed)).clone()
    }

    /// Sets how this callback goes from now on, also for one that lasts.
    pub(crate) fn let_it(&self, name: &'static str, conduct: Conduct) {
        self.conduct(name).send_replace(conduct);
    }

    /// Returns what the calls of this callback were about.
    pub(crate) fn contexts(&self, name: &str) -> Vec<HandoffContext> {
        let contexts = self.contexts.lock().unwrap();
        contexts.iter().filter(|(called, _)| *called == name).map(|(_, context)| context.clone()).collect()
    }

    async fn run(&self, name: &'static str, part: &HandoffContext) -> Result<(), HandlerError> {
        self.contexts.lock().unwrap().push((name, part.clone()));
        let part = &HandoffContext { partitions: 4, from: None, to: None, ..part.clone() };
        let mut told = Told { calls: self.calls.clone(), last: Some(Call::Dropped(name, part.clone())) };
        self.calls.send(Call::Began(name, part.clone()))?;
        let mut conduct = self.conduct(name).subscribe();
        let conduct = *conduct.wait_for(|conduct| *conduct != Conduct::Last).await?;
        told.last = None;
        match conduct {
            Conduct::Fail => Err("the test wants it".into()),
            Conduct::Panic => panic!("the test wants it"),
            _ => {
                self.calls.send(Call::Ended(name, part.clone()))?;
                Ok(())
            }
        }
    }
}

struct Told {
    calls: mpsc::UnboundedSender<Call>,
    last: Option<Call>,
}

impl Drop for Told {
    fn drop(&mut self) {
        if let Some(last) = self.last.take() {
            let _ = self.calls.send(last);
        }
    }
}

#[async_trait]
impl HandoffHandler for Service {
    async fn warm(&self, part: &HandoffContext) -> Result<(), HandlerError> {
        self.run("warm", part).await
    }

    async fn sync(&self, part: &HandoffContext) -> Result<(), HandlerError> {
        self.run("sync", part).await
    }

    async fn leaving(&self, part: &HandoffContext) -> Result<(), HandlerError> {
        self.contexts.lock().unwrap().push(("leaving", part.clone()));
        let mut conduct = self.conduct("leaving").subscribe();
        match *conduct.wait_for(|conduct| *conduct != Conduct::Last).await? {
            Conduct::Fail => Err("the test wants it".into()),
            _ => Ok(()),
        }
    }

    async fn drain(&self, part: &HandoffContext) -> Result<(), HandlerError> {
        self.run("drain", part).await
    }

    async fn release(&self, part: &HandoffContext) -> Result<(), HandlerError> {
        self.run("release", part).await
    }

    async fn checkpoint(&self, part: &HandoffContext) -> Result<Option<String>, HandlerError> {
        self.run("checkpoint", part).await?;
        let number = self.checkpoints.fetch_add(1, SeqCst) + 1;
        let named = self.checkpoint.lock().unwrap().clone();
        Ok(named.map(|name| name.replace('#', &format!("{}#{number}", part.partition))))
    }
}
