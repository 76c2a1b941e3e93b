//! Runs a model of threads on loom's primitives: `make loom`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use loom::model::Builder;

/// Number of steps after which loom gives an execution up as endless.
const MAX_STEPS_PER_EXECUTION: usize = 100_000;

/// Runs a model in all interleavings with at most this many preemptions; `None` sets no bound.
#[expect(clippy::print_stdout, reason = "`make loom` adds these lines up")]
pub fn explore(name: &str, max_preemptions: Option<usize>, model: impl Fn() + Send + Sync + 'static) {
    // Loom does not see this counter, so it costs no interleavings.
    let executions = Arc::new(AtomicU64::new(0));
    let counted = executions.clone();
    let mut builder = Builder::new();
    builder.preemption_bound = max_preemptions;
    builder.max_branches = MAX_STEPS_PER_EXECUTION;
    builder.check(move || {
        counted.fetch_add(1, SeqCst);
        model();
    });
    println!("loom: model={name} executions={}", executions.load(SeqCst));
}
