//! The end of a handoff: the writes that delete its record, and the history entry that takes its place.
//!
//! Pure. An entry is written by the transaction that deletes the record, so there is one for every handoff that a
//! participant ended and none for any other. It has a key of its own, so it can neither fail that transaction nor collide with
//! another entry. The write that begins a move compares when the newest entry of its partition was created. The leader
//! deletes the oldest entries ([`surplus`]).
//!
//! A store that refuses every put still accepts deletions. A cancel goes without its entry there, which follows later
//! ([`deletions_alone`]).
//!
//! # Invariants
//!
//! * An entry has at most `MAX_ROUTERS` routers and `MAX_TEXT` bytes in each text.
//! * Once the leader has deleted the surplus there are at most [`MAX_PER_PARTITION`] entries of a partition and
//!   [`MAX_ENTRIES`] in all, and they are the newest. [`RefusingEntries`] is kept beside them.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use crate::authority::Authority;
use crate::ids::{HandoffId, PartitionId, Revision};
use crate::keys::Keyspace;
use crate::records::{Handoff, HandoffEnd, HistoryEntry, PastBackOff, Phase, RouterPart, encode};
use crate::txn::{Compare, Keys, Op, Txn};
use crate::view::{Acks, Versioned, View};

/// Most entries of a partition that are kept.
pub const MAX_PER_PARTITION: usize = 16;
/// Most entries that are kept.
pub const MAX_ENTRIES: usize = 4096;
/// Most routers in an entry.
const MAX_ROUTERS: usize = 16;
/// Most bytes of a text in an entry.
const MAX_TEXT: usize = 256;

/// How a handoff ends, and why.
#[derive(Debug, Clone)]
pub(crate) struct HandoffEnding {
    pub(crate) result: HandoffEnd,
    /// The kind of reason.
    pub(crate) cause: &'static str,
    /// The reason in words.
    pub(crate) reason: String,
    pub(crate) back_offs: Vec<PastBackOff>,
}

impl HandoffEnding {
    /// A handoff that completes by itself.
    pub(crate) const COMPLETED: HandoffEnding = HandoffEnding::new(HandoffEnd::Completed, "", String::new());

    /// An end that no back-off follows.
    pub(crate) const fn new(result: HandoffEnd, cause: &'static str, reason: String) -> Self {
        HandoffEnding { result, cause, reason, back_offs: Vec::new() }
    }
}

/// Returns the writes that end a handoff: they delete its record and all of its acks, and put its history entry. `now`
/// is informational.
pub(crate) fn end_handoff(view: &View, handoff: &Versioned<Handoff>, ending: HandoffEnding, now: u64) -> Vec<Op> {
    let acks = view.keys().acks_of(handoff.value.partition).map(|prefix| Op::Delete(Keys::Prefix(prefix)));
    acks.into_iter().chain(end_without_acks(view, handoff, ending, now)).collect()
}

/// Like [`end_handoff`], of a handoff that nobody had to acknowledge.
pub(super) fn end_without_acks(view: &View, handoff: &Versioned<Handoff>, ending: HandoffEnding, now: u64) -> [Op; 2] {
    let (keys, partition) = (view.keys(), handoff.value.partition);
    let key = keys.history_entry(partition, handoff.id());
    [Op::delete(keys.handoff(partition)), Op::put(key, encode(&entry(view, handoff, ending, now)))]
}

/// The entry of a handoff that was cancelled by deletions alone. It is put once the store accepts puts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LateEntry {
    partition: PartitionId,
    handoff: HandoffId,
    put: Op,
}

impl LateEntry {
    /// Returns the handoff.
    pub fn handoff(&self) -> HandoffId {
        self.handoff
    }

    /// Returns the transaction that puts the entry. It fails if the handoff still exists, or has an entry.
    pub fn txn(&self, keys: &Keyspace, authority: &Authority) -> Txn {
        let mut when = authority.guards(keys);
        when.push(Compare::not_created_at(keys.handoff(self.partition), self.handoff.revision()));
        when.push(Compare::created_at(keys.history_entry(self.partition, self.handoff), Revision::ZERO));
        Txn::guarded(when, [self.put.clone()])
    }
}

/// Takes the puts out of a transaction that cancels this handoff. Returns the handoff's entry, which is one of them.
pub fn deletions_alone(
    keys: &Keyspace,
    partition: PartitionId,
    handoff: HandoffId,
    cancel: &mut Txn,
) -> Option<LateEntry> {
    let entry = keys.history_entry(partition, handoff);
    let mut puts = cancel.then.extract_if(.., |op| matches!(op, Op::Put { .. }));
    let put = puts.find(|op| matches!(op, Op::Put { key, .. } if *key == entry));
    puts.for_each(drop);
    put.map(|put| LateEntry { partition, handoff, put })
}

fn entry(view: &View, handoff: &Versioned<Handoff>, ending: HandoffEnding, now: u64) -> HistoryEntry {
    let (id, record) = (handoff.id(), &handoff.value);
    let mut routers = view.acks.get(&record.partition).map_or_else(Vec::new, |acks| parts(acks, id));
    let (held, severed) = routers.iter().fold((0u64, 0u64), |(held, severed), part| {
        (held.saturating_add(part.held), severed.saturating_add(part.severed))
    });
    routers.sort_by_key(|part| Reverse(part.pause_us));
    let more_routers = routers.len().saturating_sub(MAX_ROUTERS);
    routers.truncate(MAX_ROUTERS);
    let mut phases = record.clone().entering(record.phase, now).past;
    phases.truncate(Phase::ALL.len());
    HistoryEntry {
        handoff: id,
        partition: record.partition,
        from: record.old_owner.as_deref().map(short),
        to: short(&record.new_owner),
        epoch: record.epoch,
        mode: record.mode,
        cause: short(&record.cause),
        reason: short(&record.reason),
        result: ending.result,
        end_cause: ending.cause.to_owned(),
        end_reason: short(&ending.reason),
        begun_at: record.started_at,
        ended_at: now,
        phases,
        routers,
        more_routers,
        held,
        severed,
        back_offs: ending.back_offs,
    }
}

/// Returns what each router has acknowledged for this handoff.
fn parts(acks: &Acks, id: HandoffId) -> Vec<RouterPart> {
    let mut parts: BTreeMap<&str, RouterPart> = BTreeMap::new();
    for (router, ack) in acks.drained.iter().filter(|(_, ack)| ack.handoff == id) {
        parts.entry(router).or_default().severed = ack.severed;
    }
    for (router, ack) in acks.cutover.iter().filter(|(_, ack)| ack.handoff == id) {
        let part = parts.entry(router).or_default();
        (part.held, part.pause_us) = (ack.stashed, Some(ack.pause_us));
        (part.drain_us, part.flush_us) = (ack.drain_us, ack.flush_us);
    }
    parts.into_iter().map(|(router, part)| RouterPart { router: short(router), ..part }).collect()
}

fn short(text: &str) -> String {
    text[..text.floor_char_boundary(MAX_TEXT)].to_owned()
}

/// The entries by which the store refuses a write that is still on its way. Such a write would begin a handoff with the epoch
/// of one that was cancelled meanwhile. Writes by earlier authorities are refused as such.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RefusingEntries {
    /// Partitions about which this process has made a write without learning whether it took effect.
    doubtful: BTreeSet<PartitionId>,
}

impl RefusingEntries {
    /// Keeps the evidence about this partition: a write about it may still be on its way.
    pub fn keep(&mut self, partition: PartitionId) {
        self.doubtful.insert(partition);
    }

    fn includes(&self, authority: &Authority, handoff: HandoffId, partition: PartitionId, is_newest: bool) -> bool {
        match authority {
            Authority::Leader { .. } => is_newest && self.doubtful.contains(&partition),
            // Others have written as well, so the entries of a round stay until the next one.
            Authority::Round { round, .. } => handoff.revision() > *round,
        }
    }
}

/// Returns the entries that the holder of `authority` deletes, out of all that exist: the oldest of each partition that has
/// too many, and then the oldest of all.
pub fn surplus(
    entries: impl IntoIterator<Item = (PartitionId, HandoffId)>,
    authority: &Authority,
    evidence: &RefusingEntries,
) -> Vec<(PartitionId, HandoffId)> {
    let mut newest_first: Vec<(HandoffId, PartitionId)> = entries.into_iter().map(|(at, id)| (id, at)).collect();
    newest_first.sort_unstable_by_key(|entry| Reverse(*entry));
    let mut seen_of: BTreeMap<PartitionId, usize> = BTreeMap::new();
    let mut kept = 0;
    let mut is_kept = |partition: PartitionId, handoff: HandoffId| {
        let of_partition = seen_of.entry(partition).or_default();
        let has_room = *of_partition < MAX_PER_PARTITION && kept < MAX_ENTRIES;
        let is_evidence = evidence.includes(authority, handoff, partition, *of_partition == 0);
        *of_partition += 1;
        kept += usize::from(has_room);
        has_room || is_evidence
    };
    newest_first.into_iter().filter(|(id, at)| !is_kept(*at, *id)).map(|(id, at)| (at, id)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(revision: u64) -> HandoffId {
        HandoffId::created_at(Revision::new(revision))
    }

    const LEADER: Authority = Authority::Leader { term: Revision::new(1) };

    fn kept(entries: &[(PartitionId, HandoffId)]) -> Vec<(PartitionId, HandoffId)> {
        kept_beside(entries, &LEADER, &RefusingEntries::default())
    }

    fn kept_beside(
        entries: &[(PartitionId, HandoffId)],
        authority: &Authority,
        evidence: &RefusingEntries,
    ) -> Vec<(PartitionId, HandoffId)> {
        let gone = surplus(entries.iter().copied(), authority, evidence);
        entries.iter().copied().filter(|entry| !gone.contains(entry)).collect()
    }

    #[test]
    fn the_newest_of_each_partition_are_kept() {
        let one = |revision| (PartitionId::new(1), id(revision));
        let mut entries: Vec<_> = (1..=40).map(one).collect();
        entries.push((PartitionId::new(2), id(1)));
        let expected: Vec<_> = (25..=40).map(one).chain([(PartitionId::new(2), id(1))]).collect();
        assert_eq!(kept(&entries), expected);
        assert_eq!(surplus(expected, &LEADER, &RefusingEntries::default()), []);
    }

    #[test]
    fn the_newest_of_all_are_kept_also_if_many_were_created_at_one_revision() {
        // Handoffs that are created in one request have one revision.
        let entries: Vec<_> = (0..MAX_ENTRIES as u32 + 100)
            .map(|number| (PartitionId::new(number), id(u64::from(number / 64) + 1)))
            .collect();
        let left = kept(&entries);
        assert_eq!(left.len(), MAX_ENTRIES);
        assert_eq!(left, entries[100..]);
    }

    #[test]
    fn what_refuses_a_delayed_write_is_kept_however_many_newer_entries_there_are() {
        let [old, newest] = [5, 6].map(|revision| (PartitionId::new(9), id(revision)));
        let others = (0..MAX_ENTRIES as u64).map(|number| (PartitionId::new(number as u32 + 10), id(number + 10)));
        let entries: Vec<_> = [old, newest].into_iter().chain(others.clone()).collect();
        let others: Vec<_> = others.collect();
        assert_eq!(kept(&entries), others);
        let mut evidence = RefusingEntries::default();
        evidence.keep(PartitionId::new(9));
        let expected: Vec<_> = [newest].into_iter().chain(others.clone()).collect();
        assert_eq!(kept_beside(&entries, &LEADER, &evidence), expected);
        // In a round each process has made writes of which the others do not know.
        let incarnation = crate::ids::Incarnation::registered_at(Revision::new(2));
        let round = Revision::new(5);
        let authority = Authority::Round { name: "c".to_owned(), incarnation, round, rank: 0, of: 2 };
        assert_eq!(kept_beside(&entries, &authority, &RefusingEntries::default()), expected);
    }

    #[test]
    fn a_long_text_is_cut_between_two_characters() {
        assert_eq!(short("short"), "short");
        assert_eq!(short(&"é".repeat(200)).len(), MAX_TEXT);
        assert_eq!(short(&format!("x{}", "é".repeat(200))).len(), MAX_TEXT - 1);
    }
}
