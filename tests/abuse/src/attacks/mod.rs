//! The attacks. Each runs for a few seconds and reports what came back to it.
//!
//! An attack judges only its own responses. Whether anybody else was harmed is judged in the same way for all of them
//! ([`judge`](crate::judge)).

mod admin;
mod bodies;
mod connections;
mod heads;
mod held;
mod http2;
mod http2_windows;
mod sealed;
mod shared;
mod smuggling;
mod targets;

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio_rustls::TlsConnector;

use crate::cluster::metric;
use crate::service::Seen;

/// How long a continuous attack lasts.
pub(crate) const LASTS: Duration = Duration::from_secs(3);

/// What is attacked.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) router: SocketAddr,
    /// A router that serves TLS, its process, and what trusts it.
    pub(crate) secure: SocketAddr,
    pub(crate) secure_pid: u32,
    pub(crate) connector: TlsConnector,
    /// A router that finds the key in the path, `/persons/{key}`.
    pub(crate) keyed: SocketAddr,
    pub(crate) seen: Arc<Seen>,
    /// The router's own pages.
    pub(crate) admin: SocketAddr,
}

impl Target {
    /// Exchanges that the router has with pods; infinitely many if it does not say.
    pub(crate) async fn in_flight(&self) -> f64 {
        let admin = self.admin;
        let asked = tokio::task::spawn_blocking(move || metric(admin, "segue_requests_in_flight")).await;
        asked.ok().flatten().unwrap_or(f64::INFINITY)
    }
}

/// What the attacker got.
#[derive(Debug)]
pub(crate) struct Got {
    pub(crate) what: String,
    /// That is what it should have got.
    pub(crate) expected: bool,
}

impl Got {
    pub(crate) fn new(expected: bool, what: impl Into<String>) -> Self {
        Got { what: what.into(), expected }
    }
}

type Running = Pin<Box<dyn Future<Output = anyhow::Result<Got>> + Send>>;

/// How much memory most attacks may take.
const MEMORY_KIB: u64 = 128 << 10;

/// One attack.
pub(crate) struct Attack {
    pub(crate) name: &'static str,
    /// How much memory it may take. An allocator gives back late what it had.
    pub(crate) memory_kib: u64,
    pub(crate) run: Box<dyn Fn(Target) -> Running>,
}

fn attack<F>(name: &'static str, run: impl Fn(Target) -> F + 'static) -> Attack
where
    F: Future<Output = anyhow::Result<Got>> + Send + 'static,
{
    Attack { name, memory_kib: MEMORY_KIB, run: Box::new(move |target| Box::pin(run(target))) }
}

pub(crate) fn all() -> Vec<Attack> {
    let mut attacks = vec![
        attack("slow-heads", heads::slow),
        attack("endless-headers", heads::endless),
        attack("huge-header", heads::huge),
        attack("many-headers", heads::many),
        attack("connection-options", heads::options),
        attack("unfinished-heads", heads::unfinished),
        attack("h2-unfinished-heads", heads::unfinished_by_http2),
        attack("slow-bodies", bodies::slow),
        attack("stalled-bodies", bodies::stalled),
        attack("endless-body", bodies::endless),
        attack("slow-readers", bodies::slow_readers),
        attack("early-answers", bodies::answered_early),
        attack("pipelining", bodies::pipelining),
        attack("admin-flood", admin::flood),
        attack("silent-connections", connections::silent),
        attack("busy-connections", connections::busy),
        attack("connect-and-go", connections::connect_and_go),
        attack("tls-handshake-stall", connections::handshakes),
        attack("unfinished-hellos", sealed::hellos),
        attack("unfinished-records", sealed::records),
        attack("bytes-behind-tls", sealed::behind),
        attack("h2-rapid-reset", http2::rapid_reset),
        attack("h2-reset-in-flight", http2::reset_in_flight),
        attack("h2-continuation-flood", http2::continuation),
        attack("h2-hpack-bomb", http2::hpack_bomb),
        attack("h2-ping-flood", http2::pings),
        attack("h2-settings-flood", http2::settings),
        attack("h2-priority-flood", http2::priorities),
        attack("h2-window-update-flood", http2::window_updates),
        attack("h2-empty-data", http2::empty_data),
        attack("h2-header-stall", http2::header_stall),
        attack("h2-too-many-streams", http2::too_many_streams),
        attack("h2-refused-heads", http2::refused_heads),
        attack("h2-odd-fields", http2::odd_fields),
        attack("h2-slow-uploads", http2::slow_uploads),
        attack("h2-zero-window", http2_windows::zero),
        attack("h2-unread-answers", http2_windows::unread),
        attack("h2-window-drip", http2_windows::drip),
        Attack { memory_kib: http2_windows::FULL_KIB, ..attack("h2-full-streams", http2_windows::full) },
        attack("h2-unasked-data", http2_windows::overrun),
    ];
    attacks.extend(smuggling::all());
    attacks.extend(targets::all());
    attacks.extend(held::all());
    attacks
}

/// Those on connections to pods that exchanges share: all by HTTP/2.
pub(crate) fn on_shared_connections() -> Vec<Attack> {
    shared::all()
}
