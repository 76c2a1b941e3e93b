//! Follows every request from its client to the log and back, and reports the promise that a step breaks.
//!
//! It knows more than any participant, and no participant asks it.
//!
//! # Invariants
//!
//! * It judges what happened (accepted, applied, sent, answered), never what a participant believes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use segue_protocol::ids::{Epoch, Incarnation, PartitionId};
use tokio::time::Instant;

use crate::trace::Trace;

/// A request's number, in the order in which they were made.
pub(crate) type RequestId = u64;

/// The response as its client sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Status {
    /// 200: done.
    Done,
    /// 421, which no client may ever see.
    Bounced,
    /// 500 of the pod: perhaps done.
    Failed,
    /// 502 or 504: perhaps done.
    Unknown,
    /// 503: not done.
    Refused(&'static str),
    /// The connection broke.
    Reset,
}

/// A pod that accepts a request, and its life.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) pod: String,
    pub(crate) life: u64,
    pub(crate) incarnation: Incarnation,
}

/// The history of all requests.
#[derive(Debug)]
pub(crate) struct RequestHistory {
    trace: Arc<Trace>,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    requests: Vec<Request>,
    partitions: BTreeMap<PartitionId, Accepted>,
    /// By router's life, partition and key.
    queues: BTreeMap<(String, u64, PartitionId, u64), KeyQueue>,
}

#[derive(Debug)]
struct Request {
    partition: PartitionId,
    key: Option<u64>,
    queue: Option<(String, u64, PartitionId, u64)>,
    seq: u64,
    /// Sent and neither refused nor put back since.
    with_pod: bool,
    /// When it was started first, and put back last.
    started: Option<Instant>,
    put_back: Option<Instant>,
    answer: Option<Status>,
}

/// The requests of one key in one router.
#[derive(Debug, Default)]
struct KeyQueue {
    next: u64,
    /// Those that wait.
    held: BTreeMap<u64, RequestId>,
    /// What was applied: at which epoch, and when it was started first.
    applied: Vec<(u64, Epoch, Instant)>,
}

/// What was accepted of one partition.
#[derive(Debug, Default)]
struct Accepted {
    epoch: Epoch,
    by: Option<Owner>,
    in_flight: BTreeMap<RequestId, (Owner, Epoch)>,
}

impl RequestHistory {
    pub(crate) fn new(trace: Arc<Trace>) -> Self {
        RequestHistory { trace, inner: Mutex::default() }
    }

    /// A client makes a request.
    pub(crate) fn made(&self, partition: PartitionId, key: Option<u64>) -> RequestId {
        let mut inner = self.lock();
        let id = inner.requests.len() as RequestId;
        inner.requests.push(Request {
            partition,
            key,
            queue: None,
            seq: 0,
            with_pod: false,
            started: None,
            put_back: None,
            answer: None,
        });
        id
    }

    /// A router takes it: from here on it has its place among those of its key.
    pub(crate) fn taken(&self, id: RequestId, router: &str, life: u64) {
        self.trace.event(format_args!("{router} takes {id}"));
        let mut inner = self.lock();
        let Inner { requests, queues, .. } = &mut *inner;
        let request = &mut requests[id as usize];
        if let Some(key) = request.key {
            let name = (router.to_owned(), life, request.partition, key);
            let queue = queues.entry(name.clone()).or_default();
            request.seq = queue.next;
            queue.next += 1;
            request.queue = Some(name);
        }
    }

    /// It waits.
    pub(crate) fn held(&self, id: RequestId) {
        self.trace.event(format_args!("{id} waits"));
        let mut inner = self.lock();
        let Inner { requests, queues, .. } = &mut *inner;
        let request = &requests[id as usize];
        if let Some(queue) = request.queue.as_ref().and_then(|queue| queues.get_mut(queue)) {
            queue.held.insert(request.seq, id);
        }
    }

    /// It waits no longer, in whatever way.
    pub(crate) fn unheld(&self, id: RequestId) {
        let mut inner = self.lock();
        let Inner { requests, queues, .. } = &mut *inner;
        let request = &requests[id as usize];
        if let Some(queue) = request.queue.as_ref().and_then(|queue| queues.get_mut(queue)) {
            queue.held.remove(&request.seq);
        }
    }

    /// Its turn has come. Whether it was first in its queue is to be seen now: while connections are made, others may pass.
    ///
    /// Requests that were with a pod at the same time have no order: the gate is open to a key's next before its last is
    /// answered, and so the network may swap them. That both are refused and put back does not give them one.
    pub(crate) fn started(&self, id: RequestId) {
        let mut inner = self.lock();
        let Inner { requests, queues, .. } = &mut *inner;
        let request = &mut requests[id as usize];
        let since = *request.started.get_or_insert_with(Instant::now);
        let (seq, name) = (request.seq, request.queue.clone());
        let Some(queue) = name.and_then(|name| queues.get_mut(&name)) else { return };
        queue.held.remove(&seq);
        let apart = |earlier: &RequestId| requests[*earlier as usize].put_back.is_none_or(|back| back < since);
        if let Some(earlier) = queue.held.range(..seq).map(|(_, earlier)| earlier).find(|earlier| apart(earlier)) {
            let late = format!("request {id} starts while {earlier} of the same key, which came earlier, waits");
            self.trace.violation("no_overtaking", late);
        }
    }

    /// It has left the router for a pod.
    pub(crate) fn sent(&self, id: RequestId, pod: &str, epoch: Epoch) {
        self.trace.event(format_args!("{id} to {pod} at {epoch}"));
        let mut inner = self.lock();
        let request = &mut inner.requests[id as usize];
        if request.with_pod {
            let again = format!("request {id} is sent again while a pod may have acted on it");
            self.trace.violation("no_double_apply", again);
        }
        request.with_pod = true;
    }

    /// It is certain that no pod has acted on it: never sent, or refused.
    pub(crate) fn undone(&self, id: RequestId, why: &str) {
        self.trace.event(format_args!("{id} put back: {why}"));
        let request = &mut self.lock().requests[id as usize];
        request.with_pod = false;
        request.put_back = Some(Instant::now());
    }

    /// A pod lets it in. `stands`: whether that incarnation of a pod is registered.
    pub(crate) fn accepted(&self, id: RequestId, epoch: Epoch, by: &Owner, stands: impl Fn(&Owner) -> bool) {
        let pod = &by.pod;
        self.trace.event(format_args!("{pod} accepts {id} at {epoch}"));
        let mut inner = self.lock();
        let partition = inner.requests[id as usize].partition;
        let accepted = inner.partitions.entry(partition).or_default();
        let (newest, holder) = (accepted.epoch, accepted.by.clone());
        if epoch < newest {
            let fell = format!("partition {partition}: {pod} accepts epoch {epoch} after epoch {newest} was accepted");
            self.trace.violation("epochs_grow", fell);
        } else if epoch == newest && holder.as_ref().is_some_and(|holder| holder != by) {
            let two = format!("partition {partition}: epoch {epoch} is accepted by {by:?} and by {holder:?}");
            self.trace.violation("single_writer", two);
        } else {
            (accepted.epoch, accepted.by) = (epoch, Some(by.clone()));
            let other = accepted.in_flight.iter().find(|(_, (owner, _))| owner != by && stands(owner));
            if let Some((other, (owner, older))) = other {
                let both = format!(
                    "partition {partition}: {pod} accepts {id} at epoch {epoch} while {} works on {other} at epoch {older}",
                    owner.pod
                );
                self.trace.violation("single_writer", both);
            }
        }
        accepted.in_flight.insert(id, (by.clone(), epoch));
    }

    /// The pod has ended work on it.
    pub(crate) fn left(&self, id: RequestId) {
        self.trace.event(format_args!("{id} has left its pod"));
        let mut inner = self.lock();
        let partition = inner.requests[id as usize].partition;
        inner.partitions.entry(partition).or_default().in_flight.remove(&id);
    }

    /// Its write stands in the log.
    pub(crate) fn applied(&self, id: RequestId, pod: &str, epoch: Epoch) {
        self.trace.event(format_args!("{pod} applies {id} at {epoch}"));
        let mut inner = self.lock();
        let Inner { requests, queues, partitions } = &mut *inner;
        let request = &requests[id as usize];
        let newest = partitions.get(&request.partition).map_or_else(Epoch::default, |accepted| accepted.epoch);
        if epoch < newest {
            let partition = request.partition;
            let late =
                format!("partition {partition}: {pod} applies {id} at epoch {epoch} after epoch {newest} was accepted");
            self.trace.violation("single_writer", late);
        }
        if let Some(queue) = request.queue.as_ref().and_then(|queue| queues.get_mut(queue)) {
            let apart = |since: &Instant| request.put_back.is_none_or(|back| back < *since);
            let later =
                queue.applied.iter().find(|(seq, older, since)| *seq > request.seq && *older < epoch && apart(since));
            if let Some((_, older, _)) = later {
                let late = format!(
                    "request {id} takes effect at epoch {epoch}, one of its key that came later did at {older}"
                );
                self.trace.violation("no_overtaking", late);
            }
            queue.applied.push((request.seq, epoch, request.started.unwrap_or_else(Instant::now)));
        }
    }

    /// Its client has the answer.
    pub(crate) fn answered(&self, id: RequestId, status: Status) {
        self.trace.event(format_args!("{id} answered {status:?}"));
        let mut inner = self.lock();
        let request = &mut inner.requests[id as usize];
        request.answer = Some(status);
        if status == Status::Bounced {
            self.trace.violation("no_lost_request", format!("the client of {id} sees a 421"));
        }
        if request.with_pod && matches!(status, Status::Refused(_)) {
            let wrong = format!("request {id} is refused as not sent, and a pod has it");
            self.trace.violation("no_lost_request", wrong);
        }
    }

    /// Its client has gone.
    pub(crate) fn hung_up(&self, id: RequestId) {
        self.trace.event(format_args!("{id} hung up"));
        self.lock().requests[id as usize].answer = Some(Status::Reset);
    }

    /// A router has answered after so long, standing still not counted.
    pub(crate) fn took(&self, id: RequestId, took: Duration, at_most: Duration) {
        if took > at_most {
            let late = format!("request {id} was answered after {took:?}, which must not exceed {at_most:?}");
            self.trace.violation("bounded", late);
        }
    }

    /// How many requests are without an answer.
    pub(crate) fn open(&self) -> usize {
        self.lock().requests.iter().filter(|request| request.answer.is_none()).count()
    }

    /// How many were made, and how many done.
    pub(crate) fn totals(&self) -> (u64, u64) {
        let inner = self.lock();
        let done = inner.requests.iter().filter(|request| request.answer == Some(Status::Done)).count();
        (inner.requests.len() as u64, done as u64)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
