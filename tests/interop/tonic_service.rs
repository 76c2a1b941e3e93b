//! A gRPC service made of tonic. Every method returns what it is sent, after the delay that the metadata ask for.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf as _, BufMut as _, Bytes};
use futures_util::{Stream, StreamExt as _};
use tonic::body::Body;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::server::{Grpc, NamedService, StreamingService};
use tonic::transport::Server;
use tonic::{Request, Response, Status, Streaming};

/// Messages are bytes.
#[derive(Debug, Clone, Copy)]
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Raw;
    type Decoder = Raw;

    fn encoder(&mut self) -> Raw {
        Raw
    }

    fn decoder(&mut self) -> Raw {
        Raw
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put(item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}

/// A method of any kind, as a stream of messages both ways.
struct Echo {
    name: String,
}

impl StreamingService<Bytes> for Echo {
    type Response = Bytes;
    type ResponseStream = Pin<Box<dyn Stream<Item = Result<Bytes, Status>> + Send>>;
    type Future = Ready<Result<Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, request: Request<Streaming<Bytes>>) -> Self::Future {
        let seconds = request.metadata().get("x-delay").and_then(|delay| delay.to_str().ok()?.parse().ok());
        let delay = Duration::from_secs_f64(seconds.unwrap_or(0.0));
        let messages = request.into_inner().then(move |message| async move {
            tokio::time::sleep(delay).await;
            message
        });
        let mut response = Response::new(Box::pin(messages) as Self::ResponseStream);
        response.metadata_mut().insert("x-name", self.name.parse().expect("a name in ASCII"));
        ready(Ok(response))
    }
}

#[derive(Debug, Clone)]
struct Service {
    name: String,
}

impl NamedService for Service {
    const NAME: &'static str = "foreign.Service";
}

impl tower::Service<http::Request<Body>> for Service {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let echo = Echo { name: self.name.clone() };
        Box::pin(async move { Ok(Grpc::new(Raw).streaming(echo, request).await) })
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let (Some(name), Some(port)) = (arguments.next(), arguments.next()) else { panic!("expected a name and a port") };
    let address = format!("127.0.0.1:{port}").parse().expect("a port");
    Server::builder().add_service(Service { name }).serve(address).await.expect("a server");
}
