//! Clients behind proxies and load balancers: whose address counts, and how long their connections live.

use std::time::Duration;

use http::Response;
use segue_protocol::handoff::router::HoldCause;
use segue_proxy::settings::UpstreamProtocol;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::watch;

use crate::support::client::{Http2Client, RawHttp1Client, empty, full};
use crate::support::pod::Speaks;
use crate::support::{Fixture, GET, OK, P0, Settings, get_at, soon, until};

fn forwarded(address: &str) -> String {
    get_at(P0, &format!("x-forwarded-for: {address}\r\n"))
}

#[tokio::test]
async fn requests_count_for_the_address_that_a_trusted_proxy_forwards() {
    let fixture = Fixture::with(Settings::with(|settings| {
        settings.forward.trust_forwarded = true;
        settings.forward.limits.max_in_flight_per_client = 1;
        settings.forward.limits.max_streams_per_connection = 1;
    }));
    let pod = fixture.scripted_pod().await;
    let (mut first, mut one) = fixture.exchange(&pod, forwarded("203.0.113.7")).await;
    // What the client itself has said does not count.
    for same in ["203.0.113.7", "198.51.100.1, 203.0.113.7"] {
        assert_eq!(fixture.ask(forwarded(same)).await.reason(), (503, "overload"), "{same}");
    }
    let (mut second, mut other) = fixture.exchange(&pod, forwarded("203.0.113.7, 203.0.113.8")).await;
    let (mut third, mut direct) = fixture.exchange(&pod, GET).await;
    for (client, connection) in [(&mut first, &mut one), (&mut second, &mut other), (&mut third, &mut direct)] {
        connection.write(OK).await;
        assert_eq!(client.answer().await.status, 200);
    }
}

#[tokio::test]
async fn a_client_that_is_not_trusted_does_not_choose_the_address_that_it_counts_for() {
    let fixture = Fixture::with(Settings::with_limits(|limits| {
        limits.max_in_flight_per_client = 1;
        limits.max_streams_per_connection = 1;
    }));
    let pod = fixture.scripted_pod().await;
    let (_first, _one) = fixture.exchange(&pod, forwarded("203.0.113.7")).await;
    assert_eq!(fixture.ask(forwarded("203.0.113.8")).await.reason(), (503, "overload"));
}

/// Returns a router behind a balancer, with a pod that says which address it was told of.
async fn behind_a_balancer(change: impl FnOnce(&mut Settings)) -> (Fixture, crate::support::pod::Pod) {
    let fixture = Fixture::with(Settings::with(|settings| {
        settings.forward.limits.proxy_protocol = true;
        change(settings);
    }));
    let pod = fixture
        .pod(Speaks::Http1, |request| async move {
            Response::new(full(request.headers()["x-forwarded-for"].as_bytes().to_vec()))
        })
        .await;
    (fixture, pod)
}

const LINE: &str = "PROXY TCP4 203.0.113.7 10.0.0.1 4711 80\r\n";
const BINARY: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xcb\0\x71\x08\x0a\0\0\x01\x12\x67\0\x50";

#[tokio::test]
async fn a_balancer_names_the_client_of_a_connection_ahead_of_its_requests() {
    let (fixture, _pod) = behind_a_balancer(|_| ()).await;
    for (header, address) in
        [(LINE.as_bytes(), "203.0.113.7"), (BINARY, "203.0.113.8"), (b"PROXY UNKNOWN\r\n", "127.0.0.1")]
    {
        let mut client = fixture.send([header, GET.as_bytes()].concat()).await;
        assert_eq!(client.answer().await.text(), address);
        assert_eq!(client.ask(GET).await.text(), address, "the second request of the connection");
        // In pieces.
        let mut client = fixture.client().await;
        client.stream.set_nodelay(true).unwrap();
        for byte in header {
            client.write([*byte]).await;
            tokio::task::yield_now().await;
        }
        assert_eq!(client.ask(GET).await.text(), address);
    }
}

#[tokio::test]
async fn a_connection_that_its_balancer_does_not_name_is_closed() {
    let short = |settings: &mut Settings| settings.forward.limits.header_read_timeout = Duration::from_millis(200);
    let (fixture, _pod) = behind_a_balancer(short).await;
    for header in [GET, "PROXY TCP4 203.0.113.7\r\n", "PROXY TCP4 203.0.113.7 10.0.0.1 4711 80 "] {
        let mut client = fixture.send(header).await;
        if header.ends_with(' ') {
            // Longer than a header may be.
            client.write([b'1'; 200]).await;
        }
        assert_eq!(client.rest().await, "", "{header}");
    }
    // One that does not come in time.
    assert_eq!(fixture.send("PROXY TCP4").await.rest().await, "");
    assert_eq!(fixture.send("").await.rest().await, "");
}

#[tokio::test]
async fn requests_count_for_the_address_that_a_balancer_names() {
    let fixture = Fixture::with(Settings::with_limits(|limits| {
        limits.proxy_protocol = true;
        limits.max_in_flight_per_client = 1;
        limits.max_streams_per_connection = 1;
    }));
    let pod = fixture.scripted_pod().await;
    let named = |header: &[u8]| [header, GET.as_bytes()].concat();
    let first = fixture.send(named(LINE.as_bytes())).await;
    let _one = pod.accept_request().await;
    assert_eq!(fixture.ask(named(LINE.as_bytes())).await.reason(), (503, "overload"));
    let second = fixture.send(named(BINARY)).await;
    let _other = pod.accept_request().await;
    drop((first, second));
}

#[tokio::test]
async fn held_requests_count_for_the_address_that_is_forwarded_or_named_by_each_version() {
    for by_header in [true, false] {
        let fixture = Fixture::with(Settings::with(|settings| {
            settings.forward.trust_forwarded = by_header;
            settings.forward.limits.proxy_protocol = !by_header;
            settings.forward.limits.max_in_flight_per_client = 1;
            settings.forward.limits.max_streams_per_connection = 1;
        }));
        fixture.hold(P0, HoldCause::Handoff);
        let request = |last: u8| match by_header {
            true => forwarded(&format!("198.51.100.{last}, 203.0.113.7")),
            false => format!("{LINE}{}", forwarded(&format!("198.51.100.{last}"))),
        };
        let held = fixture.send(request(1)).await;
        fixture.held(P0, 1).await;
        assert_eq!(fixture.ask(request(2)).await.reason(), (503, "overload"), "{by_header}");
        // By HTTP/2.
        let mut stream = tokio::net::TcpStream::connect(fixture.address).await.unwrap();
        if !by_header {
            stream.write_all(LINE.as_bytes()).await.unwrap();
        }
        let client = Http2Client::over(stream, fixture.address).await;
        let of = |address: &str| {
            let request = client.request("GET", "/").header("x-forwarded-for", format!("198.51.100.3, {address}"));
            client.ask(request.body(empty()).unwrap())
        };
        assert_eq!(of("203.0.113.7").await.reason(), (503, "overload"), "{by_header}");
        drop(held);
    }
}

/// The balancer has one address, and each client its own.
#[tokio::test]
async fn of_clients_that_a_balancer_names_one_of_the_address_with_most_connections_gives_way() {
    let fixture = Fixture::with(Settings::with_limits(|limits| {
        limits.proxy_protocol = true;
        limits.max_connections = 4;
        // Idle clients are looked for eight times in this time.
        limits.header_read_timeout = Duration::from_millis(800);
    }));
    let _pod = fixture.quick_pod().await;
    let mut clients = Vec::new();
    // The one that has been idle for longest has its address to itself.
    for header in [LINE.as_bytes(), BINARY, BINARY, BINARY] {
        let mut client = fixture.send([header, GET.as_bytes()].concat()).await;
        assert_eq!(client.answer().await.status, 200);
        clients.push(client);
    }
    let newcomer = LINE.replace("203.0.113.7", "203.0.113.9") + GET;
    soon(async {
        // One that comes too early is sent away, and closed.
        while fixture.send(&newcomer).await.head().await.status != 200 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    assert_eq!(clients.remove(0).ask(GET).await.status, 200, "the one that is alone stays");
    let mut gone = 0;
    for client in &mut clients {
        let closed = tokio::time::timeout(Duration::from_millis(100), client.stream.read_u8()).await;
        gone += usize::from(closed.is_ok());
    }
    assert!(gone > 0);
}

fn with_age(age: Duration) -> Settings {
    Settings::with_limits(|limits| {
        limits.max_connection_age = Some(age);
        // Clients are looked at eight times in this time.
        limits.header_read_timeout = Duration::from_millis(800);
    })
}

#[tokio::test]
async fn an_old_connection_by_http1_ends_with_its_next_response() {
    let fixture = Fixture::with(with_age(Duration::from_millis(300)));
    let _pod = fixture.quick_pod().await;
    let mut client = fixture.client().await;
    soon(async {
        loop {
            let answer = client.ask(GET).await;
            assert_eq!(answer.status, 200);
            if answer.header("connection") == "close" {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    assert_eq!(client.rest().await, "");
}

#[tokio::test]
async fn an_old_connection_by_http2_ends_once_its_requests_have_been_served() {
    let mut settings = with_age(Duration::from_millis(300));
    settings.forward.upstream.protocol = UpstreamProtocol::Http1;
    let fixture = Fixture::with(settings);
    let (release, released) = watch::channel(false);
    let _pod = fixture
        .pod(Speaks::Http1, move |_| {
            let mut released = released.clone();
            async move {
                released.wait_for(|released| *released).await.unwrap();
                Response::new(empty())
            }
        })
        .await;
    let client = fixture.http2_client().await;
    let slow = client.spawn_ask(client.request("GET", "/").body(empty()).unwrap());
    fixture.in_flight(P0, 1).await;
    // The request is in flight when the connection reaches its age.
    tokio::time::sleep(Duration::from_millis(800)).await;
    release.send_replace(true);
    assert_eq!(soon(slow).await.unwrap().status, 200);
    until(|| client.is_closed(), "the connection to end").await;
}

#[tokio::test]
async fn a_young_connection_stays() {
    let fixture = Fixture::with(with_age(Duration::from_secs(3600)));
    let _pod = fixture.quick_pod().await;
    let mut client: RawHttp1Client = fixture.client().await;
    for _ in 0..20 {
        assert_eq!(client.ask(GET).await.header("connection"), "");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
