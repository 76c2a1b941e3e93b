//! The sidecar's hooks, called over a real socket.

use std::sync::Arc;

use http::Uri;
use segue_coordination::pod::{HandoffHandler as _, Hooks, Move, PodHandle, PodSettings};
use segue_coordination::protocol::records::Phase;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::world::{Pod, World};

fn url(port: u16, path: &str) -> Option<Uri> {
    Some(format!("http://127.0.0.1:{port}{path}").parse().unwrap())
}

/// Answers each connection with the next of these statuses; the requests that came.
async fn service(statuses: Vec<u16>) -> (u16, tokio::task::JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let task = tokio::spawn(async move {
        let mut seen = Vec::new();
        for status in statuses {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = String::new();
            while !request.ends_with('}') {
                let mut part = [0; 1024];
                let read = stream.read(&mut part).await.unwrap();
                assert_ne!(read, 0, "closed after: {request}");
                request.push_str(std::str::from_utf8(&part[..read]).unwrap());
            }
            seen.push(request);
            let answer = format!("HTTP/1.1 {status} X\r\ncontent-length: 0\r\n\r\n");
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
        seen
    });
    (port, task)
}

#[tokio::test]
async fn a_hook_gets_the_move_as_json_and_any_2xx_means_done() {
    let (port, task) = service(vec![204, 500]).await;
    let hooks = Hooks::new(url(port, "/segue/warm?a=b"), None, url(port, "/segue/release")).unwrap();
    assert!(!hooks.capabilities().sync && hooks.capabilities().drained && hooks.capabilities().fence);
    let part = Move { keyspace: "orders".to_owned(), partition: 7, epoch: 3, handoff: 42 };
    hooks.warm(&part).await.unwrap();
    let error = hooks.release(&part).await.unwrap_err();
    assert_eq!(error.to_string(), format!("http://127.0.0.1:{port}/segue/release answered 500 Internal Server Error"));
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
    let part = Move { keyspace: "orders".to_owned(), partition: 7, epoch: 3, handoff: 42 };
    let error = hooks.warm(&part).await.unwrap_err().to_string();
    assert!(error.contains("cannot be reached"), "{error}");
    for bad in ["https://host/", "/path", "ftp://host/"] {
        assert!(Hooks::new(Some(bad.parse().unwrap()), None, None).is_err(), "{bad}");
    }
}

#[tokio::test]
async fn a_sidecar_moves_its_handoff_when_the_service_has_warmed_at_last() {
    let (world, _) = World::new();
    let (port, task) = service(vec![503, 503, 200]).await;
    let hooks = Hooks::new(url(port, "/warm"), None, None).unwrap();
    let settings = PodSettings { capabilities: hooks.capabilities(), ..PodSettings::new("w", "127.0.0.1:1") };
    let handle = PodHandle::start(world.store.clone(), "default", world.keys.clone(), settings, Arc::new(hooks));
    handle.status().wait_for(|state| state.not_ready.is_none()).await.unwrap();
    // The record needs a name and a life, not a service of the test's.
    let stand_in = Pod::start(&world, "other").await;
    let mut record = {
        world.begin(1, None, &stand_in, 1).await;
        world.handoff(1).await.unwrap()
    };
    record.partition = 0;
    record.phase = Phase::Warming;
    record.new_owner = "w".to_owned();
    record.new_incarnation = handle.status().borrow().incarnation;
    world.put(world.keys.handoff(0), segue_coordination::protocol::records::encode(&record)).await;
    world.in_phase(0, Phase::Ready).await;
    assert_eq!(task.await.unwrap().len(), 3);
}
