//! Segue's handoff protocol as pure functions over plain data.
//!
//! ```text
//!          snapshot, batches                 decision
//!  store ────────────────────► View ─────────────────────► what to do (Step, Duty, Next, Plan)
//!    ▲                                                     what to write (Txn) ──┐
//!    └────────────────────────────── commit ─────────────────────────────────────┘
//! ```
//!
//! The caller, a *shell*, keeps a [`View`](view::View) of the keyspace. It applies what its watch brings, asks the
//! decision that is its own, carries the answer out, and asks again. `segue-coordination` has the shells of production;
//! the model, the simulation and the fuzz targets call the same functions.
//!
//! # Modules
//!
//! From the bottom up; none needs a later one.
//!
//! * [`ids`]: partitions, epochs, revisions, handoffs, incarnations and leases, each a type of its own.
//! * [`txn`]: the part of etcd v3 that the protocol needs, as values: keys, compares, transactions, events.
//! * [`records`], [`keys`]: the values in the store, and the names that they stand under.
//! * [`view`]: the keyspace at one revision.
//! * [`lease`], [`registration`], [`mapping`]: what participants decide about themselves: how long a lease can be
//!   trusted, what to do about their own key, whether a router maps requests as the keyspace does.
//! * [`handoff`]: when a handoff's phase moves on, and what each router and pod does in it.
//! * [`planning`]: which partitions move where and when, and which moves are given up.
//!
//! # Invariants
//!
//! * The same arguments give the same answer. There is no clock, randomness, I/O, task or log here. Moments are
//!   arguments.
//! * A decision depends on the view and on what the caller has done, never on an event. A caller that starts late, or
//!   that missed something, is told the same.
//! * The compares of a transaction carry its safety: where its view is out of date in a way that matters, it fails. The
//!   one exception is [`advance_past_bound`](handoff::advance::advance_past_bound), whose caller has to have waited.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod back_off;
pub mod handoff;
pub mod headers;
pub mod ids;
pub mod keys;
pub mod lease;
pub mod mapping;
pub mod planning;
pub mod records;
pub mod registration;
pub mod txn;
pub mod view;
