//! The whole cluster in one thread, under a simulated clock and network, from one seed.
//!
//! Coordinators, routers and pods run production's code over the embedded store; simulated are the clock, the sockets, the
//! lines to the store, the writers inside the pods and whatever goes wrong. Witnesses see every event and check the
//! invariants of the protocol at each. A seed repeats: the same one gives the same history, to the microsecond.
//!
//! ```text
//! clients ─► router (table, control side) ─ exchange ─► pod (ownership layer ─ writer ─► log)
//!                 └──── line ──► MemoryStore ◄── line ────┘        ◄── line ── coordinators
//! ```
#![allow(clippy::unwrap_used)]

mod client;
mod cluster;
mod contract;
mod dice;
mod exchange;
mod faults;
mod liar;
mod line;
mod log;
mod network;
mod pod;
mod process;
mod router;
mod run;
mod sabotage;
mod setting;
mod sweep;
mod trace;
mod witness;
mod world;

pub use run::{Outcome, Scenario, run};
pub use sabotage::Sabotage;
pub use sweep::{Failure, MUST_BE_SEEN, Regression, Sweep, Total, regressions};
pub use trace::Violation;
