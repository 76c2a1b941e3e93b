//! The metrics of the control side: what routers, coordinators and pods did, as Prometheus series.
//!
//! Every series exists from the start, at zero, so that a rate can be taken of the first event. The names are fixed
//! (`segue_` and the documented ones). The request path has its own metrics ([`segue_proxy::metrics`]).

mod coordinator;
mod counters;
mod outage;
mod pod;
mod pods_service;
mod process;
mod router;
mod spans;
mod store;

use std::sync::atomic::AtomicU64;
use std::time::{SystemTime, UNIX_EPOCH};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use segue_coordination::session::lease_now;
use segue_coordination::store::StoreError;
use tokio::time::Instant;

pub(crate) use self::coordinator::CoordinatorMetrics;
pub(crate) use self::counters::{register_dropped_lines, register_failed_handshakes, register_store_went_back};
pub(crate) use self::outage::tell_outages;
pub(crate) use self::pod::{MeteredHooks, PodMetrics};
pub(crate) use self::pods_service::PodsServiceMetrics;
pub(crate) use self::process::process_registry;
pub(crate) use self::router::RouterMetrics;
pub(crate) use self::spans::SpanMetrics;
pub(crate) use self::store::{MeteredStore, StoreHealth};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RoleLabel {
    role: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CauseLabel {
    cause: &'static str,
}

/// Registers `build_info{version,revision}`. The revision is the value of `SEGUE_REVISION` at build time.
pub(crate) fn register_build_info(registry: &mut Registry) {
    let revision = option_env!("SEGUE_REVISION").unwrap_or("unknown");
    let labels = [("version", env!("CARGO_PKG_VERSION")), ("revision", revision)];
    registry.register("build", "The build of this process", Info::new(labels));
}

/// Registers what every participant that follows the store has: `store_resyncs_total{cause}`, `lease_trusted{role}` and
/// `lease_trusted_until_timestamp_seconds{role}`.
#[derive(Debug, Clone, Default)]
pub(crate) struct ParticipantMetrics {
    resyncs: Family<CauseLabel, Counter>,
    leases: Family<RoleLabel, Gauge<f64, AtomicU64>>,
    trusted: Family<RoleLabel, Gauge>,
}

impl ParticipantMetrics {
    /// Creates and registers the series.
    pub(crate) fn new(registry: &mut Registry) -> Self {
        let metrics = ParticipantMetrics::default();
        for cause in ["unavailable", "compacted", "refused"] {
            drop(metrics.resyncs.get_or_create(&CauseLabel { cause }));
        }
        registry.register("store_resyncs", "Times the state was taken anew from the store", metrics.resyncs.clone());
        let help = "Until when this participant may trust its lease, as Unix time; 0 without a lease";
        registry.register("lease_trusted_until_timestamp_seconds", help, metrics.leases.clone());
        let help = "Whether this participant trusts its lease, by its own clock";
        registry.register("lease_trusted", help, metrics.trusted.clone());
        metrics
    }

    fn count_resync(&self, cause: &StoreError) {
        let cause = match cause {
            StoreError::Compacted { .. } => "compacted",
            StoreError::Unavailable(_) => "unavailable",
            StoreError::LeaseNotFound | StoreError::Refused(_) => "refused",
        };
        self.resyncs.get_or_create(&CauseLabel { cause }).inc();
    }

    /// Returns the series of a role's lease.
    fn lease(&self, role: &'static str) -> LeaseGauge {
        let label = RoleLabel { role };
        LeaseGauge {
            until: self.leases.get_or_create(&label).clone(),
            trusted: self.trusted.get_or_create(&label).clone(),
        }
    }
}

/// Until when a role's lease may be trusted.
#[derive(Debug)]
struct LeaseGauge {
    until: Gauge<f64, AtomicU64>,
    trusted: Gauge,
}

impl LeaseGauge {
    /// Takes a moment on the clock of [`lease_now`]; `None` without a lease.
    fn set(&self, trusted_until: Option<Instant>) {
        self.until.set(trusted_until.map_or(0.0, unix_seconds));
        self.trusted.set(i64::from(trusted_until.is_some_and(|until| lease_now() < until)));
    }
}

/// Returns a moment on the clock of [`lease_now`] in seconds of Unix time.
fn unix_seconds(moment: Instant) -> f64 {
    let (lease, unix) = (lease_now(), SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64());
    match moment.checked_duration_since(lease) {
        Some(left) => unix + left.as_secs_f64(),
        None => unix - lease.saturating_duration_since(moment).as_secs_f64(),
    }
}

/// Counts `hot_restarts_total{result}`.
#[derive(Debug, Clone, Default)]
pub(crate) struct HotRestartMetrics {
    hot_restarts: Family<ResultLabel, Counter>,
}

impl HotRestartMetrics {
    /// Creates and registers the series.
    pub(crate) fn new(registry: &mut Registry) -> Self {
        let metrics = HotRestartMetrics::default();
        for result in ["taken", "failed", "refused"] {
            drop(metrics.hot_restarts.get_or_create(&ResultLabel { result }));
        }
        let help =
            "Hot restarts: taken over by this process, failed before the new process was ready, and refused to one";
        registry.register("hot_restarts", help, metrics.hot_restarts.clone());
        metrics
    }

    /// Counts that this process took over from another.
    pub(crate) fn taken(&self) {
        self.count("taken");
    }

    /// Counts that a new process did not become ready.
    pub(crate) fn failed(&self) {
        self.count("failed");
    }

    /// Counts that a new process came at the wrong moment.
    pub(crate) fn refused(&self) {
        self.count("refused");
    }

    fn count(&self, result: &'static str) {
        self.hot_restarts.get_or_create(&ResultLabel { result }).inc();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use prometheus_client::encoding::text::encode;

    use super::*;

    fn value(registry: &Registry, series: &str) -> f64 {
        let mut text = String::new();
        encode(&mut text, registry).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{series} is missing in {text}")).parse().unwrap()
    }

    #[test]
    fn the_leases_of_a_process_are_told_apart() {
        let mut registry = Registry::with_prefix("segue");
        let participants = ParticipantMetrics::new(&mut registry);
        let (router, coordinator) = (participants.lease("router"), participants.lease("coordinator"));
        let series = |role: &str| format!("segue_lease_trusted_until_timestamp_seconds{{role=\"{role}\"}}");
        assert_eq!(value(&registry, &series("coordinator")), 0.0);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
        router.set(Some(lease_now() + Duration::from_secs(100)));
        coordinator.set(Some(lease_now()));
        assert!((99.0..160.0).contains(&(value(&registry, &series("router")) - now)));
        assert!((-1.0..60.0).contains(&(value(&registry, &series("coordinator")) - now)));
        let trusted = |role: &str| value(&registry, &format!("segue_lease_trusted{{role=\"{role}\"}}"));
        assert_eq!((trusted("router"), trusted("coordinator")), (1.0, 0.0));
        coordinator.set(None);
        assert_eq!(value(&registry, &series("coordinator")), 0.0);
    }
}
