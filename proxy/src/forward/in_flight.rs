//! An exchange with a pod as it is counted: from its beginning until the pod is done, whoever is still interested.
//!
//! What must stay true: an exchange that its client has left before the answer began goes on, and counts, until the pod
//! answers, its time is up or its partition is severed. Once the answer has begun, its outcome is definite: what is left of
//! it is read within narrow bounds, and counts until then; an answer to a safe method is broken off at once.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use segue_protocol::ids::{Epoch, PartitionId};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::context::WorkerContext;
use crate::message::headers;
use crate::routing::permit::Permit;
use crate::routing::table::Pod;
use crate::runtime::background::Background;
use crate::upstream::{Answer, Counted, Exchange, ResponseStream};

/// How long a request may wait for its pod before its place in a flush goes to another key's.
const GIVES_WAY_AFTER: Duration = Duration::from_millis(250);

/// A pass, and the books that are kept about it. It goes from hand to hand, hence in a box.
pub(crate) struct InFlight {
    permit: Option<Permit>,
    shared: Rc<WorkerContext>,
    started: Instant,
    /// When it set out for its pod; by the watch, which may be behind, unless it holds a place.
    departed: Instant,
    deadline: Option<Instant>,
    /// Its method promises to change nothing (RFC 9110, 9.2.1).
    is_safe: bool,
}

/// What a request says about its exchange.
pub(crate) struct Terms {
    pub(crate) arrived: Instant,
    /// When its client wants to have all of the response.
    pub(crate) deadline: Option<Instant>,
    /// Its method promises to change nothing (RFC 9110, 9.2.1).
    pub(crate) is_safe: bool,
}

impl InFlight {
    pub(crate) fn begin(permit: Permit, shared: &Rc<WorkerContext>, terms: Terms) -> Self {
        shared.metrics.begins();
        shared.load.begin(permit.pod().slot);
        let departed = if permit.holds_place() { Instant::now() } else { shared.watch.now() };
        InFlight {
            permit: Some(permit),
            shared: shared.clone(),
            started: terms.arrived,
            departed,
            deadline: terms.deadline,
            is_safe: terms.is_safe,
        }
    }

    fn permit(&self) -> &Permit {
        // Taken only by `undo`, which consumes the flight.
        self.permit.as_ref().expect("a flight that was not undone")
    }

    pub(crate) fn pod(&self) -> &Arc<Pod> {
        self.permit().pod()
    }

    pub(crate) fn partition(&self) -> PartitionId {
        self.permit().partition()
    }

    pub(crate) fn epoch(&self) -> Epoch {
        self.permit().epoch()
    }

    /// Whether that is over.
    pub(crate) fn is_late(&self) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= Instant::now())
    }

    /// Whether it had to wait before it set out.
    pub(crate) fn was_held(&self) -> bool {
        self.permit().was_held()
    }

    /// Whether it takes up one of the places of a flush.
    pub(crate) fn holds_place(&self) -> bool {
        self.permit().holds_place()
    }

    /// When it has waited for its pod for so long that its place goes to another.
    pub(crate) fn gives_way_at(&self) -> Instant {
        self.departed + GIVES_WAY_AFTER
    }

    /// Gives its place in the flush to another key's request, because it waits.
    pub(crate) fn give_way(&self) {
        self.permit().give_way();
    }

    pub(crate) fn may_still_go(&self) -> bool {
        self.permit().may_still_go()
    }

    pub(crate) fn shared(&self) -> &Rc<WorkerContext> {
        &self.shared
    }

    /// The outcome is definite.
    pub(crate) fn delivered(&mut self) {
        if let Some(permit) = &mut self.permit {
            permit.delivered();
        }
    }

    /// It has not taken place.
    #[expect(clippy::boxed_local, reason = "so that nobody takes it out of its box for this")]
    pub(crate) fn undo(mut self: Box<Self>) -> Permit {
        let permit = self.permit.take().expect("a flight that was not undone");
        self.shared.metrics.ends();
        self.shared.load.end(permit.pod().slot);
        permit
    }
}

impl Counted for InFlight {
    fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    fn idle_timeout(&self) -> Duration {
        self.shared.idle_timeout
    }

    fn sever_token(&self) -> CancellationToken {
        self.permit().sever_token()
    }

    fn background(&self) -> &Background {
        &self.shared.background
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if let Some(permit) = &self.permit {
            self.shared.metrics.ends();
            self.shared.load.end(permit.pod().slot);
            self.shared.metrics.took(self.started.elapsed());
        }
    }
}

/// How long an answer is read on whose client has left: its request's outcome is definite, and most that are longer are
/// streams without an end.
const READ_ON_FOR: Duration = Duration::from_secs(5);
/// How much of it is read, so that no pod's link is filled with what nobody wants.
const READ_ON_BYTES: u64 = 1 << 20;
/// How much of an answer that may be broken off at once is read on all the same: less work than another connection, and one
/// reset less on one that others share.
const WORTH_READING: u64 = 64 << 10;

/// Sees an exchange through whose client has hung up before the answer began.
pub(crate) fn see_through(mut exchange: Exchange, mut flight: Box<InFlight>) {
    let shared = flight.shared.clone();
    let limit = flight.deadline.unwrap_or(Instant::now() + shared.request_timeout);
    let limit = limit.min(Instant::now() + shared.request_timeout);
    let severed = flight.sever_token();
    shared.background.run(async move {
        let answer = tokio::select! {
            answer = std::future::poll_fn(|context| exchange.poll_answer(context, &mut |_| {})) => answer.ok(),
            () = tokio::time::sleep_until(limit) => None,
            () = severed.cancelled() => None,
        };
        // Broken off if it has not ended, and only then it leaves the gate.
        drop(exchange);
        match answer {
            Some(Answer::Response(mut response)) => {
                if !headers::take_misdirected(response.status(), response.headers_mut()) {
                    flight.delivered();
                }
                read_on(response.into_body(), flight, severed).await;
            }
            switched => {
                drop(switched);
                drop(flight);
            }
        }
    });
}

/// Sees an exchange through whose client has hung up in the middle of the answer.
pub(crate) fn see_rest_through(stream: ResponseStream, flight: Box<InFlight>) {
    let (shared, severed) = (flight.shared.clone(), flight.sever_token());
    shared.background.run(read_on(stream, flight, severed));
}

/// Reads an answer that nobody waits for, within bounds; then breaks it off. That is when the pod learns that its client has
/// gone.
async fn read_on(mut stream: ResponseStream, flight: Box<InFlight>, severed: CancellationToken) {
    if flight.is_safe && stream.left().is_none_or(|left| left > WORTH_READING) {
        drop(stream);
        drop(flight);
        return;
    }
    let limit = Instant::now() + READ_ON_FOR.min(flight.shared.request_timeout);
    let limit = flight.deadline.map_or(limit, |deadline| deadline.min(limit));
    let read = async {
        let mut read = 0;
        while read < READ_ON_BYTES {
            match std::future::poll_fn(|context| stream.poll_frame(context)).await {
                Some(Ok(frame)) => read += frame.data_ref().map_or(0, |data| data.len() as u64),
                Some(Err(_)) => return false,
                None => return true,
            }
        }
        stream.is_done()
    };
    let whole = tokio::select! {
        whole = read => whole,
        () = tokio::time::sleep_until(limit) => false,
        () = severed.cancelled() => false,
    };
    if whole {
        stream.finish(flight);
    } else {
        drop(stream);
        drop(flight);
    }
}
