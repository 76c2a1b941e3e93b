//! Takes a request to the gate of its partition: where it belongs, and whether its client's and its key's limits allow it.
//!
//! Not here: what the gate does with it ([`permit`](crate::routing::permit)).

use super::context::WorkerContext;
use super::request::ForwardRequest;
use crate::message::local_reply::LocalReply;
use crate::routing::key_limit::OverKeyLimit;
use crate::routing::partition_key::{LocationError, RequestLocation, WithoutKey};
use crate::routing::permit::{Admission, EarlyRequest};

/// Takes a request to the gate of its partition. `early`: its place, if it has waited for the number of partitions.
pub(super) fn admit(
    shared: &WorkerContext,
    request: &mut ForwardRequest,
    early: Option<EarlyRequest>,
) -> Result<Admission, LocalReply> {
    let partitions = shared.worker.partitions();
    let located = match shared.partition.locate(&request.head, partitions) {
        Ok(located) => located,
        Err(why) => without_key(shared, why, partitions)?,
    };
    request.partition = Some(located.partition);
    if let Some(trace) = &request.trace {
        trace.located(located.partition);
    }
    if shared.worker.counts_keys() {
        note_key(shared, request, located);
    }
    let claim = request.claim(&shared.reserved).ok_or(LocalReply::Overload)?;
    let of_key = match &shared.key_limit {
        None => None,
        Some(limiter) => {
            let claimed = limiter.claim(&request.head, &shared.partition, request.arrived);
            claimed.map_err(|OverKeyLimit| LocalReply::Rate)?
        }
    };
    let weight = request.weight();
    let mut admission = match early {
        None => shared.worker.enter(located.partition, located.order, weight, request.arrived)?,
        Some(early) => early.enter(located.partition, located.order, weight, request.arrived)?,
    };
    admission.keep(claim, of_key);
    match &admission {
        Admission::Admitted(permit) if !shared.load.has_room(permit.pod().slot) => Err(LocalReply::Overload),
        _ => Ok(admission),
    }
}

/// Returns the location of a request that names none, if the settings have one for it.
#[cold]
fn without_key(shared: &WorkerContext, why: LocationError, partitions: u32) -> Result<RequestLocation, LocationError> {
    match (why, shared.exceptions.without_key) {
        (LocationError::Missing, WithoutKey::Partition(partition)) if partition.get() < partitions => {
            Ok(RequestLocation { partition, order: None })
        }
        (LocationError::Missing, WithoutKey::Partition(_)) => Err(LocationError::Bad),
        _ => Err(why),
    }
}

#[cold]
fn note_key(shared: &WorkerContext, request: &ForwardRequest, located: RequestLocation) {
    if let Some(key) = shared.partition.order_key(&request.head) {
        shared.worker.note_key(located, &key);
    }
}
