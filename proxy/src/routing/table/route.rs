//! Where a gate led when a request passed it.

use segue_protocol::ids::Epoch;

use crate::routing::gate::AbortGeneration;

/// Where a gate led when a request passed it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Route {
    pub(crate) slot: u32,
    pub(crate) epoch: Epoch,
    /// How often the partition had been severed by then.
    pub(crate) severs: AbortGeneration,
    /// If the pod refuses the request again, that is for what it is.
    pub(crate) last_try: bool,
}
