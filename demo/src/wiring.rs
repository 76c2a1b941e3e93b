//! How the parts of a cluster are joined, for a program that puts something of its own between them.
//!
//! A cluster joins its parts as `segue run` and a writer pod do. With [`Options::wiring`](super::Options::wiring) another
//! data plane can stand between a router's control side and its table, and another service in front of a writer.

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

use super::witness::Witness;
use super::writer::{Writer, WriterService};

/// Joins the parts of a cluster. Each method by default joins them as they belong.
pub trait Wiring: Debug + Send + Sync {
    /// Returns what the control side of a router stops and switches: the router's `table`.
    fn data_plane(&self, _router: u32, table: Arc<Table>, _witness: &Witness) -> Arc<dyn DataPlane> {
        table
    }

    /// Returns what answers a pod's requests: the writer, behind the layer that refuses what the pod does not own.
    fn service(&self, pod: &PodHandle, writer: &Writer) -> PodService {
        boxed(pod.layer().layer(WriterService::new(writer.clone())))
    }
}

/// What answers a pod's requests.
pub type PodService = BoxCloneService<Request<Incoming>, Response<UnsyncBoxBody<Bytes, BoxError>>, Infallible>;

/// Makes a [`PodService`] of any service that answers requests.
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
