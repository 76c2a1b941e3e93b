//! Connections that end, and which of their requests are sent again.

use segue_proxy::routing::table::Bounce;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::{ScriptedHttp2Pod, get, next, ok, serve, upstream};
use crate::support::{P0, soon, until};

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
    until(|| fixture.metrics.requests_bounced(Bounce::Unreachable) > 0, "the second connection to fail").await;
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
