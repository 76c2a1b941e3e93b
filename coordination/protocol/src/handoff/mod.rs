//! One handoff: when its phase moves on, and what each router and pod does in it.
//!
//! | module | called by | decides |
//! | --- | --- | --- |
//! | [`advance`] | coordinator, acknowledging participants | what is waited for; the transaction that moves the phase on |
//! | [`waits`] | status, explanations | nothing: since when a handoff waits for whom |
//! | `flip` | `advance`, `pod`, planning | what changes the owner; what ends a first placement |
//! | [`checkpoint`] | pods | when a checkpoint is due, and from which one a new owner starts |
//! | [`history`] | whoever ends a handoff, the coordinator | what a handoff leaves behind, and for how long |
//! | [`router`] | routers | where a partition's requests go; the next step towards that |
//! | [`pod`] | pods | what the pod has to do with a partition |
//! | [`pod_reconcile`] | pods | which epoch to accept, and which callback or acknowledgement is next |
//! | [`remote_pod`] | the gRPC service, for pods in other processes | what the pod is told; what its reports mean |
//! | [`parties`] | the gRPC service | nothing: it finds a pod's partitions without a look at all of them |
//! | [`epoch_fence`] | pods, for each request | whether the request is admitted, waits or is refused |
//!
//! # How it is driven
//!
//! Every participant keeps a [`View`](crate::view::View). After each batch of its watch it calls its decision again for
//! the partitions of the batch's [`ViewDelta`](crate::view::ViewDelta). It also does so when its own state has changed:
//! a drain or a callback has ended, or its lease clock has run out.
//!
//! * A router calls [`router::next_step`] with the stage of its gate, carries the step out, and repeats until there is
//!   none. It writes its acknowledgements with [`advance::acknowledge`].
//! * A pod calls [`pod::duty`], and [`pod_reconcile::decide`] with what it has done so far. First it accepts the epoch,
//!   or none. Then it runs the callback or writes the acknowledgement: with [`advance::acknowledge`], or with
//!   [`pod::warmed`] where that moves the phase on.
//! * The coordinator calls [`advance::advance`] for each handoff, in case no participant has written the transition
//!   together with the last acknowledgement. [`planning`](crate::planning) decides which handoffs begin and which are
//!   cancelled.
//!
//! A transaction is committed unchanged, except that the coordinator adds the compare that it still leads. A failed
//! transaction is no error: the view was out of date, and the next view leads to the next decision.

pub mod advance;
pub mod checkpoint;
pub mod epoch_fence;
pub(crate) mod flip;
pub mod history;
pub mod parties;
pub mod pod;
pub mod pod_reconcile;
pub mod remote_pod;
pub mod router;
pub mod waits;
