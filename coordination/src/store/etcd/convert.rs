//! Conversions between Segue's data and etcd-client's.
//!
//! Pure.
//!
//! # Invariants
//!
//! * A [`Txn`] has the same meaning in etcd and here, branch numbers included.

use etcd_client::{
    Compare as EtcdCompare, CompareOp, DeleteOptions, Event as EtcdEvent, EventType, GetOptions,
    KeyValue as EtcdKeyValue, PutOptions, Txn as EtcdTxn, TxnOp, TxnOpResponse, TxnResponse, WatchOptions,
};
use segue_protocol::ids::{LeaseId, Revision};
use segue_protocol::txn::{Compare, Event, Field, KeyValue, Keys, Op, Relation, Txn, TxnOutcome};

/// Returns the key and the options of a range.
pub(super) fn range(keys: &Keys) -> (&str, GetOptions) {
    match keys {
        Keys::One(key) => (key, GetOptions::new()),
        Keys::Prefix(prefix) => (prefix, GetOptions::new().with_prefix()),
        Keys::Between(from, to) => (from, GetOptions::new().with_range(to.as_str())),
    }
}

/// Returns the key and the options of a range of at most one key, without its value, that was put after `since`.
pub(super) fn survey(keys: &Keys, since: Revision) -> (&str, GetOptions) {
    let (key, options) = range(keys);
    (key, options.with_min_mod_revision(signed(since.next())).with_limit(1).with_keys_only())
}

/// Returns the key and the options of a watch.
pub(super) fn watch(keys: &Keys, from: Revision) -> (&str, WatchOptions) {
    // 0 would mean "from now on" to etcd.
    let options = WatchOptions::new().with_start_revision(signed(from.max(Revision::new(1))));
    match keys {
        Keys::One(key) => (key, options),
        Keys::Prefix(prefix) => (prefix, options.with_prefix()),
        Keys::Between(from, to) => (from, options.with_range(to.as_str())),
    }
}

/// Returns the transaction; `otherwise` becomes a transaction nested in the failure branch.
pub(super) fn txn(txn: Txn) -> EtcdTxn {
    let otherwise = txn.otherwise.map(|otherwise| TxnOp::txn(self::txn(*otherwise)));
    EtcdTxn::new()
        .when(txn.when.into_iter().map(compare).collect::<Vec<_>>())
        .and_then(txn.then.into_iter().map(op).collect::<Vec<_>>())
        .or_else(otherwise.into_iter().collect::<Vec<_>>())
}

/// Returns the branch that was applied, and its revision.
pub(super) fn outcome(response: &TxnResponse) -> TxnOutcome {
    TxnOutcome { revision: revision(response), branch: branch(response) }
}

/// Returns one transaction without a guard, in which each of these is nested with its own guards.
pub(super) fn together(txns: Vec<Txn>) -> EtcdTxn {
    EtcdTxn::new().and_then(txns.into_iter().map(|txn| TxnOp::txn(self::txn(txn))).collect::<Vec<_>>())
}

/// Returns the results of the nested transactions.
pub(super) fn outcomes(response: &TxnResponse) -> Vec<TxnOutcome> {
    let revision = revision(response);
    let nested = response.op_responses().into_iter().map(|nested| match nested {
        TxnOpResponse::Txn(nested) => branch(&nested),
        _ => None,
    });
    nested.map(|branch| TxnOutcome { revision, branch }).collect()
}

fn revision(response: &TxnResponse) -> Revision {
    unsigned(response.header().map_or(0, |header| header.revision()))
}

fn branch(response: &TxnResponse) -> Option<usize> {
    if response.succeeded() {
        return Some(0);
    }
    match response.op_responses().first() {
        Some(TxnOpResponse::Txn(nested)) => branch(nested).map(|below| below + 1),
        _ => None,
    }
}

/// Returns a key with its value. `None` if its name is not UTF-8: this program can neither have written nor know it.
pub(super) fn key_value(entry: &EtcdKeyValue) -> Option<KeyValue> {
    Some(KeyValue {
        key: entry.key_str().ok()?.to_owned(),
        value: entry.value().to_owned(),
        create_revision: unsigned(entry.create_revision()),
        mod_revision: unsigned(entry.mod_revision()),
        lease: Some(LeaseId::new(entry.lease())).filter(|lease| *lease != LeaseId::NONE),
    })
}

/// Returns a change. `None` as for [`key_value`].
pub(super) fn event(event: &EtcdEvent) -> Option<Event> {
    let entry = key_value(event.kv()?)?;
    Some(match event.event_type() {
        EventType::Put => Event::Put(entry),
        EventType::Delete => Event::Delete { key: entry.key, mod_revision: entry.mod_revision },
    })
}

fn compare(compare: Compare) -> EtcdCompare {
    // The end of a range; an empty one stands for the end of the prefix.
    let (key, end) = match compare.keys {
        Keys::One(key) => (key, None),
        // Every key: etcd's name for that, which etcd-client writes for ranges but not for compares.
        Keys::Prefix(prefix) if prefix.is_empty() => ("\0".to_owned(), Some("\0".to_owned())),
        Keys::Prefix(prefix) => (prefix, Some(String::new())),
        Keys::Between(from, to) => (from, Some(to)),
    };
    let relation = match compare.relation {
        Relation::Equal => CompareOp::Equal,
        Relation::NotEqual => CompareOp::NotEqual,
        Relation::Less => CompareOp::Less,
        Relation::Greater => CompareOp::Greater,
    };
    let compare = match compare.field {
        Field::Value(value) => EtcdCompare::value(key, relation, value),
        Field::CreateRevision(revision) => EtcdCompare::create_revision(key, relation, signed(revision)),
        Field::ModRevision(revision) => EtcdCompare::mod_revision(key, relation, signed(revision)),
        Field::Lease(lease) => EtcdCompare::lease(key, relation, lease.get()),
    };
    match end {
        None => compare,
        Some(end) if end.is_empty() => compare.with_prefix(),
        Some(end) => compare.with_range(end),
    }
}

fn op(op: Op) -> TxnOp {
    match op {
        Op::Put { key, value, lease } => {
            TxnOp::put(key, value, lease.map(|lease| PutOptions::new().with_lease(lease.get())))
        }
        Op::Delete(Keys::One(key)) => TxnOp::delete(key, None),
        Op::Delete(Keys::Prefix(prefix)) => TxnOp::delete(prefix, Some(DeleteOptions::new().with_prefix())),
        Op::Delete(Keys::Between(from, to)) => TxnOp::delete(from, Some(DeleteOptions::new().with_range(to))),
    }
}

pub(super) fn signed(revision: Revision) -> i64 {
    i64::try_from(revision.get()).unwrap_or(i64::MAX)
}

/// Returns a revision. etcd's are signed on the wire, and never negative.
pub(super) fn unsigned(revision: i64) -> Revision {
    Revision::new(u64::try_from(revision).unwrap_or(0))
}
