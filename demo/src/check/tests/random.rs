//! Random histories: a sound one has no harm, and a record that is taken out, put twice or swapped is noticed.

use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone)]
enum Step {
    Give(u32, usize),
    Write(Key),
    Read(Key),
    Refuse(Key),
    Break(Key, bool),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let key = 0..4_u32;
    let step = prop_oneof![
        (key.clone(), 0..3_usize).prop_map(|(partition, pod)| Step::Give(partition, pod)),
        key.clone().prop_map(Step::Write),
        key.clone().prop_map(Step::Write),
        key.clone().prop_map(Step::Read),
        key.clone().prop_map(Step::Refuse),
        (key, any::<bool>()).prop_map(|(key, applied)| Step::Break(key, applied)),
    ];
    prop::collection::vec(step, 0..120)
}

fn carry_out(steps: Vec<Step>) -> World {
    let mut world = World::new();
    PartitionId::all(4).for_each(|partition| world.give(partition, 0));
    for step in steps {
        match step {
            Step::Give(partition, pod) => world.give(partition.into(), pod),
            Step::Write(key) => drop(world.write(key)),
            Step::Read(key) => world.read(key, 0),
            Step::Refuse(key) => drop(world.send(key, refused(503))),
            Step::Break(key, applied) => {
                let sent = world.send(key, unknown(502));
                if applied {
                    world.append(sent);
                }
            }
        }
    }
    // The log is read partition by partition.
    world.log().sort_by_key(|record| record.partition);
    world
}

/// Compares every pair of records: slow, but obviously right.
fn two_pods_wrote_at_once(log: &[LogRecord]) -> bool {
    let reign = |record: &LogRecord| (record.partition, record.epoch, record.pod.clone(), record.incarnation);
    let span = |of: &LogRecord| {
        let own = || log.iter().filter(|record| reign(record) == reign(of));
        let from = own().map(|record| record.accepted_at).min().unwrap();
        (from, own().map(|record| record.appended_at).max().unwrap())
    };
    log.iter().enumerate().any(|(at, one)| {
        log[at + 1..].iter().filter(|other| other.partition == one.partition).any(|other| {
            let (one_span, other_span) = (span(one), span(other));
            let other_pod = (&one.pod, one.incarnation) != (&other.pod, other.incarnation);
            other.epoch < one.epoch || (other_pod && one_span.0 < other_span.1 && other_span.0 < one_span.1)
        })
    })
}

proptest! {
    #[test]
    fn no_sound_history_is_accused(steps in steps()) {
        prop_assert_eq!(carry_out(steps).harm(), [0; 5]);
    }

    #[test]
    fn a_record_taken_out_put_twice_or_swapped_is_always_noticed(steps in steps(), at in any::<prop::sample::Index>()) {
        let world = carry_out(steps);
        let acked = |record: &&LogRecord| world.evidence.exchanges[record.request as usize - 1].outcome == Outcome::Ok;
        let log = world.evidence.log.as_ref().unwrap();
        let known: Vec<&LogRecord> = log.iter().filter(acked).collect();
        prop_assume!(!known.is_empty());
        let victim = log.iter().position(|record| record == *at.get(&known)).unwrap();
        let with = |log: Vec<LogRecord>| check(&Evidence { log: Some(log), ..world.evidence.clone() });

        let mut without = log.clone();
        without.remove(victim);
        prop_assert_eq!(with(without).lost.count, 1);
        let mut twice = log.clone();
        twice.push(log[victim].clone());
        prop_assert_eq!(with(twice).duplicated.count, 1);
        let later = log.iter().skip(victim + 1).position(|record| record.key == log[victim].key && acked(&record));
        if let Some(later) = later {
            let mut swapped = log.clone();
            swapped.swap(victim, victim + 1 + later);
            prop_assert!(with(swapped).reordered.count > 0);
        }
    }

    #[test]
    fn overlaps_are_found_exactly_when_every_pair_of_records_held_against_each_other_shows_one(
        steps in steps(),
        shifts in prop::collection::vec((any::<prop::sample::Index>(), -200..200_i64, any::<bool>()), 0..3),
    ) {
        let mut world = carry_out(steps);
        prop_assume!(!world.log().is_empty());
        for (at, shift, start) in shifts {
            let at = at.index(world.log().len());
            let record = &mut world.log()[at];
            let moved = |time: Nanos| time.saturating_add_signed(shift);
            if start {
                record.accepted_at = moved(record.accepted_at).min(record.appended_at);
            } else {
                record.appended_at = moved(record.appended_at).max(record.accepted_at);
            }
        }
        (0..world.log().len()).for_each(|offset| world.log()[offset].offset = offset as u64);
        let found = dual_writers(&world.evidence).count > 0;
        prop_assert_eq!(found, two_pods_wrote_at_once(world.log()));
    }
}
