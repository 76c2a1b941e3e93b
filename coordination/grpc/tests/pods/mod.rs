//! Pods that take part by gRPC alone, on a real etcd with a real coordinator.
mod access;
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
mod service_stream;
mod service_stream_tasks;
mod site;
mod tls;
mod window;
