//! Pure functions that count five kinds of harm in what clients and pods recorded.
//!
//! Each count is zero if the protocol kept its promises, whatever the timings: a check counts only what is impossible
//! otherwise. This requires the following:
//!
//! * A client sends the next write of a key only after the response to the previous one, so the order of each key is
//!   known. Bursts (several writes of a key without waiting for responses) use one HTTP/2 connection, which a router
//!   reads in order. An inversion within one epoch of a burst counts only if the router is known to have received the
//!   whole burst before that epoch began: it then held the requests and had to send them one at a time. Two requests
//!   that meet an open gate may overtake each other.
//! * After a 502, a 504 or a broken connection a write may have been applied, may be applied later, or may never be.
//!   Such a write is examined only for `duplicated`, `misrouted` and `dual_writer_overlaps`.
//! * The store's own transactions ([`history`](super::history)) show the owner of a partition at an epoch, and the
//!   moment before which the ownership cannot have begun. Without them (`segue bench`) this part is not checked.

use std::collections::{BTreeMap, HashMap, HashSet};

use segue_protocol::ids::{Epoch, Incarnation, PartitionId};

use super::clock::Nanos;
use super::record::{ClientExchange, Key, LogRecord, Outcome, RequestId, RequestKind};

/// Number of cases of each kind that are described.
const EXAMPLES: usize = 5;

/// All that is known about a run.
#[derive(Debug, Clone, Default)]
pub struct Evidence {
    /// The requests as clients saw them, each client's in the order of sending.
    pub exchanges: Vec<ClientExchange>,
    /// The records of the pods, each partition's in the order of its log. `None` if the logs are not accessible.
    pub log: Option<Vec<LogRecord>>,
    /// The owners. `None` if they are not known.
    pub owners: Option<Owners>,
}

/// The owner of each partition at each epoch.
#[derive(Debug, Clone, Default)]
pub struct Owners {
    by_epoch: HashMap<(PartitionId, Epoch), Vec<OwnerSpan>>,
    /// By partition and epoch: a moment at which the epoch had certainly begun.
    begun: BTreeMap<(PartitionId, Epoch), Nanos>,
}

/// An ownership.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnerSpan {
    /// The owning pod.
    pub pod: String,
    /// The incarnation of the pod.
    pub incarnation: Incarnation,
    /// The earliest possible beginning: the transaction that made it was not sent before.
    pub not_before: Nanos,
}

impl Owners {
    /// Records an ownership. If the outcome of a transaction is unknown, all possible ownerships are recorded.
    pub fn note(&mut self, partition: PartitionId, epoch: Epoch, ownership: OwnerSpan) {
        let known = self.by_epoch.entry((partition, epoch)).or_default();
        let same = |other: &&mut OwnerSpan| other.pod == ownership.pod && other.incarnation == ownership.incarnation;
        match known.iter_mut().find(same) {
            Some(other) => other.not_before = other.not_before.min(ownership.not_before),
            None => known.push(ownership),
        }
    }

    /// Records that the epoch had begun by then, because the transaction had a response.
    pub fn begun(&mut self, partition: PartitionId, epoch: Epoch, by: Nanos) {
        let known = self.begun.entry((partition, epoch)).or_insert(by);
        *known = by.min(*known);
    }

    /// Returns when the epoch had certainly ended, because a later one had begun.
    fn ended_by(&self, partition: PartitionId, epoch: Epoch) -> Nanos {
        let later = self.begun.range((partition, epoch.next())..=(partition, Epoch::MAX));
        later.map(|(_, by)| *by).min().unwrap_or(Nanos::MAX)
    }

    /// Returns when the pod's ownership can have begun at the earliest, or `None` if the pod was not the owner at that
    /// epoch. Without an `incarnation` any will do.
    fn began(&self, partition: PartitionId, epoch: Epoch, pod: &str, incarnation: Incarnation) -> Option<Nanos> {
        let owners = self.by_epoch.get(&(partition, epoch))?.iter();
        let is_it = |owner: &&OwnerSpan| {
            owner.pod == pod && (incarnation == Incarnation::NONE || owner.incarnation == incarnation)
        };
        owners.filter(is_it).map(|owner| owner.not_before).min()
    }

    /// Returns when the epoch can have begun at the earliest.
    fn epoch_began(&self, partition: PartitionId, epoch: Epoch) -> Option<Nanos> {
        self.by_epoch.get(&(partition, epoch))?.iter().map(|owner| owner.not_before).min()
    }
}

/// One kind of harm.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Count {
    /// The number of cases.
    pub count: u64,
    /// Descriptions of the first cases.
    pub examples: Vec<String>,
}

impl Count {
    fn add(&mut self, example: impl FnOnce() -> String) {
        self.count += 1;
        if self.examples.len() < EXAMPLES {
            self.examples.push(example());
        }
    }
}

/// The five counts of harm, and the amount of evidence behind them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Harm {
    /// Acknowledged writes that are not in the log; reads that miss an acknowledged write, including the last look at
    /// each key; requests without a response.
    pub lost: Count,
    /// Requests that are in the log once more than allowed: twice, or once although the response promised that nothing
    /// was done, so a client that trusts it sends the request again.
    pub duplicated: Count,
    /// Requests accepted by a pod that was not the owner at that epoch; records in the log of another partition than
    /// the client meant; refusals of pods that reached a client.
    pub misrouted: Count,
    /// Writes that are in the log behind a later write of their key.
    pub reordered: Count,
    /// Pairs of owners of a partition that accepted requests at the same time, or whose records are interleaved in the
    /// log.
    pub dual_writer_overlaps: Count,
    /// Pairs of requests of a burst that were certainly held together, so their order had to be kept.
    pub held_pairs_checked: u64,
    /// Number of reads that were checked to be fresh.
    pub reads_checked: u64,
}

impl Harm {
    /// Returns the five counts by name.
    pub fn counts(&self) -> [(&'static str, &Count); 5] {
        [
            ("lost", &self.lost),
            ("duplicated", &self.duplicated),
            ("misrouted", &self.misrouted),
            ("reordered", &self.reordered),
            ("dual_writer_overlaps", &self.dual_writer_overlaps),
        ]
    }

    /// Returns whether nothing went wrong.
    pub fn none(&self) -> bool {
        self.counts().iter().all(|(_, count)| count.count == 0)
    }

    /// Adds what was found in another keyspace.
    pub(super) fn add(&mut self, other: Harm) {
        let Harm { lost, duplicated, misrouted, reordered, dual_writer_overlaps, held_pairs_checked, reads_checked } =
            other;
        self.held_pairs_checked += held_pairs_checked;
        self.reads_checked += reads_checked;
        for (known, more) in [
            (&mut self.lost, lost),
            (&mut self.duplicated, duplicated),
            (&mut self.misrouted, misrouted),
            (&mut self.reordered, reordered),
            (&mut self.dual_writer_overlaps, dual_writer_overlaps),
        ] {
            known.count += more.count;
            known.examples.extend(more.examples);
            known.examples.truncate(EXAMPLES);
        }
    }
}

/// Examines all evidence.
pub fn check(evidence: &Evidence) -> Harm {
    let mut harm = Harm {
        lost: lost(evidence),
        duplicated: duplicated(evidence),
        misrouted: misrouted(evidence),
        dual_writer_overlaps: dual_writers(evidence),
        ..Harm::default()
    };
    (harm.reordered, harm.held_pairs_checked) = reordered(evidence);
    let checked = |exchange: &&ClientExchange| exchange.outcome == Outcome::Ok && exchange.sequence().is_none();
    harm.reads_checked = evidence.exchanges.iter().filter(checked).count() as u64;
    harm
}

fn log(evidence: &Evidence) -> &[LogRecord] {
    evidence.log.as_deref().unwrap_or_default()
}

fn lost(evidence: &Evidence) -> Count {
    let mut count = Count::default();
    let logged: Option<HashSet<RequestId>> =
        evidence.log.as_ref().map(|log| log.iter().map(|record| record.request).collect());
    let first = evidence.exchanges.iter().map(|exchange| exchange.sent_at).min().unwrap_or_default();
    for exchange in &evidence.exchanges {
        let ClientExchange { request, key, partition, .. } = exchange;
        match (&exchange.outcome, exchange.kind) {
            (Outcome::Ok, RequestKind::Write { sequence })
                if logged.as_ref().is_some_and(|logged| !logged.contains(request)) =>
            {
                count.add(|| {
                    format!("acknowledged write {sequence} of key {key} is not in the log of partition {partition}")
                });
            }
            (Outcome::Ok, RequestKind::Read { floor, seen, .. }) if seen < floor => count.add(|| {
                format!("a read of key {key} (partition {partition}) saw write {seen}, not the acknowledged {floor}")
            }),
            (Outcome::Ok, _) => {}
            (Outcome::Unanswered { place }, _) => {
                let after = exchange.sent_at.saturating_sub(first) as f64 / 1e9;
                count.add(|| {
                    format!(
                        "request {request} of key {key} (partition {partition}), sent {after:.1} s after the first \
                         request, was never answered: {place}"
                    )
                });
            }
            (_, RequestKind::Read { last: true, .. }) => {
                count.add(|| format!("key {key} (partition {partition}) could not be read after the run"));
            }
            _ => {}
        }
    }
    count
}

fn duplicated(evidence: &Evidence) -> Count {
    let mut count = Count::default();
    let refused: HashSet<RequestId> = evidence
        .exchanges
        .iter()
        .filter(|exchange| matches!(exchange.outcome, Outcome::Refused { .. }))
        .map(|exchange| exchange.request)
        .collect();
    let mut seen = HashSet::new();
    for LogRecord { request, partition, key, sequence, .. } in log(evidence) {
        if !seen.insert(*request) {
            count.add(|| format!("write {sequence} of {key} is in the log of partition {partition} again"));
        } else if refused.contains(request) {
            count.add(|| {
                format!("write {sequence} of {key} is in the log of partition {partition} although it was refused")
            });
        }
    }
    count
}

fn misrouted(evidence: &Evidence) -> Count {
    let mut count = Count::default();
    let meant: HashMap<RequestId, PartitionId> =
        evidence.exchanges.iter().map(|exchange| (exchange.request, exchange.partition)).collect();
    let mut logged = HashSet::new();
    for record in log(evidence) {
        let LogRecord { partition, epoch, pod, incarnation, accepted_at, key, sequence, .. } = record;
        logged.insert(record.request);
        if let Some(meant) = meant.get(&record.request).filter(|meant| *meant != partition) {
            count.add(|| {
                format!("write {sequence} of {key} for partition {meant} is in the log of partition {partition}")
            });
            continue;
        }
        let Some(owners) = &evidence.owners else { continue };
        match owners.began(*partition, *epoch, pod, *incarnation) {
            None => count.add(|| {
                format!("{pod} took write {sequence} of {key} at epoch {epoch} of partition {partition}: not its own")
            }),
            Some(began) if *accepted_at < began => count.add(|| {
                format!("{pod} took write {sequence} of {key} before its epoch {epoch} of partition {partition} began")
            }),
            Some(_) if *accepted_at > owners.ended_by(*partition, *epoch) => count.add(|| {
                format!(
                    "{pod} took write {sequence} of {key} after its epoch {epoch} of partition {partition} had ended"
                )
            }),
            Some(_) => {}
        }
    }
    for exchange in &evidence.exchanges {
        let ClientExchange { request, key, partition, .. } = exchange;
        if let Outcome::Refused { code: 421, .. } = &exchange.outcome {
            count.add(|| {
                format!("a pod's refusal of request {request} of key {key} (partition {partition}) reached its client")
            });
            continue;
        }
        // A write that is in the log was examined there.
        let (Some(owners), Some((pod, epoch)), false) =
            (&evidence.owners, &exchange.answered_by, logged.contains(request))
        else {
            continue;
        };
        let too_early = |began| exchange.ended_at < began;
        let too_late = exchange.sent_at > owners.ended_by(*partition, *epoch);
        if owners.began(*partition, *epoch, pod, Incarnation::NONE).is_none_or(too_early) || too_late {
            count.add(|| {
                format!("{pod} answered {request} of key {key} at epoch {epoch} of partition {partition}: not its own")
            });
        }
    }
    count
}

/// The positions of a key's writes in the log, as far as the log has been read.
#[derive(Default)]
struct KeyPositions {
    /// The latest write outside the current burst.
    latest: u64,
    burst: Option<u64>,
    /// The writes of the current burst: (sequence, epoch) in the order of the log.
    members: Vec<(u64, Epoch)>,
}

/// How long before an epoch a burst was taken that the owner before was sent, unless the handoff took longer. Its writes were
/// sent beside each other and have no order: one that this owner did not take, as over a connection that loses packets, goes
/// to the next owner, behind later ones that it did take.
const OPEN_GATE: Nanos = 1_000_000_000;

fn reordered(evidence: &Evidence) -> (Count, u64) {
    let (mut count, mut held_pairs) = (Count::default(), 0);
    let definite: HashMap<RequestId, &ClientExchange> = evidence
        .exchanges
        .iter()
        .filter(|exchange| exchange.outcome == Outcome::Ok)
        .map(|exchange| (exchange.request, exchange))
        .collect();
    let mut lines: HashMap<Key, KeyPositions> = HashMap::new();
    let mut seen = HashSet::new();
    for record in log(evidence) {
        let Some(exchange) = definite.get(&record.request).filter(|_| seen.insert(record.request)) else {
            continue;
        };
        let (partition, epoch) = (record.partition, record.epoch);
        let sequence = record.sequence;
        let line = lines.entry(exchange.key).or_default();
        let burst = exchange.burst.map(|burst| burst.id);
        if burst.is_none() || burst != line.burst {
            let ended = line.members.drain(..).map(|(sequence, _)| sequence).max();
            line.latest = line.latest.max(ended.unwrap_or(0));
            line.burst = burst;
        }
        if sequence < line.latest {
            let latest = line.latest;
            count.add(|| {
                format!(
                    "write {sequence} of {} is behind write {latest} in the log of partition {partition}",
                    record.key
                )
            });
        }
        let Some(burst) = exchange.burst else {
            line.latest = line.latest.max(sequence);
            continue;
        };
        let began = evidence.owners.as_ref().and_then(|owners| owners.epoch_began(partition, epoch));
        let waited = burst.taken_by.zip(began).map_or(0, |(taken, began)| began.saturating_sub(taken));
        let held = waited > 0;
        let pairs = line.members.iter().filter(|(_, other)| *other == epoch).count() as u64;
        held_pairs += if held { pairs } else { 0 };
        let must_keep = |other: Epoch| if other == epoch { held } else { waited <= OPEN_GATE };
        let overtaken_by = |(later, other): &&(u64, Epoch)| *later > sequence && must_keep(*other);
        if let Some((later, other)) = line.members.iter().find(overtaken_by) {
            let key = &record.key;
            count.add(|| {
                format!(
                    "write {later} of {key} (epoch {other}) overtook write {sequence} (epoch {epoch}) of {partition}"
                )
            });
        }
        line.members.push((sequence, epoch));
    }
    (count, held_pairs)
}

/// The work of one pod under one epoch.
#[derive(Debug)]
struct Reign<'a> {
    pod: &'a str,
    incarnation: Incarnation,
    epoch: Epoch,
    times: (Nanos, Nanos),
    offsets: (u64, u64),
}

fn dual_writers(evidence: &Evidence) -> Count {
    let mut count = Count::default();
    let mut partitions: BTreeMap<PartitionId, Vec<Reign<'_>>> = BTreeMap::new();
    for record in log(evidence) {
        let reigns = partitions.entry(record.partition).or_default();
        let own = |reign: &&mut Reign<'_>| {
            reign.epoch == record.epoch && *reign.pod == *record.pod && reign.incarnation == record.incarnation
        };
        let (from, to, offset) = (record.accepted_at, record.appended_at, record.offset);
        // The newest one is the likely one.
        if let Some(reign) = reigns.iter_mut().rev().find(own) {
            reign.times = (reign.times.0.min(from), reign.times.1.max(to));
            reign.offsets.1 = offset;
        } else {
            let (pod, incarnation, epoch) = (&*record.pod, record.incarnation, record.epoch);
            reigns.push(Reign { pod, incarnation, epoch, times: (from, to), offsets: (offset, offset) });
        }
    }
    for (partition, reigns) in &partitions {
        for (index, one) in reigns.iter().enumerate() {
            for other in &reigns[index + 1..] {
                if clash(one, other) {
                    count.add(|| {
                        format!(
                            "{} (epoch {}) and {} (epoch {}) both wrote to partition {partition}",
                            one.pod, one.epoch, other.pod, other.epoch
                        )
                    });
                }
            }
        }
    }
    count
}

/// Describes a clash, where `first` has the first record of the two.
fn clash(first: &Reign<'_>, second: &Reign<'_>) -> bool {
    let same_pod = first.pod == second.pod && first.incarnation == second.incarnation;
    let overlap = first.times.0 < second.times.1 && second.times.0 < first.times.1;
    let mingled = second.offsets.0 < first.offsets.1;
    (overlap && !same_pod) || mingled || second.epoch < first.epoch || (second.epoch == first.epoch && !same_pod)
}

#[cfg(test)]
mod tests;
