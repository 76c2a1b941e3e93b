//! The checks that etcd makes of a transaction before it looks at a key, with the same error texts.
//!
//! Pure. Only the embedded store uses it; a real etcd checks for itself.
//!
//! # Invariants
//!
//! * The checks are as strict as etcd's. Otherwise a transaction could pass every test on the embedded store and fail
//!   in production.

use std::collections::HashSet;

use segue_protocol::txn::{Compare, Field, Keys, Op, Txn};

use super::super::StoreError;

/// etcd's `--max-txn-ops`.
const MAX_OPS: usize = 128;
/// etcd's `--max-request-bytes`.
const MAX_REQUEST_BYTES: usize = 3 * 512 * 1024;
/// Approximate size of an operation on the wire beyond its key and value.
const OVERHEAD_BYTES: usize = 16;

/// Refuses what etcd refuses.
pub(super) fn check(txn: &Txn) -> Result<(), StoreError> {
    let mut left = MAX_OPS;
    let mut bytes = 0;
    let mut level = Some(txn);
    while let Some(txn) = level {
        // etcd counts the longest of the three lists, and subtracts it from the limit of a nested transaction. A nested
        // transaction is itself one operation of its list.
        let ops = txn.when.len().max(txn.then.len()).max(usize::from(txn.otherwise.is_some()));
        left = left.checked_sub(ops).ok_or_else(|| refused("too many operations in txn request"))?;

        let empty = |keys: &Keys| matches!(keys, Keys::One(key) if key.is_empty());
        let no_key = |op: &Op| match op {
            Op::Put { key, .. } => key.is_empty(),
            Op::Delete(keys) => empty(keys),
        };
        if txn.when.iter().any(|compare| empty(&compare.keys)) || txn.then.iter().any(no_key) {
            return Err(refused("key is not provided"));
        }
        // Each branch by itself: only one of two branches is applied.
        no_key_written_twice(&txn.then)?;

        bytes += txn.when.iter().map(compare_bytes).sum::<usize>() + txn.then.iter().map(op_bytes).sum::<usize>();
        level = txn.otherwise.as_deref();
    }
    if bytes > MAX_REQUEST_BYTES {
        return Err(refused("request is too large"));
    }
    Ok(())
}

/// Refuses two puts of one key, and a put of a key that a delete covers. Deletes may overlap.
fn no_key_written_twice(ops: &[Op]) -> Result<(), StoreError> {
    let deletes: Vec<&Keys> = ops
        .iter()
        .filter_map(|op| match op {
            Op::Delete(keys) => Some(keys),
            Op::Put { .. } => None,
        })
        .collect();
    let mut puts = HashSet::new();
    for op in ops {
        if let Op::Put { key, .. } = op
            && (!puts.insert(key) || deletes.iter().any(|keys| keys.contains(key)))
        {
            return Err(refused("duplicate key given in txn request"));
        }
    }
    Ok(())
}

fn keys_bytes(keys: &Keys) -> usize {
    match keys {
        Keys::One(key) => key.len(),
        Keys::Prefix(prefix) => 2 * prefix.len(),
        Keys::Between(from, to) => from.len() + to.len(),
    }
}

fn compare_bytes(compare: &Compare) -> usize {
    let value = match &compare.field {
        Field::Value(value) => value.len(),
        Field::CreateRevision(_) | Field::ModRevision(_) | Field::Lease(_) => 0,
    };
    OVERHEAD_BYTES + keys_bytes(&compare.keys) + value
}

fn op_bytes(op: &Op) -> usize {
    OVERHEAD_BYTES
        + match op {
            Op::Put { key, value, .. } => key.len() + value.len(),
            Op::Delete(keys) => keys_bytes(keys),
        }
}

fn refused(why: &str) -> StoreError {
    StoreError::Refused(format!("etcdserver: {why}").into())
}
