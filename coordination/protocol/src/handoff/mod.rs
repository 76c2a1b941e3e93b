//! One handoff: when its phase moves on, and what each router and pod does in it.
//!
//! | module | asked by | answers |
//! | --- | --- | --- |
//! | [`advance`] | whoever acknowledges, and the coordinator | who is waited for; the transaction that moves the phase on |
//! | [`router`] | routers | where a partition's requests go; the next step towards that |
//! | [`pod`] | pods | what the pod has to do with a partition |
//! | [`pod_reconcile`] | pods | which epoch to accept, and which callback or acknowledgement is next |
//! | [`epoch_fence`] | pods, for each request | whether the request is let in, waits or is refused |
//!
//! # How it is driven
//!
//! Every participant keeps a [`View`](crate::view::View). After each batch of its watch it asks again for the
//! partitions that the batch has [`Touched`](crate::view::Touched). It also asks again when something of its own has
//! changed: a drain or a callback has ended, its lease clock has run out.
//!
//! * A router calls [`router::next_step`] with the stage of its gate, carries the step out, and repeats until there is
//!   none. It writes its acknowledgements with [`advance::acknowledge`].
//! * A pod calls [`pod::duty`], and [`pod_reconcile::next`] with what it has done so far. First it accepts the epoch,
//!   or none; then it runs the callback or writes the acknowledgement: with [`advance::acknowledge`], or with
//!   [`pod::warmed`] where that moves the phase on.
//! * The coordinator calls [`advance::advance`] for each handoff, in case nobody has written the move together with the
//!   last acknowledgement. Which handoffs begin and which are given up is up to [`planning`](crate::planning).
//!
//! A transaction is committed as it is; the coordinator adds the compare that it still leads. One that fails is no
//! error: the view was out of date, and the next view gives the next answer.

pub mod advance;
pub mod epoch_fence;
pub mod pod;
pub mod pod_reconcile;
pub mod router;
