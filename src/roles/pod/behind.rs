//! The service behind a sidecar, as its pod sees it: whether it accepts requests, and what ends its work.
//!
//! # Invariants
//!
//! * A pod has the capability `fence` only if something ends the service's work in time even when this process is dead.
//! * [`Service::settle`] returns only when one of these holds: all processes of the service are dead; the service has
//!   confirmed that it does not write, or the lease it was lent has run out; its work has ended, or the bound that it
//!   declares on its work has passed.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use segue_config as config;
use segue_coordination::pod::{LentLease, Service};
use segue_proxy::sidecar::{Health, Upstream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, sleep};
use tracing::{error, warn};

use crate::supervise::{Ended, Supervisor};

/// How long a service that was told to end may take, if its pod's time allows for more.
const END_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause between two attempts to start a service.
const START_RETRY_PAUSE: Duration = Duration::from_secs(1);

/// The signals that are passed on to a supervised service. The signals that end this process end the service later.
const PASSED_ON: [SignalKind; 4] =
    [SignalKind::hangup(), SignalKind::user_defined1(), SignalKind::user_defined2(), SignalKind::window_change()];

#[derive(Debug)]
pub(super) struct Behind {
    upstream: Upstream,
    health: Health,
    supervisor: Option<Arc<Supervisor>>,
    lent: Option<LentLease>,
}

impl Behind {
    /// Requires a runtime.
    pub(super) fn new(section: &config::Pod, upstream: Upstream) -> anyhow::Result<Self> {
        let supervisor = section.exec.clone().map(Supervisor::new).transpose()?.map(Arc::new);
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
        Ok(Behind {
            health: Health::watch(upstream.clone(), section.health.clone()),
            supervisor,
            lent: section.hooks.lease.clone().map(|url| LentLease::new(url, section.hooks.secret_file.clone())),
            upstream,
        })
    }

    /// Returns in words what ends the service's work in time even if this process is dead.
    pub(super) fn vouches(section: &config::Pod) -> Option<&'static str> {
        let ways = [
            (section.exec.is_some(), "exec"),
            (section.hooks.lease.is_some(), "hooks.lease"),
            (section.work_ends_within.is_some(), "work_ends_within"),
        ];
        ways.into_iter().find(|(is_there, _)| *is_there).map(|(_, way)| way)
    }

    /// Returns why the service accepts no requests.
    pub(super) fn not_ready(&self) -> Option<String> {
        (!self.health.is_up()).then(|| format!("the service at {} is down", self.upstream.address))
    }

    /// Returns once a supervised service has ended by itself.
    pub(super) async fn ended(&self) -> Ended {
        match &self.supervisor {
            Some(supervisor) => supervisor.ended().await,
            None => std::future::pending().await,
        }
    }
}

#[async_trait]
impl Service for Behind {
    async fn up(&self) {
        if let Some(supervisor) = &self.supervisor {
            while let Err(error) = supervisor.start().await {
                error!(%error, "cannot start the service; retrying");
                sleep(START_RETRY_PAUSE).await;
            }
        }
        self.health.up().await;
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
        }
        if let Some(lent) = &self.lent
            && self.supervisor.is_none()
        {
            lent.end().await;
        }
        if let Some(bound) = self.upstream.work_ends_within
            && self.supervisor.is_none()
            && self.lent.is_none()
        {
            tokio::select! {
                () = self.upstream.traffic.ended() => {}
                () = self.upstream.traffic.silent_for(bound) => {}
            }
        }
    }
}
