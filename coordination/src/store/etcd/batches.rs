//! Groups transactions into requests to etcd.
//!
//! Pure.
//!
//! # Invariants
//!
//! * Order is kept, and no transaction is left out.
//! * etcd accepts every batch of more than one transaction: at most 128 operations, including those of the longest
//!   nested one, and 1.5 MiB.

use segue_protocol::txn::{Field, Keys, Op, Txn};

/// etcd's `--max-txn-ops`: the limit of a batch and its longest transaction together.
const MAX_OPS: usize = 128;
/// Far below etcd's `--max-request-bytes`, because sizes are estimates.
const MAX_BATCH_BYTES: usize = 512 << 10;
/// Upper bound of what a guard or an operation takes beyond its key and value.
const OVERHEAD_BYTES: usize = 32;
/// Most transactions in a batch. Larger batches would block etcd's other clients.
const MAX_TXNS: usize = 64;

/// Groups transactions that are due together into batches.
pub(super) fn batches(txns: Vec<Txn>) -> Vec<Vec<Txn>> {
    let mut batches: Vec<Vec<Txn>> = Vec::new();
    let (mut ops, mut bytes) = (0, 0);
    for txn in txns {
        let (own_ops, own_bytes) = (self::ops(&txn), self::bytes(&txn));
        let fits = |batch: &Vec<Txn>| {
            batch.len() < MAX_TXNS
                && batch.len() + 1 + ops.max(own_ops) <= MAX_OPS
                && bytes + own_bytes <= MAX_BATCH_BYTES
        };
        match batches.last_mut().filter(|batch| fits(batch)) {
            Some(batch) => {
                (ops, bytes) = (ops.max(own_ops), bytes + own_bytes);
                batch.push(txn);
            }
            None => {
                (ops, bytes) = (own_ops, own_bytes);
                batches.push(vec![txn]);
            }
        }
    }
    batches
}

/// Counts operations as etcd does: the longest list of each level.
fn ops(txn: &Txn) -> usize {
    let own = txn.when.len().max(txn.then.len()).max(usize::from(txn.otherwise.is_some()));
    own + txn.otherwise.as_deref().map_or(0, ops)
}

fn bytes(txn: &Txn) -> usize {
    // A prefix is sent as a range: two keys.
    let keys = |keys: &Keys| match keys {
        Keys::One(key) => key.len(),
        Keys::Prefix(prefix) => 2 * prefix.len(),
        Keys::Between(from, to) => from.len() + to.len(),
    };
    let compared = txn.when.iter().map(|compare| match &compare.field {
        Field::Value(value) => keys(&compare.keys) + value.len(),
        Field::CreateRevision(_) | Field::ModRevision(_) | Field::Lease(_) => keys(&compare.keys),
    });
    let written = txn.then.iter().map(|op| match op {
        Op::Put { key, value, .. } => key.len() + value.len(),
        Op::Delete(deleted) => keys(deleted),
    });
    let own: usize = compared.chain(written).map(|bytes| bytes + OVERHEAD_BYTES).sum();
    own + txn.otherwise.as_deref().map_or(0, bytes)
}

#[cfg(test)]
mod tests {
    use segue_protocol::ids::Revision;
    use segue_protocol::txn::Compare;

    use super::*;

    fn txn(key: usize, guards: usize, bytes: usize) -> Txn {
        let put = |key| Op::Put { key: format!("{key}"), value: vec![0; bytes], lease: None };
        let when = |guards| vec![Compare::created_at("k", Revision::new(1)); guards];
        let alone = Txn { when: when(1), then: vec![put(key)], otherwise: None };
        Txn { when: when(guards), then: vec![put(key)], otherwise: Some(Box::new(alone)) }
    }

    fn sizes(txns: Vec<Txn>) -> Vec<usize> {
        let batches = batches(txns.clone());
        assert_eq!(batches.concat(), txns);
        batches.iter().map(Vec::len).collect()
    }

    #[test]
    fn a_batch_is_as_large_as_etcd_takes_it_and_no_larger() {
        assert_eq!(sizes(Vec::new()), [0_usize; 0]);
        assert_eq!(sizes((0..130).map(|key| txn(key, 5, 200)).collect()), [64, 64, 2]);
        // 100 guards, one of them in the failure branch: 27 places are left.
        assert_eq!(sizes((0..30).map(|key| txn(key, 100, 200)).collect()), [27, 3]);
        assert_eq!(sizes((0..3).map(|key| txn(key, 1, 100 << 10)).collect()), [2, 1]);
        assert_eq!(sizes((0..2).map(|key| txn(key, 200, 1)).collect()), [1, 1]);
    }
}
