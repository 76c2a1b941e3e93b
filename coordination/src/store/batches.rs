//! Groups transactions into requests, as etcd takes them.
//!
//! Pure.
//!
//! # Invariants
//!
//! * Order is kept, and no transaction is left out.
//! * etcd accepts every batch of more than one transaction: at most 128 operations, including those of the longest
//!   nested one, and 1.5 MiB.
//! * In a batch no transaction writes what another one compares or writes. etcd evaluates all guards before it applies anything,
//!   so both would be accepted at one revision, although each excludes the other.

use std::collections::BTreeSet;
use std::ops::Bound;

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
    let (mut ops, mut bytes, mut touched) = (0, 0, BatchKeys::default());
    for txn in txns {
        let (own_ops, own_bytes) = (self::ops(&txn), self::bytes(&txn));
        let fits = |batch: &Vec<Txn>| {
            batch.len() < MAX_TXNS
                && batch.len() + 1 + ops.max(own_ops) <= MAX_OPS
                && bytes + own_bytes <= MAX_BATCH_BYTES
                && touched.allows(&txn)
        };
        match batches.last_mut().filter(|batch| fits(batch)) {
            Some(batch) => {
                (ops, bytes) = (ops.max(own_ops), bytes + own_bytes);
                touched.add(&txn);
                batch.push(txn);
            }
            None => {
                (ops, bytes, touched) = (own_ops, own_bytes, BatchKeys::default());
                touched.add(&txn);
                batches.push(vec![txn]);
            }
        }
    }
    batches
}

/// The keys that a batch compares and writes.
#[derive(Debug, Default)]
struct BatchKeys {
    compared: KeySet,
    written: KeySet,
}

impl BatchKeys {
    /// Returns whether this transaction and those of the batch leave each other's guards and keys alone.
    fn allows(&self, txn: &Txn) -> bool {
        let is_free = |op: &Op| {
            let keys = keys_of(op);
            !self.written.overlaps(&keys) && !self.compared.overlaps(&keys)
        };
        txn.then.iter().all(is_free)
            && txn.when.iter().all(|compare| !self.written.overlaps(&compare.keys))
            && txn.otherwise.as_deref().is_none_or(|txn| self.allows(txn))
    }

    fn add(&mut self, txn: &Txn) {
        txn.when.iter().for_each(|compare| self.compared.add(&compare.keys));
        txn.then.iter().for_each(|op| self.written.add(&keys_of(op)));
        if let Some(otherwise) = txn.otherwise.as_deref() {
            self.add(otherwise);
        }
    }
}

fn keys_of(op: &Op) -> Keys {
    match op {
        Op::Put { key, .. } => Keys::One(key.clone()),
        Op::Delete(keys) => keys.clone(),
    }
}

/// Single keys, and ranges of them.
#[derive(Debug, Default)]
struct KeySet {
    keys: BTreeSet<String>,
    ranges: Vec<Keys>,
}

impl KeySet {
    fn add(&mut self, keys: &Keys) {
        match keys {
            Keys::One(key) => drop(self.keys.insert(key.clone())),
            // Many transactions compare the same ranges.
            range if !self.ranges.contains(range) => self.ranges.push(range.clone()),
            _ => {}
        }
    }

    fn overlaps(&self, keys: &Keys) -> bool {
        match keys {
            Keys::One(key) => self.keys.contains(key) || self.ranges.iter().any(|range| range.contains(key)),
            range => {
                let from = start(range);
                let first = self.keys.range::<str, _>((Bound::Included(from), Bound::Unbounded)).next();
                first.is_some_and(|first| range.contains(first))
                    || self.ranges.iter().any(|other| other.contains(from) || range.contains(start(other)))
            }
        }
    }
}

/// Returns the first key that can be one of these.
fn start(keys: &Keys) -> &str {
    match keys {
        Keys::One(from) | Keys::Prefix(from) | Keys::Between(from, _) => from,
    }
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
    use segue_protocol::txn::{Compare, Relation};

    use super::*;

    fn txn(key: usize, guards: usize, bytes: usize) -> Txn {
        let put = |key| Op::put(format!("{key}"), vec![0; bytes]);
        let when = |guards| vec![Compare::created_at("k", Revision::new(1)); guards];
        let alone = Txn::guarded(when(1), [put(key)]);
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

    #[test]
    fn no_transaction_shares_a_batch_with_one_that_writes_what_it_compares_or_writes() {
        let put = |key: &str| vec![Op::put(key, Vec::new())];
        let delete = |prefix: &str| vec![Op::Delete(Keys::Prefix(prefix.to_owned()))];
        let when = |key: &str| vec![Compare::created_at(key, Revision::new(1))];
        let below = |prefix: &str| vec![Compare::none_created_after(prefix, Revision::new(1))];
        let between = |from: &str, to: &str| {
            let keys = Keys::Between(from.to_owned(), to.to_owned());
            vec![Compare { keys, field: Field::ModRevision(Revision::new(1)), relation: Relation::Equal }]
        };
        let txn = |when, then| Txn::guarded(when, then);
        let is_apart = |one: &Txn, other: &Txn| {
            let both_ways = [[one, other], [other, one]].map(|pair| sizes(pair.map(Clone::clone).to_vec()));
            assert_eq!(both_ways[0], both_ways[1], "{one:?} and {other:?}");
            both_ways[0] == [1, 1]
        };
        let flip = txn(when("handoffs/1"), put("assignments/1"));
        for other in [
            txn(when("assignments/1"), put("checkpoints/1")),
            txn(Vec::new(), put("assignments/1")),
            txn(Vec::new(), delete("assignments/")),
            txn(below("assignments/"), put("x")),
            txn(between("a", "b"), put("x")),
            Txn { otherwise: Some(Box::new(txn(when("assignments/1"), put("x")))), ..Txn::default() },
            Txn { otherwise: Some(Box::new(txn(Vec::new(), delete("handoffs/")))), ..Txn::default() },
        ] {
            assert!(is_apart(&flip, &other), "{other:?}");
        }
        assert!(is_apart(&txn(below("acks/1/"), put("x")), &txn(Vec::new(), delete("acks/"))));
        for other in [
            txn(when("handoffs/1"), put("acks/1")),
            txn(when("assignments/10"), put("assignments/11")),
            txn(between("b", "c"), delete("assignments/2")),
        ] {
            assert!(!is_apart(&flip, &other), "{other:?}");
        }
    }
}
