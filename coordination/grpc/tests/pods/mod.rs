//! Pods that take part by gRPC alone, on a real etcd with a real coordinator.
mod access;
mod beside;
mod beside_tasks;
mod calls;
mod checkpoints;
mod client;
mod goes_back;
mod keyspaces;
mod lease_clock;
mod lives;
mod loads;
mod moves;
mod polling;
mod site;
mod tls;
mod window;
