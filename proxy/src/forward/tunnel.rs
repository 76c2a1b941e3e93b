//! Connections that have switched to another protocol, mostly WebSocket: passes bytes both ways.
//!
//! # Invariants
//!
//! * A tunnel counts as in flight until both sides are done.
//! * Severing ends it: a WebSocket with a close frame to either side, between two frames; any other protocol by closing
//!   the connections.
//! * Memory is bounded by one buffer for each direction.

use std::any::Any;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use http::HeaderValue;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, timeout};

use super::in_flight::InFlight;
use crate::message::client_body::ClientSwitch;
use crate::message::websocket::{self, Frames, GOING_AWAY, SERVICE_RESTART};
use crate::tls::Stream;
use crate::upstream::ExchangeGuard;

/// Bytes read at a time.
const BUFFER_BYTES: usize = 16 << 10;
/// Time for each step of closing: the rest of a frame, the close frame, and the peer's own.
const CLOSE_STEP_TIMEOUT: Duration = Duration::from_secs(1);
/// Time for all steps of closing a WebSocket, towards both sides.
pub(crate) const WEBSOCKET_CLOSE_TIMEOUT: Duration = Duration::from_secs(3);

/// Why the router closes a connection.
#[derive(Clone, Copy)]
enum CloseCause {
    Severed,
    Idle,
}

/// Joins the client's connection, once the response has been written there, with the pod's, of which `read` was read
/// already. `to` is the protocol that they switched to. `seat` is kept until the client's connection is closed.
pub(crate) fn join(
    client: ClientSwitch,
    seat: Option<Rc<dyn Any>>,
    pod: Stream,
    read: BytesMut,
    in_flight: Box<InFlight>,
    to: Option<&HeaderValue>,
) {
    let shared = in_flight.shared().clone();
    let (severed, idle, timer) = (in_flight.sever_token(), shared.idle_timeout, shared.timer.clone());
    let websocket = to.is_some_and(|to| to.as_bytes().eq_ignore_ascii_case(b"websocket"));
    let worker = shared.clone();
    worker.background.run(async move {
        let _seat = seat;
        let client = tokio::select! {
            client = client => client,
            () = severed.cancelled() => return drop((pod, in_flight)),
        };
        let Ok((client, ahead)) = client else { return drop((pod, in_flight)) };
        let mut tunnel = Tunnel { client, pod, up: Pipe::new(ahead, websocket), down: Pipe::new(read, websocket) };
        let mut progress = timer.now();
        let cause = loop {
            let due = progress + idle + timer.tick();
            tokio::select! {
                over = std::future::poll_fn(|context| tunnel.poll(context, || progress = timer.now())) => {
                    if let Err(error) = over {
                        tracing::debug!(%error, "an upgraded connection has ended");
                        return tunnel.fail(in_flight).await;
                    }
                    return drop((tunnel, in_flight));
                }
                () = severed.cancelled() => break CloseCause::Severed,
                () = shared.life.ending.cancelled(), if websocket => break CloseCause::Severed,
                () = tokio::time::sleep_until(due) => {}
            }
            if progress + idle + timer.tick() <= Instant::now() {
                break CloseCause::Idle;
            }
        };
        if websocket {
            tunnel.close(cause, in_flight).await;
        }
    });
}

struct Tunnel {
    client: Stream,
    pod: Stream,
    /// Towards the pod.
    up: Pipe,
    /// Towards the client.
    down: Pipe,
}

impl Tunnel {
    /// Passes bytes until both sides have ended. Calls `moved` whenever bytes were read or written.
    fn poll(&mut self, context: &mut Context<'_>, mut moved: impl FnMut()) -> Poll<io::Result<()>> {
        let up = self.up.poll(&mut self.client, &mut self.pod, context, &mut moved)?;
        let down = self.down.poll(&mut self.pod, &mut self.client, context, &mut moved)?;
        if up.is_ready() && down.is_ready() { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    /// Ends after an error. What the pod sent before it closed its connection still reaches the client.
    async fn fail(self, in_flight: Box<InFlight>) {
        let Tunnel { mut client, mut pod, up, mut down } = self;
        if up.is_refused {
            let rest = std::future::poll_fn(|context| down.poll(&mut pod, &mut client, context, &mut || ()));
            let _ = timeout(CLOSE_STEP_TIMEOUT, rest).await;
        }
        drop((pod, in_flight));
        end(client).await;
    }

    /// Closes a WebSocket towards both sides. The pod is done once it has closed too.
    async fn close(self, cause: CloseCause, in_flight: Box<InFlight>) {
        let Tunnel { mut client, mut pod, mut up, mut down } = self;
        let (to_client, to_pod) = match cause {
            CloseCause::Severed => (SERVICE_RESTART, GOING_AWAY),
            CloseCause::Idle => (GOING_AWAY, GOING_AWAY),
        };
        // One after the other: the rest of a frame to either side comes from the other one.
        let _ = timeout(CLOSE_STEP_TIMEOUT, down.close(&mut pod, &mut client, to_client, false)).await;
        let _ = timeout(CLOSE_STEP_TIMEOUT, async {
            up.close(&mut client, &mut pod, to_pod, true).await?;
            until_closed(&mut pod).await
        })
        .await;
        drop(pod);
        drop(in_flight);
        end(client).await;
    }
}

/// Closes the client's connection. Closed with unread bytes it would be reset, and the client might lose what was written.
async fn end(mut client: impl AsyncRead + AsyncWrite + Unpin) {
    let _ = timeout(CLOSE_STEP_TIMEOUT, async {
        client.shutdown().await?;
        until_closed(&mut client).await
    })
    .await;
}

async fn until_closed(io: &mut (impl AsyncRead + Unpin)) -> io::Result<()> {
    let mut ignored = [0; 1 << 10];
    while io.read(&mut ignored).await? > 0 {}
    Ok(())
}

/// One direction.
struct Pipe {
    /// Bytes that were read and are not written yet.
    buffer: BytesMut,
    ended: bool,
    shut: bool,
    unflushed: bool,
    /// Whether the side that is written to has closed.
    is_refused: bool,
    /// The position of what was written in the WebSocket's frames; `None` for other protocols.
    frames: Option<Frames>,
}

impl Pipe {
    fn new(buffer: BytesMut, websocket: bool) -> Self {
        let frames = websocket.then(Frames::default);
        Pipe { buffer, ended: false, shut: false, unflushed: false, is_refused: false, frames }
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
                let written = ready!(Pin::new(&mut *to).poll_write(context, &self.buffer));
                self.is_refused = written.is_err();
                let bytes = written?;
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
            self.buffer.reserve(BUFFER_BYTES);
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

    /// Writes the rest of the frame that has begun and a close frame, then shuts the direction down.
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
