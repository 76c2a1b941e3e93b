//! The pod's side of the protocol, held to its promises by a scripted coordinator that writes the records itself, and by
//! requests that go through the layer.

#![allow(clippy::unwrap_used)]

mod behind;
mod etcd;
mod fixture;
mod handoffs;
mod life;
mod requests;
mod sidecar;
