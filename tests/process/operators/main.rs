//! The operator's commands against a running cluster: a coordinator, writer pods and etcd.
#![allow(clippy::unwrap_used)]

mod commands;
mod operated;
mod orders;
mod routers;
#[path = "../writers/mod.rs"]
mod writers;
