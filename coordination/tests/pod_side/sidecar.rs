//! The sidecar's hooks, called over a real socket.

use std::sync::Arc;

use http::Uri;
use segue_coordination::pod::{HandoffContext, HandoffHandler as _, Hooks, PodHandle, PodSettings};
use segue_protocol::ids::{Epoch, HandoffId, PartitionId, Revision};
use segue_protocol::records::Phase;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::fixture::{Fixture, Pod};

const H42: HandoffId = HandoffId::created_at(Revision::new(42));
const E3: Epoch = Epoch::new(3);
const P0: PartitionId = PartitionId::new(0);
const P1: PartitionId = PartitionId::new(1);
const P7: PartitionId = PartitionId::new(7);

pub(crate) fn url(port: u16, path: &str) -> Option<Uri> {
    Some(format!("http://127.0.0.1:{port}{path}").parse().unwrap())
}

/// Answers each connection with the next of these statuses. The task returns the requests.
pub(crate) async fn service(statuses: Vec<u16>) -> (u16, tokio::task::JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let task = tokio::spawn(async move {
        let mut seen = Vec::new();
        for status in statuses {
            seen.push(answer(&listener, status).await);
        }
        seen
    });
    (port, task)
}

/// Answers the next connection. Returns its request.
pub(crate) async fn answer(listener: &TcpListener, status: u16) -> String {
    let (mut stream, _) = listener.accept().await.unwrap();
    let mut request = String::new();
    while !request.ends_with('}') {
        let mut part = [0; 1024];
        let read = stream.read(&mut part).await.unwrap();
        assert_ne!(read, 0, "closed after: {request}");
        request.push_str(std::str::from_utf8(&part[..read]).unwrap());
    }
    let answer = format!("HTTP/1.1 {status} X\r\ncontent-length: 0\r\n\r\n");
    stream.write_all(answer.as_bytes()).await.unwrap();
    request
}

#[tokio::test]
async fn a_hook_gets_the_move_as_json_and_any_2xx_means_done() {
    let (port, task) = service(vec![204, 500]).await;
    let hooks = Hooks::new(url(port, "/segue/warm?a=b"), None, url(port, "/segue/release")).unwrap();
    assert!(!hooks.capabilities(true).sync && hooks.capabilities(true).drained && hooks.capabilities(true).fence);
    let part = HandoffContext { keyspace: "orders".to_owned(), partition: P7, epoch: E3, handoff: H42 };
    hooks.warm(&part).await.unwrap();
    let error = hooks.release(&part).await.unwrap_err();
    assert_eq!(error.to_string(), format!("http://127.0.0.1:{port}/segue/release responded 500 Internal Server Error"));
    hooks.sync(&part).await.unwrap();

    let seen = task.await.unwrap();
    assert!(seen[0].starts_with("POST /segue/warm?a=b HTTP/1.1\r\n"), "{}", seen[0]);
    assert!(seen[0].contains(&format!("host: 127.0.0.1:{port}\r\n")));
    let (_, body) = seen[0].split_once("\r\n\r\n").unwrap();
    let body: serde_json::Value = serde_json::from_str(body).unwrap();
    assert_eq!(body, serde_json::json!({"keyspace": "orders", "partition": 7, "epoch": 3, "handoff": 42}));
}

#[tokio::test]
async fn a_service_that_is_not_there_is_an_error_and_a_url_that_cannot_be_called_is_refused() {
    let port = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let hooks = Hooks::new(url(port, "/"), None, None).unwrap();
    let part = HandoffContext { keyspace: "orders".to_owned(), partition: P7, epoch: E3, handoff: H42 };
    let error = hooks.warm(&part).await.unwrap_err().to_string();
    assert!(error.contains("cannot be reached"), "{error}");
    for bad in ["https://host/", "/path", "ftp://host/"] {
        assert!(Hooks::new(Some(bad.parse().unwrap()), None, None).is_err(), "{bad}");
    }
}

#[tokio::test]
async fn a_sidecar_moves_its_handoff_when_the_service_has_warmed_at_last() {
    let (fixture, _) = Fixture::new();
    let (port, task) = service(vec![503, 503, 200]).await;
    let hooks = Hooks::new(url(port, "/warm"), None, None).unwrap();
    let settings = PodSettings { capabilities: hooks.capabilities(true), ..PodSettings::new("w", "127.0.0.1:1") };
    let handle = PodHandle::start(fixture.store.clone(), "default", fixture.keys.clone(), settings, Arc::new(hooks));
    handle.status().wait_for(|state| state.not_ready.is_none()).await.unwrap();
    // The record needs a name and a life, not a service of the test's.
    let stand_in = Pod::start(&fixture, "other").await;
    let mut record = {
        fixture.begin(P1, None, &stand_in, 1).await;
        fixture.handoff(P1).await.unwrap()
    };
    record.partition = P0;
    record.phase = Phase::Warming;
    record.new_owner = "w".to_owned();
    record.new_incarnation = handle.status().borrow().incarnation;
    fixture.put(fixture.keys.handoff(P0), segue_protocol::records::encode(&record)).await;
    fixture.in_phase(P0, Phase::Ready).await;
    assert_eq!(task.await.unwrap().len(), 3);
}
