//! One listener for the pods of several keyspaces: each request goes to the service of the keyspace that it names.
//!
//! # Invariants
//!
//! * A request that names another keyspace, or none, gets no further than the layer of the first pod, which refuses it.
//! * A request clones one service, however many keyspaces there are.

use std::sync::Arc;
use std::task::{Context, Poll};

use http::Request;
use tower::util::Oneshot;
use tower_service::Service;

use super::layer::{KEYSPACE, OwnershipLayer};

/// The services of several pods, each behind the [`OwnershipLayer`] of its pod. It is cheap to clone, which servers do for
/// each request.
///
/// The connections of a listener share the services, which therefore have to be [`Sync`] and [`Clone`]. A request clones its
/// service and waits for it in its response future: [`poll_ready`](Service::poll_ready) is always ready.
#[derive(Debug)]
pub struct ByKeyspace<S> {
    pods: Arc<[(String, S)]>,
}

impl<S> Clone for ByKeyspace<S> {
    fn clone(&self) -> Self {
        ByKeyspace { pods: self.pods.clone() }
    }
}

impl<S> ByKeyspace<S> {
    /// Returns the service of these pods, at least one, with what `service` returns for each layer and the value beside
    /// it.
    pub fn new<T>(pods: Vec<(OwnershipLayer, T)>, service: impl Fn(OwnershipLayer, T) -> S) -> Self {
        let are_several = pods.len() > 1;
        let pods = pods.into_iter().map(|(layer, value)| {
            let layer = if are_several { layer.needing_keyspace() } else { layer };
            (layer.keyspace().to_owned(), service(layer, value))
        });
        ByKeyspace { pods: pods.collect() }
    }
}

impl<S, B> Service<Request<B>> for ByKeyspace<S>
where
    S: Service<Request<B>> + Clone,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Oneshot<S, Request<B>>;

    /// Ready at all times: a request waits for the service that it goes to.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let named = request.headers().get(KEYSPACE).map(|name| name.as_bytes());
        let found = self.pods.iter().position(|(keyspace, _)| named == Some(keyspace.as_bytes()));
        let (_, service) = &self.pods[found.unwrap_or(0)];
        Oneshot::new(service.clone(), request)
    }
}
