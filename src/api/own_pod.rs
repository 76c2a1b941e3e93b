//! `/drain` and `/settled`: the pod of this process's sidecar, for what deploys it.
//!
//! # Invariants
//!
//! * The drain is this life's: it is the pod's own record that says it, and ends with the process.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use segue_coordination::pod::PodHandle;
use serde_json::json;
use tokio::time::timeout;
use tracing::info;

use super::problem::Problem;
use super::read::WaitQuery;
use super::{Api, Peer, guard};
use crate::operator::Standing;

/// The pod of this process.
#[derive(Debug, Clone)]
pub struct OwnPod {
    name: String,
    handle: PodHandle,
}

impl OwnPod {
    /// Returns the pod `name`. It runs as long as this value exists, unless it is shut down.
    pub(crate) fn new(name: String, handle: PodHandle) -> Self {
        OwnPod { name, handle }
    }
}

fn own_pod(api: &Api) -> Result<&OwnPod, Problem> {
    api.pod.as_ref().ok_or_else(|| {
        let text = "this process is no pod's sidecar: ask the sidecar, or drain a pod with POST /v1/pods/{pod}/drain";
        Problem::new(StatusCode::NOT_FOUND, "no-pod", text)
    })
}

fn not_yet(text: String) -> Problem {
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "waiting", text)
}

/// Hands all partitions over, and responds once the pod is empty or the time is up.
pub(super) async fn drain(
    State(api): State<Arc<Api>>,
    wait: Result<Query<WaitQuery>, QueryRejection>,
    request: Request,
) -> Result<Response, Problem> {
    let (parts, _) = request.into_parts();
    guard::admit(&api.write, parts.extensions.get::<Peer>(), &parts)?;
    let (time, pod) = (WaitQuery::time(wait)?, own_pod(&api)?);
    let Ok(_place) = api.drains.try_acquire() else { return Err(Problem::busy()) };
    let mut state = pod.handle.status();
    if !state.borrow().draining {
        info!(pod = pod.name, "told to drain");
    }
    pod.handle.set_draining();
    // A pod whose record does not say so yet may still be given partitions.
    let name = &pod.name;
    let emptied = timeout(time, async {
        // An error means that the pod has ended; it may have been emptied before.
        let ended = state.wait_for(|state| state.draining && state.emptied).await.is_err();
        !ended || state.borrow().emptied
    });
    match emptied.await {
        Ok(true) => Ok(Json(json!({ "text": format!("pod {name} is empty"), "pod": name })).into_response()),
        Ok(false) => Err(Problem::failed(format!("pod {name} has ended before it was empty"))),
        Err(_) => {
            let owned = pod.handle.status().borrow().owned.len();
            Err(not_yet(format!("pod {name} gives up its partitions; it still has {owned}")))
        }
    }
}

/// Responds whether the pod has what the plan gives it.
pub(super) async fn settled(State(api): State<Arc<Api>>) -> Result<Response, Problem> {
    let OwnPod { name, handle } = own_pod(&api)?.clone();
    if let Some(reason) = handle.status().borrow().not_ready.clone() {
        return Err(not_yet(format!("pod {name} is not ready: {reason}")));
    }
    let standing = api.run(&api.questions, |link, _| async move { link.has_its_share(&name).await });
    match standing.await? {
        Standing::Done(text) => Ok(Json(json!({ "text": text })).into_response()),
        Standing::Failed(text) | Standing::Waiting(text) => Err(not_yet(text)),
    }
}
