//! The running roles of a process, over all its keyspaces.
//!
//! # Invariants
//!
//! * They end in the order that loses nothing: pods hand over while routers and coordinators run, and the router ends with
//!   its last request before the coordinators stop.

use std::sync::Arc;

use tokio_util::task::AbortOnDropHandle;
use tracing::info;

use super::coordinator::CoordinatorRole;
use super::keyspace::RoleKeyspace;
use super::pod::PodRole;
use super::readiness::tell_readiness;
use super::router::{RouterRole, Succession};
use crate::admin::StatusSource;

/// The roles that run.
#[derive(Debug, Default)]
pub(crate) struct RunningRoles {
    /// The sidecar of a pod.
    pub pod: Option<PodRole>,
    /// The router of all keyspaces.
    pub router: Option<RouterRole>,
    /// The coordinators of all keyspaces.
    pub coordinator: Option<CoordinatorRole>,
}

impl RunningRoles {
    /// Returns the roles' parts of the admin endpoint in the keyspace of this number.
    pub(crate) fn sources(&self, keyspace: usize) -> Vec<Arc<dyn StatusSource>> {
        let roles = [
            self.router.as_ref().map(|router| router.status_sources().collect()),
            self.coordinator.as_ref().map(CoordinatorRole::status_sources),
            self.pod.as_ref().map(PodRole::status_sources),
        ];
        roles.into_iter().flatten().filter_map(|sources| sources.into_iter().nth(keyspace)).collect()
    }

    /// Tells the log of each role that is not ready, until the handle is dropped.
    pub(crate) fn tell_readiness(&self, keyspaces: &[RoleKeyspace]) -> AbortOnDropHandle<()> {
        let sources = |(number, keyspace): (usize, &RoleKeyspace)| {
            let span = keyspace.span();
            self.sources(number).into_iter().map(move |source| (span.clone(), source)).collect::<Vec<_>>()
        };
        let told = keyspaces.iter().enumerate().flat_map(sources).collect();
        AbortOnDropHandle::new(tokio::spawn(tell_readiness(told)))
    }

    /// Stops the roles, those of all keyspaces side by side. `service_ended` states that the pod's service has ended by
    /// itself.
    pub(crate) async fn stop(self, service_ended: bool, leaving: Succession) {
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
