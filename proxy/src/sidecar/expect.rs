//! A request's body on its way to the service. It is cut off where the router cuts it off, and withheld until the
//! service asks for it if the client waits for that (`Expect: 100-continue`).
//!
//! Both need code of their own here. When a router severs an exchange it resets its stream with `CANCEL`, and hyper
//! ends the body of such a stream as if it were complete. And hyper's client would read a body at once, at which
//! hyper's server sends `100 Continue`.
//!
//! # Invariants
//!
//! * A body that was cut off is never handed out as a complete one.
//! * No client gets `100 Continue` before the service has sent it, or has had the time to.
//! * Nothing is handed out once the pod's lease is lost, even after the exchange's own task has ended.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{Request, StatusCode, Version};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::sync::{Notify, oneshot};
use tokio_util::sync::WaitForCancellationFutureOwned;
use tower::BoxError;

use crate::message::expect_continue::{CONTINUE_TIMEOUT, expects_continue};

/// The router has reset the stream before its end, or the pod's lease is lost.
#[derive(Debug, thiserror::Error)]
#[error("the request was cut off")]
struct UploadCutOff;

/// How the upload of a request to the service ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Upload {
    /// The whole body was read for the service.
    Whole,
    /// The body was cut off on this side: the service may work on what it has.
    CutOff,
    /// The service read no more of the body: its stream was reset, or its connection is gone.
    Refused,
}

pub(super) struct ServiceRequestBody {
    /// `None` if there is no body.
    incoming: Option<Incoming>,
    http2: bool,
    /// Resolves once the service has sent `100 Continue`, or has had the time to.
    asked_for: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    /// `None` if there is no body.
    lost: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    /// The outcome if this is dropped now.
    outcome: Upload,
    ended: Option<oneshot::Sender<Upload>>,
}

impl ServiceRequestBody {
    /// Wraps a request for the service that came by HTTP/2 or not. Returns it and the outcome of its upload. `lost` resolves
    /// when the lease is lost.
    pub(super) fn of(
        request: Request<Incoming>,
        http2: bool,
        lost: WaitForCancellationFutureOwned,
    ) -> (Request<Self>, oneshot::Receiver<Upload>) {
        // By HTTP/2 hyper does not report informational responses, so there the body follows its head.
        let expects = !http2 && request.version() != Version::HTTP_2 && expects_continue(request.headers());
        let (ended, upload) = oneshot::channel();
        let mut request = request.map(|incoming| ServiceRequestBody {
            incoming: Some(incoming),
            http2,
            asked_for: None,
            lost: Some(Box::pin(lost)),
            outcome: Upload::Refused,
            ended: Some(ended),
        });
        if expects {
            let told = Arc::new(Notify::new());
            let tell = told.clone();
            hyper::ext::on_informational(&mut request, move |answer| {
                if answer.status() == StatusCode::CONTINUE {
                    tell.notify_one();
                }
            });
            request.body_mut().asked_for = Some(Box::pin(async move {
                let _ = tokio::time::timeout(CONTINUE_TIMEOUT, told.notified()).await;
            }));
        }
        (request, upload)
    }
}

impl ServiceRequestBody {
    /// Returns the body of a request that has none.
    pub(super) fn none() -> Self {
        ServiceRequestBody {
            incoming: None,
            http2: false,
            asked_for: None,
            lost: None,
            outcome: Upload::Whole,
            ended: None,
        }
    }
}

impl Drop for ServiceRequestBody {
    fn drop(&mut self) {
        let outcome = if self.is_end_stream() { Upload::Whole } else { self.outcome };
        let _ = self.ended.take().map(|ended| ended.send(outcome));
    }
}

impl Body for ServiceRequestBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Some(lost) = &mut self.lost
            && lost.as_mut().poll(context).is_ready()
        {
            self.outcome = Upload::CutOff;
            return Poll::Ready(Some(Err(UploadCutOff.into())));
        }
        if let Some(asked_for) = &mut self.asked_for {
            ready!(asked_for.as_mut().poll(context));
            self.asked_for = None;
        }
        let Some(incoming) = &mut self.incoming else { return Poll::Ready(None) };
        let frame = match ready!(Pin::new(incoming).poll_frame(context)) {
            None if self.http2 && !self.is_end_stream() => Some(Err(UploadCutOff.into())),
            frame => frame.map(|frame| frame.map_err(Into::into)),
        };
        match &frame {
            None => self.outcome = Upload::Whole,
            Some(Err(_)) => self.outcome = Upload::CutOff,
            Some(Ok(_)) => {}
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.as_ref().is_none_or(Incoming::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.as_ref().map_or_else(|| SizeHint::with_exact(0), Incoming::size_hint)
    }
}
