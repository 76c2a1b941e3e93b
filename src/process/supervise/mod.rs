//! Supervision of a service (`[pod] exec`): a small process between the sidecar and the service. It holds the service's
//! deadline, and ends the service when that passes or when the sidecar is gone.
//!
//! ```text
//! segue run ── segue supervise ── the service ── its children
//! ```
//!
//! A sidecar that is stuck, stopped or dead can end nothing; its supervisor can. The two communicate over a socket
//! pair, which is the supervisor's standard input. The sidecar writes `until MS` (milliseconds of `CLOCK_BOOTTIME`),
//! `signal N` and `kill`, one per line. The supervisor writes `runs PID`, then `ended CODE`, or `killed` when it has killed the
//! service itself. The end of the socket is the end of the sidecar.
//!
//! # Invariants
//!
//! * All descendants of the service are dead before `ended` or `killed` is written, and shortly after the deadline.
//! * The service dies with its supervisor, whose remaining descendants become children of the sidecar.
//! * The supervisor ends only with the service, at the deadline, or with the sidecar.

mod deadline;
mod descendants;
mod handle;
mod launch;
mod output;
mod process;

pub(crate) use handle::{ServiceState, Supervisor, UnexpectedExit};
pub(crate) use output::{OutputStream, ServiceOutput};
pub(crate) use process::{become_service, supervise};
