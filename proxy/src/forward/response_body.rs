//! The body of a response on its way to the client.
//!
//! # Invariants
//!
//! * The exchange counts as in flight until the pod has sent all of the body.
//! * Severing ends it, and so does silence, even if the client has stopped reading or sends its request byte by byte.
//! * A response that is cut off ends with an error, never as a shorter response, and is counted once.

use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::LazyLock;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::in_flight::InFlight;
use super::read_on::see_rest_through;
use super::request::ForwardRequest;
use crate::message::request_body::RequestBody;
use crate::metrics::CutOffCause;
use crate::runtime::coarse_timer::{OnExpiry, TimerEntry, TimerKey};
use crate::upstream::{Broken, ExchangeGuard, HeadLines, ResponseStream};

/// The body of a response.
pub struct ResponseBody {
    kind: Kind,
    lines: Option<HeadLines>,
}

enum Kind {
    /// The whole body; empty once taken.
    Whole(Bytes),
    Streaming(Rc<StreamingBody>),
}

/// Why a response ends early. An HTTP/2 client sees its stream reset with `INTERNAL_ERROR`, which gRPC reads as
/// `INTERNAL` and which permits no retry; after the client's own deadline the code is `CANCEL`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResponseError {
    /// The pod broke the exchange off.
    Broken,
    /// The partition was severed at the end of its drain.
    Severed,
    /// No bytes have flowed for too long.
    Idle,
    /// The deadline that a gRPC call's client gave has passed.
    Deadline,
}

impl From<ResponseError> for CutOffCause {
    fn from(error: ResponseError) -> Self {
        match error {
            ResponseError::Broken => CutOffCause::Broken,
            ResponseError::Severed => CutOffCause::Severed,
            ResponseError::Idle => CutOffCause::Idle,
            ResponseError::Deadline => CutOffCause::Deadline,
        }
    }
}

impl std::fmt::Display for ResponseError {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(match self {
            ResponseError::Broken => "the pod broke off the response",
            ResponseError::Severed => "the partition was handed over before the response had ended",
            ResponseError::Idle => "nothing has flowed for too long",
            ResponseError::Deadline => "the call's deadline has passed",
        })
    }
}

impl std::error::Error for ResponseError {
    /// Returns the error in which hyper's server looks for the code of a stream reset.
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        static CANCEL: LazyLock<h2::Error> = LazyLock::new(|| h2::Reason::CANCEL.into());
        match self {
            ResponseError::Deadline => Some(&*CANCEL),
            _ => None,
        }
    }
}

struct StreamingBody {
    state: RefCell<State>,
    /// Notified once the pod is done or the body is no longer read.
    over: Notify,
}

struct State {
    live: Option<(ResponseStream, Box<InFlight>)>,
    error: Option<ResponseError>,
    progress: Instant,
    /// The request, which may still be uploading.
    request: RequestBody,
    waker: Option<Waker>,
    key: Option<TimerKey>,
}

impl State {
    /// Returns when bytes flowed last, in either direction. An upload that is slower than allowed does not count:
    /// otherwise a byte now and then would keep a response open that its client does not read.
    fn last_progress(&self) -> Instant {
        let is_slow = self.request.upload_due().is_some_and(|due| due <= Instant::now());
        let upload = self.request.upload().filter(|_| !is_slow);
        upload.map_or(self.progress, |upload| upload.progress.max(self.progress))
    }
}

impl std::fmt::Debug for ResponseBody {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.kind {
            Kind::Whole(bytes) => out.debug_tuple("Whole").field(&bytes.len()).finish(),
            Kind::Streaming(_) => out.write_str("Streaming"),
        }
    }
}

impl ResponseBody {
    pub(crate) fn whole(bytes: Bytes) -> Self {
        ResponseBody { kind: Kind::Whole(bytes), lines: None }
    }

    /// Takes the headers of the response, if they are lines and its map has none of them.
    pub(crate) fn take_lines(&mut self) -> Option<HeadLines> {
        self.lines.take()
    }

    /// Returns the body of a pod's response. If it has arrived in full, the exchange is over at once.
    pub(super) fn from_pod(mut stream: ResponseStream, mut in_flight: Box<InFlight>, request: &ForwardRequest) -> Self {
        let lines = stream.take_lines();
        let whole = stream.take_whole();
        if whole.is_none() || stream.is_uploading() {
            in_flight.outlives(request);
        }
        if let Some(whole) = whole {
            in_flight.completed();
            stream.finish(in_flight);
            return ResponseBody { kind: Kind::Whole(whole), lines };
        }
        let timer = in_flight.shared().timer.clone();
        let streaming = Rc::new(StreamingBody {
            state: RefCell::new(State {
                live: Some((stream, in_flight)),
                error: None,
                progress: timer.now(),
                request: request.body.clone(),
                waker: None,
                key: None,
            }),
            over: Notify::new(),
        });
        let key = timer.register(TimerEntry::Call(streaming.clone()));
        streaming.state.borrow_mut().key = Some(key);
        ResponseBody { kind: Kind::Streaming(streaming), lines }
    }
}

impl StreamingBody {
    /// Ends the exchange. Returns what was left of it.
    fn close(&self, state: &mut State) -> Option<(ResponseStream, Box<InFlight>)> {
        let live = state.live.take()?;
        if let Some(key) = state.key.take() {
            live.1.shared().timer.cancel(key);
        }
        self.over.notify_one();
        Some(live)
    }

    fn fail(&self, error: ResponseError) {
        let mut state = self.state.borrow_mut();
        let live = self.close(&mut state);
        if let Some((_, in_flight)) = &live {
            in_flight.cut_off(error.into());
        }
        state.error = Some(error);
        let waker = state.waker.take();
        drop(state);
        // This closes the connection, then leaves the gate.
        drop(live);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn poll_frame(&self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, ResponseError>>> {
        let state = &mut *self.state.borrow_mut();
        let Some((stream, in_flight)) = &mut state.live else {
            return Poll::Ready(state.error.take().map(Err));
        };
        let polled = stream.poll_frame(context);
        let (over, whole) = match &polled {
            Poll::Pending => {
                match &mut state.waker {
                    Some(waker) if waker.will_wake(context.waker()) => {}
                    waker => *waker = Some(context.waker().clone()),
                }
                return Poll::Pending;
            }
            Poll::Ready(Some(Ok(_))) => {
                state.progress = in_flight.shared().timer.now();
                (stream.is_done(), true)
            }
            Poll::Ready(Some(Err(_))) => (true, false),
            Poll::Ready(None) => (true, true),
        };
        if over && let Some((stream, in_flight)) = self.close(state) {
            if whole {
                in_flight.completed();
                stream.finish(in_flight);
            } else {
                in_flight.cut_off(CutOffCause::Broken);
                drop(stream);
                drop(in_flight);
            }
        }
        polled.map(|frame| frame.map(|frame| frame.map_err(ResponseError::from)))
    }
}

impl From<Broken> for ResponseError {
    fn from(_: Broken) -> Self {
        ResponseError::Broken
    }
}

impl OnExpiry for StreamingBody {
    /// Starts a task that watches over the body from here on, because the client may not be reading.
    fn overdue(self: Rc<Self>) {
        tokio::task::spawn_local(async move {
            let (severed, idle, slack, deadline) = match &self.state.borrow().live {
                Some((_, in_flight)) => {
                    let shared = in_flight.shared();
                    (in_flight.sever_token(), shared.idle_timeout, shared.timer.tick(), in_flight.deadline())
                }
                None => return,
            };
            loop {
                let silent = self.state.borrow().last_progress() + idle + slack;
                let due = deadline.map_or(silent, |deadline| deadline.min(silent));
                tokio::select! {
                    () = self.over.notified() => return,
                    () = severed.cancelled() => return self.fail(ResponseError::Severed),
                    () = tokio::time::sleep_until(due) => {
                        if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                            return self.fail(ResponseError::Deadline);
                        }
                        if self.state.borrow().last_progress() + idle + slack <= Instant::now() {
                            return self.fail(ResponseError::Idle);
                        }
                    }
                }
            }
        });
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = ResponseError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ResponseError>>> {
        match &mut self.kind {
            Kind::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            Kind::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Kind::Streaming(streaming) => streaming.poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Whole(bytes) => bytes.is_empty(),
            Kind::Streaming(streaming) => {
                let state = streaming.state.borrow();
                state.live.is_none() && state.error.is_none()
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Kind::Streaming(streaming) => match &streaming.state.borrow().live {
                Some((stream, _)) => stream.size_hint(),
                None => SizeHint::default(),
            },
        }
    }
}

impl Drop for ResponseBody {
    fn drop(&mut self) {
        if let Kind::Streaming(streaming) = &self.kind {
            let live = streaming.close(&mut streaming.state.borrow_mut());
            if let Some((stream, in_flight)) = live {
                see_rest_through(stream, in_flight);
            }
        }
    }
}
