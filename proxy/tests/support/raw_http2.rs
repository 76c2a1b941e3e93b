//! A service by HTTP/2 whose every frame the test writes.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use super::soon;

/// A head of `200` without more.
pub const GOOD: &[u8] = b"\x88";
/// A head of `200` with the header `x: a\x7fb`.
pub const ODD: &[u8] = b"\x88\0\x01x\x03a\x7fb";

pub struct RawHttp2Service {
    pub address: SocketAddr,
    requests: mpsc::UnboundedReceiver<WaitingRequest>,
}

/// A request that waits for its response: its connection's number, its stream, and where to write frames.
pub struct WaitingRequest {
    pub connection: usize,
    stream: u32,
    frames: mpsc::UnboundedSender<Vec<u8>>,
}

impl RawHttp2Service {
    /// Starts one that sends these SETTINGS on each connection.
    pub async fn start(settings: &'static [u8]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (to_test, requests) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            for connection in 0.. {
                let Ok((stream, _)) = listener.accept().await else { return };
                tokio::spawn(serve(stream, connection, settings, to_test.clone()));
            }
        });
        RawHttp2Service { address, requests }
    }

    pub async fn next(&mut self) -> WaitingRequest {
        soon(self.requests.recv()).await.unwrap()
    }
}

impl WaitingRequest {
    pub fn answer(&self, head: &[u8]) {
        // The router may have closed the connection.
        let _ = self.frames.send(frame(1, 0x5, self.stream, head));
    }

    /// Ends the connection with `ENHANCE_YOUR_CALM`. Streams above `last` have not been processed.
    pub fn go_away(&self, last: u32) {
        let payload = [last.to_be_bytes(), 11_u32.to_be_bytes()].concat();
        let _ = self.frames.send(frame(7, 0, 0, &payload));
    }
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Serves one connection.
async fn serve(
    mut stream: TcpStream,
    connection: usize,
    settings: &'static [u8],
    requests: mpsc::UnboundedSender<WaitingRequest>,
) {
    let (frames, mut to_write) = mpsc::unbounded_channel();
    let mut read = Vec::new();
    frames.send(frame(4, 0, 0, settings)).unwrap();
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
                let _ = requests.send(WaitingRequest { connection, stream, frames: frames.clone() });
            }
        }
    }
}
