//! Responses with bytes that `h2` takes for an error of the connection.

use super::{get, upstream};
use crate::support::raw_http2::{GOOD, ODD, RawHttp2Service};
use crate::support::{P0, until};

#[tokio::test]
async fn after_an_odd_response_exchanges_share_no_connection_for_a_while() {
    let fixture = upstream(|_| {});
    let mut service = RawHttp2Service::start(b"").await;
    fixture.route(P0, service.address, 1);

    let mut bystander = fixture.send(get("/slow")).await;
    let slow = service.next().await;
    let mut client = fixture.send(get("/odd")).await;
    let odd = service.next().await;
    assert_eq!(slow.connection, odd.connection, "sound pods' exchanges share a connection");
    odd.answer(ODD);
    // The first odd response still ends what shares its connection.
    assert_eq!(client.answer().await.reason(), (502, "upstream-failed"));
    assert_eq!(bystander.answer().await.reason(), (502, "upstream-failed"));
    // The connection's end is noted a moment after its exchanges have ended.
    until(|| fixture.table.in_flight(P0) == 0, "both exchanges to be over").await;
    let mut probe = fixture.send(get("/probe")).await;
    service.next().await.answer(GOOD);
    assert_eq!(probe.answer().await.status, 200);

    let mut bystander = fixture.send(get("/slow")).await;
    let slow = service.next().await;
    let mut client = fixture.send(get("/odd")).await;
    let odd = service.next().await;
    assert_ne!(slow.connection, odd.connection);
    odd.answer(ODD);
    assert_eq!(client.answer().await.reason(), (502, "upstream-failed"));
    slow.answer(GOOD);
    assert_eq!(bystander.answer().await.status, 200);
}
