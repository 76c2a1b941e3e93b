//! Rules of protocols beyond passing bytes: deadlines of gRPC, close frames of WebSocket, the origin of a `421`, and the
//! size that a held body counts with.

use std::time::Duration;

use http::Response;
use http_body_util::BodyExt;
use segue_proxy::routing::table::Bounce;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::Instant;

use crate::support::client::{Body, Http2Client, data, empty, stream};
use crate::support::pod::{Pod, Speaks, echo_body};
use crate::support::{Fixture, GET, P0, P1, Settings, get_at, post, soon, until};

fn call(http2: &Http2Client, timeout: &str) -> http::request::Builder {
    let call = http2.request("POST", "/svc/Do").header("content-type", "application/grpc");
    call.header("grpc-timeout", timeout).header("te", "trailers")
}

#[tokio::test]
async fn a_held_call_whose_deadline_passes_is_told_so_at_once_and_never_sent() {
    let fixture = Fixture::new();
    let http2 = fixture.http2_client().await;
    let begun = Instant::now();
    let answer = http2.ask(call(&http2, "1S").body(empty()).unwrap()).await;
    assert_eq!((answer.header("grpc-status"), answer.header("segue-reason")), ("4", "deadline"));
    assert!(begun.elapsed() >= Duration::from_millis(900), "{:?}", begun.elapsed());
    assert_eq!(fixture.table.stashed(P0), (0, 0));
    // If it were still held, the pod would get it before this one.
    let pod = fixture.scripted_pod().await;
    let _http1 = fixture.send("GET /other HTTP/1.1\r\nhost: h\r\nx-partition: 0\r\n\r\n").await;
    assert!(pod.accept().await.head().await.starts_with("GET /other"));
}

#[tokio::test]
async fn a_pod_is_told_what_is_left_of_a_calls_time() {
    let fixture = Fixture::new();
    let pod = Pod::start(Speaks::Http2, |request| async move {
        let left = request.headers()["grpc-timeout"].clone();
        Response::builder().header("x-left", left).header("grpc-status", "0").body(empty()).unwrap()
    })
    .await;
    let http2 = fixture.http2_client().await;
    let asked = http2.spawn_ask(call(&http2, "30S").body(empty()).unwrap());
    fixture.held(P0, 1).await;
    let held = Duration::from_millis(100);
    tokio::time::sleep(held).await;
    fixture.route(P0, pod.address, 1);
    let answer = asked.await.unwrap();
    let left: u64 = answer.header("x-left").strip_suffix('u').expect("microseconds").parse().unwrap();
    let most = (Duration::from_secs(30) - held).as_micros() as u64;
    assert!((20_000_000..=most).contains(&left), "{left}");
}

/// Sends a message when it is dropped.
struct Ended(tokio::sync::mpsc::UnboundedSender<()>);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

#[tokio::test]
async fn a_call_that_its_pod_does_not_answer_in_time_is_told_so_and_the_pod_as_well() {
    let fixture = Fixture::new();
    let (ended, mut end) = tokio::sync::mpsc::unbounded_channel();
    let _pod = fixture
        .pod(Speaks::Http2, move |request| {
            let ended = Ended(ended.clone());
            async move {
                if request.uri().path().ends_with("Stream") {
                    let (frames, body) = stream();
                    frames.send(data("part")).unwrap();
                    tokio::spawn(async move {
                        frames.closed().await;
                        drop(ended);
                    });
                    return Response::new(body);
                }
                let _ended = ended;
                std::future::pending::<Response<Body>>().await
            }
        })
        .await;
    let http2 = fixture.http2_client().await;
    let answer = http2.ask(call(&http2, "1S").body(empty()).unwrap()).await;
    assert_eq!((answer.header("grpc-status"), answer.header("segue-reason")), ("4", "deadline"));
    soon(end.recv()).await.expect("the pod sees its stream reset");
    fixture.in_flight(P0, 0).await;
    // Its response begins in time on a busy machine, too.
    let mut request = call(&http2, "5S").body(empty()).unwrap();
    *request.uri_mut() = format!("http://{}/svc/Stream", fixture.address).parse().unwrap();
    let mut body = http2.begin(request).await.unwrap().into_body();
    assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "part");
    let error = body.frame().await.unwrap().unwrap_err();
    let reset = std::error::Error::source(&error).unwrap().downcast_ref::<h2::Error>().unwrap();
    assert_eq!(reset.reason(), Some(h2::Reason::CANCEL));
    soon(end.recv()).await.expect("the pod sees its stream reset");
    fixture.in_flight(P0, 0).await;
}

#[tokio::test]
async fn a_call_without_body_weighs_little_and_a_body_what_has_arrived() {
    let fixture = Fixture::of_http2_pods();
    let http2 = fixture.http2_client().await;
    let (frames, body) = stream();
    let asked = http2.spawn_ask(http2.request("POST", "/").body(body).unwrap());
    fixture.held(P0, 1).await;
    let (_, head) = fixture.table.stashed(P0);
    assert!(head < 4 << 10, "{head} bytes for a head");
    for _ in 0..3 {
        frames.send(data("0123456789")).unwrap();
    }
    until(|| fixture.table.stashed(P0).1 == head + 30, "what has arrived to be counted").await;
    frames.send(None).unwrap();
    let _pod = fixture
        .pod(Speaks::Http2, |request| async move {
            Response::new(request.into_body().map_err(std::io::Error::other).boxed())
        })
        .await;
    assert_eq!(asked.await.unwrap().text(), "0123456789".repeat(3));
    assert_eq!(fixture.table.stashed(P0), (0, 0));
}

#[tokio::test]
async fn a_held_body_that_outgrows_the_stash_is_refused() {
    let fixture = Fixture::with(Settings::with(|settings| settings.stash.max_bytes = 8 << 10));
    let mut client = fixture.send(post("transfer-encoding: chunked", "")).await;
    fixture.held(P0, 1).await;
    client.write(format!("4000\r\n{}\r\n", "x".repeat(0x4000))).await;
    assert_eq!(client.answer().await.reason(), (503, "stash-full"));
    assert_eq!(fixture.table.stashed(P0), (0, 0));
    // It no longer counts towards the total either.
    let _other = fixture.send(get_at(P1, "")).await;
    fixture.held(P1, 1).await;
}

#[tokio::test]
async fn a_421_that_is_marked_as_the_services_own_reaches_the_client() {
    let fixture = Fixture::new();
    let _pod = fixture
        .pod(Speaks::Http1, |_| async {
            Response::builder().status(421).header("segue-misdirected", "0").body(empty()).unwrap()
        })
        .await;
    let answer = fixture.ask(GET).await;
    assert_eq!((answer.status, answer.header("segue-misdirected")), (421, ""));
    assert_eq!(fixture.metrics.requests_bounced(Bounce::Misdirected), 0);
}

#[tokio::test]
async fn a_severed_websocket_is_closed_between_two_frames_towards_both_sides() {
    let fixture = Fixture::new();
    let pod = fixture.scripted_pod().await;
    // The pod is in the middle of a frame, the client between two.
    let (mut client, mut connection) = fixture.websocket(&pod, b"\x81\x06first").await;
    assert_eq!(client.exactly(7).await, b"\x81\x06first");
    client.write(b"\x81\x82\0\0\0\0hi").await;
    assert_eq!(connection.exactly_bytes(8).await, b"\x81\x82\0\0\0\0hi");
    fixture.hold_and_sever(P0);
    // The one worker has seen that before it answers anybody else.
    assert_eq!(fixture.ask("GET / HTTP/1.1\r\nhost: h\r\n\r\n").await.status, 400);
    connection.write("!\x01\x03").await;
    assert_eq!(client.exactly(1).await, b"!", "the frame's end, and nothing of the next frame");
    let to_client = client.exactly(4).await;
    assert_eq!((to_client[0], u16::from_be_bytes([to_client[2], to_client[3]])), (0x88, 1012));
    let to_pod = connection.exactly_bytes(8).await;
    assert_eq!((to_pod[0], to_pod[1] & 0x80, u16::from_be_bytes([to_pod[6], to_pod[7]])), (0x88, 0x80, 1001));
    drop(connection);
    fixture.in_flight(P0, 0).await;
}

#[tokio::test]
async fn the_last_words_of_a_pod_reach_a_client_that_goes_on_sending() {
    let fixture = Fixture::new();
    let pod = fixture.scripted_pod().await;
    for round in 0..20 {
        let (client, mut connection) = fixture.websocket(&pod, b"").await;
        let (mut reader, mut writer) = client.stream.into_split();
        let sending = tokio::spawn(async move { while writer.write_all(&[b'x'; 64 << 10]).await.is_ok() {} });
        connection.exactly_bytes(1024).await;
        connection.write("bye").await;
        // Unread bytes make this close a reset.
        drop(connection);
        let mut said = Vec::new();
        let _ = soon(reader.read_to_end(&mut said)).await;
        assert_eq!(said, b"bye", "round {round}");
        sending.abort();
    }
}

#[tokio::test]
async fn a_websocket_is_closed_towards_both_sides_when_its_router_ends() {
    let mut fixture = Fixture::new();
    let pod = fixture.scripted_pod().await;
    let (mut client, mut connection) = fixture.websocket(&pod, b"").await;
    let ended = tokio::spawn(fixture.server.take().unwrap().shutdown(Instant::now() + Duration::from_secs(4)));
    let to_client = client.exactly(4).await;
    assert_eq!((to_client[0], u16::from_be_bytes([to_client[2], to_client[3]])), (0x88, 1012));
    let to_pod = connection.exactly_bytes(8).await;
    assert_eq!((to_pod[0], u16::from_be_bytes([to_pod[6], to_pod[7]])), (0x88, 1001));
    drop(connection);
    soon(ended).await.unwrap();
}

/// Rust's `h2` closes a connection, and with it everybody's exchanges, after a hundred empty frames that end nothing.
#[tokio::test]
async fn clients_that_end_their_bodies_with_an_empty_frame_do_not_use_up_a_pods_patience() {
    let fixture = Fixture::of_http2_pods();
    let answer_now = std::sync::Arc::new(tokio::sync::Notify::new());
    let told = answer_now.clone();
    let pod = fixture
        .pod(Speaks::Http2, move |request| {
            let told = told.clone();
            async move {
                if request.uri().path() == "/long" {
                    told.notified().await;
                }
                echo_body(request).await
            }
        })
        .await;
    // Requests that have arrived whole and uploads use different connections to the pod. Each has a bystander.
    let bystander = fixture.http2_client().await;
    let long = |body| bystander.spawn_ask(bystander.request("POST", "/long").body(body).unwrap());
    let (upload, uploaded) = stream();
    upload.send(data("begun")).unwrap();
    let whole = long(empty());
    let uploading = long(uploaded);
    fixture.in_flight(P0, 2).await;
    let http2 = fixture.http2_client().await;
    for _ in 0..150 {
        let (sender, body) = stream();
        sender.send(data("a message")).unwrap();
        let answer = http2.spawn_ask(http2.request("POST", "/").body(body).unwrap());
        sender.send(None).unwrap();
        let answer = answer.await.unwrap();
        assert_eq!((answer.status, answer.text()), (200, "a message"));
    }
    upload.send(None).unwrap();
    answer_now.notify_waiters();
    for (long, text) in [(whole, ""), (uploading, "begun")] {
        let answer = long.await.unwrap();
        assert_eq!((answer.status, answer.text()), (200, text));
    }
    assert_eq!(pod.connections.load(std::sync::atomic::Ordering::SeqCst), 2);
}

/// The same for small frames that wait for a client that does not read.
#[tokio::test]
async fn a_client_that_does_not_read_small_frames_leaves_others_their_connection_to_the_pod() {
    const MESSAGES: usize = 60_000;
    let fixture = Fixture::of_http2_pods();
    let (written, mut all_written) = tokio::sync::mpsc::unbounded_channel();
    let pod = fixture
        .pod(Speaks::Http2, move |request| {
            let written = written.clone();
            async move {
                if request.uri().path() != "/many" {
                    return Response::new(empty());
                }
                let mut left = MESSAGES;
                let messages = futures_util::stream::poll_fn(move |_| {
                    left = left.saturating_sub(1);
                    if left == 0 {
                        let _ = written.send(());
                        return std::task::Poll::Pending;
                    }
                    std::task::Poll::Ready(Some(Ok(http_body::Frame::data(bytes::Bytes::from_static(b"m")))))
                });
                Response::new(http_body_util::StreamBody::new(messages).boxed())
            }
        })
        .await;
    let lazy = fixture.http2_client().await;
    let unread = lazy.begin(lazy.request("GET", "/many").body(empty()).unwrap()).await.unwrap();
    soon(all_written.recv()).await.unwrap();
    let bystander = fixture.http2_client().await;
    for _ in 0..10 {
        assert_eq!(bystander.get("/").await.status, 200);
    }
    assert_eq!(pod.connections.load(std::sync::atomic::Ordering::SeqCst), 1);
    drop(unread);
}
