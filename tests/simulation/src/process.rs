//! A simulated process: its tasks run, stand still while time goes on (as after SIGSTOP), or are gone.
//!
//! Only futures wrapped in [`Process::run`] stand still. Production code spawns a few tasks of its own (keepalives, the
//! watch, writes). They reach the world only through the process's [`StoreLink`](crate::store_link::StoreLink), which
//! waits for [`Process::awake`] before and after each call.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use pin_project::{pin_project, pinned_drop};
use tokio::time::Instant;

use crate::trace::Trace;

/// One life of a process.
#[derive(Debug)]
pub(crate) struct Process {
    /// Its name in the keyspace.
    pub(crate) name: String,
    /// Which life under that name.
    pub(crate) life: u64,
    trace: Arc<Trace>,
    inner: Mutex<Inner>,
}

/// So often a process may be looked at without any time going by. More, and it spins: with a simulated clock for ever.
const SPINS: u32 = 100_000;

#[derive(Debug, Default)]
struct Inner {
    paused_since: Option<Instant>,
    paused: Duration,
    dead: bool,
    next: u64,
    tasks: BTreeMap<u64, Waker>,
    /// How often it was looked at, at this moment.
    looks: (Option<Instant>, u32),
}

impl Process {
    pub(crate) fn new(name: &str, life: u64, trace: &Arc<Trace>) -> Arc<Self> {
        Arc::new(Process { name: name.to_owned(), life, trace: trace.clone(), inner: Mutex::default() })
    }

    /// `future` as a task of this process. `None`: the process was killed.
    pub(crate) fn run<F: Future>(self: &Arc<Self>, future: F) -> Confined<F> {
        let mut inner = self.lock();
        let id = inner.next;
        inner.next += 1;
        drop(inner);
        Confined { future: Some(future), process: self.clone(), id }
    }

    /// Returns once the process runs; never if it is dead.
    pub(crate) async fn awake(self: &Arc<Self>) {
        if self.run(std::future::ready(())).await.is_none() {
            std::future::pending().await
        }
    }

    pub(crate) fn pause(&self) {
        let mut inner = self.lock();
        if !inner.dead {
            inner.paused_since.get_or_insert_with(Instant::now);
        }
    }

    pub(crate) fn resume(&self) {
        let mut inner = self.lock();
        if let Some(since) = inner.paused_since.take() {
            inner.paused += since.elapsed();
        }
        Self::wake(inner);
    }

    pub(crate) fn kill(&self) {
        let mut inner = self.lock();
        inner.dead = true;
        Self::wake(inner);
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.lock().dead
    }

    /// For how long it has stood still so far.
    pub(crate) fn paused(&self) -> Duration {
        let inner = self.lock();
        inner.paused + inner.paused_since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    fn wake(mut inner: MutexGuard<'_, Inner>) {
        let tasks = std::mem::take(&mut inner.tasks);
        drop(inner);
        tasks.into_values().for_each(Waker::wake);
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A task of a process.
#[pin_project(PinnedDrop)]
pub(crate) struct Confined<F> {
    #[pin]
    future: Option<F>,
    process: Arc<Process>,
    id: u64,
}

impl<F: Future> Future for Confined<F> {
    type Output = Option<F::Output>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let mut inner = this.process.lock();
        if inner.dead {
            drop(inner);
            this.future.set(None);
            return Poll::Ready(None);
        }
        let now = Some(Instant::now());
        inner.looks = if inner.looks.0 == now { (now, inner.looks.1 + 1) } else { (now, 0) };
        if inner.looks.1 > SPINS {
            inner.dead = true;
            this.process.trace.violation("bounded", format!("{} spins", this.process.name));
        }
        inner.tasks.insert(*this.id, context.waker().clone());
        if inner.paused_since.is_some() {
            return Poll::Pending;
        }
        drop(inner);
        match this.future.as_mut().as_pin_mut() {
            Some(future) => future.poll(context).map(Some),
            None => Poll::Pending,
        }
    }
}

#[pinned_drop]
impl<F> PinnedDrop for Confined<F> {
    fn drop(self: Pin<&mut Self>) {
        self.process.lock().tasks.remove(&self.id);
    }
}
