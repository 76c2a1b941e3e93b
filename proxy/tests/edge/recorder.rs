//! A pod that records every byte and answers each whole request with `ok` if it is valid to the letter.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::support::until;
use crate::support::wire::{self, Manner, Message, Stop};

#[derive(Default)]
struct Heard {
    bytes: Vec<u8>,
    closed: bool,
}

pub(crate) struct Recorder {
    pub(crate) address: SocketAddr,
    heard: Arc<Mutex<Vec<Heard>>>,
}

impl Recorder {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let heard = Arc::new(Mutex::new(Vec::<Heard>::new()));
        let all = heard.clone();
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let index = {
                    let mut all = all.lock().unwrap();
                    all.push(Heard::default());
                    all.len() - 1
                };
                let all = all.clone();
                tokio::spawn(async move {
                    let mut pending = Vec::new();
                    loop {
                        let length = stream.read_buf(&mut pending).await.unwrap_or(0);
                        if length == 0 {
                            break all.lock().unwrap()[index].closed = true;
                        }
                        let fresh = &pending[pending.len() - length..];
                        all.lock().unwrap()[index].bytes.extend_from_slice(fresh);
                        while let Ok((request, length)) = wire::request(&pending, Manner::Strict) {
                            pending.drain(..length);
                            let body = if request.method() == b"HEAD" { "" } else { "ok" };
                            let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{body}");
                            let _ = stream.write_all(answer.as_bytes()).await;
                        }
                    }
                });
            }
        });
        Recorder { address, heard }
    }

    /// Returns all whole requests so far, by connection. Panics if a request can be read in two ways, or if a connection
    /// that is kept ends in half a request.
    pub(crate) async fn requests(&self) -> Vec<Message> {
        let in_the_middle = |heard: &Heard| {
            let (_, rest, stop) = wire::requests(&heard.bytes, Manner::Strict);
            !heard.closed && stop == Stop::Incomplete && !rest.is_empty()
        };
        until(|| !self.heard.lock().unwrap().iter().any(in_the_middle), "half a request to be broken off").await;
        let mut whole = Vec::new();
        for heard in self.heard.lock().unwrap().iter() {
            let (requests, rest, stop) = wire::requests(&heard.bytes, Manner::Strict);
            assert_eq!(stop, Stop::Incomplete, "the pod got {:?}", String::from_utf8_lossy(rest));
            whole.extend(requests);
        }
        whole
    }
}
