//! Deletes checkpoints of partitions that the keyspace no longer has. All others are replaced by the next one.

use super::actions::PlannedWrite;
use crate::ids::{PartitionId, Revision};
use crate::txn::{Compare, Op, Txn};
use crate::view::View;

/// Most checkpoints that one transaction deletes: each needs a guard, and etcd accepts 128.
const DELETED_TOGETHER: usize = 64;

/// Returns the deletion of checkpoints beyond the settings. Without readable settings nothing is beyond them.
pub(super) fn beyond_config(view: &View) -> Option<PlannedWrite> {
    let config = view.config.as_ref()?;
    let beyond = view.checkpoints.range(PartitionId::new(config.value.partitions)..);
    let beyond = beyond.map(|(partition, it)| (*partition, it.mod_revision)).take(DELETED_TOGETHER);
    let (checkpoints, config) = (beyond.collect::<Vec<_>>(), config.mod_revision);
    (!checkpoints.is_empty()).then_some(PlannedWrite::ForgetCheckpoints { checkpoints, config })
}

/// Deletes checkpoints that have not changed since the view, under settings that have not either.
pub(super) fn forget(view: &View, checkpoints: &[(PartitionId, Revision)], config: Revision, txn: &mut Txn) {
    let keys = view.keys();
    txn.when.push(Compare::unchanged_since(keys.config(), config));
    txn.when.extend(checkpoints.iter().map(|(at, seen)| Compare::unchanged_since(keys.checkpoint(*at), *seen)));
    txn.then.extend(checkpoints.iter().map(|(at, _)| Op::delete(keys.checkpoint(*at))));
}
