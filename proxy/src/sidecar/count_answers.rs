//! A service that counts what routers are answered ([`Traffic::count_answer`]).

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::{Request, Response};
use pin_project::pin_project;
use tower::Service;

use super::traffic::Traffic;

#[derive(Debug, Clone)]
pub(super) struct CountAnswers<S> {
    pub(super) inner: S,
    pub(super) traffic: Arc<Traffic>,
}

impl<S, B, R> Service<Request<B>> for CountAnswers<S>
where
    S: Service<Request<B>, Response = Response<R>>,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = CountAnswer<S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        CountAnswer { inner: self.inner.call(request), traffic: self.traffic.clone() }
    }
}

#[pin_project]
#[derive(Debug)]
pub(super) struct CountAnswer<F> {
    #[pin]
    inner: F,
    traffic: Arc<Traffic>,
}

impl<F, R, E> Future for CountAnswer<F>
where
    F: Future<Output = Result<Response<R>, E>>,
{
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let answer = ready!(this.inner.poll(context));
        if let Ok(response) = &answer {
            this.traffic.count_answer(response.status());
        }
        Poll::Ready(answer)
    }
}
