//! Questions: explanations, dry runs, and waits.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Response};
use segue_protocol::ids::PartitionId;
use serde::Deserialize;
use serde_json::json;
use tokio::time::timeout;

use super::problem::ApiProblem;
use super::{Api, COMPARISON_TIMEOUT, DEFAULT_WAIT, MAX_WAIT};
use crate::operator::{Condition, Explanation, Link, until};

type PathOf<T> = Result<Path<T>, PathRejection>;
pub(super) type QueryOf<T> = Result<Query<T>, QueryRejection>;
pub(super) type Answer = Result<Response, ApiProblem>;

/// Returns the value of a path, or the problem with it.
pub(super) fn of_path<T>(path: PathOf<T>) -> Result<T, ApiProblem> {
    path.map(|Path(value)| value).map_err(|error| ApiProblem::bad_request(error.body_text()))
}

pub(super) fn of_query<T>(query: QueryOf<T>) -> Result<T, ApiProblem> {
    query.map(|Query(value)| value).map_err(|error| ApiProblem::bad_request(error.body_text()))
}

/// How long a request may wait: `wait=20s`.
#[derive(Debug, Deserialize)]
pub(super) struct WaitQuery {
    wait: Option<String>,
}

impl WaitQuery {
    /// Returns the time, which is never longer than a connection may live.
    pub(super) fn time(query: QueryOf<Self>) -> Result<Duration, ApiProblem> {
        time(of_query(query)?.wait.as_deref())
    }
}

fn time(wait: Option<&str>) -> Result<Duration, ApiProblem> {
    match wait {
        None => Ok(DEFAULT_WAIT),
        Some(text) => match segue_config::parse_duration(text) {
            Ok(time) => Ok(time.min(MAX_WAIT)),
            Err(error) => Err(ApiProblem::bad_request(format!("wait={text}: {error}"))),
        },
    }
}

/// Responds with an explanation, once its participants have been asked if they are to be.
async fn explained<E: Explanation + Send + 'static>(api: &Api, report: Result<E, ApiProblem>, ask: bool) -> Answer {
    let report = match report {
        Ok(report) if ask => api.ask(report).await,
        other => other,
    };
    report.map(|report| Json(report).into_response()).map_err(ApiProblem::of_question)
}

/// `ask=true` asks the participants that a partition's handoff waits for, or the pod.
#[derive(Debug, Deserialize)]
pub(super) struct AskQuery {
    #[serde(default)]
    ask: bool,
}

pub(super) async fn partition(
    State(api): State<Arc<Api>>,
    path: PathOf<PartitionId>,
    query: QueryOf<AskQuery>,
) -> Answer {
    let (partition, AskQuery { ask }) = (of_path(path)?, of_query(query)?);
    let explain =
        api.run(&api.control.questions, move |link, _| async move { link.explain_partition(partition).await });
    explained(&api, explain.await, ask).await
}

/// `key=KEY`, and whether to ask.
#[derive(Debug, Deserialize)]
pub(super) struct KeyQuery {
    key: String,
    #[serde(default)]
    ask: bool,
}

pub(super) async fn key(State(api): State<Arc<Api>>, query: QueryOf<KeyQuery>) -> Answer {
    let KeyQuery { key, ask } = of_query(query)?;
    let explain = api.run(&api.control.questions, |link, _| async move { link.explain_key(&key).await });
    explained(&api, explain.await, ask).await
}

pub(super) async fn routers(State(api): State<Arc<Api>>) -> Answer {
    let peers = api.control.peers.clone();
    let compare = |link: Link, _| async move { link.compare_routers(peers.as_ref()).await };
    let compared = timeout(COMPARISON_TIMEOUT, api.run(&api.control.comparisons, compare)).await;
    let late = |_| ApiProblem::failed(format!("not all routers could be asked within {COMPARISON_TIMEOUT:?}"));
    Ok(Json(compared.map_err(late)??).into_response())
}

pub(super) async fn config(State(api): State<Arc<Api>>) -> Answer {
    let settings = api.run(&api.control.questions, |link, _| async move { link.settings().await }).await?;
    Ok(Json(settings).into_response())
}

pub(super) async fn pod(State(api): State<Arc<Api>>, path: PathOf<String>, query: QueryOf<AskQuery>) -> Answer {
    let (pod, AskQuery { ask }) = (of_path(path)?, of_query(query)?);
    let explain = api.run(&api.control.questions, |link, _| async move { link.explain_pod(&pod).await });
    explained(&api, explain.await, ask).await
}

pub(super) async fn store(State(api): State<Arc<Api>>) -> Answer {
    let ask = |link: Link, _| async move { Ok(link.write_refusal().await) };
    let refuses_writes = api.run(&api.control.questions, ask).await?;
    Ok(Json(json!({ "refuses_writes": refuses_writes })).into_response())
}

/// `without=POD`.
#[derive(Debug, Deserialize)]
pub(super) struct PlanQuery {
    without: Option<String>,
}

pub(super) async fn plan(State(api): State<Arc<Api>>, query: QueryOf<PlanQuery>) -> Answer {
    let without = of_query(query)?.without;
    let preview = api.run(&api.control.questions, |link, _| async move { link.plan(without.as_deref()).await }).await?;
    Ok(Json(preview).into_response())
}

/// `to=POD`, and how long to wait.
#[derive(Debug, Deserialize)]
pub(super) struct MovedQuery {
    to: Option<String>,
    wait: Option<String>,
}

/// `by_operator=true`: the wait ends if the drain does; and how long to wait.
#[derive(Debug, Deserialize)]
pub(super) struct DrainedQuery {
    #[serde(default)]
    by_operator: bool,
    wait: Option<String>,
}

pub(super) async fn wait_settled(State(api): State<Arc<Api>>, query: QueryOf<WaitQuery>) -> Answer {
    wait(&api, Condition::Settled, WaitQuery::time(query)?).await
}

pub(super) async fn wait_moved(
    State(api): State<Arc<Api>>,
    path: PathOf<PartitionId>,
    query: QueryOf<MovedQuery>,
) -> Answer {
    let MovedQuery { to, wait: waits } = of_query(query)?;
    wait(&api, Condition::Moved { partition: of_path(path)?, to }, time(waits.as_deref())?).await
}

pub(super) async fn wait_drained(
    State(api): State<Arc<Api>>,
    path: PathOf<String>,
    query: QueryOf<DrainedQuery>,
) -> Answer {
    let DrainedQuery { by_operator, wait: waits } = of_query(query)?;
    wait(&api, Condition::Drained { pod: of_path(path)?, by_operator }, time(waits.as_deref())?).await
}

async fn wait(api: &Api, condition: Condition, time: Duration) -> Answer {
    let done =
        api.run(&api.control.waits, |link, said| async move { until(&link, &condition, time, &said).await }).await?;
    Ok(Json(json!({ "text": done })).into_response())
}
