//! Follows the service behind a pod: whether it accepts requests, and whether the pod gives its partitions up for it.
//!
//! A service that is down does nothing for its partitions. One that says that it is unhealthy may still serve them, and what
//! makes it say so may make all others say so. So the pod gives way only while another pod is ready, and goes on otherwise.
//!
//! # Invariants
//!
//! * Of several pods whose services all say that they are unhealthy, one goes on. The store decides which: a pod refuses
//!   requests only once it has marked its registration as one that gives way, in a transaction that requires another one
//!   which is ready and has no such mark ([`give_way`]).

use std::pin::Pin;
use std::time::Duration;

use futures_util::FutureExt as _;
use segue_protocol::ids::LeaseId;
use segue_protocol::registration::give_way;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use super::driver::{Driver, End};
use super::service::Service;
use crate::session::{RepeatedLog, StoreRetry};
use crate::store::StoreError;

/// How often a pod whose service is unhealthy looks for another pod.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// The state of the service, by the event that is awaited next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Watched {
    /// The service accepts requests. Awaits its end, or that it says that it is unhealthy.
    Up,
    /// The service says that it is unhealthy. Awaits the store's answer whether the pod may give way.
    Yielding,
    /// The service says that it is unhealthy, and no other pod is ready. Awaits the time to look again.
    Spared,
    /// The service is down. The pod cannot vouch for the end of its work, so it stays registered and hands over until
    /// the service is up.
    Sick,
    /// The service is down. Awaits the end of its work.
    Settling,
    /// The pod is ending. Awaits the end of the service's work.
    Parting,
}

/// An event that was awaited.
#[derive(Debug)]
pub(super) enum Turn {
    Down,
    Unhealthy,
    /// Whether the pod gives way.
    Answered(Result<bool, StoreError>),
    LookAgain,
    Up,
    Settled,
}

/// The store has not answered whether the pod may give way.
#[derive(Debug, Default)]
pub(super) struct Unanswered {
    retry: StoreRetry,
    log: RepeatedLog,
    /// How long it is not asked.
    pause: Duration,
}

/// The wait for an event.
pub(super) type Turning = Pin<Box<dyn Future<Output = Turn> + Send>>;

/// Waits for an event, or for the end of the service if that comes first.
async fn or_down(service: &dyn Service, event: impl Future<Output = Turn>) -> Turn {
    tokio::select! {
        biased;
        () = service.down() => Turn::Down,
        turn = event => turn,
    }
}

impl Driver {
    /// Returns the state of the service, which may be another one if this one is over, and the wait for its end.
    pub(super) fn watch(&mut self, next: Watched) -> (Watched, Turning) {
        let (service, store) = (self.service.clone(), self.store.clone());
        let turning: Turning = match next {
            Watched::Yielding => {
                let lease = self.lease.unwrap_or(LeaseId::NONE);
                let Some(txn) = give_way(&self.view, &self.settings.name, self.incarnation, lease) else {
                    return self.watch(Watched::Spared);
                };
                // Before the view shows the mark, which would be removed otherwise.
                self.gives_way = true;
                Box::pin(async move {
                    let commit = store.commit(txn);
                    or_down(&*service, commit.map(|outcome| Turn::Answered(outcome.map(|it| it.committed())))).await
                })
            }
            Watched::Up => {
                self.gives_way = false;
                Box::pin(async move { or_down(&*service, service.unhealthy().map(|()| Turn::Unhealthy)).await })
            }
            Watched::Spared => {
                self.gives_way = false;
                let pause = LOOK_INTERVAL.max(self.unanswered.pause);
                Box::pin(async move { or_down(&*service, sleep(pause).map(|()| Turn::LookAgain)).await })
            }
            Watched::Sick => Box::pin(async move { service.up().map(|()| Turn::Up).await }),
            Watched::Settling | Watched::Parting => {
                let by = if next == Watched::Parting { self.ends_by() } else { Instant::now() };
                Box::pin(async move { service.settle(by).map(|()| Turn::Settled).await })
            }
        };
        (next, turning)
    }

    /// Acts on the event that was awaited of the service. Returns its next state.
    pub(super) fn service_turned(&mut self, watched: Watched, turn: Turn) -> Result<Watched, End> {
        match (watched, turn) {
            (Watched::Settling, _) => {
                self.registration_gone("service is down");
                Err(End::ServiceDown)
            }
            (Watched::Parting, _) => Err(End::Shutdown),
            (Watched::Sick, _) => {
                self.refuse(false, "service is up again");
                Ok(Watched::Up)
            }
            (_, Turn::Unhealthy) => {
                warn!("service says that it is unhealthy; giving its partitions up if another pod is ready");
                Ok(Watched::Yielding)
            }
            (_, Turn::LookAgain) if self.service.is_unhealthy() => Ok(Watched::Yielding),
            (_, Turn::LookAgain) => {
                info!("service is healthy again");
                Ok(Watched::Up)
            }
            (_, Turn::Answered(Err(error))) => {
                self.unanswered.pause = self.unanswered.retry.next_after(&error);
                if self.unanswered.log.is_due(&error) {
                    warn!(%error, "the store does not say whether the pod may give its partitions up; going on");
                }
                Ok(Watched::Spared)
            }
            (_, Turn::Answered(Ok(gives_way))) => {
                self.unanswered.retry.reset();
                self.unanswered.pause = Duration::ZERO;
                Ok(if gives_way { self.give_up(true) } else { Watched::Spared })
            }
            (_, Turn::Down | Turn::Up | Turn::Settled) => Ok(self.give_up(false)),
        }
    }

    /// Refuses requests from now on, because of the service. Returns what is awaited next.
    fn give_up(&mut self, is_unhealthy: bool) -> Watched {
        let has_fence = self.settings.capabilities.fence;
        let why = match (is_unhealthy, has_fence) {
            (false, true) => "service is down; deregistering once its work has ended",
            (false, false) => "service is down; handing partitions over",
            (true, true) => "service is unhealthy; deregistering once its work has ended",
            (true, false) => "service is unhealthy; handing partitions over",
        };
        self.refuse(true, why);
        if has_fence { Watched::Settling } else { Watched::Sick }
    }

    fn refuse(&mut self, refusing: bool, why: &str) {
        warn!("{why}");
        self.refusing = refusing;
        self.gives_way &= refusing;
        self.drains_for_service |= self.is_sick() && !self.is_draining();
        self.reconcile_all();
    }
}
