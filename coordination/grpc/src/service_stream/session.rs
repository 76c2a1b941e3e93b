//! The loop of a service's stream: it confirms heartbeats, and tells the service what it serves and what is due.
//!
//! # Invariants
//!
//! * An event is made when there is room for it, from the newest state: a slow service skips intermediate states.
//! * A service is told a task after the refusal that it requires, never before.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use segue_coordination::pod::{PodAddress, PodHandle, PodState};
use segue_coordination::session::lease_now;
use segue_protocol::handoff::pod_reconcile::Callback;
use segue_protocol::handoff::remote_pod::RemoteTask;
use segue_protocol::ids::{Epoch, Incarnation, PartitionId};
use segue_protocol::lease::keepalive_interval;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::{Status, Streaming};
use tracing::{debug, info, warn};

use super::StreamState;
use super::pending_calls::DueCall;
use super::state::{Abilities, StreamRecord};
use crate::event_stream::{EventFlow, Events, WINDOW, fail, span};
use crate::hello::PROTOCOL;
use crate::hub::micros;
use crate::proto::task::Kind;
use crate::proto::{
    Assignment, Checkpoint, Drain, Event, Heartbeat, Leaving, Owned, Release, Sync, Task, TaskId, Warm, Welcome,
};
use crate::status::{ReportedLoad, StreamStatus};

/// A service's stream.
pub(super) struct Session {
    pub(super) shared: Arc<StreamState>,
    pub(super) pod: watch::Receiver<PodState>,
    /// The number of the stream.
    stream: u64,
    token: Vec<u8>,
    abilities: Abilities,
    pub(super) resumed: bool,
    is_welcome: bool,
    /// The stream is a Poll.
    pub(super) polls: bool,
    flow: EventFlow,
    /// When the newest heartbeat came.
    heard: Instant,
    owned: BTreeMap<PartitionId, Epoch>,
    due: BTreeMap<PartitionId, DueCall>,
    load: Option<ReportedLoad>,
}

impl Session {
    /// Opens the stream of a service that presents this token, and which began with this heartbeat.
    pub(super) fn open(
        shared: &Arc<StreamState>,
        pod: &PodHandle,
        first: &Heartbeat,
        (token, abilities): (&[u8], Abilities),
    ) -> Result<Self, Status> {
        let taken = || Status::already_exists("another process has a stream at this sidecar; retry once it is closed");
        let load = ReportedLoad::in_heartbeat(first)?;
        let (stream, resumed) = shared.modify(|state| state.open(token, lease_now())).ok_or_else(taken)?;
        let token = if resumed { token.to_owned() } else { rand::random::<[u8; 16]>().to_vec() };
        Ok(Session {
            shared: shared.clone(),
            pod: pod.status(),
            stream,
            token,
            abilities,
            resumed,
            is_welcome: false,
            polls: false,
            flow: EventFlow::new(first),
            heard: lease_now(),
            owned: BTreeMap::new(),
            due: BTreeMap::new(),
            load,
        })
    }

    /// Serves the service until its stream ends.
    pub(super) async fn run(mut self, heartbeats: Streaming<Heartbeat>, events: Events, ending: CancellationToken) {
        let ended = self.serve(heartbeats, &events, &ending).await;
        match ended {
            Ok(why) => info!(why, "service's stream ended"),
            Err(status) => {
                info!(code = status.code().description(), why = status.message(), "service's stream closed");
                fail(&events, status).await;
            }
        }
    }

    async fn serve(
        &mut self,
        mut heartbeats: Streaming<Heartbeat>,
        events: &Events,
        ending: &CancellationToken,
    ) -> Result<&'static str, Status> {
        let mut changes = self.shared.state.subscribe();
        let mut pod = self.pod.clone();
        let mut is_changed = true;
        loop {
            self.still_open()?;
            self.confirm();
            let has_room = self.flow.has_room();
            let has_news = self.is_registered() && (self.flow.owes_confirmation() || (is_changed && has_room));
            tokio::select! {
                biased;
                () = ending.cancelled() => {
                    self.flow.go_away(events, "this sidecar shuts down").await;
                    return Ok("this sidecar shuts down");
                }
                received = heartbeats.message() => match received {
                    Ok(Some(heartbeat)) => self.heard(&heartbeat)?,
                    Ok(None) | Err(_) => return Ok("the service has closed it"),
                },
                room = events.reserve(), if has_news => match room {
                    Ok(room) => {
                        let with_changes = std::mem::take(&mut is_changed) && has_room;
                        is_changed |= !has_room;
                        if let Some(event) = self.next_event(with_changes) {
                            room.send(Ok(event));
                        }
                    }
                    Err(_) => return Ok("the service is gone"),
                },
                // `shared` holds the sender, so this cannot fail.
                _ = changes.changed() => is_changed = true,
                changed = pod.changed() => match changed {
                    Ok(()) => is_changed = true,
                    Err(_) => return Ok("the pod has ended"),
                },
            }
        }
    }

    pub(super) fn still_open(&self) -> Result<(), Status> {
        let state = self.shared.state.borrow();
        if !state.is_open(self.stream) {
            return Err(Status::aborted("another stream has resumed this registration"));
        }
        if state.is_over(self.stream) {
            return Err(Status::not_found("the registration is over; register again"));
        }
        Ok(())
    }

    pub(super) fn is_registered(&self) -> bool {
        self.is_welcome || self.resumed || self.pod.borrow().incarnation != Incarnation::NONE
    }

    fn heard(&mut self, heartbeat: &Heartbeat) -> Result<(), Status> {
        self.flow.on_heartbeat(heartbeat);
        self.heard = lease_now();
        self.report(heartbeat)
    }

    /// Takes what a heartbeat reports for operators.
    pub(super) fn report(&mut self, heartbeat: &Heartbeat) -> Result<(), Status> {
        if let Some(load) = ReportedLoad::in_heartbeat(heartbeat)? {
            self.load = Some(load);
        }
        let due: Vec<_> = self.due.values().map(|call| call.task).collect();
        self.flow.report(&due, &heartbeat.progress);
        self.publish();
        Ok(())
    }

    /// Makes this the stream of one Poll. What the service reported with the last one stands.
    pub(super) fn begin_poll(&mut self) {
        let (stream, at) = (self.stream, self.heard);
        let reported = self.shared.note(|state| {
            state.heard(stream, at);
            state.status.as_ref().and_then(|status| status.load.clone())
        });
        self.load = self.load.take().or(reported);
    }

    /// Confirms the newest heartbeat, if the service applies its events and its pod's lease lasts.
    fn confirm(&mut self) {
        let (at, stream, term) = (self.heard, self.stream, self.shared.term);
        if self.flow.examine_reader(term) && self.flow.is_stuck() {
            warn!(behind = self.flow.behind(), "service sends heartbeats and applies no events");
        }
        if self.flow.is_stuck() || !self.is_welcome {
            return;
        }
        let confirms = self.shared.note(|state| {
            state.heard(stream, at);
            state.confirm(stream, at, term)
        });
        if confirms {
            self.flow.confirm(self.flow.beat());
        }
    }

    /// Shows operators the state of the stream.
    fn publish(&self) {
        let due: Vec<_> = self.due.values().map(|call| call.task).collect();
        let mut status = StreamStatus { load: self.load.clone(), ..StreamStatus::new(&self.shared.settings.pod) };
        self.flow.show(&due, &mut status);
        let stream = self.stream;
        self.shared.note(|state| state.show(stream, status));
    }

    /// Returns the next event, or `None` if there is nothing to tell.
    pub(super) fn next_event(&mut self, with_changes: bool) -> Option<Event> {
        let is_first = !self.is_welcome;
        if is_first && !self.begin() {
            return None;
        }
        let mut event = Event::default();
        if is_first {
            self.confirm();
            event.welcome = Some(self.welcome());
        }
        if with_changes {
            self.tell(&mut event, is_first);
        }
        let event = self.flow.next(event)?;
        self.publish();
        Some(event)
    }

    /// Begins the service's life, or goes on with it.
    fn begin(&mut self) -> bool {
        let (stream, abilities, token) = (self.stream, self.abilities, &self.token);
        let adopt = |state: &mut StreamRecord| state.adopt(stream, token, abilities, lease_now());
        self.is_welcome = self.resumed || self.shared.modify(adopt);
        if self.is_welcome {
            let incarnation = self.pod.borrow().incarnation.get();
            match self.polls && self.resumed {
                true => debug!(incarnation, "service polls"),
                false => info!(incarnation, resumed = self.resumed, "service takes part"),
            }
        }
        self.is_welcome
    }

    /// Adds what has changed since the last event.
    fn tell(&mut self, event: &mut Event, full: bool) {
        let pod = self.pod.clone();
        let (due, owned, dropped) = self.shared.note(|state| {
            // In this order: a task is due only after the refusal that it requires.
            let due = state.due();
            let owned = pod.borrow().owned.clone();
            let is_dropped = |task: &&RemoteTask| {
                let may_be = !matches!(task.callback, Callback::Leaving | Callback::Release | Callback::Checkpoint);
                !due.contains_key(&task.partition) && !state.is_done(task) && may_be
            };
            let dropped: Vec<_> = self.due.values().map(|call| &call.task).filter(is_dropped).map(id).collect();
            (due, owned, dropped)
        });
        let changed = owned.iter().filter(|(partition, epoch)| self.owned.get(*partition) != Some(*epoch));
        let assignment = Assignment {
            full,
            owned: changed.map(|(partition, epoch)| Owned { partition: partition.get(), epoch: epoch.get() }).collect(),
            gone: self.owned.keys().filter(|partition| !owned.contains_key(*partition)).map(|it| it.get()).collect(),
        };
        let is_told = full || !assignment.owned.is_empty() || !assignment.gone.is_empty();
        event.assignment = is_told.then_some(assignment);
        let new = due.iter().filter(|(partition, call)| self.due.get(*partition) != Some(*call));
        event.tasks = new.map(|(_, call)| task(call)).collect();
        event.dropped = dropped;
        (self.owned, self.due) = (owned, due);
    }

    fn welcome(&self) -> Welcome {
        let term = self.shared.term;
        Welcome {
            protocol: PROTOCOL,
            incarnation: self.pod.borrow().incarnation.get(),
            resume: self.token.clone(),
            resumed: self.resumed,
            lease_ttl: span(term),
            trust: span(term * 2 / 3),
            heartbeat_every: span(heartbeats_every(term)),
            // The pod may have registered before it has seen the keyspace's settings.
            partitions: 0,
            window: u32::try_from(WINDOW).unwrap_or(u32::MAX),
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let (stream, term, now) = (self.stream, self.shared.term, lease_now());
        if self.polls {
            self.shared.modify(|state| state.polled(stream, term, now));
        } else {
            self.shared.modify(|state| state.closed(stream, now));
        }
    }
}

fn task(DueCall { task: due, checkpoint, from, to, .. }: &DueCall) -> Task {
    let named = |side: &Option<PodAddress>| {
        side.as_ref().map_or_else(Default::default, |pod| (pod.pod.clone(), pod.address.clone()))
    };
    let kind = match due.callback {
        Callback::Warm => {
            let checkpoint = checkpoint.as_ref().map_or_else(Vec::new, |name| name.as_bytes().to_vec());
            let (from_pod, from_address) = named(from);
            Kind::Warm(Warm { from_pod, from_address, checkpoint })
        }
        Callback::Leaving => {
            let (to_pod, to_address) = named(to);
            Kind::Leaving(Leaving { to_pod, to_address })
        }
        Callback::Sync => {
            let (from_pod, from_address) = named(from);
            Kind::Sync(Sync { from_pod, from_address })
        }
        Callback::Drain => {
            let (to_pod, to_address) = named(to);
            Kind::Drain(Drain { to_pod, to_address })
        }
        Callback::Release => {
            let cancelled = due.cancelled;
            let (to_pod, to_address) = if cancelled { Default::default() } else { named(to) };
            Kind::Release(Release { cancelled, to_pod, to_address })
        }
        Callback::Checkpoint => Kind::Checkpoint(Checkpoint {}),
    };
    Task { id: Some(id(due)), epoch: due.epoch.get(), kind: Some(kind), ..Task::default() }
}

/// Returns how often a service sends heartbeats that are confirmed for a term each.
pub(super) fn heartbeats_every(term: Duration) -> Duration {
    Duration::from_micros(keepalive_interval(micros(term)))
}

fn id(due: &RemoteTask) -> TaskId {
    TaskId { partition: due.partition.get(), handoff: due.handoff.get() }
}
