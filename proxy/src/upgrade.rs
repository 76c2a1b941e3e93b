//! Connections that have switched to another protocol, WebSocket above all: bytes, both ways.
//!
//! What must stay true: it counts as in flight until both sides are done, and severing ends it. It is ended by closing
//! both connections: a proper WebSocket close would need a parser to know where a frame ends.

use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::BytesMut;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::time::Instant;

use crate::flight::Flight;
use crate::tls::Stream;
use crate::watch::Watch;

/// Joins the client's connection, once it has been told, with the pod's, of which `read` had been read.
pub(crate) fn join(client: OnUpgrade, mut pod: Stream, read: BytesMut, flight: Flight) {
    let shared = flight.shared().clone();
    let (severed, idle) = (flight.sever_token(), shared.idle_timeout);
    let watch = shared.watch.clone();
    shared.background.run(async move {
        let progress = Rc::new(Cell::new(watch.now()));
        let flowing = async {
            let client = client.await.map_err(io::Error::other)?;
            let mut client = Lively { io: TokioIo::new(client), watch: watch.clone(), progress: progress.clone() };
            client.write_all(&read).await?;
            client.flush().await?;
            tokio::io::copy_bidirectional(&mut client, &mut pod).await
        };
        let silent = async {
            loop {
                let due = progress.get() + idle + watch.tick();
                if due <= Instant::now() {
                    break;
                }
                tokio::time::sleep_until(due).await;
            }
        };
        tokio::select! {
            _ = flowing => {}
            () = silent => {}
            () = severed.cancelled() => {}
        }
        drop(flight);
    });
}

/// Notes when something flows. On the client's side alone: whatever flows passes there.
struct Lively<T> {
    io: T,
    watch: Watch,
    progress: Rc<Cell<Instant>>,
}

impl<T: AsyncRead + Unpin> AsyncRead for Lively<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.progress.set(self.watch.now());
        Pin::new(&mut self.io).poll_read(context, buffer)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Lively<T> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.progress.set(self.watch.now());
        Pin::new(&mut self.io).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }
}
