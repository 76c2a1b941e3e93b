//! Which pods are in trouble, by the last seconds of a router's traffic.
//!
//! A pod is judged beside the others and beside its own past, because a router does not know what a service promises. Each
//! pod has one trouble, the gravest.
//!
//! # Invariants
//!
//! * A pod that accepts its requests is neither unreachable nor refusing, from the first request on that it accepts.
//! * Errors and slowness that a few requests show are no trouble.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::{Durations, PodSample, TrafficSample};
use crate::ids::Incarnation;
use crate::records::{HeldRequests, MAX_TROUBLES_LISTED, PodTrouble, RouterTroubles, TroubleKind};

/// The time over which rates are compared.
const WINDOW: Duration = Duration::from_secs(3);
/// Consecutive refusals, or responses that broke off, from which on a pod is in trouble. A pod that learns a little late what
/// it owns refuses fewer.
const IN_A_ROW: u32 = 5;
/// Number of answers within [`WINDOW`] that say something about a pod.
const ENOUGH: u64 = 10;
/// Time without an answer after which a pod is silent, and number of requests that have to wait for it.
const SILENCE: Duration = Duration::from_secs(3);
const SILENT_REQUESTS: u32 = 3;
/// How many times the usual duration a request has to last before its pod is silent or slow.
const FACTOR: u32 = 5;
/// A pod whose usual response is quicker is not slow.
const SLOW: Duration = Duration::from_millis(500);
/// A response that takes this long is no hiccup, and its pod is named at once. Lesser slowness, and errors, have to be seen twice.
const LONG: Duration = Duration::from_secs(2);
/// A trouble ends once it has not been seen for so long.
const OVER_AFTER: Duration = Duration::from_secs(5);
/// Age from which on a request that waits is a trouble. Cutovers take less.
const HELD_TOO_LONG: Duration = Duration::from_secs(1);

/// Returns whether so many consecutive refusals, or responses that broke off, are a trouble of their pod.
pub fn is_run_of_failures(in_a_row: u32) -> bool {
    in_a_row >= IN_A_ROW
}

/// A life of a pod.
type PodLife = (String, Incarnation);

/// Assesses the samples of one router, one after the other.
#[derive(Debug, Default)]
pub struct Assessor {
    /// Those of the last [`WINDOW`], and one from before.
    samples: VecDeque<(Duration, TrafficSample)>,
    sightings: BTreeMap<(PodLife, TroubleKind), TroubleSighting>,
}

/// A trouble that has been seen.
#[derive(Debug)]
struct TroubleSighting {
    first: Duration,
    last: Duration,
    is_certain: bool,
    figures: String,
}

impl Assessor {
    /// Returns what clients suffer by this sample, which was taken at `now`, the time since any fixed moment. The report
    /// lacks the router's name and life.
    pub fn assess(&mut self, now: Duration, sample: TrafficSample) -> RouterTroubles {
        self.see(now, &sample);
        let mut held: Vec<_> = sample.held.iter().filter(|held| held.oldest >= HELD_TOO_LONG).collect();
        held.sort_by_key(|held| std::cmp::Reverse(held.oldest));
        let mut gravest = BTreeMap::new();
        for ((life, kind), sighting) in &self.sightings {
            if sighting.is_certain {
                gravest.entry(life).or_insert((*kind, sighting));
            }
        }
        let mut pods: Vec<PodTrouble> = gravest
            .into_iter()
            .map(|((pod, incarnation), (kind, sighting))| {
                let of_pod = held
                    .iter()
                    .filter(|held| held.pod.as_ref().is_some_and(|(name, life)| name == pod && life == incarnation));
                PodTrouble {
                    pod_name: pod.clone(),
                    incarnation: *incarnation,
                    kind,
                    for_ms: millis(now.saturating_sub(sighting.first)),
                    figures: sighting.figures.clone(),
                    held_requests: of_pod.clone().map(|held| held.requests).sum(),
                    oldest_held_ms: millis(of_pod.map(|held| held.oldest).max().unwrap_or_default()),
                }
            })
            .collect();
        pods.sort_by_key(|pod| std::cmp::Reverse(pod.for_ms));
        pods.truncate(MAX_TROUBLES_LISTED);
        let held_requests = held.iter().map(|held| held.requests).sum();
        let held = held.iter().take(MAX_TROUBLES_LISTED).map(|held| HeldRequests {
            partition: held.partition,
            requests: held.requests,
            oldest_ms: millis(held.oldest),
        });
        let troubles = RouterTroubles { pods, held: held.collect(), held_requests, ..RouterTroubles::default() };
        self.samples.push_back((now, sample));
        troubles
    }

    /// Notes the troubles of this sample, and forgets those that are over.
    fn see(&mut self, now: Duration, sample: &TrafficSample) {
        while self.samples.get(1).is_some_and(|(at, _)| *at + WINDOW <= now) {
            self.samples.pop_front();
        }
        let (of_all, usual) = usual(sample);
        let before = self.samples.front().map(|(_, before)| before);
        let recent: Vec<RecentTraffic<'_>> = sample.pods.iter().map(|pod| RecentTraffic::of(pod, before)).collect();
        for (index, pod) in recent.iter().enumerate() {
            let mut others = Durations::default();
            recent
                .iter()
                .enumerate()
                .filter(|(other, _)| *other != index)
                .for_each(|(_, it)| others.add(&it.durations));
            let life = (pod.now.pod.clone(), pod.now.incarnation);
            let refusal = pod.refusal();
            let silence = pod.silence(usual.filter(|_| of_all >= ENOUGH));
            let seen = [
                refusal.map(|kind| (kind, format!("{} requests in a row", pod.now.refused_in_a_row), true)),
                silence.map(|figures| (TroubleKind::Silent, figures, true)),
                pod.failures().map(|figures| (TroubleKind::Fails, figures, false)),
                pod.slowness(&others).map(|(figures, half)| (TroubleKind::Slow, figures, half >= LONG)),
            ];
            for (kind, figures, is_certain) in seen.into_iter().flatten() {
                let sighting = self.sightings.entry((life.clone(), kind));
                let sighting = sighting.and_modify(|seen| seen.is_certain = true);
                let new = TroubleSighting { first: now, last: now, is_certain, figures: String::new() };
                let sighting = sighting.or_insert(new);
                (sighting.last, sighting.figures) = (now, figures);
            }
        }
        self.sightings.retain(|((pod, incarnation), kind), sighting| {
            let pod = sample.pods.iter().find(|it| it.pod == *pod && it.incarnation == *incarnation);
            let is_by_refusals = matches!(kind, TroubleKind::Unreachable | TroubleKind::Refuses);
            let accepts = |pod: &PodSample| is_by_refusals && pod.refused_in_a_row == 0;
            now < sighting.last + OVER_AFTER && pod.is_some_and(|pod| !accepts(pod))
        });
    }
}

/// Returns how many exchanges have ended since the beginning, and what nine of ten lasted at most.
fn usual(sample: &TrafficSample) -> (u64, Option<Duration>) {
    let mut all = Durations::default();
    sample.pods.iter().for_each(|pod| all.add(&pod.durations));
    (all.count(), all.quantile(0.9))
}

/// A pod, and what has changed within [`WINDOW`].
struct RecentTraffic<'sample> {
    now: &'sample PodSample,
    unreachable: u64,
    misdirected: u64,
    answered: u64,
    failed: u64,
    durations: Durations,
}

impl<'sample> RecentTraffic<'sample> {
    fn of(now: &'sample PodSample, before: Option<&TrafficSample>) -> Self {
        let nothing = PodSample::default();
        let before = before
            .and_then(|sample| sample.pods.iter().find(|it| it.pod == now.pod && it.incarnation == now.incarnation));
        let before = before.unwrap_or(&nothing);
        RecentTraffic {
            now,
            unreachable: now.unreachable.saturating_sub(before.unreachable),
            misdirected: now.misdirected.saturating_sub(before.misdirected),
            answered: now.answered.saturating_sub(before.answered),
            failed: now.failed.saturating_sub(before.failed),
            durations: now.durations.since(&before.durations),
        }
    }

    /// Returns how the pod refuses all that it is sent, if it does.
    fn refusal(&self) -> Option<TroubleKind> {
        let refuses = is_run_of_failures(self.now.refused_in_a_row) && self.unreachable + self.misdirected > 0;
        let kind = if self.unreachable >= self.misdirected { TroubleKind::Unreachable } else { TroubleKind::Refuses };
        refuses.then_some(kind)
    }

    /// Returns the figures of a pod that answers nothing. `usual` is what nine of ten requests last at most.
    fn silence(&self, usual: Option<Duration>) -> Option<String> {
        let PodSample { lasting, oldest, .. } = *self.now;
        let too_old = usual.map_or(SILENCE, |usual| SILENCE.max(usual * FACTOR));
        let is_silent = self.answered == 0 && lasting >= SILENT_REQUESTS && oldest >= too_old;
        is_silent.then(|| format!("{lasting} requests without a response, the oldest for {}", in_words(oldest)))
    }

    fn failures(&self) -> Option<String> {
        let PodSample { broken_in_a_row, .. } = *self.now;
        if is_run_of_failures(broken_in_a_row) {
            return Some(format!("its last {broken_in_a_row} responses broke off"));
        }
        let fails = self.answered >= ENOUGH && 2 * self.failed >= self.answered;
        fails.then(|| format!("{} of its last {} responses are errors", self.failed, self.answered))
    }

    /// Returns the figures of a pod that is slow beside the others, and what half of its responses take at least.
    fn slowness(&self, others: &Durations) -> Option<(String, Duration)> {
        if self.durations.count() < ENOUGH || others.count() < ENOUGH {
            return None;
        }
        let (own, others) = (self.durations.quantile(0.5)?, others.quantile(0.5)?);
        let is_slow = own >= SLOW.max(others * FACTOR);
        let (half, of_others) = (in_words(own), in_words(others));
        is_slow.then(|| (format!("half of its responses take {half} or more, those of the others {of_others}"), own))
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn in_words(duration: Duration) -> String {
    match duration.as_millis() {
        0 => format!("{} µs", duration.as_micros()),
        millis @ 1..1000 => format!("{millis} ms"),
        _ => format!("{:.1} s", duration.as_secs_f64()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::PartitionId;
    use crate::ids::Revision;
    use crate::troubles::HeldSample;

    /// 10 ms, 100 ms, 1 s, 5 s.
    const BOUNDS: [u64; 4] = [10_000, 100_000, 1_000_000, 5_000_000];
    const LIFE: Incarnation = Incarnation::registered_at(Revision::new(3));

    fn second(number: u64) -> Duration {
        Duration::from_secs(number)
    }

    /// A pod that has answered `counts` requests, by duration.
    fn pod(name: &str, counts: [u64; 5]) -> PodSample {
        let durations = Durations { bounds: &BOUNDS, counts: counts.to_vec() };
        let answered = counts.iter().sum();
        PodSample { pod: name.to_owned(), incarnation: LIFE, answered, durations, ..PodSample::default() }
    }

    fn sample(pods: Vec<PodSample>) -> TrafficSample {
        TrafficSample { pods, held: Vec::new() }
    }

    fn kinds(troubles: &RouterTroubles) -> Vec<(&str, TroubleKind)> {
        troubles.pods.iter().map(|pod| (pod.pod_name.as_str(), pod.kind)).collect()
    }

    #[test]
    fn a_pod_that_cannot_be_reached_is_named_until_it_accepts_a_request() {
        let mut assessor = Assessor::default();
        let refusing = |times: u32| PodSample {
            refused_in_a_row: times,
            unreachable: times.into(),
            ..pod("a", [100, 0, 0, 0, 0])
        };
        let mut assess = |at, times| assessor.assess(second(at), sample(vec![refusing(times)]));
        assert_eq!(assess(0, 4), RouterTroubles::default(), "a pod that is just late refuses as many");
        assert_eq!(kinds(&assess(1, 9)), [("a", TroubleKind::Unreachable)]);
        assert_eq!(assess(7, 40).pods[0].for_ms, 6_000);
        assert_eq!(assess(8, 0), RouterTroubles::default());
    }

    #[test]
    fn a_pod_that_nobody_sends_anything_any_more_is_in_no_trouble() {
        let mut assessor = Assessor::default();
        let refusing = PodSample { refused_in_a_row: 9, misdirected: 9, ..pod("a", [0; 5]) };
        let mut assess = |at| kinds(&assessor.assess(second(at), sample(vec![refusing.clone()]))).len();
        assert_eq!(assess(0), 1);
        assert_eq!((1..20).map(assess).last(), Some(0), "the last refusal is long ago");
    }

    #[test]
    fn refusals_and_broken_connections_have_words_of_their_own() {
        let refuses = PodSample { refused_in_a_row: 9, misdirected: 9, ..pod("a", [0; 5]) };
        let breaks = PodSample { broken_in_a_row: 5, ..pod("b", [0; 5]) };
        let mut assessor = Assessor::default();
        assessor.assess(second(0), sample(vec![refuses.clone(), breaks.clone()]));
        let refuses = PodSample { refused_in_a_row: 19, misdirected: 19, ..refuses };
        let troubles = assessor.assess(second(1), sample(vec![refuses, breaks]));
        assert_eq!(kinds(&troubles), [("a", TroubleKind::Refuses), ("b", TroubleKind::Fails)]);
        assert_eq!(troubles.pods[1].figures, "its last 5 responses broke off");
    }

    #[test]
    fn a_pod_is_slow_beside_the_others_and_not_with_them() {
        let run = |others: [u64; 5]| {
            let mut assessor = Assessor::default();
            let mut last = RouterTroubles::default();
            for at in 0..6 {
                let slow = pod("slow", [100, 0, 0, 10 * at, 0]);
                let fast = pod("fast", others.map(|count| count * at));
                last = assessor.assess(second(at), sample(vec![slow, fast]));
            }
            last
        };
        let troubles = run([30, 0, 0, 0, 0]);
        assert_eq!(kinds(&troubles), [("slow", TroubleKind::Slow)]);
        assert_eq!(troubles.pods[0].figures, "half of its responses take 3.0 s or more, those of the others 5 ms");
        assert_eq!(run([0, 0, 0, 30, 0]), RouterTroubles::default(), "all are slow");
        assert_eq!(run([1, 0, 0, 0, 0]), RouterTroubles::default(), "the others say too little");
    }

    #[test]
    fn slowness_of_seconds_is_told_at_once() {
        let mut assessor = Assessor::default();
        let mut assess = |at, slow, fast| {
            let pods = vec![pod("a", [100, 0, 0, slow, 0]), pod("b", [fast, 0, 0, 0, 0])];
            kinds(&assessor.assess(second(at), sample(pods))).len()
        };
        assert_eq!([assess(0, 0, 10), assess(1, 20, 40)], [0, 1]);
    }

    #[test]
    fn slowness_is_told_only_when_it_lasts() {
        let mut assessor = Assessor::default();
        let mut assess = |at, slow, fast| {
            let pods = vec![pod("a", [100, 0, slow, 0, 0]), pod("b", [fast, 0, 0, 0, 0])];
            kinds(&assessor.assess(second(at), sample(pods))).len()
        };
        assert_eq!([assess(0, 0, 10), assess(1, 20, 40), assess(2, 20, 70)], [0, 0, 1]);
        assert_eq!([assess(5, 20, 160), assess(8, 20, 250)], [1, 0], "over once it has not been seen for a while");
    }

    #[test]
    fn a_pod_that_answers_nothing_is_silent_unless_requests_usually_last_so_long() {
        let run = |usual: [u64; 5]| {
            let mut assessor = Assessor::default();
            let silent = |oldest| PodSample { lasting: 12, oldest, ..pod("a", usual) };
            assessor.assess(second(0), sample(vec![silent(second(1))]));
            assessor.assess(second(4), sample(vec![silent(second(4))]))
        };
        let troubles = run([100, 0, 0, 0, 0]);
        assert_eq!(kinds(&troubles), [("a", TroubleKind::Silent)]);
        assert_eq!(troubles.pods[0].figures, "12 requests without a response, the oldest for 4.0 s");
        assert_eq!(run([0, 0, 0, 100, 0]), RouterTroubles::default());
    }

    #[test]
    fn a_pod_fails_when_half_of_its_responses_are_errors() {
        let mut assessor = Assessor::default();
        let mut assess = |at, answered, failed| {
            let pod = PodSample { failed, ..pod("a", [answered, 0, 0, 0, 0]) };
            kinds(&assessor.assess(second(at), sample(vec![pod]))).len()
        };
        assert_eq!([assess(0, 0, 0), assess(1, 100, 4), assess(2, 200, 8)], [0, 0, 0]);
        assert_eq!([assess(3, 600, 400), assess(4, 700, 500)], [0, 1]);
    }

    #[test]
    fn requests_that_wait_for_long_are_counted_for_their_pod_and_in_all() {
        let held = |partition, pod: Option<&str>, requests, oldest| HeldSample {
            partition: PartitionId::new(partition),
            pod: pod.map(|name| (name.to_owned(), LIFE)),
            requests,
            oldest: Duration::from_millis(oldest),
        };
        let refusing = PodSample { refused_in_a_row: 9, unreachable: 9, ..pod("a", [0; 5]) };
        let held = vec![
            held(1, Some("a"), 3, 1500),
            held(2, Some("a"), 4, 2500),
            held(3, None, 5, 1200),
            held(4, None, 9, 20),
        ];
        let troubles = Assessor::default().assess(second(0), TrafficSample { pods: vec![refusing], held });
        assert_eq!((troubles.pods[0].held_requests, troubles.pods[0].oldest_held_ms), (7, 2500));
        assert_eq!(troubles.held_requests, 12, "a wait of 20 ms is none");
        let partitions: Vec<_> = troubles.held.iter().map(|held| held.partition.get()).collect();
        assert_eq!(partitions, [2, 1, 3]);
    }
}
