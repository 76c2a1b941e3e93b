//! Real processes of `segue`, real sockets and a real etcd, as users run them.
#![allow(clippy::unwrap_used)]

mod api;
mod axum_pod;
mod bench;
mod check;
mod claims;
mod cli;
mod clients_in_trouble;
mod conformance;
mod demo;
mod demo_harm;
mod explain_grpc_pod;
mod hooks;
mod hot_restart;
mod keyspace_limits;
mod keyspaces;
mod layered_router;
mod log;
mod operators;
mod own_drain;
mod pods_with_rounds;
mod processes;
mod python_pods;
mod readme;
mod reload;
mod service;
mod service_manager;
mod service_stream;
mod shared_service;
mod sidecar;
mod site;
mod store_in_trouble;
mod tls;
mod traces;
mod two_keyspaces;
mod writers;
