//! The loop of a `Register` stream: it renews the lease upon heartbeats, and tells the pod what has changed.
//!
//! # Invariants
//!
//! * An event is made when there is room for it, from the newest view: a slow pod skips intermediate states.
//! * The lease is renewed only while the pod applies events: heartbeats alone may come from a pod whose reader is stuck.
//! * A renewal that was begun is never dropped, whatever the pod does: the store takes that for the end of its
//!   connection, which carries all leases and watches of this process.
//! * `confirmed` names a heartbeat that had come in before the renewal was sent to the store.

use std::pin::Pin;
use std::sync::Arc;

use segue_coordination::session::boottime;
use segue_coordination::store::StoreError;
use segue_protocol::handoff::remote_pod::RemotePod;
use segue_protocol::ids::{Epoch, PartitionId};
use tokio::time::{Instant, sleep_until, timeout};
use tonic::{Status, Streaming};
use tracing::{debug, info, warn};

use crate::attach::{AttachedPod, STORE_TIMEOUT, ensure_goes_on};
use crate::checkpoints::look_interval;
use crate::event_stream::{EventFlow, Events, fail};
use crate::events::{event, welcome};
use crate::hub::HubChanges;
use crate::proto::{Event, Heartbeat, Hello, Progress};
use crate::sessions::{SessionGuard, UnrecordedAck};
use crate::shared::{KeyspaceService, unavailable};
use crate::status::{ReportedLoad, tasks_in};

/// A stream.
pub(crate) struct Stream {
    shared: Arc<KeyspaceService>,
    attached: AttachedPod,
    pod: RemotePod,
    place: SessionGuard,
    changes: HubChanges,
    /// A heartbeat is confirmed by a renewal of the lease. It is not renewed for a pod that applies no events.
    flow: EventFlow,
    /// The progress in the first heartbeat. Its tasks are known once the first event is made.
    first: Vec<Progress>,
}

/// A renewal in flight, and the newest heartbeat that arrived before it.
type Renewal = Pin<Box<dyn Future<Output = (u64, Result<(), StoreError>)> + Send>>;

impl Stream {
    /// Returns the stream of a pod that has just attached with this heartbeat, once the view shows its registration.
    pub(crate) async fn begin(
        shared: Arc<KeyspaceService>,
        attached: AttachedPod,
        first: &Heartbeat,
    ) -> Result<Self, Status> {
        let load = ReportedLoad::in_heartbeat(first)?;
        let changes = shared.hub.changes(attached.name());
        shared.hub.shows(attached.seen).await?;
        let place = shared.sessions.take(attached.name(), attached.incarnation());
        let pod = remote_pod(&shared, &attached, first);
        shared.loads.take(&shared.store, &shared.hub.view(), &attached.token, load.as_ref());
        place.status.send_modify(|status| status.load = load);
        let mut flow = EventFlow::new(first);
        // `attach` has renewed the lease.
        flow.confirm(first.seq);
        Ok(Stream { shared, attached, pod, place, changes, flow, first: first.progress.clone() })
    }

    /// Serves the pod until its stream ends.
    pub(crate) async fn run(mut self, mut heartbeats: Streaming<Heartbeat>, events: Events) {
        let (pod, incarnation) = (self.attached.name().to_owned(), self.attached.incarnation().get());
        self.shared.observer.stream_began(self.attached.resumed);
        match self.serve(&mut heartbeats, &events).await {
            Ok(why) => debug!(pod, incarnation, why, "pod's stream ended"),
            Err(status) => {
                info!(
                    pod,
                    incarnation,
                    code = status.code().description(),
                    why = status.message(),
                    "pod's stream closed"
                );
                fail(&events, status).await;
            }
        }
        self.shared.observer.stream_ended();
        if self.flow.is_stuck() {
            self.shared.observer.reader_stuck(false);
        }
        if self.shared.hub.view().incarnation_of(&pod) != self.attached.incarnation() {
            // The registration is gone. Revoking its lease ends all renewals.
            if let Err(error) = self.shared.store.revoke(self.attached.lease()).await {
                debug!(pod, %error, "cannot revoke the lease of a registration that is over");
            }
        }
    }

    async fn serve(&mut self, heartbeats: &mut Streaming<Heartbeat>, events: &Events) -> Result<&'static str, Status> {
        let (ending, shared) = (self.shared.streams.ending.clone(), self.shared.clone());
        let mut renewal: Option<Renewal> = None;
        let mut looked = Instant::now();
        loop {
            ensure_goes_on(&shared, &self.attached.token)?;
            if renewal.is_none() && self.flow.has_unconfirmed() && self.is_reading() {
                shared.hub.ensure_sighted(self.attached.token.ttl())?;
                renewal = Some(self.renew());
            }
            self.attached.keep_registration(&shared).await?;
            let has_news = self.flow.owes_confirmation() || (self.changes.any() && self.flow.has_room());
            tokio::select! {
                biased;
                () = self.place.replaced.cancelled() => {
                    return Err(Status::aborted("another stream has resumed this registration"));
                }
                () = ending.cancelled() => {
                    self.flow.go_away(events, "this instance shuts down").await;
                    return Ok("this instance shuts down");
                }
                (beat, renewed) = async { renewal.as_mut().expect("there is one").await }, if renewal.is_some() => {
                    renewal = None;
                    self.renewed(beat, renewed)?;
                }
                received = heartbeats.message() => match received {
                    Ok(Some(heartbeat)) => self.heard(&heartbeat)?,
                    Ok(None) | Err(_) => return Ok("the pod has closed it"),
                },
                Some((partition, done)) = self.place.done.recv() => {
                    match done {
                        UnrecordedAck::WarmedByHand => self.pod.warmed_by_hand(partition),
                        UnrecordedAck::NothingNew => self.pod.has_nothing_new(partition, boottime()),
                    }
                    self.changes.look_at(partition);
                }
                () = time_passes(&shared, looked) => {
                    looked = Instant::now();
                    let overdue = self.pod.overdue(&shared.hub.view(), boottime());
                    overdue.into_iter().for_each(|partition| self.changes.look_at(partition));
                }
                room = events.reserve(), if has_news => match room {
                    Ok(room) => if let Some(event) = self.next_event() {
                        room.send(Ok(event));
                        self.attached.told();
                    },
                    Err(_) => return Ok("the pod is gone"),
                },
                // Last, because in a busy keyspace there is always a change.
                () = self.changes.wait() => {}
            }
        }
    }

    fn heard(&mut self, heartbeat: &Heartbeat) -> Result<(), Status> {
        self.flow.on_heartbeat(heartbeat);
        let load = ReportedLoad::in_heartbeat(heartbeat)?;
        if load.is_some() || !heartbeat.progress.is_empty() {
            let due: Vec<_> = self.pod.tasks().collect();
            self.flow.report(&due, &heartbeat.progress);
            self.place.status.send_modify(|status| status.load = load.or_else(|| status.load.take()));
        }
        let known = self.place.status.borrow();
        self.shared.loads.take(&self.shared.store, &self.shared.hub.view(), &self.attached.token, known.load.as_ref());
        drop(known);
        self.publish();
        Ok(())
    }

    /// Returns whether the pod applies its events.
    fn is_reading(&mut self) -> bool {
        let has_changed = self.flow.examine_reader(self.attached.token.ttl());
        let is_stuck = self.flow.is_stuck();
        if has_changed {
            let (pod, behind) = (self.attached.name(), self.flow.behind());
            if is_stuck {
                warn!(pod, behind, "pod sends heartbeats and applies no events; its lease is not renewed");
            } else {
                info!(pod, "pod applies events again");
            }
            self.shared.observer.reader_stuck(is_stuck);
            self.publish();
        }
        !is_stuck
    }

    /// Shows operators the state of the stream.
    fn publish(&self) {
        let due: Vec<_> = self.pod.tasks().collect();
        self.place.status.send_modify(|status| self.flow.show(&due, status));
    }

    fn renew(&self) -> Renewal {
        let (store, lease, beat) = (self.shared.store.clone(), self.attached.lease(), self.flow.beat());
        let hold = self.attached.hold.clone();
        let renewal = tokio::spawn(async move {
            let _hold = hold;
            store.keep_alive(lease).await
        });
        Box::pin(async move {
            let renewed = match timeout(STORE_TIMEOUT, renewal).await {
                Ok(Ok(renewed)) => renewed,
                Ok(Err(_)) | Err(_) => Err(StoreError::Unavailable("no response".into())),
            };
            (beat, renewed)
        })
    }

    fn renewed(&mut self, beat: u64, renewed: Result<(), StoreError>) -> Result<(), Status> {
        match renewed {
            Ok(()) => self.flow.confirm(beat),
            Err(StoreError::LeaseNotFound) => return Err(self.attached.is_over()),
            // Another instance may reach the store.
            Err(error) => return Err(unavailable(error)),
        }
        Ok(())
    }

    /// Returns the next event, or `None` if nothing has changed.
    fn next_event(&mut self) -> Option<Event> {
        let is_first = self.flow.is_new();
        let shared = self.shared.clone();
        let view = shared.hub.view();
        let mut event = if self.changes.any() && self.flow.has_room() {
            let partitions = self.changes.take().unwrap_or_else(|| self.pod.concerned(&view.parties));
            let leaving = self.pod.tell_leaving(&view, partitions.iter().copied());
            let mut changes = self.pod.update(&view, partitions, boottime(), &mut shared.hub.waits());
            changes.tasks.extend(leaving);
            event(&view, &shared.settings, changes, is_first)
        } else {
            Event { revision: view.revision.get(), ..Event::default() }
        };
        event.welcome = is_first.then(|| welcome(&self.attached, &view));
        let event = self.flow.next(event)?;
        drop(view);
        if is_first {
            let due: Vec<_> = self.pod.tasks().collect();
            self.flow.report(&due, &std::mem::take(&mut self.first));
        }
        self.publish();
        Some(event)
    }
}

/// Waits until tasks may have become due because time has passed since `looked`. Cancel-safe.
async fn time_passes(shared: &KeyspaceService, looked: Instant) {
    let interval = look_interval(&shared.hub.view());
    match interval {
        Some(interval) => sleep_until(looked + interval).await,
        None => std::future::pending().await,
    }
}

/// Returns the pod with the state and the work that its first heartbeat reports.
pub(crate) fn remote_pod(shared: &KeyspaceService, attached: &AttachedPod, first: &Heartbeat) -> RemotePod {
    // The state of an earlier life is not taken over: only this life can have read the log to its end.
    let hello: Option<&Hello> = first.hello.as_ref().filter(|_| attached.resumed);
    let holdings = hello.map(|hello| hello.holdings.as_slice()).unwrap_or_default();
    let holdings = holdings.iter().map(|held| (PartitionId::new(held.partition), Epoch::new(held.epoch)));
    let view = shared.hub.view();
    let pod = RemotePod::new(&view, attached.name(), attached.incarnation(), holdings);
    pod.works_on(&view, tasks_in(&first.progress), &mut shared.hub.waits());
    pod
}
