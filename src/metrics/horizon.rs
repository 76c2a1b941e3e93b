//! The metric of a store that went back.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::Exemplar;
use prometheus_client::registry::Registry;
use segue_coordination::store::SharedHorizon;

/// Registers `store_went_back_total`.
pub fn register_store_went_back(registry: &mut Registry, horizon: SharedHorizon) {
    registry.register_collector(Box::new(WentBack(horizon)));
}

#[derive(Debug)]
struct WentBack(SharedHorizon);

impl Collector for WentBack {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Times that the store showed a revision below one that this process had seen";
        let mut counter = encoder.encode_descriptor("store_went_back", help, None, MetricType::Counter)?;
        let none: Option<&Exemplar<[(&str, &str); 0], u64>> = None;
        counter.encode_counter(&self.0.times(), none)
    }
}
