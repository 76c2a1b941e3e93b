//! Finds out how a partition is: its state, the candidates with the reasons, and the next steps.

use segue_coordination::session::unix_millis;
use segue_protocol::ids::PartitionId;
use segue_protocol::planning::{Plan, Policy, preview};
use segue_protocol::records::{BackOffSubject, HeldMoves, Phase};
use segue_protocol::view::View;

use super::explain::{AskedParticipant, held, keyspace_steps, obstacle, slow_warm_step, store_step};
use super::history::HandoffHistory;
use super::no_partition;
use super::partition_report::{Candidate, CheckpointReport, HandoffReport, PartitionReport, PlacementVerdict};
use super::placement::PlacementReasons;
use super::plan::{PlannedMove, moves};
use super::standing::owned;
use super::status::checkpoint_age;
use super::waits::WaitLine;

/// Most partitions of a keyspace whose routers are asked about one of them: each sends its whole table.
const MOST_PARTITIONS_READ: u32 = 4096;
/// Number of earlier handoffs that are shown.
const LAST_HANDOFFS: usize = 5;

/// Explains a partition. `refusal` are the words in which the store refuses writes, if it does.
pub(super) fn partition(
    view: &View,
    policy: &Policy,
    partition: PartitionId,
    history: HandoffHistory,
    refusal: Option<&str>,
) -> Result<PartitionReport, String> {
    let plan = preview(view, policy);
    partition_report(view, &plan, &PlacementReasons::of(view, policy, &plan), partition, history, refusal)
}

fn partition_report(
    view: &View,
    plan: &Plan,
    reasons: &PlacementReasons<'_>,
    partition: PartitionId,
    history: HandoffHistory,
    refusal: Option<&str>,
) -> Result<PartitionReport, String> {
    let count = view.partitions();
    if partition.get() >= count {
        return Err(no_partition(partition, count));
    }
    let assignment = view.assignments.get(&partition).map(|assignment| &assignment.value);
    let of_store = refusal.map(WaitLine::for_store);
    let waits: Vec<WaitLine> = of_store.into_iter().chain(WaitLine::all(view, partition, unix_millis())).collect();
    let handoff = view.handoffs.get(&partition).map(|handoff| HandoffReport {
        id: handoff.id(),
        from: handoff.value.old_owner.clone(),
        to: handoff.value.new_owner.clone(),
        phase: handoff.value.phase,
        epoch: handoff.value.epoch,
        reason: handoff.value.reason.clone(),
        phase_age_ms: unix_millis().saturating_sub(handoff.value.phase_entered_at),
        waits_for: waits.iter().map(|wait| wait.what.clone()).collect(),
        awaited: participants(view, &waits),
        waits,
        may_be_cancelled: !handoff.value.is_past_no_return(),
    });
    let checkpoint = view.checkpoints.get(&partition).map(|it| &it.value).and_then(|record| {
        Some(CheckpointReport {
            name: record.checkpoint.as_ref()?.as_str().to_owned(),
            pod: record.pod_name.clone(),
            epoch: record.epoch,
            age_ms: checkpoint_age(view, partition, unix_millis())?,
        })
    });
    let wanted = moves(plan).into_iter().find(|wanted| wanted.partition == partition);
    let pinned = view.intentions.pins.get(&partition).map(|pin| match pin {
        Some(pin) if pin.value.ends_with_the_pod() => {
            format!("to {} until that pod goes, by {}", pin.value.to, pin.value.origin)
        }
        Some(pin) => format!("to {}, by {}", pin.value.to, pin.value.origin),
        None => "where it is: the pin cannot be read".to_owned(),
    });
    let mut report = PartitionReport {
        keyspace: Some(view.keys().name().to_owned()),
        partition,
        owner: assignment.map(|assignment| assignment.owner.clone()),
        owner_lives: view.live_owner(partition).is_some(),
        epoch: assignment.map(|assignment| assignment.epoch),
        pinned,
        checkpoint,
        handoff,
        held: held(view, |held| wanted.as_ref().is_some_and(|wanted| holds_back(held, wanted))),
        wanted,
        candidates: Vec::new(),
        resting: history.resting.clone(),
        history: history.newest(LAST_HANDOFFS).handoffs,
        troubles: Vec::new(),
        waiting: None,
        routers: if view.handoffs.contains_key(&partition) { Vec::new() } else { resting_routers(view) },
        next_steps: Vec::new(),
        doubt: Some("its routers were not asked".to_owned()),
    };
    report.candidates = view.pods.keys().map(|pod| candidate(view, reasons, &report, pod)).collect();
    report.next_steps = partition_steps(view, &report, refusal);
    report.next_steps.extend(reasons.step(partition));
    Ok(report)
}

/// Returns whether this may be what holds back the move.
fn holds_back(held: &HeldMoves, wanted: &PlannedMove) -> bool {
    match &held.instead_of {
        Some(owner) => wanted.from.as_ref() == Some(owner),
        None => held.to == wanted.to,
    }
}

/// Returns the registered participants that a handoff waits for.
fn participants(view: &View, waits: &[WaitLine]) -> Vec<AskedParticipant> {
    let mut all: Vec<AskedParticipant> = Vec::new();
    for WaitLine { kind, name, .. } in waits {
        let (kind, name) = (kind.as_str(), name.as_str());
        let admin = match kind {
            "router" => view.routers.get(name).map(|router| router.value.admin.clone()),
            "pod" => view.pods.get(name).map(|pod| pod.value.admin.clone()),
            _ => None,
        };
        if let Some(admin) =
            admin.filter(|_| all.iter().all(|known| (known.kind.as_str(), known.name.as_str()) != (kind, name)))
        {
            all.push(AskedParticipant {
                kind: kind.to_owned(),
                name: name.to_owned(),
                admin,
                by_stream: false,
                says: None,
            });
        }
    }
    all
}

/// Returns the registered routers, unless the table of each is too large to be read for one partition.
fn resting_routers(view: &View) -> Vec<AskedParticipant> {
    let registered = view.routers.iter().filter(|_| view.partitions() <= MOST_PARTITIONS_READ);
    let asked = registered.map(|(name, router)| AskedParticipant {
        kind: "router".to_owned(),
        name: name.clone(),
        admin: router.value.admin.clone(),
        by_stream: false,
        says: None,
    });
    asked.collect()
}

fn candidate(view: &View, reasons: &PlacementReasons<'_>, report: &PartitionReport, pod: &str) -> Candidate {
    let owns = owned(view, pod);
    let pin = view.intentions.pin(report.partition).map(|pin| pin.value.to.as_str());
    let of_handoff = report.handoff.as_ref().filter(|handoff| handoff.to == pod);
    let of_plan = report.wanted.as_ref().filter(|wanted| wanted.to == pod);
    let (verdict, reason) = if let Some(handoff) = of_handoff {
        (PlacementVerdict::Chosen, format!("the partition moves to it: {}", handoff.reason))
    } else if let Some(wanted) = of_plan {
        let rests = if report.resting.is_empty() { "" } else { "; a failed move has to rest first" };
        (PlacementVerdict::Chosen, format!("the planner wants it there: {}{rests}", wanted.reason))
    } else if report.owner_lives && report.owner.as_deref() == Some(pod) {
        (PlacementVerdict::Owner, "it has the partition".to_owned())
    } else if let Some(obstacle) = obstacle(view, pod) {
        (PlacementVerdict::No, obstacle)
    } else if pin == Some(pod) {
        (PlacementVerdict::Chosen, "an operator wants the partition there, and its move has not begun".to_owned())
    } else if let Some(to) = pin.filter(|to| *to != pod) {
        (PlacementVerdict::No, format!("the partition is pinned to {to}"))
    } else if report.handoff.is_some() {
        (PlacementVerdict::No, "the partition moves to another pod".to_owned())
    } else if report.resting.iter().any(|rest| rest.of != BackOffSubject::Partition && rest.pod == pod) {
        (PlacementVerdict::No, "it rests after a failed move".to_owned())
    } else {
        (PlacementVerdict::No, reasons.elsewhere(report.partition, pod))
    };
    Candidate { pod: pod.to_owned(), verdict, reason, owns }
}

fn partition_steps(view: &View, report: &PartitionReport, refusal: Option<&str>) -> Vec<String> {
    let partition = report.partition;
    let mut steps: Vec<String> = refusal.map(store_step).into_iter().chain(keyspace_steps(view)).collect();
    if view.is_malformed(partition) {
        steps.push("repair the record of the partition that segue status names".to_owned());
    }
    if let Some(handoff) = &report.handoff {
        // Nobody can say that it is done while the store refuses writes.
        if refusal.is_none() {
            let warms_for = Some(handoff.phase_age_ms).filter(|_| handoff.phase == Phase::Warming);
            steps.extend(warms_for.and_then(|millis| slow_warm_step(view, &handoff.to, millis)));
            let waits = handoff.waits_for.iter();
            steps.extend(waits.map(|wait| format!("wait for {wait}, or look at its log and status")));
        }
        match handoff.may_be_cancelled {
            true => steps.push(format!("segue cancel {partition}")),
            false => steps.push("the move is past the point of no return and completes by itself".to_owned()),
        }
    } else if report.wanted.is_some() {
        steps.push(format!("the coordinator moves it by itself: segue wait moved {partition}"));
    }
    if report.handoff.is_none() && report.resting.iter().any(|rest| rest.of == BackOffSubject::Partition) {
        steps.push("mend what the last move failed for; the coordinator tries again by itself".to_owned());
    }
    if report.pinned.is_some() {
        steps.push(format!("segue unpin {partition}"));
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::super::explain::Explanation as _;
    use super::super::test_view;
    use super::*;

    /// A keyspace of one partition, whose pods were registered at revision 3.
    fn view_of(entries: &[(&str, &str)]) -> View {
        test_view::view(&[&[("config", r#"{"partitions":1}"#), A, B], entries].concat())
    }

    const A: (&str, &str) = ("pods/a", r#"{"pod_name":"a","address":"127.0.0.1:1"}"#);
    const B: (&str, &str) = ("pods/b", r#"{"pod_name":"b","address":"127.0.0.1:2"}"#);
    const OWNED_BY_A: (&str, &str) = ("assignments/0", r#"{"partition":0,"owner":"a","incarnation":3,"epoch":1}"#);

    /// A keyspace of one partition, which `a` has. The last heartbeat of `b` came at `at`, in Unix milliseconds.
    fn view(at: u64) -> View {
        let heartbeat = format!(r#"{{"incarnation":3,"at":{at},"interval_ms":5000,"total":0.0}}"#);
        view_of(&[OWNED_BY_A, ("~heartbeats/b", &heartbeat)])
    }

    fn report(view: &View) -> PartitionReport {
        let policy = Policy { partitions: 1, ..Policy::default() };
        super::partition(view, &policy, PartitionId::new(0), HandoffHistory::default(), None).unwrap()
    }

    /// A keyspace of one partition, which has been moving to `b` for so many milliseconds.
    fn warming(age: u64) -> View {
        let since = unix_millis() - age;
        let handoff = format!(
            r#"{{"partition":0,"old_owner":"w","old_incarnation":2,"new_owner":"b","new_incarnation":3,"phase":"Warming","epoch":4,"mode":"barrier","started_at":1,"phase_entered_at":{since},"reason":"r"}}"#
        );
        view_of(&[("handoffs/0", &handoff), ("coordinator/leader", r#"{"holder":"c"}"#)])
    }

    #[test]
    fn a_handoff_waits_for_a_store_that_refuses_writes_before_anybody_else_and_no_pod_is_blamed() {
        let (policy, history) = (Policy { partitions: 1, ..Policy::default() }, HandoffHistory::default());
        let view = warming(600_000);
        let report = super::partition(&view, &policy, PartitionId::new(0), history, Some("no space")).unwrap();
        let waits = report.handoff.as_ref().map(|handoff| handoff.waits_for.as_slice());
        assert_eq!(waits, Some(&["the store, which refuses writes: no space".into(), "pod b to warm".into()][..]));
        assert_eq!(report.next_steps, ["mend the store, which refuses writes: no space", "segue cancel 0"]);
        assert!(report.in_words().contains("waits for   the store, which refuses writes: no space\n"));
    }

    #[test]
    fn a_drain_of_the_pod_is_the_first_step_once_it_has_warmed_for_a_minute() {
        let steps = |age: u64| report(&warming(age)).next_steps;
        assert!(
            steps(600_000)[0].starts_with("segue drain b: it has warmed a partition for 10m0s"),
            "{:?}",
            steps(600_000)
        );
        assert!(steps(0).iter().all(|step| !step.contains("drain")), "{:?}", steps(0));
    }

    #[test]
    fn what_the_leader_holds_back_is_said_of_a_dead_owners_partition_and_of_the_pod_that_is_to_get_it() {
        let owned = ("assignments/0", r#"{"partition":0,"owner":"w","incarnation":2,"epoch":1}"#);
        let held = |held: &str| {
            let leader = format!(r#"{{"holder":"c","held":[{held}]}}"#);
            report(&view_of(&[owned, ("coordinator/leader", &leader)])).held
        };
        let instead =
            r#"{"to":"a","incarnation":3,"instead_of":"w","partitions":9,"why":"w, which had them, may come back"}"#;
        assert_eq!(held(instead), ["9 to a: w, which had them, may come back"]);
        assert_eq!(held(&instead.replace(r#""instead_of":"w""#, r#""instead_of":"v""#)), [""; 0]);
    }

    #[test]
    fn a_pod_that_has_missed_its_heartbeats_is_no_candidate_because_it_is_suspected() {
        let reason = |view: &View, pod: &str| {
            let candidate = report(view).candidates.into_iter().find(|candidate| candidate.pod == pod).unwrap();
            (candidate.verdict == PlacementVerdict::No, candidate.reason)
        };
        let (refused, why) = reason(&view(unix_millis() - 3_600_000), "b");
        assert!(refused && why.starts_with("it is suspected: its last heartbeat was 1h0m ago"), "{why}");
        // A heartbeat that lies ahead is as fresh as one can be, however slow this test is.
        let (refused, why) = reason(&view(unix_millis() + 3_600_000), "b");
        assert!(refused && !why.contains("suspected"), "{why}");
        assert_eq!(reason(&view(0), "a"), (false, "it has the partition".to_owned()), "a pod without heartbeats");
    }
}
