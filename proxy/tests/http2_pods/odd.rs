//! Responses with bytes that `h2` takes for an error of the connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use super::{get, upstream};
use crate::support::{P0, soon, until};

/// Returns a frame.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A request that waits for its response: its connection's number, its stream, and where to write frames.
struct Waiting {
    connection: usize,
    stream: u32,
    frames: mpsc::UnboundedSender<Vec<u8>>,
}

impl Waiting {
    fn answer(&self, head: &[u8]) {
        // The router may have closed the connection.
        let _ = self.frames.send(frame(1, 0x5, self.stream, head));
    }
}

/// A `200` without more.
const GOOD: &[u8] = b"\x88";
/// A `200` with the header `x: a\x7fb`.
const ODD: &[u8] = b"\x88\0\x01x\x03a\x7fb";

/// Serves one connection.
async fn serve(mut stream: TcpStream, connection: usize, requests: mpsc::UnboundedSender<Waiting>) {
    let (frames, mut to_write) = mpsc::unbounded_channel();
    let mut read = Vec::new();
    frames.send(frame(4, 0, 0, b"")).unwrap();
    let mut begins = 24;
    loop {
        tokio::select! {
            Some(frame) = to_write.recv() => if stream.write_all(&frame).await.is_err() { return },
            count = stream.read_buf(&mut read) => if count.unwrap_or(0) == 0 { return },
        }
        while let Some([a, b, c, kind, _, s, t, u, v]) = read.get(begins..).and_then(|read| read.first_chunk()).copied()
        {
            let end = begins + 9 + u32::from_be_bytes([0, a, b, c]) as usize;
            if read.len() < end {
                break;
            }
            read.drain(..end);
            begins = 0;
            if kind == 1 {
                let stream = u32::from_be_bytes([s, t, u, v]);
                requests.send(Waiting { connection, stream, frames: frames.clone() }).unwrap();
            }
        }
    }
}

#[tokio::test]
async fn after_an_odd_response_exchanges_share_no_connection_for_a_while() {
    let fixture = upstream(|_| {});
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    fixture.route(P0, listener.local_addr().unwrap(), 1);
    let (to_test, mut requests) = mpsc::unbounded_channel();
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = connections.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream, counted.fetch_add(1, SeqCst), to_test.clone()));
        }
    });
    let mut next = async || soon(requests.recv()).await.unwrap();

    let mut bystander = fixture.send(get("/slow")).await;
    let slow = next().await;
    let mut client = fixture.send(get("/odd")).await;
    let odd = next().await;
    assert_eq!(slow.connection, odd.connection, "sound pods' exchanges share a connection");
    odd.answer(ODD);
    // The first odd response still ends what shares its connection.
    assert_eq!(client.answer().await.reason(), (502, "upstream-failed"));
    assert_eq!(bystander.answer().await.reason(), (502, "upstream-failed"));
    // The connection's end is noted a moment after its exchanges have ended.
    until(|| fixture.table.in_flight(P0) == 0, "both exchanges to be over").await;
    let mut probe = fixture.send(get("/probe")).await;
    next().await.answer(GOOD);
    assert_eq!(probe.answer().await.status, 200);

    let mut bystander = fixture.send(get("/slow")).await;
    let slow = next().await;
    let mut client = fixture.send(get("/odd")).await;
    let odd = next().await;
    assert_ne!(slow.connection, odd.connection);
    odd.answer(ODD);
    assert_eq!(client.answer().await.reason(), (502, "upstream-failed"));
    slow.answer(GOOD);
    assert_eq!(bystander.answer().await.status, 200);
}
