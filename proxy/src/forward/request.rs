//! One request, and what the router knows of it before it is sent anywhere.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http::header::{CONNECTION, COOKIE, HeaderMap, HeaderValue, MAX_FORWARDS};
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{Method, Request, Response, StatusCode, Uri, Version};
use segue_protocol::ids::{Epoch, PartitionId};
use tokio::time::Instant;

use super::context::{ClientInfo, WorkerContext};
use super::trace::RequestTrace;
use crate::message::client_body::{ClientBody, ClientSwitch};
use crate::message::grpc_timeout;
use crate::message::header_names;
use crate::message::header_scan::{HeaderScan, is_host};
use crate::message::headers;
use crate::message::local_reply::LocalReply;
use crate::message::request_body::RequestBody;
use crate::message::reserved::ReservedHeaders;
use crate::routing::client_share::ShareGuard;
use crate::routing::keyspace_choice::NoKeyspace;
use crate::routing::request_summary::RequestSummary;
use crate::routing::table::Pod;
use crate::upstream::ResponseHead;

/// Most headers of a request, as many as the server takes by HTTP/1.1.
const MAX_HEADERS: usize = 100;

/// A request, and what is known of it before it is sent anywhere. There is one for each exchange and it stays where it
/// is: attempts and the wait for a turn refer to it.
pub(crate) struct ForwardRequest {
    pub(crate) head: Parts,
    pub(crate) scan: HeaderScan,
    pub(crate) body: RequestBody,
    pub(crate) peer: Rc<ClientInfo>,
    pub(crate) arrived: Instant,
    /// The time by which the client wants the whole response.
    pub(crate) deadline: Option<Instant>,
    /// Yields the client's connection if the pod switches protocols. `None` unless the client asked for a switch.
    pub(crate) switch: Option<ClientSwitch>,
    /// Why the request is for no keyspace. `None`: it is for one.
    pub(super) unmatched: Option<NoKeyspace>,
    /// `None` until it is known.
    pub(super) partition: Option<PartitionId>,
    /// Whether whoever writes the response takes headers that are lines.
    pub(super) takes_lines: bool,
    /// Whether a pod has ended a connection with an error, possibly because of this request.
    pub(crate) was_rejected: bool,
    /// Whether it was sent again because a pod had closed its connection unanswered.
    pub(super) was_repeated: bool,
    /// `None` unless the request is sampled.
    pub(super) trace: Option<Rc<RequestTrace>>,
    /// The attempt that has failed last. Boxed: few requests have one.
    pub(super) tried: Option<Box<FailedAttempt>>,
}

/// An attempt that the log names.
pub(super) struct FailedAttempt {
    pub(super) pod: Arc<Pod>,
    /// `None` for a request without a key.
    pub(super) epoch: Option<Epoch>,
    /// How long the request was held before it.
    pub(super) held: Duration,
}

impl ForwardRequest {
    /// Passes an informational response of the pod on to an HTTP/1.1 client.
    pub(crate) fn send_interim(&self, head: &ResponseHead) {
        if self.head.version == Version::HTTP_11 {
            self.peer.interim.push(head.status, &head.headers);
        }
    }

    pub(super) fn new(
        shared: &WorkerContext,
        request: Request<ClientBody>,
        peer: Rc<ClientInfo>,
        takes_lines: bool,
    ) -> Self {
        let arrived = Instant::now();
        let scan = HeaderScan::of(request.headers());
        let upgrades = scan.upgrade && headers::wants_upgrade(request.version(), request.headers());
        let switch = if upgrades { request.body().on_switch() } else { None };
        let (mut head, incoming) = request.into_parts();
        let tracer = shared.tracer.as_ref().filter(|tracer| scan.traceparent || tracer.takes_others());
        let trace =
            tracer.and_then(|tracer| RequestTrace::begin(tracer, &mut head, (&peer, &shared.reserved), arrived));
        let body =
            RequestBody::new(incoming, &head, shared.max_body_bytes, shared.pace, &shared.reserved, &shared.timer);
        let timeout = if scan.grpc_timeout { grpc_timeout::timeout(&head.headers) } else { None };
        let deadline = timeout.and_then(|timeout| arrived.checked_add(timeout));
        ForwardRequest {
            head,
            scan,
            body,
            peer,
            arrived,
            deadline,
            switch,
            unmatched: None,
            partition: None,
            takes_lines,
            was_rejected: false,
            was_repeated: false,
            trace,
            tried: None,
        }
    }

    /// Returns whether it may be sent again although a pod may have acted on it: it asks for nothing but a response, and has
    /// not been sent again before.
    pub(super) fn may_be_repeated(&self) -> bool {
        self.head.method.is_safe() && self.body.is_empty() && self.switch.is_none() && !self.was_repeated
    }

    /// Adds `Connection: close` to a response that precedes the end of its request's body: the rest of the body stands
    /// before any next request. By HTTP/2 the response is counted.
    pub(super) fn announce_close<B>(&self, response: &mut Response<B>) {
        if !self.body.is_unread() || response.status() == StatusCode::SWITCHING_PROTOCOLS {
            return;
        }
        if self.head.version == Version::HTTP_2 {
            self.peer.unread_uploads.set(self.peer.unread_uploads.get().saturating_add(1));
        } else {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
    }

    /// Returns an error if the request cannot be passed on at all.
    pub(super) fn check(&self, reserved: &ReservedHeaders) -> Result<(), LocalReply> {
        if self.head.method == Method::CONNECT {
            // CONNECT asks for a tunnel to some host, not for a partition.
            return Err(LocalReply::NoPartition);
        }
        if self.body.is_too_large() {
            return Err(LocalReply::BodyTooLarge);
        }
        if self.head.version == Version::HTTP_2 && has_too_many(&self.head.headers) {
            return Err(LocalReply::HeadTooLarge);
        }
        let has_no_host = self.head.version == Version::HTTP_11 && !self.scan.host;
        let has_bad_target = self.scan.is_bad_host || !is_target(&self.head.method, &self.head.uri);
        // The server refuses such names in HTTP/1.1.
        let has_bad_name =
            self.head.version == Version::HTTP_2 && self.head.headers.keys().any(header_names::has_quote);
        if has_no_host
            || has_bad_target
            || has_bad_name
            || headers::is_ambiguous(&self.head.headers, self.body.is_sized())
        {
            return Err(LocalReply::Ambiguous);
        }
        if self.scan.connection
            && let Some(refused) = headers::refuse_options(&self.head.headers, reserved)
        {
            return Err(refused);
        }
        self.unmatched.map_or(Ok(()), |why| Err(why.into()))
    }

    /// Refuses a TRACE, and counts down how often an OPTIONS may still be forwarded (RFC 9110, 7.6.2).
    pub(super) fn limit_forwarding(&mut self) -> Result<(), LocalReply> {
        match self.head.method {
            Method::TRACE => Err(LocalReply::Trace),
            Method::OPTIONS => count_down(&mut self.head.headers),
            _ => Ok(()),
        }
    }

    /// Counts the request towards its client, unless the client is at its limit. Whoever stands in front of the router says
    /// who the client is, if it is trusted.
    pub(super) fn claim(&self, reserved: &ReservedHeaders) -> Option<ShareGuard> {
        match reserved.forwarded_client(&self.head.headers) {
            None => self.peer.usage.claim(),
            Some(ip) => self.peer.addresses.usage(ip).claim(),
        }
    }

    /// Returns what operators see of the request while it lasts. Its client is the one that `claim` counts it towards.
    pub(super) fn summary(&self, reserved: &ReservedHeaders) -> RequestSummary {
        let client = self.peer.name(reserved.forwarded_client(&self.head.headers));
        RequestSummary::new(&self.head.method, &self.head.uri, &client)
    }

    /// Returns about how many bytes the request takes up in memory.
    pub(crate) fn weight(&self) -> usize {
        // Memory beside the text: the request's own bookkeeping.
        const REQUEST_BYTES: usize = 512;
        let uri = self.head.uri.path_and_query().map_or(1, |path| path.as_str().len());
        REQUEST_BYTES + uri + self.scan.weight as usize + self.body.weight()
    }
}

/// Returns whether there are more headers than the servers of HTTP/1.1 take, which count for themselves. The pieces in which
/// HTTP/2 may carry cookies are one header.
fn has_too_many(headers: &HeaderMap) -> bool {
    let too_many = |headers: usize| headers > MAX_HEADERS;
    too_many(headers.len()) && too_many(headers.len() - headers.get_all(COOKIE).iter().count().saturating_sub(1))
}

/// Returns whether this is the target of a request for a resource: a path, a URI with a scheme, or the `*` of OPTIONS
/// (RFC 9112, 3.2). `http` also reads a bare authority, the form of CONNECT, and by HTTP/2 an empty scheme. An authority takes
/// the place of `Host`, so it is one host as well, without a user.
fn is_target(method: &Method, uri: &Uri) -> bool {
    if uri.scheme_str() == Some("") || uri.authority().is_some_and(|host| !is_host(host.as_str().as_bytes())) {
        return false;
    }
    match uri.path_and_query().map(PathAndQuery::as_str) {
        Some("*") => *method == Method::OPTIONS,
        Some(path) => uri.scheme().is_some() || path.starts_with('/'),
        None => uri.scheme().is_some(),
    }
}

/// Counts down `Max-Forwards`. A value that is no number is left as it is.
fn count_down(headers: &mut HeaderMap) -> Result<(), LocalReply> {
    let mut values = headers.get_all(MAX_FORWARDS).iter();
    let (Some(value), None) = (values.next(), values.next()) else { return Ok(()) };
    let digits = value.as_bytes();
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return Ok(());
    }
    // A number that does not fit is counted down to the largest that does, as the RFC has it.
    let left = value.to_str().ok().and_then(|digits| digits.parse::<u64>().ok()).unwrap_or(u64::MAX);
    let left = left.checked_sub(1).ok_or(LocalReply::LastHop)?;
    headers.insert(MAX_FORWARDS, HeaderValue::from(left));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn max_forwards_is_counted_down_to_the_last_hop() {
        let after = |values: &[&'static str]| {
            let mut headers = values.iter().map(|value| (MAX_FORWARDS, HeaderValue::from_static(value))).collect();
            count_down(&mut headers).map(|()| {
                let left = headers.get_all(MAX_FORWARDS).iter();
                left.map(|value| value.to_str().unwrap().to_owned()).collect::<Vec<_>>().join(",")
            })
        };
        assert_eq!(after(&["0"]), Err(LocalReply::LastHop));
        assert_eq!(after(&["000"]), Err(LocalReply::LastHop));
        for (value, left) in [("1", "0"), ("10", "9"), ("-1", "-1"), ("", ""), ("1 0", "1 0")] {
            assert_eq!(after(&[value]).as_deref(), Ok(left), "{value:?}");
        }
        assert_eq!(after(&["99999999999999999999"]), Ok((u64::MAX - 1).to_string()));
        assert_eq!(after(&["0", "5"]).as_deref(), Ok("0,5"));
        assert_eq!(after(&[]).as_deref(), Ok(""));
    }

    #[test]
    fn a_target_is_a_path_or_has_a_scheme() {
        let is_target = |target| is_target(&Method::GET, &Uri::try_from(target).unwrap());
        for target in ["/", "/a:1", "//h/x", "/?q", "http://h", "http://h?q", "https://h:1/x"] {
            assert!(is_target(target), "{target}");
        }
        for other in ["a", "h:80", "user@h", "*", "http://h,g/", "http://user@h/", "http://a@b@h/"] {
            assert!(!is_target(other), "{other}");
        }
        assert!(super::is_target(&Method::OPTIONS, &Uri::from_static("*")));
    }
}
