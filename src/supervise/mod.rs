//! Supervision of a service (`[pod] exec`): a small process between the sidecar and the service, which holds the service's
//! deadline and ends it when that passes, or when the sidecar is gone.
//!
//! ```text
//! segue run ── segue supervise ── the service ── its children
//! ```
//!
//! A sidecar that is stuck, stopped or dead can end nothing; its supervisor can. The two speak over a socket pair, the
//! supervisor's standard input: the sidecar writes `until MS` (milliseconds of `CLOCK_BOOTTIME`), `signal N` and `kill`, one
//! to a line; the supervisor writes `ended CODE`, or `killed` when it has killed the service itself. The socket's end is
//! the sidecar's.
//!
//! # Invariants
//! * All descendants of the service are dead before `ended` or `killed` is written, and shortly after the deadline.
//! * The service dies with its supervisor, whose remaining descendants fall to the sidecar.
//! * The supervisor ends by nothing but the service's end, the deadline and the sidecar.

mod deadline;
mod descendants;
mod handle;
mod process;

pub use handle::{Ended, Supervisor};
pub(crate) use process::{become_service, supervise};
