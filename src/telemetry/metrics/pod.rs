//! The metrics of a pod's sidecar.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use axum::http::StatusCode;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet};
use prometheus_client::metrics::MetricType::{Counter, Gauge, Histogram as HistogramKind};
use prometheus_client::metrics::exemplar::Exemplar;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use segue_coordination::pod::{
    CallbackHandler, HandlerError, HandoffContext, LoadReport, Ownership, PermanentFailure, PodHandle, PodState,
    Rejection,
};
use segue_protocol::handoff::pod_reconcile::Callback;
use segue_protocol::ids::PartitionId;
use segue_proxy::sidecar::Traffic;
use tokio::sync::watch;
use tokio::time::Instant;

use super::{LeaseGauge, ParticipantMetrics};

/// Buckets from a hook that has nothing to do to the longest warm-up.
const HOOK_BUCKETS: [f64; 13] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 300.0];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct HookLabel {
    hook: &'static str,
    result: &'static str,
}

/// The partitions that a pod owns, and the requests that it was sent.
#[derive(Debug)]
pub(crate) struct PodMetrics {
    state: watch::Receiver<PodState>,
    lease: LeaseGauge,
}

impl PodMetrics {
    /// Creates and registers the series of a running pod and its sidecar.
    pub(crate) fn new(
        registry: &mut Registry,
        participants: &ParticipantMetrics,
        pod: &PodHandle,
        traffic: Arc<Traffic>,
    ) -> Self {
        let state = pod.status();
        // Without the handle, which would keep the pod running.
        let requests = PodRequests { ownership: pod.ownership().clone(), state: state.clone(), traffic };
        registry.register_collector(Box::new(requests));
        PodMetrics { state, lease: participants.lease("pod") }
    }

    /// Updates the series that nothing else updates.
    pub(crate) fn refresh(&self) {
        self.lease.set(self.state.borrow().trusted_until);
    }
}

#[derive(Debug)]
struct PodRequests {
    ownership: Arc<Ownership>,
    state: watch::Receiver<PodState>,
    traffic: Arc<Traffic>,
}

impl Collector for PodRequests {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let none: Option<&Exemplar<[(&str, &str); 0], u64>> = None;
        let help = "Requests of routers that the sidecar answered, by status";
        let mut requests = encoder.encode_descriptor("pod_requests", help, None, Counter)?;
        for (status, count) in self.traffic.answered() {
            if count > 0 || status == StatusCode::OK {
                requests.encode_family(&[("code", u32::from(status.as_u16()))])?.encode_counter(&count, none)?;
            }
        }
        let help = "Requests that the pod refused unprocessed, which their router sends again";
        let mut refused = encoder.encode_descriptor("pod_refused", help, None, Counter)?;
        for why in Rejection::ALL {
            let reason = why.as_str().replace('-', "_");
            refused
                .encode_family(&[("reason", reason.as_str())])?
                .encode_counter(&self.ownership.refused(why), none)?;
        }
        let help = "Responses that the service began and broke off";
        let cut_off = self.traffic.responses_cut_off();
        encoder.encode_descriptor("pod_responses_cut_off", help, None, Counter)?.encode_counter(&cut_off, none)?;
        let durations = self.traffic.durations();
        let buckets: Vec<(f64, u64)> = durations.buckets().collect();
        let count = buckets.iter().map(|(_, count)| count).sum();
        let help = "From before a request's first byte was sent to the service until the service had ended it";
        encoder
            .encode_descriptor("pod_request_duration_seconds", help, None, HistogramKind)?
            .encode_histogram::<[(&str, &str); 0]>(durations.seconds(), count, &buckets, None)?;
        let in_flight = self.traffic.under_way() as i64;
        let help = "Requests that the service has not ended";
        encoder.encode_descriptor("pod_requests_in_flight", help, None, Gauge)?.encode_gauge(&in_flight)?;
        let owned = self.state.borrow().owned.len() as i64;
        let help = "Partitions whose requests the pod accepts";
        encoder.encode_descriptor("pod_partitions_owned", help, None, Gauge)?.encode_gauge(&owned)
    }
}

/// Hooks whose calls are timed.
#[derive(Debug)]
pub(crate) struct MeteredHooks<H> {
    hooks: H,
    present: Vec<Callback>,
    durations: Family<HookLabel, Histogram>,
}

impl<H> MeteredHooks<H> {
    /// Creates and registers the series. Only calls of the hooks in `present` are timed; the others have nothing to do.
    pub(crate) fn new(hooks: H, present: Vec<Callback>, registry: &mut Registry) -> Self {
        let durations = Family::<HookLabel, Histogram>::new_with_constructor(|| Histogram::new(HOOK_BUCKETS));
        for hook in Callback::ALL {
            for result in ["done", "failed", "permanent", "cancelled"] {
                drop(durations.get_or_create(&HookLabel { hook: hook.as_str(), result }));
            }
        }
        let help = "How long calls of the service's hooks lasted";
        registry.register("pod_hook_seconds", help, durations.clone());
        MeteredHooks { hooks, present, durations }
    }
}

/// Records a call when it is dropped. A call that is no longer due is dropped before its end.
struct HookTimer<'a> {
    durations: &'a Family<HookLabel, Histogram>,
    label: HookLabel,
    since: Instant,
}

impl Drop for HookTimer<'_> {
    fn drop(&mut self) {
        self.durations.get_or_create(&self.label).observe(self.since.elapsed().as_secs_f64());
    }
}

#[async_trait]
impl<H: CallbackHandler> CallbackHandler for MeteredHooks<H> {
    fn has(&self, callback: Callback) -> bool {
        self.hooks.has(callback)
    }

    async fn call(&self, hook: Callback, part: &HandoffContext) -> Result<Option<String>, HandlerError> {
        let call = self.hooks.call(hook, part);
        if !self.present.contains(&hook) {
            return call.await;
        }
        let label = HookLabel { hook: hook.as_str(), result: "cancelled" };
        let mut timer = HookTimer { durations: &self.durations, label, since: Instant::now() };
        let result = call.await;
        timer.label.result = match &result {
            Ok(_) => "done",
            Err(error) if error.is::<PermanentFailure>() => "permanent",
            Err(_) => "failed",
        };
        result
    }

    fn load_of(&self, partition: PartitionId) -> LoadReport {
        self.hooks.load_of(partition)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use prometheus_client::encoding::text::encode;
    use segue_coordination::pod::{HandoffHandler, PodSettings};
    use segue_coordination::store::{MemoryStore, Store};
    use segue_protocol::ids::HandoffId;
    use segue_protocol::keys::Keyspace;
    use segue_protocol::txn::{Op, Txn};
    use segue_proxy::sidecar::{Sidecar, Upstream};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};
    use tokio_util::sync::CancellationToken;

    use super::*;

    fn assert_shown(registry: &Registry, lines: &[&str]) {
        let mut text = String::new();
        encode(&mut text, registry).unwrap();
        for line in lines {
            assert!(text.lines().any(|shown| shown == *line), "{line} is missing in {text}");
        }
    }

    struct Nothing;

    #[async_trait]
    impl HandoffHandler for Nothing {}

    async fn put(store: &dyn Store, key: String, value: String) {
        let put = Op::put(key, value.into_bytes());
        store.commit(Txn::guarded([], [put])).await.unwrap();
    }

    #[tokio::test]
    async fn what_a_pod_owns_and_works_on_and_refuses_shows() {
        let (store, keys) = (Arc::new(MemoryStore::new()), Keyspace::new("/segue/", "default"));
        let settings = PodSettings::new("w", "127.0.0.1:1");
        let pod = PodHandle::start(store.clone(), "default", keys.clone(), settings, Arc::new(Nothing));
        let mut registry = Registry::with_prefix("segue");
        let participants = ParticipantMetrics::new(&mut registry);
        let traffic = Arc::<Traffic>::default();
        let metrics = PodMetrics::new(&mut registry, &participants, &pod, traffic.clone());
        assert_shown(
            &registry,
            &[
                r#"segue_pod_requests_total{code="200"} 0"#,
                r#"segue_pod_refused_total{reason="unstamped"} 0"#,
                r#"segue_pod_refused_total{reason="not_owner"} 0"#,
                r#"segue_pod_refused_total{reason="stale_epoch"} 0"#,
                "segue_pod_responses_cut_off_total 0",
                "segue_pod_request_duration_seconds_count 0",
                "segue_pod_requests_in_flight 0",
                "segue_pod_partitions_owned 0",
                r#"segue_lease_trusted_until_timestamp_seconds{role="pod"} 0.0"#,
            ],
        );
        let mut state = pod.status();
        let incarnation = state.wait_for(|state| state.not_ready.is_none()).await.unwrap().incarnation;
        put(&*store, keys.config(), r#"{"partitions":1}"#.to_owned()).await;
        let assignment = format!(r#"{{"partition":0,"owner":"w","incarnation":{incarnation},"epoch":7}}"#);
        put(&*store, keys.assignment(PartitionId::new(0)), assignment).await;
        state.wait_for(|state| state.owned.len() == 1).await.unwrap();

        // From here on a router sends to the sidecar, and this test answers as the service.
        let service = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let sidecar = Sidecar::bind("127.0.0.1:0".parse().unwrap(), None, 8).await.unwrap();
        let address = sidecar.local_addr().unwrap();
        let behind = service.local_addr().unwrap().to_string().parse().unwrap();
        let upstream = Upstream { traffic: traffic.clone(), ..Upstream::at(behind) };
        let pods = [(pod.layer(), upstream)].into_iter().collect();
        tokio::spawn(sidecar.serve(pods, CancellationToken::new(), Duration::ZERO));
        let mut unstamped = TcpStream::connect(address).await.unwrap();
        unstamped.write_all(b"GET / HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        unstamped.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 421 "), "{answer}");
        let mut stamped = TcpStream::connect(address).await.unwrap();
        let stamps = "segue-partition: 0\r\nsegue-epoch: 7\r\nsegue-keyspace: default\r\nconnection: close\r\n";
        stamped.write_all(format!("GET / HTTP/1.1\r\nhost: h\r\n{stamps}\r\n").as_bytes()).await.unwrap();
        let (mut connection, _) = service.accept().await.unwrap();
        metrics.refresh();
        assert_shown(
            &registry,
            &[
                r#"segue_pod_requests_total{code="421"} 1"#,
                r#"segue_pod_refused_total{reason="unstamped"} 1"#,
                "segue_pod_requests_in_flight 1",
                "segue_pod_partitions_owned 1",
            ],
        );
        assert!(metrics.lease.until.get() > 0.0);
        connection.write_all(b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n").await.unwrap();
        drop(connection);
        stamped.read_to_string(&mut answer).await.unwrap();
        assert!(answer.contains("HTTP/1.1 204 "), "{answer}");
        assert_shown(
            &registry,
            &[r#"segue_pod_requests_total{code="204"} 1"#, r#"segue_pod_requests_total{code="421"} 1"#],
        );
        traffic.ended().await;
        assert_shown(&registry, &["segue_pod_requests_in_flight 0", "segue_pod_request_duration_seconds_count 1"]);
    }

    /// Fails to warm, never drains, and never ends a release.
    struct Stubborn;

    #[async_trait]
    impl CallbackHandler for Stubborn {
        async fn call(&self, callback: Callback, _: &HandoffContext) -> Result<Option<String>, HandlerError> {
            match callback {
                Callback::Warm => Err("not now".into()),
                Callback::Drain => Err(PermanentFailure::new("never").into()),
                Callback::Release => std::future::pending().await,
                Callback::Sync | Callback::Leaving | Callback::Checkpoint => Ok(None),
            }
        }

        fn load_of(&self, partition: PartitionId) -> LoadReport {
            LoadReport { load: Some(partition.get().into()), keys: None }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn hooks_are_timed_by_how_they_ended() {
        let mut registry = Registry::with_prefix("segue");
        let hooks =
            MeteredHooks::new(Stubborn, vec![Callback::Warm, Callback::Drain, Callback::Release], &mut registry);
        let (keyspace, partition) = ("default".to_owned(), PartitionId::new(0));
        let part = HandoffContext {
            keyspace,
            partition,
            epoch: 7.into(),
            handoff: HandoffId::NONE,
            checkpoint: None,
            partitions: 4,
            from: None,
            to: None,
        };
        hooks.warm(&part).await.unwrap_err();
        hooks.sync(&part).await.unwrap();
        hooks.drain(&part).await.unwrap_err();
        tokio::time::timeout(Duration::from_secs(2), hooks.release(&part)).await.unwrap_err();
        assert_shown(
            &registry,
            &[
                r#"segue_pod_hook_seconds_count{hook="warm",result="failed"} 1"#,
                r#"segue_pod_hook_seconds_count{hook="warm",result="done"} 0"#,
                r#"segue_pod_hook_seconds_count{hook="drain",result="permanent"} 1"#,
                // The service has no such hook.
                r#"segue_pod_hook_seconds_count{hook="sync",result="done"} 0"#,
                r#"segue_pod_hook_seconds_sum{hook="release",result="cancelled"} 2.0"#,
            ],
        );
        assert_eq!(hooks.load(PartitionId::new(7)).load, Some(7.0), "the service's own report");
    }
}
