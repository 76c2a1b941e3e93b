//! The path of one request: which partition, through its gate, to the pod that owns it, and the answer back.
//!
//! Not here: what an error looks like to the client ([`respond`](crate::respond)), connections
//! (`upstream`), who owns what ([`table`](crate::table)).
//! What must stay true: a request is sent a second time only if it is certain that no pod acted on it; one that is held
//! dies with its client and is never sent; one that may have been sent is seen through whether its client waits or not;
//! a pod's "not mine" never reaches a client.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::BytesMut;
use http::header::{CONNECTION, HeaderValue, UPGRADE};
use http::request::Parts;
use http::{Method, Request, Response};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use tokio::time::Instant;

use crate::answer::AnswerBody;
use crate::deadline;
use crate::flight::Flight;
use crate::headers::{self, Stamps};
use crate::load::Load;
use crate::local::Background;
use crate::metrics::{Bounce, WorkerMetrics};
use crate::partition::Locator;
use crate::request_body::{BodyError, RequestBody};
use crate::respond::{Own, is_grpc};
use crate::retry::Budgets;
use crate::sending::{NoAnswer, Sending};
use crate::settings::ForwardSettings;
use crate::table::{Pod, Refusal, Refused};
use crate::ticket::{Admission, Pass, Ticket, Worker};
use crate::tls::Stream;
use crate::upgrade;
use crate::upstream::{Answer, AnswerStream, Broken, SendError, Upstream, was_spared};
use crate::vigil::Ended;
use crate::watch::Watch;

/// One worker's data path.
#[derive(Clone)]
pub struct Forward {
    shared: Rc<Shared>,
}

/// What all requests of a worker share.
pub(crate) struct Shared {
    router: HeaderValue,
    keyspace: HeaderValue,
    locator: Locator,
    worker: Worker,
    upstream: Upstream,
    pub(crate) load: Load,
    budgets: Budgets,
    pub(crate) request_timeout: Duration,
    pub(crate) idle_timeout: Duration,
    max_body_bytes: u64,
    pub(crate) watch: Watch,
    pub(crate) background: Background,
    pub(crate) metrics: Arc<WorkerMetrics>,
}

/// Who sends a request, and how.
#[derive(Debug, Clone)]
pub struct Peer {
    /// The client's address, as `x-forwarded-for` has it.
    pub address: HeaderValue,
    /// It came by TLS.
    pub secure: bool,
}

/// The client is gone, or what it sends is not HTTP: there is nobody to answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the client has not sent its whole request")]
pub struct ClientGone;

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
        out.debug_struct("Forward").field("router", &self.shared.router).finish_non_exhaustive()
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
            router: header_value(&settings.router)?,
            keyspace: header_value(&settings.keyspace)?,
            locator: settings.locator.clone(),
            worker,
            upstream: Upstream::new(settings.upstream.clone(), watch.clone()),
            load: Load::new(settings.upstream.max_in_flight_per_pod),
            budgets: Budgets::default(),
            request_timeout: settings.upstream.request_timeout,
            idle_timeout: settings.upstream.idle_timeout,
            max_body_bytes: settings.max_body_bytes.map_or(u64::MAX, |bytes| bytes as u64),
            watch,
            background: Background::start(),
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

    #[cfg(feature = "fuzzing")]
    pub(crate) fn idle_timeout(&self) -> Duration {
        self.shared.idle_timeout
    }

    /// Answers one request of a client.
    pub fn call(
        &self,
        request: Request<Incoming>,
        peer: Peer,
    ) -> impl Future<Output = Result<Response<AnswerBody>, ClientGone>> + use<> {
        let shared = self.shared.clone();
        async move {
            let mut open = Open(Some(&shared.metrics));
            let answer = handle(&shared, request, &peer).await;
            open.0 = None;
            answer
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

/// What became of sending.
enum Sent {
    Answered(Response<AnswerBody>),
    /// Nothing was done: the request waits for its turn again.
    Undone(Pass, Bounce),
    /// While a connection was being made, the router's lease ran out: nothing was sent.
    Fenced(Pass),
    Own(Own),
    ClientGone,
}

async fn handle(
    shared: &Rc<Shared>,
    mut request: Request<Incoming>,
    peer: &Peer,
) -> Result<Response<AnswerBody>, ClientGone> {
    let arrived = Instant::now();
    let switch = headers::wants_upgrade(request.version(), request.headers()).then(|| hyper::upgrade::on(&mut request));
    let (head, incoming) = request.into_parts();
    let mut partition = None;
    let own = match route(shared, &head, incoming, peer, arrived, switch, &mut partition).await {
        Ok(answer) => return Ok(answer),
        Err(None) => return Err(ClientGone),
        Err(Some(own)) => own,
    };
    shared.metrics.answered(own);
    shared.metrics.took(arrived.elapsed());
    Ok(own.answer(partition, is_grpc(&head.headers)).map(AnswerBody::whole))
}

/// The pod's answer, or why there is none; `Err(None)`: the client is gone.
async fn route(
    shared: &Rc<Shared>,
    head: &Parts,
    incoming: Incoming,
    peer: &Peer,
    arrived: Instant,
    mut switch: Option<OnUpgrade>,
    partition: &mut Option<u32>,
) -> Result<Response<AnswerBody>, Option<Own>> {
    if head.method == Method::CONNECT {
        // It asks for a connection to somewhere, which is no request for a partition.
        return Err(Some(Own::NoPartition));
    }
    let body = RequestBody::new(incoming, head.version, shared.max_body_bytes, &shared.watch);
    if body.is_too_large() {
        return Err(Some(Own::BodyTooLarge));
    }
    if headers::is_ambiguous(&head.headers, body.is_sized()) {
        return Err(Some(Own::Ambiguous));
    }
    let deadline = deadline::timeout(&head.headers).and_then(|timeout| arrived.checked_add(timeout));
    let partitions = match shared.worker.partitions() {
        0 => table_is_there(shared, arrived, deadline).await?,
        partitions => partitions,
    };
    let located = shared.locator.locate(head, partitions).map_err(Own::from)?;
    *partition = Some(located.partition);
    let head_bytes = headers::weight(head);
    let bytes = head_bytes + body.weight();
    let mut admission = shared.worker.enter(located.partition, located.order, bytes, arrived).map_err(Own::from)?;
    if let Admission::Pass(pass) = &admission
        && !shared.load.has_room(pass.pod().slot)
    {
        return Err(Some(Own::Overload));
    }
    // Where it was refused last.
    let mut refused_at = None;
    loop {
        let pass = match admission {
            Admission::Pass(pass) => pass,
            Admission::Held(ticket) => {
                let pass = wait(ticket, head, head_bytes, &body, deadline).await?;
                shared.metrics.waited(arrived.elapsed());
                pass
            }
        };
        let to = (pass.pod().slot, pass.epoch());
        if refused_at != Some(to) {
            shared.budgets.first_try(to.0);
        } else if !shared.budgets.may_try_again(to.0, Instant::now()) {
            shared.metrics.bounced(Bounce::Spared);
            admission = Admission::Held(pass.put_back());
            continue;
        }
        let flight = Flight::begin(pass, shared, arrived, deadline);
        admission = match send(shared, head, &body, peer, flight, &mut switch).await {
            Sent::Answered(answer) => return Ok(answer),
            Sent::Own(own) => return Err(Some(own)),
            Sent::ClientGone => return Err(None),
            Sent::Undone(pass, cause) => {
                shared.metrics.bounced(cause);
                match refused(cause) {
                    Some(how) => {
                        refused_at = Some(to);
                        shared.budgets.refused(to.0, Instant::now());
                        note_refusal(pass.pod(), how);
                    }
                    None if refused_at == Some(to) => shared.budgets.was_not_tried(to.0),
                    None => {}
                }
                Admission::Held(pass.put_back())
            }
            Sent::Fenced(pass) => Admission::Held(pass.put_back_fenced()),
        };
    }
}

/// How the pod has refused; `None`: it was not asked.
fn refused(bounce: Bounce) -> Option<Refused> {
    match bounce {
        Bounce::Misdirected => Some(Refused::Misdirected),
        Bounce::Refused => Some(Refused::Unreachable),
        Bounce::Spared => None,
    }
}

#[cold]
fn note_refusal(pod: &Pod, how: Refused) {
    if let Some(in_a_row) = pod.health.refused(how) {
        tracing::warn!(pod = pod.name, address = pod.address, ?how, in_a_row, "a pod takes nothing; trying on");
    }
}

/// The pod has taken a request.
#[inline]
fn note_acceptance(shared: &Shared, pod: &Pod) {
    shared.budgets.accepted(pod.slot);
    if let Some(after) = pod.health.accepted() {
        tracing::info!(pod = pod.name, address = pod.address, after, "a pod takes requests again");
    }
}

/// Waits until the router has seen the store for the first time, no longer than any held request.
#[cold]
async fn table_is_there(shared: &Shared, arrived: Instant, deadline: Option<Instant>) -> Result<u32, Option<Own>> {
    let Some(_early) = shared.worker.wait_early() else {
        return Err(Some(Own::StashFull));
    };
    loop {
        if shared.worker.shutting_down() {
            return Err(Some(Own::Shutdown));
        }
        if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            return Err(Some(Own::Deadline));
        }
        match shared.worker.partitions() {
            0 if arrived.elapsed() >= shared.worker.max_wait() => return Err(Some(Own::NoOwner)),
            // Once in the life of a router, so a look now and then will do.
            0 => tokio::time::sleep(Duration::from_millis(10)).await,
            partitions => return Ok(partitions),
        }
    }
}

/// Waits for the request's turn, and meanwhile reads its body ahead: that tells of a client that hangs up, and how much
/// there is to keep.
async fn wait(
    ticket: Ticket,
    head: &Parts,
    head_bytes: usize,
    body: &RequestBody,
    deadline: Option<Instant>,
) -> Result<Pass, Option<Own>> {
    let mut ticket = ticket;
    // A client that asks before it sends would take reading for a yes.
    let mut reads = !head.headers.contains_key(http::header::EXPECT);
    let mut late = deadline.map(|deadline| Box::pin(tokio::time::sleep_until(deadline)));
    std::future::poll_fn(|context| {
        // First, so that a call whose time is up is not sent although its turn has come.
        if late.as_mut().is_some_and(|late| late.as_mut().poll(context).is_ready()) {
            return Poll::Ready(Err(Some(Own::Deadline)));
        }
        if let Poll::Ready(turn) = Pin::new(&mut ticket).poll(context) {
            return Poll::Ready(turn.map_err(|refusal: Refusal| Some(refusal.into())));
        }
        if reads {
            match body.poll_read_ahead(context) {
                Poll::Pending => {}
                Poll::Ready(Ok(())) => reads = false,
                Poll::Ready(Err(BodyError::TooLarge)) => return Poll::Ready(Err(Some(Own::BodyTooLarge))),
                Poll::Ready(Err(_)) => return Poll::Ready(Err(None)),
            }
            if let Err(refusal) = ticket.weigh(head_bytes + body.weight()) {
                return Poll::Ready(Err(Some(refusal.into())));
            }
        }
        Poll::Pending
    })
    .await
}

/// Sends a request to the pod that its flight leads to.
async fn send(
    shared: &Rc<Shared>,
    head: &Parts,
    body: &RequestBody,
    peer: &Peer,
    mut flight: Flight,
    switch: &mut Option<OnUpgrade>,
) -> Sent {
    let upgrade = switch.is_some();
    let http2 = !upgrade && shared.upstream.by_http2(head.version);
    let mut fresh = false;
    loop {
        let line = match shared.upstream.line(flight.pod(), http2, fresh).await {
            Ok(line) => line,
            Err(error) => {
                tracing::debug!(pod = flight.pod().name, %error, "a pod cannot be reached");
                let cause = if was_spared(&error) { Bounce::Spared } else { Bounce::Refused };
                return Sent::Undone(flight.undo(), cause);
            }
        };
        if line.is_fresh() && !flight.may_still_go() {
            return Sent::Fenced(flight.undo());
        }
        if flight.is_late() {
            return Sent::Own(Own::Deadline);
        }
        let Some(attempt) = body.attempt() else {
            return Sent::Own(Own::NoOwner);
        };
        let left = flight.deadline().map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let left = left.map(deadline::header);
        let stamps = Stamps {
            partition: flight.partition(),
            epoch: flight.epoch(),
            router: &shared.router,
            keyspace: &shared.keyspace,
            peer: &peer.address,
            grpc_timeout: left.as_ref(),
            scheme: if peer.secure { "https" } else { "http" },
        };
        let made_for_this = line.is_fresh();
        let outcome;
        (outcome, flight) = Sending::new(line.begin(head, &stamps, attempt, upgrade), flight, body).await;
        let answer = match outcome {
            Ok(answer) => answer,
            Err(NoAnswer::Send(SendError::NotSent(_))) if !made_for_this => {
                // The connection had died while it was idle.
                fresh = true;
                continue;
            }
            Err(NoAnswer::Send(SendError::NotSent(error))) => {
                body.take_back();
                tracing::debug!(pod = flight.pod().name, %error, "a pod takes no request");
                return Sent::Undone(flight.undo(), Bounce::Refused);
            }
            Err(NoAnswer::Send(SendError::Failed(_))) if body.is_too_large() => return Sent::Own(Own::BodyTooLarge),
            Err(NoAnswer::Send(SendError::Failed(Broken::CutOff))) => return Sent::ClientGone,
            Err(NoAnswer::Send(SendError::Failed(error))) => {
                tracing::debug!(pod = flight.pod().name, %error, "an exchange has failed");
                return Sent::Own(Own::UpstreamFailed);
            }
            Err(NoAnswer::Ended(Ended::Severed)) => return Sent::Own(Own::Severed),
            Err(NoAnswer::Ended(Ended::TimedOut)) if flight.is_late() => return Sent::Own(Own::Deadline),
            Err(NoAnswer::Ended(Ended::TimedOut)) => {
                let by_client = body.upload().is_some_and(|upload| upload.awaits_client);
                return Sent::Own(if by_client { Own::TooSlow } else { Own::UpstreamTimeout });
            }
        };
        return match answer {
            Answer::Response(mut response) if headers::is_misdirected(response.status(), response.headers()) => {
                // If all of it is here, its connection can be used again.
                drop(response.body_mut().take_whole());
                body.take_back();
                if body.is_whole() {
                    Sent::Undone(flight.undo(), Bounce::Misdirected)
                } else {
                    // Nothing was done, so the client may send again; the router no longer can.
                    Sent::Own(Own::NoOwner)
                }
            }
            Answer::Response(response) => {
                note_acceptance(shared, flight.pod());
                body.settle();
                Sent::Answered(pass_on(shared, response, flight))
            }
            Answer::Switched(response, stream, read) => Sent::Answered(match switch.take() {
                Some(client) => switched(shared, response, client, stream, read, flight),
                None => return Sent::Own(Own::UpstreamFailed),
            }),
        };
    }
}

fn pass_on(shared: &Shared, response: Response<AnswerStream>, mut flight: Flight) -> Response<AnswerBody> {
    flight.delivered();
    shared.metrics.passed(response.status());
    let (mut head, stream) = response.into_parts();
    headers::clean_answer(&mut head.headers);
    Response::from_parts(head, AnswerBody::from_pod(stream, flight))
}

fn switched(
    shared: &Shared,
    mut response: Response<()>,
    client: OnUpgrade,
    stream: Stream,
    read: BytesMut,
    mut flight: Flight,
) -> Response<AnswerBody> {
    flight.delivered();
    shared.metrics.passed(response.status());
    let to = response.headers_mut().remove(UPGRADE);
    headers::clean_answer(response.headers_mut());
    upgrade::join(client, stream, read, flight, to.as_ref());
    if let Some(to) = to {
        response.headers_mut().insert(UPGRADE, to);
    }
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("upgrade"));
    response.map(|()| AnswerBody::whole(bytes::Bytes::new()))
}
