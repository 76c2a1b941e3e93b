//! The running roles of a process, over all its keyspaces.
//!
//! # Invariants
//!
//! * They end in the order that loses nothing: pods hand over while routers and coordinators run, and the router ends with
//!   its last request before the coordinators stop.

use std::collections::BTreeMap;
use std::sync::Arc;

use prometheus_client::registry::Registry;
use tokio_util::task::AbortOnDropHandle;
use tracing::info;

use super::coordinator::CoordinatorRole;
use super::keyspace::RoleKeyspace;
use super::pod::PodRole;
use super::readiness::tell_readiness;
use super::router::{RouterRole, Succession};
use crate::admin::StatusSource;
use crate::process::supervise::UnexpectedExit;

/// The roles that run.
#[derive(Debug, Default)]
pub(crate) struct RunningRoles {
    /// The sidecar of a pod.
    pub pod: Option<PodRole>,
    /// The router of all keyspaces.
    pub router: Option<RouterRole>,
    /// The coordinators of all keyspaces.
    pub coordinator: Option<CoordinatorRole>,
    /// Tells of their readiness, by keyspace.
    pub readiness: BTreeMap<String, AbortOnDropHandle<()>>,
}

impl RunningRoles {
    /// Returns the roles' parts of the admin endpoint in a keyspace.
    pub(crate) fn sources(&self, keyspace: &str) -> Vec<Arc<dyn StatusSource>> {
        let roles = [
            self.router.as_ref().and_then(|router| router.status_source(keyspace)),
            self.coordinator.as_ref().and_then(|coordinator| coordinator.status_source(keyspace)),
            self.pod.as_ref().and_then(|pod| pod.status_source(keyspace)),
        ];
        roles.into_iter().flatten().collect()
    }

    /// Tells the log of each role that is not ready in a keyspace, until the part in it ends.
    pub(crate) fn tell_readiness(&mut self, keyspace: &RoleKeyspace) {
        let name = &keyspace.section.name;
        let told = self.sources(name).into_iter().map(|source| (keyspace.span(), source)).collect();
        self.readiness.insert(name.clone(), AbortOnDropHandle::new(tokio::spawn(tell_readiness(told))));
    }

    /// Completes once the supervised service of the pod has ended by itself.
    pub(crate) fn service_ended(&self) -> impl Future<Output = UnexpectedExit> + use<> {
        let ended = self.pod.as_ref().map(PodRole::service_ended);
        async {
            match ended {
                Some(ended) => ended.await,
                None => std::future::pending().await,
            }
        }
    }

    /// Takes part in one more keyspace of a list, with every role.
    pub(crate) async fn add(&mut self, keyspace: &mut RoleKeyspace) -> anyhow::Result<()> {
        // A keyspace of a list registers nothing here.
        let process = &mut Registry::default();
        if let Some(coordinator) = &mut self.coordinator {
            coordinator.add(keyspace, process);
        }
        if let Some(pod) = &mut self.pod {
            pod.add(keyspace, process);
        }
        if let Some(router) = &mut self.router {
            router.add(keyspace, process).await?;
        }
        self.tell_readiness(keyspace);
        Ok(())
    }

    /// Ends the part of the router and of the coordinator in a keyspace. Its requests end while its partitions still move.
    pub(crate) async fn remove(&mut self, keyspace: &str) {
        self.readiness.remove(keyspace);
        if let Some(router) = &mut self.router {
            router.remove(keyspace).await;
        }
        if let Some(coordinator) = &mut self.coordinator {
            coordinator.remove(keyspace).await;
        }
    }

    /// Stops the roles, those of all keyspaces side by side. `service_ended` states that the pod's service has ended by
    /// itself.
    pub(crate) async fn stop(self, service_ended: bool, leaving: Succession) {
        // A role that ends is not ready.
        drop(self.readiness);
        if let Some(pod) = self.pod {
            info!("handing partitions over");
            pod.stop(service_ended).await;
        }
        if let Some(router) = self.router {
            info!("finishing requests");
            router.stop(leaving).await;
        }
        if let Some(coordinator) = self.coordinator {
            coordinator.stop().await;
        }
    }
}
