//! Decides whether a condition that an operator waits for holds. Pure functions over a view.

use std::collections::BTreeSet;

use segue_coordination::coordinator::describe_waits;
use segue_protocol::ids::PartitionId;
use segue_protocol::keys::KeyName;
use segue_protocol::planning::{Policy, preview, refusal};
use segue_protocol::records::{Assignment, HeldMoves};
use segue_protocol::view::{Versioned, View};

use super::partitions;
use super::plan::moves;

/// Whether a condition holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ConditionState {
    /// The condition holds. The text describes the state.
    Done(String),
    /// The condition cannot hold any more. The text says why.
    Failed(String),
    /// The condition does not hold yet. The text says what is missing.
    Waiting(String),
}

/// Returns whether a pod is empty: it owns no partition, and no handoff leads to it or away from it. With
/// `by_operator`, the condition fails if an operator ends the drain before.
pub(super) fn drained(view: &View, pod: &str, by_operator: bool) -> ConditionState {
    if by_operator && !view.intentions.drains.contains_key(pod) {
        return ConditionState::Failed(format!(
            "the drain of pod {pod} was ended before the pod was empty: see segue undrain"
        ));
    }
    let owned = owned(view, pod);
    let moving: Vec<PartitionId> = view
        .handoffs
        .iter()
        .filter(|(_, handoff)| handoff.value.old_owner.as_deref() == Some(pod) || handoff.value.new_owner == pod)
        .map(|(partition, _)| *partition)
        .collect();
    let unreadable = unreadable(view);
    if owned == 0 && moving.is_empty() && unreadable.is_empty() {
        let gone = if view.pod_key(pod).is_none() { " and not registered" } else { "" };
        return ConditionState::Done(format!("pod {pod} is empty{gone}"));
    }
    let mut text = format!("pod {pod} owns {}, {} on the move", partitions(owned), moving.len());
    if let Some(first) = moving.first().filter(|first| !describe_waits(view, **first).is_empty()) {
        text += &format!("; partition {first} waits for {}", describe_waits(view, *first));
    }
    if let Some(key) = unreadable.first() {
        text += &format!("; {key} cannot be read, so who owns the partition is not known");
    }
    if moving.len() < owned {
        text += &obstacles(view);
    }
    ConditionState::Waiting(text)
}

/// Returns whether a partition is on the pod where it belongs: `to` if given, otherwise the pod that it is pinned to,
/// or any living one.
pub(super) fn moved(view: &View, partition: PartitionId, to: Option<&str>) -> ConditionState {
    if view.settings().is_some_and(|settings| partition.get() >= settings.partitions) {
        return ConditionState::Failed(format!("there is no partition {partition}"));
    }
    let pin = view.intentions.pin(partition).map(|pin| pin.value.to.as_str());
    let owner = view.live_owner(partition).map(|(owner, _)| owner.owner.as_str());
    let wanted = to.or(pin);
    if let Some(handoff) = view.handoffs.get(&partition) {
        let (phase, to) = (handoff.value.phase.as_str(), &handoff.value.new_owner);
        let waits = describe_waits(view, partition);
        let waits = if waits.is_empty() { String::new() } else { format!(", waiting for {waits}") };
        return ConditionState::Waiting(format!("partition {partition} moves to {to}: {phase}{waits}"));
    }
    let refused = to.filter(|to| owner != Some(*to)).and_then(|to| refusal(view, partition, to));
    if let Some(why) = refused {
        return ConditionState::Failed(why.to_owned());
    }
    match (owner, wanted) {
        (Some(owner), None) => ConditionState::Done(format!("partition {partition} is on {owner}")),
        (Some(owner), Some(wanted)) if owner == wanted => {
            ConditionState::Done(format!("partition {partition} is on {owner}"))
        }
        (_, Some(wanted)) if to.is_some() && pin != Some(wanted) => ConditionState::Failed(match pin {
            _ if !view.pods.contains_key(wanted) => {
                format!("partition {partition} does not move to {wanted}: the pod has gone")
            }
            Some(other) => {
                format!("partition {partition} no longer moves to {wanted}: a later order moves it to {other}")
            }
            None => format!(
                "partition {partition} no longer moves to {wanted}: the move was cancelled; segue explain {partition} tells why"
            ),
        }),
        (_, Some(wanted)) if to.is_some() && view.is_draining(wanted) => ConditionState::Failed(format!(
            "partition {partition} does not move to {wanted}, which gives up its partitions meanwhile; it moves there once \
             the pod accepts partitions again, unless the order is withdrawn: segue unpin {partition}"
        )),
        (None, _) => ConditionState::Waiting(format!("partition {partition} has no living owner{}", obstacles(view))),
        (Some(owner), Some(wanted)) => ConditionState::Waiting(format!(
            "partition {partition} is on {owner} and waits for its move to {wanted}{}{}",
            obstacles(view),
            held_in_words(view, wanted)
        )),
    }
}

/// Returns whether the keyspace is at rest: each partition has a living owner, no handoff is in flight, draining pods
/// are empty, and each pinned partition is on its pod if that pod accepts partitions.
pub(super) fn settled(view: &View) -> ConditionState {
    let count = view.partitions();
    if count == 0 {
        return ConditionState::Waiting(format!("the keyspace has no settings yet{}", obstacles(view)));
    }
    let unowned = PartitionId::all(count).filter(|partition| view.live_owner(*partition).is_none()).count();
    if !view.handoffs.is_empty() || unowned > 0 {
        let moving = view.handoffs.len();
        let mut text = format!("{} on the move, {unowned} without a living owner", partitions(moving));
        if moving == 0 {
            text += &obstacles(view);
        }
        return ConditionState::Waiting(text);
    }
    let draining = view.pods.keys().find(|pod| view.is_draining(pod) && owned(view, pod) > 0);
    if let Some(pod) = draining {
        return ConditionState::Waiting(format!(
            "pod {pod} still owns {}{}",
            partitions(owned(view, pod)),
            obstacles(view)
        ));
    }
    let misplaced = view.intentions.pins.iter().find_map(|(partition, pin)| {
        let to = &pin.as_ref()?.value.to;
        let may_go = view.is_pinned_to(*partition, to) && view.pods.contains_key(to) && !view.is_draining(to);
        let is_there = view.live_owner(*partition).is_some_and(|(owner, _)| owner.owner == *to);
        (may_go && !is_there && partition.get() < count).then_some((partition, to))
    });
    if let Some((partition, to)) = misplaced {
        return ConditionState::Waiting(format!("partition {partition} belongs on {to}{}", obstacles(view)));
    }
    ConditionState::Done(format!("the keyspace is at rest: {}, each with a living owner", partitions(count as usize)))
}

/// Returns how many partitions are assigned to a pod, in any incarnation.
pub(super) fn owned(view: &View, pod: &str) -> usize {
    view.assignments.values().filter(|assignment| assignment.value.owner == pod).count()
}

/// Returns the assignments and handoffs that cannot be read.
fn unreadable(view: &View) -> Vec<&String> {
    let matters = |key: &&String| matches!(view.keys().parse(key), Some(KeyName::Assignment(_) | KeyName::Handoff(_)));
    view.malformed.keys().filter(matters).collect()
}

/// Returns what prevents moves, as the end of a sentence. Empty if nothing is known to prevent them.
fn obstacles(view: &View) -> String {
    if view.coordinator().is_none() {
        return "; no coordinator leads".to_owned();
    }
    if view.pods.keys().all(|pod| view.is_draining(pod)) {
        return "; no other pod accepts partitions".to_owned();
    }
    match &view.intentions.pause {
        Some(pause) => format!("; planned moves are paused by {}: segue resume", pause.value.origin),
        None => String::new(),
    }
}

/// Returns whether a pod has what a coordinator gives it: it accepts partitions, takes part in no handoff, and the planner
/// with `policy` gives it none beyond `barred`, the partitions that the pod has said it cannot take, and beyond what is held
/// back for a reason of its own. Without a policy, it has to own a partition unless there are too few for all pods. A pod that
/// an operator drains has its share once it is empty.
pub(super) fn has_its_share(
    view: &View,
    policy: Option<&Policy>,
    pod: &str,
    barred: &BTreeSet<PartitionId>,
) -> ConditionState {
    if view.is_draining(pod) {
        return drained(view, pod, false);
    }
    let Some(life) = view.pods.get(pod).map(|record| record.incarnation()) else {
        return ConditionState::Waiting(format!("pod {pod} is not registered"));
    };
    let moving = view.handoffs.values().map(|handoff| &handoff.value);
    let moving = moving.filter(|handoff| handoff.new_owner == pod || handoff.old_owner.as_deref() == Some(pod)).count();
    let of_life = |at: &&Versioned<Assignment>| at.value.owner == pod && at.value.incarnation == life;
    let owned = view.assignments.values().filter(of_life).count();
    let may_own_none = match policy {
        Some(_) => view.partitions() > 0,
        None => others_own_one(view),
    };
    if moving > 0 || (owned == 0 && !may_own_none) {
        return ConditionState::Waiting(format!(
            "pod {pod} owns {}, {moving} on the move{}",
            partitions(owned),
            obstacles(view)
        ));
    }
    let arriving = policy.map_or_else(Vec::new, |policy| arriving(view, policy, pod));
    let (refused, arriving): (Vec<_>, Vec<_>) = arriving.into_iter().partition(|partition| barred.contains(partition));
    let more = arriving.len();
    let held = held_back(view, pod);
    if more > held.iter().map(|held| held.partitions as usize).sum() {
        return ConditionState::Waiting(format!(
            "pod {pod} owns {}, and the planner gives it {more} more",
            partitions(owned)
        ));
    }
    let refused = match refused.as_slice() {
        [] => String::new(),
        [first, ..] => {
            format!("; it has said that it cannot take {} more, such as {first}", partitions(refused.len()))
        }
    };
    let later: Vec<String> = held
        .iter()
        .map(|held| format!("; {} more later: {}", partitions(held.partitions as usize), held.why))
        .collect();
    let later = later.concat();
    ConditionState::Done(format!(
        "pod {pod} owns {}, and none moves to it or away from it{refused}{later}",
        partitions(owned)
    ))
}

/// Returns the moves to the present life of this pod that are held back. Partitions without an owner are not among them: they
/// wait for a moment only.
fn held_back(view: &View, pod: &str) -> Vec<HeldMoves> {
    let life = view.incarnation_of(pod);
    let is_meant = |held: &HeldMoves| held.to == pod && held.incarnation == life && held.instead_of.is_none();
    view.held().into_iter().filter(is_meant).collect()
}

/// Returns why moves to this pod have not begun, as the end of a sentence.
fn held_in_words(view: &View, pod: &str) -> String {
    let held = held_back(view, pod);
    held.iter()
        .map(|held| format!("; the leader holds back {} for it: {}", partitions(held.partitions as usize), held.why))
        .collect()
}

fn others_own_one(view: &View) -> bool {
    let owners: BTreeSet<&str> = PartitionId::all(view.partitions())
        .filter_map(|partition| view.live_owner(partition))
        .map(|(owner, _)| owner.owner.as_str())
        .collect();
    view.partitions() > 0 && owners.len() >= view.partitions() as usize
}

/// Returns the partitions that the planner with this policy gives a pod beyond what it has. A pod without any is to get
/// its first ones even while planned moves are paused.
pub(super) fn arriving(view: &View, policy: &Policy, pod: &str) -> Vec<PartitionId> {
    let plan = match &view.intentions.pause {
        Some(_) if owned(view, pod) == 0 => {
            let mut resumed = view.clone();
            resumed.intentions.pause = None;
            preview(&resumed, policy)
        }
        _ => preview(view, policy),
    };
    moves(&plan).into_iter().filter(|planned| planned.to == pod).map(|planned| planned.partition).collect()
}

#[cfg(test)]
mod tests {
    use segue_protocol::planning::Strategy;

    use super::super::test_view;
    use super::*;

    const P0: PartitionId = PartitionId::new(0);

    /// A keyspace of two partitions. Pods were registered at revision 3.
    fn view(entries: &[(&str, &str)]) -> View {
        test_view::view(&[&[("config", r#"{"partitions":2}"#)], entries].concat())
    }

    const A: (&str, &str) = ("pods/a", r#"{"pod_name":"a","address":"127.0.0.1:1"}"#);
    const B: (&str, &str) = ("pods/b", r#"{"pod_name":"b","address":"127.0.0.1:2"}"#);
    const LEADER: (&str, &str) = ("coordinator/leader", r#"{"holder":"c"}"#);
    const A_HAS_0: (&str, &str) = ("assignments/0", r#"{"partition":0,"owner":"a","incarnation":3,"epoch":1}"#);
    const A_HAS_1: (&str, &str) = ("assignments/1", r#"{"partition":1,"owner":"a","incarnation":3,"epoch":1}"#);
    const B_HAS_1: (&str, &str) = ("assignments/1", r#"{"partition":1,"owner":"b","incarnation":3,"epoch":1}"#);
    const B_HAD_1: (&str, &str) = ("assignments/1", r#"{"partition":1,"owner":"b","incarnation":2,"epoch":1}"#);
    const MOVING: (&str, &str) = (
        "handoffs/1",
        r#"{"partition":1,"old_owner":"a","old_incarnation":3,"new_owner":"b","new_incarnation":3,"phase":"Warming","epoch":4,"mode":"barrier","started_at":1,"phase_entered_at":1,"reason":"r"}"#,
    );

    fn is_done(standing: ConditionState) -> bool {
        matches!(standing, ConditionState::Done(_))
    }

    #[test]
    fn a_pod_has_its_share_once_it_owns_a_partition_and_none_moves() {
        let has_its_share = |view: &View, policy: Option<&Policy>, pod: &str| {
            is_done(super::has_its_share(view, policy, pod, &BTreeSet::new()))
        };
        assert!(!has_its_share(&view(&[A, A_HAS_0, A_HAS_1]), None, "b"), "not registered");
        assert!(!has_its_share(&view(&[A, B, A_HAS_0, A_HAS_1]), None, "b"), "nothing yet");
        assert!(!has_its_share(&view(&[A, B, A_HAS_0, A_HAS_1, MOVING]), None, "b"), "on the move");
        assert!(!has_its_share(&view(&[A, B, A_HAS_0, B_HAD_1]), None, "b"), "of its earlier life");
        let settled = view(&[A, B, A_HAS_0, B_HAS_1]);
        assert!(has_its_share(&settled, None, "a") && has_its_share(&settled, None, "b"));
        let policy = Policy { partitions: 2, ..Policy::default() };
        assert!(has_its_share(&settled, Some(&policy), "a"));
        let moved_here = ("operator/pins/1", r#"{"to":"a","incarnation":3,"who":"ann"}"#);
        let planned = view(&[A, B, LEADER, A_HAS_0, B_HAS_1, moved_here]);
        assert!(!has_its_share(&planned, Some(&policy), "a"), "the planner gives it one more");
        let more_pods_than_partitions = view(&[A, B, ("pods/c", A.1), A_HAS_0, B_HAS_1]);
        assert!(has_its_share(&more_pods_than_partitions, None, "c"));
        assert!(has_its_share(&more_pods_than_partitions, Some(&policy), "c"));
    }

    #[test]
    fn a_pod_that_the_plan_gives_nothing_has_its_share() {
        let share = |entries: &[(&str, &str)], strategy, barred: &[PartitionId]| {
            let policy = Policy { partitions: 2, strategy, ..Policy::default() };
            has_its_share(&view(entries), Some(&policy), "b", &barred.iter().copied().collect())
        };
        let owned = [A, B, LEADER, A_HAS_0, A_HAS_1];
        let and = |more: &[(&'static str, &'static str)]| [&owned[..], more].concat();
        let wanted = ("wanted", r#"{"generation":1,"owners":{"0":"a","1":"a"}}"#);
        assert!(is_done(share(&and(&[wanted]), Strategy::External, &[])), "external");
        let pins =
            [0, 1].map(|partition| (["operator/pins/0", "operator/pins/1"][partition], r#"{"to":"a","who":"ann"}"#));
        assert!(is_done(share(&and(&pins), Strategy::Sticky, &[])), "all are pinned elsewhere");
        for (strategy, name) in [(Strategy::Sticky, "sticky"), (Strategy::Jump, "jump"), (Strategy::Ring, "ring")] {
            let policy = Policy { partitions: 2, strategy, ..Policy::default() };
            let given = arriving(&view(&owned), &policy, "b");
            assert_eq!(is_done(share(&owned, strategy, &[])), given.is_empty(), "{name}");
            assert!(is_done(share(&owned, strategy, &given)), "{name}: the pod cannot take what it is given");
            let pause = ("operator/pause", r#"{"who":"ann"}"#);
            assert_eq!(is_done(share(&and(&[pause]), strategy, &[])), given.is_empty(), "{name}: while paused");
        }
        assert!(!is_done(share(&owned, Strategy::Sticky, &[])), "sticky gives it one");
    }

    #[test]
    fn a_pod_has_its_share_while_the_leader_holds_back_what_it_is_to_get() {
        let policy = Policy { partitions: 2, ..Policy::default() };
        let share = |held: &str| {
            let leader = format!(r#"{{"holder":"c","held":[{held}]}}"#);
            let view = view(&[A, B, ("coordinator/leader", &leader), A_HAS_0, A_HAS_1]);
            has_its_share(&view, Some(&policy), "b", &BTreeSet::new())
        };
        let held = |to: &str, life: u64, number: u32| {
            format!(r#"{{"to":"{to}","incarnation":{life},"partitions":{number},"why":"pods restart one by one"}}"#)
        };
        assert!(!is_done(share("")), "nothing is held back");
        let ConditionState::Done(text) = share(&held("b", 3, 1)) else { panic!("it is held back") };
        assert!(text.ends_with("to it or away from it; 1 partition more later: pods restart one by one"), "{text}");
        assert!(!is_done(share(&held("a", 3, 1))), "from another pod");
        assert!(!is_done(share(&held("b", 2, 1))), "from an earlier life");
        assert!(!is_done(share(&held("b", 3, 0))), "less than it is to get");
    }

    #[test]
    fn a_move_has_ended_only_when_its_handoff_has() {
        let to_b = |entries: &[(&str, &str)]| moved(&view(entries), PartitionId::new(1), Some("b"));
        let complete = MOVING.1.replace("Warming", "Complete");
        assert!(matches!(to_b(&[A, B, A_HAS_1, MOVING]), ConditionState::Waiting(_)));
        assert!(
            matches!(to_b(&[A, B, B_HAS_1, (MOVING.0, &complete)]), ConditionState::Waiting(_)),
            "b owns it already"
        );
        assert!(is_done(to_b(&[A, B, B_HAS_1])));
    }

    #[test]
    fn a_move_that_waits_says_what_the_leader_holds_back_for() {
        let pin = ("operator/pins/0", r#"{"to":"b","incarnation":3,"who":"ann"}"#);
        let held = r#"{"holder":"c","held":[{"to":"b","incarnation":3,"partitions":1,"why":"they rest after a failed move"}]}"#;
        let waiting = view(&[A, B, ("coordinator/leader", held), A_HAS_0, B_HAS_1, pin]);
        let ConditionState::Waiting(text) = moved(&waiting, P0, Some("b")) else { panic!("it waits") };
        assert!(text.ends_with("the leader holds back 1 partition for it: they rest after a failed move"), "{text}");
    }

    #[test]
    fn a_move_fails_once_its_pod_gives_up_its_partitions() {
        let pin = ("operator/pins/0", r#"{"to":"b","incarnation":3,"who":"ann"}"#);
        let to_b = |entries: &[(&str, &str)]| moved(&view(entries), P0, Some("b"));
        assert!(matches!(to_b(&[A, B, A_HAS_0, B_HAS_1, pin]), ConditionState::Waiting(_)));
        let drain = ("operator/drains/b", r#"{"who":"bea"}"#);
        assert!(
            matches!(to_b(&[A, B, A_HAS_0, B_HAS_1, pin, drain]), ConditionState::Failed(why) if why.contains("unpin 0"))
        );
    }

    #[test]
    fn a_move_that_fails_says_whether_its_order_or_its_pod_has_gone() {
        let why = |entries: &[(&str, &str)]| match moved(&view(entries), P0, Some("b")) {
            ConditionState::Failed(why) => why,
            other => panic!("{other:?}"),
        };
        let pin = ("operator/pins/0", r#"{"to":"c","incarnation":4,"who":"ann"}"#);
        assert!(why(&[A, B, A_HAS_0, B_HAS_1, pin]).contains("a later order moves it to c"));
        assert!(why(&[A, B, A_HAS_0, B_HAS_1]).contains("the move was cancelled; segue explain 0 tells why"));
        assert!(why(&[A, A_HAS_0]).contains("the pod has gone"));
    }

    #[test]
    fn a_move_fails_once_its_pod_has_refused_it() {
        let asked = |accepted, text| {
            let answer = format!(r#"{{"accepted":{accepted},"text":"{text}"}}"#);
            format!(r#"{{"kind":"move","partition":0,"to":"b","who":"ann","answer":{answer}}}"#)
        };
        let pin = ("operator/pins/0", r#"{"to":"b","incarnation":3,"who":"ann"}"#);
        let (accepted, refused) = (asked(true, "it moves"), asked(false, "no disk"));
        let to_b = |text: &str| moved(&view(&[A, B, A_HAS_0, B_HAS_1, pin, ("operations/a", text)]), P0, Some("b"));
        assert!(matches!(to_b(&accepted), ConditionState::Waiting(_)));
        assert_eq!(to_b(&refused), ConditionState::Failed("no disk".to_owned()));
        let b_has_0 = ("assignments/0", r#"{"partition":0,"owner":"b","incarnation":3,"epoch":1}"#);
        let arrived = view(&[A, B, b_has_0, B_HAS_1, ("operations/a", &refused)]);
        assert!(matches!(moved(&arrived, P0, Some("b")), ConditionState::Done(_)));
    }
}
