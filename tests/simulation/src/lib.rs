//! A whole cluster in one thread, under a simulated clock and network, from one seed.
//!
//! Coordinators, routers and pods run production's code over the embedded store. Simulated are the clock, the sockets,
//! the links to the store, the writers in the pods, and the faults. Each event is checked against the invariants of the
//! protocol. A seed repeats its history to the microsecond. A process takes part in up to three keyspaces under one
//! lease. The data path is also played alone, over real sockets (`data_path`).
//!
//! ```text
//! clients ─► router (table, control side) ─ exchange ─► pod (ownership layer ─ writer ─► log)
//!                 └──── link ──► MemoryStore ◄── link ────┘        ◄── link ── coordinators
//! ```
#![allow(clippy::unwrap_used)]

mod by_hand;
mod byzantine;
mod causes;
mod client;
mod cluster;
mod contract;
mod data_path;
mod exchange;
mod fault;
mod faults;
mod history;
mod large;
mod loads;
mod log;
mod network;
mod pod;
mod process;
mod rng;
mod router;
mod run;
mod sabotage;
mod setting;
mod site;
mod store_link;
mod sweep;
mod trace;
mod world;

pub use data_path::{DataPathOutcome, DataPathTotal, run_data_path, sweep_data_path};
pub use large::{Size, Step, run_large};
pub use run::{Outcome, Scenario, run};
pub use sabotage::Sabotage;
pub use sweep::{Failure, MUST_BE_SEEN, Regression, Sweep, Total, regressions};
pub use trace::Violation;
