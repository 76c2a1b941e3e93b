//! `/v1`: operators' actions and questions over HTTP, with JSON. A thin cover of `operator`, which the commands use as
//! well. Each keyspace of the process has these routes; `keyspaces` finds the keyspace of a request.
//!
//! Work on the store runs on the runtime of the roles, not on the admin endpoint's thread.
//!
//! # Invariants
//!
//! * Nothing is changed for a request that `guard` has not admitted.
//! * Bodies, waits and the number of concurrent requests to the store are bounded.
//! * Other processes are asked at the addresses that they have put into the store alone, and without what the request
//!   presents. How many requests have them asked at a time is bounded.

mod guard;
mod keyspaces;
mod own_pod;
mod problem;
mod read;
mod traffic;
mod write;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::{get, post, put};
use segue_proxy::tls::ClientTls;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};
use tokio_util::task::AbortOnDropHandle;

pub(crate) use self::guard::{AdminPeer, WritePermission};
pub(crate) use self::keyspaces::KeyspaceRoutes;
pub(crate) use self::own_pod::OwnPod;
pub(crate) use self::own_pod::OwnProcess;
pub(crate) use self::problem::ApiProblem;
use self::traffic::TrafficMeasurements;
use crate::operator::top::OwnRouter;
use crate::operator::{Explanation, Link, OperatorError, WaitProgress};

/// Most questions, waits, actions and drains of the own pod at a time. Questions and waits need no right to write, so they
/// have places of their own: those who ask cannot keep out those who act.
const MAX_QUESTIONS: usize = 16;
const MAX_WAITS: usize = 32;
const MAX_ACTIONS: usize = 16;
const MAX_DRAINS: usize = 8;
/// Most requests for which other processes are asked at a time: about a partition, and for the tables of all routers. A
/// process that is silent takes time, so they have places of their own.
const MAX_ASKS: usize = 8;
const MAX_COMPARISONS: usize = 1;
/// How long the routers may take. Shorter than the life of a connection.
const COMPARISON_TIMEOUT: Duration = Duration::from_secs(40);
/// How long a request waits unless it says so, and at most. The latter is shorter than the life of a connection.
const DEFAULT_WAIT: Duration = Duration::from_secs(20);
const MAX_WAIT: Duration = Duration::from_secs(50);

/// What operators can do with a keyspace of the endpoint's process.
#[derive(Debug)]
pub(crate) struct Api {
    link: Link,
    control: Arc<WriteControl>,
    traffic: TrafficMeasurements,
}

/// Who may change something, and the places of those who ask. All keyspaces of a process share them.
#[derive(Debug)]
pub(crate) struct WriteControl {
    write: WritePermission,
    questions: Semaphore,
    waits: Semaphore,
    actions: Semaphore,
    drains: Semaphore,
    asks: Semaphore,
    comparisons: Semaphore,
    /// How other processes are asked: by TLS, if it is given.
    peers: Option<ClientTls>,
    runtime: Handle,
}

impl WriteControl {
    /// Must be called on the runtime of the roles. The admin endpoints of other processes are asked by TLS if `peers` is
    /// given.
    pub(crate) fn new(write: WritePermission, peers: Option<ClientTls>) -> Self {
        WriteControl {
            write,
            questions: Semaphore::new(MAX_QUESTIONS),
            waits: Semaphore::new(MAX_WAITS),
            actions: Semaphore::new(MAX_ACTIONS),
            drains: Semaphore::new(MAX_DRAINS),
            asks: Semaphore::new(MAX_ASKS),
            comparisons: Semaphore::new(MAX_COMPARISONS),
            peers,
            runtime: Handle::current(),
        }
    }
}

impl Api {
    /// Returns the interface to the keyspace of this link, for which these routers of the process route.
    pub(crate) fn new(link: Link, control: Arc<WriteControl>, routers: Vec<OwnRouter>) -> Self {
        Api { link, control, traffic: TrafficMeasurements::new(routers) }
    }

    /// Returns the name of the keyspace.
    pub(crate) fn keyspace(&self) -> &str {
        self.link.keys().name()
    }

    /// Returns the routes.
    pub(crate) fn routes(self: Arc<Self>) -> Router {
        Router::new()
            .route("/v1/partitions/{partition}", get(read::partition))
            .route("/v1/partitions/{partition}/pin", put(write::pin).delete(write::unpin))
            .route("/v1/keys", get(read::key))
            .route("/v1/pods/{pod}", get(read::pod).delete(write::forget_pod))
            .route("/v1/pods/{pod}/drain", post(write::drain).delete(write::undrain))
            .route("/v1/routers", get(read::routers))
            .route("/v1/routers/{router}", axum::routing::delete(write::forget_router))
            .route("/v1/handoffs/{partition}/cancel", post(write::cancel))
            .route("/v1/moves", post(write::moves))
            .route("/v1/planner", post(write::planner))
            .route("/v1/wanted", put(write::wanted))
            .route("/v1/top", get(traffic::of_keyspace))
            .route("/v1/traffic", get(traffic::of_process))
            .route("/v1/config", get(read::config).put(write::config))
            .route("/v1/mapping", put(write::mapping))
            .route("/v1/plan", get(read::plan))
            .route("/v1/store", get(read::store))
            .route("/v1/wait/settled", get(read::wait_settled))
            .route("/v1/wait/moved/{partition}", get(read::wait_moved))
            .route("/v1/wait/drained/{pod}", get(read::wait_drained))
            .route("/v1/{*rest}", axum::routing::any(problem::unknown))
            .method_not_allowed_fallback(problem::method_not_allowed)
            .with_state(self)
    }

    /// Runs work that uses the store, in one of the places of `places`. The work ends early if its client does.
    async fn run<T, F>(&self, places: &Semaphore, work: impl FnOnce(Link, WaitProgress) -> F) -> Result<T, ApiProblem>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, OperatorError>> + Send + 'static,
    {
        let Ok(_place) = places.try_acquire() else { return Err(ApiProblem::busy()) };
        self.spawn(work(self.link.clone(), watch::Sender::default())).await?.map_err(ApiProblem::from)
    }

    /// Has the participants of an explanation asked.
    async fn ask<E: Explanation + Send + 'static>(&self, mut report: E) -> Result<E, ApiProblem> {
        if !report.has_participants() {
            return Ok(report);
        }
        let Ok(_place) = self.control.asks.try_acquire() else {
            report.leave_unasked(
                "this process is already asking for eight other requests; try again, or ask another process",
            );
            return Ok(report);
        };
        let peers = self.control.peers.clone();
        let asked = async move {
            report.ask(peers.as_ref()).await;
            report
        };
        self.spawn(asked).await
    }

    /// Runs work on the runtime of the roles. The work ends early if its client does.
    async fn spawn<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> Result<T, ApiProblem> {
        let running = AbortOnDropHandle::new(self.control.runtime.spawn(work));
        running.await.map_err(|error| ApiProblem::failed(format!("the request was not carried out: {error}")))
    }
}
