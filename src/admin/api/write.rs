//! Actions: each request becomes an order of [`operator`](crate::operator).

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::{Body, to_bytes};
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, Request, State};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use segue_coordination::session::unix_millis;
use segue_protocol::ids::PartitionId;
use segue_protocol::records::{Origin, Partitioner};
use serde::Serialize;
use serde_json::{Map, Value, json};
use tokio::time::timeout;

use super::problem::ApiProblem;
use super::read::{WaitQuery, of_path};
use super::{AdminPeer, Api, guard};
use crate::operator::{Action, OperationId, Order, RegistrationKind, perform};

/// Most bytes of a body, and of the wanted owners: etcd takes no more in a value.
const MAX_BODY: usize = 64 << 10;
const MAX_WANTED: usize = 3 << 19;
/// How long a body may take.
const BODY_TIMEOUT: Duration = Duration::from_secs(5);
/// Most bytes of an operator's name and of a reason.
const MAX_TEXT: usize = 1000;

type Answer = Result<Response, ApiProblem>;
type Wait = Result<Query<WaitQuery>, QueryRejection>;
type PathOf<T> = Result<Path<T>, PathRejection>;

/// The fields of an action that the request's path has.
type InPath = Result<Map<String, Value>, ApiProblem>;

fn in_path<T: Serialize>(name: &str, path: PathOf<T>) -> InPath {
    Ok(Map::from_iter([(name.to_owned(), json!(of_path(path)?))]))
}

fn nothing_in_path() -> InPath {
    Ok(Map::new())
}

pub(super) async fn moves(State(api): State<Arc<Api>>, wait: Wait, request: Request) -> Answer {
    act(&api, wait, request, MAX_BODY, |body| action("move", nothing_in_path(), body)).await
}

pub(super) async fn pin(
    State(api): State<Arc<Api>>,
    path: PathOf<PartitionId>,
    wait: Wait,
    request: Request,
) -> Answer {
    act(&api, wait, request, MAX_BODY, |body| action("pin", in_path("partition", path), body)).await
}

pub(super) async fn unpin(
    State(api): State<Arc<Api>>,
    path: PathOf<PartitionId>,
    wait: Wait,
    request: Request,
) -> Answer {
    act(&api, wait, request, MAX_BODY, |body| action("unpin", in_path("partition", path), body)).await
}

pub(super) async fn cancel(
    State(api): State<Arc<Api>>,
    path: PathOf<PartitionId>,
    wait: Wait,
    request: Request,
) -> Answer {
    act(&api, wait, request, MAX_BODY, |body| action("cancel", in_path("partition", path), body)).await
}

pub(super) async fn drain(State(api): State<Arc<Api>>, path: PathOf<String>, wait: Wait, request: Request) -> Answer {
    act(&api, wait, request, MAX_BODY, |body| action("drain", in_path("pod", path), body)).await
}

pub(super) async fn undrain(State(api): State<Arc<Api>>, path: PathOf<String>, wait: Wait, request: Request) -> Answer {
    act(&api, wait, request, MAX_BODY, |body| action("undrain", in_path("pod", path), body)).await
}

pub(super) async fn planner(State(api): State<Arc<Api>>, wait: Wait, request: Request) -> Answer {
    act(&api, wait, request, MAX_BODY, pause_or_resume).await
}

/// Returns the action of `{"paused":true,"for":"1h"}` or `{"paused":false}`.
fn pause_or_resume(mut body: Map<String, Value>) -> Result<Action, ApiProblem> {
    let malformed = |error| ApiProblem::bad_request(format!("the body: {error}"));
    let paused = body.remove("paused").ok_or_else(|| ApiProblem::bad_request("the body: missing field `paused`"))?;
    match (serde_json::from_value(paused).map_err(malformed)?, body.get("for").filter(|time| !time.is_null())) {
        (true, Some(Value::String(time))) => {
            segue_config::parse_duration(time).map_err(|error| ApiProblem::bad_request(format!("for: {error}")))?;
            action("pause", nothing_in_path(), body)
        }
        (true, _) => action("pause", nothing_in_path(), body),
        (false, Some(_)) => Err(ApiProblem::bad_request("\"for\" without \"paused\": true")),
        (false, None) => {
            body.remove("for");
            action("resume", nothing_in_path(), body)
        }
    }
}

pub(super) async fn wanted(State(api): State<Arc<Api>>, wait: Wait, request: Request) -> Answer {
    act(&api, wait, request, MAX_WANTED, |body| action("want", nothing_in_path(), body)).await
}

pub(super) async fn config(State(api): State<Arc<Api>>, wait: Wait, request: Request) -> Answer {
    act(&api, wait, request, MAX_BODY, |body| action("set", nothing_in_path(), body)).await
}

pub(super) async fn mapping(State(api): State<Arc<Api>>, wait: Wait, request: Request) -> Answer {
    let remap = |body| match action("remap", nothing_in_path(), body)? {
        Action::Remap { to: Partitioner::Unknown(_), .. } => {
            Err(ApiProblem::bad_request("to: expected a mapping that this version knows"))
        }
        remap => Ok(remap),
    };
    act(&api, wait, request, MAX_BODY, remap).await
}

pub(super) async fn forget_pod(
    State(api): State<Arc<Api>>,
    path: PathOf<String>,
    wait: Wait,
    request: Request,
) -> Answer {
    forget(&api, RegistrationKind::Pod, path, wait, request).await
}

pub(super) async fn forget_router(
    State(api): State<Arc<Api>>,
    path: PathOf<String>,
    wait: Wait,
    request: Request,
) -> Answer {
    forget(&api, RegistrationKind::Router, path, wait, request).await
}

async fn forget(api: &Api, kind: RegistrationKind, path: PathOf<String>, wait: Wait, request: Request) -> Answer {
    let in_path = in_path("name", path).map(|mut fields| {
        fields.insert("kind".to_owned(), json!(kind));
        fields
    });
    act(api, wait, request, MAX_BODY, |body| action("forget", in_path, body)).await
}

/// Returns the action of this name, with the fields of the path and of the body.
fn action(name: &str, in_path: InPath, mut body: Map<String, Value>) -> Result<Action, ApiProblem> {
    for (field, value) in in_path? {
        if body.contains_key(&field) {
            return Err(ApiProblem::bad_request(format!("the body: unknown field `{field}`")));
        }
        body.insert(field, value);
    }
    Action::named(name, body).map_err(|error| ApiProblem::bad_request(format!("the body: {error}")))
}

/// Carries out the action that an admitted request's body says.
async fn act(
    api: &Api,
    wait: Wait,
    request: Request,
    max_body: usize,
    action: impl FnOnce(Map<String, Value>) -> Result<Action, ApiProblem>,
) -> Answer {
    let (parts, body) = request.into_parts();
    let peer = parts.extensions.get::<AdminPeer>().copied();
    guard::admit(&api.control.write, peer.as_ref(), &parts)?;
    let patience = WaitQuery::time(wait)?;
    let mut fields = read(body, max_body).await?;
    let (id, origin) = (id(&parts, &mut fields)?, origin(peer, &mut fields)?);
    let order = Order { action: action(fields)?, id, origin };
    let done = api.run(&api.control.actions, |link, said| async move { perform(&link, &order, patience, &said).await });
    Ok(Json(done.await?).into_response())
}

/// Reads a JSON object. No body at all is an empty one.
async fn read(body: Body, max: usize) -> Result<Map<String, Value>, ApiProblem> {
    let bytes = timeout(BODY_TIMEOUT, to_bytes(body, max)).await;
    let bytes = bytes.map_err(|_| ApiProblem::new(StatusCode::REQUEST_TIMEOUT, "limit", "the body took too long"))?;
    let bytes = bytes.map_err(|error| {
        let text = format!("expected a body of at most {max} bytes: {error}");
        ApiProblem::new(StatusCode::PAYLOAD_TOO_LARGE, "limit", text)
    })?;
    if bytes.is_empty() {
        return Ok(Map::new());
    }
    serde_json::from_slice(&bytes)
        .map_err(|error| ApiProblem::bad_request(format!("the body: {error}; expected a JSON object")))
}

/// Takes the operation's id from the body or from the header.
fn id(parts: &Parts, fields: &mut Map<String, Value>) -> Result<Option<OperationId>, ApiProblem> {
    let header = match parts.headers.get("idempotency-key") {
        Some(value) => {
            let text = value.to_str().map_err(|_| ApiProblem::bad_request("idempotency-key: expected ASCII"))?;
            Some(text.to_owned())
        }
        None => None,
    };
    match (text(fields, "id")?, header) {
        (Some(id), Some(header)) if id != header => {
            Err(ApiProblem::bad_request("the id of the body and idempotency-key differ; expected one of them"))
        }
        (id, header) => id.or(header).map(|id| id.parse().map_err(ApiProblem::bad_request)).transpose(),
    }
}

fn origin(peer: Option<AdminPeer>, fields: &mut Map<String, Value>) -> Result<Origin, ApiProblem> {
    let (who, why) = (text(fields, "who")?, text(fields, "why")?.unwrap_or_default());
    let who = peer.map_or_else(|| "somebody".to_owned(), |peer| peer.who(who));
    Ok(Origin { who, why, at: unix_millis() })
}

/// Takes a text out of a body.
fn text(fields: &mut Map<String, Value>, name: &str) -> Result<Option<String>, ApiProblem> {
    match fields.remove(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) if text.len() <= MAX_TEXT => Ok(Some(text)),
        Some(_) => Err(ApiProblem::bad_request(format!("{name}: expected a text of at most {MAX_TEXT} bytes"))),
    }
}
