//! Pods that speak HTTP/2, where many exchanges share a connection: how one affects the others, and which requests are
//! sent again.
mod few_streams;
mod goaway;
mod heads;
mod odd;
mod resets;

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use h2::server::{Connection, SendResponse};
use http::{Request, Response};
use segue_proxy::settings::{UpstreamProtocol, UpstreamSettings};
use segue_tests::ports::free_address;
use tokio::net::{TcpListener, TcpStream};

use crate::support::client::RawHttp1Client;
use crate::support::{Fixture, P0, Settings, soon};

fn upstream(change: impl Fn(&mut UpstreamSettings)) -> Fixture {
    Fixture::with(Settings::with_upstream(|upstream| {
        upstream.protocol = UpstreamProtocol::Http2;
        change(upstream);
    }))
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: h\r\nx-partition: 0\r\n\r\n")
}

/// A pod on bare `h2`, whose connections the test accepts and serves.
struct ScriptedHttp2Pod {
    listener: TcpListener,
    address: SocketAddr,
}

type Accepted = (Request<h2::RecvStream>, SendResponse<Bytes>);

impl ScriptedHttp2Pod {
    async fn new() -> Self {
        let listener = TcpListener::bind(free_address()).await.unwrap();
        let address = listener.local_addr().unwrap();
        ScriptedHttp2Pod { listener, address }
    }

    /// Starts one and routes partition 0 to it.
    async fn start(fixture: &Fixture) -> Self {
        let pod = Self::new().await;
        fixture.route(P0, pod.address, 1);
        pod
    }

    /// Brings a `GET` of this path from a new client to the pod on a new connection.
    async fn exchange(
        &self,
        fixture: &Fixture,
        path: &str,
    ) -> (RawHttp1Client, Connection<TcpStream, Bytes>, SendResponse<Bytes>) {
        let client = fixture.send(get(path)).await;
        let mut connection = self.accept().await;
        let (_, respond) = next(&mut connection).await;
        (client, connection, respond)
    }

    async fn accept(&self) -> Connection<TcpStream, Bytes> {
        self.accept_with(&h2::server::Builder::new()).await
    }

    async fn accept_with(&self, builder: &h2::server::Builder) -> Connection<TcpStream, Bytes> {
        let (stream, _) = soon(self.listener.accept()).await.unwrap();
        soon(builder.handshake(stream)).await.unwrap()
    }

    async fn nobody_comes(&self) {
        let came = tokio::time::timeout(Duration::from_millis(200), self.listener.accept()).await;
        assert!(came.is_err(), "one more connection was made");
    }
}

async fn next(connection: &mut Connection<TcpStream, Bytes>) -> Accepted {
    soon(connection.accept()).await.expect("closed before a request").unwrap()
}

fn ok(respond: &mut SendResponse<Bytes>) {
    respond.send_response(Response::new(()), true).unwrap();
}

/// Answers all requests of a connection with `200`, except those that are reset before their turn comes.
fn serve(mut connection: Connection<TcpStream, Bytes>) {
    tokio::spawn(async move {
        while let Some(Ok((_, mut respond))) = connection.accept().await {
            let _ = respond.send_response(Response::new(()), true);
        }
    });
}
