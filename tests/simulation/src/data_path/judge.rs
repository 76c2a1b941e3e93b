//! Judges each request by its history, at the end of a run.

use super::world::{KEPT_BYTES, Outcome, Request, World};

/// Adds what is wrong to the world's violations.
pub(super) fn judge(world: &World) {
    let requests = world.requests.borrow();
    for (id, request) in requests.iter().enumerate() {
        if let Some(what) = wrong(world, request) {
            world.violated(format!("{id} {what}: {request:?}"));
        }
    }
    for (first, second) in world.held.borrow().iter() {
        let acts = |id: u64| requests[id as usize].acts.first().copied();
        if let (Some(one), Some(other)) = (acts(*first), acts(*second))
            && one > other
        {
            world.violated(format!("{second} was served before {first}, which waited before it"));
        }
    }
}

/// Returns what is wrong with a request's history.
fn wrong(world: &World, request: &Request) -> Option<&'static str> {
    let acts = request.acts.len();
    // A `GET` whose connection has ended without a response may be sent again (RFC 9110, 9.2.2).
    if acts > 1 && !(request.is_safe && request.fault.is_some()) {
        return Some("was served twice");
    }
    let Some((_, outcome)) = &request.ended else { return Some("has no outcome") };
    let may_fail = request.fault.is_some() || world.was_severed(request);
    let came_late = world.stopped_at.get().is_some_and(|stop| request.sent_at.is_none_or(|sent| sent >= stop));
    match outcome {
        Outcome::Answered(200, _) if acts == 0 => Some("was answered by nobody"),
        Outcome::Answered(200, _) | Outcome::Left => None,
        Outcome::Unserved if acts > 0 => Some("was served behind the last response of its connection"),
        Outcome::Unserved => None,
        Outcome::Answered(421, _) => Some("got a pod's refusal"),
        Outcome::Answered(..) if may_fail => None,
        // The router cannot send again a body that it has not kept.
        Outcome::Answered(503, reason) if acts == 0 && request.refusals > 0 && request.body > KEPT_BYTES => {
            (reason != "no-owner").then_some("was refused for another reason than that it cannot be sent again")
        }
        Outcome::Answered(..) if acts > 0 => Some("was served, and told that it failed"),
        // The response to an earlier request on its connection may have ended the connection.
        Outcome::CutOff if may_fail || request.behind.is_some() => None,
        Outcome::CutOff if acts > 0 => Some("lost its response"),
        // A router that stops closes connections, sooner or later.
        Outcome::CutOff if came_late => None,
        Outcome::Answered(502, _) | Outcome::CutOff if world.scenario.loses_unseen() => None,
        Outcome::Answered(..) | Outcome::CutOff => Some("failed without a reason"),
    }
}
