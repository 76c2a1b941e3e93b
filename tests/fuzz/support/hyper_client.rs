//! What hyper's HTTP/1.1 client makes of the bytes of an answer. It is the other reader of answers that is at hand, and
//! shares nothing with Segue's but `httparse` for heads.

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

/// The answer to a request of this method on a connection that carries these bytes and closes. `None`: no whole answer.
pub fn read(bytes: &[u8], method: &Method) -> Option<Answer> {
    // hyper looks at the connection between two polls; nothing here ever waits, so polling is all there is to do.
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
    // Each turn takes at least a byte or ends.
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

/// Says nothing before it was asked, then everything, then closes.
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
