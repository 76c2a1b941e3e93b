//! One HTTP/2 connection to a pod: the task that drives it, and the leases of its streams.
//!
//! Not here: which connection an exchange gets ([`sessions`](super::sessions)).
//!
//! # Invariants
//!
//! * No place is given beyond the streams that the pod has said it allows, so that no exchange waits inside `h2`. In
//!   the first round trip of a connection the pod has said nothing, and only the [`Bounds`] hold. An exchange that is
//!   too many then is refused by the pod and sent again, or waits inside `h2`. Having them wait for the pod's word
//!   would cost a round trip.

use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use h2::client::{self, SendRequest};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use super::announced::SettingsReader;
use super::joined_writes::{ExpectedBodies, JoinedWrites};
use crate::tls::{Stream, refuses_certificate};
use crate::upstream::MAX_HEAD_BYTES;
use crate::upstream::end_without_peer;
use crate::upstream::error::NotHttp2;
use crate::upstream::sharing::OddResponses;

/// Window of a stream: 64 MB/s at a round trip of 1 ms. A client that does not read costs as much memory for each of
/// its streams.
const STREAM_WINDOW_BYTES: u32 = 64 << 10;
/// Window of a connection, much larger than those of its streams together, so that clients that do not read never use
/// up what others on the connection need. It is that large because `h2` also derives from it how many small frames may
/// lie unread before it closes the connection: each costs 256 bytes, less its length, of half of this.
pub(crate) const CONNECTION_WINDOW_BYTES: u32 = 128 << 20;
/// Most bytes of one upload that lie inside `h2`, once the pod's window allows them.
const SEND_BUFFER_BYTES: usize = 64 << 10;
/// After how many resets of its own in the connection's life `h2` ends it, with all exchanges on it. [`Bounds`] retires a
/// connection long before.
const MOST_RESETS_OF_H2: usize = 64 << 10;

/// How much one connection carries.
#[derive(Debug, Clone, Copy)]
pub(in crate::upstream) struct Bounds {
    /// Exchanges at a time.
    pub(super) streams: usize,
    /// Exchanges that may be broken off before it gets no further ones.
    pub(super) resets: usize,
}

/// An open connection.
pub(super) struct Session {
    pub(super) sender: SendRequest<Bytes>,
    pub(super) expected_bodies: ExpectedBodies,
    pub(super) secure: bool,
    load: Cell<usize>,
    resets: Cell<usize>,
    used: Cell<Instant>,
    state: Rc<SessionState>,
}

/// The state of a connection, as the task that drives it knows it.
#[derive(Default)]
struct SessionState {
    closed: Cell<bool>,
    /// Whether the pod has sent something, and so has accepted the connection.
    accepted: Cell<bool>,
    /// Whether the pod has refused the router's certificate, and so has looked at no request.
    refuses: Cell<bool>,
    /// Whether the pod speaks another protocol, and so has read no request.
    is_foreign: Cell<bool>,
    /// The bound on heads that the pod has announced, as HTTP/2 counts.
    most_head: Cell<Option<usize>>,
}

impl Session {
    /// Returns whether there is room for another exchange.
    pub(super) fn has_room(&self, bounds: Bounds) -> bool {
        let load = self.load.get();
        // The first exchange never waits. Asking what the pod allows takes a lock.
        load < bounds.streams && (load == 0 || load < self.sender.current_max_send_streams())
    }

    /// Returns how large a head the pod takes: `most`, unless it has announced less.
    pub(super) fn most_head(&self, most: usize) -> usize {
        self.state.most_head.get().map_or(most, |announced| announced.min(most))
    }

    /// Returns whether no exchange has used it for `age`.
    pub(super) fn is_idle(&self, now: Instant, age: Duration) -> bool {
        self.load.get() == 0 && now.saturating_duration_since(self.used.get()) > age
    }

    /// Returns whether further exchanges may begin on it, once there is room.
    pub(super) fn is_usable(&self, bounds: Bounds) -> bool {
        !self.state.closed.get() && self.resets.get() < bounds.resets
    }
}

/// The right to one stream on a connection.
pub(crate) struct StreamLease {
    session: Rc<Session>,
    /// Whether the connection was made for this request.
    pub(crate) fresh: bool,
    /// Whether the stream has been counted as reset.
    is_reset: Cell<bool>,
}

impl StreamLease {
    pub(super) fn of(session: &Rc<Session>, fresh: bool) -> Self {
        session.load.set(session.load.get() + 1);
        StreamLease { session: session.clone(), fresh, is_reset: Cell::new(false) }
    }

    pub(super) fn session(&self) -> &Session {
        &self.session
    }

    /// Counts the exchange as broken off, once for both directions of the stream.
    pub(super) fn note_reset(&self) {
        if !self.is_reset.replace(true) {
            self.session.resets.set(self.session.resets.get() + 1);
        }
    }

    /// Returns why the pod has looked at no request of the connection, if that is so.
    pub(super) fn refusal(&self) -> Option<io::Error> {
        let state = &self.session.state;
        if state.is_foreign.get() {
            return Some(NotHttp2.into());
        }
        state.refuses.get().then(|| io::Error::other("the pod refuses the router's certificate"))
    }

    /// Notes that the connection takes no further exchanges.
    pub(super) fn note_closed(&self) {
        self.session.state.closed.set(true);
    }
}

impl Drop for StreamLease {
    fn drop(&mut self) {
        self.session.load.set(self.session.load.get() - 1);
        self.session.used.set(Instant::now());
    }
}

pub(super) async fn open_session(stream: Stream, odd: Rc<OddResponses>) -> io::Result<Session> {
    let secure = stream.is_secure();
    end_without_peer(stream.socket());
    let (state, expected_bodies) = (Rc::<SessionState>::default(), ExpectedBodies::default());
    let (sender, connection) = client::Builder::new()
        .initial_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_header_list_size(MAX_HEAD_BYTES as u32)
        .max_send_buffer_size(SEND_BUFFER_BYTES)
        .enable_push(false)
        .max_local_error_reset_streams(Some(MOST_RESETS_OF_H2))
        .handshake::<_, Bytes>(ObservedStream {
            stream: JoinedWrites::new(stream, expected_bodies.clone()),
            state: state.clone(),
            announced: SettingsReader::default(),
            is_vectored: false,
        })
        .await
        .map_err(io::Error::other)?;
    let driven = state.clone();
    tokio::task::spawn_local(async move {
        if let Err(error) = connection.await {
            odd.note(&error);
            tracing::debug!(%error, "a connection to a pod has ended");
        }
        driven.closed.set(true);
    });
    Ok(Session {
        sender,
        expected_bodies,
        secure,
        load: Cell::new(0),
        resets: Cell::new(0),
        used: Cell::new(Instant::now()),
        state,
    })
}

/// A connection that records in its [`SessionState`] whether the pod accepts or refuses it, and what it announces.
struct ObservedStream {
    stream: JoinedWrites,
    state: Rc<SessionState>,
    announced: SettingsReader,
    /// The value of `is_write_vectored`, which `h2` reads when it takes the connection over. If it is false, `h2`
    /// copies data frames of up to 1 KiB, instead of 256 bytes, behind the frames before them, and so writes small
    /// requests at once. For larger frames `h2` reads the value again.
    is_vectored: bool,
}

impl ObservedStream {
    /// Records a read. Only the first thing that a pod sends can be a refusal: afterwards it has looked at requests.
    fn note(&mut self, read: &Poll<io::Result<()>>, bytes: &[u8]) {
        match read {
            Poll::Ready(Ok(())) => {
                self.state.accepted.set(self.state.accepted.get() || !bytes.is_empty());
                if let Some(most) = self.announced.read(bytes) {
                    self.state.most_head.set(Some(most));
                }
                self.state.is_foreign.set(self.announced.is_foreign());
            }
            Poll::Ready(Err(error)) if !self.state.accepted.get() && refuses_certificate(error) => {
                self.state.refuses.set(true);
            }
            Poll::Ready(Err(_)) | Poll::Pending => {}
        }
    }

    /// Reads what is left after a failed write. A pod that refuses sends an alert and closes, and `h2` may see the
    /// close first. Reading from a connection that has failed never blocks.
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

impl AsyncRead for ObservedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.is_vectored = true;
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.note(&read, &buffer.filled()[before..]);
        read
    }
}

impl AsyncWrite for ObservedStream {
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
        self.is_vectored
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let written = Pin::new(&mut self.stream).poll_flush(context);
        self.written(written, context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::{TcpListener, TcpStream};
    use tokio::task::LocalSet;

    use super::*;
    use crate::sidecar::tests::{HEADERS_FRAME, PING_FRAME, frames_for};

    /// gRPC servers take more than two pings for abuse, unless five minutes are between them or data.
    #[tokio::test(start_paused = true)]
    async fn a_pod_that_works_on_a_request_for_long_gets_no_pings() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let exchange = async {
            let socket = socket2::SockRef::from(&stream).try_clone().unwrap();
            let session = Rc::new(open_session(Stream::Plain(stream), Rc::new(OddResponses::of("w"))).await.unwrap());
            assert!(socket.keepalive().unwrap(), "the kernel looks after a pod that has gone");
            #[cfg(target_os = "linux")]
            assert!(socket.tcp_user_timeout().unwrap().is_some());
            let lease = StreamLease::of(&session, true);
            let request = http::Request::get("http://x/").body(()).unwrap();
            let (response, _) = lease.session().sender.clone().send_request(request, true).unwrap();
            let service = listener.accept().await.unwrap().0;
            let frames = frames_for(service, Duration::from_secs(600)).await;
            assert!(frames.contains(&HEADERS_FRAME), "{frames:?}");
            assert!(!frames.contains(&PING_FRAME), "{frames:?}");
            drop((response, lease));
        };
        LocalSet::new().run_until(exchange).await;
    }
}
