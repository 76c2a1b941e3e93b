//! The handler of the sidecar. It calls a service that is not linked with Segue by HTTP when partitions come and go.
//!
//! Each hook is a `POST` with `{"keyspace","partition","partitions","epoch","handoff","from","to"}`, and `warm` also with the
//! newest `"checkpoint"` if there is one. [`HookAnswer`] lists what a response can mean: done, in progress, failed, failed for good.
//! A failed call is repeated, so a hook must be idempotent. A hook that is not set counts as done. The hook `load` reports
//! ([`LoadHook`]).
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
mod load;
mod reports;
mod settings;

pub use client::HookError;
pub use reports::{HookReport, HookReports};
pub use settings::{Hook, HookSettings, HookUrl, HookUrlError, MAX_SOCKET_PATH, SECRET_HEADER};

pub(super) use client::{ConnectionReuse, HookClient};

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::StatusCode;
use segue_protocol::back_off::BackOff;
use segue_protocol::handoff::pod_reconcile::Callback;
use segue_protocol::ids::PartitionId;
use segue_protocol::records::Capabilities;
use serde_json::Value;
use tokio::time::{sleep, timeout};

use self::answer::{HookAnswer, HookProgress, checkpoint_in};
use self::load::LoadHook;
use self::reports::CallReport;
use super::{CallbackHandler, HandlerError, HandoffContext, LoadReport, PermanentFailure, PodAddress};

/// Pauses between two requests of a call in progress. They are short at first, because requests wait for `sync` and
/// `drain`.
const ASK_AGAIN: BackOff = BackOff { first: Duration::from_millis(50), longest: Duration::from_secs(1) };

/// The hooks of a service.
#[derive(Debug, Clone)]
pub struct Hooks {
    settings: HookSettings,
    client: HookClient,
    reports: HookReports,
    load: Option<LoadHook>,
}

impl Hooks {
    /// Returns the hooks with these settings, for a pod of this keyspace.
    pub fn new(settings: HookSettings, keyspace: &str) -> Self {
        let client = HookClient::new(settings.secret_file.clone(), ConnectionReuse::Reused);
        let load = settings.load.clone().map(|url| LoadHook::new(url, client.clone(), keyspace));
        Hooks { settings, client, reports: HookReports::default(), load }
    }

    /// Returns the reports of the calls that have not succeeded yet.
    pub fn reports(&self) -> &HookReports {
        &self.reports
    }

    /// Repeats the request until the service is done or has failed.
    async fn ask(
        &self,
        callback: Callback,
        hook: &Hook,
        body: &Value,
        running: &CallReport<'_>,
        last: &mut Option<HookProgress>,
    ) -> Result<Option<String>, HookError> {
        let makes = callback == Callback::Checkpoint;
        let mut asked = 0;
        loop {
            let (status, text) = self.client.post(&hook.url, body, makes).await?;
            let url = || hook.url.clone();
            match HookAnswer::of(status, &text) {
                HookAnswer::Done if makes => return made(hook, status, &text),
                HookAnswer::Done => return Ok(None),
                HookAnswer::AtWork(progress) => {
                    running.says(&progress);
                    *last = Some(progress);
                }
                HookAnswer::Permanent { reason } => return Err(HookError::Permanent { url: url(), reason }),
                HookAnswer::Failed { detail } => return Err(HookError::Status { url: url(), status, detail }),
                HookAnswer::Unreadable { why } => return Err(HookError::Unreadable { url: url(), status, why }),
            }
            asked += 1;
            sleep(ASK_AGAIN.after(asked)).await;
        }
    }
}

/// Reads the response of a service that has made a checkpoint.
fn made(hook: &Hook, status: StatusCode, text: &Bytes) -> Result<Option<String>, HookError> {
    checkpoint_in(text).map_err(|why| HookError::Unreadable { url: hook.url.clone(), status, why })
}

impl HookSettings {
    /// Returns the capabilities of a pod with these hooks: `sync` and `checkpoint` only with a hook for them. `fence`
    /// states that something ends the service's work in time even if the sidecar is dead.
    pub fn capabilities(&self, fence: bool) -> Capabilities {
        let (sync, checkpoint) = (self.sync.is_some(), self.checkpoint.is_some());
        Capabilities { sync, fence, checkpoint, ..Capabilities::ALL }
    }
}

#[async_trait]
impl CallbackHandler for Hooks {
    fn has(&self, callback: Callback) -> bool {
        self.settings.of(callback).is_some()
    }

    async fn call(&self, callback: Callback, context: &HandoffContext) -> Result<Option<String>, HandlerError> {
        let hook = self.settings.of(callback);
        let running = self.reports.begin(callback, context);
        let Some(hook) = hook else {
            running.end(&Ok(()));
            return Ok(None);
        };
        let HandoffContext { keyspace, partition, epoch, handoff, partitions, from, to, .. } = context;
        let side = |pod: &PodAddress| serde_json::json!({ "pod": pod.pod, "address": pod.address });
        let mut body = serde_json::json!({
            "keyspace": keyspace, "partition": partition, "epoch": epoch, "handoff": handoff,
            "partitions": partitions, "from": from.as_ref().map(side), "to": to.as_ref().map(side),
        });
        if let Some(checkpoint) = &context.checkpoint {
            body["checkpoint"] = checkpoint.as_str().into();
        }
        let mut progress = None;
        let asked = timeout(hook.timeout, self.ask(callback, hook, &body, &running, &mut progress)).await;
        let result = asked.unwrap_or_else(|_| {
            let (url, limit) = (hook.url.clone(), hook.timeout);
            Err(match progress.take() {
                None => HookError::Timeout { url, limit },
                Some(said) => HookError::Unfinished { url, limit, said: HookProgress::to_string(&said) },
            })
        });
        running.end(&result);
        match result {
            Ok(checkpoint) => Ok(checkpoint),
            // Only a new owner can be replaced by another pod.
            Err(HookError::Permanent { reason, .. }) if matches!(callback, Callback::Warm | Callback::Sync) => {
                Err(PermanentFailure::new(reason).into())
            }
            Err(error) => Err(error.into()),
        }
    }

    fn load_of(&self, partition: PartitionId) -> LoadReport {
        self.load.as_ref().map_or_else(LoadReport::default, |load| load.of(partition))
    }
}
