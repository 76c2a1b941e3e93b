//! Where a gate led when a request passed it.

use segue_protocol::ids::Epoch;

use crate::routing::gate::AbortGeneration;

/// Where a gate led when a request passed it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GateRoute {
    pub(crate) slot: u32,
    pub(crate) epoch: Epoch,
    /// How often the partition had been severed when the request passed.
    pub(crate) severs: AbortGeneration,
    /// Whether this is the last try: if the pod refuses again, the request itself is at fault.
    pub(crate) last_try: bool,
}
