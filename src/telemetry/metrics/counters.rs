//! Counters that are counted elsewhere and read when the metrics are.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::Exemplar;
use prometheus_client::registry::Registry;
use segue_coordination::store::SharedHorizon;
use segue_proxy::tls::handshakes;

/// Registers `store_went_back_total`.
pub(crate) fn register_store_went_back(registry: &mut Registry, horizon: SharedHorizon) {
    let help = "Times that the store showed a revision below one that this process had seen";
    register(registry, "store_went_back", help, move || horizon.times());
}

/// Registers `log_lines_dropped_total`.
pub(crate) fn register_dropped_lines(registry: &mut Registry, dropped: impl Fn() -> u64 + Send + Sync + 'static) {
    let help = "Log lines dropped because standard error was not read or could not be written";
    register(registry, "log_lines_dropped", help, dropped);
}

/// Registers `tls_handshakes_failed_total`.
pub(crate) fn register_failed_handshakes(registry: &mut Registry) {
    let help = "TLS handshakes of peers that failed";
    register(registry, "tls_handshakes_failed", help, handshakes::failed);
}

fn register(
    registry: &mut Registry,
    name: &'static str,
    help: &'static str,
    read: impl Fn() -> u64 + Send + Sync + 'static,
) {
    registry.register_collector(Box::new(ReadCounter { name, help, read }));
}

struct ReadCounter<Read> {
    name: &'static str,
    help: &'static str,
    read: Read,
}

impl<Read> fmt::Debug for ReadCounter<Read> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadCounter").field("name", &self.name).finish_non_exhaustive()
    }
}

impl<Read: Fn() -> u64 + Send + Sync + 'static> Collector for ReadCounter<Read> {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut counter = encoder.encode_descriptor(self.name, self.help, None, MetricType::Counter)?;
        let none: Option<&Exemplar<[(&str, &str); 0], u64>> = None;
        counter.encode_counter(&(self.read)(), none)
    }
}
