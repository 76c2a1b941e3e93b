//! Pods that speak HTTP/2, where many exchanges share a connection: how one affects the others, and which requests are
//! sent again.

#![allow(clippy::unwrap_used, missing_docs)]

mod support;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use bytes::Bytes;
use h2::server::{Connection, SendResponse};
use http::{Request, Response};
use http_body_util::BodyExt;
use segue_proxy::metrics::BounceCause;
use segue_proxy::settings::{UpstreamProtocol, UpstreamSettings};
use support::client::{RawHttp1Client, data, empty, stream};
use support::pod::start_h2_pod;
use support::{Fixture, P0, POST_THAT_EXPECTS, Settings, soon, until};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

fn upstream(change: impl Fn(&mut UpstreamSettings)) -> Fixture {
    Fixture::with(Settings::with_upstream(|upstream| {
        upstream.protocol = UpstreamProtocol::Http2;
        change(upstream);
    }))
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: h\r\nx-partition: 0\r\n\r\n")
}

/// A pod on bare `h2`, whose connections the test accepts and serves.
struct ScriptedHttp2Pod {
    listener: TcpListener,
    address: SocketAddr,
}

type Accepted = (Request<h2::RecvStream>, SendResponse<Bytes>);

impl ScriptedHttp2Pod {
    async fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        ScriptedHttp2Pod { listener, address }
    }

    /// Starts one and routes partition 0 to it.
    async fn start(fixture: &Fixture) -> Self {
        let pod = Self::new().await;
        fixture.route(P0, pod.address, 1);
        pod
    }

    /// Brings a `GET` of this path from a new client to the pod on a new connection.
    async fn exchange(
        &self,
        fixture: &Fixture,
        path: &str,
    ) -> (RawHttp1Client, Connection<TcpStream, Bytes>, SendResponse<Bytes>) {
        let client = fixture.send(get(path)).await;
        let mut connection = self.accept().await;
        let (_, respond) = next(&mut connection).await;
        (client, connection, respond)
    }

    async fn accept(&self) -> Connection<TcpStream, Bytes> {
        self.accept_with(&h2::server::Builder::new()).await
    }

    async fn accept_with(&self, builder: &h2::server::Builder) -> Connection<TcpStream, Bytes> {
        let (stream, _) = soon(self.listener.accept()).await.unwrap();
        soon(builder.handshake(stream)).await.unwrap()
    }

    async fn nobody_comes(&self) {
        let came = tokio::time::timeout(Duration::from_millis(200), self.listener.accept()).await;
        assert!(came.is_err(), "one more connection was made");
    }
}

async fn next(connection: &mut Connection<TcpStream, Bytes>) -> Accepted {
    soon(connection.accept()).await.expect("closed before a request").unwrap()
}

fn ok(respond: &mut SendResponse<Bytes>) {
    respond.send_response(Response::new(()), true).unwrap();
}

/// Answers all requests of a connection with `200`, except those that are reset before their turn comes.
fn serve(mut connection: Connection<TcpStream, Bytes>) {
    tokio::spawn(async move {
        while let Some(Ok((_, mut respond))) = connection.accept().await {
            let _ = respond.send_response(Response::new(()), true);
        }
    });
}

#[tokio::test]
async fn a_large_head_of_an_answer_reaches_its_client() {
    let fixture = upstream(|_| {});
    let pod = ScriptedHttp2Pod::start(&fixture).await;
    let (mut client, connection, mut respond) = pod.exchange(&fixture, "/").await;
    let mut answer = Response::builder();
    for number in 0..25 {
        answer = answer.header(format!("x-{number}"), "v".repeat(8 << 10));
    }
    respond.send_response(answer.body(()).unwrap(), true).unwrap();
    serve(connection);
    let answer = client.answer().await;
    assert_eq!((answer.status, answer.header("x-24").len()), (200, 8 << 10));
}

#[tokio::test]
async fn a_head_too_large_for_a_pod_is_refused_before_anything_is_sent_and_costs_nobody_else_anything() {
    let fixture = upstream(|_| {});
    let pod = ScriptedHttp2Pod::start(&fixture).await;
    let (mut bystander, connection, mut slow) = pod.exchange(&fixture, "/slow").await;
    serve(connection);
    for (lines, length) in [(50, 300), (90, 380), (60, 1_000)] {
        let mut head = get("/").trim_end().to_owned();
        for number in 0..lines {
            head += &format!("\r\nx-{number}: {}", "v".repeat(length));
        }
        let mut attacker = fixture.client().await;
        assert_eq!(attacker.ask(head + "\r\n\r\n").await.reason(), (431, "limit"), "{lines} lines of {length}");
    }
    pod.nobody_comes().await;
    assert_eq!(fixture.metrics.requests_bounced(BounceCause::ConnectFailed), 0);
    ok(&mut slow);
    assert_eq!(bystander.answer().await.status, 200);
    // A head that fits is passed on.
    let head = get("/").trim_end().to_owned() + "\r\nx-fits: " + &"v".repeat(15_000) + "\r\n\r\n";
    assert_eq!(bystander.ask(head).await.status, 200);
}

/// A client that was told to send its body would send it for nothing if its request were refused later.
#[tokio::test]
async fn a_client_that_asks_first_is_told_to_go_on_only_once_there_is_a_pod() {
    let fixture = upstream(|_| {});
    let ScriptedHttp2Pod { listener, address } = ScriptedHttp2Pod::new().await;
    drop(listener);
    fixture.route(P0, address, 1);
    let mut client = fixture.send(POST_THAT_EXPECTS).await;
    until(|| fixture.metrics.requests_bounced(BounceCause::ConnectFailed) > 0, "a connection to fail").await;
    let early = tokio::time::timeout(Duration::from_millis(200), client.stream.readable()).await;
    assert!(early.is_err(), "told to go on although nobody could be reached");
    let pod = ScriptedHttp2Pod { listener: TcpListener::bind(address).await.unwrap(), address };
    let mut connection = pod.accept().await;
    let (request, mut respond) = next(&mut connection).await;
    serve(connection);
    assert_eq!(client.head().await.status, 100);
    client.write("hello").await;
    assert_eq!(soon(request.into_body().data()).await.unwrap().unwrap(), "hello");
    ok(&mut respond);
    assert_eq!(client.answer().await.status, 200);
}

#[tokio::test]
async fn a_body_that_is_too_large_when_it_arrives_is_refused_before_anything_is_sent() {
    let fixture = Fixture::with(Settings::with_limits(|limits| limits.max_body_bytes = Some(1000)));
    let pod = ScriptedHttp2Pod::start(&fixture).await;
    let stream = TcpStream::connect(fixture.address).await.unwrap();
    let (client, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    let mut client = client.ready().await.unwrap();
    let request = Request::post("http://h/").header("x-partition", "0").body(()).unwrap();
    // Head and body leave together, as nothing is awaited in between.
    let (answer, mut body) = client.send_request(request, false).unwrap();
    body.send_data(Bytes::from(vec![b'x'; 2000]), false).unwrap();
    let answer = soon(answer).await.unwrap();
    assert_eq!((answer.status().as_u16(), &answer.headers()["segue-reason"]), (413, &"limit".parse().unwrap()));
    pod.nobody_comes().await;
}

#[tokio::test]
async fn a_head_larger_than_its_pod_has_announced_is_refused_before_anything_is_sent() {
    let fixture = upstream(|_| {});
    let pod = ScriptedHttp2Pod::start(&fixture).await;
    let mut bystander = fixture.send(get("/")).await;
    let mut connection = pod.accept_with(h2::server::Builder::new().max_header_list_size(8 << 10)).await;
    let (_, mut first) = next(&mut connection).await;
    ok(&mut first);
    // The answer comes behind the pod's settings, so a router that has passed it on knows them.
    let asks_again = async {
        assert_eq!(bystander.answer().await.status, 200);
        bystander.write(get("/slow")).await;
    };
    let ((), (_, mut slow)) = tokio::join!(asks_again, next(&mut connection));
    serve(connection);
    let mut attacker = fixture.client().await;
    let head = get("/").trim_end().to_owned() + "\r\nx-large: " + &"v".repeat(9_000) + "\r\n\r\n";
    assert_eq!(attacker.ask(head).await.reason(), (431, "limit"));
    ok(&mut slow);
    assert_eq!(bystander.answer().await.status, 200);
}

#[tokio::test]
async fn pods_that_take_more_are_sent_more() {
    let fixture = upstream(|upstream| upstream.max_header_bytes_http2 = 60 << 10);
    let pod = ScriptedHttp2Pod::start(&fixture).await;
    let mut client =
        fixture.send(get("/").trim_end().to_owned() + "\r\nx-fits: " + &"v".repeat(50_000) + "\r\n\r\n").await;
    let mut builder = h2::server::Builder::new();
    let mut connection = pod.accept_with(builder.max_header_list_size(64 << 10)).await;
    let (request, mut respond) = next(&mut connection).await;
    assert_eq!(request.headers()["x-fits"].len(), 50_000);
    ok(&mut respond);
    serve(connection);
    assert_eq!(client.answer().await.status, 200);
}

#[tokio::test]
async fn trailers_too_large_for_a_pod_cost_their_sender_its_exchange_and_nobody_else_anything() {
    let fixture = Fixture::new();
    let pod = ScriptedHttp2Pod::start(&fixture).await;
    let upload = async || {
        let http2 = fixture.http2_client().await;
        let (sender, body) = stream();
        sender.send(data("hello")).unwrap();
        let request = http2.request("POST", "/").body(body).unwrap();
        (sender, http2.spawn_ask(request))
    };
    let (bystander, waits) = upload().await;
    // The limit of hyper's servers.
    let mut connection = pod.accept_with(h2::server::Builder::new().max_header_list_size(16 << 10)).await;
    let (_, mut respond) = next(&mut connection).await;
    let (sender, asked) = upload().await;
    let (request, _respond) = next(&mut connection).await;
    serve(connection);
    let mut body = request.into_body();
    assert_eq!(soon(body.data()).await.unwrap().unwrap(), "hello");
    let mut trailers = http::HeaderMap::new();
    for number in 0..60 {
        let name: http::HeaderName = format!("x-{number}").parse().unwrap();
        trailers.insert(name, "v".repeat(1_000).parse().unwrap());
    }
    sender.send(Some(http_body::Frame::trailers(trailers))).unwrap();
    assert_eq!(soon(asked).await.unwrap().reason(), (431, "limit"));
    assert!(soon(body.data()).await.unwrap().is_err(), "it must not look complete");
    fixture.in_flight(P0, 1).await;
    bystander.send(None).unwrap();
    ok(&mut respond);
    assert_eq!(soon(waits).await.unwrap().status, 200);
    fixture.in_flight(P0, 0).await;
}

/// Servers count the streams that are reset before they have accepted them, and end the connection after about twenty.
#[tokio::test]
async fn a_client_that_abandons_its_uploads_costs_nobody_else_an_answer() {
    let fixture = Fixture::new();
    let pod = ScriptedHttp2Pod::start(&fixture).await;
    let bystander = fixture.http2_client().await;
    let asked = bystander.spawn_ask(bystander.request("POST", "/").body(support::client::full("small")).unwrap());
    let mut connection = pod.accept().await;
    let (_, mut slow) = next(&mut connection).await;
    // This pod accepts nothing more until the attack is over.
    let attacker = fixture.http2_client().await;
    let mut uploads = Vec::new();
    for _ in 0..60 {
        let (sender, body) = stream();
        sender.send(data("x")).unwrap();
        uploads.push((sender, attacker.spawn_begin(attacker.request("POST", "/").body(body).unwrap())));
    }
    fixture.in_flight(P0, 61).await;
    uploads.clear();
    fixture.in_flight(P0, 1).await;
    let mut pings = connection.ping_pong().unwrap();
    serve(connection);
    // The answer to a ping comes behind all resets, so the pod has seen them by then.
    soon(pings.ping(h2::Ping::opaque())).await.unwrap();
    ok(&mut slow);
    assert_eq!(soon(asked).await.unwrap().status, 200);
}

/// Some servers end a connection on which two hundred streams were reset within a short time.
#[tokio::test]
async fn a_connection_on_which_many_answers_were_abandoned_gets_no_further_exchanges() {
    let fixture = Fixture::new();
    let pod = ScriptedHttp2Pod::start(&fixture).await;
    let most = Arc::new(AtomicUsize::new(0));
    let seen = most.clone();
    let listener = pod.listener;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let mut connection = h2::server::handshake(stream).await.unwrap();
            let (seen, resets) = (seen.clone(), Arc::new(AtomicUsize::new(0)));
            tokio::spawn(async move {
                while let Some(Ok((_, mut respond))) = connection.accept().await {
                    let mut body = respond.send_response(Response::new(()), false).unwrap();
                    body.send_data(Bytes::from_static(b"an event"), false).unwrap();
                    let (seen, resets) = (seen.clone(), resets.clone());
                    tokio::spawn(async move {
                        if std::future::poll_fn(|context| body.poll_reset(context)).await.is_ok() {
                            seen.fetch_max(resets.fetch_add(1, SeqCst) + 1, SeqCst);
                        }
                    });
                }
            });
        }
    });
    let client = fixture.http2_client().await;
    for _ in 0..300 {
        let mut answer = client.begin(client.request("GET", "/events").body(empty()).unwrap()).await.unwrap();
        soon(answer.frame()).await.unwrap().unwrap();
    }
    fixture.in_flight(P0, 0).await;
    let most = most.load(SeqCst);
    assert!((1..=32).contains(&most), "{most} resets on one connection");
}

#[tokio::test]
async fn what_a_pod_has_refused_to_look_at_is_sent_again() {
    let fixture = upstream(|_| {});
    let pod = ScriptedHttp2Pod::start(&fixture).await;
    let (mut client, connection, mut respond) = pod.exchange(&fixture, "/").await;
    respond.send_reset(h2::Reason::REFUSED_STREAM);
    serve(connection);
    assert_eq!(client.answer().await.status, 200);
}

/// Requests that wait for the same connection share it, and the pod refuses all of them.
#[tokio::test]
async fn a_pod_that_refuses_all_streams_gets_no_more_of_them_for_those_who_share_a_connection() {
    let mut settings = Settings::default();
    settings.forward.upstream.protocol = UpstreamProtocol::Http2;
    settings.stash.flush_concurrency = REQUESTS;
    let fixture = Fixture::with(settings);
    let streams = Arc::new(AtomicUsize::new(0));
    let counted = streams.clone();
    let address = start_h2_pod(move |_, mut respond| {
        counted.fetch_add(1, SeqCst);
        respond.send_reset(h2::Reason::REFUSED_STREAM);
    })
    .await;
    let mut clients = Vec::new();
    for _ in 0..REQUESTS {
        clients.push(fixture.send(get("/")).await);
    }
    fixture.held(P0, REQUESTS).await;
    // All are sent at once, and wait for one connection.
    fixture.route(P0, address, 1);
    until(|| fixture.metrics.requests_bounced(BounceCause::ConnectFailed) >= REQUESTS as u64, "all to be refused")
        .await;
    let streams = streams.load(SeqCst);
    // Two attempts for each request, and the retry budget of a hundred and ten a second.
    assert!(streams < 10 * REQUESTS, "{streams} streams");
}

const REQUESTS: usize = 60;

#[tokio::test]
async fn what_a_pod_has_reset_otherwise_is_not_sent_again() {
    for why in [h2::Reason::INTERNAL_ERROR, h2::Reason::CANCEL, h2::Reason::NO_ERROR, h2::Reason::ENHANCE_YOUR_CALM] {
        let fixture = upstream(|_| {});
        let pod = ScriptedHttp2Pod::start(&fixture).await;
        let (mut client, mut connection, mut respond) = pod.exchange(&fixture, "/").await;
        respond.send_reset(why);
        let more = tokio::spawn(async move { connection.accept().await.is_some() });
        assert_eq!(client.answer().await.reason(), (502, "upstream-failed"), "{why:?}");
        pod.nobody_comes().await;
        assert!(!more.is_finished(), "sent again after {why:?}");
    }
}

#[tokio::test]
async fn an_answer_that_its_pod_resets_is_never_whole() {
    for why in [h2::Reason::INTERNAL_ERROR, h2::Reason::CANCEL] {
        let fixture = upstream(|_| {});
        let pod = ScriptedHttp2Pod::start(&fixture).await;
        let (mut client, connection, mut respond) = pod.exchange(&fixture, "/").await;
        let mut body = respond.send_response(Response::new(()), false).unwrap();
        body.send_data(Bytes::from_static(b"begin"), false).unwrap();
        serve(connection);
        assert_eq!(client.head().await.status, 200);
        client.line().await;
        body.send_reset(why);
        let rest = client.rest().await;
        assert!(!rest.ends_with("0\r\n\r\n"), "{rest:?} looks complete after {why:?}");
    }
}

#[tokio::test]
async fn a_request_above_the_last_one_that_a_leaving_pod_names_is_sent_again() {
    let fixture = upstream(|_| {});
    let pod = ScriptedHttp2Pod::start(&fixture).await;
    let mut first = fixture.send(get("/first")).await;
    let mut stream = soon(pod.listener.accept()).await.unwrap().0;
    let mut read = Vec::new();
    greet(&mut stream, &mut read, 1).await;
    let mut second = fixture.send(get("/second")).await;
    requests(&mut stream, &mut read, 2).await;
    stream.write_all(&goaway(1, 0)).await.unwrap();
    // A head of `:status: 200` with END_STREAM.
    stream.write_all(&[0, 0, 1, 1, 5, 0, 0, 0, 1, 0x88]).await.unwrap();
    assert_eq!(first.answer().await.status, 200);
    serve(pod.accept().await);
    assert_eq!(second.answer().await.status, 200);
}

/// The request itself may be what ends its pod's connection.
#[tokio::test]
async fn a_request_whose_connection_ends_with_an_error_is_tried_once_more_and_never_again() {
    let fixture = upstream(|_| {});
    let pod = ScriptedHttp2Pod::start(&fixture).await;
    let mut client = fixture.send(get("/poison")).await;
    for _ in 0..2 {
        let mut stream = soon(pod.listener.accept()).await.unwrap().0;
        kill(&mut stream).await;
    }
    assert_eq!(client.answer().await.reason(), (502, "upstream-failed"));
    pod.nobody_comes().await;
    // The partition is not held for it.
    let mut other = fixture.send(get("/")).await;
    serve(pod.accept().await);
    assert_eq!(other.answer().await.status, 200);
}

#[tokio::test]
async fn a_request_that_has_ended_a_connection_gets_its_own_although_the_next_cannot_be_made_at_once() {
    let fixture = upstream(|_| {});
    let ScriptedHttp2Pod { listener, address } = ScriptedHttp2Pod::new().await;
    fixture.route(P0, address, 1);
    let mut client = fixture.send(get("/poison")).await;
    let mut stream = soon(listener.accept()).await.unwrap().0;
    drop(listener);
    kill(&mut stream).await;
    until(|| fixture.metrics.requests_bounced(BounceCause::ConnectFailed) > 0, "the second connection to fail").await;
    let pod = ScriptedHttp2Pod { listener: TcpListener::bind(address).await.unwrap(), address };
    kill(&mut soon(pod.listener.accept()).await.unwrap().0).await;
    assert_eq!(client.answer().await.reason(), (502, "upstream-failed"));
    pod.nobody_comes().await;
}

/// Waits for a request, then ends the connection as `h2` does for a head that is much too large: with a GOAWAY that names
/// no stream as processed.
async fn kill(stream: &mut TcpStream) {
    let mut read = Vec::new();
    greet(stream, &mut read, 1).await;
    stream.write_all(&goaway(0, 9)).await.unwrap();
    stream.shutdown().await.unwrap();
    while soon(stream.read_buf(&mut read)).await.unwrap_or(0) > 0 {}
}

fn goaway(last: u8, code: u8) -> [u8; 17] {
    [0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, last, 0, 0, 0, code]
}

/// Sends empty settings and waits for this number of requests.
async fn greet(stream: &mut TcpStream, read: &mut Vec<u8>, count: usize) {
    stream.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await.unwrap();
    requests(stream, read, count).await;
}

async fn requests(stream: &mut TcpStream, read: &mut Vec<u8>, count: usize) {
    while heads(read) < count {
        assert_ne!(soon(stream.read_buf(read)).await.unwrap(), 0, "closed before a request");
    }
}

/// Returns the number of HEADERS frames behind the preface.
fn heads(bytes: &[u8]) -> usize {
    let mut found = 0;
    let mut rest = bytes.get(24..).unwrap_or_default();
    while let [a, b, c, kind, _, _, _, _, _, payload @ ..] = rest {
        found += usize::from(*kind == 1);
        let length = u32::from_be_bytes([0, *a, *b, *c]) as usize;
        rest = payload.get(length..).unwrap_or_default();
    }
    found
}

#[tokio::test]
async fn a_pod_that_allows_few_streams_gets_more_connections_and_nothing_waits_in_between() {
    let fixture = upstream(|_| {});
    let pod = ScriptedHttp2Pod::start(&fixture).await;
    let mut builder = h2::server::Builder::new();
    builder.max_concurrent_streams(2);
    let mut clients = Vec::new();
    let (arrived, mut arrivals) = tokio::sync::mpsc::unbounded_channel();
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = connections.clone();
    tokio::spawn(async move {
        loop {
            let mut connection = pod.accept_with(&builder).await;
            counted.fetch_add(1, SeqCst);
            let arrived = arrived.clone();
            tokio::spawn(async move {
                while let Some(Ok((_, respond))) = connection.accept().await {
                    arrived.send(respond).unwrap();
                }
            });
        }
    });
    let mut waiting = Vec::new();
    for number in 0..6 {
        clients.push(fixture.send(get("/")).await);
        until(|| fixture.table.in_flight(P0) == number + 1, "the request").await;
        waiting.push(soon(arrivals.recv()).await.expect("it waits although a connection could be made"));
    }
    assert_eq!(connections.load(SeqCst), 3);
    for respond in &mut waiting {
        ok(respond);
    }
    for client in &mut clients {
        assert_eq!(client.answer().await.status, 200);
    }
}

/// Requests that wait for the first connection are sent before the pod has announced how many it takes. It refuses those
/// beyond that.
#[tokio::test]
async fn a_pod_that_allows_few_streams_gets_all_that_was_held_at_the_same_time() {
    let fixture = upstream(|_| {});
    let pod = ScriptedHttp2Pod::new().await;
    let address = pod.address;
    let (arrived, mut arrivals) = tokio::sync::mpsc::unbounded_channel();
    let table = fixture.table.clone();
    tokio::spawn(async move {
        let mut builder = h2::server::Builder::new();
        builder.max_concurrent_streams(2);
        let mut is_first = true;
        while let Ok((stream, _)) = pod.listener.accept().await {
            let (arrived, builder) = (arrived.clone(), builder.clone());
            // The pod says nothing before all requests wait for the first connection.
            if std::mem::take(&mut is_first) {
                until(|| table.in_flight(P0) == 6, "all to set out").await;
            }
            tokio::spawn(async move {
                let mut connection = builder.handshake::<_, Bytes>(stream).await.unwrap();
                while let Some(Ok((_, respond))) = connection.accept().await {
                    arrived.send(respond).unwrap();
                }
            });
        }
    });
    let mut clients = Vec::new();
    for _ in 0..6 {
        clients.push(fixture.send(get("/")).await);
    }
    fixture.held(P0, 6).await;
    fixture.route(P0, address, 1);
    let mut waiting = Vec::new();
    for _ in 0..6 {
        waiting.push(soon(arrivals.recv()).await.expect("it waits although a connection could be made"));
    }
    waiting.iter_mut().for_each(ok);
    for client in &mut clients {
        assert_eq!(client.answer().await.status, 200);
    }
}

#[tokio::test]
async fn a_request_on_a_used_connection_that_breaks_is_not_sent_again() {
    let fixture = upstream(|_| {});
    let pod = ScriptedHttp2Pod::start(&fixture).await;
    let (mut client, mut connection, mut respond) = pod.exchange(&fixture, "/first").await;
    ok(&mut respond);
    let second = tokio::spawn(async move {
        let accepted = next(&mut connection).await;
        drop(connection);
        accepted.0.uri().path().to_owned()
    });
    assert_eq!(client.answer().await.status, 200);
    client.write(get("/second")).await;
    assert_eq!(soon(second).await.unwrap(), "/second");
    assert_eq!(client.answer().await.reason(), (502, "upstream-failed"));
    pod.nobody_comes().await;
}

#[tokio::test]
async fn a_length_that_has_arrived_is_no_end_of_a_request_by_http2() {
    for ends in [true, false] {
        let fixture = Fixture::new();
        let pod = ScriptedHttp2Pod::start(&fixture).await;
        let http2 = fixture.http2_client().await;
        let (sender, body) = stream();
        sender.send(data("hello")).unwrap();
        let request = http2.request("POST", "/").header("content-length", "5").body(body).unwrap();
        let asked = tokio::spawn({
            let http2 = http2.clone();
            async move { http2.begin(request).await.map(|answer| answer.status()) }
        });
        let mut connection = pod.accept().await;
        let (request, mut respond) = next(&mut connection).await;
        let mut body = request.into_body();
        tokio::spawn(async move { while connection.accept().await.is_some() {} });
        assert_eq!(soon(body.data()).await.unwrap().unwrap(), "hello");
        if ends {
            let mut trailers = http::HeaderMap::new();
            trailers.insert("x-sum", "7".parse().unwrap());
            sender.send(Some(http_body::Frame::trailers(trailers))).unwrap();
            assert_eq!(soon(body.trailers()).await.unwrap().unwrap()["x-sum"], "7");
            ok(&mut respond);
            assert_eq!(soon(asked).await.unwrap().unwrap(), 200);
        } else {
            assert!(!body.is_end_stream(), "its client has not ended it");
            drop(sender);
            assert!(soon(body.data()).await.unwrap().is_err());
            assert!(soon(asked).await.unwrap().is_err());
        }
        fixture.in_flight(P0, 0).await;
    }
}
