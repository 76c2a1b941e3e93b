//! The parts of the pod's side that its threads share, and their models.

#[allow(unused, reason = "the models use a part of it")]
#[path = "../../../coordination/src/pod/lease_window.rs"]
mod lease_window;
#[allow(unused, unreachable_pub, reason = "the models use a part of it")]
#[path = "../../../coordination/src/pod/ownership/mod.rs"]
mod ownership;
#[path = "../../../coordination/src/pod/sync/mod.rs"]
mod sync;

pub(crate) use ownership::loom::MODELS;
