//! Faults in a pod's writes, although the pod and its guard work as they should.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Either, Full};
use hyper::body::{Body, Incoming};
use segue_demo::wiring::{PodService, boxed};
use tower::{BoxError, Service, ServiceExt};

/// What goes wrong.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Mishap {
    /// Every 20th write is acknowledged and not done.
    DropsWrites,
    /// Every 5th write is acknowledged first and done a little later.
    AnswersFirst,
    /// Every 10th write is done again, as by a middlebox that sends requests again.
    SendsTwice,
}

impl Mishap {
    /// Returns a service that passes requests on to `service`, with mishaps.
    pub(crate) fn before<S, B>(self, service: S) -> PodService
    where
        S: Service<Request<Full<Bytes>>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
        S::Future: Send + 'static,
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let writes = Arc::new(AtomicU64::new(0));
        boxed(tower::service_fn(move |request: Request<Incoming>| {
            let (service, writes) = (service.clone(), writes.clone());
            async move {
                let (head, body) = request.into_parts();
                let Ok(body) = body.collect().await else {
                    let mut broken = Response::new(Either::Right(Full::<Bytes>::default()));
                    *broken.status_mut() = StatusCode::BAD_REQUEST;
                    return Ok(broken);
                };
                let request = Request::from_parts(head, Full::new(body.to_bytes()));
                let is_write = request.method() != Method::GET;
                let answer = match is_write && writes.fetch_add(1, Relaxed).is_multiple_of(self.every()) {
                    true => self.befall(request, service).await,
                    false => service.oneshot(request).await,
                };
                answer.map(|answer| answer.map(Either::Left))
            }
        }))
    }

    fn every(self) -> u64 {
        match self {
            Mishap::DropsWrites => 20,
            Mishap::AnswersFirst => 5,
            Mishap::SendsTwice => 10,
        }
    }

    async fn befall<S, B>(self, write: Request<Full<Bytes>>, service: S) -> Result<Response<B>, Infallible>
    where
        S: Service<Request<Full<Bytes>>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
        S::Future: Send + 'static,
        B: Send + 'static,
    {
        // The answer to a read says what that to a write does, except that anything was written.
        let mut first = write.clone();
        if !matches!(self, Mishap::SendsTwice) {
            *first.method_mut() = Method::GET;
        }
        let answer = service.clone().oneshot(first).await?;
        match self {
            _ if !answer.status().is_success() => {}
            Mishap::DropsWrites => {}
            Mishap::SendsTwice => drop(service.oneshot(write).await?),
            Mishap::AnswersFirst => {
                tokio::spawn(async move {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    service.oneshot(write).await
                });
            }
        }
        Ok(answer)
    }
}
