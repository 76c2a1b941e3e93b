//! What serves the requests of a connection: the data path itself, or layers of tower around it.
//!
//! # Invariants
//!
//! * Without layers a request costs what it would cost if there were no such choice: the future of the data path is
//!   neither wrapped nor dispatched at run time.

use std::future::Future;
use std::rc::Rc;

use bytes::Bytes;
use http::{Request, Response, Version};
use http_body::Body;
use tower::{BoxError, Layer, Service, ServiceExt as _};

use crate::forward::response_body::ResponseBody;
use crate::forward::service::ClientService;
use crate::forward::{ClientGone, ClientInfo, Forward};
use crate::message::client_body::ClientBody;
use crate::upstream::HeadLines;

/// A worker's data path, and what stands around it.
#[derive(Debug, Clone)]
pub(super) struct DataPath<M> {
    pub(super) forward: Forward,
    pub(super) layers: M,
}

impl<M: Layers> DataPath<M> {
    /// Returns what serves the requests of this client's connection.
    pub(super) fn for_client(&self, client: Rc<ClientInfo>) -> M::Service {
        self.layers.around(ClientService::new(self.forward.clone(), client))
    }
}

/// What is put around the data path, connection by connection.
pub(super) trait Layers: Clone + Send + 'static {
    type Service: ServeRequest;

    fn around(&self, service: ClientService) -> Self::Service;
}

/// Serves one request after the other, or many at a time by HTTP/2.
pub(super) trait ServeRequest: 'static {
    type Body: Body<Data = Bytes, Error: Into<BoxError>> + 'static;
    type Error: Into<BoxError>;

    fn serve(
        &self,
        request: Request<ClientBody>,
    ) -> impl Future<Output = Result<Response<Self::Body>, Self::Error>> + 'static + use<Self>;

    /// Takes the headers of a response by HTTP/1.1, if they are lines and its map has none of them.
    fn take_lines(_: &mut Self::Body) -> Option<HeadLines> {
        None
    }
}

/// No layers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bare;

impl Layers for Bare {
    type Service = ClientService;

    fn around(&self, service: ClientService) -> ClientService {
        service
    }
}

impl ServeRequest for ClientService {
    type Body = ResponseBody;
    type Error = ClientGone;

    fn serve(
        &self,
        request: Request<ClientBody>,
    ) -> impl Future<Output = Result<Response<ResponseBody>, ClientGone>> + 'static + use<> {
        let takes_lines = request.version() == Version::HTTP_11;
        self.forward(request, takes_lines)
    }

    fn take_lines(body: &mut ResponseBody) -> Option<HeadLines> {
        body.take_lines()
    }
}

/// Layers of tower.
#[derive(Debug, Clone)]
pub(super) struct TowerLayers<L>(pub(super) L);

/// A service that a layer has made. It is cloned for each request, as tower's clients do.
pub(super) struct LayeredService<S>(S);

/// A service around the data path, as a layer makes it of the [`ClientService`] of a connection. Every service of requests
/// that can be cloned is one.
pub trait AroundDataPath:
    Service<Request<ClientBody>, Response = Response<Self::Body>, Error: Into<BoxError>, Future: 'static> + Clone + 'static
{
    /// The body of its responses.
    type Body: Body<Data = Bytes, Error: Into<BoxError>> + 'static;
}

impl<S, B> AroundDataPath for S
where
    S: Service<Request<ClientBody>, Response = Response<B>, Error: Into<BoxError>, Future: 'static> + Clone + 'static,
    B: Body<Data = Bytes, Error: Into<BoxError>> + 'static,
{
    type Body = B;
}

impl<L, S> Layers for TowerLayers<L>
where
    L: Layer<ClientService, Service = S> + Clone + Send + 'static,
    S: AroundDataPath,
{
    type Service = LayeredService<S>;

    fn around(&self, service: ClientService) -> LayeredService<S> {
        LayeredService(self.0.layer(service))
    }
}

impl<S: AroundDataPath> ServeRequest for LayeredService<S> {
    type Body = <S as AroundDataPath>::Body;
    type Error = S::Error;

    fn serve(
        &self,
        request: Request<ClientBody>,
    ) -> impl Future<Output = Result<Response<Self::Body>, S::Error>> + 'static + use<S> {
        self.0.clone().oneshot(request)
    }
}
