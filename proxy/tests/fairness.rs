//! What one client may take from the others: connections, requests in flight, flow-control windows.

use std::time::Duration;

use http::Response;
use http_body_util::BodyExt;
use segue_protocol::handoff::router::HoldCause;
use segue_protocol::ids::PartitionId;
use tokio::io::AsyncReadExt as _;
use tokio::time::Instant;

use crate::support::client::{RawHttp1Client, empty, full};
use crate::support::pod::{Pod, Speaks};
use crate::support::{Fixture, GET, OK, P0, P1, Settings, TEST_TIMEOUT, get_at, post, soon, until};

/// Two of the addresses that every machine has.
const HERE: [u8; 4] = [127, 0, 0, 1];
const THERE: [u8; 4] = [127, 0, 0, 2];

fn with_connections(max: usize) -> Settings {
    Settings::with_limits(|limits| {
        limits.max_connections = max;
        // Idle clients are looked for eight times in this time.
        limits.header_read_timeout = Duration::from_millis(800);
    })
}

#[tokio::test]
async fn an_address_has_no_more_requests_than_it_may_whether_they_wait_or_are_in_flight() {
    let fixture = Fixture::with(Settings::with_limits(|limits| limits.max_in_flight_per_client = 3));
    let pod = fixture.scripted_pod().await;
    fixture.hold(P1, HoldCause::Handoff);
    let (mut first, mut one) = fixture.exchange(&pod, GET).await;
    let mut held = fixture.send(get_at(P1, "")).await;
    fixture.held(P1, 1).await;
    // A request whose client has left still counts, because its pod goes on with it.
    let (gone, _other) = fixture.exchange(&pod, GET.replace("GET", "POST")).await;
    drop(gone);
    let mut more = fixture.client().await;
    for _ in 0..2 {
        let refused = more.ask(GET).await;
        assert_eq!(refused.reason(), (503, "overload"));
        assert_eq!(refused.header("retry-after"), "1");
    }
    let http2 = fixture.http2_client().await;
    assert_eq!(http2.get("/").await.status, 503);
    // Another address has a limit of its own.
    let mut stranger = RawHttp1Client::connect_from(THERE, fixture.address).await;
    let mut strangers = pod.accept_from(&mut stranger, GET).await;
    strangers.write(OK).await;
    assert_eq!(stranger.answer().await.status, 200);
    // Each request that ends makes room for one.
    one.write(OK).await;
    assert_eq!(first.answer().await.status, 200);
    more.write(GET).await;
    one.head().await;
    one.write(OK).await;
    assert_eq!(more.answer().await.status, 200);
    fixture.route(P1, pod.address, 1);
    one.head().await;
    one.write(OK).await;
    assert_eq!(held.answer().await.status, 200);
}

#[tokio::test]
async fn requests_that_wait_for_the_table_count_for_their_address() {
    let mut settings = Settings { partitions: 0, ..Settings::default() };
    settings.forward.limits.max_in_flight_per_client = 2;
    let fixture = Fixture::with(settings);
    let (mut one, mut two, mut three) = (fixture.send(GET).await, fixture.send(GET).await, fixture.send(GET).await);
    // The one that arrives last is refused.
    let refused = tokio::select! {
        answer = one.answer() => answer,
        answer = two.answer() => answer,
        answer = three.answer() => answer,
    };
    assert_eq!(refused.reason(), (503, "overload"));
}

#[tokio::test]
async fn a_connection_by_http2_has_no_more_streams_than_it_may() {
    let fixture = Fixture::with(Settings::with_limits(|limits| limits.max_streams_per_connection = 2));
    let _pod = fixture.scripted_pod().await;
    let http2 = fixture.http2_client().await;
    let ask = || http2.spawn_ask(http2.request("GET", "/").body(empty()).unwrap());
    let asked = [ask(), ask(), ask()];
    // The pod gets them by HTTP/2, as they came, and never completes the handshake.
    fixture.in_flight(P0, 2).await;
    // The one worker has seen all that the client has sent before it answers anybody else.
    assert_eq!(fixture.ask("GET / HTTP/1.1\r\nhost: h\r\n\r\n").await.status, 400);
    assert_eq!(fixture.table.in_flight(P0), 2);
    asked.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test]
async fn silent_newcomers_give_way_to_each_other_and_never_take_the_place_of_a_served_client() {
    let fixture = Fixture::with(with_connections(120));
    let _pod = fixture.quick_pod().await;
    // More connections than are sampled to find an idle one. Clients that wait for their first answer must not hide
    // the silent ones.
    fixture.hold(P1, HoldCause::Handoff);
    let mut held = Vec::new();
    for _ in 0..80 {
        held.push(fixture.send(get_at(P1, "")).await);
    }
    fixture.held(P1, 80).await;
    let mut served = Vec::new();
    for _ in 0..20 {
        let mut client = fixture.client().await;
        assert_eq!(client.ask(GET).await.status, 200);
        served.push(client);
    }
    let began = Instant::now();
    let (mut silent, mut newcomers) = (Vec::new(), 0);
    // Until all clients that were served count as idle.
    while began.elapsed() < Duration::from_millis(500) || silent.len() <= 40 {
        silent.push(fixture.client().await);
        let answer = fixture.ask(GET.replace("host", "connection: close\r\nhost")).await;
        newcomers += usize::from(answer.status == 200);
    }
    assert!(newcomers > silent.len() / 2, "{newcomers} of {}", silent.len());
    for (number, client) in served.iter_mut().enumerate() {
        assert_eq!(client.ask(GET).await.status, 200, "client {number}");
    }
}

#[tokio::test]
async fn of_clients_that_have_been_served_one_of_the_address_with_most_connections_gives_way() {
    let fixture = Fixture::with(with_connections(4));
    let _pod = fixture.quick_pod().await;
    let mut clients = Vec::new();
    // The one that has been idle for longest has its address to itself.
    for ip in [HERE, THERE, THERE, THERE] {
        let mut client = RawHttp1Client::connect_from(ip, fixture.address).await;
        assert_eq!(client.ask(GET).await.status, 200);
        clients.push(client);
    }
    let began = Instant::now();
    loop {
        let mut newcomer = RawHttp1Client::connect_from([127, 0, 0, 3], fixture.address).await;
        match newcomer.ask(GET).await.status {
            200 => break,
            status => assert_eq!(status, 503),
        }
        assert!(began.elapsed() < TEST_TIMEOUT, "nobody gave way");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let mut alone = clients.remove(0);
    assert_eq!(alone.ask(GET).await.status, 200);
    let mut gone = 0;
    for client in &mut clients {
        let closed = tokio::time::timeout(Duration::from_millis(100), client.stream.read_u8()).await;
        gone += usize::from(closed.is_ok());
    }
    assert_eq!(gone, 1);
}

#[tokio::test]
async fn a_websocket_keeps_its_place_until_it_is_closed() {
    let fixture = Fixture::with(with_connections(1));
    let pod = fixture.scripted_pod().await;
    let (mut websocket, mut connection) = fixture.websocket(&pod, b"").await;
    // It keeps its place even when it has been idle for longer than others may be.
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(300) {
        let refused = fixture.ask(GET).await;
        assert_eq!(refused.reason(), (503, "overload"));
    }
    connection.write("still here").await;
    assert_eq!(websocket.exactly(10).await, b"still here");
    drop((websocket, connection));
    let pod = Pod::start(Speaks::Http1, |_| async { Response::new(empty()) }).await;
    fixture.route(P0, pod.address, 2);
    let began = Instant::now();
    while fixture.ask(GET).await.status != 200 {
        assert!(began.elapsed() < TEST_TIMEOUT, "the place of a closed one was not free again");
    }
}

#[tokio::test]
async fn uploads_that_nobody_reads_do_not_stop_others_of_their_connection() {
    let fixture = Fixture::of_http2_pods();
    let pod = Pod::start(Speaks::Http2, |request| async {
        let body = request.into_body().collect().await.unwrap().to_bytes();
        Response::new(full(body.len().to_string()))
    })
    .await;
    fixture.route(P1, pod.address, 1);
    let http2 = fixture.http2_client().await;
    let upload = |partition: PartitionId| {
        let http2 = http2.clone();
        tokio::spawn(async move {
            let request = http::Request::post(format!("http://{}/", "h")).header("x-partition", partition.get());
            http2.ask(request.body(full(vec![b'x'; 300 << 10])).unwrap()).await
        })
    };
    let held: Vec<_> = (0..12).map(|_| upload(P0)).collect();
    fixture.held(P0, 12).await;
    until(|| fixture.table.stashed(P0).1 >= 12 * (64 << 10), "bodies to be read ahead").await;
    assert_eq!(soon(upload(P1)).await.unwrap().text(), "307200");
    fixture.route(P0, pod.address, 1);
    for upload in held {
        assert_eq!(soon(upload).await.unwrap().text(), "307200");
    }
}

#[tokio::test]
async fn an_upload_that_drips_is_ended_and_one_of_grpc_is_not() {
    let fixture = Fixture::with(Settings::default().limit_upload_rate(Duration::from_millis(300)));
    let _pod = fixture.scripted_pod().await;
    let upload = |kind: &str| fixture.send(post(&format!("content-type: {kind}\r\ncontent-length: 9999"), ""));
    let (mut slow, mut grpc) = (upload("text/plain").await, upload("application/grpc").await);
    let drips = async {
        let mut interval = tokio::time::interval(Duration::from_millis(20));
        loop {
            interval.tick().await;
            let mut one = [0; 1];
            if tokio::time::timeout(Duration::from_millis(1), slow.stream.peek(&mut one)).await.is_ok() {
                break;
            }
            slow.write("x").await;
            grpc.write("x").await;
        }
    };
    soon(drips).await;
    assert_eq!(slow.answer().await.reason(), (408, "limit"));
    fixture.in_flight(P0, 1).await;
}

#[tokio::test]
async fn a_client_is_not_blamed_for_the_time_in_which_its_refused_upload_was_held() {
    let fixture = Fixture::with(Settings::default().limit_upload_rate(Duration::from_secs(2)));
    let pod = fixture.scripted_pod().await;
    let (mut client, mut first) = fixture.exchange(&pod, post("content-length: 5", "")).await;
    fixture.hold(P0, HoldCause::Handoff);
    first.write("HTTP/1.1 421 Misdirected Request\r\ncontent-length: 0\r\n\r\n").await;
    fixture.held(P0, 1).await;
    // Longer than the grace that an upload has.
    tokio::time::sleep(Duration::from_millis(2500)).await;
    fixture.route(P0, pod.address, 2);
    let mut second = pod.accept_request().await;
    // Long enough for the router to check the rate again.
    tokio::time::sleep(Duration::from_millis(300)).await;
    client.write("hello").await;
    assert_eq!(second.exactly(5).await, "hello");
    second.write(OK).await;
    assert_eq!(client.answer().await.status, 200);
}
