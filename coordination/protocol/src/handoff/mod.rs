//! What each participant does in a handoff.

pub mod advance;
pub mod epoch_fence;
pub mod pod;
pub mod pod_reconcile;
pub mod router;
