//! Clients: one by HTTP/1.1 whose every byte the test writes, and one by HTTP/2.

use std::net::SocketAddr;

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::BodyExt;
use http_body_util::combinators::BoxBody;
use hyper::body::Incoming;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinHandle;

use super::soon;

pub type Body = BoxBody<Bytes, std::io::Error>;

pub fn full(bytes: impl Into<Bytes>) -> Body {
    http_body_util::Full::new(bytes.into()).map_err(|never| match never {}).boxed()
}

pub fn empty() -> Body {
    http_body_util::Empty::new().map_err(|never| match never {}).boxed()
}

/// Returns a body that the test sends frame by frame. `None` ends it; dropping the sender breaks it off.
pub fn stream() -> (tokio::sync::mpsc::UnboundedSender<Option<http_body::Frame<Bytes>>>, Body) {
    let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel::<Option<http_body::Frame<Bytes>>>();
    let frames = futures_util::stream::poll_fn(move |context| {
        receiver.poll_recv(context).map(|received| match received {
            Some(Some(frame)) => Some(Ok(frame)),
            Some(None) => None,
            None => Some(Err(std::io::Error::other("broken off"))),
        })
    });
    (sender, http_body_util::StreamBody::new(frames).boxed())
}

pub fn data(bytes: &'static str) -> Option<http_body::Frame<Bytes>> {
    Some(http_body::Frame::data(Bytes::from(bytes)))
}

/// A connection by HTTP/1.1 on which the test writes every byte.
pub struct RawHttp1Client {
    pub stream: TcpStream,
    buffer: Vec<u8>,
}

/// An answer as it stood on the wire.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
    pub trailers: HeaderMap,
}

impl Answer {
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// Returns the status of a response that the router has made itself, and the reason that it gives.
    pub fn reason(&self) -> (u16, &str) {
        if !self.headers.contains_key("grpc-status") {
            let body: serde_json::Value = serde_json::from_slice(&self.body).expect("a body that tells why");
            assert_eq!(body["reason"], self.header("segue-reason"));
        }
        (self.status, self.header("segue-reason"))
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }
}

impl RawHttp1Client {
    pub async fn connect(address: SocketAddr) -> Self {
        RawHttp1Client { stream: TcpStream::connect(address).await.unwrap(), buffer: Vec::new() }
    }

    /// Connects from another address of this machine.
    pub async fn connect_from(ip: [u8; 4], address: SocketAddr) -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::from((ip, 0))).unwrap();
        RawHttp1Client { stream: socket.connect(address).await.unwrap(), buffer: Vec::new() }
    }

    pub async fn write(&mut self, text: impl AsRef<[u8]>) {
        self.stream.write_all(text.as_ref()).await.unwrap();
    }

    /// Sends a request and returns the response.
    pub async fn ask(&mut self, text: impl AsRef<[u8]>) -> Answer {
        self.write(text).await;
        self.answer().await
    }

    async fn more(&mut self) -> usize {
        soon(self.stream.read_buf(&mut self.buffer)).await.unwrap_or(0)
    }

    /// Reads the head of the next answer.
    pub async fn head(&mut self) -> Answer {
        loop {
            let mut slots = [httparse::EMPTY_HEADER; 64];
            let mut parsed = httparse::Response::new(&mut slots);
            if let httparse::Status::Complete(length) = parsed.parse(&self.buffer).unwrap() {
                let mut headers = HeaderMap::new();
                for header in parsed.headers.iter() {
                    let name: http::HeaderName = header.name.parse().unwrap();
                    headers.append(name, header.value.try_into().unwrap());
                }
                let status = parsed.code.unwrap();
                self.buffer.drain(..length);
                return Answer { status, headers, body: Vec::new(), trailers: HeaderMap::new() };
            }
            assert_ne!(self.more().await, 0, "closed before an answer; read so far: {:?}", self.text());
        }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.buffer).into_owned()
    }

    /// Reads the next answer with its body.
    pub async fn answer(&mut self) -> Answer {
        let mut answer = self.head().await;
        if let Some(length) = answer.headers.get("content-length") {
            let length: usize = length.to_str().unwrap().parse().unwrap();
            answer.body = self.exactly(length).await;
        } else if answer.header("transfer-encoding") == "chunked" {
            loop {
                let line = self.line().await;
                let size = usize::from_str_radix(line.split(';').next().unwrap(), 16).unwrap();
                if size == 0 {
                    break;
                }
                answer.body.extend(self.exactly(size).await);
                assert_eq!(self.line().await, "");
            }
            loop {
                let line = self.line().await;
                let Some((name, value)) = line.split_once(':') else { break };
                let name: http::HeaderName = name.parse().unwrap();
                answer.trailers.append(name, value.trim().try_into().unwrap());
            }
        }
        answer
    }

    pub async fn exactly(&mut self, length: usize) -> Vec<u8> {
        while self.buffer.len() < length {
            assert_ne!(self.more().await, 0, "closed in the middle of a body");
        }
        self.buffer.drain(..length).collect()
    }

    pub async fn line(&mut self) -> String {
        loop {
            if let Some(end) = self.buffer.windows(2).position(|window| window == b"\r\n") {
                let line: Vec<u8> = self.buffer.drain(..end + 2).collect();
                return String::from_utf8(line[..end].to_vec()).unwrap();
            }
            assert_ne!(self.more().await, 0, "closed in the middle of a line");
        }
    }

    /// Reads up to the close.
    pub async fn rest(mut self) -> String {
        while self.more().await != 0 {}
        self.text()
    }
}

/// A connection by HTTP/2.
#[derive(Clone)]
pub struct Http2Client {
    sender: hyper::client::conn::http2::SendRequest<Body>,
    address: SocketAddr,
}

impl Http2Client {
    pub async fn connect(address: SocketAddr) -> Self {
        Self::over(TcpStream::connect(address).await.unwrap(), address).await
    }

    /// Begins HTTP/2 on a connection to this address.
    pub async fn over(stream: TcpStream, address: SocketAddr) -> Self {
        stream.set_nodelay(true).unwrap();
        let executor = hyper_util::rt::TokioExecutor::new();
        let io = hyper_util::rt::TokioIo::new(stream);
        let (sender, connection) = hyper::client::conn::http2::handshake(executor, io).await.unwrap();
        tokio::spawn(connection);
        Http2Client { sender, address }
    }

    /// Begins to build a request to partition 0.
    pub fn request(&self, method: &str, path: &str) -> http::request::Builder {
        Request::builder().method(method).uri(format!("http://{}{path}", self.address)).header("x-partition", "0")
    }

    pub fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }

    pub async fn begin(&self, request: Request<Body>) -> Result<Response<Incoming>, hyper::Error> {
        soon(self.sender.clone().send_request(request)).await
    }

    pub async fn ask(&self, request: Request<Body>) -> Answer {
        let (head, body) = self.begin(request).await.unwrap().into_parts();
        let collected = soon(body.collect()).await.unwrap();
        let trailers = collected.trailers().cloned().unwrap_or_default();
        Answer { status: head.status.as_u16(), headers: head.headers, body: collected.to_bytes().to_vec(), trailers }
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.ask(self.request("GET", path).body(empty()).unwrap()).await
    }

    pub async fn post(&self, path: &str, body: Body) -> Answer {
        self.ask(self.request("POST", path).body(body).unwrap()).await
    }

    /// Sends a `POST` and returns the response when its head is there.
    pub async fn begin_post(&self, path: &str, body: Body) -> Result<Response<Incoming>, hyper::Error> {
        self.begin(self.request("POST", path).body(body).unwrap()).await
    }

    /// Sends a request from a task of its own, which ends when the head of the response is there.
    pub fn spawn_begin(&self, request: Request<Body>) -> JoinHandle<Result<(), hyper::Error>> {
        let client = self.clone();
        tokio::spawn(async move { client.begin(request).await.map(drop) })
    }

    /// Sends a request from a task of its own.
    pub fn spawn_ask(&self, request: Request<Body>) -> JoinHandle<Answer> {
        let client = self.clone();
        tokio::spawn(async move { client.ask(request).await })
    }
}
