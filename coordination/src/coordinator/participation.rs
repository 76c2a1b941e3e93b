//! A coordinator's part in assignment rounds: it takes the steps that [`rounds`](segue_protocol::rounds) decides.
//!
//! # Invariants
//!
//! * At most one step is in flight, and the next one is decided on a view that shows it.
//! * A process waits its turn to open or close a round, so that usually one does so. Whoever does not is overtaken.

use std::sync::Arc;
use std::time::Duration;

use segue_protocol::ids::Revision;
use segue_protocol::planning::Policy;
use segue_protocol::rounds::{LeasedKey, Member, RoundStep, StepDraft};
use segue_protocol::txn::{Op, TxnOutcome};
use segue_protocol::view::View;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::warn;

use crate::session::{RepeatedLog, StoreRetry};
use crate::store::{Store, StoreError};

/// How long a process leaves a step to each of those before it.
const TURN: Duration = Duration::from_millis(100);
/// How long the next step rests after a guard of one failed, because the view was behind.
const REFUSED_PAUSE: Duration = Duration::from_millis(50);

/// The rounds as one process takes part in them.
pub(super) struct Participation {
    store: Arc<dyn Store>,
    member: Member,
    /// The step that is due, and when it is this process's turn.
    turn: Option<(RoundStep, Instant)>,
    steps: JoinSet<Result<TxnOutcome, StoreError>>,
    /// The revision from which on the view shows the last step.
    seen_at: Revision,
    not_before: Instant,
    retry: StoreRetry,
    log: RepeatedLog,
}

impl Participation {
    pub(super) fn new(store: Arc<dyn Store>, member: Member) -> Self {
        let (seen_at, not_before) = (Revision::ZERO, Instant::now());
        let (retry, log) = (StoreRetry::default(), RepeatedLog::default());
        Participation { store, member, turn: None, steps: JoinSet::new(), seen_at, not_before, retry, log }
    }

    pub(super) fn member(&self) -> &Member {
        &self.member
    }

    /// Takes the step that is due. Returns when to call again, if nothing else triggers that.
    pub(super) fn step(&mut self, view: &View, policy: &Policy) -> Option<Instant> {
        if !self.steps.is_empty() || view.revision < self.seen_at {
            return None;
        }
        let Some(step) = self.member.next_step(view) else {
            self.turn = None;
            return None;
        };
        let now = Instant::now();
        let rank = u32::try_from(self.member.rank(view, step)).unwrap_or(u32::MAX);
        let turn = self.turn.filter(|(known, _)| *known == step).map_or_else(|| now + TURN * rank, |(_, at)| at);
        self.turn = Some((step, turn));
        let due = turn.max(self.not_before);
        if now < due {
            return Some(due);
        }
        let draft = self.member.draft(view, step, policy);
        self.steps.spawn(carry_out(self.store.clone(), draft));
        None
    }

    /// Returns after each step. Pending while none is in flight. Cancel-safe.
    pub(super) async fn taken(&mut self) {
        let Some(taken) = self.steps.join_next().await else { return std::future::pending().await };
        let now = Instant::now();
        match taken {
            Ok(Ok(outcome)) => {
                self.retry.reset();
                match outcome.committed() {
                    true => self.seen_at = self.seen_at.max(outcome.revision),
                    false => self.not_before = now + REFUSED_PAUSE,
                }
            }
            Ok(Err(error)) => {
                if let Some(times) = self.log.note(&error) {
                    warn!(%error, times, "step of the assignment round failed; retrying");
                }
                self.not_before = now + self.retry.next_after(&error);
            }
            Err(_) => self.not_before = now + self.retry.next(),
        }
    }
}

async fn carry_out(store: Arc<dyn Store>, draft: StepDraft) -> Result<TxnOutcome, StoreError> {
    let (mut txn, mut granted) = (draft.txn, Vec::new());
    for LeasedKey { key, value, ttl } in draft.leased {
        let lease = store.grant(ttl).await?;
        txn.then.push(Op::put_leased(key, value, lease));
        granted.push(lease);
    }
    let outcome = store.commit(txn).await?;
    if !outcome.committed() {
        for lease in granted {
            // A lease that is not revoked ends by itself.
            let _ = store.revoke(lease).await;
        }
    }
    Ok(outcome)
}
