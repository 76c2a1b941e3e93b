//! A stream of events: how it begins, the numbers of its events and heartbeats, what the pod reports, and how it ends.
//!
//! The services of a coordinator and of a sidecar have it in common. What an event says is for them to decide.
//!
//! # Invariants
//!
//! * Events are numbered from 1, without gaps, in the order in which they are sent.
//! * A confirmation is sent once, and names a heartbeat that was confirmed before.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use segue_coordination::session::boottime;
use segue_protocol::handoff::remote_pod::RemoteTask;
use segue_protocol::lease::EventReader;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::Stream as TokioStream;
use tonic::{Status, Streaming};

use crate::hub::micros;
use crate::open_streams::GO_AWAY_WITHIN;
use crate::proto::{Event, GoAway, Heartbeat, Hello, Progress};
use crate::status::{Reports, StreamStatus};

/// How many events the server may be ahead of what the pod has applied.
pub(crate) const WINDOW: u64 = 256;

/// How long a stream may take to send its first heartbeat.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a pod may take to read why its stream ends.
const LAST_WORD_TIMEOUT: Duration = Duration::from_secs(1);

/// The sender of a stream's events.
pub(crate) type Events = mpsc::Sender<Result<Event, Status>>;

/// The receiving end of the events that a stream's loop sends.
#[derive(Debug)]
pub(crate) struct EventStream(mpsc::Receiver<Result<Event, Status>>);

impl EventStream {
    /// Returns a stream, and the sender of its events. An event is built only when the previous one has been taken.
    pub(crate) fn new() -> (Events, Self) {
        let (sender, events) = mpsc::channel(1);
        (sender, EventStream(events))
    }
}

impl TokioStream for EventStream {
    type Item = Result<Event, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(context)
    }
}

/// Returns the first heartbeat of a stream.
pub(crate) async fn first_heartbeat(heartbeats: &mut Streaming<Heartbeat>) -> Result<Heartbeat, Status> {
    let first = timeout(HELLO_TIMEOUT, heartbeats.message()).await;
    let first = first.map_err(|_| Status::deadline_exceeded("the first heartbeat, with `hello`, did not come"))?;
    first?.ok_or_else(no_hello)
}

/// Returns the `hello` of a first heartbeat.
pub(crate) fn hello_in(first: &Heartbeat) -> Result<&Hello, Status> {
    first.hello.as_ref().ok_or_else(no_hello)
}

pub(crate) fn no_hello() -> Status {
    Status::invalid_argument("`hello` is missing: expected it in the first heartbeat of a stream, and in every Poll")
}

/// Ends a stream with an error. A pod that does not read does not learn of it.
pub(crate) async fn fail(events: &Events, error: Status) {
    let _ = timeout(LAST_WORD_TIMEOUT, events.send(Err(error))).await;
}

/// Returns a duration as a message, or `None` if it is too long for one.
pub(crate) fn span(span: Duration) -> Option<prost_types::Duration> {
    span.try_into().ok()
}

/// The events that a pod was sent, and the heartbeats that came back.
#[derive(Debug)]
pub(crate) struct EventFlow {
    /// The number of the last event.
    seq: u64,
    reader: EventReader,
    is_stuck: bool,
    reports: Reports,
    /// The newest heartbeat.
    beat: u64,
    /// The newest heartbeat that is confirmed.
    confirmed: u64,
    /// The newest heartbeat whose confirmation has been sent to the pod.
    told: u64,
}

impl EventFlow {
    /// Returns the flow of a stream that began with this heartbeat.
    pub(crate) fn new(first: &Heartbeat) -> Self {
        EventFlow {
            seq: 0,
            reader: EventReader::default(),
            is_stuck: false,
            reports: Reports::default(),
            beat: first.seq,
            confirmed: 0,
            told: 0,
        }
    }

    /// Takes a heartbeat, which says what the pod has applied.
    pub(crate) fn on_heartbeat(&mut self, heartbeat: &Heartbeat) {
        self.beat = self.beat.max(heartbeat.seq);
        self.reader.applied(heartbeat.seen, micros(boottime()));
    }

    /// Returns the newest heartbeat.
    pub(crate) fn beat(&self) -> u64 {
        self.beat
    }

    /// Returns whether the newest heartbeat is not confirmed yet.
    pub(crate) fn has_unconfirmed(&self) -> bool {
        self.beat > self.confirmed
    }

    /// Confirms the heartbeats up to this one.
    pub(crate) fn confirm(&mut self, beat: u64) {
        self.confirmed = beat;
    }

    /// Returns whether the pod has not been sent the newest confirmation.
    pub(crate) fn owes_confirmation(&self) -> bool {
        self.confirmed > self.told
    }

    /// Returns whether no event has been sent.
    pub(crate) fn is_new(&self) -> bool {
        self.seq == 0
    }

    /// Returns whether the pod may be sent more before it has applied what it was sent.
    pub(crate) fn has_room(&self) -> bool {
        self.behind() < WINDOW
    }

    /// Returns how many events the pod has not applied.
    pub(crate) fn behind(&self) -> u64 {
        self.reader.behind()
    }

    /// Examines whether the pod has left an event unapplied for longer than a lease of this TTL permits. Returns whether
    /// the answer has changed.
    pub(crate) fn examine_reader(&mut self, ttl: Duration) -> bool {
        let is_stuck = self.reader.is_stuck(micros(boottime()), micros(ttl));
        is_stuck != std::mem::replace(&mut self.is_stuck, is_stuck)
    }

    /// Returns whether the pod applied no events when that was last examined.
    pub(crate) fn is_stuck(&self) -> bool {
        self.is_stuck
    }

    /// Takes what the pod reports of the tasks that are due.
    pub(crate) fn report(&mut self, due: &[RemoteTask], reported: &[Progress]) {
        self.reports.take(due, reported);
    }

    /// Shows operators the state of the stream.
    pub(crate) fn show(&self, due: &[RemoteTask], status: &mut StreamStatus) {
        status.behind = self.behind();
        status.is_stuck = self.is_stuck;
        status.tasks = self.reports.of(due);
    }

    /// Adds the newest confirmation to an event, and numbers it. Returns `None` if there is nothing to tell.
    pub(crate) fn next(&mut self, mut event: Event) -> Option<Event> {
        let Event { welcome, assignment, tasks, dropped, .. } = &event;
        let tells = welcome.is_some() || assignment.is_some() || !tasks.is_empty() || !dropped.is_empty();
        if !tells && !self.owes_confirmation() {
            return None;
        }
        if self.owes_confirmation() {
            event.confirmed = self.confirmed;
            self.told = self.confirmed;
        }
        Some(self.number(event))
    }

    /// Tells the pod to connect again, elsewhere if it can.
    pub(crate) async fn go_away(&mut self, events: &Events, why: &str) {
        let go_away = GoAway { why: why.to_owned(), within: span(GO_AWAY_WITHIN) };
        let event = self.number(Event { go_away: Some(go_away), ..Event::default() });
        let _ = timeout(GO_AWAY_WITHIN, events.send(Ok(event))).await;
    }

    fn number(&mut self, event: Event) -> Event {
        self.seq += 1;
        self.reader.sent(self.seq, micros(boottime()));
        Event { seq: self.seq, ..event }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::Welcome;

    fn beat(seq: u64, seen: u64) -> Heartbeat {
        Heartbeat { seq, seen, ..Heartbeat::default() }
    }

    #[test]
    fn a_confirmation_is_sent_once_and_an_event_without_news_never() {
        let mut flow = EventFlow::new(&beat(1, 0));
        assert_eq!(flow.next(Event::default()), None, "nothing is confirmed");
        let first = flow.next(Event { welcome: Some(Welcome::default()), ..Event::default() }).unwrap();
        assert_eq!((first.seq, first.confirmed), (1, 0));
        flow.on_heartbeat(&beat(7, 1));
        flow.on_heartbeat(&beat(5, 1));
        assert_eq!(flow.beat(), 7, "an older one came late");
        flow.confirm(7);
        let second = flow.next(Event::default()).unwrap();
        assert_eq!((second.seq, second.confirmed), (2, 7));
        assert_eq!(flow.next(Event::default()), None);
        assert!(!flow.has_unconfirmed());
    }

    #[test]
    fn a_pod_that_applies_nothing_is_sent_no_more_than_a_window() {
        let mut flow = EventFlow::new(&beat(1, 0));
        for seq in 1..=WINDOW {
            assert!(flow.has_room(), "before event {seq}");
            flow.number(Event::default());
        }
        assert!(!flow.has_room());
        flow.on_heartbeat(&beat(2, 1));
        assert!(flow.has_room());
    }
}
