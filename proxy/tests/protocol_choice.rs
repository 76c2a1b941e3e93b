//! The version of HTTP towards pods, whatever the client speaks.

use http::{Response, Version};
use http_body_util::BodyExt as _;
use segue_proxy::settings::UpstreamProtocol;

use crate::support::client::{empty, full};
use crate::support::pod::{Pod, ScriptedPod, Speaks};
use crate::support::{Fixture, GET, P0, Settings};

/// Starts a pod that tells what it was sent: the version, the host, the cookies and the body.
async fn telling_pod(fixture: &Fixture, speaks: Speaks) -> Pod {
    let pod = fixture.pod(speaks, |request| async move {
        let (head, body) = request.into_parts();
        let host = head.headers.get("host").map(|host| host.to_str().unwrap().to_owned());
        let host = host.or_else(|| head.uri.authority().map(ToString::to_string));
        let cookies: Vec<_> = head.headers.get_all("cookie").iter().map(|line| line.to_str().unwrap()).collect();
        let body = String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap();
        let told = format!("{:?} {} {} {cookies:?} {body}", head.version, head.method, host.unwrap());
        Response::builder().header("grpc-status", "0").body(full(told)).unwrap()
    });
    pod.await
}

#[tokio::test]
async fn a_client_by_http2_is_served_by_a_pod_that_speaks_http1_alone() {
    let fixture = Fixture::new();
    let _pod = telling_pod(&fixture, Speaks::Http1).await;
    let http2 = fixture.http2_client().await;
    let host = fixture.address;
    assert_eq!(http2.get("/").await.text(), format!("HTTP/1.1 GET {host} [] "));
    let request = http2.request("POST", "/").header("cookie", "a=1").header("cookie", "b=2");
    let told = http2.ask(request.body(full("body")).unwrap()).await;
    assert_eq!(told.text(), format!("HTTP/1.1 POST {host} [\"a=1; b=2\"] body"));
    assert_eq!(http2.post("/", empty()).await.text(), format!("HTTP/1.1 POST {host} [] "));
}

#[tokio::test]
async fn grpc_goes_by_http2_whatever_the_client_speaks() {
    let fixture = Fixture::new();
    let _pod = telling_pod(&fixture, Speaks::Http2).await;
    let http2 = fixture.http2_client().await;
    let call =
        http2.request("POST", "/svc/Do").header("content-type", "application/grpc+proto").header("te", "trailers");
    let told = http2.ask(call.body(full("call")).unwrap()).await;
    assert_eq!(told.text(), format!("{:?} POST {} [] call", Version::HTTP_2, fixture.address));
    let call = "POST /svc/Do HTTP/1.1\r\nhost: h\r\nx-partition: 0\r\ncontent-type: application/grpc\r\ncontent-length: 4\r\n\r\ncall";
    assert_eq!(fixture.ask(call).await.text(), "HTTP/2.0 POST h [] call");
}

#[tokio::test]
async fn a_request_that_a_pod_of_another_protocol_cannot_read_is_held_and_not_taken_for_processed() {
    let fixture = Fixture::with(Settings::with_protocol(UpstreamProtocol::Http2));
    let other = fixture.scripted_pod().await;
    let asked = fixture.send(GET).await;
    for _ in 0..3 {
        let mut connection = other.accept().await;
        connection.receive("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
        // In pieces: one read may bring only a part of it.
        for piece in ["HT", "TP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n"] {
            connection.write(piece).await;
        }
        // A close with something unread may cost the router what has been written.
        connection.rest().await;
    }
    let pod = Pod::start(Speaks::Http2, |_| async { Response::new(full("served")) }).await;
    fixture.route(P0, pod.address, 2);
    let mut asked = asked;
    assert_eq!(asked.answer().await.text(), "served");
}

#[tokio::test]
async fn a_pod_that_says_nothing_may_have_read_the_request() {
    let fixture = Fixture::with(Settings::with_protocol(UpstreamProtocol::Http2));
    let other: ScriptedPod = fixture.scripted_pod().await;
    let mut asked = fixture.send(GET).await;
    let mut connection = other.accept().await;
    connection.receive("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
    drop(connection);
    assert_eq!(asked.answer().await.reason(), (502, "upstream-failed"));
}

#[tokio::test]
async fn a_pod_that_speaks_http2_alone_is_told_from_one_that_breaks_exchanges() {
    let fixture = Fixture::new();
    let pod: ScriptedPod = fixture.scripted_pod().await;
    let mut asked = fixture.send(GET).await;
    let mut connection = pod.accept_request().await;
    // SETTINGS without content.
    connection.write(b"\0\0\0\x04\0\0\0\0\0").await;
    let answer = asked.answer().await;
    assert_eq!(answer.reason(), (502, "upstream-failed"));
    assert!(
        answer.text().contains("router.upstream.protocol") && !answer.text().contains("effect"),
        "{}",
        answer.text()
    );
}
