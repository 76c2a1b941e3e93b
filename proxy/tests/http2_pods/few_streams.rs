//! Pods that allow few streams on a connection.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;

use bytes::Bytes;

use super::{ScriptedHttp2Pod, get, ok, upstream};
use crate::support::{P0, soon, until};

#[tokio::test]
async fn a_pod_that_allows_few_streams_gets_more_connections_and_nothing_waits_in_between() {
    let fixture = upstream(|_| {});
    let pod = ScriptedHttp2Pod::start(&fixture).await;
    let mut builder = h2::server::Builder::new();
    builder.max_concurrent_streams(2);
    let mut clients = Vec::new();
    let (arrived, mut arrivals) = tokio::sync::mpsc::unbounded_channel();
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = connections.clone();
    tokio::spawn(async move {
        loop {
            let mut connection = pod.accept_with(&builder).await;
            counted.fetch_add(1, SeqCst);
            let arrived = arrived.clone();
            tokio::spawn(async move {
                while let Some(Ok((_, respond))) = connection.accept().await {
                    arrived.send(respond).unwrap();
                }
            });
        }
    });
    let mut waiting = Vec::new();
    for number in 0..6 {
        clients.push(fixture.send(get("/")).await);
        until(|| fixture.table.in_flight(P0) == number + 1, "the request").await;
        waiting.push(soon(arrivals.recv()).await.expect("it waits although a connection could be made"));
    }
    assert_eq!(connections.load(SeqCst), 3);
    for respond in &mut waiting {
        ok(respond);
    }
    for client in &mut clients {
        assert_eq!(client.answer().await.status, 200);
    }
}

/// Requests that wait for the first connection are sent before the pod has announced how many it takes. It refuses those
/// beyond that.
#[tokio::test]
async fn a_pod_that_allows_few_streams_gets_all_that_was_held_at_the_same_time() {
    let fixture = upstream(|_| {});
    let pod = ScriptedHttp2Pod::new().await;
    let address = pod.address;
    let (arrived, mut arrivals) = tokio::sync::mpsc::unbounded_channel();
    let table = fixture.table.clone();
    tokio::spawn(async move {
        let mut builder = h2::server::Builder::new();
        builder.max_concurrent_streams(2);
        let mut is_first = true;
        while let Ok((stream, _)) = pod.listener.accept().await {
            let (arrived, builder) = (arrived.clone(), builder.clone());
            // The pod says nothing before all requests wait for the first connection.
            if std::mem::take(&mut is_first) {
                until(|| table.in_flight(P0) == 6, "all to set out").await;
            }
            tokio::spawn(async move {
                let mut connection = builder.handshake::<_, Bytes>(stream).await.unwrap();
                while let Some(Ok((_, respond))) = connection.accept().await {
                    arrived.send(respond).unwrap();
                }
            });
        }
    });
    let mut clients = Vec::new();
    for _ in 0..6 {
        clients.push(fixture.send(get("/")).await);
    }
    fixture.held(P0, 6).await;
    fixture.route(P0, address, 1);
    let mut waiting = Vec::new();
    for _ in 0..6 {
        waiting.push(soon(arrivals.recv()).await.expect("it waits although a connection could be made"));
    }
    waiting.iter_mut().for_each(ok);
    for client in &mut clients {
        assert_eq!(client.answer().await.status, 200);
    }
}
