//! Heads, bodies and trailers that are too large for a pod.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use segue_proxy::routing::table::Bounce;
use segue_proxy::settings::UpstreamProtocol;
use tokio::net::{TcpListener, TcpStream};

use super::{ScriptedHttp2Pod, get, next, ok, serve, upstream};
use crate::support::client::{data, stream};
use crate::support::{Fixture, P0, POST_THAT_EXPECTS, Settings, soon, until};

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
    assert_eq!(Bounce::ALL.map(|bounce| fixture.metrics.requests_bounced(bounce)), [0; Bounce::ALL.len()]);
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
    until(|| fixture.metrics.requests_bounced(Bounce::Unreachable) > 0, "a connection to fail").await;
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
    let mut settings = Settings::with_protocol(UpstreamProtocol::Http2);
    settings.forward.limits.max_body_bytes = Some(1000);
    let fixture = Fixture::with(settings);
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
    let fixture = Fixture::of_http2_pods();
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

#[tokio::test]
async fn a_length_that_has_arrived_is_no_end_of_a_request_by_http2() {
    for ends in [true, false] {
        let fixture = Fixture::of_http2_pods();
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
