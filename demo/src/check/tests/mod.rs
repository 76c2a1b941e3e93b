//! Each count detects its harm and no other. Sound histories have none.

use std::sync::Arc;

use segue_protocol::ids::{Epoch, Incarnation, PartitionId, Revision};

use super::super::record::Burst;
use super::*;

mod random;

const E1: Epoch = Epoch::new(1);
const P1: PartitionId = PartitionId::new(1);
const P7: PartitionId = PartitionId::new(7);
const P8: PartitionId = PartitionId::new(8);

fn life(number: u64) -> Incarnation {
    Incarnation::registered_at(Revision::new(number))
}

const PODS: [&str; 3] = ["a", "b", "c"];

/// A history that is built step by step, with a clock of its own. Key `k` belongs to partition `k`.
#[derive(Default)]
struct World {
    now: Nanos,
    evidence: Evidence,
    epochs: HashMap<PartitionId, (Epoch, usize)>,
    sequences: HashMap<Key, u64>,
    requests: RequestId,
}

impl World {
    fn new() -> Self {
        let mut world = World::default();
        world.evidence.log = Some(Vec::new());
        world.evidence.owners = Some(Owners::default());
        world
    }

    fn tick(&mut self) -> Nanos {
        self.now += 10;
        self.now
    }

    fn owners(&mut self) -> &mut Owners {
        self.evidence.owners.as_mut().unwrap()
    }

    fn log(&mut self) -> &mut Vec<LogRecord> {
        self.evidence.log.as_mut().unwrap()
    }

    fn give(&mut self, partition: PartitionId, pod: usize) {
        let (epoch, owner) = self.epochs.entry(partition).or_default();
        (*epoch, *owner) = (epoch.next(), pod);
        let epoch = *epoch;
        let not_before = self.tick();
        self.owners().note(
            partition,
            epoch,
            OwnerSpan { pod: PODS[pod].into(), incarnation: life(1 + pod as u64), not_before },
        );
        let by = self.tick();
        self.owners().begun(partition, epoch, by);
    }

    fn sent(&mut self, key: Key, kind: RequestKind, outcome: Outcome) -> usize {
        self.requests += 1;
        let sent_at = self.tick();
        let answered_by =
            (outcome == Outcome::Ok).then(|| (PODS[self.epochs[&key.into()].1].into(), self.epochs[&key.into()].0));
        self.evidence.exchanges.push(ClientExchange {
            request: self.requests,
            key,
            partition: key.into(),
            kind,
            due_at: sent_at,
            sent_at,
            ended_at: sent_at + 9,
            outcome,
            answered_by,
            burst: None,
        });
        self.evidence.exchanges.len() - 1
    }

    fn send(&mut self, key: Key, outcome: Outcome) -> usize {
        let sequence = self.sequences.entry(key).or_default();
        *sequence += 1;
        let kind = RequestKind::Write { sequence: *sequence };
        self.sent(key, kind, outcome)
    }

    fn append(&mut self, exchange: usize) -> &mut LogRecord {
        let ClientExchange { request, key, kind: RequestKind::Write { sequence }, .. } =
            self.evidence.exchanges[exchange]
        else {
            panic!("a write");
        };
        let (epoch, pod) = self.epochs[&key.into()];
        let accepted_at = self.tick();
        let offset = self.log().len() as u64;
        self.log().push(LogRecord {
            partition: key.into(),
            offset,
            epoch,
            pod: PODS[pod].into(),
            incarnation: life(1 + pod as u64),
            request,
            key: key.to_string().into(),
            sequence,
            accepted_at,
            appended_at: accepted_at + 5,
            value: Arc::from(""),
        });
        self.log().last_mut().unwrap()
    }

    fn write(&mut self, key: Key) -> usize {
        let exchange = self.send(key, Outcome::Ok);
        self.append(exchange);
        exchange
    }

    fn read(&mut self, key: Key, behind: u64) {
        let floor = self.sequences.get(&key).copied().unwrap_or(0);
        self.sent(key, RequestKind::Read { floor, seen: floor - behind, last: false }, Outcome::Ok);
    }

    fn harm(&self) -> [u64; 5] {
        check(&self.evidence).counts().map(|(_, count)| count.count)
    }
}

fn refused(code: u16) -> Outcome {
    Outcome::Refused { code, reason: "why".into() }
}

fn unknown(code: u16) -> Outcome {
    Outcome::Unknown { code, reason: "why".into() }
}

/// Returns the history of a partition that moved from `a` to `b`, with writes and reads before and after.
fn moved() -> World {
    let mut world = World::new();
    world.give(P7, 0);
    world.write(7);
    world.write(7);
    world.read(7, 0);
    world.give(P7, 1);
    world.write(7);
    world.read(7, 0);
    world
}

#[test]
fn a_sound_history_has_no_harm() {
    let mut world = moved();
    world.send(7, refused(503));
    world.send(7, unknown(502));
    let applied = world.send(7, unknown(0));
    world.write(7);
    world.append(applied);
    assert_eq!(world.harm(), [0; 5]);
}

#[test]
fn an_acknowledged_write_that_is_not_in_the_log_is_lost() {
    let mut world = moved();
    world.send(7, Outcome::Ok);
    assert_eq!(world.harm(), [1, 0, 0, 0, 0]);
}

#[test]
fn a_read_that_misses_an_acknowledged_write_shows_a_loss() {
    let mut world = moved();
    world.read(7, 1);
    assert_eq!(world.harm(), [1, 0, 0, 0, 0]);
}

#[test]
fn a_request_without_an_answer_and_a_key_without_a_last_look_are_lost() {
    let mut world = moved();
    world.send(7, Outcome::Unanswered { place: "connecting".into() });
    world.sent(7, RequestKind::Read { floor: 3, seen: 0, last: true }, refused(503));
    world.sent(7, RequestKind::Read { floor: 3, seen: 0, last: false }, refused(503));
    assert_eq!(world.harm(), [2, 0, 0, 0, 0]);
}

#[test]
fn a_request_that_took_effect_twice_is_duplicated_and_not_reordered() {
    let mut world = moved();
    let twice = world.write(7);
    world.write(7);
    world.append(twice);
    assert_eq!(world.harm(), [0, 1, 0, 0, 0]);
}

#[test]
fn a_refused_request_that_took_effect_counts_as_duplicated() {
    let mut world = moved();
    let refused = world.send(7, refused(503));
    world.append(refused);
    assert_eq!(world.harm(), [0, 1, 0, 0, 0]);
}

#[test]
fn a_pod_that_is_not_the_owner_of_that_epoch_is_misrouted_to() {
    let mut world = moved();
    let record = world.log().last_mut().unwrap();
    (record.pod, record.incarnation) = ("c".into(), life(3));
    assert_eq!(world.harm(), [0, 0, 1, 0, 0]);
}

#[test]
fn an_owner_that_took_a_request_before_its_time_is_misrouted_to() {
    let mut world = moved();
    // The record is the first owner's, so the two owners do not overlap.
    world.log()[0].accepted_at = 5;
    assert_eq!(world.harm(), [0, 0, 1, 0, 0]);
}

#[test]
fn an_owner_that_took_a_request_after_its_time_is_misrouted_to() {
    let mut world = moved();
    // The next owner has written nothing, so the two do not overlap.
    world.give(P7, 2);
    let (epoch, late) = (Epoch::new(2), world.send(7, Outcome::Ok));
    let record = world.append(late);
    (record.epoch, record.pod, record.incarnation) = (epoch, "b".into(), life(2));
    assert_eq!(world.harm(), [0, 0, 1, 0, 0]);
}

#[test]
fn a_read_answered_by_an_old_owner_and_a_refusal_that_reached_a_client_are_misrouted() {
    let mut world = moved();
    world.read(7, 0);
    world.evidence.exchanges.last_mut().unwrap().answered_by = Some(("a".into(), E1));
    world.send(7, refused(421));
    assert_eq!(world.harm(), [0, 0, 2, 0, 0]);
}

#[test]
fn a_record_in_the_log_of_another_partition_is_misrouted() {
    let mut world = moved();
    world.evidence.exchanges.last_mut().unwrap().partition = P8;
    world.evidence.exchanges[0].partition = P8;
    // The response to the read names an epoch that partition 8 never had.
    assert_eq!(world.harm(), [0, 0, 2, 0, 0]);
}

#[test]
fn a_write_behind_a_later_one_of_its_key_is_reordered() {
    let mut world = moved();
    let (first, second) = (world.send(7, Outcome::Ok), world.send(7, Outcome::Ok));
    world.append(second);
    world.append(first);
    assert_eq!(world.harm(), [0, 0, 0, 1, 0]);
}

#[test]
fn two_pods_that_write_at_the_same_time_overlap() {
    let mut world = moved();
    // The last write of `a` takes until `b` has begun.
    world.log()[1].appended_at = 1_000;
    assert_eq!(world.harm(), [0, 0, 0, 0, 1]);
}

/// Returns a history in which the last write of `a` is in the log behind the first one of `b`, the later owner.
fn late_write_of_an_owner(writes_before: usize) -> World {
    let mut world = World::new();
    world.give(P1, 0);
    (0..writes_before).for_each(|_| _ = world.write(1));
    let late = world.send(1, unknown(504));
    world.give(P1, 1);
    world.write(1);
    let time = world.log()[writes_before].accepted_at;
    let record = world.append(late);
    (record.epoch, record.pod, record.incarnation) = (Epoch::new(1), "a".into(), life(1));
    // Its times are those of the old epoch; only its place in the log is too late.
    (record.accepted_at, record.appended_at) = (time - 25, time - 25);
    world
}

#[test]
fn an_epoch_that_falls_is_an_overlap() {
    assert_eq!(late_write_of_an_owner(0).harm(), [0, 0, 0, 0, 1]);
}

#[test]
fn a_record_of_an_owner_among_those_of_the_next_is_an_overlap() {
    assert_eq!(late_write_of_an_owner(2).harm(), [0, 0, 0, 0, 1]);
}

fn burst(world: &mut World, id: u64, count: usize, taken_by: Option<Nanos>) -> Vec<usize> {
    let members: Vec<usize> = (0..count).map(|_| world.send(7, Outcome::Ok)).collect();
    for member in &members {
        world.evidence.exchanges[*member].burst = Some(Burst { id, taken_by });
    }
    members
}

#[test]
fn requests_that_met_an_open_gate_may_overtake_each_other_but_not_the_next_burst() {
    let mut world = moved();
    let open = burst(&mut world, 1, 2, Some(Nanos::MAX));
    world.append(open[1]);
    world.append(open[0]);
    let next = burst(&mut world, 2, 1, None);
    world.append(next[0]);
    assert_eq!(world.harm(), [0; 5]);
    world.log().swap(3, 5);
    assert_eq!(world.harm()[3], 2, "both of the first burst are behind the second");
}

#[test]
fn requests_that_were_held_together_must_keep_their_order() {
    let mut world = moved();
    let now = world.now;
    let held = burst(&mut world, 1, 3, Some(now));
    world.give(P7, 2);
    for member in [0, 2, 1] {
        world.append(held[member]);
    }
    assert_eq!(world.harm(), [0, 0, 0, 1, 0]);
    assert_eq!(check(&world.evidence).held_pairs_checked, 3);
}

#[test]
fn a_request_must_not_overtake_across_a_cutover() {
    let mut world = moved();
    let members = burst(&mut world, 1, 2, None);
    world.append(members[1]);
    world.give(P7, 2);
    world.append(members[0]);
    assert_eq!(world.harm(), [0, 0, 0, 1, 0]);
}

#[test]
fn a_request_that_was_sent_long_before_a_cutover_may_come_back_and_be_behind_those_sent_beside_it() {
    for (pause, reordered) in [(0, 1), (2 * OPEN_GATE, 0)] {
        let mut world = moved();
        let taken = world.now;
        let members = burst(&mut world, 1, 2, Some(taken));
        world.append(members[1]);
        world.now += pause;
        world.give(P7, 2);
        world.append(members[0]);
        assert_eq!(world.harm(), [0, 0, 0, reordered, 0], "after {pause} ns");
    }
}

#[test]
fn harm_of_another_keyspace_is_added_kind_by_kind() {
    let kind = |count| Count { count, examples: vec![format!("{count}")] };
    let (lost, duplicated, misrouted, reordered, dual_writer_overlaps) = (kind(1), kind(2), kind(3), kind(4), kind(5));
    let other =
        Harm { lost, duplicated, misrouted, reordered, dual_writer_overlaps, held_pairs_checked: 6, reads_checked: 7 };
    let mut harm = other.clone();
    harm.add(other);
    assert_eq!(harm.counts().map(|(_, kind)| kind.count), [2, 4, 6, 8, 10]);
    assert_eq!((harm.held_pairs_checked, harm.reads_checked), (12, 14));
}
