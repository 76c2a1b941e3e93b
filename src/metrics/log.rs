//! The metric of the log: lines that nobody read in time.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::Exemplar;
use prometheus_client::registry::Registry;
use tracing_appender::non_blocking::ErrorCounter;

/// Registers `log_lines_dropped_total`.
pub fn register_dropped_lines(registry: &mut Registry, dropped: ErrorCounter) {
    registry.register_collector(Box::new(DroppedLines(dropped)));
}

#[derive(Debug)]
struct DroppedLines(ErrorCounter);

impl Collector for DroppedLines {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Log lines dropped because standard error was not read";
        let mut counter = encoder.encode_descriptor("log_lines_dropped", help, None, MetricType::Counter)?;
        let none: Option<&Exemplar<[(&str, &str); 0], u64>> = None;
        counter.encode_counter(&(self.0.dropped_lines() as u64), none)
    }
}
