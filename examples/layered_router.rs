//! A router with tower layers of its own around the data path: a limit on the rate of requests, and a response header.
//!
//! ```text
//! etcd &
//! segue run --config …            # a coordinator and writer pods of the keyspace
//! cargo run --release --example layered_router -- --name r-0 --listen 127.0.0.1:8080 --requests-per-second 1000
//! ```
//!
//! A router starts in three steps: [`BoundRouter::bind`], [`BoundRouter::join`], and
//! [`JoiningRouter::accept_with_layer`], in whose place `segue run` calls [`JoiningRouter::accept`].
//!
//! [`JoiningRouter::accept`]: segue_proxy::router::JoiningRouter::accept
//! [`JoiningRouter::accept_with_layer`]: segue_proxy::router::JoiningRouter::accept_with_layer

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use clap::Parser;
use http::{HeaderName, HeaderValue, Request, Response, StatusCode};
use http_body_util::{Either, Full};
use segue_coordination::router::{DrainSettings, RouterSettings};
use segue_coordination::store::{EtcdOptions, EtcdStore};
use segue_protocol::handoff::router::OnStoreLoss;
use segue_protocol::keys::Keyspace;
use segue_proxy::message::client_body::ClientBody;
use segue_proxy::router::{BoundRouter, Membership};
use segue_proxy::routing::keyspace_choice::KeyspaceChoice;
use segue_proxy::routing::partition_key::PartitionSource;
use segue_proxy::routing::table::StashLimits;
use segue_proxy::settings::{
    ClientLimits, CommonSettings, ForwardSettings, LoggedRequests, OwnerExceptions, ServerSettings, UPLOAD_GRACE,
    UpstreamSettings,
};
use tokio::signal::unix::{SignalKind, signal};
use tower::{Layer, Service, ServiceBuilder};
use tower_http::set_header::SetResponseHeaderLayer;

/// A router that limits the rate of requests.
#[derive(Debug, Parser)]
struct Arguments {
    /// A client URL of etcd; may be given several times.
    #[arg(long, default_value = "http://127.0.0.1:2379")]
    etcd: Vec<String>,
    /// The keyspace.
    #[arg(long, default_value = "default")]
    keyspace: String,
    /// What the keyspace's keys begin with.
    #[arg(long, default_value = "/segue/")]
    prefix: String,
    /// This router's name, unique in the keyspace.
    #[arg(long)]
    name: String,
    /// Where clients connect.
    #[arg(long)]
    listen: String,
    /// Requests beyond this rate are answered 429.
    #[arg(long)]
    requests_per_second: u32,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let store = Arc::new(EtcdStore::connect(EtcdOptions::new(arguments.etcd))?);
    let keys = Keyspace::new(&arguments.prefix, &arguments.keyspace);
    let partition = PartitionSource::Number { header: HeaderName::from_static("x-partition"), order_by: None };
    let upstream = UpstreamSettings::default();

    let settings = RouterSettings {
        name: arguments.name.clone(),
        lease_ttl: Duration::from_secs(5),
        on_store_loss: OnStoreLoss::Auto,
        drain: DrainSettings::default(),
        admin: None,
        partitioner: Some(partition.partitioner()),
        request_timeout: upstream.request_timeout,
        max_wait: StashLimits::default().max_wait,
    };
    let forward = ForwardSettings {
        router: arguments.name.clone(),
        keyspace: arguments.keyspace,
        partition,
        trust_forwarded: false,
        exceptions: OwnerExceptions::default(),
        limits: ClientLimits::default(),
        key_limit: None,
        upload_grace: UPLOAD_GRACE,
        tracer: None,
        requests: LoggedRequests::default(),
        upstream,
    };
    let served_by = HeaderName::from_static("x-served-by");
    let layers = ServiceBuilder::new()
        .layer(SetResponseHeaderLayer::overriding(served_by, HeaderValue::try_from(&arguments.name)?))
        .layer(RateLimit::new(arguments.requests_per_second));

    let server = ServerSettings { listen: arguments.listen, workers: 0, tls: None };
    let router = BoundRouter::bind(server, KeyspaceChoice::Only, &[StashLimits::default()])?;
    let router = router.join(store, vec![Membership::new(keys, settings)]);
    router.state().ready().await;
    let router = router.accept_with_layer(CommonSettings::from(&forward), vec![forward], layers).await?;

    signal(SignalKind::terminate())?.recv().await;
    router.stop(tokio::time::Instant::now() + DrainSettings::default().timeout).await;
    Ok(())
}

/// Lets `per_second` requests pass in each second, over all workers, and answers the others with `429`.
#[derive(Debug, Clone)]
struct RateLimit {
    per_second: u32,
    /// Start of the current second, and the number of requests in it so far.
    window: Arc<Mutex<(Instant, u32)>>,
}

impl RateLimit {
    fn new(per_second: u32) -> Self {
        RateLimit { per_second, window: Arc::new(Mutex::new((Instant::now(), 0))) }
    }

    fn passes(&self) -> bool {
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        if window.0.elapsed() >= Duration::from_secs(1) {
            *window = (Instant::now(), 0);
        }
        window.1 += 1;
        window.1 <= self.per_second
    }
}

impl<S> Layer<S> for RateLimit {
    type Service = Limited<S>;

    fn layer(&self, inner: S) -> Limited<S> {
        Limited { inner, limit: self.clone() }
    }
}

#[derive(Debug, Clone)]
struct Limited<S> {
    inner: S,
    limit: RateLimit,
}

impl<S, B> Service<Request<ClientBody>> for Limited<S>
where
    S: Service<Request<ClientBody>, Response = Response<B>, Future: 'static>,
{
    type Response = Response<Either<B, Full<Bytes>>>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>>>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<ClientBody>) -> Self::Future {
        if self.limit.passes() {
            let response = self.inner.call(request);
            return Box::pin(async { Ok(response.await?.map(Either::Left)) });
        }
        Box::pin(async {
            let mut response = Response::new(Either::Right(Full::new(Bytes::from("too many requests\n"))));
            *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
            Ok(response)
        })
    }
}
