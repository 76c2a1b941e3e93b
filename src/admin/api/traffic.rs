//! `/v1/traffic` and `/v1/top`: what goes through the routers of this process, and through all routers of the keyspace.
//!
//! # Invariants
//!
//! * A measurement takes a while, and those who ask meanwhile get the same one: many readers of the page cost as much as one.
//! * Keys are counted only for those who ask for them.

use std::sync::{Arc, Mutex, PoisonError};

use axum::body::Bytes;
use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse as _;
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared, WeakShared, join_all};
use serde::{Deserialize, Serialize};

use super::Api;
use super::problem::ApiProblem;
use super::read::{Answer, QueryOf, of_query};
use crate::operator::OperatorError;
use crate::operator::top::{MEASURED_FOR, OwnRouter, ProcessTraffic, TrafficQuestion, measure};

/// Whether the most frequent keys are wanted: `keys=true`.
#[derive(Debug, Deserialize)]
pub(super) struct TrafficQuery {
    #[serde(default)]
    keys: bool,
}

/// A measurement as JSON, or why there is none.
type MeasurementOutcome = Result<Bytes, Arc<ApiProblem>>;
type Measurement = BoxFuture<'static, MeasurementOutcome>;

/// The measurement that is being taken, if one is.
#[derive(Default)]
struct SharedMeasurement(Mutex<Option<WeakShared<Measurement>>>);

impl SharedMeasurement {
    /// Returns the measurement that is being taken, otherwise a new one. It ends early once nobody waits for it.
    fn join(&self, begin: impl FnOnce() -> Measurement) -> Shared<Measurement> {
        let mut running = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        running.as_ref().and_then(WeakShared::upgrade).unwrap_or_else(|| {
            let begun = begin().shared();
            *running = begun.downgrade();
            begun
        })
    }
}

/// The measurements of a keyspace, without keys and with them.
pub(super) struct TrafficMeasurements {
    routers: Arc<[OwnRouter]>,
    of_process: [SharedMeasurement; 2],
    of_keyspace: [SharedMeasurement; 2],
}

impl std::fmt::Debug for TrafficMeasurements {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("TrafficMeasurements").field("routers", &self.routers.len()).finish_non_exhaustive()
    }
}

impl TrafficMeasurements {
    pub(super) fn new(routers: Vec<OwnRouter>) -> Self {
        TrafficMeasurements { routers: routers.into(), of_process: Default::default(), of_keyspace: Default::default() }
    }
}

/// Responds with the traffic of this process's routers.
pub(super) async fn of_process(State(api): State<Arc<Api>>, query: QueryOf<TrafficQuery>) -> Answer {
    let keys = of_query(query)?.keys;
    let measured = api.clone();
    let begin = || {
        let work = async move {
            let measure = measured.traffic.routers.iter().map(|(name, table)| measure(name, table, MEASURED_FOR, keys));
            Ok(ProcessTraffic { routers: join_all(measure).await })
        };
        run(&api, work)
    };
    respond(api.traffic.of_process[usize::from(keys)].join(begin)).await
}

/// Responds with the traffic of all routers of the keyspace.
pub(super) async fn of_keyspace(State(api): State<Arc<Api>>, query: QueryOf<TrafficQuery>) -> Answer {
    let keys = of_query(query)?.keys;
    let measured = api.clone();
    let begin = || {
        let work = async move {
            let Api { link, control, traffic } = &*measured;
            link.traffic(TrafficQuestion { keys, tls: control.peers.as_ref(), own: &traffic.routers }).await
        };
        run(&api, work)
    };
    respond(api.traffic.of_keyspace[usize::from(keys)].join(begin)).await
}

/// Returns the measurement that this work takes, on the runtime of the roles.
fn run<T: Serialize + Send + 'static>(
    api: &Arc<Api>,
    work: impl Future<Output = Result<T, OperatorError>> + Send + 'static,
) -> Measurement {
    let api = api.clone();
    async move {
        let measured = api.spawn(work).await.and_then(|measured| measured.map_err(ApiProblem::from));
        let json = measured
            .and_then(|measured| serde_json::to_vec(&measured).map_err(|error| ApiProblem::failed(error.to_string())));
        json.map(Bytes::from).map_err(Arc::new)
    }
    .boxed()
}

async fn respond(measurement: Shared<Measurement>) -> Answer {
    match measurement.await {
        Ok(json) => Ok(([(header::CONTENT_TYPE, "application/json")], json).into_response()),
        Err(problem) => Err(ApiProblem::clone(&problem)),
    }
}
