//! The gate by itself: two counters, one word, no lock.

use std::sync::atomic::Ordering::Relaxed;

use loom::sync::atomic::AtomicU32;

use super::*;
use crate::routing::gate::{Gate, Inside};

pub(super) const MODELS: &[Model] = models![
    "gate":
    whoever_got_in_is_counted_or_the_closer_is_seen,
    an_opened_gate_shows_where_it_leads,
    somebody_notices_that_the_last_one_has_left,
];

#[derive(Default)]
struct Site {
    gate: Gate,
    inside: [Inside; 2],
    /// Where the gate leads.
    owner: AtomicU32,
}

impl Site {
    fn open() -> Arc<Self> {
        let site = Site::default();
        site.owner.store(1, Relaxed);
        site.gate.set(GateState::Open);
        Arc::new(site)
    }

    fn count(&self) -> u32 {
        self.inside.iter().map(Inside::count).sum()
    }
}

/// A request inside reads one owner, however often it looks. The closer changes the owner only when no request is
/// inside.
fn whoever_got_in_is_counted_or_the_closer_is_seen() -> u64 {
    explore(None, || {
        let site = Site::open();
        let workers = [0, 1].map(|index| {
            let site = site.clone();
            spawn(move || {
                let inside = &site.inside[index];
                if site.gate.enter(inside).is_some() {
                    assert_eq!(site.owner.load(Relaxed), 1);
                }
                let _ = site.gate.leave(inside);
            })
        });
        site.gate.set(GateState::Draining);
        if site.count() == 0 {
            site.owner.store(2, Relaxed);
        }
        workers.into_iter().for_each(|worker| worker.join().unwrap());
    })
}

/// A request that enters a reopened gate reads the new owner.
fn an_opened_gate_shows_where_it_leads() -> u64 {
    explore(None, || {
        let site = Arc::new(Site::default());
        let worker = {
            let site = site.clone();
            spawn(move || {
                for _ in 0..2 {
                    if site.gate.enter(&site.inside[0]).is_some() {
                        assert_eq!(site.owner.load(Relaxed), 2);
                    }
                    let _ = site.gate.leave(&site.inside[0]);
                }
            })
        };
        site.owner.store(2, Relaxed);
        site.gate.set(GateState::Open);
        worker.join().unwrap();
    })
}

/// Either the last request to leave a closed gate finds it draining and the counters at zero, or the closer found them
/// at zero.
fn somebody_notices_that_the_last_one_has_left() -> u64 {
    explore(None, || {
        let site = Site::open();
        site.inside.iter().for_each(|inside| assert!(site.gate.enter(inside).is_some()));
        let workers = [0, 1].map(|index| {
            let site = site.clone();
            spawn(move || site.gate.leave(&site.inside[index]) && site.count() == 0)
        });
        site.gate.set(GateState::Draining);
        let seen_by_closer = site.count() == 0;
        let seen_by_leaver = workers.map(|worker| worker.join().unwrap()).contains(&true);
        assert!(seen_by_closer || seen_by_leaver, "nobody looks any more, and the gate drains for ever");
    })
}
