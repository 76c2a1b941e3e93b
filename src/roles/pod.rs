//! The role of the sidecar in front of a writer pod: registration and hand-over, and the proxy that fences.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use segue_config as config;
use segue_coordination::pod::{Hooks, PodHandle, PodSettings, PodState};
use segue_coordination::store::Store;
use segue_coordination::store::keys::Keyspace;
use segue_proxy::sidecar::Sidecar;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::admin::Part;
use crate::certificates::Certificates;

/// How long requests that are under way may take to end once nothing is owned any more.
const GRACE: Duration = Duration::from_secs(5);

/// A pod's sidecar that has its socket and does not run yet.
#[derive(Debug)]
pub struct BoundPod {
    sidecar: Sidecar,
    section: config::Pod,
}

/// A running sidecar.
#[derive(Debug)]
pub struct PodRole {
    handle: PodHandle,
    shutdown: CancellationToken,
    shutdown_timeout: Duration,
    server: JoinHandle<()>,
}

impl BoundPod {
    /// Binds the address that routers reach.
    pub async fn bind(section: &config::Pod, certificates: &Certificates) -> anyhow::Result<Self> {
        let sidecar = Sidecar::bind(section.listen, certificates.pod.clone()).await;
        let sidecar = sidecar.with_context(|| format!("pod.listen: cannot listen on {}", section.listen))?;
        Ok(BoundPod { sidecar, section: section.clone() })
    }

    /// Starts it.
    pub fn start(self, store: Arc<dyn Store>, keyspace: &str, keys: Keyspace) -> anyhow::Result<PodRole> {
        let section = self.section;
        let hooks = Hooks::new(section.hooks.warm, section.hooks.sync, section.hooks.release)?;
        let settings = PodSettings {
            name: section.name,
            address: section.advertise,
            lease_ttl: section.lease_ttl,
            weight: section.weight,
            zone: section.zone,
            capabilities: hooks.capabilities(),
        };
        let upstream = section.upstream.parse().context("pod.upstream")?;
        let handle = PodHandle::start(store, keyspace, keys, settings, Arc::new(hooks));
        let shutdown = CancellationToken::new();
        let server = tokio::spawn(self.sidecar.serve(handle.layer(), upstream, shutdown.clone(), GRACE));
        Ok(PodRole { handle, shutdown, shutdown_timeout: section.shutdown_timeout, server })
    }
}

impl PodRole {
    /// What the admin endpoint shows of it.
    pub fn part(&self) -> Arc<dyn Part> {
        Arc::new(PodPart { handle: self.handle.clone(), state: self.handle.status() })
    }

    /// Hands its partitions over, then stops serving, then deregisters.
    pub async fn stop(self) {
        self.handle.shutdown(self.shutdown_timeout).await;
        self.shutdown.cancel();
        // It ends by itself now; a panic in it has been reported by the runtime.
        let _ = self.server.await;
    }
}

struct PodPart {
    handle: PodHandle,
    state: watch::Receiver<PodState>,
}

impl Part for PodPart {
    fn name(&self) -> &'static str {
        "pod"
    }

    fn ready(&self) -> Result<(), String> {
        self.state.borrow().not_ready.clone().map_or(Ok(()), Err)
    }

    fn status(&self) -> Value {
        let state = self.state.borrow();
        json!({
            "not_ready": state.not_ready,
            "incarnation": state.incarnation,
            "draining": state.draining,
            "owned": state.owned.iter().map(|(partition, epoch)| json!({ "partition": partition, "epoch": epoch })).collect::<Vec<_>>(),
            "in_flight": self.handle.ownership().total_in_flight(),
            "lease_remaining_ms": state.lease_remaining().as_millis() as u64,
            "resyncs": state.resyncs,
        })
    }
}
