//! Runs tasks in one thread, under a clock that moves only when none of them can go on, their sockets included.
//!
//! tokio's own paused clock does not know of sockets: it moves on as soon as no task is ready, although bytes are on their way.
//! The kernel nearly always delivers over the loopback interface in the system call that sends. If it defers that, it keeps the
//! order, so a byte that is sent last tells when all else has arrived.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::task::{LocalSet, yield_now};

/// How far the clock moves at a time.
const STEP: Duration = Duration::from_millis(1);

/// Whether any task has something to do.
#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Relaxed);
    }
}

/// A connection to itself.
struct Loopback {
    near: TcpStream,
    far: TcpStream,
}

impl Loopback {
    async fn new() -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let near = TcpStream::connect(listener.local_addr()?).await?;
        near.set_nodelay(true)?;
        Ok(Loopback { near, far: listener.accept().await?.0 })
    }

    /// Waits until all that was sent over the interface before has arrived.
    async fn round(&self) -> io::Result<()> {
        self.near.try_write(&[0])?;
        while self.far.try_read(&mut [0]).is_err() {
            yield_now().await;
        }
        Ok(())
    }
}

/// Runs `main`, and the local tasks that it starts, to its end.
pub(super) fn run<T>(main: impl Future<Output = T>) -> io::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build()?;
    let tasks = LocalSet::new();
    runtime.block_on(async {
        let loopback = Loopback::new().await?;
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(woken.clone());
        let mut all = pin!(tasks.run_until(main));
        let mut may_be_on_the_way = true;
        loop {
            woken.0.store(false, Relaxed);
            if let Poll::Ready(result) = all.as_mut().poll(&mut Context::from_waker(&waker)) {
                return Ok(result);
            }
            // Has the runtime look at the sockets.
            yield_now().await;
            if woken.0.load(Relaxed) {
                may_be_on_the_way = true;
            } else if std::mem::take(&mut may_be_on_the_way) {
                loopback.round().await?;
            } else {
                tokio::time::advance(STEP).await;
            }
        }
    })
}
