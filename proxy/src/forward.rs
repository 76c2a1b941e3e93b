//! The path of one request: which partition, through its gate, to the pod that owns it, and the answer back.
//!
//! Not here: what an error looks like to the client ([`respond`](crate::respond)), connections
//! (`upstream`), who owns what ([`table`](crate::table)).
//! What must stay true: a request is sent a second time only if it is certain that no pod acted on it; one that is held
//! dies with its client and is never sent; one that may have been sent is seen through whether its client waits or not;
//! a pod's "not mine" never reaches a client.

use std::any::Any;
use std::future::Future;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::Either;
use http::header::{CONNECTION, HeaderValue};
use http::request::Parts;
use http::{Method, Request, Response, StatusCode, Version};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use segue_protocol::ids::PartitionId;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::answer::AnswerBody;
use crate::deadline;
use crate::exchange::{Unanswered, Undone, send};
use crate::fair_share::Usage;
use crate::flight::Flight;
use crate::headers::{self, Identity};
use crate::interim::Interim;
use crate::load::Load;
use crate::local::Background;
use crate::metrics::{Bounce, WorkerMetrics};
use crate::noted::Noted;
use crate::partition::Locator;
use crate::presence::Presence;
use crate::request_body::{Pace, RequestBody};
use crate::reserved::Reserved;
use crate::respond::{Own, is_grpc};
use crate::retry::Budgets;
use crate::settings::ForwardSettings;
use crate::table::{Pod, Refusal, Refused};
use crate::ticket::{Admission, Pass, Ticket, Worker};
use crate::upstream::{AnswerHead, Upstream};
use crate::waiting::{Waiting, table_is_there};
use crate::watch::Watch;

/// One worker's data path.
#[derive(Clone)]
pub struct Forward {
    shared: Rc<Shared>,
}

/// What all requests of a worker share.
pub(crate) struct Shared {
    pub(crate) identity: Identity,
    locator: Locator,
    pub(crate) reserved: Rc<Reserved>,
    pub(crate) worker: Worker,
    pub(crate) upstream: Upstream,
    pub(crate) load: Load,
    pub(crate) budgets: Budgets,
    pub(crate) request_timeout: Duration,
    pub(crate) idle_timeout: Duration,
    pub(crate) max_header_bytes_http2: usize,
    pace: Pace,
    max_body_bytes: u64,
    pub(crate) watch: Watch,
    pub(crate) background: Background,
    /// The router is ending, and what is open without an end is closed.
    pub(crate) ending: CancellationToken,
    pub(crate) metrics: Arc<WorkerMetrics>,
}

/// Who sends a request, and how.
#[derive(Debug, Clone)]
pub struct Peer {
    /// The client's address, as `x-forwarded-for` has it.
    pub address: HeaderValue,
    /// It came by TLS.
    pub secure: bool,
    pub(crate) interim: Interim,
    pub(crate) presence: Presence,
    /// What the client's address uses of the worker.
    pub(crate) usage: Rc<Usage>,
    /// The place of its connection, kept by whoever goes on with the connection after it has switched protocols.
    pub(crate) seat: Weak<dyn Any>,
}

/// The client is gone, or what it sends is not HTTP: there is nobody to answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the client has not sent its whole request")]
pub struct ClientGone;

/// Why a request gets no response of a pod.
pub(crate) enum RouteError {
    /// The router answers itself.
    Own(Own),
    /// There is nobody to answer.
    ClientGone,
}

impl From<Own> for RouteError {
    fn from(own: Own) -> Self {
        RouteError::Own(own)
    }
}

impl From<Refusal> for RouteError {
    fn from(refusal: Refusal) -> Self {
        RouteError::Own(refusal.into())
    }
}

/// A name that cannot be written into a header.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} cannot be the name of a router or keyspace: it goes into a header, so only visible ASCII is allowed")]
pub struct InvalidName(String);

fn header_value(name: &str) -> Result<HeaderValue, InvalidName> {
    let visible = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ');
    let value = HeaderValue::try_from(name).ok().filter(|_| visible);
    value.ok_or_else(|| InvalidName(name.to_owned()))
}

/// Refuses settings that [`Forward::new`] would refuse.
pub(crate) fn check(settings: &ForwardSettings) -> Result<(), InvalidName> {
    header_value(&settings.router).and(header_value(&settings.keyspace)).map(drop)
}

impl std::fmt::Debug for Forward {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Forward").field("router", &self.shared.identity.router).finish_non_exhaustive()
    }
}

impl Forward {
    /// The data path of the worker whose access to the table this is. To be called on that worker's thread, inside its
    /// set of local tasks.
    pub fn new(settings: &ForwardSettings, worker: Worker, metrics: Arc<WorkerMetrics>) -> Result<Self, InvalidName> {
        // Short time-outs want a finer watch; below a millisecond nobody can tell.
        let shortest = settings.upstream.request_timeout.min(settings.upstream.idle_timeout);
        let watch = Watch::new((shortest / 8).clamp(Duration::from_millis(1), Duration::from_millis(50)));
        let shared = Rc::new(Shared {
            identity: Identity::new(header_value(&settings.router)?, header_value(&settings.keyspace)?),
            locator: settings.locator.clone(),
            reserved: Rc::new(Reserved::new(&settings.locator, settings.trust_forwarded)),
            worker,
            upstream: Upstream::new(settings.upstream.clone(), watch.clone()),
            load: Load::new(settings.upstream.max_in_flight_per_pod),
            budgets: Budgets::default(),
            request_timeout: settings.upstream.request_timeout,
            idle_timeout: settings.upstream.idle_timeout,
            max_header_bytes_http2: settings.upstream.max_header_bytes_http2,
            pace: Pace { rate: settings.upstream.min_upload_rate, grace: settings.upstream.upload_grace },
            max_body_bytes: settings.max_body_bytes.map_or(u64::MAX, |bytes| bytes as u64),
            watch,
            background: Background::start(),
            ending: CancellationToken::new(),
            metrics,
        });
        if let Some(mut expected) = shared.worker.expected() {
            let weak = Rc::downgrade(&shared);
            tokio::task::spawn_local(async move {
                // One after the other: many partitions of one pod want the same connection.
                while let Some(slot) = expected.recv().await {
                    let Some(shared) = weak.upgrade() else { break };
                    shared.upstream.prepare(shared.worker.pod(slot)).await;
                }
            });
        }
        let weak = Rc::downgrade(&shared);
        let watch = shared.watch.clone();
        tokio::task::spawn_local(async move {
            watch
                .run(move || match weak.upgrade() {
                    Some(shared) => {
                        shared.upstream.sweep();
                        true
                    }
                    None => false,
                })
                .await;
        });
        Ok(Forward { shared })
    }

    #[cfg(fuzzing)]
    pub(crate) fn idle_timeout(&self) -> Duration {
        self.shared.idle_timeout
    }

    /// Closes all WebSockets, properly.
    pub(crate) fn end_websockets(&self) {
        self.shared.ending.cancel();
    }

    /// Closes idle connections to pods, for want of files; how many those were.
    pub(crate) fn close_idle(&self) -> usize {
        self.shared.upstream.close_idle()
    }

    /// Answers one request of a client.
    pub fn call(
        &self,
        request: Request<Incoming>,
        peer: Rc<Peer>,
    ) -> impl Future<Output = Result<Response<AnswerBody>, ClientGone>> + use<> {
        let shared = self.shared.clone();
        let mut asked = Asked::new(&shared, request, peer);
        async move {
            // In a block of its own, so that what comes of it takes no room while the router's own answer is made.
            let own = {
                let mut open = Open(Some(&shared.metrics));
                let answer = route(&shared, &mut asked).await;
                open.0 = None;
                match answer {
                    Ok(mut answer) => {
                        asked.announce_close(&mut answer);
                        return Ok(answer);
                    }
                    Err(RouteError::ClientGone) => return Err(ClientGone),
                    Err(RouteError::Own(own)) => own,
                }
            };
            Ok(asked.refuse(&shared, own).await)
        }
    }
}

/// A request that is not answered yet.
struct Open<'worker>(Option<&'worker WorkerMetrics>);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        if let Some(metrics) = self.0 {
            metrics.aborted();
        }
    }
}

/// A request, and what is known of it before it goes anywhere. It is there once for each exchange and stays where it is:
/// what is on the way to a pod, and who waits, refers to it.
pub(crate) struct Asked {
    pub(crate) head: Parts,
    pub(crate) noted: Noted,
    pub(crate) body: RequestBody,
    pub(crate) peer: Rc<Peer>,
    pub(crate) arrived: Instant,
    /// Until when its client wants to have all of the answer.
    pub(crate) deadline: Option<Instant>,
    /// Where its client's connection can be had if the pod switches protocols. There if the client has asked for that.
    pub(crate) switch: Option<OnUpgrade>,
    /// Once known.
    partition: Option<PartitionId>,
    /// A pod has ended a connection with an error, and the request may be the cause.
    pub(crate) was_rejected: bool,
}

impl Asked {
    /// A client by HTTP/1.1 is told what its pod says before it answers.
    pub(crate) fn tell_before_the_answer(&self, head: &AnswerHead) {
        if self.head.version == Version::HTTP_11 {
            self.peer.interim.push(head.status, &head.headers);
        }
    }

    fn new(shared: &Shared, mut request: Request<Incoming>, peer: Rc<Peer>) -> Self {
        let arrived = Instant::now();
        let noted = Noted::of(request.headers());
        let upgrades = noted.upgrade && headers::wants_upgrade(request.version(), request.headers());
        let switch = upgrades.then(|| hyper::upgrade::on(&mut request));
        let (head, incoming) = request.into_parts();
        let body =
            RequestBody::new(incoming, &head, shared.max_body_bytes, shared.pace, &shared.reserved, &shared.watch);
        let timeout = if noted.grpc_timeout { deadline::timeout(&head.headers) } else { None };
        let deadline = timeout.and_then(|timeout| arrived.checked_add(timeout));
        Asked { head, noted, body, peer, arrived, deadline, switch, partition: None, was_rejected: false }
    }

    /// The router's own answer. Takes in first what has arrived of the body, so that the connection can be used again if that
    /// is all of it; by HTTP/2 a stream of its own ends. In a box, as every request would have room for it otherwise.
    #[cold]
    fn refuse<'a>(&'a self, shared: &'a Shared, own: Own) -> Pin<Box<dyn Future<Output = Response<AnswerBody>> + 'a>> {
        Box::pin(async move {
            // A client that asks before it sends would take reading for a yes.
            if self.head.version != Version::HTTP_2 && !self.noted.expect {
                self.body.discard_what_has_arrived().await;
            }
            shared.metrics.answered(own);
            shared.metrics.took(self.arrived.elapsed());
            let mut answer = own.answer(self.partition, is_grpc(&self.head.headers)).map(AnswerBody::whole);
            self.announce_close(&mut answer);
            answer
        })
    }

    /// Says on an answer that comes before the end of its request's body that the connection closes: what is left of the
    /// body stands in front of any next request.
    fn announce_close(&self, answer: &mut Response<AnswerBody>) {
        if self.head.version != Version::HTTP_2
            && self.body.is_unread()
            && answer.status() != StatusCode::SWITCHING_PROTOCOLS
        {
            answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
    }

    /// Whether it can be passed on at all.
    fn check(&self) -> Result<(), Own> {
        if self.head.method == Method::CONNECT {
            // It asks for a connection to somewhere, which is no request for a partition.
            return Err(Own::NoPartition);
        }
        if self.body.is_too_large() {
            return Err(Own::BodyTooLarge);
        }
        let has_no_host = self.head.version == Version::HTTP_11 && !self.noted.host;
        if has_no_host || headers::is_ambiguous(&self.head.headers, self.body.is_sized()) {
            return Err(Own::Ambiguous);
        }
        Ok(())
    }

    /// Bytes that it takes up in memory, about.
    pub(crate) fn weight(&self) -> usize {
        // Beside the text: the request's own bookkeeping.
        const REQUEST: usize = 512;
        let uri = self.head.uri.path_and_query().map_or(1, |path| path.as_str().len());
        REQUEST + uri + self.noted.weight + self.body.weight()
    }
}

/// Returns the pod's answer.
///
/// Its future is what a held request costs most, so nothing is kept across an `await` that does not have to be.
async fn route(shared: &Rc<Shared>, asked: &mut Asked) -> Result<Response<AnswerBody>, RouteError> {
    asked.check()?;
    let partitions = match shared.worker.partitions() {
        0 => Box::pin(table_is_there(&shared.worker, asked)).await?,
        partitions => partitions,
    };
    let mut admission = admit(shared, asked, partitions)?;
    loop {
        let waits = matches!(admission, Admission::Held(_));
        let turn = turn(admission, asked);
        let pass = turn.await?;
        if waits {
            shared.metrics.waited(asked.arrived.elapsed());
        }
        let flight = match depart(shared, asked, pass) {
            Ok(flight) => flight,
            Err(spared) => {
                admission = Admission::Held(spared);
                continue;
            }
        };
        admission = Admission::Held(match send(shared, asked, flight).await {
            Ok(answer) => return Ok(answer),
            Err(Unanswered::Own(own)) => return Err(own.into()),
            Err(Unanswered::ClientGone) => return Err(RouteError::ClientGone),
            Err(Unanswered::Undone(pass, cause)) => undone(shared, pass, cause)?,
            Err(Unanswered::Fenced(pass)) => pass.put_back_fenced(),
        });
    }
}

/// When the request may set out.
fn turn(admission: Admission, asked: &mut Asked) -> impl Future<Output = Result<Pass, RouteError>> {
    match admission {
        Admission::Pass(pass) => Either::Left(std::future::ready(Ok(pass))),
        Admission::Held(ticket) => Either::Right(Waiting::new(ticket, asked)),
    }
}

fn admit(shared: &Shared, asked: &mut Asked, partitions: u32) -> Result<Admission, Own> {
    let located = shared.locator.locate(&asked.head, partitions)?;
    asked.partition = Some(located.partition);
    let claim = asked.peer.usage.claim().ok_or(Own::Overload)?;
    let mut admission = shared.worker.enter(located.partition, located.order, asked.weight(), asked.arrived)?;
    admission.keep(claim);
    match &admission {
        Admission::Pass(pass) if !shared.load.has_room(pass.pod().slot) => Err(Own::Overload),
        _ => Ok(admission),
    }
}

/// Sets out, unless the pod that has refused the request is to be spared.
fn depart(shared: &Rc<Shared>, asked: &Asked, pass: Pass) -> Result<Box<Flight>, Ticket> {
    let pod = pass.pod().slot;
    if !pass.was_refused_here() {
        shared.budgets.first_try(pod);
    } else if !shared.budgets.may_try_again(pod, Instant::now()) {
        shared.metrics.bounced(Bounce::Spared);
        return Err(pass.put_back_spared());
    }
    Ok(Box::new(Flight::begin(pass, shared, asked)))
}

/// Nothing was done: back to its place, unless its pod refuses this very request for good.
fn undone(shared: &Shared, pass: Pass, cause: Undone) -> Result<Ticket, Own> {
    let pod = pass.pod().clone();
    let (bounce, refused) = match cause {
        Undone::Misdirected => (Bounce::Misdirected, Some(Refused::Misdirected)),
        Undone::Refused | Undone::Unreachable => (Bounce::Refused, Some(Refused::Unreachable)),
        Undone::Spared | Undone::Severed => (Bounce::Spared, None),
    };
    shared.metrics.bounced(bounce);
    match refused {
        Some(how) => {
            shared.budgets.refused(pod.slot, Instant::now());
            note_refusal(&pod, how);
        }
        None if pass.was_refused_here() => shared.budgets.was_not_tried(pod.slot),
        None => {}
    }
    match cause {
        Undone::Misdirected | Undone::Refused => pass.refused().map_err(|refused_for_good| {
            tracing::debug!(pod = pod.name, "{refused_for_good}");
            Own::NoOwner
        }),
        Undone::Unreachable => Ok(pass.put_back()),
        Undone::Spared | Undone::Severed => Ok(pass.put_back_spared()),
    }
}

#[cold]
fn note_refusal(pod: &Pod, how: Refused) {
    if let Some(in_a_row) = pod.health.refused(how) {
        tracing::warn!(pod = pod.name, address = pod.address, ?how, in_a_row, "pod refuses requests; retrying");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size_of_answer<R>(_: impl FnOnce(&Forward, Request<Incoming>, Rc<Peer>) -> R) -> usize {
        size_of::<R>()
    }

    /// It is most of what a held request costs. Beyond 1 KiB it would also leave what malloc gives out fast.
    #[test]
    fn an_exchange_is_no_larger_than_it_was() {
        let size = size_of_answer(Forward::call);
        assert!(size <= 768, "{size} bytes");
    }
}
