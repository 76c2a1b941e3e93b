//! The lease that a sidecar lends to its service. The service is told until when it may write, and stops by itself
//! unless it is told again. Its writes therefore end with the lease even if the sidecar dies or is stopped.
//!
//! # Invariants
//!
//! * A moment that the service was told, or may have been told, counts until it has passed or the service has confirmed
//!   its end.
//! * A moment sent without a response counts until it has passed: the service may read it after it has confirmed the
//!   end.
//! * Nothing is lent beyond the moment at which the pod's own work would have to end.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::task::AbortOnDropHandle;
use tracing::{info, warn};

use super::http_hooks::{ConnectionReuse, HookClient, HookError, HookUrl};
use crate::session::{boottime, lease_now, wakes_at};

/// How long the service may take to confirm a lease.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(1);
/// Pause between two attempts to reach the service.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// A lease lent to a service. The service is told for as long as this exists.
#[derive(Debug)]
pub struct LentLease {
    target: Arc<watch::Sender<TargetLease>>,
    told: watch::Receiver<ToldLease>,
    _task: AbortOnDropHandle<()>,
}

/// The lease that the service should have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TargetLease {
    Until(Instant),
    /// The service must not write.
    Nothing,
    /// The service must not write, and nothing is lent before [`LentLease::ready`].
    Ended,
}

/// The lease that the service was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct ToldLease {
    /// The latest moment that the service may have been told.
    until: Option<Instant>,
    /// The latest moment that the service has confirmed.
    confirmed: Option<Instant>,
    /// The service has confirmed that it may not write.
    stopped: bool,
}

impl LentLease {
    /// Returns a lease that is lent to the service by `POST` to `url`, with the secret in `secret_file`.
    pub fn new(url: HookUrl, secret_file: Option<PathBuf>) -> Self {
        let (target, targets) = watch::channel(TargetLease::Ended);
        let (sender, told) = watch::channel(ToldLease::default());
        let task = AbortOnDropHandle::new(tokio::spawn(tell(url, secret_file, targets, sender)));
        LentLease { target: Arc::new(target), told, _task: task }
    }

    /// Returns once the service has confirmed that it does not write. A service that was lent time by an earlier
    /// sidecar stops.
    pub async fn ready(&self) {
        self.target.send_replace(TargetLease::Nothing);
        self.until(|told| told.stopped).await;
    }

    /// Lets the service write until this moment. Has no effect after [`end`](Self::end).
    pub fn lend(&self, until: Instant) {
        self.target.send_if_modified(|target| {
            let later = match target {
                TargetLease::Ended => false,
                TargetLease::Nothing => true,
                TargetLease::Until(known) => *known < until,
            };
            if later {
                *target = TargetLease::Until(until);
            }
            later
        });
    }

    /// Returns the latest moment until which the service has confirmed that it may write.
    pub fn confirmed(&self) -> Option<Instant> {
        self.told.borrow().confirmed
    }

    /// Returns once the confirmed lease has run out, so that the service may not write although it should. A service
    /// that has confirmed nothing has as long as it was lent first.
    pub async fn ran_out(&self) {
        let mut first = None;
        loop {
            let told = *self.told.borrow();
            let over = match (told.confirmed, told.until) {
                (Some(confirmed), _) => confirmed,
                // Repeated lending must not postpone the end.
                (None, Some(until)) if !told.stopped => *first.get_or_insert(until),
                // Nothing is lent.
                (None, _) => {
                    self.until(|told| !told.stopped && told.until.is_some()).await;
                    continue;
                }
            };
            if over <= lease_now() {
                return;
            }
            sleep_until(wakes_at(over)).await;
        }
    }

    /// Lends no more. Returns once the service has confirmed that and has responded to all earlier calls, or once what
    /// it was told has run out.
    pub async fn end(&self) {
        self.target.send_replace(TargetLease::Ended);
        loop {
            let told = *self.told.borrow();
            let Some(over) = told.until.filter(|over| *over > lease_now()) else { return };
            tokio::select! {
                biased;
                () = sleep_until(wakes_at(over)) => {}
                () = self.until(|now| now.until != told.until) => {}
            }
        }
    }

    async fn until(&self, condition: impl Fn(&ToldLease) -> bool + Send) {
        if self.told.clone().wait_for(|told| condition(told)).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

async fn tell(
    url: HookUrl,
    secret_file: Option<PathBuf>,
    mut targets: watch::Receiver<TargetLease>,
    told: watch::Sender<ToldLease>,
) {
    let client = HookClient::new(secret_file, ConnectionReuse::OnePerCall);
    let mut failing = false;
    // The latest moment sent without a response: the service may read it after a later call.
    let mut unanswered: Option<Instant> = None;
    loop {
        let target = {
            let target = targets.borrow_and_update();
            // Recorded before the wish can change: `end` must not miss what is about to be sent.
            if let TargetLease::Until(until) = *target {
                told.send_modify(|told| {
                    *told = ToldLease { until: told.until.max(Some(until)), stopped: false, ..*told }
                });
            }
            *target
        };
        let lent = match target {
            TargetLease::Until(until) => Some(until),
            // Nothing was lent, so the service need not be told.
            TargetLease::Ended if told.borrow().until.is_none() => {
                if targets.changed().await.is_err() {
                    return;
                }
                continue;
            }
            TargetLease::Nothing | TargetLease::Ended => None,
        };
        let left = lent.map_or(Duration::ZERO, |until| until.saturating_duration_since(lease_now()));
        let body = serde_json::json!({
            "ttl_ms": left.as_millis() as u64,
            "until_boottime_ms": lent.map_or(0, boottime_millis),
        });
        match post(&client, &url, &body).await {
            Ok(()) => {
                if std::mem::take(&mut failing) {
                    info!(%url, "service confirms its lease again");
                }
                told.send_modify(|told| match lent {
                    Some(_) => told.confirmed = lent,
                    None => {
                        *told = ToldLease { until: unanswered.filter(is_ahead), stopped: true, ..ToldLease::default() }
                    }
                });
                if targets.changed().await.is_err() {
                    return;
                }
            }
            Err(error) => {
                if matches!(error, HookError::Timeout { .. } | HookError::Exchange { .. }) {
                    unanswered = unanswered.max(lent);
                }
                if !std::mem::replace(&mut failing, true) {
                    warn!(%error, "service cannot be told its lease; retrying");
                }
                sleep(RETRY_PAUSE).await;
                if target == TargetLease::Ended && told.borrow().until.is_some_and(|until| until <= lease_now()) {
                    told.send_replace(ToldLease::default());
                }
            }
        }
    }
}

async fn post(client: &HookClient, url: &HookUrl, body: &serde_json::Value) -> Result<(), HookError> {
    let responded = timeout(RESPONSE_TIMEOUT, client.post(url, body, false)).await;
    let (status, _) = responded.map_err(|_| HookError::Timeout { url: url.clone(), limit: RESPONSE_TIMEOUT })??;
    if status.is_success() {
        return Ok(());
    }
    Err(HookError::Status { url: url.clone(), status, detail: String::new() })
}

fn is_ahead(at: &Instant) -> bool {
    *at > lease_now()
}

/// Returns a moment of a lease in milliseconds of `CLOCK_BOOTTIME`, which all processes of a host share and which
/// includes suspended time.
pub fn boottime_millis(at: Instant) -> u64 {
    // Read first: time between the two readings makes the moment earlier, never later.
    let now = boottime();
    (now + at.saturating_duration_since(lease_now())).as_millis() as u64
}
