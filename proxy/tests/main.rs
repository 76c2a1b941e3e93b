//! The data path over real sockets, one module for each promise.
//!
//! One executable: what the tests share is compiled once, and their waits overlap.
#![allow(clippy::unwrap_used, missing_docs)]

mod balancers;
mod body_keys;
mod bounds;
mod cut_off;
mod early_answers;
mod edge;
mod failing;
mod fairness;
mod fixed_upstream;
mod flushing;
mod handoff;
mod holding;
mod hot_restart;
mod http1_clients;
mod http1_responses;
mod http1_stopping;
mod http2_clients;
mod http2_pods;
mod key_limits;
mod layers;
mod long_exchanges;
mod malformed;
mod metrics;
mod outliving;
mod passing;
mod protocol_choice;
mod protocols;
mod readings;
mod router;
mod routes;
mod serving;
mod sidecar;
mod stash;
mod support;
mod table;
mod tls;
mod tracing;
mod without_key;
