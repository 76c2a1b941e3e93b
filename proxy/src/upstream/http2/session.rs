//! One HTTP/2 connection to a pod: driving it, and the places on it.
//!
//! Not here: which connection an exchange gets ([`sessions`](super::sessions)).
//!
//! # Invariants
//!
//! * No place is given beyond the streams that the pod has said it allows, so that no exchange waits inside `h2`. In the first
//!   round trip of a connection the pod has said nothing, and only the [`Bounds`] hold. An exchange that is too many then is
//!   refused by the pod and sent again, or waits inside `h2`. Having them wait for the pod's word would cost a round trip.

use std::cell::Cell;
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use h2::client::{self, SendRequest};
use h2::{Ping, PingPong};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use super::announced::Announced;
use crate::tls::{Stream, refuses_certificate};
use crate::upstream::http1::MAX_HEAD_BYTES;

/// What a pod may send ahead on a stream: 64 MB/s at 1 ms. A client that does not read has as much of each of its streams
/// kept here.
const STREAM_WINDOW: u32 = 64 << 10;
/// Much more than all streams of a connection together may hold, so that clients who do not read never use up what those
/// need who share the connection with them. As much more because `h2` takes from it how many small frames may lie unread
/// before it breaks the connection off: each costs 256 bytes less its length of a half of this.
pub(crate) const CONNECTION_WINDOW: u32 = 128 << 20;
/// Most bytes of one upload that lie inside `h2`, once the pod's window allows them.
const SEND_BUFFER: usize = 64 << 10;
/// A pod that does not answer a ping for so long while it owes answers, and sends nothing else either, is gone.
const PING_EVERY: Duration = Duration::from_secs(10);
const PING_WITHIN: Duration = Duration::from_secs(5);

/// How much one connection carries.
#[derive(Debug, Clone, Copy)]
pub(in crate::upstream) struct Bounds {
    /// Exchanges at a time.
    pub(super) streams: usize,
    /// Exchanges that are broken off, until it gets no further ones.
    pub(super) resets: usize,
}

pub(super) struct Session {
    pub(super) sender: SendRequest<Bytes>,
    pub(super) secure: bool,
    pub(super) load: Cell<usize>,
    pub(super) resets: Cell<usize>,
    pub(super) used: Cell<Instant>,
    state: Rc<State>,
}

/// The state of a connection, as the task that drives it knows it.
#[derive(Default)]
struct State {
    closed: Cell<bool>,
    /// Bytes have arrived since somebody looked.
    heard: Cell<bool>,
    /// The pod has sent something, so it has accepted the connection.
    accepted: Cell<bool>,
    busy: Cell<bool>,
    /// The pod does not accept the router's certificate, so it has looked at nothing.
    refuses: Cell<bool>,
    /// How large a head may be, as HTTP/2 counts, once the pod has said so.
    most_head: Cell<Option<usize>>,
}

impl Session {
    /// Whether another exchange may begin on it.
    pub(super) fn has_room(&self, bounds: Bounds) -> bool {
        let load = self.load.get();
        // Nothing waits for a first one. Asking what the pod allows takes a lock.
        load < bounds.streams && (load == 0 || load < self.sender.current_max_send_streams())
    }

    /// How large a head the pod takes: `most`, unless it has announced less.
    pub(super) fn most_head(&self, most: usize) -> usize {
        self.state.most_head.get().map_or(most, |announced| announced.min(most))
    }

    pub(super) fn is_usable(&self, bounds: Bounds) -> bool {
        !self.state.closed.get() && self.resets.get() < bounds.resets
    }
}

/// A place for one stream on a connection.
pub(crate) struct Lease {
    session: Rc<Session>,
    /// The connection was made for this very request.
    pub(crate) fresh: bool,
    /// The stream has been counted among those that were reset.
    is_reset: Cell<bool>,
}

impl Lease {
    pub(super) fn of(session: &Rc<Session>, fresh: bool) -> Self {
        session.load.set(session.load.get() + 1);
        session.state.busy.set(true);
        Lease { session: session.clone(), fresh, is_reset: Cell::new(false) }
    }

    pub(super) fn session(&self) -> &Session {
        &self.session
    }

    /// The exchange was broken off. Counts once, from whichever side of the stream that is noted.
    pub(super) fn note_reset(&self) {
        if !self.is_reset.replace(true) {
            self.session.resets.set(self.session.resets.get() + 1);
        }
    }

    /// Whether the pod has refused the connection itself.
    pub(super) fn is_refused(&self) -> bool {
        self.session.state.refuses.get()
    }

    /// The connection takes no exchange any more.
    pub(super) fn note_closed(&self) {
        self.session.state.closed.set(true);
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let left = self.session.load.get() - 1;
        self.session.load.set(left);
        self.session.state.busy.set(left > 0);
        self.session.used.set(Instant::now());
    }
}

pub(super) async fn open_session(stream: Stream) -> io::Result<Session> {
    let secure = stream.is_secure();
    let state = Rc::<State>::default();
    let (sender, mut connection) = client::Builder::new()
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_header_list_size(MAX_HEAD_BYTES as u32)
        .max_send_buffer_size(SEND_BUFFER)
        .enable_push(false)
        .handshake::<_, Bytes>(Heard { stream, state: state.clone(), announced: Announced::default() })
        .await
        .map_err(io::Error::other)?;
    let (pings, driven) = (connection.ping_pong(), state.clone());
    tokio::task::spawn_local(async move {
        tokio::select! {
            ended = connection => if let Err(error) = ended {
                tracing::debug!(%error, "a connection to a pod has ended");
            },
            () = silence(pings, &driven) => tracing::debug!("a pod does not answer pings; its connection is closed"),
        }
        driven.closed.set(true);
    });
    Ok(Session { sender, secure, load: Cell::new(0), resets: Cell::new(0), used: Cell::new(Instant::now()), state })
}

/// Returns once the pod owes answers and sends nothing, not even to a ping.
async fn silence(pings: Option<PingPong>, state: &State) {
    let Some(mut pings) = pings else { return std::future::pending().await };
    loop {
        tokio::time::sleep(PING_EVERY).await;
        if state.heard.take() || !state.busy.get() {
            continue;
        }
        let mut pong = pin!(pings.ping(Ping::opaque()));
        while tokio::time::timeout(PING_WITHIN, pong.as_mut()).await.is_err() {
            if !state.heard.take() {
                return;
            }
        }
    }
}

/// A connection that notes when something arrives, and whether the pod refuses it.
struct Heard {
    stream: Stream,
    state: Rc<State>,
    announced: Announced,
}

impl Heard {
    /// Notes a refusal. Only the first words of a pod can be one: later it has looked at requests.
    fn note(&mut self, read: &Poll<io::Result<()>>, bytes: &[u8]) {
        match read {
            Poll::Ready(Ok(())) => {
                self.state.heard.set(true);
                self.state.accepted.set(self.state.accepted.get() || !bytes.is_empty());
                if let Some(most) = self.announced.read(bytes) {
                    self.state.most_head.set(Some(most));
                }
            }
            Poll::Ready(Err(error)) if !self.state.accepted.get() && refuses_certificate(error) => {
                self.state.refuses.set(true);
            }
            Poll::Ready(Err(_)) | Poll::Pending => {}
        }
    }

    /// A pod that refuses says so and closes, and `h2` may find it closed before it has read why. A connection that has
    /// failed can always be read from.
    fn written<T>(&mut self, written: Poll<io::Result<T>>, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        let Poll::Ready(Err(error)) = &written else { return written };
        if self.state.accepted.get() || self.state.refuses.get() || error.raw_os_error().is_none() {
            return written;
        }
        let mut byte = [0];
        let mut buffer = ReadBuf::new(&mut byte);
        let read = Pin::new(&mut self.stream).poll_read(context, &mut buffer);
        self.note(&read, buffer.filled());
        ready!(read).ok();
        written
    }
}

impl AsyncRead for Heard {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.note(&read, &buffer.filled()[before..]);
        read
    }
}

impl AsyncWrite for Heard {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.written(written, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.written(written, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let written = Pin::new(&mut self.stream).poll_flush(context);
        self.written(written, context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
