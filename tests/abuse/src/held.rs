//! Held uploads, as many and as large as would fill a small HTTP/2 window, and one more request on the same connection.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use bytes::Bytes;
use futures_util::stream;
use http::Request;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::task::JoinSet;

use crate::cluster::Cluster;
use crate::judge::Verdict;
use crate::wire::Raw;

const HELD: usize = 12;
const PIECE: usize = 10 << 10;
/// Of each of the held ones, and what of that is read while it waits.
const PIECES: usize = 30;
const READ_AHEAD: usize = 64 << 10;
/// What a waiting request weighs at least, beside its body.
const REQUEST: usize = 512;
const PATIENCE: Duration = Duration::from_secs(10);

/// So many pieces, and nothing says in advance how many.
fn body(pieces: usize) -> impl hyper::body::Body<Data = Bytes, Error = Infallible> + Send + Unpin + 'static {
    static PIECE_OF_ZEROS: [u8; PIECE] = [0; PIECE];
    StreamBody::new(stream::iter((0..pieces).map(|_| Ok(Frame::data(Bytes::from_static(&PIECE_OF_ZEROS))))))
}

pub(crate) async fn run(cluster: &mut Cluster) -> anyhow::Result<Verdict> {
    let router = cluster.router("r-held", "stash.max_wait = \"60s\"").await?;
    if let Some(pod) = cluster.pod.take() {
        pod.shut_down(Duration::from_secs(5)).await;
    }
    let stream = Raw::connect(router.address).await?.stream;
    let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    let mut uploads = JoinSet::new();
    for number in 0..=HELD {
        // The last one is the other: short, and for a partition of its own.
        let (partition, pieces) = if number < HELD { (0, PIECES) } else { (1, 1) };
        let request = Request::post("http://h/echo").header("x-partition", partition).body(body(pieces))?;
        let mut sender = sender.clone();
        uploads.spawn(async move {
            let response = sender.send_request(request).await?;
            let status = response.status().as_u16();
            anyhow::Ok((status, response.into_body().collect().await?.to_bytes().len() == pieces * PIECE))
        });
    }
    // With the last one's body.
    let all = HELD * READ_AHEAD + PIECE + (HELD + 1) * REQUEST;
    let begun = Instant::now();
    let mut arrived = 0.0;
    while arrived < all as f64 && begun.elapsed() < PATIENCE {
        tokio::time::sleep(Duration::from_millis(100)).await;
        arrived = router.metric("segue_stash_bytes");
    }
    let after = begun.elapsed();
    cluster.pod = Some(cluster.pods.start("p-0").await?);
    let mut answered = 0;
    while let Some(upload) = tokio::time::timeout(6 * PATIENCE, uploads.join_next()).await.context("no answer")? {
        answered += usize::from(matches!(upload?, Ok((200, true))));
    }
    connection.abort();
    let harmless = arrived >= all as f64 && answered == HELD + 1;
    let mark = if harmless { "ok  " } else { "HARM" };
    let line = format!(
        "{mark} held-uploads             {HELD} held uploads of {} KiB on one connection: {arrived:.0} bytes wait (all of \
         another's {} KiB: {}) after {} ms; {answered}/{} answered whole",
        (PIECES * PIECE) >> 10,
        PIECE >> 10,
        if arrived >= all as f64 { "yes" } else { "NO" },
        after.as_millis(),
        HELD + 1,
    );
    Ok(Verdict::certain(harmless, line))
}
