//! Clients that send numbered requests until they are told to end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread::JoinHandle;

use segue_tests::process::until;

/// `T`: what is kept of a request.
pub(crate) struct Load<T> {
    over: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    clients: Vec<JoinHandle<Vec<T>>>,
}

impl<T: Send + 'static> Load<T> {
    /// Starts clients, of which each sends its next request with what `client` returns for its own number. The requests of
    /// all are numbered together, from `first` on.
    pub(crate) fn start<S>(clients: usize, first: u64, client: impl Fn(usize) -> S) -> Self
    where
        S: FnMut(u64) -> Option<T> + Send + 'static,
    {
        let (over, sent) = (Arc::<AtomicBool>::default(), Arc::new(AtomicU64::new(first)));
        let client = |number| {
            let (over, sent, mut send) = (over.clone(), sent.clone(), client(number));
            std::thread::spawn(move || {
                let mut kept = Vec::new();
                while !over.load(SeqCst) {
                    kept.extend(send(sent.fetch_add(1, SeqCst)));
                }
                kept
            })
        };
        let clients = (0..clients).map(client).collect();
        Load { over, sent, clients }
    }

    /// Waits until this many more requests have been sent, and most of them were answered. Returns the number of the first.
    pub(crate) fn goes_on(&self, more: u64) -> u64 {
        let first = self.sent.load(SeqCst);
        until("more requests", || self.sent.load(SeqCst) >= first + more);
        first
    }

    /// Ends the clients. Returns the number that the next request would have had, and what was kept.
    pub(crate) fn end(self) -> (u64, Vec<T>) {
        self.over.store(true, SeqCst);
        let kept = self.clients.into_iter().flat_map(|client| client.join().unwrap()).collect();
        (self.sent.load(SeqCst), kept)
    }
}
