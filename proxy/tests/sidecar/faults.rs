//! Services whose faults, and requests that provoke them, cost no others their exchanges.

use std::time::Duration;

use segue_proxy::settings::UpstreamProtocol;

use super::Site;
use crate::support::client::{RawHttp1Client, empty};
use crate::support::pod::ScriptedPod;
use crate::support::raw_http2::{GOOD, ODD, RawHttp2Service};
use crate::support::{Fixture, GET, OK, P0, soon, until};

/// SETTINGS with a bound of 8 KiB on heads.
const AT_MOST_8_KIB: &[u8] = b"\0\x06\0\0\x20\0";

/// Starts a router that leads partition 0 to a sidecar.
async fn router_of(site: &Site) -> Fixture {
    let fixture = Fixture::new();
    let epoch = site.pod.status().borrow().owned[&P0].get();
    fixture.route(P0, site.address, epoch);
    fixture
}

/// Starts a router and a sidecar in front of a service by HTTP/2.
async fn in_front_of(service: &RawHttp2Service) -> (Fixture, Site) {
    let site = Site::of(service.address, UpstreamProtocol::Http2).await;
    (router_of(&site).await, site)
}

fn get_with(lines: &str) -> String {
    GET.trim_end().to_owned() + "\r\n" + lines + "\r\n"
}

#[tokio::test]
async fn a_head_larger_than_a_service_behind_its_sidecar_has_announced_costs_nobody_else_anything() {
    let mut service = RawHttp2Service::start(AT_MOST_8_KIB).await;
    let (fixture, _site) = in_front_of(&service).await;
    let large = get_with(&format!("x-large: {}\r\n", "v".repeat(13_000)));
    // The bound may arrive when the first request has left. The service refuses it once.
    let mut attacker = fixture.client().await;
    let mut arrived = 0;
    let answer = {
        let mut answer = std::pin::pin!(attacker.ask(&large));
        loop {
            tokio::select! {
                answer = &mut answer => break answer,
                request = service.next() => {
                    arrived += 1;
                    assert!(arrived < 2, "it is sent again although it is too large");
                    request.go_away(0);
                }
            }
        }
    };
    assert_eq!(answer.reason(), (431, "limit"));

    let mut bystander = fixture.send(GET).await;
    service.next().await.answer(GOOD);
    assert_eq!(bystander.answer().await.status, 200);
    bystander.write(GET).await;
    let slow = service.next().await;
    tokio::select! {
        answer = attacker.ask(&large) => assert_eq!(answer.reason(), (431, "limit")),
        _ = service.next() => panic!("it is sent although its service has announced that it is too large"),
    }
    slow.answer(GOOD);
    assert_eq!(bystander.answer().await.status, 200);
    assert!(fixture.metrics_page().contains(r#"segue_requests_total{code="431",reason="limit"} 2"#));
}

/// The request itself may be what ends its service's connection.
#[tokio::test]
async fn a_request_whose_service_ends_its_connection_with_an_error_is_tried_once_more_on_its_own() {
    let mut service = RawHttp2Service::start(b"").await;
    let (fixture, _site) = in_front_of(&service).await;
    let mut bystander = fixture.send(GET).await;
    let slow = service.next().await;
    let mut client = fixture.send(GET).await;
    let poison = service.next().await;
    assert_eq!(slow.connection, poison.connection);
    // The first stream of a client is 1.
    poison.go_away(1);
    let again = service.next().await;
    assert_ne!(slow.connection, again.connection);
    again.go_away(0);
    tokio::select! {
        answer = client.answer() => assert_eq!(answer.reason(), (502, "upstream-failed")),
        _ = service.next() => panic!("it ends a third connection"),
    }
    slow.answer(GOOD);
    assert_eq!(bystander.answer().await.status, 200);
    // Another one like it would end its own connection alone.
    let (mut one, first) = (fixture.send(GET).await, service.next().await);
    let (mut other, second) = (fixture.send(GET).await, service.next().await);
    assert_ne!(first.connection, second.connection);
    first.answer(GOOD);
    second.answer(GOOD);
    assert_eq!((one.answer().await.status, other.answer().await.status), (200, 200));
}

#[tokio::test]
async fn after_an_odd_response_to_a_sidecar_exchanges_share_no_connection_for_a_while() {
    let mut service = RawHttp2Service::start(b"").await;
    let (fixture, _site) = in_front_of(&service).await;
    let mut bystander = fixture.send(GET).await;
    let slow = service.next().await;
    let mut client = fixture.send(GET).await;
    let odd = service.next().await;
    assert_eq!(slow.connection, odd.connection, "exchanges with sound services share a connection");
    odd.answer(ODD);
    // The first odd response still ends what shares its connection.
    assert_eq!(client.answer().await.reason(), (502, "upstream-failed"));
    assert_eq!(bystander.answer().await.reason(), (502, "upstream-failed"));
    until(|| fixture.table.in_flight(P0) == 0, "both exchanges to be over").await;

    let mut bystander = fixture.send(GET).await;
    let slow = service.next().await;
    let mut client = fixture.send(GET).await;
    let odd = service.next().await;
    assert_ne!(slow.connection, odd.connection);
    odd.answer(ODD);
    assert_eq!(client.answer().await.reason(), (502, "upstream-failed"));
    slow.answer(GOOD);
    assert_eq!(bystander.answer().await.status, 200);
}

#[tokio::test]
async fn a_service_that_speaks_http2_alone_behind_a_sidecar_by_http1_is_told_from_one_that_breaks_exchanges() {
    let service = ScriptedPod::new().await;
    let site = Site::of(service.address, UpstreamProtocol::Http1).await;
    let fixture = router_of(&site).await;
    let mut client = fixture.send(GET).await;
    let mut connection = service.accept_request().await;
    connection.write(b"\0\0\0\x04\0\0\0\0\0").await;
    let answer = client.answer().await;
    assert_eq!(answer.reason(), (502, "upstream-failed"));
    assert!(answer.text().contains("pod.protocol") && !answer.text().contains("effect"), "{}", answer.text());
}

#[tokio::test]
async fn a_response_with_as_many_headers_as_a_router_takes_gets_through_its_sidecar() {
    let service = ScriptedPod::new().await;
    let site = Site::of(service.address, UpstreamProtocol::Http1).await;
    let fixture = router_of(&site).await;
    let client = fixture.http2_client().await;
    let asked = client.spawn_ask(client.request("GET", "/").body(empty()).unwrap());
    let mut connection = service.accept_request().await;
    // hyper adds `date` in the sidecar.
    let lines: String = (0..126).map(|number| format!("x-{number}: a\r\n")).collect();
    connection.write(format!("HTTP/1.1 200 OK\r\n{lines}content-length: 0\r\n\r\n")).await;
    let answer = soon(asked).await.unwrap();
    assert_eq!((answer.status, answer.header("x-125")), (200, "a"));
}

/// What has arrived of a head counts, and so does when it arrives.
#[tokio::test]
async fn a_head_as_large_as_a_router_takes_gets_through_its_sidecar() {
    let service = ScriptedPod::new().await;
    let site = Site::of(service.address, UpstreamProtocol::Http1).await;
    let epoch = site.pod.status().borrow().owned[&P0].get();
    let mut router = RawHttp1Client::connect(site.address).await;
    let lines: String = (0..10).map(|number| format!("x-{number}: {}\r\n", "v".repeat(52_000))).collect();
    router.write(format!("GET / HTTP/1.1\r\nhost: h\r\nsegue-partition: 0\r\nsegue-epoch: {epoch}\r\n{lines}")).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    router.write("segue-router: r\r\nsegue-keyspace: default\r\n\r\n").await;
    service.accept_request().await.write(OK).await;
    assert_eq!(router.answer().await.status, 200);
}
