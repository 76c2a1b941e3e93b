//! Clients by HTTP/1.1 of a server that stops: which of their requests are served, and when their connections end.

use tokio::time::Instant;

use crate::support::pod::{Speaks, echo_body};
use crate::support::{Fixture, GET, OK, TEST_TIMEOUT, post, soon};

#[tokio::test]
async fn an_idle_connection_is_closed_when_its_server_stops() {
    let mut fixture = Fixture::new();
    let _pod = fixture.quick_pod().await;
    let mut client = fixture.client().await;
    assert_eq!(client.ask(GET).await.status, 200);
    let begun = Instant::now();
    let stopping = fixture.shut_down();
    assert_eq!(client.rest().await, "");
    soon(stopping).await.unwrap();
    assert!(begun.elapsed() < TEST_TIMEOUT / 2, "it waits for its deadline");
}

/// A server that closes an idle connection loses the request that its client has just sent there.
#[tokio::test]
async fn a_request_on_its_way_to_a_server_that_stops_is_served_and_is_the_last() {
    let mut fixture = Fixture::new();
    let _pod = fixture.quick_pod().await;
    let mut idle = fixture.client().await;
    assert_eq!(idle.ask(GET).await.status, 200);
    let mut fresh = fixture.client().await;
    let stopping = fixture.shut_down();
    fixture.refuses_connections().await;
    for client in [&mut idle, &mut fresh] {
        let answer = client.ask(GET).await;
        assert_eq!((answer.status, answer.header("connection")), (200, "close"));
    }
    assert_eq!((idle.rest().await, fresh.rest().await), (String::new(), String::new()));
    soon(stopping).await.unwrap();
}

/// The head of its response has promised that the connection stays open.
#[tokio::test]
async fn a_connection_that_was_busy_when_its_server_stopped_may_carry_one_more_request() {
    let mut fixture = Fixture::new();
    let pod = fixture.scripted_pod().await;
    let idle = fixture.client().await;
    let (mut busy, mut connection) = fixture.exchange(&pod, GET).await;
    connection.write("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\no").await;
    assert_eq!(busy.head().await.header("connection"), "");
    let stopping = fixture.shut_down();
    assert_eq!(idle.rest().await, "");
    connection.write("k").await;
    assert_eq!(busy.exactly(2).await, b"ok");
    busy.write(GET).await;
    connection.head().await;
    connection.write(OK).await;
    let answer = busy.answer().await;
    assert_eq!((answer.status, answer.header("connection")), (200, "close"));
    soon(stopping).await.unwrap();
}

#[tokio::test]
async fn a_request_that_has_begun_before_its_server_stops_is_served_and_is_the_last() {
    for rest in ["expect: 100-continue\r\ncontent-length: 3\r\n\r\nabc", "content-length: 3\r\n\r\nabc"] {
        let mut fixture = Fixture::new();
        let _pod = fixture.pod(Speaks::Http1, echo_body).await;
        let mut client = fixture.send("POST / HTTP/1.1\r\nhost: h\r\nx-partition: 0\r\n").await;
        // What came before another client's request has been read once that is answered.
        assert_eq!(fixture.ask(GET).await.status, 200);
        let stopping = fixture.shut_down();
        fixture.refuses_connections().await;
        client.write(rest).await;
        let mut answer = client.answer().await;
        if answer.status == 100 {
            answer = client.answer().await;
        }
        assert_eq!((answer.status, answer.text()), (200, "abc"), "{rest:?}");
        assert_eq!(answer.header("connection"), "close", "{rest:?}");
        assert_eq!(client.rest().await, "");
        soon(stopping).await.unwrap();
    }
}

#[tokio::test]
async fn an_upload_that_goes_on_behind_its_response_is_delivered_by_a_server_that_stops() {
    const LENGTH: usize = 1 << 20;
    let mut fixture = Fixture::new();
    let pod = fixture.scripted_pod().await;
    let mut client = fixture.send(post(&format!("content-length: {LENGTH}"), &"x".repeat(1000))).await;
    let mut connection = pod.accept_request().await;
    connection.write("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nn").await;
    assert_eq!(client.head().await.header("connection"), "close");
    let stopping = fixture.shut_down();
    fixture.refuses_connections().await;
    connection.write("o").await;
    client.write(vec![b'x'; LENGTH - 1000]).await;
    let received = connection.exactly_bytes(LENGTH).await;
    assert!(received.iter().all(|byte| *byte == b'x'));
    assert_eq!(client.rest().await, "no");
    soon(stopping).await.unwrap();
}

#[tokio::test]
async fn a_request_behind_one_whose_response_promised_to_keep_the_connection_is_served_by_a_server_that_stops() {
    let mut fixture = Fixture::new();
    let pod = fixture.scripted_pod().await;
    let mut client = fixture.send([GET, GET].concat()).await;
    let mut connection = pod.accept_request().await;
    connection.write("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nn").await;
    assert_eq!(client.head().await.header("connection"), "");
    let stopping = fixture.shut_down();
    fixture.refuses_connections().await;
    connection.write("o").await;
    connection.head().await;
    connection.write(OK).await;
    let both = client.rest().await;
    assert!(both.starts_with("noHTTP/1.1 200 OK\r\n") && both.contains("connection: close\r\n"), "{both}");
    soon(stopping).await.unwrap();
}
