//! The streams of this instance, by registration. A new stream ends the previous one of the same registration. An
//! acknowledgement that the store does not record is passed to the stream.
//!
//! A pod that polls has no stream. What its last Poll reported is shown to operators until its lease can have ended.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use segue_protocol::handoff::remote_pod::RemoteTask;
use segue_protocol::ids::{Incarnation, PartitionId, Revision};
use segue_protocol::records::PodRecord;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::hub::HubChanges;
use crate::proto::Progress;
use crate::status::{ReportedLoad, Reports, StreamStatus};
use crate::token::Token;

/// Most acknowledgements that wait for a stream's loop.
const ACKS: usize = 64;

/// A pod that has polled one instance alone for so many TTLs of its lease has moved there. Of pods that a load balancer sends
/// to one of two by chance, fewer than one in 100,000 seems to.
const MOVED_AFTER_TTLS: u32 = 3;

#[derive(Debug, Default)]
pub(crate) struct PodSessions {
    by_incarnation: Mutex<HashMap<Incarnation, SessionEntry>>,
    polled: Mutex<HashMap<Incarnation, PolledPod>>,
    last_polls: Mutex<HashMap<Incarnation, LastPoll>>,
}

/// A pod's last Poll, as this instance answered it.
#[derive(Debug)]
pub(crate) struct LastPoll {
    /// The revision of the view that the answer shows.
    pub(crate) told: Revision,
    pub(crate) record: PodRecord,
    pub(crate) attendance: Attendance,
    /// The partitions that the answer was about.
    pub(crate) partitions: BTreeSet<PartitionId>,
    /// The changes since the answer.
    pub(crate) changes: HubChanges,
    /// When the pod's lease ends, unless it polls again.
    pub(crate) until: Instant,
}

/// A pod that polls this instance, and maybe others in turn.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attendance {
    /// Whether operators find this instance by the pod's mark.
    pub(crate) is_marked: bool,
    /// Since when no other instance has told the pod anything.
    pub(crate) alone_since: Instant,
}

impl Attendance {
    pub(crate) fn begin(is_marked: bool) -> Self {
        Attendance { is_marked, alone_since: Instant::now() }
    }

    /// Returns whether the pod, whose lease has this TTL, has left the instance that its mark names for this one.
    pub(crate) fn has_moved_here(&self, ttl: Duration) -> bool {
        !self.is_marked && self.alone_since.elapsed() > ttl * MOVED_AFTER_TTLS
    }
}

/// A pod that polls, as its last Poll left it.
#[derive(Debug)]
struct PolledPod {
    reports: Reports,
    status: StreamStatus,
    /// When its lease ends, unless it polls again.
    until: Instant,
}

/// An acknowledgement that the store does not record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UnrecordedAck {
    /// The pod has warmed a partition that an operator assigned to it by hand.
    WarmedByHand,
    /// The pod has no newer checkpoint than the one that is recorded.
    NothingNew,
}

#[derive(Debug)]
struct SessionEntry {
    replaced: CancellationToken,
    done: mpsc::Sender<(PartitionId, UnrecordedAck)>,
    status: watch::Receiver<StreamStatus>,
}

/// A stream's entry among the sessions. Dropping it removes the entry.
#[derive(Debug)]
pub(crate) struct SessionGuard {
    sessions: Arc<PodSessions>,
    incarnation: Incarnation,
    /// Cancelled when another stream replaces this one.
    pub(crate) replaced: CancellationToken,
    pub(crate) done: mpsc::Receiver<(PartitionId, UnrecordedAck)>,
    pub(crate) status: watch::Sender<StreamStatus>,
}

impl PodSessions {
    /// Registers a stream for this registration. A previous stream is told to end.
    pub(crate) fn take(self: &Arc<Self>, pod: &str, incarnation: Incarnation) -> SessionGuard {
        self.polled.lock().unwrap_or_else(PoisonError::into_inner).remove(&incarnation);
        let (done, received) = mpsc::channel(ACKS);
        let replaced = CancellationToken::new();
        let (status, published) = watch::channel(StreamStatus::new(pod));
        let entry = SessionEntry { replaced: replaced.clone(), done, status: published };
        if let Some(before) = self.lock().insert(incarnation, entry) {
            before.replaced.cancel();
        }
        SessionGuard { sessions: self.clone(), incarnation, replaced, done: received, status }
    }

    /// Tells the pod's stream of an acknowledgement that the store does not record. Returns whether this instance has the
    /// stream.
    pub(crate) fn tell(&self, incarnation: Incarnation, partition: PartitionId, done: UnrecordedAck) -> bool {
        self.lock().get(&incarnation).is_some_and(|entry| entry.done.try_send((partition, done)).is_ok())
    }

    /// Takes what a pod reports with a Poll, whose answer has these tasks. A load that it does not report stays as it was.
    pub(crate) fn polled(
        &self,
        token: &Token,
        due: &[RemoteTask],
        (load, progress): (Option<ReportedLoad>, &[Progress]),
    ) {
        let now = Instant::now();
        let mut polled = self.polled.lock().unwrap_or_else(PoisonError::into_inner);
        polled.retain(|_, pod| now < pod.until);
        let new = || PolledPod { reports: Reports::default(), status: StreamStatus::new(&token.pod), until: now };
        let pod = polled.entry(token.incarnation()).or_insert_with(new);
        pod.reports.take(due, progress);
        pod.status.tasks = pod.reports.of(due);
        pod.status.load = load.or_else(|| pod.status.load.take());
        pod.until = now + token.ttl();
    }

    /// Remembers what a pod has been told.
    pub(crate) fn told(&self, incarnation: Incarnation, last: LastPoll) {
        let now = Instant::now();
        let mut last_polls = self.last_polls();
        last_polls.retain(|_, last| now < last.until);
        last_polls.insert(incarnation, last);
    }

    /// Takes what this instance told the pod of this token last. Another instance may have told it more.
    pub(crate) fn last_poll(&self, token: &Token) -> Option<LastPoll> {
        let last = self.last_polls().remove(&token.incarnation())?;
        (last.record.pod_name == token.pod).then_some(last)
    }

    fn last_polls(&self) -> MutexGuard<'_, HashMap<Incarnation, LastPoll>> {
        self.last_polls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the state of each stream and of each pod that polls, by the pods' names.
    pub(crate) fn streams(&self) -> Vec<StreamStatus> {
        let now = Instant::now();
        let streams = self.lock();
        let mut polled = self.polled.lock().unwrap_or_else(PoisonError::into_inner);
        polled.retain(|incarnation, pod| now < pod.until && !streams.contains_key(incarnation));
        let polled = polled.values().map(|pod| pod.status.clone());
        let mut streams: Vec<_> = streams.values().map(|entry| entry.status.borrow().clone()).chain(polled).collect();
        streams.sort_by(|a, b| a.pod.cmp(&b.pod));
        streams
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Incarnation, SessionEntry>> {
        self.by_incarnation.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for SessionGuard {
    fn drop(&mut self) {
        // Lock before checking `replaced`: a stream that takes the place between the check and the removal would lose
        // its entry.
        let mut by_incarnation = self.sessions.lock();
        // The entry of a replaced stream is that of its successor.
        if !self.replaced.is_cancelled() {
            by_incarnation.remove(&self.incarnation);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const TTL: Duration = Duration::from_secs(15);

    #[tokio::test(start_paused = true)]
    async fn a_pod_has_moved_to_the_instance_that_it_polls_alone_for_long() {
        let (mut attendance, marked) = (Attendance::begin(false), Attendance::begin(true));
        advance(3 * TTL).await;
        assert!(!attendance.has_moved_here(TTL));
        advance(Duration::from_secs(1)).await;
        assert!(attendance.has_moved_here(TTL) && !marked.has_moved_here(TTL), "operators find it by its mark");
        attendance = Attendance::begin(attendance.is_marked);
        assert!(!attendance.has_moved_here(TTL), "another instance has told it something");
    }
}
