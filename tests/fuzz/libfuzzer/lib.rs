//! Translates outcomes for libFuzzer.

use libfuzzer_sys::Corpus;
use segue_fuzz::Outcome;

/// Returns whether libFuzzer may keep an input of this outcome, to make others from it.
pub fn verdict(outcome: Outcome) -> Corpus {
    match outcome {
        Outcome::Checked => Corpus::Keep,
        Outcome::NoInput => Corpus::Reject,
    }
}
