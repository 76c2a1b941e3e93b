//! Operators' actions on a keyspace, and their questions about it. The commands that have a store and the admin
//! endpoint's `/v1` call the same functions. Nothing here prints, or reads arguments.
//!
//! An intention is kept in the store, under keys that only this module and the leader write, so it holds when whoever
//! wrote it is interrupted. `standing` decides from a view alone whether an intention is fulfilled.
//!
//! # Invariants
//!
//! * A write requires that the key is as the operator's view showed it.
//! * A repeated id has no second effect: the operation's key is created by the transaction that acts, or by the one that
//!   asks the leader to.

mod change;
mod decision;
mod explain;
mod explain_key;
mod explain_partition;
mod explain_pod;
mod forget;
pub(crate) mod history;
pub(crate) mod keyspace_list;
mod operation;
mod order;
mod participants;
mod partition_report;
mod perform;
mod placement;
mod plan;
mod process;
mod process_status;
pub(crate) mod resting;
mod routers;
mod settings;
mod standing;
pub(crate) mod status;
mod status_text;
#[cfg(test)]
mod test_view;
pub(crate) mod top;
pub(crate) mod troubles;
mod wait;
pub(crate) mod waits;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use segue_config::readable;
use segue_coordination::store::{Store, StoreError, StoreErrorKind};
use segue_protocol::ids::PartitionId;
use segue_protocol::keys::Keyspace;
use segue_protocol::planning::{CancelReason, Policy, Strategy, in_force, or_none};
use segue_protocol::records::HistoryEntry;
use segue_protocol::txn::Txn;
use segue_protocol::view::View;
use segue_proxy::tls::ClientTls;
use serde_json::{Map, Value};

use self::history::HandoffHistory;
use self::troubles::TroubleReports;

pub(crate) use self::explain::Explanation;
pub(crate) use self::explain_key::KeyReport;
pub(crate) use self::explain_pod::PodReport;
pub(crate) use self::forget::RegistrationKind;
pub(crate) use self::order::{Action, ActionOutcome, GivenOwners, OperationId, Order};
pub(crate) use self::partition_report::PartitionReport;
pub(crate) use self::perform::perform;
pub(crate) use self::plan::Preview;
pub(crate) use self::process::{exchange, segment};
pub(crate) use self::routers::RouterComparison;
pub(crate) use self::standing::ConditionState;
pub(crate) use self::wait::{Condition, WaitProgress, until};

/// Why an action or a question was not fulfilled.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OperatorError {
    /// The operator's input cannot be used.
    #[error("{0}")]
    BadInput(String),
    /// The keyspace does not allow it, or somebody else ended it.
    #[error("{0}")]
    Refused(String),
    /// The condition did not hold in time. What was asked for stays in the store.
    #[error("still waiting after {}: {what}", readable(*after))]
    Waiting {
        /// How long was waited.
        after: Duration,
        /// What is missing.
        what: String,
    },
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The store of a keyspace, as an operator uses it.
#[derive(Debug, Clone)]
pub(crate) struct Link {
    store: Arc<dyn Store>,
    keys: Keyspace,
    /// The settings of the coordinator, if they are known here.
    policy: Option<Policy>,
}

impl Link {
    /// Returns the link to a keyspace. Without `policy`, dry runs use the default one.
    pub(crate) fn new(store: Arc<dyn Store>, keys: Keyspace, policy: Option<Policy>) -> Self {
        Link { store, keys, policy }
    }

    pub(crate) fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    pub(crate) fn keys(&self) -> &Keyspace {
        &self.keys
    }

    /// Returns the keyspace as it is now.
    pub(crate) async fn view(&self) -> Result<View, OperatorError> {
        let snapshot = self.store.snapshot(&self.keys.planned()).await?;
        Ok(View::from_snapshot(self.keys.clone(), snapshot))
    }

    /// Returns what the routers report of their clients.
    pub(crate) async fn troubles(&self) -> Result<TroubleReports, OperatorError> {
        Ok(TroubleReports::read(self.store.as_ref(), &self.keys).await?)
    }

    /// Explains a partition.
    pub(crate) async fn explain_partition(&self, partition: PartitionId) -> Result<PartitionReport, OperatorError> {
        let view = self.view().await?;
        let history = self.history(Some(partition)).await?;
        let refusal = self.write_refusal().await;
        let report = explain_partition::partition(&view, &self.policy(&view), partition, history, refusal.as_deref());
        let mut report = report.map_err(OperatorError::Refused)?;
        report.add_troubles(&view, &self.troubles().await?);
        report.find_streams(self).await?;
        Ok(report)
    }

    /// Returns in which words the store refuses writes, whoever writes. That a user may only read is no fault of the store.
    pub(crate) async fn write_refusal(&self) -> Option<String> {
        let error = self.store.commit(Txn::question(&self.keys.leader())).await.err()?;
        matches!(error.kind(), Some(StoreErrorKind::NoSpace | StoreErrorKind::Refused)).then(|| error.to_string())
    }

    /// Compares the tables of all routers with the store. Their admin endpoints are asked by TLS if `tls` is given.
    pub(crate) async fn compare_routers(&self, tls: Option<&ClientTls>) -> Result<RouterComparison, OperatorError> {
        routers::compare(self, tls).await
    }

    /// Returns the handoffs that have ended, the newest first.
    pub(crate) async fn history(&self, partition: Option<PartitionId>) -> Result<HandoffHistory, OperatorError> {
        Ok(HandoffHistory::read(self.store.as_ref(), &self.keys, partition).await?)
    }

    /// Returns the settings of the keyspace by name.
    pub(crate) async fn settings(&self) -> Result<Map<String, Value>, OperatorError> {
        settings::all(&self.view().await?)
    }

    /// Explains a pod.
    pub(crate) async fn explain_pod(&self, pod: &str) -> Result<PodReport, OperatorError> {
        let view = self.view().await?;
        let refusal = self.write_refusal().await;
        let report = explain_pod::pod(&view, &self.policy(&view), pod, refusal.as_deref());
        let mut report = report.map_err(OperatorError::Refused)?;
        report.add_resting(self.history(None).await?);
        report.add_troubles(&view, &self.troubles().await?);
        report.find_stream(self).await?;
        Ok(report)
    }

    /// Runs the planner on the keyspace as it is now, and as if `without` were drained.
    pub(crate) async fn plan(&self, without: Option<&str>) -> Result<Preview, OperatorError> {
        let view = self.view().await?;
        let policy = self.policy(&view);
        let known = self.knows_policy(&view);
        plan::preview(view, &policy, without, known).map_err(OperatorError::Refused)
    }

    /// Returns whether a pod has what a coordinator gives it.
    pub(crate) async fn has_its_share(&self, pod: &str) -> Result<ConditionState, OperatorError> {
        let view = self.view().await?;
        let policy = self.knows_policy(&view).then(|| self.policy(&view));
        // A strategy that this process does not know cannot be asked what it gives the pod.
        let policy = policy.filter(|policy| in_force(&view, policy).strategy != Strategy::Unknown);
        let barred = match &policy {
            Some(policy) => self.barred(&view, policy, pod).await?,
            None => BTreeSet::new(),
        };
        Ok(standing::has_its_share(&view, policy.as_ref(), pod, &barred))
    }

    /// Returns the partitions that the planner gives this pod and that the pod, when it was last given them in this life,
    /// said it cannot take. The leader gives them to it again only after a while.
    async fn barred(&self, view: &View, policy: &Policy, pod: &str) -> Result<BTreeSet<PartitionId>, OperatorError> {
        let cannot_take = CancelReason::NewOwnerFailed { reason: String::new(), wish: None };
        let mut barred = BTreeSet::new();
        let life = view.incarnation_of(pod);
        for partition in standing::arriving(view, policy, pod) {
            let history = self.history(Some(partition)).await?;
            let is_of_life = |past: &&HistoryEntry| past.to == pod && past.handoff.revision() > life.revision();
            let last = history.handoffs.iter().find(is_of_life);
            if last.is_none_or(|last| last.end_cause != cannot_take.as_str()) {
                // One that is still to come is enough of an answer.
                break;
            }
            barred.insert(partition);
        }
        Ok(barred)
    }

    /// Returns whether dry runs use the settings of the keyspace or of a coordinator, and not the defaults.
    fn knows_policy(&self, view: &View) -> bool {
        self.policy.is_some() || view.settings().is_some_and(|settings| settings.planning.is_some())
    }

    /// Returns the policy of dry runs where the keyspace has no settings of its own.
    fn policy(&self, view: &View) -> Policy {
        Policy { partitions: view.partitions(), ..self.policy.clone().unwrap_or_default() }
    }

    async fn commit(&self, txn: Txn) -> Result<bool, OperatorError> {
        Ok(self.store.commit(txn).await?.committed())
    }
}

/// Refuses a keyspace that nobody has ever used, because its name is probably a mistake.
fn ensure_exists(view: &View) -> Result<(), OperatorError> {
    if view.settings().is_some() || view.coordinator().is_some() {
        return Ok(());
    }
    let root = view.keys().root();
    Err(OperatorError::Refused(format!("no keyspace has been at {root} in this store yet: is its name right?")))
}

/// Refuses a pod that is not registered and owns no partition, because its name is probably a mistake.
fn ensure_known(view: &View, pod: &str) -> Result<(), OperatorError> {
    let owns = standing::owned(view, pod) > 0;
    if view.pod_key(pod).is_some() || owns || view.intentions.drains.contains_key(pod) {
        return Ok(());
    }
    let pods = or_none(&view.pods.keys().map(String::as_str).collect::<Vec<_>>().join(", ")).to_owned();
    Err(OperatorError::Refused(format!("no pod {pod} is registered or owns a partition; registered are: {pods}")))
}

/// Returns why nothing can be said of a partition that a keyspace of so many does not have.
fn no_partition(partition: PartitionId, partitions: u32) -> String {
    format!("there is no partition {partition}: the keyspace has {partitions}")
}

/// Returns a duration in milliseconds for people.
fn lasting(millis: u64) -> String {
    readable(Duration::from_millis(millis))
}

/// Returns `1 partition` or `3 partitions`.
fn partitions(count: usize) -> String {
    format!("{count} partition{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use segue_coordination::store::MemoryStore;
    use segue_protocol::txn::Op;

    use super::*;

    /// Puts a key below the keyspace's root, with a lease if it is a registration. Returns the revision that it has then.
    async fn put(store: &MemoryStore, key: &str, value: &str) -> u64 {
        let ttl = Duration::from_secs(3600);
        let lease = if key.starts_with("pods/") { Some(store.grant(ttl).await.unwrap()) } else { None };
        let key = format!("/segue/default/{key}");
        let then = vec![Op::Put { key, value: value.into(), lease }];
        store.commit(Txn { then, ..Txn::default() }).await.unwrap();
        store.snapshot(&Keyspace::new("/segue/", "default").followed()).await.unwrap().revision.get()
    }

    #[tokio::test]
    async fn a_pod_that_cannot_take_what_it_is_given_has_its_share() {
        let store = MemoryStore::new();
        put(&store, "config", r#"{"partitions":2}"#).await;
        let pod = |name: &str| format!(r#"{{"pod_name":"{name}","address":"127.0.0.1:1"}}"#);
        let a = put(&store, "pods/a", &pod("a")).await;
        let b = put(&store, "pods/b", &pod("b")).await;
        for partition in [0, 1] {
            let owned = format!(r#"{{"partition":{partition},"owner":"a","incarnation":{a},"epoch":1}}"#);
            put(&store, &format!("assignments/{partition}"), &owned).await;
        }
        put(&store, "wanted", r#"{"generation":1,"owners":{"0":"a","1":"b"}}"#).await;
        let policy = Policy { partitions: 2, strategy: Strategy::External, ..Policy::default() };
        let link = Link::new(Arc::new(store.clone()), Keyspace::new("/segue/", "default"), Some(policy));
        let is_done = async || matches!(link.has_its_share("b").await.unwrap(), ConditionState::Done(_));
        assert!(!is_done().await, "it is given partition 1");
        let ends = [(b - 1, "new_owner_failed", false), (b + 7, "new_owner_failed", true), (b + 9, "operator", false)];
        for (handoff, cause, expected) in ends {
            let entry = format!(
                r#"{{"handoff":{handoff},"partition":1,"to":"b","epoch":2,"result":"cancelled","end_cause":"{cause}"}}"#
            );
            put(&store, &format!("~history/1/{handoff}"), &entry).await;
            assert_eq!(is_done().await, expected, "after handoff {handoff}, which ended with {cause}");
        }
    }
}
