//! The pod's side of the protocol, driven by a scripted coordinator, which writes the records itself, and by requests
//! through the layer.

mod behind;
mod checkpoints;
mod etcd;
mod fixture;
mod handoffs;
mod heartbeats;
mod life;
mod requests;
mod shutdown;
mod sidecar;
mod unhealthy;
