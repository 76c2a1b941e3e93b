//! Layers of tower around the data path.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Request, Response, StatusCode};
use http_body_util::{Either, Full};
use segue_proxy::message::client_body::ClientBody;
use segue_proxy::server::Server;
use segue_proxy::settings::UpstreamProtocol;
use tower::util::MapRequestLayer;
use tower::{Layer, Service, ServiceBuilder};
use tower_http::set_header::SetResponseHeaderLayer;

use crate::support::client::full;
use crate::support::pod::Speaks;
use crate::support::{Fixture, GET, OK, P0, POST_THAT_EXPECTS, Settings, get_at, post, until};

/// Lets so many requests pass and answers all others with `429`.
#[derive(Debug, Clone)]
struct Quota(Arc<AtomicI32>);

#[derive(Debug, Clone)]
struct WithQuota<S> {
    inner: S,
    left: Arc<AtomicI32>,
}

impl<S> Layer<S> for Quota {
    type Service = WithQuota<S>;

    fn layer(&self, inner: S) -> WithQuota<S> {
        WithQuota { inner, left: self.0.clone() }
    }
}

impl<S, B> Service<Request<ClientBody>> for WithQuota<S>
where
    S: Service<Request<ClientBody>, Response = Response<B>>,
    S::Future: 'static,
    S::Error: 'static,
    B: 'static,
{
    type Response = Response<Either<B, Full<Bytes>>>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>>>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<ClientBody>) -> Self::Future {
        if self.left.fetch_sub(1, Relaxed) > 0 {
            let response = self.inner.call(request);
            return Box::pin(async { Ok(response.await?.map(Either::Left)) });
        }
        let mut refusal = Response::new(Either::Right(Full::new(Bytes::from("later"))));
        *refusal.status_mut() = StatusCode::TOO_MANY_REQUESTS;
        Box::pin(async { Ok(refusal) })
    }
}

/// A fixture whose router names its site on each response and lets `quota` requests pass.
fn layered(quota: i32) -> Fixture {
    let mut settings = Settings::default();
    settings.forward.upstream.protocol = UpstreamProtocol::Http1;
    let server = Server::bind(settings.server.clone()).unwrap();
    Fixture::started(server, settings, |server, keyspaces| {
        let site =
            SetResponseHeaderLayer::overriding(HeaderName::from_static("x-site"), HeaderValue::from_static("north"));
        let layers = ServiceBuilder::new().layer(site).layer(Quota(Arc::new(AtomicI32::new(quota))));
        server.start_with_layer(keyspaces, layers)
    })
}

#[tokio::test]
async fn a_layer_sees_what_clients_are_answered_whether_a_pod_or_the_router_says_it() {
    let fixture = layered(100);
    let _pod = fixture.pod(Speaks::Http1, |_| async { Response::new(full("ok")) }).await;
    let mut client = fixture.client().await;
    let answer = client.ask(GET).await;
    assert_eq!((answer.text(), answer.header("x-site")), ("ok", "north"));
    let answer = client.ask("GET / HTTP/1.1\r\nhost: h\r\n\r\n").await;
    assert_eq!((answer.status, answer.header("segue-reason"), answer.header("x-site")), (400, "no-partition", "north"));
    let http2 = fixture.http2_client().await;
    let answer = http2.ask(http2.request("GET", "/").body(full("")).unwrap()).await;
    assert_eq!((answer.status, answer.header("x-site")), (200, "north"));
}

#[tokio::test]
async fn a_layer_may_answer_in_place_of_the_data_path() {
    let fixture = layered(2);
    let _pod = fixture.pod(Speaks::Http1, |_| async { Response::new(full("ok")) }).await;
    let mut client = fixture.client().await;
    let mut statuses = Vec::new();
    for _ in 0..3 {
        statuses.push(client.ask(GET).await.status);
    }
    assert_eq!(statuses, [200, 200, 429]);
    // All connections share the layer.
    assert_eq!(fixture.ask(GET).await.status, 429);
    fixture.in_flight(P0, 0).await;
}

#[tokio::test]
async fn a_worker_that_hangs_is_seen_from_outside() {
    let settings = Settings::default();
    let server = Server::bind(settings.server.clone()).unwrap();
    let (release, released) = std::sync::mpsc::channel::<()>();
    let released = Arc::new(Mutex::new(released));
    let fixture = Fixture::started(server, settings, |server, keyspaces| {
        let hang = MapRequestLayer::new(move |request| {
            let _ = released.lock().unwrap().recv();
            request
        });
        server.start_with_layer(keyspaces, hang)
    });
    let silence = || fixture.metrics.longest_silence().unwrap_or_default();
    until(|| fixture.metrics.longest_silence().is_some(), "a first turn").await;
    let _client = fixture.send(GET).await;
    // Longer than between two turns.
    until(|| silence() > Duration::from_secs(2), "a worker that is silent").await;
    drop(release);
    until(|| silence() < Duration::from_secs(2), "a worker that goes on").await;
}

/// What the data path needs of a body beside its bytes passes through a layer.
#[tokio::test]
async fn a_body_a_wait_for_it_and_a_switch_of_protocols_pass_through_a_layer() {
    let fixture = layered(100);
    let pod = fixture.scripted_pod().await;
    let (mut client, mut connection) = fixture.exchange(&pod, post("content-length: 5", "hello")).await;
    connection.write(OK).await;
    assert_eq!(client.answer().await.header("x-site"), "north");
    client.write(POST_THAT_EXPECTS).await;
    connection.head().await;
    connection.continue_and_answer(&mut client).await;
    let upgrade = "connection: upgrade\r\nupgrade: websocket\r\n";
    client.write(get_at(P0, upgrade)).await;
    connection.head().await;
    connection.write(format!("HTTP/1.1 101 Switching Protocols\r\n{upgrade}\r\nhello")).await;
    assert_eq!(client.head().await.status, 101);
    assert_eq!(client.exactly(5).await, b"hello");
    client.write("ping").await;
    assert_eq!(connection.exactly(4).await, "ping");
}
