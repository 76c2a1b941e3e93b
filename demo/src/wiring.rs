//! Joins the parts of a cluster, for programs that put something of their own between them.
//!
//! By default a cluster joins its parts as `segue run` and a writer pod do. [`Options::wiring`](super::Options::wiring)
//! can put another data plane between a router's control side and its table, and another service in front of a writer.

use std::convert::Infallible;
use std::fmt::Debug;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::BodyExt as _;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::{Body, Incoming};
use segue_coordination::pod::PodHandle;
use segue_coordination::router::DataPlane;
use segue_proxy::routing::table::Table;
use tower::util::BoxCloneService;
use tower::{BoxError, Layer as _, Service};

use super::history::History;
use super::writer::{Writer, WriterService};

/// Joins the parts of a cluster. The default methods join them as production does.
pub trait ClusterWiring: Debug + Send + Sync {
    /// Returns the data plane that a router's control side stops and switches: the router's `table`.
    fn data_plane(&self, _router: u32, table: Arc<Table>, _history: &History) -> Arc<dyn DataPlane> {
        table
    }

    /// Returns the service for a pod's requests: the writer behind the layer that refuses what the pod does not own.
    fn service(&self, pod: &PodHandle, writer: &Writer) -> PodService {
        boxed(pod.layer().layer(WriterService::new(writer.clone())))
    }
}

/// The service for a pod's requests.
pub type PodService = BoxCloneService<Request<Incoming>, Response<UnsyncBoxBody<Bytes, BoxError>>, Infallible>;

/// Makes a [`PodService`] of any HTTP service.
pub fn boxed<S, B>(service: S) -> PodService
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let unsync = |answer: Response<B>| answer.map(|body| body.map_err(Into::into).boxed_unsync());
    BoxCloneService::new(tower::ServiceExt::map_response(service, unsync))
}
