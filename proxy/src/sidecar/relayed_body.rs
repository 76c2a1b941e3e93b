//! The body of a response that one task reads from the service while another writes it to the router.
//!
//! `http_body_util`'s channel does not fit: it looks for a frame and then, separately, for the end. A frame that is sent
//! between the two, and after which the sender is dropped, is lost.
//!
//! # Invariants
//!
//! * Every frame that was sent is handed out before the end, or before the error that takes its place.
//! * Only [`BodySender::end`] ends a body. One whose sender is dropped was cut off.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame};
use tokio::sync::{mpsc, oneshot};
use tower::BoxError;

/// The exchange with the service was ended before its response.
#[derive(Debug, thiserror::Error)]
#[error("the response was cut off")]
struct BodyCutOff;

/// The side that is read from the service.
#[derive(Debug)]
pub(super) struct BodySender {
    frames: mpsc::Sender<Frame<Bytes>>,
    outcome: oneshot::Sender<Result<(), BoxError>>,
}

/// The side that is written to the router.
#[derive(Debug)]
pub(super) struct RelayedBody {
    frames: mpsc::Receiver<Frame<Bytes>>,
    outcome: oneshot::Receiver<Result<(), BoxError>>,
    ended: bool,
}

/// Returns both sides. At most `room` frames are read ahead.
pub(super) fn relayed_body(room: usize) -> (BodySender, RelayedBody) {
    let (to_body, frames) = mpsc::channel(room);
    let (decide, outcome) = oneshot::channel();
    (BodySender { frames: to_body, outcome: decide }, RelayedBody { frames, outcome, ended: false })
}

impl BodySender {
    /// Hands a frame over once there is room. Returns whether the router still takes frames.
    pub(super) async fn send(&self, frame: Frame<Bytes>) -> bool {
        self.frames.send(frame).await.is_ok()
    }

    /// Returns once the router takes no frames any more.
    pub(super) async fn closed(&self) {
        self.frames.closed().await;
    }

    /// Ends the body as a whole one.
    pub(super) fn end(self) {
        let _ = self.outcome.send(Ok(()));
    }

    /// Ends the body with an error, after the frames that were sent.
    pub(super) fn abort(self, error: BoxError) {
        let _ = self.outcome.send(Err(error));
    }
}

impl Body for RelayedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Some(frame) = ready!(self.frames.poll_recv(context)) {
            return Poll::Ready(Some(Ok(frame)));
        }
        if std::mem::replace(&mut self.ended, true) {
            return Poll::Ready(None);
        }
        // The sender is gone, and what it decided it decided before.
        Poll::Ready(match self.outcome.try_recv() {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(Err(error)),
            Err(_) => Some(Err(BodyCutOff.into())),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::task::{Wake, Waker};

    use futures_util::FutureExt as _;
    use http_body_util::BodyExt as _;

    use super::*;

    /// A waker that does something when a later poll replaces it.
    struct OnReplaced<F: FnOnce() + Send + Sync + 'static>(Option<F>);

    impl<F: FnOnce() + Send + Sync + 'static> Wake for OnReplaced<F> {
        fn wake(self: Arc<Self>) {}
    }

    impl<F: FnOnce() + Send + Sync + 'static> Drop for OnReplaced<F> {
        fn drop(&mut self) {
            self.0.take().into_iter().for_each(|act| act());
        }
    }

    #[test]
    fn a_frame_and_the_end_that_arrive_during_a_poll_are_both_handed_out() {
        let (sender, mut body) = relayed_body(1);
        let act = move || {
            assert!(sender.send(Frame::data(Bytes::from_static(b"all"))).now_or_never().unwrap());
            sender.end();
        };
        let waker = Waker::from(Arc::new(OnReplaced(Some(act))));
        assert!(Pin::new(&mut body).poll_frame(&mut Context::from_waker(&waker)).is_pending());
        drop(waker);
        let Poll::Ready(Some(Ok(frame))) = Pin::new(&mut body).poll_frame(&mut Context::from_waker(Waker::noop()))
        else {
            panic!("the frame is lost");
        };
        assert_eq!(frame.into_data().unwrap(), "all");
        assert!(body.frame().now_or_never().unwrap().is_none());
        assert!(body.frame().now_or_never().unwrap().is_none());
    }

    #[test]
    fn a_body_that_was_not_ended_was_cut_off_after_its_frames() {
        for error in [None, Some("broken")] {
            let (sender, mut body) = relayed_body(2);
            assert!(sender.send(Frame::data(Bytes::from_static(b"some"))).now_or_never().unwrap());
            match error {
                None => drop(sender),
                Some(error) => sender.abort(error.into()),
            }
            assert!(body.frame().now_or_never().unwrap().unwrap().is_ok());
            let end = body.frame().now_or_never().unwrap().unwrap().unwrap_err();
            assert_eq!(end.to_string(), error.unwrap_or("the response was cut off"));
            assert!(body.frame().now_or_never().unwrap().is_none());
        }
    }
}
