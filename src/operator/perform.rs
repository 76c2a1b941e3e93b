//! Carries orders out: by a transaction, or by the leader.

use std::time::Duration;

use super::order::{Action, ActionOutcome, Order};
use super::wait::WaitProgress;
use super::{Link, OperatorError, change, operation};

/// Carries an order out. A move, a pin and a cancel are carried out by the leader; its answer is waited for at most
/// `patience`.
pub(crate) async fn perform(
    link: &Link,
    order: &Order,
    patience: Duration,
    said: &WaitProgress,
) -> Result<ActionOutcome, OperatorError> {
    match &order.action {
        Action::Move { .. } | Action::Pin { .. } | Action::Cancel { .. } => {
            operation::ask(link, order, patience, said).await
        }
        _ => change::write(link, order).await,
    }
}
