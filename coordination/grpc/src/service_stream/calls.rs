//! The calls of `segue.v1.Pods` at a sidecar.

use std::sync::Arc;
use std::time::Duration;

use segue_coordination::pod::{PermanentFailure, PodHandle};
use segue_protocol::handoff::pod_reconcile::Callback;
use segue_protocol::handoff::remote_pod::{RemoteTask, TaskReport};
use segue_protocol::records::{CheckpointName, CheckpointNameError};
use tonic::{Request, Response, Status, Streaming};
use tracing::{Instrument as _, info, warn};

use super::StreamState;
use super::pending_calls::AckEffect;
use super::session::{Session, heartbeats_every};
use super::state::{Abilities, StreamRecord};
use crate::ack::reported;
use crate::event_stream::{EventStream, first_heartbeat, hello_in, no_hello};
use crate::hello::agree;
use crate::keyspaces::{NamedKeyspace, SharedKeyspaces};
use crate::open_streams::OpenStreams;
use crate::proto::pods_server::Pods;
use crate::proto::{
    Ack, AckKind, AckOutcome, AckRequest, AckResponse, Event, Heartbeat, Hello, LeaveRequest, LeaveResponse,
    PollRequest,
};
use crate::shared::check_count;

/// The pod of one keyspace.
pub(super) struct ServedPod {
    pub(super) shared: Arc<StreamState>,
    pub(super) handle: PodHandle,
}

pub(super) struct Calls {
    pub(super) pods: SharedKeyspaces<Arc<ServedPod>>,
    pub(super) streams: OpenStreams,
}

#[tonic::async_trait]
impl Pods for Calls {
    type RegisterStream = EventStream;

    async fn register(&self, request: Request<Streaming<Heartbeat>>) -> Result<Response<EventStream>, Status> {
        let mut heartbeats = request.into_inner();
        let first = first_heartbeat(&mut heartbeats).await?;
        let session = self.open(&first, hello_in(&first)?)?;
        let ((sender, events), span) = (EventStream::new(), session.shared.span.clone());
        self.streams.tasks.spawn(session.run(heartbeats, sender, self.streams.ending.clone()).instrument(span));
        Ok(Response::new(events))
    }

    async fn ack(&self, request: Request<AckRequest>) -> Result<Response<AckResponse>, Status> {
        let AckRequest { resume, acks } = request.into_inner();
        check_count(&acks)?;
        let pod = self.living(&resume)?;
        let acknowledged = || acks.iter().map(|ack| pod.acknowledge(ack).into()).collect();
        let outcomes = pod.shared.span.in_scope(acknowledged);
        Ok(Response::new(AckResponse { outcomes }))
    }

    async fn poll(&self, request: Request<PollRequest>) -> Result<Response<Event>, Status> {
        let PollRequest { heartbeat, after_revision, wait } = request.into_inner();
        let heartbeat = heartbeat.ok_or_else(no_hello)?;
        let session = self.open(&heartbeat, hello_in(&heartbeat)?)?;
        let wait = wait.and_then(|wait| Duration::try_from(wait).ok()).unwrap_or_default();
        let wait = wait.min(heartbeats_every(session.shared.term));
        let span = session.shared.span.clone();
        session
            .answer(&heartbeat, (after_revision, wait), &self.streams.ending)
            .instrument(span)
            .await
            .map(Response::new)
    }

    async fn leave(&self, request: Request<LeaveRequest>) -> Result<Response<LeaveResponse>, Status> {
        let LeaveRequest { resume, now } = request.into_inner();
        let pod = self.pod(|state| state.knows(&resume))?;
        if !now {
            self.living(&resume)?;
            pod.shared.span.in_scope(|| info!("service leaves; handing its partitions over"));
            pod.handle.set_draining();
            let is_living = || pod.shared.state.borrow().is_living(&resume);
            let mut changes = pod.shared.state.subscribe();
            tokio::select! {
                () = pod.handle.emptied() => {}
                () = self.streams.ending.cancelled() => return Err(Status::unavailable("this sidecar shuts down")),
                // `shared` holds the sender, so this cannot fail.
                () = async { while is_living() { let _ = changes.changed().await; } } => {}
            }
        }
        let left: Vec<u32> = pod.handle.status().borrow().owned.keys().map(|partition| partition.get()).collect();
        if !pod.shared.modify(|state| state.leave(&resume)) {
            return Err(over());
        }
        Ok(Response::new(LeaveResponse { empty: left.is_empty(), left }))
    }
}

impl Calls {
    /// Opens the stream of the service that sends this first heartbeat.
    fn open(&self, first: &Heartbeat, hello: &Hello) -> Result<Session, Status> {
        agree(hello)?;
        let pod = self.pods.choose(&hello.keyspace)?;
        pod.check(hello)?;
        let abilities = Abilities::of(&hello.capabilities);
        Session::open(&pod.shared, &pod.handle, first, (&hello.resume, abilities))
    }

    /// Returns the pod whose service's present life this token belongs to.
    fn living(&self, token: &[u8]) -> Result<Arc<ServedPod>, Status> {
        self.pod(|state| state.is_living(token))
    }

    fn pod(&self, is_it: impl Fn(&StreamRecord) -> bool) -> Result<Arc<ServedPod>, Status> {
        self.pods.all().into_iter().find(|pod| is_it(&pod.shared.state.borrow())).ok_or_else(over)
    }
}

impl NamedKeyspace for Arc<ServedPod> {
    fn name(&self) -> &str {
        &self.shared.settings.keyspace
    }
}

impl ServedPod {
    fn check(&self, hello: &Hello) -> Result<(), Status> {
        let settings = &self.shared.settings;
        if !hello.pod.is_empty() && hello.pod != settings.pod {
            return Err(Status::failed_precondition(format!(
                "this sidecar is of pod {:?}, the service of {:?}",
                settings.pod, hello.pod
            )));
        }
        if settings.needs_fence && !hello.capabilities.iter().any(|capability| capability == "fence") {
            return Err(Status::failed_precondition(
                "the service has to stop when its heartbeats are not confirmed, and to say so with the capability \
                 `fence`; otherwise set pod.exec, pod.hooks.lease or pod.work_ends_within",
            ));
        }
        Ok(())
    }

    fn acknowledge(&self, ack: &Ack) -> AckOutcome {
        let Some(report) = reported(ack) else { return AckOutcome::Stale };
        let is_final = ack.permanent && report.can_fail();
        let TaskReport { partition, handoff, callback, failure } = report;
        let has_failed = failure.is_some();
        if has_failed && !is_final {
            let (partition, handoff) = (partition.get(), handoff.get());
            warn!(partition, handoff, failure, "{} failed in the service; it stays due", callback.as_str());
        }
        let checkpoint = checkpoint_in(ack);
        let is_recorded = checkpoint.is_ok();
        let result = match failure {
            // A checkpoint without a usable name is none: the next one is due an interval later.
            None => Some(Ok(checkpoint.unwrap_or_default())),
            Some(failure) => is_final.then(|| Err(PermanentFailure::new(failure))),
        };
        let is_it = |task: &RemoteTask| {
            // A checkpoint has no handoff that tells it from the one before.
            let is_epoch = callback != Callback::Checkpoint || has_failed || task.epoch.get() == ack.epoch;
            (task.handoff, task.callback) == (handoff, callback) && is_epoch
        };
        match self.shared.modify(|state| state.acknowledge(partition, is_it, result)) {
            AckEffect::Ended { .. } | AckEffect::Known if is_recorded => AckOutcome::Accepted,
            _ => AckOutcome::Stale,
        }
    }
}

/// Returns the name of the checkpoint that an acknowledgement reports, if it reports one.
fn checkpoint_in(ack: &Ack) -> Result<Option<String>, CheckpointNameError> {
    if ack.kind() != AckKind::Checkpointed || ack.checkpoint.is_empty() {
        return Ok(None);
    }
    let name = CheckpointName::try_from(ack.checkpoint.as_slice());
    let name = name.inspect_err(|error| warn!(%error, "service's checkpoint is not recorded"))?;
    Ok(Some(name.as_str().to_owned()))
}

fn over() -> Status {
    Status::not_found("the registration is over; register again")
}
