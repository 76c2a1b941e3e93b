//! The primitives as loom sees them.
//!
//! Loom knows no total order of single `SeqCst` accesses and treats them as `AcqRel`; it knows the order of `SeqCst`
//! *fences*. So each `SeqCst` load here is preceded by a fence, as compilers emit it for machines whose other accesses
//! need none. That gives loads their place in the order among all earlier stores, and adds nothing to accesses with a
//! weaker ordering.

use std::sync::atomic::Ordering;

pub(crate) use loom::sync::{Mutex, MutexGuard};

macro_rules! atomic {
    ($($name:ident holds $value:ty: $($method:ident)*;)*) => {$(
        #[derive(Debug, Default)]
        pub(crate) struct $name(loom::sync::atomic::$name);

        // Not every type uses every method.
        #[allow(dead_code)]
        impl $name {
            pub(crate) fn new(value: $value) -> Self {
                Self(loom::sync::atomic::$name::new(value))
            }

            #[track_caller]
            pub(crate) fn load(&self, ordering: Ordering) -> $value {
                if ordering == Ordering::SeqCst {
                    loom::sync::atomic::fence(Ordering::SeqCst);
                }
                self.0.load(ordering)
            }

            #[track_caller]
            pub(crate) fn store(&self, value: $value, ordering: Ordering) {
                self.0.store(value, ordering);
            }

            $(#[track_caller]
            pub(crate) fn $method(&self, value: $value, ordering: Ordering) -> $value {
                self.0.$method(value, ordering)
            })*
        }
    )*};
}

atomic! {
    AtomicBool holds bool:;
    AtomicU32 holds u32: fetch_add fetch_sub fetch_max;
    AtomicU64 holds u64: fetch_add fetch_sub;
    AtomicUsize holds usize: fetch_add fetch_sub;
}

/// A cell that is written once. A thread that does not see the flag must not see the value.
#[derive(Debug)]
pub(crate) struct OnceLock<T> {
    is_made: loom::sync::atomic::AtomicBool,
    making: Mutex<()>,
    value: std::sync::OnceLock<T>,
}

impl<T> OnceLock<T> {
    pub(crate) fn new() -> Self {
        OnceLock { is_made: Default::default(), making: Mutex::default(), value: std::sync::OnceLock::new() }
    }

    pub(crate) fn get(&self) -> Option<&T> {
        self.is_made.load(Ordering::Acquire).then(|| self.value.get()).flatten()
    }

    pub(crate) fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
        let making = self.making.lock();
        let value = self.value.get_or_init(make);
        self.is_made.store(true, Ordering::Release);
        drop(making);
        value
    }
}

/// A channel for one value, under one lock.
pub(crate) mod oneshot {
    use std::future::Future;
    use std::pin::Pin;
    use std::sync::{Arc, PoisonError};
    use std::task::{Context, Poll, Waker};

    use super::{Mutex, MutexGuard};

    #[derive(Debug)]
    struct State<T> {
        value: Option<T>,
        is_closed: bool,
        waker: Option<Waker>,
    }

    type Shared<T> = Arc<Mutex<State<T>>>;

    #[derive(Debug)]
    pub(crate) struct Sender<T>(Shared<T>);

    #[derive(Debug)]
    pub(crate) struct Receiver<T>(Shared<T>);

    /// The sender is gone, or nothing was sent.
    #[derive(Debug)]
    pub(crate) struct Nothing;

    pub(crate) fn channel<T>() -> (Sender<T>, Receiver<T>) {
        let shared = Arc::new(Mutex::new(State { value: None, is_closed: false, waker: None }));
        (Sender(shared.clone()), Receiver(shared))
    }

    fn lock<T>(shared: &Shared<T>) -> MutexGuard<'_, State<T>> {
        shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    impl<T> Sender<T> {
        pub(crate) fn send(self, value: T) -> Result<(), T> {
            let mut state = lock(&self.0);
            if state.is_closed {
                return Err(value);
            }
            state.value = Some(value);
            Ok(())
        }
    }

    impl<T> Drop for Sender<T> {
        fn drop(&mut self) {
            let mut state = lock(&self.0);
            state.is_closed = true;
            let waker = state.waker.take();
            drop(state);
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }

    impl<T> Receiver<T> {
        pub(crate) fn close(&mut self) {
            lock(&self.0).is_closed = true;
        }

        pub(crate) fn try_recv(&mut self) -> Result<T, Nothing> {
            lock(&self.0).value.take().ok_or(Nothing)
        }
    }

    impl<T> Drop for Receiver<T> {
        fn drop(&mut self) {
            self.close();
        }
    }

    impl<T> Future for Receiver<T> {
        type Output = Result<T, Nothing>;

        fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
            let mut state = lock(&self.0);
            match state.value.take() {
                Some(value) => Poll::Ready(Ok(value)),
                None if state.is_closed => Poll::Ready(Err(Nothing)),
                None => {
                    state.waker = Some(context.waker().clone());
                    Poll::Pending
                }
            }
        }
    }
}

/// Timers that are due when they are made, or never.
pub(crate) mod time {
    use std::future::Future;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use tokio::time::Instant;

    #[derive(Debug)]
    pub(crate) struct Sleep {
        is_due: bool,
    }

    pub(crate) fn sleep_until(deadline: Instant) -> Sleep {
        Sleep { is_due: deadline <= Instant::now() }
    }

    impl Future for Sleep {
        type Output = ();

        fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
            if self.is_due { Poll::Ready(()) } else { Poll::Pending }
        }
    }
}
