//! Counts the harm: from the demo's checks of clients' records and writers' logs, breaches of the contract in the
//! store's history, and processes that misbehaved.

use std::collections::BTreeMap;
use std::sync::Arc;

use segue_demo::check::{Evidence, check};
use segue_demo::record::{Outcome, RequestId};

/// Number of examples shown for each kind of harm.
const EXAMPLES: usize = 5;

/// Local replies that clients may see while pods, routers and the store fail, by status and `segue-reason`. The writer's
/// own errors are not among them.
const DOCUMENTED: [(u16, &str); 11] = [
    (500, "lease-lost"),
    (502, "upstream-failed"),
    (502, "severed"),
    (503, "stash-timeout"),
    (503, "stash-full"),
    (503, "no-owner"),
    (503, "fenced"),
    (503, "shutdown"),
    (503, "overload"),
    (504, "upstream-timeout"),
    (408, "limit"),
];

/// Harm by kind, errors by reason, and how much was looked at.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    harm: BTreeMap<&'static str, (u64, Vec<String>)>,
    pub(crate) errors: BTreeMap<(u16, Arc<str>), u64>,
    pub(crate) requests: u64,
    pub(crate) records: u64,
    pub(crate) reads: u64,
    pub(crate) held_pairs: u64,
}

impl Verdict {
    pub(crate) fn add(&mut self, kind: &'static str, example: String) {
        self.add_many(kind, 1, [example]);
    }

    fn add_many(&mut self, kind: &'static str, count: u64, more: impl IntoIterator<Item = String>) {
        let (known, examples) = self.harm.entry(kind).or_default();
        *known += count;
        examples.extend(more);
        examples.truncate(EXAMPLES);
    }

    /// Holds what clients saw against what is in the logs and in the store.
    pub(crate) fn judge(&mut self, evidence: &Evidence) {
        let harm = check(evidence);
        for (kind, count) in harm.counts().into_iter().filter(|(_, count)| count.count > 0) {
            self.add_many(kind, count.count, count.examples.iter().cloned());
        }
        self.requests += evidence.exchanges.len() as u64;
        self.records += evidence.log.as_ref().map_or(0, |log| log.len() as u64);
        self.reads += harm.reads_checked;
        self.held_pairs += harm.held_pairs_checked;
        for exchange in &evidence.exchanges {
            self.error(exchange.request, &exchange.outcome);
        }
    }

    fn error(&mut self, request: RequestId, outcome: &Outcome) {
        let (Outcome::Refused { code, reason } | Outcome::Unknown { code, reason }) = outcome else { return };
        *self.errors.entry((*code, reason.clone())).or_default() += 1;
        // 0: no answer, because the router was killed; 421 is counted by the checks.
        if *code != 0 && *code != 421 && !DOCUMENTED.contains(&(*code, reason)) {
            self.add("undocumented", format!("request {request} was answered {code} {reason}"));
        }
    }

    pub(crate) fn harm(&self) -> u64 {
        self.harm.values().map(|(count, _)| count).sum()
    }

    /// Harm in words, a line each.
    pub(crate) fn in_words(&self) -> Vec<String> {
        let kinds = self.harm.iter();
        kinds
            .flat_map(|(kind, (count, examples))| {
                let head = format!("HARM {kind}: {count}");
                std::iter::once(head).chain(examples.iter().map(|example| format!("     {example}")))
            })
            .collect()
    }

    /// Takes another run's in.
    pub(crate) fn merge(&mut self, other: Verdict) {
        for (kind, (count, examples)) in other.harm {
            self.add_many(kind, count, examples);
        }
        for (error, count) in other.errors {
            *self.errors.entry(error).or_default() += count;
        }
        self.requests += other.requests;
        self.records += other.records;
        self.reads += other.reads;
        self.held_pairs += other.held_pairs;
    }
}

/// Errors in words.
pub(crate) fn reasons(errors: &BTreeMap<(u16, Arc<str>), u64>) -> String {
    if errors.is_empty() {
        return "none".into();
    }
    let one = |((code, reason), count): (&(u16, Arc<str>), &u64)| match code {
        0 => format!("{count} × {reason}"),
        _ => format!("{count} × {code} {reason}"),
    };
    errors.iter().map(one).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn harm_of(code: u16, reason: &str) -> u64 {
        let mut verdict = Verdict::default();
        verdict.error(1, &Outcome::Unknown { code, reason: reason.into() });
        verdict.harm()
    }

    #[test]
    fn a_lease_that_ended_in_the_midst_is_no_harm_and_an_error_of_the_writer_is() {
        assert_eq!(harm_of(500, "lease-lost"), 0);
        assert_eq!(harm_of(500, "by the service"), 1);
    }
}
