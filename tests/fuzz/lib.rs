//! Everything in Segue that reads bytes from outside, as functions of bytes that panic if something is wrong.
//!
//! Two programs call them: `replay`, in each run of the tests, and libFuzzer (`libfuzzer`, `make fuzz`), which needs a workspace
//! and a build of its own.

#![allow(missing_docs)]

pub mod support;
pub mod targets;

/// What became of an input whose run found nothing wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It was checked.
    Checked,
    /// It stands for nothing that could arrive, so nothing was checked.
    NoInput,
}
