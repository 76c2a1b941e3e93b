//! A client's connections: one to each router, opened on demand.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::Either;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::super::record::Outcome;
use super::{Destination, Reply, understand};

type Body = Full<Bytes>;

/// One connection.
pub(super) enum ClientConnection {
    /// HTTP/1.1 with keep-alive.
    Http1(http1::SendRequest<Body>, ConnectionTask),
    /// HTTP/2, with prior knowledge if there is no TLS.
    Http2(http2::SendRequest<Body>, ConnectionTask),
}

/// The task that drives a connection. It ends with its owner.
pub(super) struct ConnectionTask {
    ended: CancellationToken,
    _task: AbortOnDropHandle<()>,
}

impl ConnectionTask {
    fn start<E>(connection: impl Future<Output = Result<(), E>> + Send + 'static) -> Self {
        let ended = CancellationToken::new();
        let end = ended.clone().drop_guard();
        let task = tokio::spawn(async move {
            let _end = end;
            drop(connection.await);
        });
        ConnectionTask { ended, _task: AbortOnDropHandle::new(task) }
    }
}

impl ClientConnection {
    pub(super) async fn open(to: &Destination, http2: bool) -> io::Result<Self> {
        let stream = TcpStream::connect(to.address).await?;
        stream.set_nodelay(true)?;
        match &to.tls {
            Some((tls, name)) => Self::over(tls.dial(name, stream, http2).await?, http2).await,
            None => Self::over(stream, http2).await,
        }
    }

    async fn over(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, http2: bool) -> io::Result<Self> {
        let stream = TokioIo::new(stream);
        if http2 {
            let (sender, connection) =
                http2::handshake(TokioExecutor::new(), stream).await.map_err(io::Error::other)?;
            return Ok(ClientConnection::Http2(sender, ConnectionTask::start(connection)));
        }
        let (sender, connection) = http1::handshake(stream).await.map_err(io::Error::other)?;
        Ok(ClientConnection::Http1(sender, ConnectionTask::start(connection)))
    }

    fn driver(&self) -> &ConnectionTask {
        match self {
            ClientConnection::Http1(_, driver) | ClientConnection::Http2(_, driver) => driver,
        }
    }

    /// Hands a request over, and returns the response to come.
    async fn send(
        &mut self,
        request: Request<Body>,
    ) -> impl Future<Output = Result<Response<Incoming>, TrySendError<Request<Body>>>> + use<> {
        match self {
            ClientConnection::Http1(sender, _) => {
                // If the connection was closed while idle, the next line reports that and returns the request.
                let _ = sender.ready().await;
                Either::Left(sender.try_send_request(request))
            }
            ClientConnection::Http2(sender, _) => Either::Right(sender.try_send_request(request)),
        }
    }
}

/// Waits for what was sent on the connection in `slot` to be answered. Drops the connection if it ends before that.
///
/// hyper keeps requests in a channel until the connection's task takes them. One that another thread puts there at the
/// moment at which the task ends stays there, and is handed back only when the last sender is dropped. A task
/// that waits for it with the sender in hand waits for ever.
pub(super) async fn answers_on<T>(slot: &mut Option<ClientConnection>, answers: impl Future<Output = T>) -> T {
    let mut answers = pin!(answers);
    if let Some(connection) = slot {
        tokio::select! {
            biased;
            answered = &mut answers => return answered,
            () = connection.driver().ended.cancelled() => {}
        }
        *slot = None;
    }
    answers.await
}

/// Sends on the connection in `slot`, opening it first if necessary. A request that was never sent uses a new
/// connection.
pub(super) async fn exchange(
    slot: &mut Option<ClientConnection>,
    to: &Destination,
    http2: bool,
    request: Request<Body>,
    patience: Duration,
) -> Reply {
    let mut stage = "connecting";
    let whole = async {
        for _ in 0..3 {
            let connection = match slot {
                Some(connection) => connection,
                None => match ClientConnection::open(to, http2).await {
                    Ok(connection) => slot.insert(connection),
                    // Nothing was sent, so nothing was done.
                    Err(error) => {
                        return said(Outcome::Refused { code: 0, reason: format!("connect: {error}").into() });
                    }
                },
            };
            stage = "waiting for the head of the response";
            let response = connection.send(request.clone()).await;
            match answers_on(slot, response).await {
                Ok(response) => {
                    stage = "reading the body of the response";
                    return answer(response).await;
                }
                Err(mut error) => {
                    let unsent = error.take_message().is_some();
                    let error = error.into_error();
                    if !unsent && !left_alone(&error) {
                        return broken(&error);
                    }
                    *slot = None;
                    stage = "connecting again";
                }
            }
        }
        said(Outcome::Refused { code: 0, reason: "connections close before anything is sent".into() })
    };
    let answered = tokio::time::timeout(patience, whole).await;
    let said = answered.unwrap_or_else(|_| {
        let protocol = if http2 { "HTTP/2" } else { "HTTP/1.1" };
        said(Outcome::Unanswered { place: format!("{stage}, {protocol} to {}", to.address).into() })
    });
    if matches!(said.outcome, Outcome::Unanswered { .. } | Outcome::Unknown { code: 0, .. }) {
        *slot = None;
    }
    said
}

/// Returns whether the other side was closing and stated that it will not process the request (RFC 9113, 6.8). h2
/// returns this error for streams that it no longer opens, and for those after the last stream that the other side has
/// named. A stream that is cut off gets another error.
fn left_alone(error: &hyper::Error) -> bool {
    let cause = std::error::Error::source(error).and_then(|cause| cause.downcast_ref::<h2::Error>());
    cause.is_some_and(|it| it.is_go_away() && it.is_remote() && it.reason() == Some(h2::Reason::NO_ERROR))
}

/// Reads the response to its end. A response that is cut off is none.
pub(super) async fn answer(response: Response<Incoming>) -> Reply {
    let (head, body) = response.into_parts();
    match body.collect().await {
        Ok(_) => understand(head.status, &head.headers),
        Err(error) => broken(&error),
    }
}

pub(super) fn broken(error: &hyper::Error) -> Reply {
    let reason =
        if error.is_incomplete_message() || error.is_closed() { "connection closed" } else { "connection broken" };
    said(Outcome::Unknown { code: 0, reason: reason.into() })
}

fn said(outcome: Outcome) -> Reply {
    Reply { outcome, answered_by: None, seen: 0 }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    /// hyper's part of the connection stays here, so that what would be lost with it can still be seen.
    #[tokio::test]
    async fn who_waits_on_a_connection_that_has_ended_keeps_no_sender_of_it() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        let mut slot =
            Some(ClientConnection::Http2(sender, ConnectionTask::start(std::future::ready(Ok::<_, ()>(())))));
        let request = Request::builder().uri("http://demo/").body(Full::default()).unwrap();
        let answer = slot.as_mut().unwrap().send(request).await;
        let waiting = tokio::spawn(async move { answers_on(&mut slot, answer).await.is_ok() });
        // It ends once there are no senders, and hands back what they sent.
        tokio::time::timeout(Duration::from_secs(10), connection).await.unwrap().unwrap();
        assert!(!waiting.is_finished(), "the request was sent, and the listener answers nothing");
        drop(listener);
        assert!(!waiting.await.unwrap());
    }
}
