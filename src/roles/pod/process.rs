//! The process of the service behind a sidecar: whether it accepts requests, and what ends its work as a whole.
//!
//! Not here: what a service does in one keyspace ([`behind`](super::behind)), and how the pods of several keyspaces share
//! a process ([`shares`](super::shares)).
//!
//! # Invariants
//!
//! * [`ServiceProcess::settle`] returns only when all processes of the service are dead, or the service has confirmed
//!   that it does not write, or the lease it was lent has run out. Without a supervisor and a lent lease it ends nothing.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use segue_config as config;
use segue_coordination::pod::{LentLease, Service};
use segue_proxy::sidecar::{HealthCheck, Upstream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, sleep};
use tracing::{error, warn};

use crate::process::supervise::{Supervisor, UnexpectedExit};

/// How long a service that was told to end may take, if its pod's time allows for more.
const END_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause between two attempts to start a service.
const START_RETRY_PAUSE: Duration = Duration::from_secs(1);

/// The signals that are passed on to a supervised service. The signals that end this process end the service later.
const PASSED_ON: [SignalKind; 4] =
    [SignalKind::hangup(), SignalKind::user_defined1(), SignalKind::user_defined2(), SignalKind::window_change()];

#[derive(Debug)]
pub(super) struct ServiceProcess {
    health: HealthCheck,
    supervisor: Option<Arc<Supervisor>>,
    lent: Option<LentLease>,
}

impl ServiceProcess {
    /// Without a supervisor that is given, the service has one if the section says so. Requires a runtime.
    pub(super) fn new(
        section: &config::Pod,
        upstream: Upstream,
        given: Option<Arc<Supervisor>>,
    ) -> anyhow::Result<Self> {
        let own = section.exec.clone().filter(|_| given.is_none()).map(Supervisor::new).transpose()?;
        let supervisor = given.or(own.map(Arc::new));
        if let Some(supervisor) = &supervisor {
            for kind in PASSED_ON {
                let (mut signals, supervisor) = (signal(kind)?, supervisor.clone());
                tokio::spawn(async move {
                    while signals.recv().await.is_some() {
                        supervisor.signal(kind.as_raw_value());
                    }
                });
            }
        }
        Ok(ServiceProcess {
            health: HealthCheck::watch(upstream, section.health.clone()),
            supervisor,
            lent: section.hooks.lease.clone().map(|url| LentLease::new(url, section.hooks.secret_file.clone())),
        })
    }

    /// Returns whether the service accepts connections.
    pub(super) fn is_up(&self) -> bool {
        self.health.is_up()
    }

    /// Returns once the service accepts connections.
    pub(super) async fn accepts_connections(&self) {
        self.health.up().await;
    }

    /// Returns whether all of the service's work ends with its processes, in every keyspace.
    pub(super) fn is_supervised(&self) -> bool {
        self.supervisor.is_some()
    }

    /// Returns whether the service is told until when it may write, in every keyspace.
    pub(super) fn is_lent_time(&self) -> bool {
        self.lent.is_some()
    }

    /// Returns once a supervised service has ended by itself.
    pub(super) async fn ended(&self) -> UnexpectedExit {
        match &self.supervisor {
            Some(supervisor) => supervisor.ended().await,
            None => std::future::pending().await,
        }
    }
}

#[async_trait]
impl Service for ServiceProcess {
    async fn up(&self) {
        match &self.supervisor {
            None => self.health.up().await,
            Some(supervisor) => loop {
                while let Err(error) = supervisor.start().await {
                    error!(%error, "cannot start the service; retrying");
                    sleep(START_RETRY_PAUSE).await;
                }
                tokio::select! {
                    () = self.health.up() => break,
                    () = supervisor.awaits_restart() => {}
                }
            },
        }
        if let Some(lent) = &self.lent {
            lent.ready().await;
        }
    }

    async fn down(&self) {
        let stopped = async {
            match &self.supervisor {
                Some(supervisor) => supervisor.stopped().await,
                None => std::future::pending().await,
            }
        };
        let ran_out = async {
            match &self.lent {
                Some(lent) => lent.ran_out().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.health.down() => {}
            () = stopped => {}
            () = ran_out => warn!("service does not confirm its lent lease"),
        }
    }

    async fn unhealthy(&self) {
        self.health.unhealthy().await;
    }

    fn is_unhealthy(&self) -> bool {
        self.health.is_unhealthy()
    }

    fn lend(&self, until: Instant) {
        if let Some(supervisor) = &self.supervisor {
            supervisor.lend(until);
        }
        if let Some(lent) = &self.lent {
            lent.lend(until);
        }
    }

    async fn settle(&self, by: Instant) {
        if let Some(supervisor) = &self.supervisor {
            supervisor.end(by.min(Instant::now() + END_TIMEOUT)).await;
            self.health.forget();
        } else if let Some(lent) = &self.lent {
            lent.end().await;
        }
    }
}
