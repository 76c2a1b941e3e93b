//! Pods that take part by gRPC alone, on a real etcd with a real coordinator.
#![allow(clippy::unwrap_used)]

mod calls;
mod client;
mod lives;
mod moves;
mod site;
mod tls;
