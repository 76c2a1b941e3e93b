//! Pods: one that answers by a function, and one whose every byte the test writes.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use bytes::Bytes;
use h2::server::SendResponse;
use http::{Request, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::client::{Body, RawHttp1Client, full};
use super::soon;

/// A pod that speaks HTTP/1.1 or HTTP/2.
pub struct Pod {
    pub address: SocketAddr,
    /// Number of connections that the pod has accepted.
    pub connections: Arc<AtomicUsize>,
    task: tokio::task::JoinHandle<()>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Speaks {
    Http1,
    Http2,
}

impl Pod {
    pub async fn start<F, R>(speaks: Speaks, answer: F) -> Self
    where
        F: Fn(Request<Incoming>) -> R + Clone + Send + Sync + 'static,
        R: Future<Output = Response<Body>> + Send + 'static,
    {
        Self::start_on(TcpListener::bind("127.0.0.1:0").await.unwrap(), speaks, answer)
    }

    pub fn start_on<F, R>(listener: TcpListener, speaks: Speaks, answer: F) -> Self
    where
        F: Fn(Request<Incoming>) -> R + Clone + Send + Sync + 'static,
        R: Future<Output = Response<Body>> + Send + 'static,
    {
        let address = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let counted = connections.clone();
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                counted.fetch_add(1, SeqCst);
                let answer = answer.clone();
                let service = service_fn(move |request| {
                    let answered = answer(request);
                    async move { Ok::<_, Infallible>(answered.await) }
                });
                stream.set_nodelay(true).unwrap();
                let io = TokioIo::new(stream);
                tokio::spawn(async move {
                    let _ = match speaks {
                        Speaks::Http1 => {
                            let connection = hyper::server::conn::http1::Builder::new()
                                .header_read_timeout(None)
                                .serve_connection(io, service);
                            connection.with_upgrades().await
                        }
                        Speaks::Http2 => {
                            hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                                .serve_connection(io, service)
                                .await
                        }
                    };
                });
            }
        });
        Pod { address, connections, task }
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Answers with the request's body.
pub async fn echo_body(request: Request<Incoming>) -> Response<Body> {
    Response::new(full(request.into_body().collect().await.unwrap().to_bytes()))
}

/// Starts a pod on bare `h2`, which hands each request to `answer`.
pub async fn start_h2_pod(
    answer: impl Fn(Request<h2::RecvStream>, SendResponse<Bytes>) + Clone + Send + 'static,
) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let answer = answer.clone();
            tokio::spawn(async move {
                let mut connection = h2::server::handshake(stream).await.unwrap();
                while let Some(Ok((request, respond))) = connection.accept().await {
                    answer(request, respond);
                }
            });
        }
    });
    address
}

/// A pod whose every byte the test writes.
pub struct ScriptedPod {
    listener: TcpListener,
    pub address: SocketAddr,
}

impl ScriptedPod {
    pub async fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        ScriptedPod { listener, address }
    }

    pub async fn accept(&self) -> Connection {
        let (stream, _) = soon(self.listener.accept()).await.unwrap();
        Connection { stream, buffer: Vec::new() }
    }

    /// Accepts a connection and reads the head of its first request.
    pub async fn accept_request(&self) -> Connection {
        let mut connection = self.accept().await;
        connection.head().await;
        connection
    }

    /// Has the client send a request, and reads it, as far as it is written here, from a new connection.
    pub async fn accept_from(&self, client: &mut RawHttp1Client, request: impl AsRef<[u8]>) -> Connection {
        client.write(&request).await;
        let mut connection = self.accept().await;
        connection.receive(request).await;
        connection
    }
}

/// A connection that a router has made.
pub struct Connection {
    pub stream: TcpStream,
    buffer: Vec<u8>,
}

impl Connection {
    /// Reads the head of the next request.
    pub async fn head(&mut self) -> String {
        loop {
            if let Some(end) = self.buffer.windows(4).position(|window| window == b"\r\n\r\n") {
                let head: Vec<u8> = self.buffer.drain(..end + 4).collect();
                return String::from_utf8(head).unwrap();
            }
            let read = soon(self.stream.read_buf(&mut self.buffer)).await.unwrap();
            assert_ne!(read, 0, "closed before a request; read so far: {:?}", String::from_utf8_lossy(&self.buffer));
        }
    }

    /// Reads the next request as far as its client has sent it. Its body, or the part of it, arrives as it was written.
    pub async fn receive(&mut self, sent: impl AsRef<[u8]>) {
        self.head().await;
        let sent = sent.as_ref();
        let head = sent.windows(4).position(|window| window == b"\r\n\r\n").expect("a head with its end");
        let body = &sent[head + 4..];
        assert_eq!(self.exactly_bytes(body.len()).await, body, "the pod gets another body than the client has sent");
    }

    /// Asks for the body of [`POST_THAT_EXPECTS`](super::POST_THAT_EXPECTS), gets it, and answers.
    pub async fn continue_and_answer(&mut self, client: &mut RawHttp1Client) {
        self.write("HTTP/1.1 100 Continue\r\n\r\n").await;
        assert_eq!(client.head().await.status, 100);
        client.write("hello").await;
        assert_eq!(self.exactly(5).await, "hello");
        self.write(super::OK).await;
        assert_eq!(client.answer().await.status, 200);
    }

    pub async fn exactly(&mut self, length: usize) -> String {
        String::from_utf8(self.exactly_bytes(length).await).unwrap()
    }

    pub async fn exactly_bytes(&mut self, length: usize) -> Vec<u8> {
        while self.buffer.len() < length {
            assert_ne!(soon(self.stream.read_buf(&mut self.buffer)).await.unwrap(), 0, "closed in a body");
        }
        self.buffer.drain(..length).collect()
    }

    pub async fn write(&mut self, text: impl AsRef<[u8]>) {
        self.stream.write_all(text.as_ref()).await.unwrap();
    }

    /// Reads until the router closes.
    pub async fn rest(&mut self) -> String {
        while soon(self.stream.read_buf(&mut self.buffer)).await.unwrap_or(0) != 0 {}
        String::from_utf8_lossy(&self.buffer).into_owned()
    }
}
