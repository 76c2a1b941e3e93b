//! Work that stays on its worker's thread.
//!
//! [`Background`] takes over what must go on although nobody waits for it any more. It can be used while tasks are being
//! dropped, where spawning would panic; a worker that ends drops what is left.

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

/// Where work goes that nobody waits for.
#[derive(Clone)]
pub(crate) struct Background(mpsc::UnboundedSender<Job>);

impl Background {
    /// To be called on a worker's thread, inside its set of local tasks.
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
