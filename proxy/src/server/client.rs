//! One client's connection, from accept to close: HTTP/1.1 or HTTP/2, told apart by ALPN or by its first bytes.
//!
//! hyper has a timer for heads, but it also runs between requests and is made anew for each of them. Here the worker
//! looks over its clients a few times a second instead. What must stay true: a head has to arrive in time; a connection
//! between two requests is closed only when it is old; one with a request is never closed before that is answered,
//! except at the deadline of a shutdown. Who is left to another process is told with an answer, never by a close.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::VecDeque;
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::CONNECTION;
use http::{HeaderValue, Request, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::Service;
use hyper_util::rt::{TokioIo, TokioTimer};
use slab::Slab;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::Idle;
use super::io::{Arrived, ClientIo};
use crate::forward::client_presence::Presence;
use crate::forward::response_body::{ResponseBody, ResponseError};
use crate::forward::{ClientGone, ClientInfo, Forward};
use crate::message::interim::Interim;
use crate::message::local_reply::LocalReply;
use crate::metrics::WorkerMetrics;
use crate::routing::client_share::{Addresses, Connection};
use crate::runtime::background::LocalExecutor;
use crate::tls::{ServerTls, Stream};

/// How an HTTP/2 connection begins.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// How long a connection may be idle between requests. Longer than clients and load balancers keep theirs (60 to 90 s
/// mostly), so that it is they who close: a request on its way to a connection being closed is lost.
const IDLE: Duration = Duration::from_secs(180);
/// What a client may send ahead on a stream of HTTP/2 before anybody reads: 64 MB/s at 1 ms. A connection takes as much of
/// all its streams together, so that uploads which nobody reads never stop the others. While requests are held this is
/// memory that no stash counts.
const STREAM_WINDOW: u32 = 64 << 10;
/// The largest window of HTTP/2.
const LARGEST_WINDOW: u32 = (1 << 31) - 1;
/// What of an answer is taken from its pod before the client takes it, for each stream. A client that reads nothing has
/// this much of each of its streams kept here.
const SEND_BUFFER: usize = 64 << 10;
/// A client that does not answer a ping for so long is gone.
const PING_EVERY: Duration = Duration::from_secs(20);
const PING_WITHIN: Duration = Duration::from_secs(10);

/// How many clients are looked at to find one that has been idle: all of them for each newcomer would be a way to keep a
/// worker busy.
const LOOKED_AT: usize = 64;
/// The part of all places, one in so many, that clients may have which have not asked anything yet before even a young one
/// of them gives way to the next.
const NEWCOMERS_SHARE: usize = 8;

/// What a worker asks of its clients.
#[derive(Debug, Clone)]
pub(super) struct ClientTerms {
    pub(super) header_read_timeout: Duration,
    pub(super) max_header_bytes: usize,
    pub(super) max_streams: u32,
    /// How long a client may read nothing of what it was sent.
    pub(super) unread_timeout: Duration,
    pub(super) tls: Option<ServerTls>,
}

/// The clients of one worker.
pub(super) struct Clients {
    open: RefCell<Slab<Rc<Client>>>,
    /// Where the search for one that has been idle goes on.
    cursor: Cell<usize>,
    /// Those that have not asked anything yet, the oldest first, among some that are gone or have asked meanwhile.
    newcomers: RefCell<VecDeque<Weak<Client>>>,
    /// How many of the former there are.
    silent: Cell<usize>,
    addresses: Addresses,
    pub(super) left: Notify,
    terms: ClientTerms,
    /// What newcomers are told.
    order: Cell<Order>,
    metrics: Arc<WorkerMetrics>,
}

struct Client {
    arrived: Arc<Arrived>,
    serving: Cell<u32>,
    /// It has been served since the clock was looked at for it.
    served: Cell<bool>,
    /// It has sent a request, or at least its head.
    asked: Cell<bool>,
    /// It speaks another protocol by now.
    upgraded: Cell<bool>,
    /// It was answered before the end of what it sent.
    unread: Cell<bool>,
    address: Connection,
    /// Since when it has been idle, or sending a head.
    since: Cell<Instant>,
    in_head: Cell<bool>,
    /// Bytes outside of any stream are no head then.
    http2: Cell<bool>,
    order: Cell<Order>,
    waker: RefCell<Option<Waker>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    GoOn,
    /// No requests after the next one.
    Leave,
    /// No further requests.
    Finish,
    /// It is too slow with a head.
    TooSlow,
    /// Now.
    Close,
}

impl Client {
    fn tell(&self, order: Order) {
        self.order.set(order);
        if let Some(waker) = self.waker.borrow().as_ref() {
            waker.wake_by_ref();
        }
    }

    fn listen(&self, context: &mut Context<'_>) -> Order {
        match &mut *self.waker.borrow_mut() {
            Some(waker) if waker.will_wake(context.waker()) => {}
            waker => *waker = Some(context.waker().clone()),
        }
        self.order.get()
    }

    fn has_been_idle(&self, now: Instant, least: Duration) -> bool {
        let idle = self.serving.get() == 0 && !self.served.get() && !self.upgraded.get();
        let stays = matches!(self.order.get(), Order::GoOn | Order::Leave);
        idle && stays && now.saturating_duration_since(self.since.get()) > least
    }

    /// The least goes first when room is made.
    fn turn(&self) -> impl Ord + use<> {
        (Reverse(self.address.of_address()), self.since.get())
    }

    /// Looks at the clock for it.
    fn check(&self, now: Instant, terms: &ClientTerms) {
        let in_head = self.serving.get() == 0 && self.arrived.is_in_head() && !self.http2.get();
        if self.served.take() || self.serving.get() > 0 || self.upgraded.get() || in_head != self.in_head.get() {
            self.since.set(now);
            self.in_head.set(in_head);
        }
        let lasted = now.saturating_duration_since(self.since.get());
        if in_head && lasted > terms.header_read_timeout {
            self.tell(Order::TooSlow);
        } else if !in_head && lasted > IDLE && matches!(self.order.get(), Order::GoOn | Order::Leave) {
            self.tell(Order::Finish);
        }
    }
}

/// The client, if it is there and has not asked anything yet.
fn silent(client: &Weak<Client>) -> Option<Rc<Client>> {
    client.upgrade().filter(|client| !client.asked.get())
}

/// A request of a client that is being served.
struct Serving {
    client: Rc<Client>,
    /// Of its body, if it has one and says so.
    length: Option<u64>,
}

impl Serving {
    fn begin(clients: &Clients, client: &Rc<Client>, body: &Incoming) -> Self {
        clients.forget_newcomer(client);
        client.serving.set(client.serving.get() + 1);
        Serving { client: client.clone(), length: body.size_hint().exact().filter(|_| !body.is_end_stream()) }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let client = &self.client;
        if !client.http2.get() && !client.upgraded.get() {
            if let Some(length) = self.length {
                client.arrived.end_body(length);
            }
            client.arrived.await_head();
        }
        client.served.set(true);
        client.serving.set(client.serving.get() - 1);
    }
}

/// An answer's body that keeps its client busy.
struct Served {
    body: ResponseBody,
    _serving: Serving,
}

impl Body for Served {
    type Data = Bytes;
    type Error = ResponseError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ResponseError>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A client's place among those of its worker, taken when it is accepted.
pub(super) struct Seat {
    clients: Rc<Clients>,
    client: Rc<Client>,
    key: usize,
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.clients.open.borrow_mut().remove(self.key);
        self.clients.forget_newcomer(&self.client);
        self.clients.metrics.disconnected();
        self.clients.left.notify_one();
    }
}

impl Clients {
    /// `most_requests`: of one client address at a time; 0: no limit.
    pub(super) fn new(terms: ClientTerms, most_requests: usize, metrics: Arc<WorkerMetrics>) -> Self {
        Clients {
            open: RefCell::default(),
            cursor: Cell::new(0),
            newcomers: RefCell::default(),
            silent: Cell::new(0),
            addresses: Addresses::new(most_requests),
            left: Notify::new(),
            terms,
            order: Cell::new(Order::GoOn),
            metrics,
        }
    }

    pub(super) fn count(&self) -> usize {
        self.open.borrow().len()
    }

    /// Looks at the clock for all of them.
    pub(super) fn check(&self) {
        let now = Instant::now();
        self.open.borrow().iter().for_each(|(_, client)| client.check(now, &self.terms));
        self.newcomers.borrow_mut().retain(|client| silent(client).is_some());
        self.addresses.sweep();
    }

    /// The client is no newcomer any more: it has asked something, or is gone.
    fn forget_newcomer(&self, client: &Client) {
        if !client.asked.replace(true) {
            self.silent.set(self.silent.get() - 1);
        }
    }

    /// Closes one that has been idle, or sending a head, for longer than `least`, to make room among `most`; returns
    /// whether one of those looked at has been. Those that have not asked anything yet go first, then those whose address
    /// has most connections, then those that have been idle for longest.
    pub(super) fn close_one(&self, least: Duration, most: usize) -> bool {
        let now = Instant::now();
        // A flood of newcomers, each too young to go, would otherwise take the places of all who are between two requests.
        let crowded = self.silent.get() > most / NEWCOMERS_SHARE;
        let least_of_newcomers = if crowded { Duration::ZERO } else { least };
        let client = self.newcomer(now, least_of_newcomers).or_else(|| self.idle(now, least));
        let Some(client) = client else { return false };
        client.tell(match (client.in_head.get(), client.http2.get()) {
            (true, _) => Order::TooSlow,
            (false, false) => Order::Finish,
            // It would wait for the client's word first.
            (false, true) => Order::Close,
        });
        true
    }

    /// Of the oldest that have not asked anything yet, one that may go.
    fn newcomer(&self, now: Instant, least: Duration) -> Option<Rc<Client>> {
        let mut newcomers = self.newcomers.borrow_mut();
        while newcomers.front().is_some_and(|first| silent(first).is_none()) {
            newcomers.pop_front();
        }
        let some = newcomers.iter().take(LOOKED_AT).filter_map(silent);
        some.filter(|client| client.has_been_idle(now, least)).min_by_key(|client| client.turn())
    }

    /// Of some, one that may go.
    fn idle(&self, now: Instant, least: Duration) -> Option<Rc<Client>> {
        let open = self.open.borrow();
        let slots = open.capacity();
        let first = self.cursor.get();
        self.cursor.set((first + LOOKED_AT) % slots.max(1));
        let some = (first..first + LOOKED_AT.min(slots)).filter_map(|key| open.get(key % slots));
        some.filter(|client| client.has_been_idle(now, least)).min_by_key(|client| client.turn()).cloned()
    }

    /// Those who are idle are closed, now or with their next answer, the others once they have been answered.
    pub(super) fn finish(&self, idle: Idle) {
        let order = match idle {
            Idle::Closed => Order::Finish,
            Idle::AnsweredOnceMore => Order::Leave,
        };
        self.order.set(order);
        self.open.borrow().iter().for_each(|(_, client)| client.tell(order));
    }

    pub(super) fn close(&self) {
        self.open.borrow().iter().for_each(|(_, client)| client.tell(Order::Close));
    }

    pub(super) fn seat(self: &Rc<Self>, address: IpAddr) -> Seat {
        let client = Rc::new(Client {
            arrived: Arc::default(),
            serving: Cell::new(0),
            served: Cell::new(false),
            asked: Cell::new(false),
            upgraded: Cell::new(false),
            unread: Cell::new(false),
            address: self.addresses.connect(address),
            since: Cell::new(Instant::now()),
            in_head: Cell::new(false),
            http2: Cell::new(false),
            order: self.order.clone(),
            waker: RefCell::default(),
        });
        self.metrics.connected();
        self.newcomers.borrow_mut().push_back(Rc::downgrade(&client));
        self.silent.set(self.silent.get() + 1);
        Seat { clients: self.clone(), key: self.open.borrow_mut().insert(client.clone()), client }
    }
}

impl Seat {
    /// Serves the client to its end.
    pub(super) async fn serve(self, stream: TcpStream, peer: HeaderValue, forward: Forward) {
        // Whoever goes on with a connection that switches protocols keeps its place.
        let this = Rc::new(self);
        let client = &this.client;
        let _ = stream.set_nodelay(true);
        // What waits for a client that reads nothing is behind hyper's back, and the exchange that it came from is over
        // by then: the kernel alone knows.
        #[cfg(target_os = "linux")]
        let _ = socket2::SockRef::from(&stream).set_tcp_user_timeout(Some(this.clients.terms.unread_timeout));
        let mut stream = match &this.clients.terms.tls {
            None => Stream::Plain(stream),
            // In a box, as every task would have room for a handshake otherwise, also those in clear text.
            Some(tls) => match Box::pin(shake_hands(tls, stream, client)).await {
                Some(stream) => stream,
                None => return,
            },
        };
        let interim = Interim::default();
        let mut ahead = BytesMut::new();
        let recognised = match stream.agreed_on_http2() {
            Some(is_http2) => Ok(Some(is_http2)),
            None => until_told(client, recognise(&mut stream, &mut ahead, client)).await,
        };
        let is_http2 = match recognised {
            Ok(Some(is_http2)) => is_http2,
            Ok(None) => return,
            Err(order) => {
                if order == Order::TooSlow {
                    let presence = Presence::default();
                    ClientIo::new(stream, Bytes::new(), client.arrived.clone(), interim, presence)
                        .refuse(LocalReply::TooSlow);
                }
                return;
            }
        };
        // By HTTP/2 hyper always reads, and so notices by itself that a client has gone.
        let presence = if is_http2 { Presence::default() } else { Presence::of_http1() };
        let seat: Weak<dyn Any> = Rc::downgrade(&(this.clone() as Rc<dyn Any>));
        let peer = Rc::new(ClientInfo {
            address: peer,
            secure: stream.is_secure(),
            interim: interim.clone(),
            presence: presence.clone(),
            usage: client.address.usage().clone(),
            seat,
        });
        if !is_http2 {
            client.arrived.await_head();
        }
        let io = ClientIo::new(stream, ahead.freeze(), client.arrived.clone(), interim, presence);
        client.http2.set(is_http2);
        if is_http2 {
            // In a box, as a connection by HTTP/1.1 would have room for it otherwise.
            Box::pin(this.serve_http2(io, client, peer, forward)).await;
        } else {
            this.serve_http1(io, client, peer, forward).await;
        }
    }

    async fn serve_http1(&self, io: ClientIo, client: &Rc<Client>, peer: Rc<ClientInfo>, forward: Forward) {
        let mut connection = http1::Builder::new()
            .header_read_timeout(None)
            .max_header_size(self.clients.terms.max_header_bytes)
            // hyper reads a head into its buffer before it can tell how long it is.
            .max_buf_size(self.clients.terms.max_header_bytes.saturating_mul(2).max(16 << 10))
            .serve_connection(TokioIo::new(io), service(&self.clients, client, peer, forward))
            .with_upgrades();
        let mut finishing = false;
        let ended = std::future::poll_fn(|context| {
            match client.listen(context) {
                Order::Finish if !finishing => {
                    finishing = true;
                    Pin::new(&mut connection).graceful_shutdown();
                }
                // The service tells the client, with its next answer.
                Order::GoOn | Order::Finish | Order::Leave => {}
                order @ (Order::TooSlow | Order::Close) => return Poll::Ready(Err(order)),
            }
            Pin::new(&mut connection).poll(context).map(Ok)
        })
        .await;
        match ended {
            Ok(Err(error)) => tracing::debug!(%error, "a client's connection has ended"),
            Ok(Ok(())) if client.unread.get() => {
                if let Some(parts) = connection.into_parts() {
                    // Only a server that ends, or one that needs the place, does not wait for it.
                    if client.order.get() == Order::Finish {
                        client.order.set(Order::Leave);
                    }
                    // In a box, as every connection would have room for it otherwise.
                    let _ = until_told(client, Box::pin(parts.io.into_inner().linger())).await;
                }
            }
            Ok(Ok(())) | Err(Order::Close) => {}
            Err(_) => {
                if let Some(parts) = connection.into_parts() {
                    parts.io.into_inner().refuse(LocalReply::TooSlow);
                }
            }
        }
    }

    async fn serve_http2(&self, io: ClientIo, client: &Rc<Client>, peer: Rc<ClientInfo>, forward: Forward) {
        let streams = self.clients.terms.max_streams;
        let mut connection = http2::Builder::new(LocalExecutor)
            .timer(TokioTimer::new())
            .max_concurrent_streams(streams)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(STREAM_WINDOW.saturating_mul(streams).min(LARGEST_WINDOW))
            .max_send_buf_size(SEND_BUFFER)
            .keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PING_WITHIN)
            .max_header_list_size(u32::try_from(self.clients.terms.max_header_bytes).unwrap_or(u32::MAX))
            .serve_connection(TokioIo::new(io), service(&self.clients, client, peer, forward));
        let mut finishing = false;
        let ended = std::future::poll_fn(|context| {
            match client.listen(context) {
                // hyper says twice that it goes, and leaves room for what is on its way.
                Order::Finish | Order::Leave if !finishing => {
                    finishing = true;
                    Pin::new(&mut connection).graceful_shutdown();
                }
                Order::GoOn | Order::Finish | Order::Leave => {}
                // Told while it was not known yet what is spoken, or to make room.
                Order::TooSlow | Order::Close => return Poll::Ready(Ok(())),
            }
            Pin::new(&mut connection).poll(context)
        })
        .await;
        if let Err(error) = ended {
            tracing::debug!(%error, "a client's connection has ended");
        }
    }
}

fn service(
    clients: &Rc<Clients>,
    client: &Rc<Client>,
    peer: Rc<ClientInfo>,
    forward: Forward,
) -> impl Service<Request<Incoming>, Response = Response<Served>, Error = ClientGone, Future: 'static> + use<> {
    let (clients, client) = (clients.clone(), client.clone());
    hyper::service::service_fn(move |request: Request<Incoming>| {
        let serving = Serving::begin(&clients, &client, request.body());
        // hyper moves what it is given more than once: one pointer instead of kilobytes.
        let answer = Box::pin(forward.call(request, peer.clone()));
        let (client, peer) = (client.clone(), peer.clone());
        async move {
            let mut answer = answer.await?;
            // Whatever its client has had no room for comes too late now.
            drop(peer.interim.take());
            if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
                client.upgraded.set(true);
            } else if !client.http2.get() && answer.headers().contains_key(CONNECTION) {
                client.unread.set(true);
            } else if client.order.get() == Order::Leave && !client.http2.get() {
                answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Ok(answer.map(|body| Served { body, _serving: serving }))
        }
    })
}

/// A handshake has as long as a head, from the first moment on: a client has to begin it.
async fn shake_hands(tls: &ServerTls, stream: TcpStream, client: &Client) -> Option<Stream> {
    client.arrived.set_in_head(true);
    let shaken = until_told(client, tls.accept(stream)).await;
    client.arrived.set_in_head(false);
    match shaken {
        Ok(Ok(stream)) => Some(stream),
        Ok(Err(error)) => {
            tracing::debug!(%error, "no TLS with a client");
            None
        }
        Err(_) => None,
    }
}

/// Reads until it is clear which version of HTTP this is; `None`: the client has said nothing and is gone.
async fn recognise(stream: &mut Stream, ahead: &mut BytesMut, client: &Client) -> Option<bool> {
    ahead.reserve(2 << 10);
    loop {
        if stream.read_buf(ahead).await.ok()? == 0 {
            return None;
        }
        client.arrived.set_in_head(true);
        let seen = ahead.len().min(PREFACE.len());
        if ahead[..seen] != PREFACE[..seen] {
            return Some(false);
        }
        if seen == PREFACE.len() {
            return Some(true);
        }
    }
}

/// Runs until done, or until the client is to be closed.
async fn until_told<T>(client: &Client, work: impl Future<Output = T>) -> Result<T, Order> {
    let mut work = std::pin::pin!(work);
    std::future::poll_fn(|context| match client.listen(context) {
        // Nothing has been asked yet, so there is nothing to finish.
        order @ (Order::Finish | Order::TooSlow | Order::Close) => Poll::Ready(Err(order)),
        Order::GoOn | Order::Leave => work.as_mut().poll(context).map(Ok),
    })
    .await
}
