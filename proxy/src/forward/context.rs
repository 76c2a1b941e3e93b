//! State that outlives a request: what a worker's requests share, and the client that sends them.

use std::any::Any;
use std::borrow::Cow;
use std::cell::Cell;
use std::net::IpAddr;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use http::header::HeaderValue;

use super::client_presence::Presence;
use super::concurrency_limit::ConcurrencyLimit;
use super::error::InvalidName;
use super::keyspace_life::{KeyspaceLife, LifeShare};
use super::request_log::RequestLog;
use super::retry_budget::RetryBudgets;
use crate::message::headers::{ClientLines, RouterIdentity};
use crate::message::interim::Interim;
use crate::message::request_body::Pace;
use crate::message::reserved::ReservedHeaders;
use crate::metrics::WorkerMetrics;
use crate::routing::client_share::{AddressUse, Addresses};
use crate::routing::key_limit::KeyLimiter;
use crate::routing::partition_key::PartitionSource;
use crate::routing::permit::TableHandle;
use crate::routing::table::Pod;
use crate::runtime::background::Background;
use crate::runtime::coarse_timer::CoarseTimer;
use crate::runtime::repeated_line::RepeatedLine;
use crate::settings::{ForwardSettings, OwnerExceptions};
use crate::spans::Tracer;
use crate::upstream::Upstream;

/// State that all requests of a worker share.
pub(crate) struct WorkerContext {
    pub(crate) identity: RouterIdentity,
    pub(super) partition: PartitionSource,
    pub(super) exceptions: OwnerExceptions,
    /// The services that routes lead to and that are no pods.
    pub(super) upstreams: Box<[Arc<Pod>]>,
    pub(super) key_limit: Option<KeyLimiter>,
    pub(crate) reserved: Rc<ReservedHeaders>,
    pub(crate) worker: TableHandle,
    pub(crate) upstream: Upstream,
    pub(crate) load: ConcurrencyLimit,
    pub(crate) budgets: RetryBudgets,
    pub(super) cut_off_log: RepeatedLine,
    pub(super) request_log: RequestLog,
    pub(crate) request_timeout: Duration,
    pub(crate) idle_timeout: Duration,
    pub(crate) max_header_bytes_http2: usize,
    pub(super) pace: Pace,
    pub(super) max_body_bytes: u64,
    pub(crate) timer: CoarseTimer,
    pub(crate) background: Background,
    pub(crate) life: LifeShare,
    pub(crate) metrics: Arc<WorkerMetrics>,
    pub(super) tracer: Option<Rc<Tracer>>,
}

impl WorkerContext {
    /// Returns the state of the worker to which `worker` gives access to the table. To be called on that worker's
    /// thread, inside its set of local tasks.
    pub(super) fn new(
        settings: &ForwardSettings,
        worker: TableHandle,
        metrics: Arc<WorkerMetrics>,
        life: &KeyspaceLife,
    ) -> Result<Self, InvalidName> {
        // Short time-outs need a finer timer; differences below a millisecond are not noticed.
        let shortest = settings.upstream.request_timeout.min(settings.upstream.idle_timeout);
        let max_in_flight = settings.upstream.max_in_flight_per_pod.div_ceil(worker.workers());
        let timer = CoarseTimer::new((shortest / 8).clamp(Duration::from_millis(1), Duration::from_millis(50)));
        Ok(WorkerContext {
            identity: RouterIdentity::new(header_value(&settings.router)?, header_value(&settings.keyspace)?),
            partition: settings.partition.clone(),
            exceptions: settings.exceptions.clone(),
            upstreams: settings.exceptions.routes.upstreams().map(|address| worker.upstream(address)).collect(),
            key_limit: settings.key_limit.clone(),
            reserved: Rc::new(
                ReservedHeaders::new(&settings.partition, settings.trust_forwarded)
                    .and(settings.exceptions.routes.headers()),
            ),
            worker,
            upstream: Upstream::new(settings.upstream.clone(), timer.clone()),
            load: ConcurrencyLimit::new(max_in_flight),
            budgets: RetryBudgets::default(),
            cut_off_log: RepeatedLine::default(),
            request_log: RequestLog::new(settings.requests),
            request_timeout: settings.upstream.request_timeout,
            idle_timeout: settings.upstream.idle_timeout,
            max_header_bytes_http2: settings.upstream.max_header_bytes_http2,
            pace: Pace { rate: settings.limits.min_upload_rate as u64, grace: settings.upload_grace },
            max_body_bytes: settings.limits.max_body_bytes.map_or(u64::MAX, |bytes| bytes as u64),
            timer,
            background: Background::start(),
            life: life.begin(),
            metrics,
            tracer: settings.tracer.clone().map(Rc::new),
        })
    }
}

/// The client of a request, and its connection.
#[derive(Debug, Clone)]
pub struct ClientInfo {
    pub(crate) lines: ClientLines,
    pub(crate) interim: Interim,
    pub(crate) presence: Presence,
    /// What the address of the connection's client uses of the worker.
    pub(crate) usage: Rc<AddressUse>,
    /// All addresses that use the worker, for requests that are forwarded for others.
    pub(crate) addresses: Rc<Addresses>,
    /// How many of its requests by HTTP/2 got their response before their end.
    pub(crate) unread_uploads: Cell<u32>,
    /// The guard of the connection. A tunnel keeps it after the connection has switched protocols.
    pub(crate) seat: Weak<dyn Any>,
}

impl ClientInfo {
    /// Returns the address of the client, which may have come by a proxy's connection, as text.
    pub(super) fn name(&self, forwarded: Option<IpAddr>) -> Cow<'_, str> {
        match forwarded {
            Some(ip) => Cow::Owned(ip.to_string()),
            None => Cow::Borrowed(self.lines.address.to_str().unwrap_or_default()),
        }
    }
}

fn header_value(name: &str) -> Result<HeaderValue, InvalidName> {
    let visible = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ');
    let value = HeaderValue::try_from(name).ok().filter(|_| visible);
    value.ok_or_else(|| InvalidName(name.to_owned()))
}

/// Returns an error for settings that [`Forward::only`](super::Forward::only) would reject.
pub(crate) fn check(settings: &ForwardSettings) -> Result<(), InvalidName> {
    header_value(&settings.router).and(header_value(&settings.keyspace)).map(drop)
}
