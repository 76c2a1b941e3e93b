//! The body of a response that passes the layer: the service's body, counted as in flight until its end and cut off
//! when the lease is over; or the layer's own.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project::pin_project;
use tokio_util::sync::WaitForCancellationFutureOwned;
use tower::BoxError;

use super::ownership::InFlight;

/// The response was cut off because the pod lost its lease. The connection, or the stream, has to be reset.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("the pod lost its lease while it responded")]
pub struct LeaseLost;

/// A response body of [`OwnershipService`](super::OwnershipService).
#[pin_project]
#[derive(Debug)]
pub struct OwnedBody<R> {
    #[pin]
    kind: BodyKind<R>,
}

#[pin_project(project = KindProjection)]
#[derive(Debug)]
enum BodyKind<R> {
    /// Fields are dropped in this order.
    Passing {
        #[pin]
        inner: R,
        #[pin]
        lost: WaitForCancellationFutureOwned,
        in_flight: Option<InFlight>,
    },
    Own(Option<Bytes>),
}

impl<R: Body> OwnedBody<R> {
    pub(super) fn passing(inner: R, in_flight: InFlight) -> Self {
        let lost = in_flight.lost();
        let in_flight = (!inner.is_end_stream()).then_some(in_flight);
        OwnedBody { kind: BodyKind::Passing { inner, lost, in_flight } }
    }

    pub(super) fn own(bytes: Bytes) -> Self {
        OwnedBody { kind: BodyKind::Own(Some(bytes).filter(|bytes| !bytes.is_empty())) }
    }
}

impl<R> Body for OwnedBody<R>
where
    R: Body<Data = Bytes>,
    R::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let mut this = self.project();
        let (mut inner, lost, in_flight) = match this.kind.as_mut().project() {
            KindProjection::Own(bytes) => return Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            KindProjection::Passing { inner, lost, in_flight } => (inner, lost, in_flight),
        };
        let Some(held) = in_flight else {
            // The body has ended: its end is repeated.
            return inner.poll_frame(context).map_err(Into::into);
        };
        // The clock is checked before and after: this thread, too, may have been stopped for long.
        let frame = match held.is_lost() {
            true => None,
            false => match inner.as_mut().poll_frame(context) {
                Poll::Ready(frame) => (!held.is_lost()).then_some(frame),
                Poll::Pending => {
                    ready!(lost.poll(context));
                    None
                }
            },
        };
        let Some(frame) = frame else {
            let held = in_flight.take();
            this.kind.set(BodyKind::Own(None));
            drop(held);
            return Poll::Ready(Some(Err(LeaseLost.into())));
        };
        if !matches!(&frame, Some(Ok(_))) || inner.is_end_stream() {
            *in_flight = None;
        }
        Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            BodyKind::Passing { inner, .. } => inner.is_end_stream(),
            BodyKind::Own(bytes) => bytes.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            BodyKind::Passing { inner, .. } => inner.size_hint(),
            BodyKind::Own(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64),
        }
    }
}
