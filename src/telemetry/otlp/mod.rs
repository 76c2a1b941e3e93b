//! The export of spans to a collector, by OTLP over HTTP with protobuf.
//!
//! One task takes the spans from the queue, in batches, and posts them. The SDK of OpenTelemetry is not used: its
//! batches are sent from a thread without a runtime, where the HTTP client of the hooks cannot run, and it does not tell
//! how many spans it drops.
//!
//! # Invariants
//!
//! * A collector that is slow, hangs or is gone costs spans, never requests: the queue is bounded, and nobody waits for
//!   room in it.
//! * Each span is counted once, as exported or as dropped.
//! * The end of the process waits for the export no longer than `FLUSH_TIMEOUT`.

mod collector;
mod message;

use std::time::Duration;

use bytes::Bytes;
use opentelemetry_proto::tonic::resource::v1::Resource;
use prometheus_client::registry::Registry;
use prost::Message as _;
use segue_config::Config;
use segue_protocol::back_off::BackOff;
use segue_proxy::spans::{Span, Tracer};
use tokio::sync::mpsc::Receiver;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use self::collector::{Collector, ExportError};
use crate::telemetry::exemplars::{Exemplar, Exemplars};
use crate::telemetry::metrics::SpanMetrics;

/// Most spans that wait for their export.
const QUEUE: usize = 4096;
/// Most spans in a batch.
const MAX_BATCH: usize = 512;
/// How long a span waits for others before a batch is sent.
const BATCH_DELAY: Duration = Duration::from_secs(1);
/// How often a batch is sent before it is dropped.
const MAX_TRIES: u32 = 4;
const RETRY: BackOff = BackOff { first: Duration::from_secs(1), longest: Duration::from_secs(4) };
/// How long the end of the process waits for the export of what is queued.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(3);

/// The export in progress.
#[derive(Debug)]
pub(crate) struct Exporter {
    tracer: Tracer,
    task: JoinHandle<()>,
    ending: CancellationToken,
    exemplars: Exemplars,
}

impl Exporter {
    /// Registers the metrics, and begins to export if there is a collector. Requires a runtime.
    pub(crate) fn start(config: &Config, registry: &mut Registry) -> Option<Self> {
        let metrics = SpanMetrics::new(registry);
        let section = config.tracing.as_ref()?;
        let (tracer, spans) = Tracer::new(section.sampling, QUEUE, metrics.overflow());
        let (ending, exemplars) = (CancellationToken::new(), Exemplars::default());
        let export = Export {
            collector: Collector::new(&section.endpoint),
            resource: message::resource(config),
            metrics,
            exemplars: exemplars.clone(),
            ending: ending.clone(),
            failing: false,
        };
        Some(Exporter { tracer, task: tokio::spawn(export.run(spans)), ending, exemplars })
    }

    /// Returns what records spans.
    pub(crate) fn tracer(&self) -> &Tracer {
        &self.tracer
    }

    /// Returns the exemplars of what has been exported.
    pub(crate) fn exemplars(&self) -> Exemplars {
        self.exemplars.clone()
    }

    /// Exports what is queued, and ends.
    pub(crate) async fn stop(mut self) {
        self.ending.cancel();
        if timeout(FLUSH_TIMEOUT, &mut self.task).await.is_err() {
            self.task.abort();
            warn!("collector does not take the last spans in time; dropped");
        }
    }
}

struct Export {
    collector: Collector,
    resource: Resource,
    metrics: SpanMetrics,
    exemplars: Exemplars,
    ending: CancellationToken,
    /// Whether the last batch was dropped.
    failing: bool,
}

impl Export {
    async fn run(mut self, mut spans: Receiver<Span>) {
        while !self.ending.is_cancelled() {
            let batch = self.gather(&mut spans).await;
            self.export(batch).await;
        }
        spans.close();
        let mut batch = Vec::new();
        while spans.recv_many(&mut batch, MAX_BATCH).await > 0 {
            self.export(std::mem::take(&mut batch)).await;
        }
    }

    /// Returns a batch: a full one, what has come in a while, or what is there at the end.
    async fn gather(&self, spans: &mut Receiver<Span>) -> Vec<Span> {
        let mut batch = Vec::new();
        tokio::select! {
            received = spans.recv_many(&mut batch, MAX_BATCH) => if received == 0 {
                // All recorders of spans are gone.
                self.ending.cancel();
            },
            () = self.ending.cancelled() => {}
        }
        let due = tokio::time::Instant::now() + BATCH_DELAY;
        while batch.len() < MAX_BATCH {
            let room = MAX_BATCH - batch.len();
            tokio::select! {
                received = spans.recv_many(&mut batch, room) => if received == 0 {
                    break;
                },
                () = tokio::time::sleep_until(due) => break,
                () = self.ending.cancelled() => break,
            }
        }
        batch
    }

    async fn export(&mut self, batch: Vec<Span>) {
        if batch.is_empty() {
            return;
        }
        let spans = batch.len() as u64;
        let exemplars = batch.iter().filter_map(Exemplar::of).collect();
        let body = Bytes::from(message::request(&self.resource, batch).encode_to_vec());
        match self.send(body).await {
            Ok(rejected) => {
                self.metrics.rejected(rejected.min(spans));
                self.metrics.exported(spans.saturating_sub(rejected));
                // A collector does not say which spans it rejects.
                if rejected == 0 {
                    self.exemplars.exported(exemplars);
                }
                if std::mem::take(&mut self.failing) {
                    info!("collector takes spans again");
                }
            }
            Err(error) => {
                self.metrics.failed(spans);
                if !std::mem::replace(&mut self.failing, true) {
                    warn!(%error, "collector does not take spans; dropping them");
                }
            }
        }
    }

    /// Sends a batch, and again while that may help. Returns how many spans the collector rejected.
    async fn send(&self, body: Bytes) -> Result<u64, ExportError> {
        for tries in 1.. {
            match self.collector.post(body.clone()).await {
                Err(error) if error.is_temporary() && tries < MAX_TRIES && !self.ending.is_cancelled() => {
                    tokio::select! {
                        () = sleep(RETRY.after(tries)) => {}
                        () = self.ending.cancelled() => {}
                    }
                }
                outcome => return outcome,
            }
        }
        Ok(0)
    }
}
