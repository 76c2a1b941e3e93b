//! The recent events of the keyspace and the cutovers of its routers, derived from changes of the store. Pure.
//!
//! Every process derives the same entries, whichever participant made the change. The journal is not a history: it
//! begins with the process and drops its oldest entries.
//!
//! # Invariants
//!
//! * The number of entries and cutovers is bounded.
//! * Entries and cutovers are numbered in one sequence, so a reader that has seen one needs only those after it.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use segue_config::readable;
use segue_protocol::ids::{HandoffId, PartitionId};
use segue_protocol::keys::KeyName;
use segue_protocol::records::{Handoff, Phase, PodStatus, RouterCutoverAck};
use segue_protocol::txn::{Batch, Event};
use segue_protocol::view::{View, ViewDelta};
use serde::Serialize;

/// Most entries, and most cutovers, that are kept.
const MAX_ENTRIES: usize = 200;
const MAX_CUTOVERS: usize = 1000;

/// An entry of the event log.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct JournalEntry {
    /// Its place in the journal.
    pub(super) n: u64,
    /// When this process saw it, in Unix milliseconds.
    at: u64,
    /// Whether the event needs attention.
    warn: bool,
    /// The partition that it is about.
    partition: Option<PartitionId>,
    /// The event in words.
    text: String,
}

/// The cutover of one router in the move of a partition from a previous owner.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Cutover {
    /// Its place in the journal.
    pub(super) n: u64,
    /// When this process saw it, in Unix milliseconds.
    at: u64,
    partition: PartitionId,
    router: String,
    from: String,
    to: String,
    /// The reason for the move.
    reason: String,
    pause_us: u64,
    drain_us: u64,
    flush_us: u64,
    stashed: u64,
}

/// A handoff in flight.
#[derive(Debug)]
struct FollowedMove {
    id: HandoffId,
    record: Handoff,
    /// The longest pause so far, in microseconds, and its router.
    longest: Option<(u64, String)>,
}

/// The journal of one followed keyspace.
#[derive(Debug, Default)]
pub(super) struct Journal {
    next: u64,
    moves: BTreeMap<PartitionId, FollowedMove>,
    entries: VecDeque<JournalEntry>,
    cutovers: VecDeque<Cutover>,
}

/// The participants that the event log follows.
struct JournalMembers {
    pods: BTreeMap<String, (u64, PodStatus)>,
    routers: BTreeMap<String, u64>,
    leader: Option<String>,
}

impl JournalMembers {
    fn of(view: &View) -> Self {
        JournalMembers {
            pods: view
                .pods
                .iter()
                .map(|(name, pod)| (name.clone(), (pod.create_revision.get(), pod.value.status)))
                .collect(),
            routers: view.routers.iter().map(|(name, router)| (name.clone(), router.create_revision.get())).collect(),
            leader: view.coordinator().map(str::to_owned),
        }
    }
}

impl Journal {
    /// Returns the number that the next entry will have.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// Returns the entries from the `n`th place on.
    pub(super) fn entries_from(&self, n: u64) -> impl Iterator<Item = &JournalEntry> {
        self.entries.iter().skip_while(move |entry| entry.n < n)
    }

    /// Returns the cutovers from the `n`th place on.
    pub(super) fn cutovers_from(&self, n: u64) -> impl Iterator<Item = &Cutover> {
        self.cutovers.iter().skip_while(move |cutover| cutover.n < n)
    }

    /// Replaces the view by a snapshot, and records which participants have changed meanwhile.
    pub(super) fn replace(&mut self, view: &mut View, snapshot: View, now: u64) {
        let before = JournalMembers::of(view);
        let is_first = view.revision.get() == 0;
        view.resync(snapshot);
        self.moves = view
            .handoffs
            .iter()
            .map(|(partition, handoff)| {
                (*partition, FollowedMove { id: handoff.id(), record: handoff.value.clone(), longest: None })
            })
            .collect();
        if is_first {
            self.say(now, false, None, format!("reading the keyspace from revision {}", view.revision));
        } else {
            self.say(now, false, None, format!("keyspace read anew at revision {}", view.revision));
            self.compare(&before, view, now);
        }
    }

    /// Applies the changes of a watch to the view, and records them.
    pub(super) fn apply(&mut self, view: &mut View, batch: Batch, now: u64) -> ViewDelta {
        if batch.revision <= view.revision {
            return ViewDelta::default();
        }
        let mut before = None;
        for event in &batch.events {
            let (key, value) = match event {
                event if event.mod_revision() <= view.revision => continue,
                Event::Put(entry) => (&entry.key, Some(entry)),
                Event::Delete { key, .. } => (key, None),
            };
            match (view.keys().parse(key), value) {
                (Some(KeyName::Handoff(partition)), Some(entry)) => {
                    let id = HandoffId::created_at(entry.create_revision);
                    if let Ok(record) = serde_json::from_slice(&entry.value) {
                        self.moves(now, partition, id, record);
                    }
                }
                (Some(KeyName::Handoff(partition)), None) => self.ends(now, partition),
                (Some(KeyName::RouterCutover(partition, _)), Some(entry)) => {
                    if let Ok(ack) = serde_json::from_slice(&entry.value) {
                        self.cuts_over(now, partition, ack);
                    }
                }
                (Some(KeyName::Pod(_) | KeyName::Router(_) | KeyName::Leader | KeyName::Rounds(_)), _) => {
                    before.get_or_insert_with(|| JournalMembers::of(view));
                }
                _ => {}
            }
        }
        let touched = view.apply(batch);
        if let Some(before) = before {
            self.compare(&before, view, now);
        }
        touched
    }

    /// Records that the watch of the store is lost.
    pub(super) fn lost(&mut self, error: &str, now: u64) {
        self.say(now, true, None, format!("store watch lost: {error}"));
    }

    fn moves(&mut self, now: u64, partition: PartitionId, id: HandoffId, record: Handoff) {
        match self.moves.get_mut(&partition) {
            Some(known) if known.id == id => known.record = record,
            known => {
                if known.is_some() {
                    self.ends(now, partition);
                }
                self.moves.insert(partition, FollowedMove { id, record, longest: None });
            }
        }
    }

    fn cuts_over(&mut self, now: u64, partition: PartitionId, ack: RouterCutoverAck) {
        let Some(moving) = self.moves.get_mut(&partition).filter(|moving| moving.id == ack.handoff) else { return };
        // Requests of a partition without a previous owner wait for its first one; no cutover delays them.
        let Some(from) = moving.record.old_owner.clone() else { return };
        if moving.longest.as_ref().is_none_or(|(pause, _)| *pause < ack.pause_us) {
            moving.longest = Some((ack.pause_us, ack.router_name.clone()));
        }
        let cutover = Cutover {
            n: self.next,
            at: now,
            partition,
            router: ack.router_name,
            from,
            to: moving.record.new_owner.clone(),
            reason: moving.record.reason.clone(),
            pause_us: ack.pause_us,
            drain_us: ack.drain_us,
            flush_us: ack.flush_us,
            stashed: ack.stashed,
        };
        push(&mut self.cutovers, cutover, MAX_CUTOVERS);
        self.next += 1;
    }

    fn ends(&mut self, now: u64, partition: PartitionId) {
        let Some(FollowedMove { record, longest, .. }) = self.moves.remove(&partition) else { return };
        let (to, from) = (&record.new_owner, record.old_owner.as_deref());
        // The assignment flips on the way into `Switching`; before that a handoff without a record was cancelled.
        if record.phase < Phase::Switching {
            let from = from.unwrap_or("nobody");
            let text =
                format!("move of partition {partition} from {from} to {to} cancelled in {}", record.phase.as_str());
            return self.say(now, true, Some(partition), text);
        }
        let text = match (from, longest) {
            (None, _) => format!("partition {partition} placed on {to}"),
            (Some(from), None) => format!("partition {partition} moved from {from} to {to}"),
            (Some(from), Some((pause, router))) => {
                let pause = readable(Duration::from_micros(pause));
                format!("partition {partition} moved from {from} to {to}: paused {pause} on {router}")
            }
        };
        self.say(now, false, Some(partition), text);
    }

    fn compare(&mut self, before: &JournalMembers, view: &View, now: u64) {
        let after = JournalMembers::of(view);
        for (name, (_, status)) in &before.pods {
            match after.pods.get(name) {
                None => self.say(now, true, None, format!("pod {name} is gone")),
                Some((_, now_is)) if now_is != status => {
                    self.say(now, false, None, format!("pod {name} is {now_is:?} now"));
                }
                _ => {}
            }
        }
        for (name, (life, _)) in &after.pods {
            match before.pods.get(name) {
                None => self.say(now, false, None, format!("pod {name} registered")),
                Some((other, _)) if other != life => {
                    self.say(now, true, None, format!("pod {name} registered anew: another life"));
                }
                _ => {}
            }
        }
        for name in before.routers.keys().filter(|name| !after.routers.contains_key(*name)) {
            self.say(now, true, None, format!("router {name} is gone"));
        }
        for (name, life) in &after.routers {
            match before.routers.get(name) {
                None => self.say(now, false, None, format!("router {name} registered")),
                Some(other) if other != life => {
                    self.say(now, true, None, format!("router {name} registered anew: another life"));
                }
                _ => {}
            }
        }
        if before.leader != after.leader {
            let text = after.leader.as_ref().map_or("no coordinator leads".to_owned(), |name| format!("{name} leads"));
            self.say(now, after.leader.is_none(), None, text);
        }
    }

    fn say(&mut self, at: u64, warn: bool, partition: Option<PartitionId>, text: String) {
        push(&mut self.entries, JournalEntry { n: self.next, at, warn, partition, text }, MAX_ENTRIES);
        self.next += 1;
    }
}

fn push<T>(list: &mut VecDeque<T>, item: T, most: usize) {
    if list.len() == most {
        list.pop_front();
    }
    list.push_back(item);
}
