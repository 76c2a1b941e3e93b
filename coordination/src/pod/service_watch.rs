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

use std::future::pending;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use segue_protocol::ids::LeaseId;
use segue_protocol::registration::give_way;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use super::membership::Membership;
use super::service::Service;
use crate::session::{RepeatedLog, StoreRetry};
use crate::store::{Store, StoreError};

/// How often a pod whose service is unhealthy looks for another pod.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// The state of the service, by the event that is awaited next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ServicePhase {
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
pub(super) enum ServiceTurn {
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
struct GiveWayRetry {
    retry: StoreRetry,
    log: RepeatedLog,
    /// How long it is not asked.
    pause: Duration,
}

/// The wait for an event.
type NextTurn = Pin<Box<dyn Future<Output = ServiceTurn> + Send>>;

/// Waits for an event, or for the end of the service if that comes first.
async fn or_down(service: &dyn Service, event: impl Future<Output = ServiceTurn>) -> ServiceTurn {
    tokio::select! {
        biased;
        () = service.down() => ServiceTurn::Down,
        turn = event => turn,
    }
}

/// The pod's reaction to an event of its service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reaction {
    GoOn,
    /// It admits requests again, or none any more, as its [`Membership`] says by now.
    Reconsider,
    /// The service is down, and nothing that it was given can take effect any more: the pod deregisters.
    Deregister,
    /// The pod was ending, and the service's work has ended.
    ShutDown,
}

/// The service of a pod, as it is followed.
pub(super) struct ServiceWatch {
    service: Arc<dyn Service>,
    store: Arc<dyn Store>,
    watched: ServicePhase,
    turning: NextTurn,
    unanswered: GiveWayRetry,
}

impl ServiceWatch {
    pub(super) fn of(service: Arc<dyn Service>, store: Arc<dyn Store>) -> Self {
        ServiceWatch {
            service,
            store,
            watched: ServicePhase::Up,
            turning: Box::pin(pending()),
            unanswered: GiveWayRetry::default(),
        }
    }

    /// Follows the service, which is up, from now on.
    pub(super) fn begin(&mut self, pod: &mut Membership) {
        self.watch(ServicePhase::Up, pod);
    }

    /// Stops watching the service, because the pod's life is over.
    pub(super) fn end(&mut self) {
        self.turning = Box::pin(pending());
    }

    /// Awaits the end of the service's work, as the pod is ending.
    pub(super) fn part(&mut self, pod: &mut Membership) {
        if self.watched != ServicePhase::Parting {
            self.watch(ServicePhase::Parting, pod);
        }
    }

    /// Returns the next event of the service. Cancel-safe.
    pub(super) async fn turned(&mut self) -> ServiceTurn {
        (&mut self.turning).await
    }

    /// Goes over to this state of the service, or to another one if it is over already.
    fn watch(&mut self, next: ServicePhase, pod: &mut Membership) {
        let (service, store) = (self.service.clone(), self.store.clone());
        self.turning = match next {
            ServicePhase::Yielding => {
                let lease = pod.lease.unwrap_or(LeaseId::NONE);
                let Some(txn) = give_way(&pod.view, &pod.settings.name, pod.incarnation, lease) else {
                    return self.watch(ServicePhase::Spared, pod);
                };
                // Before the view shows the mark, which would be removed otherwise.
                pod.gives_way = true;
                Box::pin(async move {
                    let commit = store.commit(txn);
                    or_down(&*service, commit.map(|outcome| ServiceTurn::Answered(outcome.map(|it| it.committed()))))
                        .await
                })
            }
            ServicePhase::Up => {
                pod.gives_way = false;
                Box::pin(async move { or_down(&*service, service.unhealthy().map(|()| ServiceTurn::Unhealthy)).await })
            }
            ServicePhase::Spared => {
                pod.gives_way = false;
                let pause = LOOK_INTERVAL.max(self.unanswered.pause);
                Box::pin(async move { or_down(&*service, sleep(pause).map(|()| ServiceTurn::LookAgain)).await })
            }
            ServicePhase::Sick => Box::pin(async move { service.up().map(|()| ServiceTurn::Up).await }),
            ServicePhase::Settling | ServicePhase::Parting => {
                let by = if next == ServicePhase::Parting { pod.ends_by() } else { Instant::now() };
                Box::pin(async move { service.settle(by).map(|()| ServiceTurn::Settled).await })
            }
        };
        self.watched = next;
    }

    /// Acts on an event of the service.
    pub(super) fn act(&mut self, turn: ServiceTurn, pod: &mut Membership) -> Reaction {
        let (next, reaction) = match (self.watched, turn) {
            (ServicePhase::Settling, _) => return Reaction::Deregister,
            (ServicePhase::Parting, _) => return Reaction::ShutDown,
            (ServicePhase::Sick, _) => {
                warn!("service is up again");
                pod.refuse(false);
                (ServicePhase::Up, Reaction::Reconsider)
            }
            (_, ServiceTurn::Unhealthy) => {
                warn!("service says that it is unhealthy; giving its partitions up if another pod is ready");
                (ServicePhase::Yielding, Reaction::GoOn)
            }
            (_, ServiceTurn::LookAgain) if self.service.is_unhealthy() => (ServicePhase::Yielding, Reaction::GoOn),
            (_, ServiceTurn::LookAgain) => {
                info!("service is healthy again");
                (ServicePhase::Up, Reaction::GoOn)
            }
            (_, ServiceTurn::Answered(Err(error))) => {
                self.unanswered.pause = self.unanswered.retry.next_after(&error);
                if let Some(times) = self.unanswered.log.note(&error) {
                    warn!(%error, times, "the store does not say whether the pod may give its partitions up; going on");
                }
                (ServicePhase::Spared, Reaction::GoOn)
            }
            (_, ServiceTurn::Answered(Ok(gives_way))) => {
                self.unanswered.retry.reset();
                self.unanswered.pause = Duration::ZERO;
                if gives_way { give_up(pod, true) } else { (ServicePhase::Spared, Reaction::GoOn) }
            }
            (_, ServiceTurn::Down | ServiceTurn::Up | ServiceTurn::Settled) => give_up(pod, false),
        };
        self.watch(next, pod);
        reaction
    }
}

/// Refuses requests from now on, because of the service. Returns what is awaited next, and what the pod does.
fn give_up(pod: &mut Membership, is_unhealthy: bool) -> (ServicePhase, Reaction) {
    let has_fence = pod.settings.capabilities.fence;
    let why = match (is_unhealthy, has_fence) {
        (false, true) => "service is down; deregistering once its work has ended",
        (false, false) => "service is down; handing partitions over",
        (true, true) => "service is unhealthy; deregistering once its work has ended",
        (true, false) => "service is unhealthy; handing partitions over",
    };
    warn!("{why}");
    pod.refuse(true);
    (if has_fence { ServicePhase::Settling } else { ServicePhase::Sick }, Reaction::Reconsider)
}
