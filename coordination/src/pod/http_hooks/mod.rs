//! The handler of the sidecar. It calls a service that is not linked with Segue by HTTP when partitions come and go.
//!
//! Each hook is a `POST` with `{"keyspace","partition","epoch","handoff"}`. [`Answer`] lists what a response can mean:
//! done, in progress, failed, failed for good. A failed call is repeated, so a hook must be idempotent. A hook that is
//! not set counts as done.
//!
//! Not here: the proxy in front of the service; `drained`, which the layer can acknowledge for a service that responds
//! only when its work is done; the lease that a service is lent ([`LentLease`](super::LentLease)).
//!
//! # Invariants
//!
//! * A call has succeeded only if a complete response of the service means done.
//! * A call takes no longer than its hook's timeout, however often the service reports progress.

mod answer;
mod client;
mod reports;
mod settings;

pub use client::HookError;
pub use reports::{HookReport, HookReports};
pub use settings::{Hook, HookSettings, HookUrl, HookUrlError, MAX_SOCKET_PATH, SECRET_HEADER};

pub(super) use client::{Connections, HookClient};

use std::time::Duration;

use async_trait::async_trait;
use segue_protocol::back_off::BackOff;
use segue_protocol::handoff::pod_reconcile::Callback;
use segue_protocol::records::Capabilities;
use serde_json::Value;
use tokio::time::{sleep, timeout};

use self::answer::{Answer, Progress};
use self::reports::Running;
use super::{HandlerError, HandoffContext, HandoffHandler, PermanentFailure};

/// Pauses between two requests of a call in progress. They are short at first, because requests wait for `sync` and
/// `drain`.
const ASK_AGAIN: BackOff = BackOff { first: Duration::from_millis(50), longest: Duration::from_secs(1) };

/// The hooks of a service.
#[derive(Debug, Clone)]
pub struct Hooks {
    settings: HookSettings,
    client: HookClient,
    reports: HookReports,
}

impl Hooks {
    /// Returns the hooks with these settings.
    pub fn new(settings: HookSettings) -> Self {
        let client = HookClient::new(settings.secret_file.clone(), Connections::Reused);
        Hooks { settings, client, reports: HookReports::default() }
    }

    /// Returns the reports of the calls that have not succeeded yet.
    pub fn reports(&self) -> &HookReports {
        &self.reports
    }

    async fn call(&self, callback: Callback, context: &HandoffContext) -> Result<(), HandlerError> {
        let hook = self.settings.of(callback);
        let running = self.reports.begin(callback, context);
        let Some(hook) = hook else {
            running.end(&Ok(()));
            return Ok(());
        };
        let HandoffContext { keyspace, partition, epoch, handoff } = context;
        let body = serde_json::json!({
            "keyspace": keyspace, "partition": partition, "epoch": epoch, "handoff": handoff,
        });
        let mut progress = None;
        let asked = timeout(hook.timeout, self.ask(hook, &body, &running, &mut progress)).await;
        let result = asked.unwrap_or_else(|_| {
            let (url, limit) = (hook.url.clone(), hook.timeout);
            Err(match progress.take() {
                None => HookError::Timeout { url, limit },
                Some(said) => HookError::Unfinished { url, limit, said: Progress::to_string(&said) },
            })
        });
        running.end(&result);
        match result {
            Ok(()) => Ok(()),
            // Only a new owner can be replaced by another pod.
            Err(HookError::Permanent { reason, .. }) if matches!(callback, Callback::Warm | Callback::Sync) => {
                Err(PermanentFailure::new(reason).into())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Repeats the request until the service is done or has failed.
    async fn ask(
        &self,
        hook: &Hook,
        body: &Value,
        running: &Running<'_>,
        last: &mut Option<Progress>,
    ) -> Result<(), HookError> {
        let mut asked = 0;
        loop {
            let (status, text) = self.client.post(&hook.url, body).await?;
            let url = || hook.url.clone();
            match Answer::of(status, &text) {
                Answer::Done => return Ok(()),
                Answer::AtWork(progress) => {
                    running.says(&progress);
                    *last = Some(progress);
                }
                Answer::Permanent { reason } => return Err(HookError::Permanent { url: url(), reason }),
                Answer::Failed { detail } => return Err(HookError::Status { url: url(), status, detail }),
                Answer::Unreadable { why } => return Err(HookError::Unreadable { url: url(), status, why }),
            }
            asked += 1;
            sleep(ASK_AGAIN.after(asked)).await;
        }
    }
}

impl HookSettings {
    /// Returns the capabilities of a pod with these hooks: `sync` only with a hook for it. `fence` states that
    /// something ends the service's work in time even if the sidecar is dead.
    pub fn capabilities(&self, fence: bool) -> Capabilities {
        Capabilities { sync: self.sync.is_some(), fence, ..Capabilities::ALL }
    }
}

#[async_trait]
impl HandoffHandler for Hooks {
    async fn warm(&self, context: &HandoffContext) -> Result<(), HandlerError> {
        self.call(Callback::Warm, context).await
    }

    async fn sync(&self, context: &HandoffContext) -> Result<(), HandlerError> {
        self.call(Callback::Sync, context).await
    }

    async fn drain(&self, context: &HandoffContext) -> Result<(), HandlerError> {
        self.call(Callback::Drain, context).await
    }

    async fn release(&self, context: &HandoffContext) -> Result<(), HandlerError> {
        self.call(Callback::Release, context).await
    }
}
