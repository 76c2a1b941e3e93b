//! Stores, participants and whole handoffs, on the embedded store and on a real etcd.
#![allow(clippy::unwrap_used)]

mod etcd_in_trouble;
mod pod_side;
mod rounds;
mod rules;
mod shared_lease;
mod shells;
mod store_conformance;
