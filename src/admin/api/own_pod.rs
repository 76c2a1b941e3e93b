//! What an admin endpoint tells of its process, whatever the keyspace: `/drain` and `/settled` of the pod of its sidecar,
//! for what deploys it, and whom it lets change something.
//!
//! # Invariants
//!
//! * The drain is this life's: it is the pod's own record that says it, and ends with the process.

use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, Request, State};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Json, Router};
use futures_util::future::join_all;
use segue_coordination::pod::PodHandle;
use serde_json::{Value, json};
use tokio::time::timeout;
use tracing::info;

use super::keyspaces::named;
use super::problem::{self, ApiProblem};
use super::read::WaitQuery;
use super::{AdminPeer, Api, WriteControl, guard};
use crate::operator::ConditionState;
use crate::process::shared_list::SharedList;

/// The pod of this process.
#[derive(Debug, Clone)]
pub(crate) struct OwnPod {
    name: String,
    /// By keyspace. Clones have the same ones.
    handles: SharedList<(String, PodHandle)>,
}

impl OwnPod {
    /// Returns the pod `name` in these keyspaces. It runs as long as this value exists, unless it is shut down.
    pub(crate) fn new(name: String, handles: impl IntoIterator<Item = (String, PodHandle)>) -> Self {
        OwnPod { name, handles: handles.into_iter().collect() }
    }

    /// Adds the pod of one more keyspace.
    pub(crate) fn add(&self, handle: (String, PodHandle)) {
        self.handles.push(handle);
    }
}

/// The process of an admin endpoint.
#[derive(Debug)]
pub(crate) struct OwnProcess {
    control: Arc<WriteControl>,
    apis: SharedList<Arc<Api>>,
    pod: Option<OwnPod>,
}

impl OwnProcess {
    /// Returns a process with these keyspaces and, if it is a sidecar, this pod.
    pub(crate) fn new(control: Arc<WriteControl>, apis: SharedList<Arc<Api>>, pod: Option<OwnPod>) -> Self {
        OwnProcess { control, apis, pod }
    }

    /// Returns the routes.
    pub(crate) fn routes(self) -> Router {
        Router::new()
            .route("/v1/access", get(access))
            .route("/v1/keyspaces", get(keyspaces))
            .route("/drain", get(drain).post(drain))
            .route("/settled", get(settled))
            .method_not_allowed_fallback(problem::method_not_allowed)
            .with_state(Arc::new(self))
    }

    fn pod(&self) -> Result<&OwnPod, ApiProblem> {
        self.pod.as_ref().ok_or_else(|| {
            let text =
                "this process is no pod's sidecar: ask the sidecar, or drain a pod with POST /v1/pods/{pod}/drain";
            ApiProblem::new(StatusCode::NOT_FOUND, "no-pod", text)
        })
    }

    /// Refuses a request that names one of several keyspaces, and one that names another.
    fn ensure_about_all(&self, uri: &Uri) -> Result<(), ApiProblem> {
        let apis = self.apis.all();
        match named(uri)? {
            Some(name) if apis.len() > 1 || apis.iter().any(|api| api.keyspace() != name) => {
                let text = format!(
                    "{} is about the pod in all keyspaces of this process; expected it without keyspace={name}",
                    uri.path()
                );
                Err(ApiProblem::bad_request(text))
            }
            _ => Ok(()),
        }
    }

    /// Returns what distinguishes a text about one of several keyspaces.
    fn of(&self, keyspace: &str) -> String {
        if self.apis.all().len() > 1 { format!("keyspace {keyspace}: ") } else { String::new() }
    }
}

fn not_yet(text: String) -> ApiProblem {
    ApiProblem::new(StatusCode::SERVICE_UNAVAILABLE, "waiting", text)
}

/// Responds whether this client may change something, or what it has to present.
async fn access(State(process): State<Arc<OwnProcess>>, peer: Option<Extension<AdminPeer>>) -> Json<Value> {
    let write = guard::access(&process.control.write, peer.as_deref());
    Json(json!({ "write": write }))
}

/// Responds with the names of the keyspaces.
async fn keyspaces(State(process): State<Arc<OwnProcess>>) -> Json<Value> {
    let apis = process.apis.all();
    let names: Vec<_> = apis.iter().map(|api| api.keyspace()).collect();
    Json(json!({ "keyspaces": names }))
}

/// Hands all partitions of all keyspaces over, and responds once the pod is empty or the time is up.
async fn drain(
    State(process): State<Arc<OwnProcess>>,
    wait: Result<Query<WaitQuery>, QueryRejection>,
    request: Request,
) -> Result<Response, ApiProblem> {
    let (parts, _) = request.into_parts();
    guard::admit(&process.control.write, parts.extensions.get::<AdminPeer>(), &parts)?;
    process.ensure_about_all(&parts.uri)?;
    let (time, pod) = (WaitQuery::time(wait)?, process.pod()?);
    let (name, handles) = (&pod.name, pod.handles.all());
    let Ok(_place) = process.control.drains.try_acquire() else { return Err(ApiProblem::busy()) };
    if !handles.iter().all(|(_, handle)| handle.status().borrow().draining) {
        info!(pod = name, "told to drain");
    }
    handles.iter().for_each(|(_, handle)| handle.set_draining());
    match timeout(time, join_all(handles.iter().map(|(_, handle)| emptied(handle)))).await {
        Ok(emptied) if emptied.iter().all(|emptied| *emptied) => {
            Ok(Json(json!({ "text": format!("pod {name} is empty"), "pod": name })).into_response())
        }
        Ok(_) => Err(ApiProblem::failed(format!("pod {name} has ended before it was empty"))),
        Err(_) => {
            let owned: usize = handles.iter().map(|(_, handle)| handle.status().borrow().owned.len()).sum();
            Err(not_yet(format!("pod {name} gives up its partitions; it still has {owned}")))
        }
    }
}

/// Returns whether a pod that was told to drain has been emptied, once it has or has ended.
async fn emptied(handle: &PodHandle) -> bool {
    let mut state = handle.status();
    // A pod whose record does not say so yet may still be given partitions.
    let ended = state.wait_for(|state| state.draining && state.emptied).await.is_err();
    // It may have been emptied before it ended.
    !ended || state.borrow().emptied
}

/// Responds whether the pod has what the plans of all keyspaces give it.
async fn settled(State(process): State<Arc<OwnProcess>>, uri: Uri) -> Result<Response, ApiProblem> {
    process.ensure_about_all(&uri)?;
    let pod = process.pod()?;
    let name = &pod.name;
    let mut texts = Vec::new();
    for (keyspace, handle) in &pod.handles.all() {
        let of = process.of(keyspace);
        if let Some(reason) = handle.status().borrow().not_ready.clone() {
            return Err(not_yet(format!("{of}pod {name} is not ready: {reason}")));
        }
        let apis = process.apis.all();
        let Some(api) = apis.iter().find(|api| api.keyspace() == keyspace) else { continue };
        let pod = name.clone();
        let standing =
            api.run(&process.control.questions, |link, _| async move { link.has_its_share(&pod).await }).await?;
        match standing {
            ConditionState::Done(text) => texts.push(format!("{of}{text}")),
            ConditionState::Failed(text) | ConditionState::Waiting(text) => return Err(not_yet(format!("{of}{text}"))),
        }
    }
    Ok(Json(json!({ "text": texts.join("; ") })).into_response())
}
