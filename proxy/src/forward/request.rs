//! One request, and what the router knows of it before it goes anywhere.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use http::header::{CONNECTION, HeaderValue};
use http::request::Parts;
use http::{Method, Request, Response, StatusCode, Version};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use segue_protocol::ids::PartitionId;
use tokio::time::Instant;

use super::context::{ClientInfo, WorkerContext};
use super::response_body::ResponseBody;
use crate::message::grpc_timeout;
use crate::message::header_scan::HeaderScan;
use crate::message::headers;
use crate::message::local_reply::{LocalReply, is_grpc};
use crate::message::request_body::RequestBody;
use crate::upstream::ResponseHead;

/// A request, and what is known of it before it goes anywhere. It is there once for each exchange and stays where it is:
/// what is on the way to a pod, and who waits, refers to it.
pub(crate) struct ForwardRequest {
    pub(crate) head: Parts,
    pub(crate) scan: HeaderScan,
    pub(crate) body: RequestBody,
    pub(crate) peer: Rc<ClientInfo>,
    pub(crate) arrived: Instant,
    /// Until when its client wants to have all of the answer.
    pub(crate) deadline: Option<Instant>,
    /// Where its client's connection can be had if the pod switches protocols. There if the client has asked for that.
    pub(crate) switch: Option<OnUpgrade>,
    /// Once known.
    pub(super) partition: Option<PartitionId>,
    /// A pod has ended a connection with an error, and the request may be the cause.
    pub(crate) was_rejected: bool,
}

impl ForwardRequest {
    /// A client by HTTP/1.1 is told what its pod says before it answers.
    pub(crate) fn tell_before_the_answer(&self, head: &ResponseHead) {
        if self.head.version == Version::HTTP_11 {
            self.peer.interim.push(head.status, &head.headers);
        }
    }

    pub(super) fn new(shared: &WorkerContext, mut request: Request<Incoming>, peer: Rc<ClientInfo>) -> Self {
        let arrived = Instant::now();
        let scan = HeaderScan::of(request.headers());
        let upgrades = scan.upgrade && headers::wants_upgrade(request.version(), request.headers());
        let switch = upgrades.then(|| hyper::upgrade::on(&mut request));
        let (head, incoming) = request.into_parts();
        let body =
            RequestBody::new(incoming, &head, shared.max_body_bytes, shared.pace, &shared.reserved, &shared.watch);
        let timeout = if scan.grpc_timeout { grpc_timeout::timeout(&head.headers) } else { None };
        let deadline = timeout.and_then(|timeout| arrived.checked_add(timeout));
        ForwardRequest { head, scan, body, peer, arrived, deadline, switch, partition: None, was_rejected: false }
    }

    /// The router's own answer. Takes in first what has arrived of the body, so that the connection can be used again if that
    /// is all of it; by HTTP/2 a stream of its own ends. In a box, as every request would have room for it otherwise.
    #[cold]
    pub(super) fn refuse<'a>(
        &'a self,
        shared: &'a WorkerContext,
        own: LocalReply,
    ) -> Pin<Box<dyn Future<Output = Response<ResponseBody>> + 'a>> {
        Box::pin(async move {
            // A client that asks before it sends would take reading for a yes.
            if self.head.version != Version::HTTP_2 && !self.scan.expect {
                self.body.discard_what_has_arrived().await;
            }
            shared.metrics.answered(own);
            shared.metrics.took(self.arrived.elapsed());
            let mut answer = own.response(self.partition, is_grpc(&self.head.headers)).map(ResponseBody::whole);
            self.announce_close(&mut answer);
            answer
        })
    }

    /// Says on an answer that comes before the end of its request's body that the connection closes: what is left of the
    /// body stands in front of any next request.
    pub(super) fn announce_close(&self, answer: &mut Response<ResponseBody>) {
        if self.head.version != Version::HTTP_2
            && self.body.is_unread()
            && answer.status() != StatusCode::SWITCHING_PROTOCOLS
        {
            answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
    }

    /// Whether it can be passed on at all.
    pub(super) fn check(&self) -> Result<(), LocalReply> {
        if self.head.method == Method::CONNECT {
            // It asks for a connection to somewhere, which is no request for a partition.
            return Err(LocalReply::NoPartition);
        }
        if self.body.is_too_large() {
            return Err(LocalReply::BodyTooLarge);
        }
        let has_no_host = self.head.version == Version::HTTP_11 && !self.scan.host;
        if has_no_host || headers::is_ambiguous(&self.head.headers, self.body.is_sized()) {
            return Err(LocalReply::Ambiguous);
        }
        Ok(())
    }

    /// Bytes that it takes up in memory, about.
    pub(crate) fn weight(&self) -> usize {
        // Beside the text: the request's own bookkeeping.
        const REQUEST: usize = 512;
        let uri = self.head.uri.path_and_query().map_or(1, |path| path.as_str().len());
        REQUEST + uri + self.scan.weight + self.body.weight()
    }
}
