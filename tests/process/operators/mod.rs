//! The operator's commands against a running cluster: a coordinator, writer pods and etcd.
mod commands;
mod operated;
mod orders;
mod routers;
mod terminal;
