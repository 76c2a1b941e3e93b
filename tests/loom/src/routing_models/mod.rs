//! The concurrent mechanisms in all interleavings that loom knows of: `make loom`.
//!
//! In each model a few threads act on a gate or on a whole [`Table`] as workers and the control side do, and loom runs them
//! in every order, with the values that weak memory could show. A lost wake-up is a deadlock, which loom reports;
//! everything else is asserted. All but the smallest models are bounded to a number of preemptions (switches away from a
//! thread that could have gone on), given with each.
//!
//! Not explored:
//!
//! * The insides of tokio's tokens and notices, and of the map and list of pods. Their steps are atomic here.
//! * The passing of time: a timer is due at once or never.
//! * A load that sees a store which comes later in the same run. So no model fails if the release half of
//!   [`leave`](crate::routing::gate::Gate::leave) is made `Relaxed`, although it is needed.
//! * Switching a gate that is not empty; `proxy/tests/table/` does that.
//!
//! Each of these faults was introduced once; these models failed:
//!
//! | fault | failed |
//! | --- | --- |
//! | `enter` reads the word with `Acquire`, `count` reads with `Acquire` | `gate::whoever_got_in_…`, `cutover::one_after_…` |
//! | `leave` reads the word with `Acquire`, or before it counts the caller out | `gate::somebody_notices_…`, `cutover::one_after_…` |
//! | `set` stores with `Relaxed` | `gate::an_opened_gate_…`, `cutover::one_after_…` |
//! | settling without a notice, or without the lock | `cutover::everyone_…`, `one_after_…`, both of `severing` |
//! | a newcomer at a closed gate does not check whether it was the last; `wait` does not check again under the lock | `cutover::everyone_…`, `one_after_…` |
//! | the gate opens although a request waits | `cutover::everyone_…`, `giving_up_…`, `hanging_up_…` |
//! | a grant that its permit no longer takes stays counted, or is not given back | `cutover::hanging_up_…` |
//! | a request comes back although the router shuts down | `cutover::nobody_waits_…` |
//! | severing cancels the tokens before it counts itself | both of `severing` |
//! | a refused request is placed by its return | `returning::refused_requests_…` |
//! | the count of partitions is read with `Relaxed` | `growing::a_partition_that_counts_is_there` |
//! | a flush does not wait for early requests | `growing::a_request_that_comes_before_…` |

mod cutover;
mod gate;
mod growing;
mod returning;
mod severing;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::task::Poll;
use std::time::Duration;

use loom::future::block_on;
use loom::thread::{JoinHandle, spawn, yield_now};
use segue_protocol::handoff::router::HoldCause;
use segue_protocol::ids::{Incarnation, PartitionId};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::Instant;

use crate::routing::gate::GateState;
use crate::routing::permit::{Admission, Permit, TableHandle};
use crate::routing::table::{AdmissionError, Bounce, StashLimits, Table};
use crate::{Model, explore, models};

/// The models of each mechanism.
pub(crate) const MODELS: [&[Model]; 5] =
    // The longest first, for all cores to end together.
    [returning::MODELS, cutover::MODELS, gate::MODELS, growing::MODELS, severing::MODELS];

/// The only partition.
const PARTITION: PartitionId = PartitionId::new(0);
/// The only key.
const KEY: Option<u64> = Some(7);

/// The actual state of the requests, kept apart from the table's. Loom does not see it, so it costs no interleavings.
#[derive(Default)]
struct Witness {
    /// Number of requests that hold a permit, by epoch.
    inside: [AtomicU32; 4],
    /// The requests that a pod has acted on, in order.
    acted: std::sync::Mutex<Vec<u32>>,
}

/// One router: a table with one partition, workers as threads, and the model's own thread as control side.
struct Fixture {
    table: Arc<Table>,
    notices: UnboundedReceiver<PartitionId>,
    witness: Arc<Witness>,
    ended: (UnboundedSender<()>, UnboundedReceiver<()>),
    /// A time before all requests.
    began: Instant,
}

impl Fixture {
    fn new(workers: usize, max_wait: Duration) -> Self {
        let limits = StashLimits {
            max_requests: 100,
            max_bytes: 10_000,
            max_total_bytes: 10_000,
            max_wait,
            flush_concurrency: 4,
        };
        let (table, notices) = Table::new(workers, limits);
        let began = Instant::now();
        table.trust_until(began + Duration::from_secs(86_400));
        Fixture { table, notices, witness: Arc::default(), ended: unbounded_channel(), began }
    }

    /// Returns a fixture whose partition exists and is held.
    fn held(workers: usize, max_wait: Duration) -> Self {
        let fixture = Fixture::new(workers, max_wait);
        fixture.table.set_partitions(1);
        fixture
    }

    /// Returns a fixture whose partition is open at epoch 1.
    fn open(workers: usize) -> Self {
        let fixture = Fixture::held(workers, Duration::from_secs(3600));
        fixture.switch(1);
        fixture
    }

    /// Runs a worker as a thread.
    fn worker(&self, index: usize, life: impl FnOnce(Client) + Send + 'static) -> JoinHandle<()> {
        let (table, witness, began, ended) =
            (self.table.clone(), self.witness.clone(), self.began, self.ended.0.clone());
        spawn(move || {
            life(Client { worker: table.worker(index), witness, began });
            // The model may have ended already.
            let _ = ended.send(());
        })
    }

    fn stop(&self) {
        self.table.stop(PARTITION, HoldCause::Handoff);
    }

    /// Routes the partition to the pod of this epoch.
    fn switch(&self, epoch: u64) {
        let slot = self.table.intern_pod(&epoch.to_string(), Incarnation::registered_at(1.into()), "pod:1", false);
        self.table.switch(PARTITION, slot, epoch.into());
    }

    fn position(&self) -> GateState {
        self.table.position(PARTITION).position
    }

    /// Waits until the gate is in this state. Checks again only after a notice.
    fn until(&mut self, position: GateState) {
        while self.position() != position {
            block_on(self.notices.recv());
        }
    }

    /// Performs the rest of a handoff that has been stopped: drain, switch, flush.
    fn move_to(&mut self, epoch: u64) {
        self.until(GateState::Closed);
        self.assert_empty();
        self.switch(epoch);
        self.until(GateState::Open);
    }

    /// Routes the partition to the pod of this epoch whenever it is held, until this number of workers has ended and it is
    /// open.
    fn keep_open(&mut self, epoch: u64, workers: usize) {
        let mut ended = 0;
        while ended < workers || self.position() != GateState::Open {
            if self.position() == GateState::Closed {
                self.assert_empty();
                self.switch(epoch);
                continue;
            }
            let (notices, ends) = (&mut self.notices, &mut self.ended.1);
            block_on(std::future::poll_fn(|context| {
                while ends.poll_recv(context).is_ready() {
                    ended += 1;
                }
                if ended == workers { Poll::Ready(()) } else { notices.poll_recv(context).map(drop) }
            }));
        }
    }

    fn assert_empty(&self) {
        let inside = self.witness.inside.iter().map(|count| count.load(SeqCst)).sum::<u32>();
        assert_eq!(inside, 0, "the gate is held with requests inside");
    }

    /// Asserts that nothing is left behind and the gate is in this state.
    fn assert_at_rest(&self, position: GateState) {
        self.assert_empty();
        assert_eq!(self.table.in_flight(PARTITION), 0);
        assert_eq!(self.table.stashed(PARTITION), (0, 0));
        assert_eq!(self.position(), position);
        self.table.take_times(PARTITION);
        assert!(self.table.is_forgotten(PARTITION) || position != GateState::Open, "an open gate keeps its past");
    }

    fn acted(&self) -> Vec<u32> {
        self.witness.acted.lock().unwrap().clone()
    }
}

/// A worker with its requests.
struct Client {
    worker: TableHandle,
    witness: Arc<Witness>,
    began: Instant,
}

/// A request that has passed, and its epoch in the witness.
struct Passed {
    permit: Permit,
    epoch: u64,
    witness: Arc<Witness>,
}

impl Client {
    /// Takes the request with this number to the gate.
    fn enter(&self, number: u32) -> Result<Admission, AdmissionError> {
        self.worker.enter(PARTITION, KEY, 1, self.began + Duration::from_secs(number.into()))
    }

    /// Takes the request through the gate, waiting if it has to.
    fn permit(&self, number: u32) -> Passed {
        self.admitted(self.enter(number).unwrap())
    }

    /// Waits for a request's turn if it has to.
    fn admitted(&self, admission: Admission) -> Passed {
        let permit = match admission {
            Admission::Admitted(permit) => permit,
            Admission::Queued(queued) => block_on(queued).unwrap(),
        };
        self.saw(permit)
    }

    /// Checks the permit's destination against those of all other permits.
    fn saw(&self, permit: Permit) -> Passed {
        let epoch = permit.epoch().get();
        assert_eq!(permit.pod().name, epoch.to_string(), "the pod of one epoch, the number of another");
        self.witness.inside[epoch as usize].fetch_add(1, SeqCst);
        let others = self.witness.inside.iter().enumerate().filter(|(of, _)| *of as u64 != epoch);
        assert_eq!(others.map(|(_, count)| count.load(SeqCst)).sum::<u32>(), 0, "requests of two owners in flight");
        Passed { permit, epoch, witness: self.witness.clone() }
    }
}

impl Passed {
    /// Has the pod act on the request and respond.
    fn served(mut self, number: u32) {
        self.witness.acted.lock().unwrap().push(number);
        self.permit.delivered();
        drop(self.left());
    }

    /// Removes the request from the witness. What follows is the end of its permit.
    fn left(self) -> Permit {
        self.witness.inside[self.epoch as usize].fetch_sub(1, SeqCst);
        self.permit
    }
}
