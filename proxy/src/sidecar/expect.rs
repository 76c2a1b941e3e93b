//! A request's body on its way to the service, which waits to be asked for where the client waits for that
//! (`Expect: 100-continue`).
//!
//! hyper's client would read it at once, and hyper's server take that for leave to tell the client to go on. What must
//! stay true: no client is told to go on before the service has said so, or has had the time to.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::header::EXPECT;
use http::{Request, StatusCode, Version};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::sync::Notify;

/// How long a service that was told `Expect: 100-continue` may stay silent before it is sent the body all the same.
const CONTINUE_WAIT: Duration = Duration::from_secs(1);

pub(super) struct RequestBody {
    incoming: Incoming,
    /// Ends when the service has said so, or has had the time to.
    asked_for: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl RequestBody {
    pub(super) fn of(request: Request<Incoming>) -> Request<Self> {
        let asks = |value: &http::HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"100-continue");
        // By HTTP/2 hyper tells of no informational answer; there the body follows its head.
        let expects = request.version() != Version::HTTP_2 && request.headers().get(EXPECT).is_some_and(asks);
        let mut request = request.map(|incoming| RequestBody { incoming, asked_for: None });
        if expects {
            let told = Arc::new(Notify::new());
            let tell = told.clone();
            hyper::ext::on_informational(&mut request, move |answer| {
                if answer.status() == StatusCode::CONTINUE {
                    tell.notify_one();
                }
            });
            request.body_mut().asked_for = Some(Box::pin(async move {
                let _ = tokio::time::timeout(CONTINUE_WAIT, told.notified()).await;
            }));
        }
        request
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        if let Some(asked_for) = &mut self.asked_for {
            ready!(asked_for.as_mut().poll(context));
            self.asked_for = None;
        }
        Pin::new(&mut self.incoming).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}
