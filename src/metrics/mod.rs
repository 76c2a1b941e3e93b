//! The metrics of the control side: what routers, coordinators and pods did, as Prometheus series.
//!
//! Every series exists from the start, at zero, so that a rate can be taken of the first event. The names are fixed
//! (`segue_` and the documented ones). The request path has its own metrics ([`segue_proxy::metrics`]).

mod coordinator;
mod process;
mod router;
mod store;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use segue_coordination::store::StoreError;

pub use self::coordinator::CoordinatorMetrics;
pub use self::process::process_registry;
pub use self::router::RouterMetrics;
pub use self::store::MeteredStore;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CauseLabel {
    cause: &'static str,
}

/// Registers `build_info{version,revision}`. The revision is the value of `SEGUE_REVISION` at build time.
pub fn register_build_info(registry: &mut Registry) {
    let revision = option_env!("SEGUE_REVISION").unwrap_or("unknown");
    let labels = [("version", env!("CARGO_PKG_VERSION")), ("revision", revision)];
    registry.register("build", "The build of this process", Info::new(labels));
}

/// Registers `store_resyncs_total{cause}`, which every participant that follows the store increments.
#[derive(Debug, Clone, Default)]
pub struct ResyncMetrics {
    resyncs: Family<CauseLabel, Counter>,
}

impl ResyncMetrics {
    /// Creates and registers the series.
    pub fn new(registry: &mut Registry) -> Self {
        let metrics = ResyncMetrics::default();
        for cause in ["unavailable", "compacted", "refused"] {
            drop(metrics.resyncs.get_or_create(&CauseLabel { cause }));
        }
        registry.register("store_resyncs", "Times the state was taken anew from the store", metrics.resyncs.clone());
        metrics
    }

    fn count(&self, cause: &StoreError) {
        let cause = match cause {
            StoreError::Compacted { .. } => "compacted",
            StoreError::Unavailable(_) => "unavailable",
            StoreError::LeaseNotFound | StoreError::Refused(_) => "refused",
        };
        self.resyncs.get_or_create(&CauseLabel { cause }).inc();
    }
}

/// Counts `hot_restarts_total{result}`.
#[derive(Debug, Clone, Default)]
pub struct HotRestartMetrics {
    hot_restarts: Family<ResultLabel, Counter>,
}

impl HotRestartMetrics {
    /// Creates and registers the series.
    pub fn new(registry: &mut Registry) -> Self {
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
    pub fn taken(&self) {
        self.count("taken");
    }

    /// Counts that a new process did not become ready.
    pub fn failed(&self) {
        self.count("failed");
    }

    /// Counts that a new process came at the wrong moment.
    pub fn refused(&self) {
        self.count("refused");
    }

    fn count(&self, result: &'static str) {
        self.hot_restarts.get_or_create(&ResultLabel { result }).inc();
    }
}
