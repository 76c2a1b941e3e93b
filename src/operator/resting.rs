//! What rests after failed moves, by the history: the coordinator that cancels a move records its back-offs in the entry that it
//! leaves. Pure.
//!
//! The back-offs are the memory of that coordinator, so another one that takes over may move a partition sooner.

use std::collections::HashSet;

use segue_protocol::ids::PartitionId;
use segue_protocol::records::{BackOffSubject, HandoffEnd, HistoryEntry};
use serde::{Deserialize, Serialize};

/// Most back-offs that are shown.
const MOST: usize = 64;

/// A back-off that has not ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ActiveBackOff {
    /// Whom it concerns.
    pub of: BackOffSubject,
    /// The partition whose move failed last.
    pub partition: PartitionId,
    /// The pod that did not get it.
    pub pod: String,
    /// Failures in a row.
    pub failures: u32,
    /// Unix milliseconds, by the clock of the coordinator.
    pub until: u64,
    /// What does not happen until then, in words.
    pub what: String,
    /// The failures in words.
    pub why: String,
}

impl ActiveBackOff {
    fn of(past: &HistoryEntry, of: BackOffSubject, failures: u32, until: u64) -> Self {
        let HistoryEntry { partition, to: pod, end_reason, .. } = past;
        let what = match of {
            BackOffSubject::Partition => format!("partition {partition} does not move"),
            BackOffSubject::Pod => format!("pod {pod} gets no more partitions"),
            BackOffSubject::Pair => format!("pod {pod} does not get partition {partition}"),
        };
        let times =
            if failures == 1 { "a move failed".to_owned() } else { format!("{failures} moves in a row failed") };
        let why = format!("{times}, the last one of partition {partition} to {pod}: {end_reason}");
        ActiveBackOff { of, partition: *partition, pod: pod.clone(), failures, until, what, why }
    }

    /// Returns it in words. `now` is in Unix milliseconds.
    pub(crate) fn in_words(&self, now: u64) -> String {
        let rest = super::lasting(self.until.saturating_sub(now));
        format!("{} for {rest}: {}", self.what, self.why)
    }
}

/// Returns the back-offs that have not ended at `now`, in Unix milliseconds. `handoffs` are in order, the newest first.
pub(crate) fn resting(handoffs: &[HistoryEntry], now: u64) -> Vec<ActiveBackOff> {
    let (mut known, mut found) = (HashSet::new(), Vec::new());
    for past in handoffs {
        let subject = |of| match of {
            BackOffSubject::Partition => (Some(past.partition), None),
            BackOffSubject::Pod => (None, Some(past.to.as_str())),
            BackOffSubject::Pair => (Some(past.partition), Some(past.to.as_str())),
        };
        if past.result == HandoffEnd::Completed {
            known.extend([BackOffSubject::Partition, BackOffSubject::Pod, BackOffSubject::Pair].map(subject));
            continue;
        }
        for back_off in &past.back_offs {
            if known.insert(subject(back_off.of)) && back_off.until > now {
                found.push(ActiveBackOff::of(past, back_off.of, back_off.failures, back_off.until));
            }
        }
    }
    found.truncate(MOST);
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn entry(partition: u32, to: &str, result: &str, back_offs: serde_json::Value) -> HistoryEntry {
        let entry = json!({ "handoff": 9, "partition": partition, "to": to, "epoch": 1, "result": result,
            "end_reason": "it was slow", "back_offs": back_offs });
        serde_json::from_value(entry).unwrap()
    }

    fn words(newest_first: &[HistoryEntry]) -> Vec<String> {
        resting(newest_first, 1_000).iter().map(|rest| rest.in_words(1_000)).collect()
    }

    #[test]
    fn the_last_failure_says_for_how_long_and_a_success_ends_the_rest() {
        let failed = entry(
            7,
            "w",
            "cancelled",
            json!([{ "of": "partition", "failures": 2, "until": 11_000 }, { "of": "pod", "failures": 1, "until": 21_000 }]),
        );
        let before = entry(7, "v", "cancelled", json!([{ "of": "partition", "failures": 1, "until": 60_000 }]));
        let why = "the last one of partition 7 to w: it was slow";
        let expected = [
            format!("partition 7 does not move for 10.0 s: 2 moves in a row failed, {why}"),
            format!("pod w gets no more partitions for 20.0 s: a move failed, {why}"),
        ];
        assert_eq!(words(&[failed.clone(), before.clone()]), expected);
        assert_eq!(words(&[entry(7, "u", "completed", json!([])), failed.clone()]), expected[1..]);
        assert_eq!(words(&[entry(8, "w", "completed", json!([])), failed.clone()]), expected[..1]);
        assert_eq!(words(&[entry(8, "u", "completed", json!([])), failed.clone()]), expected);
        assert_eq!(words(&[entry(7, "u", "cancelled", json!([])), failed]), expected, "a cancel ends no rest");
    }

    #[test]
    fn a_pair_and_what_is_over() {
        let pair = json!([{ "of": "pair", "failures": 1, "until": 1_500 }, { "of": "partition", "failures": 1, "until": 1_000 }]);
        let expected =
            ["pod w does not get partition 7 for 500 ms: a move failed, the last one of partition 7 to w: it was slow"];
        assert_eq!(words(&[entry(7, "w", "cancelled", pair)]), expected);
    }
}
