//! A model, and how loom runs it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::Instant;

use loom::model::Builder;

/// Number of steps after which loom gives an execution up as endless.
const MAX_STEPS_PER_EXECUTION: usize = 100_000;

/// Threads that loom runs in all interleavings.
pub(crate) struct Model {
    pub(crate) name: &'static str,
    /// Explores the model and returns the number of its executions.
    pub(crate) explore: fn() -> u64,
}

/// Lists functions of a module as [`Model`]s.
macro_rules! models {
    ($module:literal: $($function:ident,)*) => {
        &[$($crate::Model { name: concat!($module, "::", stringify!($function)), explore: $function },)*]
    };
}
pub(crate) use models;

impl Model {
    /// Explores the model in a thread of its name. Returns the number of executions, or `None` if one of them failed.
    pub(crate) fn run(&self) -> Option<u64> {
        let began = Instant::now();
        let thread = thread::Builder::new().name(self.name.to_owned()).spawn(self.explore);
        let executions = thread.ok()?.join().ok();
        let outcome = executions.map_or("failed".to_owned(), |executions| format!("executions={executions}"));
        println!("loom: model={} {outcome} seconds={:.1}", self.name, began.elapsed().as_secs_f64());
        executions
    }
}

/// Runs a model in all interleavings with at most this many preemptions; `None` sets no bound. Returns their number.
pub(crate) fn explore(max_preemptions: Option<usize>, model: impl Fn() + Send + Sync + 'static) -> u64 {
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
    executions.load(SeqCst)
}
