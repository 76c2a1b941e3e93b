//! Checks whether the service behind a sidecar accepts requests.
//!
//! With a path, the service is asked for it at intervals. Without one, nothing is sent as long as connections are
//! accepted: a refused one starts a series of attempts to connect.
//!
//! # Invariants
//!
//! * A service is down only after the configured number of consecutive failures, and up again after one success. If it
//!   accepted a connection for one of them, it is unhealthy and not down. What it depends on may keep it from a response, and
//!   may keep all others, too.
//! * A check says nothing about a service that was stopped after the check had begun.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::HOST;
use http::uri::{PathAndQuery, Scheme, Uri};
use http::{Request, StatusCode};
use http_body_util::Empty;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tokio_util::task::AbortOnDropHandle;

use super::connection::CONNECT_TIMEOUT;
use super::service_socket::ServiceSocket;
use super::traffic::Traffic;
use super::upstream::Upstream;
use crate::settings::UpstreamProtocol;
use crate::tls::AlpnOffer;

/// Interval between two attempts to reach a service that is not up.
const STARTUP_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Settings of the health checks of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checks {
    /// The path to request. `None`: only refused connections count.
    pub path: Option<PathAndQuery>,
    /// Interval between two checks, and the time that one may take.
    pub every: Duration,
    /// Consecutive failures that make the service unhealthy.
    pub unhealthy_after: u32,
}

/// The known state of a service.
#[derive(Debug, Clone, Copy, Default)]
struct ServiceHealth {
    /// The service accepts connections.
    up: bool,
    /// It answers that it is unhealthy, or not at all.
    unhealthy: bool,
    /// Number of times that the service was stopped.
    stops: u64,
}

impl ServiceHealth {
    fn is_healthy(&self) -> bool {
        self.up && !self.unhealthy
    }

    fn is_unhealthy(&self) -> bool {
        self.up && self.unhealthy
    }
}

/// The health of a service, checked as long as this exists.
#[derive(Debug)]
pub struct HealthCheck {
    known: Arc<watch::Sender<ServiceHealth>>,
    traffic: Arc<Traffic>,
    _checks: AbortOnDropHandle<()>,
}

impl HealthCheck {
    /// Starts the checks. The service counts as down until one succeeds.
    pub fn watch(upstream: Upstream, checks: Checks) -> Self {
        let known = Arc::new(watch::channel(ServiceHealth::default()).0);
        let traffic = upstream.traffic.clone();
        let checking = tokio::spawn(run(upstream, checks, known.clone()));
        HealthCheck { known, traffic, _checks: AbortOnDropHandle::new(checking) }
    }

    /// Records that the service was stopped: it counts as down until a later check succeeds.
    pub fn forget(&self) {
        self.known.send_modify(|known| *known = ServiceHealth { up: false, unhealthy: false, stops: known.stops + 1 });
        self.traffic.refused();
    }

    /// Returns whether the service accepts requests and is healthy, as far as is known.
    pub fn is_up(&self) -> bool {
        self.known.borrow().is_healthy()
    }

    /// Returns once the service accepts requests and is healthy.
    pub async fn up(&self) {
        self.becomes(ServiceHealth::is_healthy).await;
    }

    /// Returns once the service has refused too many connections.
    pub async fn down(&self) {
        self.becomes(|known| !known.up).await;
    }

    /// Returns whether the service accepts connections and has failed too many checks.
    pub fn is_unhealthy(&self) -> bool {
        self.known.borrow().is_unhealthy()
    }

    /// Returns once the service accepts connections and has failed too many checks.
    pub async fn unhealthy(&self) {
        self.becomes(ServiceHealth::is_unhealthy).await;
    }

    async fn becomes(&self, is_so: impl Fn(&ServiceHealth) -> bool) {
        if self.known.subscribe().wait_for(|known| is_so(known)).await.is_err() {
            // The checks have ended because the process ends.
            std::future::pending::<()>().await;
        }
    }
}

async fn run(upstream: Upstream, checks: Checks, known: Arc<watch::Sender<ServiceHealth>>) {
    // The failures in a row, and how many of the last ones without a connection.
    let (mut failures, mut unreachable) = (0_u32, 0_u32);
    loop {
        let (begun, stops) = (Instant::now(), known.borrow().stops);
        let failure = check(&upstream, checks.path.as_ref(), begun + checks.every).await.err();
        match failure {
            None => {
                (failures, unreachable) = (0, 0);
                let is_news = known.send_if_modified(|known| {
                    let is_news = !known.is_healthy() && known.stops == stops;
                    if is_news {
                        (known.up, known.unhealthy) = (true, false);
                    }
                    is_news
                });
                if is_news {
                    tracing::info!(service = %upstream.address, "service is up");
                }
                if !known.borrow().up {
                    // The service was stopped during the check, so the next check counts.
                    continue;
                }
                if checks.path.is_none() {
                    upstream.traffic.refusal().await;
                    continue;
                }
            }
            Some(failure) => {
                failures = failures.saturating_add(1);
                let connects = !matches!(failure, HealthFailure::Connect(_));
                unreachable = if connects { 0 } else { unreachable.saturating_add(1) };
                let ServiceHealth { up: is_up, unhealthy: was_unhealthy, .. } = *known.borrow();
                tracing::debug!(%failure, failures, "a health check failed");
                if is_up && connects && failures >= checks.unhealthy_after {
                    if !was_unhealthy {
                        tracing::warn!(%failure, failures, service = %upstream.address, "service is unhealthy");
                        known.send_modify(|known| known.unhealthy = true);
                    }
                } else if is_up && unreachable >= checks.unhealthy_after {
                    tracing::warn!(%failure, failures, service = %upstream.address, "service is down");
                    known.send_modify(|known| (known.up, known.unhealthy) = (false, false));
                }
                if !is_up {
                    sleep(STARTUP_CHECK_INTERVAL.min(checks.every)).await;
                    continue;
                }
            }
        }
        sleep_until(begun + checks.every).await;
    }
}

#[derive(Debug, thiserror::Error)]
enum HealthFailure {
    #[error("no connection: {0}")]
    Connect(#[from] std::io::Error),
    #[error("no response: {0}")]
    Exchange(#[from] hyper::Error),
    #[error("no response in time")]
    Late,
    #[error("responded {0}")]
    Answer(StatusCode),
    #[error("cannot be asked: {0}")]
    Request(#[from] http::Error),
}

async fn check(upstream: &Upstream, path: Option<&PathAndQuery>, by: Instant) -> Result<(), HealthFailure> {
    let limit = CONNECT_TIMEOUT.min(by.saturating_duration_since(Instant::now()));
    let by_http2 = upstream.protocol == UpstreamProtocol::Http2;
    let offer = if by_http2 { AlpnOffer::Http2 } else { AlpnOffer::Either };
    let socket = upstream.address.dial(upstream.tls.as_ref(), offer, limit).await?;
    let Some(path) = path else { return Ok(()) };
    let asked = ask(socket, upstream, path, by_http2);
    timeout_at(by, asked).await.unwrap_or(Err(HealthFailure::Late))
}

/// Asks for a path, `by_http2` unless the service has chosen another version.
async fn ask(
    socket: ServiceSocket,
    upstream: &Upstream,
    path: &PathAndQuery,
    by_http2: bool,
) -> Result<(), HealthFailure> {
    let (by_http2, host) = (socket.agreed_on_http2().unwrap_or(by_http2), upstream.address.authority());
    let request = Request::get(path.as_str());
    let (status, _connection) = if by_http2 {
        let (mut sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(socket)).await?;
        let connection = AbortOnDropHandle::new(tokio::spawn(connection));
        let scheme = if upstream.tls.is_some() { Scheme::HTTPS } else { Scheme::HTTP };
        let uri = Uri::builder().scheme(scheme).authority(host).path_and_query(path.clone()).build()?;
        (sender.send_request(request.uri(uri).body(Empty::<Bytes>::new())?).await?.status(), connection)
    } else {
        let (mut sender, connection) = http1::handshake(TokioIo::new(socket)).await?;
        let connection = AbortOnDropHandle::new(tokio::spawn(connection));
        let request = request.header(HOST, host.as_str()).body(Empty::<Bytes>::new())?;
        (sender.send_request(request).await?.status(), connection)
    };
    match status {
        status if status.is_success() || status.is_redirection() => Ok(()),
        status => Err(HealthFailure::Answer(status)),
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use tokio::time::timeout;

    use super::*;

    fn upstream(listener: &TcpListener) -> Upstream {
        Upstream::at(listener.local_addr().unwrap().to_string().parse().unwrap())
    }

    fn checks() -> Checks {
        let path = Some(PathAndQuery::from_static("/"));
        Checks { path, every: Duration::from_secs(10), unhealthy_after: 1000 }
    }

    async fn respond(listener: &TcpListener, status: &str) {
        let (mut stream, _) = listener.accept().await.unwrap();
        assert_ne!(stream.read(&mut [0; 1024]).await.unwrap(), 0);
        let response = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
        stream.write_all(response.as_bytes()).await.unwrap();
    }

    async fn soon<T>(what: impl Future<Output = T>) -> T {
        timeout(Duration::from_secs(60), what).await.unwrap()
    }

    #[tokio::test]
    async fn a_service_that_answers_is_unhealthy_and_one_that_refuses_connections_is_down() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let checks = Checks { every: Duration::from_secs(1), unhealthy_after: 2, ..checks() };
        let health = HealthCheck::watch(upstream(&listener), checks);
        respond(&listener, "200 OK").await;
        soon(health.up()).await;
        let answers = async {
            loop {
                respond(&listener, "503 Service Unavailable").await;
            }
        };
        tokio::select! {
            () = soon(health.unhealthy()) => {}
            () = health.down() => panic!("it answers"),
            () = answers => {}
        }
        assert!(health.is_unhealthy() && !health.is_up());
        respond(&listener, "200 OK").await;
        soon(health.up()).await;
        assert!(!health.is_unhealthy());
        drop(listener);
        soon(health.down()).await;
        assert!(!health.is_unhealthy());
    }

    #[tokio::test]
    async fn a_service_that_accepts_connections_and_does_not_answer_is_unhealthy_and_not_down() {
        for closes in [false, true] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let checks = Checks { every: Duration::from_millis(50), unhealthy_after: 2, ..checks() };
            let health = HealthCheck::watch(upstream(&listener), checks);
            let answers = async {
                while !health.is_up() {
                    respond(&listener, "200 OK").await;
                }
            };
            soon(answers).await;
            let mut silent = Vec::new();
            let accepts = async {
                loop {
                    let (stream, _) = listener.accept().await.unwrap();
                    silent.extend((!closes).then_some(stream));
                }
            };
            tokio::select! {
                () = soon(health.unhealthy()) => {}
                () = health.down() => panic!("it accepts connections; closes: {closes}"),
                () = accepts => {}
            }
        }
    }

    #[tokio::test]
    async fn a_check_that_began_before_the_service_was_stopped_says_nothing() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let health = HealthCheck::watch(upstream(&listener), checks());
        let mut begun = listener.accept().await.unwrap().0;
        assert_ne!(begun.read(&mut [0; 1024]).await.unwrap(), 0);
        health.forget();
        begun.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
        let mut next = listener.accept().await.unwrap().0;
        assert!(!health.is_up(), "what was stopped is up");
        next.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
        soon(health.up()).await;
    }
}
