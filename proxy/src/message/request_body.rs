//! The body of a request on its way to a pod, kept until it cannot be needed a second time.
//!
//! A pod that answers 421 has done nothing, so the request goes to another: its body must still be there. What was handed
//! out is kept up to a bound; past it the request cannot be sent again. While a request is held its body is read ahead up
//! to the same bound, because HTTP/1.1 servers notice a client that hangs up only where they read, and because what has arrived
//! is what the stash counts where no length is known.
//! A body beyond the bound for bodies is broken off where it passes it, or not begun if its length says so.
//! What must stay true: a body that the client cut off is never handed out as a complete one; nothing more than the bound
//! and one frame is kept; at most one attempt reads it.

use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::Version;
use http::request::Parts;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::Instant;

use crate::message::frames::poll_telling_frame;
use crate::message::local_reply::is_grpc;
use crate::message::reserved::Reserved;
use crate::runtime::coarse_timer::CoarseTimer;

/// How much of a body is kept for another attempt, and read ahead while held. One request's share of the stash: 1,000 held
/// requests with bodies of this size are the default bound of a partition's stash (64 MiB), and most writes are smaller.
pub(crate) const KEPT_BYTES: usize = 64 << 10;
/// What a frame that is kept counts for at least: it takes that much even if it is a single byte.
const SMALLEST: usize = 256;

/// A request's body; what is left of it and what may be needed again.
#[derive(Clone)]
pub(crate) struct RequestBody {
    /// `None`: there is no body.
    source: Option<Rc<RefCell<Source>>>,
}

struct Source {
    incoming: Incoming,
    reserved: Rc<Reserved>,
    http2: bool,
    length: Option<u64>,
    /// How much more of it may come.
    allowed: u64,
    kept: Vec<Bytes>,
    /// What comes behind, read ahead: copied, because a frame holds on to all that was read from the client along with it.
    ahead: BytesMut,
    kept_bytes: usize,
    trailers: Option<Box<http::HeaderMap>>,
    reading: Reading,
    /// Frames were handed out that are not kept.
    partial: bool,
    /// The outcome is definite: nothing more has to be kept.
    settled: bool,
    attempt: u32,
    watch: CoarseTimer,
    progress: Instant,
    awaits_client: bool,
    /// How long pods have waited for the client so far, and since when one does.
    waited: Duration,
    waits_since: Instant,
    /// Bytes that have come from the client.
    received: u64,
    /// How fast they have to come; none: as slowly as they like.
    pace: Option<Pace>,
}

/// How fast clients have to send.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    /// Bytes a second of the time that a pod waits for them; 0: as slow as may be.
    pub(crate) rate: u64,
    /// How long a pod waits in all before any of them have to be there.
    pub(crate) grace: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Reading {
    Open,
    Ended,
    Broken,
    TooLarge,
}

/// Why a body does not go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BodyError {
    /// The client did not send all of it.
    #[error("the client did not send the whole body")]
    CutOff,
    /// There is more of it than there may be.
    #[error("the body is too large")]
    TooLarge,
    /// Another attempt has taken it over.
    #[error("the request was taken back")]
    TakenBack,
}

/// What an upload is waiting for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Upload {
    /// When something of it was handed out last.
    pub(crate) progress: Instant,
    /// More of it has to come from the client first.
    pub(crate) awaits_client: bool,
    /// Since when the client is waited for, and how long it was waited for before that.
    waits_since: Instant,
    waited: Duration,
    received: u64,
}

impl Upload {
    /// Until when the client has to send more to be as fast as it must be on average. Only while it is waited for.
    fn due(&self, pace: Pace) -> Option<Instant> {
        let earned = Duration::from_millis(self.received.saturating_mul(1000).checked_div(pace.rate)?);
        // Counted from where the waiting would have begun had it been one piece. From `waits_since` on, a time that is used
        // up would begin anew with each byte.
        let begun = self.waits_since.checked_sub(self.waited)?;
        self.awaits_client.then(|| begun + pace.grace + earned)
    }
}

impl RequestBody {
    /// `most`: how large it may be. Streams of gRPC may be as slow as they like: they are not always uploads.
    pub(crate) fn new(
        incoming: Incoming,
        head: &Parts,
        most: u64,
        pace: Pace,
        reserved: &Rc<Reserved>,
        watch: &CoarseTimer,
    ) -> Self {
        if incoming.is_end_stream() {
            return RequestBody { source: None };
        }
        let length = incoming.size_hint().exact();
        let reading = if length.is_some_and(|length| length > most) { Reading::TooLarge } else { Reading::Open };
        RequestBody {
            source: Some(Rc::new(RefCell::new(Source {
                incoming,
                reserved: reserved.clone(),
                http2: head.version == Version::HTTP_2,
                length,
                allowed: most,
                kept: Vec::new(),
                ahead: BytesMut::new(),
                kept_bytes: 0,
                trailers: None,
                reading,
                partial: false,
                settled: false,
                attempt: 0,
                watch: watch.clone(),
                progress: watch.now(),
                awaits_client: false,
                waited: Duration::ZERO,
                waits_since: watch.now(),
                received: 0,
                pace: (!is_grpc(&head.headers)).then_some(pace),
            }))),
        }
    }

    /// There is none, or its length is known.
    pub(crate) fn is_sized(&self) -> bool {
        self.source.as_ref().is_none_or(|source| source.borrow().length.is_some())
    }

    /// It has turned out to be larger than it may be.
    pub(crate) fn is_too_large(&self) -> bool {
        self.source.as_ref().is_some_and(|source| source.borrow().reading == Reading::TooLarge)
    }

    /// Whether some of it has not been read from the client yet.
    pub(crate) fn is_unread(&self) -> bool {
        self.source.as_ref().is_some_and(|source| {
            let source = source.borrow();
            source.reading != Reading::Ended && !source.incoming.is_end_stream()
        })
    }

    /// Reads and forgets what the client has sent already, up to the bound of what is kept otherwise. No attempt can be made
    /// any more.
    pub(crate) async fn discard_what_has_arrived(&self) {
        let Some(source) = &self.source else { return };
        self.take_back();
        source.borrow_mut().forget();
        let mut left = KEPT_BYTES;
        let mut has_waited = false;
        while source.borrow().reading == Reading::Open && left > 0 {
            let polled = std::future::poll_fn(|context| Poll::Ready(source.borrow_mut().poll_incoming(context))).await;
            match polled {
                Poll::Ready(Some(Ok(frame))) => {
                    left = left.saturating_sub(frame.data_ref().map_or(0, Bytes::len));
                    has_waited = false;
                }
                Poll::Ready(_) => return,
                // hyper reads from the connection once it has been asked and comes round to it.
                Poll::Pending if !has_waited => {
                    has_waited = true;
                    tokio::task::yield_now().await;
                }
                Poll::Pending => return,
            }
        }
    }

    /// What waiting with it costs in memory: what it may come to, or, where its length is not known, what has arrived.
    pub(crate) fn weight(&self) -> usize {
        self.source.as_ref().map_or(0, |source| {
            let source = source.borrow();
            let length = source.length.and_then(|length| usize::try_from(length).ok());
            length.map_or(source.kept_bytes, |length| length.min(KEPT_BYTES))
        })
    }

    /// Reads ahead, until the bound or the end. Ready means that there is nothing more to do, not that it has ended.
    pub(crate) fn poll_read_ahead(&self, context: &mut Context<'_>) -> Poll<Result<(), BodyError>> {
        let Some(source) = &self.source else {
            return Poll::Ready(Ok(()));
        };
        let source = &mut *source.borrow_mut();
        loop {
            match source.reading {
                Reading::Broken => return Poll::Ready(Err(BodyError::CutOff)),
                Reading::TooLarge => return Poll::Ready(Err(BodyError::TooLarge)),
                Reading::Ended => return Poll::Ready(Ok(())),
                Reading::Open if source.kept_bytes >= KEPT_BYTES || source.partial => return Poll::Ready(Ok(())),
                Reading::Open => {}
            }
            if let Some(frame) = ready!(source.poll_incoming(context)) {
                match frame.map(Frame::into_data)? {
                    Ok(data) => {
                        source.kept_bytes += data.len();
                        source.ahead.extend_from_slice(&data);
                    }
                    Err(frame) => source.trailers = frame.into_trailers().ok().map(Box::new),
                }
            }
        }
    }

    /// Takes in what has arrived, as far as it is kept. Returns whether that is all of it.
    pub(crate) fn is_here(&self) -> impl Future<Output = Result<bool, BodyError>> {
        std::future::poll_fn(|context| Poll::Ready(self.has_arrived(context)))
    }

    fn has_arrived(&self, context: &mut Context<'_>) -> Result<bool, BodyError> {
        let Some(source) = &self.source else { return Ok(true) };
        let source = &mut *source.borrow_mut();
        while source.reading == Reading::Open && source.kept_bytes < KEPT_BYTES && !source.partial {
            let Poll::Ready(frame) = source.poll_incoming(context) else { break };
            match frame.transpose()?.map(Frame::into_data) {
                Some(Ok(data)) => {
                    if !source.ahead.is_empty() {
                        let ahead = std::mem::take(&mut source.ahead).freeze();
                        source.kept.push(ahead);
                    }
                    source.keep(data);
                }
                Some(Err(frame)) => source.trailers = frame.into_trailers().ok().map(Box::new),
                None => {}
            }
        }
        match source.reading {
            Reading::Ended => Ok(true),
            Reading::Open => Ok(false),
            Reading::Broken => Err(BodyError::CutOff),
            Reading::TooLarge => Err(BodyError::TooLarge),
        }
    }

    /// The body from its beginning, for one more attempt. `None`: some of it is gone.
    pub(crate) fn attempt(&self) -> Option<Attempt> {
        let Some(source) = &self.source else {
            return Some(Attempt { source: None, number: 0, next: 0, left: Some(0), trailers_given: true });
        };
        let mut inner = source.borrow_mut();
        if inner.partial {
            return None;
        }
        if !inner.ahead.is_empty() {
            let ahead = std::mem::take(&mut inner.ahead).freeze();
            inner.kept.push(ahead);
        }
        inner.attempt += 1;
        inner.ends_waiting();
        inner.progress = inner.watch.now();
        Some(Attempt {
            source: Some(source.clone()),
            number: inner.attempt,
            next: 0,
            left: inner.length,
            trailers_given: false,
        })
    }

    /// Whether another attempt could be made.
    pub(crate) fn is_whole(&self) -> bool {
        self.source.as_ref().is_none_or(|source| !source.borrow().partial)
    }

    /// Nobody reads it any more until the next attempt.
    pub(crate) fn take_back(&self) {
        if let Some(source) = &self.source {
            let source = &mut *source.borrow_mut();
            source.attempt += 1;
            source.ends_waiting();
        }
    }

    /// The outcome is definite: no further attempt will be made.
    pub(crate) fn settle(&self) {
        if let Some(source) = &self.source {
            source.borrow_mut().settled = true;
        }
    }

    /// How far the upload is; `None` if there is none.
    pub(crate) fn upload(&self) -> Option<Upload> {
        Some(self.source.as_ref()?.borrow().upload())
    }

    /// Until when more of it has to arrive for its client to be fast enough.
    pub(crate) fn upload_due(&self) -> Option<Instant> {
        self.source.as_ref()?.borrow().upload_due()
    }
}

impl Source {
    fn upload(&self) -> Upload {
        let Source { progress, awaits_client, waits_since, waited, received, .. } = *self;
        Upload { progress, awaits_client, waits_since, waited, received }
    }

    fn upload_due(&self) -> Option<Instant> {
        self.upload().due(self.pace?)
    }

    fn poll_incoming(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match ready!(poll_telling_frame(&mut self.incoming, context)) {
            Some(Ok(mut frame)) => {
                if let Some(trailers) = frame.trailers_mut() {
                    self.reserved.clean_trailers(trailers);
                    // Nothing follows them, and the attempt that has got them does not ask again.
                    self.reading = Reading::Ended;
                }
                let length = frame.data_ref().map_or(0, |data| data.len() as u64);
                let Some(allowed) = self.allowed.checked_sub(length) else {
                    self.reading = Reading::TooLarge;
                    return Poll::Ready(Some(Err(BodyError::TooLarge)));
                };
                self.allowed = allowed;
                self.received += length;
                Poll::Ready(Some(Ok(frame)))
            }
            // hyper ends the body of a stream that its client reset with NO_ERROR as if it were complete.
            None if !self.http2 || self.incoming.is_end_stream() => {
                self.reading = Reading::Ended;
                Poll::Ready(None)
            }
            None | Some(Err(_)) => {
                self.reading = Reading::Broken;
                Poll::Ready(Some(Err(BodyError::CutOff)))
            }
        }
    }

    fn begins_waiting(&mut self) {
        if !std::mem::replace(&mut self.awaits_client, true) {
            self.waits_since = self.watch.now();
        }
    }

    fn ends_waiting(&mut self) {
        if std::mem::take(&mut self.awaits_client) {
            self.waited += self.watch.now().saturating_duration_since(self.waits_since);
        }
    }

    fn keep(&mut self, data: Bytes) {
        self.kept_bytes += data.len().max(SMALLEST);
        self.kept.push(data);
    }
}

/// One attempt's reading of the body.
pub(crate) struct Attempt {
    source: Option<Rc<RefCell<Source>>>,
    number: u32,
    next: usize,
    /// What is left of a body whose length is known.
    left: Option<u64>,
    trailers_given: bool,
}

impl Body for Attempt {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = &mut *self;
        let Some(source) = &this.source else {
            return Poll::Ready(None);
        };
        let source = &mut *source.borrow_mut();
        if source.attempt != this.number {
            return Poll::Ready(Some(Err(BodyError::TakenBack)));
        }
        source.ends_waiting();
        if let Some(data) = source.kept.get(this.next) {
            this.next += 1;
            source.progress = source.watch.now();
            let data = data.clone();
            if source.settled && this.next == source.kept.len() {
                source.forget();
                this.next = 0;
            }
            this.left = this.left.map(|left| left.saturating_sub(data.len() as u64));
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        if let (Some(trailers), false) = (&source.trailers, this.trailers_given) {
            this.trailers_given = true;
            return Poll::Ready(Some(Ok(Frame::trailers((**trailers).clone()))));
        }
        match source.reading {
            Reading::Ended => return Poll::Ready(None),
            Reading::Broken => return Poll::Ready(Some(Err(BodyError::CutOff))),
            Reading::TooLarge => return Poll::Ready(Some(Err(BodyError::TooLarge))),
            Reading::Open => {}
        }
        let Poll::Ready(frame) = source.poll_incoming(context) else {
            source.begins_waiting();
            return Poll::Pending;
        };
        source.progress = source.watch.now();
        let Some(frame) = frame.transpose()? else {
            return Poll::Ready(None);
        };
        Poll::Ready(Some(Ok(match frame.into_data() {
            Ok(data) => {
                this.left = this.left.map(|left| left.saturating_sub(data.len() as u64));
                if source.settled || source.kept_bytes >= KEPT_BYTES {
                    source.partial = true;
                    source.forget();
                    this.next = 0;
                } else if !source.partial {
                    source.keep(data.clone());
                    this.next += 1;
                }
                Frame::data(data)
            }
            Err(frame) => {
                if let Some(trailers) = frame.trailers_ref() {
                    source.trailers = Some(Box::new(trailers.clone()));
                    this.trailers_given = true;
                }
                frame
            }
        })))
    }

    fn is_end_stream(&self) -> bool {
        let Some(source) = &self.source else {
            return true;
        };
        let source = source.borrow();
        // By HTTP/1.1 a length that has arrived in full is the end. By HTTP/2 trailers may follow, or a reset.
        (self.left == Some(0) && !source.http2) || source.has_ended_after(self)
    }

    fn size_hint(&self) -> SizeHint {
        self.left.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

impl Source {
    /// Whether it is known that the attempt has been given everything. Told along with the last frame of data, the end needs
    /// no frame of its own.
    fn has_ended_after(&self, attempt: &Attempt) -> bool {
        let all_given = attempt.next == self.kept.len() && self.trailers.is_none() && self.attempt == attempt.number;
        let all_here = match self.reading {
            Reading::Open => self.incoming.is_end_stream(),
            Reading::Ended => true,
            Reading::Broken | Reading::TooLarge => false,
        };
        all_given && all_here
    }

    fn forget(&mut self) {
        self.partial = true;
        self.kept = Vec::new();
        self.kept_bytes = 0;
    }
}

impl Attempt {
    /// The length of what is left, where it is known.
    pub(crate) fn left(&self) -> Option<u64> {
        self.left
    }

    /// Until when more of the body has to arrive for its client to be fast enough.
    pub(crate) fn upload_due(&self) -> Option<Instant> {
        self.source.as_ref()?.borrow().upload_due()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_allowance_that_is_used_up_is_not_renewed_by_the_next_byte() {
        let begun = Instant::now();
        let seconds = Duration::from_secs;
        let after = |waited: Duration, received| Upload {
            progress: begun + waited,
            awaits_client: true,
            waits_since: begun + waited,
            waited,
            received,
        };
        let due = |upload: Upload| upload.due(Pace { rate: 10, grace: seconds(5) }).unwrap();
        assert_eq!(due(after(seconds(0), 0)), begun + seconds(5));
        assert_eq!(due(after(seconds(3), 20)), begun + seconds(7));
        assert_eq!(due(after(seconds(60), 30)), begun + seconds(8));
    }
}
