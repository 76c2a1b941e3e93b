//! Reads a response with hyper's HTTP/1.1 client, for comparison. Hyper shares only `httparse`, which parses heads,
//! with Segue's reader.

use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use http::{HeaderMap, Method, Request};
use http_body_util::{BodyExt, Empty};
use hyper::rt::{Read, ReadBufCursor, Write};

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub body: Vec<u8>,
    pub trailers: Option<HeaderMap>,
}

/// Returns the response to a request of this method on a connection that has these bytes and closes. `None` if there is
/// no whole response.
pub fn read(bytes: &[u8], method: &Method) -> Option<Answer> {
    // hyper reads the connection between two polls. Nothing here ever waits, so polling is enough.
    let io = Wire { bytes: bytes.to_vec(), at: 0, asked: false };
    let mut context = Context::from_waker(Waker::noop());
    let handshake = pin!(hyper::client::conn::http1::handshake(io));
    let Poll::Ready(Ok((mut sender, connection))) = handshake.poll(&mut context) else { return None };
    let request = Request::builder().method(method).uri("/").header("host", "h").body(Empty::<bytes::Bytes>::new());
    let mut answer = pin!(async {
        let response = sender.send_request(request.ok()?).await.ok()?;
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.ok()?;
        let trailers = body.trailers().cloned();
        Some(Answer { status, body: body.to_bytes().to_vec(), trailers })
    });
    let mut connection = pin!(connection);
    let mut connected = true;
    // Each turn reads at least a byte or ends.
    for _ in 0..2 * bytes.len() + 100 {
        if connected {
            connected = connection.as_mut().poll(&mut context).is_pending();
        }
        if let Poll::Ready(answer) = answer.as_mut().poll(&mut context) {
            return answer;
        }
    }
    panic!("hyper's client neither answers nor fails");
}

/// A connection that is silent until a request is written, then delivers all bytes and closes.
struct Wire {
    bytes: Vec<u8>,
    at: usize,
    asked: bool,
}

impl Read for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
        mut buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.asked {
            return Poll::Pending;
        }
        let length = buffer.remaining().min(self.bytes.len() - self.at);
        buffer.put_slice(&self.bytes[self.at..self.at + length]);
        self.at += length;
        Poll::Ready(Ok(()))
    }
}

impl Write for Wire {
    fn poll_write(mut self: Pin<&mut Self>, _context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.asked = true;
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
