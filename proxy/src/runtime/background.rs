//! Work that stays on its worker's thread.
//!
//! [`Background`] takes over work that must be completed after its request has gone. It can be used while tasks are
//! being dropped, where spawning would panic. A worker that ends drops what is left.

use std::future::Future;
use std::pin::Pin;

use tokio::sync::mpsc;

/// Spawns hyper's tasks on the current thread.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LocalExecutor;

impl<F> hyper::rt::Executor<F> for LocalExecutor
where
    F: Future + 'static,
{
    fn execute(&self, future: F) {
        tokio::task::spawn_local(future);
    }
}

type Job = Pin<Box<dyn Future<Output = ()>>>;

/// Runs work that no request waits for.
#[derive(Clone)]
pub(crate) struct Background(mpsc::UnboundedSender<Job>);

impl Background {
    /// Starts the task that spawns such work. To be called on a worker's thread, inside its set of local tasks.
    pub(crate) fn start() -> Self {
        let (jobs, mut arriving) = mpsc::unbounded_channel::<Job>();
        tokio::task::spawn_local(async move {
            while let Some(job) = arriving.recv().await {
                tokio::task::spawn_local(job);
            }
        });
        Background(jobs)
    }

    pub(crate) fn run(&self, job: impl Future<Output = ()> + 'static) {
        // Without a receiver the worker is ending, and what the job holds is dropped with it.
        let _ = self.0.send(Box::pin(job));
    }
}
