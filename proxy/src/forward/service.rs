//! The data path of one client's connection as a tower service, for layers around it.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use http::{Request, Response};
use tower::Service;

use super::response_body::ResponseBody;
use super::{ClientGone, ClientInfo, Forward};
use crate::message::client_body::ClientBody;

/// Forwards the requests of one client's connection. It is ready at all times: a request that cannot be sent yet is held,
/// and one that cannot be held gets a local reply.
///
/// It lives on its worker's thread, so neither the service nor its future is [`Send`].
#[derive(Debug, Clone)]
pub struct ClientService {
    forward: Forward,
    client: Rc<ClientInfo>,
}

impl ClientService {
    pub(crate) fn new(forward: Forward, client: Rc<ClientInfo>) -> Self {
        ClientService { forward, client }
    }

    /// Returns the response to one request, of a pod or of the router itself. `takes_lines`: the headers of the response may
    /// be lines that come with its body.
    pub(crate) fn forward(
        &self,
        request: Request<ClientBody>,
        takes_lines: bool,
    ) -> impl Future<Output = Result<Response<ResponseBody>, ClientGone>> + use<> {
        self.forward.serve(request, self.client.clone(), takes_lines)
    }
}

impl Service<Request<ClientBody>> for ClientService {
    type Response = Response<ResponseBody>;
    type Error = ClientGone;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>>>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ClientGone>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<ClientBody>) -> Self::Future {
        Box::pin(self.forward(request, false))
    }
}
