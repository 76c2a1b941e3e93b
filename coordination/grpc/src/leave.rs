//! `Leave`: hands a pod's partitions over and ends its registration.

use segue_coordination::session::unix_millis;
use segue_protocol::records::{PodRecord, PodStatus, encode};
use segue_protocol::txn::{Compare, Op, Txn};
use segue_protocol::view::View;
use tonic::Status;
use tracing::debug;

use crate::attach::find;
use crate::hold::end;
use crate::proto::LeaveResponse;
use crate::shared::{KeyspaceService, unavailable};
use crate::token::Token;

/// Ends the registration of this token: at once if `now` is set, otherwise once the pod has handed everything over.
pub(crate) async fn leave(shared: &KeyspaceService, token: Token, now: bool) -> Result<LeaveResponse, Status> {
    let Some(found) = find(shared, token).await? else {
        return Ok(LeaveResponse { empty: true, left: Vec::new() });
    };
    let token = &found.token;
    shared.hub.shows(found.seen).await?;
    loop {
        // One view: a handoff that ends between two looks would show neither its partition nor itself.
        let (left, revision, drain, moves) = {
            let view = shared.hub.view();
            (owned(&view, token), view.revision, drain(&view, token), moves(&view, token))
        };
        let is_empty = drain.is_none() && left.is_empty() && !moves;
        if now || is_empty {
            end(shared, token).await?;
            return Ok(LeaveResponse { empty: left.is_empty(), left });
        }
        if let Some(drain) = drain {
            let outcome = shared.store.commit(drain).await.map_err(unavailable)?;
            debug!(pod = token.pod, committed = outcome.committed(), "pod drains");
        }
        shared.hub.newer_than(revision).await;
        if shared.hub.view().incarnation_of(&token.pod) != token.incarnation() {
            return Ok(LeaveResponse { empty: true, left: Vec::new() });
        }
    }
}

fn owned(view: &View, token: &Token) -> Vec<u32> {
    let mine = view.assignments.iter().filter(|(_, it)| is_token(token, &it.value.owner, it.value.incarnation));
    mine.map(|(partition, _)| partition.get()).collect()
}

/// Returns whether a handoff from or to the pod is in flight.
fn moves(view: &View, token: &Token) -> bool {
    view.handoffs.values().map(|it| &it.value).any(|it| {
        is_token(token, &it.new_owner, it.new_incarnation)
            || it.old_owner.as_deref().is_some_and(|old| is_token(token, old, it.old_incarnation))
    })
}

fn is_token(token: &Token, pod: &str, incarnation: segue_protocol::ids::Incarnation) -> bool {
    pod == token.pod && incarnation == token.incarnation()
}

/// Returns the transaction that sets the pod's status to draining, or `None` if it has that status.
fn drain(view: &View, token: &Token) -> Option<Txn> {
    let key = view.keys().pod(&token.pod);
    let own = view.pods.get(&token.pod).filter(|own| own.incarnation() == token.incarnation())?;
    if own.value.status == PodStatus::Draining {
        return None;
    }
    let value = PodRecord { status: PodStatus::Draining, last_heartbeat: unix_millis(), ..own.value.clone() };
    Some(Txn::guarded(
        [Compare::unchanged_since(key.clone(), own.mod_revision)],
        [Op::put_leased(key, encode(&value), token.lease())],
    ))
}
