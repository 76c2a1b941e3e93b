//! The path of one request: which partition, through its gate, to the pod that owns it, and the answer back.
//!
//! Not here: what an error looks like to the client ([`respond`](crate::respond)), connections
//! (`upstream`), who owns what ([`table`](crate::table)).
//! What must stay true: a request is sent a second time only if it is certain that no pod acted on it; one that is held
//! dies with its client and is never sent; one that may have been sent is seen through whether its client waits or not;
//! a pod's "not mine" never reaches a client.

use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http::header::HeaderValue;
use http::request::Parts;
use http::{Method, Request, Response, Version};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use tokio::time::Instant;

use crate::answer::AnswerBody;
use crate::deadline;
use crate::exchange::{Unanswered, send};
use crate::flight::Flight;
use crate::headers::{self, Identity};
use crate::interim::Interim;
use crate::load::Load;
use crate::local::Background;
use crate::metrics::{Bounce, WorkerMetrics};
use crate::noted::Noted;
use crate::partition::Locator;
use crate::request_body::RequestBody;
use crate::respond::{Own, is_grpc};
use crate::retry::Budgets;
use crate::settings::ForwardSettings;
use crate::table::{Pod, Refused};
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
    pub(crate) worker: Worker,
    pub(crate) upstream: Upstream,
    pub(crate) load: Load,
    pub(crate) budgets: Budgets,
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
    pub(crate) interim: Interim,
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
        peer: Rc<Peer>,
    ) -> impl Future<Output = Result<Response<AnswerBody>, ClientGone>> + use<> {
        let shared = self.shared.clone();
        let mut asked = Asked::new(&shared, request, peer);
        async move {
            let mut open = Open(Some(&shared.metrics));
            let answer = route(&shared, &mut asked).await;
            open.0 = None;
            let own = match answer {
                Ok(answer) => return Ok(answer),
                Err(None) => return Err(ClientGone),
                Err(Some(own)) => own,
            };
            shared.metrics.answered(own);
            shared.metrics.took(asked.arrived.elapsed());
            Ok(own.answer(asked.partition, is_grpc(&asked.head.headers)).map(AnswerBody::whole))
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
    partition: Option<u32>,
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
        let body = RequestBody::new(incoming, head.version, shared.max_body_bytes, &shared.watch);
        let timeout = if noted.grpc_timeout { deadline::timeout(&head.headers) } else { None };
        let deadline = timeout.and_then(|timeout| arrived.checked_add(timeout));
        Asked { head, noted, body, peer, arrived, deadline, switch, partition: None }
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
        if headers::is_ambiguous(&self.head.headers, self.body.is_sized()) {
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

/// Where a request went: a pod, and the epoch.
type Destination = (u32, u64);

/// The pod's answer, or why there is none; `Err(None)`: the client is gone.
///
/// Its future is what a held request costs most, so nothing is kept across an `await` that does not have to be.
async fn route(shared: &Rc<Shared>, asked: &mut Asked) -> Result<Response<AnswerBody>, Option<Own>> {
    asked.check()?;
    let partitions = match shared.worker.partitions() {
        0 => Box::pin(table_is_there(&shared.worker, asked)).await?,
        partitions => partitions,
    };
    let mut admission = admit(shared, asked, partitions)?;
    // Where it was refused last.
    let mut refused_at = None;
    loop {
        let pass = match admission {
            Admission::Pass(pass) => pass,
            Admission::Held(ticket) => {
                let pass = Waiting::new(ticket, asked).await?;
                shared.metrics.waited(asked.arrived.elapsed());
                pass
            }
        };
        let flight = match depart(shared, asked, pass, refused_at) {
            Ok(flight) => flight,
            Err(spared) => {
                admission = Admission::Held(spared);
                continue;
            }
        };
        admission = Admission::Held(match send(shared, asked, flight).await {
            Ok(answer) => return Ok(answer),
            Err(Unanswered::Own(own)) => return Err(Some(own)),
            Err(Unanswered::ClientGone) => return Err(None),
            Err(Unanswered::Undone(pass, cause)) => undone(shared, pass, cause, &mut refused_at),
            Err(Unanswered::Fenced(pass)) => pass.put_back_fenced(),
        });
    }
}

fn admit(shared: &Shared, asked: &mut Asked, partitions: u32) -> Result<Admission, Own> {
    let located = shared.locator.locate(&asked.head, partitions)?;
    asked.partition = Some(located.partition);
    let admission = shared.worker.enter(located.partition, located.order, asked.weight(), asked.arrived)?;
    match &admission {
        Admission::Pass(pass) if !shared.load.has_room(pass.pod().slot) => Err(Own::Overload),
        _ => Ok(admission),
    }
}

/// Sets out, unless the pod that has refused the request is to be spared.
fn depart(
    shared: &Rc<Shared>,
    asked: &Asked,
    pass: Pass,
    refused_at: Option<Destination>,
) -> Result<Box<Flight>, Ticket> {
    let to = (pass.pod().slot, pass.epoch());
    if refused_at != Some(to) {
        shared.budgets.first_try(to.0);
    } else if !shared.budgets.may_try_again(to.0, Instant::now()) {
        shared.metrics.bounced(Bounce::Spared);
        return Err(pass.put_back());
    }
    Ok(Box::new(Flight::begin(pass, shared, asked.arrived, asked.deadline)))
}

/// Nothing was done: back to its place.
fn undone(shared: &Shared, pass: Pass, cause: Bounce, refused_at: &mut Option<Destination>) -> Ticket {
    let to = (pass.pod().slot, pass.epoch());
    shared.metrics.bounced(cause);
    match refused(cause) {
        Some(how) => {
            *refused_at = Some(to);
            shared.budgets.refused(to.0, Instant::now());
            note_refusal(pass.pod(), how);
        }
        None if *refused_at == Some(to) => shared.budgets.was_not_tried(to.0),
        None => {}
    }
    pass.put_back()
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
        assert!(size <= 896, "{size} bytes");
    }
}
