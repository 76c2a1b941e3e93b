//! Well-behaved clients, over HTTP/1.1 and HTTP/2, which send at a steady rate before, during and after each attack.
//!
//! Each request has a number and a body of its own. Its response must be 200 with that body, and the pod must have
//! applied the request once.
//!
//! # Invariants
//!
//! * Any other response is an error, and so is a connection that ends before its response.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use bytes::Bytes;
use hdrhistogram::Histogram;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// How often each of them asks.
const PACE: Duration = Duration::from_millis(20);
/// Longer than anything may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// A client is sent away while all places are taken; it comes again.
const HTTP1: usize = 6;
const HTTP2: usize = 2;

static NEXT: AtomicU64 = AtomicU64::new(1);

/// What they have seen since somebody asked.
#[derive(Debug)]
pub(crate) struct Measured {
    pub(crate) requests: u64,
    pub(crate) errors: Vec<String>,
    pub(crate) times: Histogram<u64>,
}

impl Measured {
    fn new() -> Self {
        // Microseconds up to a minute; the arguments are within what the library allows.
        let times =
            Histogram::new_with_bounds(1, 60_000_000, 3).unwrap_or_else(|_| unreachable!("bounds that are valid"));
        Measured { requests: 0, errors: Vec::new(), times }
    }

    pub(crate) fn p99(&self) -> Duration {
        Duration::from_micros(self.times.value_at_quantile(0.99))
    }
}

/// The clients; gone when dropped.
pub(crate) struct Good {
    measured: Arc<Mutex<Measured>>,
    _clients: JoinSet<()>,
}

impl Good {
    pub(crate) fn start(router: SocketAddr, partitions: u32) -> Self {
        let measured = Arc::new(Mutex::new(Measured::new()));
        let mut clients = JoinSet::new();
        for number in 0..HTTP1 + HTTP2 {
            let measured = measured.clone();
            clients.spawn(async move {
                loop {
                    let served = match number < HTTP1 {
                        true => over_http1(router, partitions, number, &measured).await,
                        false => over_http2(router, partitions, number, &measured).await,
                    };
                    if let Err(error) = served {
                        measured.lock().unwrap_or_else(PoisonError::into_inner).errors.push(format!("{error:#}"));
                    }
                    tokio::time::sleep(PACE).await;
                }
            });
        }
        Good { measured, _clients: clients }
    }

    pub(crate) fn take(&self) -> Measured {
        std::mem::replace(&mut *self.measured.lock().unwrap_or_else(PoisonError::into_inner), Measured::new())
    }
}

fn note(measured: &Mutex<Measured>, began: Instant) {
    let mut measured = measured.lock().unwrap_or_else(PoisonError::into_inner);
    measured.requests += 1;
    let _ = measured.times.record(began.elapsed().as_micros() as u64);
}

/// A number that no other request has, and the partition it goes to.
fn next(partitions: u32) -> (u64, u64) {
    let id = NEXT.fetch_add(1, Relaxed);
    (id, id % u64::from(partitions))
}

async fn over_http1(router: SocketAddr, partitions: u32, key: usize, measured: &Mutex<Measured>) -> anyhow::Result<()> {
    let mut stream = TcpStream::connect(router).await.context("connect")?;
    stream.set_nodelay(true)?;
    loop {
        let (id, partition) = next(partitions);
        let body = format!("body of {id}");
        let request = format!(
            "POST /echo HTTP/1.1\r\nhost: h\r\nx-partition: {partition}\r\nx-key: {key}\r\nx-id: {id}\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        );
        let began = Instant::now();
        let exchange = async {
            stream.write_all(request.as_bytes()).await?;
            answer(&mut stream).await
        };
        let (status, answered) = tokio::time::timeout(PATIENCE, exchange).await.context("no answer")??;
        ensure!(status == 200 && answered == body.as_bytes(), "{status}: {}", String::from_utf8_lossy(&answered));
        note(measured, began);
        tokio::time::sleep(PACE.saturating_sub(began.elapsed())).await;
    }
}

/// The status and body of an answer of known length.
pub(crate) async fn answer(stream: &mut TcpStream) -> anyhow::Result<(u16, Vec<u8>)> {
    let mut bytes = Vec::with_capacity(1024);
    let end = loop {
        if let Some(at) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break at + 4;
        }
        ensure!(stream.read_buf(&mut bytes).await? > 0, "closed without an answer");
    };
    let head = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).context("no status")?;
    let Some((_, rest)) = head.split_once("content-length: ") else { bail!("no length in {head}") };
    let length: usize = rest.lines().next().unwrap_or_default().trim().parse().context("no length")?;
    while bytes.len() < end + length {
        ensure!(stream.read_buf(&mut bytes).await? > 0, "closed in an answer");
    }
    Ok((status, bytes[end..end + length].to_vec()))
}

async fn over_http2(router: SocketAddr, partitions: u32, key: usize, measured: &Mutex<Measured>) -> anyhow::Result<()> {
    let stream = TcpStream::connect(router).await.context("connect")?;
    stream.set_nodelay(true)?;
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
    let mut running = JoinSet::new();
    running.spawn(connection);
    loop {
        let (id, partition) = next(partitions);
        let body = format!("body of {id}");
        let request = Request::post("http://h/echo")
            .header("x-partition", partition)
            .header("x-key", key)
            .header("x-id", id)
            .body(Full::new(Bytes::from(body.clone())))?;
        let began = Instant::now();
        sender.ready().await?;
        let exchange = async {
            let response = sender.send_request(request).await?;
            let status = response.status().as_u16();
            anyhow::Ok((status, response.into_body().collect().await?.to_bytes()))
        };
        let (status, answered) = tokio::time::timeout(PATIENCE, exchange).await.context("no answer")??;
        ensure!(status == 200 && answered == body, "{status}: {}", String::from_utf8_lossy(&answered));
        note(measured, began);
        tokio::time::sleep(PACE.saturating_sub(began.elapsed())).await;
    }
}
