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
use segue_protocol::ids::{HandoffId, PartitionId};
use segue_protocol::records::{Origin, Partitioner};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tokio::time::timeout;

use super::problem::Problem;
use super::read::{WaitQuery, of_path};
use super::{Api, Peer, guard};
use crate::operator::{Action, GivenOwners, Kind, Order, perform};

/// Most bytes of a body, and of the wanted owners: etcd takes no more in a value.
const MAX_BODY: usize = 64 << 10;
const MAX_WANTED: usize = 3 << 19;
/// How long a body may take.
const BODY_TIMEOUT: Duration = Duration::from_secs(5);
/// Most bytes of an operator's name and of a reason.
const MAX_TEXT: usize = 1000;

type Answer = Result<Response, Problem>;
type Wait = Result<Query<WaitQuery>, QueryRejection>;
type PathOf<T> = Result<Path<T>, PathRejection>;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Move {
    partition: PartitionId,
    to: String,
    #[serde(default)]
    pin: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Pin {
    #[serde(default)]
    to: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Cancel {
    #[serde(default)]
    handoff: Option<HandoffId>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Planner {
    paused: bool,
    #[serde(default, rename = "for")]
    time: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Set {
    key: String,
    value: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Mapping {
    to: Partitioner,
    #[serde(default)]
    yes: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Forget {
    #[serde(default)]
    force: bool,
    #[serde(default)]
    yes: bool,
}

/// No fields of its own.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

pub(super) async fn moves(State(api): State<Arc<Api>>, wait: Wait, request: Request) -> Answer {
    let action = |Move { partition, to, pin }| Ok(Action::Move { partition, to, pin });
    act(&api, wait, request, MAX_BODY, action).await
}

pub(super) async fn pin(
    State(api): State<Arc<Api>>,
    path: PathOf<PartitionId>,
    wait: Wait,
    request: Request,
) -> Answer {
    act(&api, wait, request, MAX_BODY, |Pin { to }| Ok(Action::Pin { partition: of_path(path)?, to })).await
}

pub(super) async fn unpin(
    State(api): State<Arc<Api>>,
    path: PathOf<PartitionId>,
    wait: Wait,
    request: Request,
) -> Answer {
    act(&api, wait, request, MAX_BODY, |Nothing {}| Ok(Action::Unpin { partition: of_path(path)? })).await
}

pub(super) async fn cancel(
    State(api): State<Arc<Api>>,
    path: PathOf<PartitionId>,
    wait: Wait,
    request: Request,
) -> Answer {
    let action = |Cancel { handoff }| Ok(Action::Cancel { partition: of_path(path)?, handoff });
    act(&api, wait, request, MAX_BODY, action).await
}

pub(super) async fn drain(State(api): State<Arc<Api>>, path: PathOf<String>, wait: Wait, request: Request) -> Answer {
    act(&api, wait, request, MAX_BODY, |Nothing {}| Ok(Action::Drain { pod: of_path(path)? })).await
}

pub(super) async fn undrain(State(api): State<Arc<Api>>, path: PathOf<String>, wait: Wait, request: Request) -> Answer {
    act(&api, wait, request, MAX_BODY, |Nothing {}| Ok(Action::Undrain { pod: of_path(path)? })).await
}

pub(super) async fn planner(State(api): State<Arc<Api>>, wait: Wait, request: Request) -> Answer {
    let action = |Planner { paused, time }| match (paused, time) {
        (false, None) => Ok(Action::Resume),
        (false, Some(_)) => Err(Problem::bad_request("\"for\" without \"paused\": true")),
        (true, time) => {
            let span = time.as_deref().map(segue_config::parse_duration).transpose();
            Ok(Action::Pause { span: span.map_err(|error| Problem::bad_request(format!("for: {error}")))? })
        }
    };
    act(&api, wait, request, MAX_BODY, action).await
}

pub(super) async fn wanted(State(api): State<Arc<Api>>, wait: Wait, request: Request) -> Answer {
    act(&api, wait, request, MAX_WANTED, |given: GivenOwners| Ok(Action::Want(given.into()))).await
}

pub(super) async fn config(State(api): State<Arc<Api>>, wait: Wait, request: Request) -> Answer {
    act(&api, wait, request, MAX_BODY, |Set { key, value }| Ok(Action::Set { key, value })).await
}

pub(super) async fn mapping(State(api): State<Arc<Api>>, wait: Wait, request: Request) -> Answer {
    let action = |Mapping { to, yes }| match to {
        Partitioner::Unknown(_) => Err(Problem::bad_request("to: expected a mapping that this version knows")),
        to => Ok(Action::Remap { to, confirmed: yes }),
    };
    act(&api, wait, request, MAX_BODY, action).await
}

pub(super) async fn forget_pod(
    State(api): State<Arc<Api>>,
    path: PathOf<String>,
    wait: Wait,
    request: Request,
) -> Answer {
    forget(&api, Kind::Pod, path, wait, request).await
}

pub(super) async fn forget_router(
    State(api): State<Arc<Api>>,
    path: PathOf<String>,
    wait: Wait,
    request: Request,
) -> Answer {
    forget(&api, Kind::Router, path, wait, request).await
}

async fn forget(api: &Api, kind: Kind, path: PathOf<String>, wait: Wait, request: Request) -> Answer {
    let action = |Forget { force, yes }| Ok(Action::Forget { kind, name: of_path(path)?, force, confirmed: yes });
    act(api, wait, request, MAX_BODY, action).await
}

/// Carries out the action that an admitted request's body says.
async fn act<T: DeserializeOwned>(
    api: &Api,
    wait: Wait,
    request: Request,
    max_body: usize,
    action: impl FnOnce(T) -> Result<Action, Problem>,
) -> Answer {
    let (parts, body) = request.into_parts();
    let peer = parts.extensions.get::<Peer>().copied();
    guard::admit(&api.control.write, peer.as_ref(), &parts)?;
    let patience = WaitQuery::time(wait)?;
    let mut fields = read(body, max_body).await?;
    let (id, origin) = (id(&parts, &mut fields)?, origin(peer, &mut fields)?);
    let body = serde_json::from_value(Value::Object(fields));
    let action = action(body.map_err(|error| Problem::bad_request(format!("the body: {error}")))?)?;
    let order = Order { action, id, origin };
    let done = api.run(&api.control.actions, |link, said| async move { perform(&link, &order, patience, &said).await });
    Ok(Json(done.await?).into_response())
}

/// Reads a JSON object. No body at all is an empty one.
async fn read(body: Body, max: usize) -> Result<Map<String, Value>, Problem> {
    let bytes = timeout(BODY_TIMEOUT, to_bytes(body, max)).await;
    let bytes = bytes.map_err(|_| Problem::new(StatusCode::REQUEST_TIMEOUT, "limit", "the body took too long"))?;
    let bytes = bytes.map_err(|error| {
        let text = format!("expected a body of at most {max} bytes: {error}");
        Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "limit", text)
    })?;
    if bytes.is_empty() {
        return Ok(Map::new());
    }
    serde_json::from_slice(&bytes)
        .map_err(|error| Problem::bad_request(format!("the body: {error}; expected a JSON object")))
}

/// Takes the operation's id from the body or from the header.
fn id(parts: &Parts, fields: &mut Map<String, Value>) -> Result<Option<String>, Problem> {
    let header = match parts.headers.get("idempotency-key") {
        Some(value) => {
            let text = value.to_str().map_err(|_| Problem::bad_request("idempotency-key: expected ASCII"))?;
            Some(text.to_owned())
        }
        None => None,
    };
    match (text(fields, "id")?, header) {
        (Some(id), Some(header)) if id != header => {
            Err(Problem::bad_request("the id of the body and idempotency-key differ; expected one of them"))
        }
        (id, header) => Ok(id.or(header)),
    }
}

fn origin(peer: Option<Peer>, fields: &mut Map<String, Value>) -> Result<Origin, Problem> {
    let (who, why) = (text(fields, "who")?, text(fields, "why")?.unwrap_or_default());
    let who = peer.map_or_else(|| "somebody".to_owned(), |peer| peer.who(who));
    Ok(Origin { who, why, at: unix_millis() })
}

/// Takes a text out of a body.
fn text(fields: &mut Map<String, Value>, name: &str) -> Result<Option<String>, Problem> {
    match fields.remove(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) if text.len() <= MAX_TEXT => Ok(Some(text)),
        Some(_) => Err(Problem::bad_request(format!("{name}: expected a text of at most {MAX_TEXT} bytes"))),
    }
}
