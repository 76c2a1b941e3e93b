//! The pods whose requests a sidecar forwards, one for each keyspace. Others may be added while it serves.
//!
//! # Invariants
//!
//! * A request goes to one of the pods that are there when it arrives.
//! * A request for a keyspace that is not there yet is refused as one that names no keyspace of the listener.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use futures_util::future::Either;
use http::{Request, Response};
use hyper::body::Incoming;
use segue_coordination::pod::{ByKeyspace, OwnedBody, OwnershipLayer, OwnershipService, refuse_unstamped};
use tower::Service as _;
use tower::layer::Layer as _;
use tower::util::Oneshot;

use super::body::SidecarBody;
use super::count_answers::CountAnswers;
use super::forwarder::Forwarder;
use super::traffic::Traffic;
use super::upstream::Upstream;

/// The service of one pod.
type PodService = CountAnswers<OwnershipService<Forwarder>>;

/// A pod with its way to the service.
type Pod = (OwnershipLayer, (Forwarder, Arc<Traffic>));

/// The pods whose requests a sidecar forwards. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct SidecarPods(Arc<RwLock<Pods>>);

#[derive(Debug, Default)]
struct Pods {
    each: Vec<Pod>,
    /// The service of all of them. `None` without a pod.
    service: Option<ByKeyspace<PodService>>,
}

impl SidecarPods {
    /// Forwards the requests that this layer accepts to the service, with the traffic of that pod's keyspace.
    pub fn add(&self, layer: OwnershipLayer, upstream: Upstream) {
        let traffic = upstream.traffic.clone();
        let pod = (layer, (Forwarder::new(upstream), traffic));
        let mut pods = self.0.write().unwrap_or_else(PoisonError::into_inner);
        pods.each.push(pod);
        let each = pods.each.clone();
        pods.service = Some(ByKeyspace::new(each, |layer, (forwarder, traffic)| CountAnswers {
            inner: layer.layer(forwarder),
            traffic,
        }));
    }

    fn read(&self) -> RwLockReadGuard<'_, Pods> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FromIterator<(OwnershipLayer, Upstream)> for SidecarPods {
    fn from_iter<I: IntoIterator<Item = (OwnershipLayer, Upstream)>>(pods: I) -> Self {
        let all = SidecarPods::default();
        pods.into_iter().for_each(|(layer, upstream)| all.add(layer, upstream));
        all
    }
}

/// The service of each of the sidecar's connections.
#[derive(Debug, Clone)]
pub(super) struct ServePods(pub(super) SidecarPods);

impl hyper::service::Service<Request<Incoming>> for ServePods {
    type Response = Response<OwnedBody<SidecarBody>>;
    type Error = Infallible;
    type Future = Either<Oneshot<PodService, Request<Incoming>>, Ready<Result<Self::Response, Infallible>>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let service = self.0.read().service.clone();
        match service {
            Some(mut service) => Either::Left(service.call(request)),
            None => Either::Right(ready(Ok(refuse_unstamped(request.headers())))),
        }
    }
}
