//! The configuration file as its users write it, with every mistake that they can make.
#![allow(clippy::unwrap_used)]

mod changes;
mod example;
mod keyspaces;
mod limits;
mod mistakes;
mod relations;
mod robustness;
mod routes;
mod support;
mod tls;
mod variables;
