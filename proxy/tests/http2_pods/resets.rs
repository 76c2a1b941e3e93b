//! Exchanges that their client abandons or their pod resets.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;

use bytes::Bytes;
use http::Response;
use http_body_util::BodyExt as _;
use segue_proxy::routing::table::Bounce;
use segue_proxy::settings::UpstreamProtocol;

use super::{ScriptedHttp2Pod, get, next, ok, serve, upstream};
use crate::support::client::{data, empty, stream};
use crate::support::pod::start_h2_pod;
use crate::support::{Fixture, P0, Settings, soon, until};

/// Servers count the streams that are reset before they have accepted them, and end the connection after about twenty.
#[tokio::test]
async fn a_client_that_abandons_its_uploads_costs_nobody_else_an_answer() {
    let fixture = Fixture::of_http2_pods();
    let pod = ScriptedHttp2Pod::start(&fixture).await;
    let bystander = fixture.http2_client().await;
    let asked =
        bystander.spawn_ask(bystander.request("POST", "/").body(crate::support::client::full("small")).unwrap());
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
    let fixture = Fixture::of_http2_pods();
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
    until(|| fixture.metrics.requests_bounced(Bounce::Unprocessed) >= REQUESTS as u64, "all to be refused").await;
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
