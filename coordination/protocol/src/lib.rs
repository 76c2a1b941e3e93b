//! Segue's handoff protocol as pure functions over plain data.
//!
//! ```text
//!          snapshot, batches                 decision
//!  store ────────────────────► View ─────────────────────► what to do (Step, Duty, Next, Plan)
//!    ▲                                                     what to write (Txn) ──┐
//!    └────────────────────────────── commit ─────────────────────────────────────┘
//! ```
//!
//! The caller, a *shell*, keeps a [`View`](view::View) of the keyspace. It applies the batches of its watch, calls its
//! decision function, carries the result out, and calls again. `segue-coordination` contains the production shells. The
//! model, the simulation and the fuzz targets call the same functions.
//!
//! # Modules
//!
//! From the bottom up; none needs a later one.
//!
//! * [`ids`]: partitions, epochs, revisions, handoffs, incarnations and leases, each a type of its own.
//! * [`txn`]: the part of etcd v3 that the protocol needs, as values: keys, compares, transactions, events.
//! * [`records`], [`keys`]: the values in the store and their keys.
//! * [`view`]: the keyspace at one revision.
//! * [`lease`], [`registration`], [`holders`], [`horizon`], [`mapping`]: decisions of participants about themselves: how long
//!   a lease can be trusted, what to do about their own key, whose key is deleted while others go on with the lease,
//!   whether the store has gone back, whether a router maps requests as the keyspace does.
//! * [`trace_context`]: the place of a request in a distributed trace, and the trace of a handoff.
//! * [`authority`]: who may carry out decisions that concern no participant alone.
//! * [`handoff`]: when a handoff's phase moves on, and what each router and pod does in it.
//! * [`planning`]: which partitions move where and when, and which moves are cancelled.
//! * [`troubles`]: what clients suffer by a router's traffic, and when the router reports it.
//! * [`rounds`]: who carries that out in a keyspace without a leader.
//!
//! # Invariants
//!
//! * The same arguments give the same result. There is no clock, randomness, I/O, task or log here. Moments are
//!   arguments.
//! * A decision depends on the view and on what the caller has done, never on an event. A caller that starts late, or
//!   that missed something, gets the same result.
//! * The compares of a transaction carry its safety: if its view is out of date in a way that matters, it fails. The
//!   one exception is [`advance_past_bound`](handoff::advance::advance_past_bound), whose caller must have waited.

#![warn(clippy::missing_errors_doc, clippy::too_many_lines)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod authority;
pub mod back_off;
pub mod handoff;
pub mod headers;
pub mod holders;
pub mod horizon;
pub mod ids;
pub mod keys;
pub mod keyspace_list;
pub mod lease;
pub mod mapping;
pub mod planning;
pub mod records;
pub mod registration;
pub mod rounds;
pub mod trace_context;
pub mod troubles;
pub mod txn;
pub mod view;
