//! Connections that have switched to another protocol, WebSocket above all: bytes, both ways.
//!
//! What must stay true: it counts as in flight until both sides are done, and severing ends it: a WebSocket by a close
//! frame to either side, between two frames; what is spoken otherwise is not known, so it is closed. Memory is bounded
//! by one buffer for each direction.

use std::any::Any;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use http::HeaderValue;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, timeout};

use super::in_flight::InFlight;
use crate::message::websocket::{self, Frames, GOING_AWAY, SERVICE_RESTART};
use crate::tls::Stream;
use crate::upstream::Counted;

/// What is read at once.
const BUFFER: usize = 16 << 10;
/// How long closing may take: the rest of a frame, the close frame, and the peer's own.
const CLOSING: Duration = Duration::from_secs(1);
/// The same for a WebSocket, towards both sides.
pub(crate) const CLOSING_WEBSOCKETS: Duration = Duration::from_secs(3);

/// Why a connection is closed from here.
#[derive(Clone, Copy)]
enum Cause {
    Severed,
    Idle,
}

/// Joins the client's connection, once it has been told, with the pod's, of which `read` had been read; `to`: what they
/// have switched to; `seat`: kept until the client's connection is closed.
pub(crate) fn join(
    client: OnUpgrade,
    seat: Option<Rc<dyn Any>>,
    pod: Stream,
    read: BytesMut,
    flight: Box<InFlight>,
    to: Option<&HeaderValue>,
) {
    let shared = flight.shared().clone();
    let (severed, idle, watch) = (flight.sever_token(), shared.idle_timeout, shared.watch.clone());
    let websocket = to.is_some_and(|to| to.as_bytes().eq_ignore_ascii_case(b"websocket"));
    let worker = shared.clone();
    worker.background.run(async move {
        let _seat = seat;
        let client = tokio::select! {
            client = client => client,
            () = severed.cancelled() => return drop((pod, flight)),
        };
        let Ok(client) = client else { return drop((pod, flight)) };
        let mut tunnel = Tunnel {
            client: TokioIo::new(client),
            pod,
            up: Pipe::new(BytesMut::new(), websocket),
            down: Pipe::new(read, websocket),
        };
        let mut progress = watch.now();
        let cause = loop {
            let due = progress + idle + watch.tick();
            tokio::select! {
                over = std::future::poll_fn(|context| tunnel.poll(context, || progress = watch.now())) => {
                    if let Err(error) = over {
                        tracing::debug!(%error, "an upgraded connection has ended");
                    }
                    return drop((tunnel, flight));
                }
                () = severed.cancelled() => break Cause::Severed,
                () = shared.ending.cancelled(), if websocket => break Cause::Severed,
                () = tokio::time::sleep_until(due) => {}
            }
            if progress + idle + watch.tick() <= Instant::now() {
                break Cause::Idle;
            }
        };
        if websocket {
            tunnel.close(cause, flight).await;
        }
    });
}

struct Tunnel<C> {
    client: C,
    pod: Stream,
    /// To the pod.
    up: Pipe,
    /// To the client.
    down: Pipe,
}

impl<C: AsyncRead + AsyncWrite + Unpin> Tunnel<C> {
    /// Passes bytes until both sides have ended; `moved` is called whenever some have.
    fn poll(&mut self, context: &mut Context<'_>, mut moved: impl FnMut()) -> Poll<io::Result<()>> {
        let up = self.up.poll(&mut self.client, &mut self.pod, context, &mut moved)?;
        let down = self.down.poll(&mut self.pod, &mut self.client, context, &mut moved)?;
        if up.is_ready() && down.is_ready() { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    /// Closes a WebSocket towards both sides. The pod is done once it has closed too.
    async fn close(self, cause: Cause, flight: Box<InFlight>) {
        let Tunnel { mut client, mut pod, mut up, mut down } = self;
        let (to_client, to_pod) = match cause {
            Cause::Severed => (SERVICE_RESTART, GOING_AWAY),
            Cause::Idle => (GOING_AWAY, GOING_AWAY),
        };
        // One after the other: the rest of a frame to either side comes from the other one.
        let _ = timeout(CLOSING, down.close(&mut pod, &mut client, to_client, false)).await;
        let _ = timeout(CLOSING, async {
            up.close(&mut client, &mut pod, to_pod, true).await?;
            until_closed(&mut pod).await
        })
        .await;
        drop(pod);
        drop(flight);
        // Closed with something unread, the kernel would tell the client of an error instead of what was written.
        let _ = timeout(CLOSING, until_closed(&mut client)).await;
    }
}

async fn until_closed(io: &mut (impl AsyncRead + Unpin)) -> io::Result<()> {
    let mut ignored = [0; 1 << 10];
    while io.read(&mut ignored).await? > 0 {}
    Ok(())
}

/// One direction.
struct Pipe {
    /// Read and not written.
    buffer: BytesMut,
    ended: bool,
    shut: bool,
    unflushed: bool,
    /// Where in the WebSocket what was written ends.
    frames: Option<Frames>,
}

impl Pipe {
    fn new(buffer: BytesMut, websocket: bool) -> Self {
        Pipe { buffer, ended: false, shut: false, unflushed: false, frames: websocket.then(Frames::default) }
    }

    fn written(&mut self, bytes: usize) {
        if let Some(frames) = &mut self.frames {
            frames.pass(&self.buffer[..bytes]);
        }
        self.buffer.advance(bytes);
    }

    fn poll(
        &mut self,
        from: &mut (impl AsyncRead + Unpin),
        to: &mut (impl AsyncWrite + Unpin),
        context: &mut Context<'_>,
        moved: &mut impl FnMut(),
    ) -> Poll<io::Result<()>> {
        loop {
            while !self.buffer.is_empty() {
                let bytes = ready!(Pin::new(&mut *to).poll_write(context, &self.buffer))?;
                if bytes == 0 {
                    return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
                }
                self.written(bytes);
                self.unflushed = true;
                moved();
            }
            if self.shut {
                return Poll::Ready(Ok(()));
            }
            if self.ended {
                ready!(Pin::new(&mut *to).poll_shutdown(context))?;
                self.shut = true;
                return Poll::Ready(Ok(()));
            }
            self.buffer.reserve(BUFFER);
            match tokio_util::io::poll_read_buf(Pin::new(&mut *from), context, &mut self.buffer)? {
                Poll::Ready(0) => self.ended = true,
                Poll::Ready(_) => moved(),
                Poll::Pending => {
                    if self.unflushed {
                        ready!(Pin::new(&mut *to).poll_flush(context))?;
                        self.unflushed = false;
                    }
                    return Poll::Pending;
                }
            }
        }
    }

    /// Ends the frame that has begun, says that it is over, and says no more.
    async fn close(
        &mut self,
        from: &mut (impl AsyncRead + Unpin),
        to: &mut (impl AsyncWrite + Unpin),
        code: u16,
        masked: bool,
    ) -> io::Result<()> {
        while let Some(frames) = self.frames.as_ref().filter(|frames| !frames.is_between()) {
            let rest = frames.rest_of_frame(&self.buffer);
            to.write_all(&self.buffer[..rest]).await?;
            self.written(rest);
            if rest == 0 && from.read_buf(&mut self.buffer).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        if self.frames.as_ref().is_some_and(|frames| !frames.is_closed()) {
            to.write_all(&websocket::close(code, "the partition moves or has fallen silent", masked)).await?;
        }
        to.shutdown().await
    }
}
