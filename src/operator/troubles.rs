//! What clients suffer, as the routers report it, in words and with the next step.
//!
//! Routers put their reports into the store ([`RouterTroubles`]); a router without a report sees no trouble. Not here: what
//! is a trouble (`segue_protocol::troubles`).
//!
//! # Invariants
//!
//! * Only reports of lives that are registered count, about pods' lives that are registered.
//! * A request that waits for a pod in trouble is counted with that pod alone.

use std::collections::{BTreeMap, BTreeSet};

use segue_coordination::store::{Store, StoreError};
use segue_protocol::ids::PartitionId;
use segue_protocol::keys::Keyspace;
use segue_protocol::records::{PodRecord, PodTrouble, RouterTroubles, TroubleKind, one_line};
use segue_protocol::view::View;
use serde::{Deserialize, Serialize};

use super::{lasting, partitions};

/// Most partitions that a line names.
const MOST_NAMED: usize = 5;

/// A trouble of clients.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TroubleLine {
    /// The pod in trouble. `None` for requests that wait for no pod in trouble.
    pub pod: Option<String>,
    /// The kind of trouble: `unreachable`, `refuses`, `silent`, `fails`, `slow` or `held`.
    pub kind: String,
    /// How many routers report it.
    pub routers: usize,
    /// How many routers there are.
    pub of_routers: usize,
    /// For how long, by the clocks of two machines. Informational.
    pub for_ms: u64,
    /// How many requests wait because of it.
    pub held_requests: u64,
    /// Age of the oldest of them.
    pub oldest_held_ms: u64,
    /// The trouble in a sentence, which begins with the pod.
    pub what: String,
    /// What helps.
    pub next_step: String,
}

/// The requests that wait for a partition, at all routers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HeldLine {
    /// How many wait.
    pub requests: u64,
    /// At how many routers.
    pub routers: usize,
    /// Age of the oldest.
    pub oldest_ms: u64,
}

/// The reports of a keyspace's routers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct TroubleReports(Vec<RouterTroubles>);

impl TroubleReports {
    /// Reads the reports. One that cannot be read counts as none.
    pub(crate) async fn read(store: &dyn Store, keys: &Keyspace) -> Result<Self, StoreError> {
        let entries = store.snapshot(&keys.troubles()).await?.entries;
        let reports = entries.iter().filter_map(|entry| serde_json::from_slice(&entry.value).ok());
        Ok(TroubleReports(reports.collect()))
    }

    /// Returns the reports of the routers that are registered.
    fn of_living<'a>(&'a self, view: &'a View) -> impl Iterator<Item = &'a RouterTroubles> {
        self.0.iter().filter(|report| {
            view.routers.get(&report.router_name).is_some_and(|router| router.incarnation() == report.incarnation)
        })
    }

    /// Returns the troubles, those of pods first. `now` is in Unix milliseconds.
    pub(crate) fn lines(&self, view: &View, now: u64) -> Vec<TroubleLine> {
        let mut by_pod: BTreeMap<&str, PodTroubles<'_>> = BTreeMap::new();
        for report in self.of_living(view) {
            let age = now.saturating_sub(report.at);
            for trouble in report.pods.iter().filter(|trouble| trouble.kind != TroubleKind::Unknown) {
                let pod = view.pods.get(&trouble.pod_name);
                if let Some(pod) = pod.filter(|pod| pod.incarnation() == trouble.incarnation) {
                    let new = PodTroubles { pod: &pod.value, reports: Vec::new() };
                    by_pod.entry(&trouble.pod_name).or_insert(new).reports.push((trouble, age));
                }
            }
        }
        let of_pods: Vec<TroubleLine> = by_pod.values().map(|pod| pod.line(view)).collect();
        let troubled: BTreeSet<&str> = by_pod.keys().copied().collect();
        of_pods.into_iter().chain(self.held_elsewhere(view, &troubled, now)).collect()
    }

    /// Returns the requests that wait for a partition.
    pub(crate) fn held(&self, view: &View, partition: PartitionId, now: u64) -> Option<HeldLine> {
        let mut line = HeldLine::default();
        for report in self.of_living(view) {
            for held in report.held.iter().filter(|held| held.partition == partition) {
                line.requests += held.requests;
                line.routers += 1;
                line.oldest_ms = line.oldest_ms.max(held.oldest_ms + now.saturating_sub(report.at));
            }
        }
        (line.routers > 0).then_some(line)
    }

    /// Returns the line about requests that wait for no pod in trouble.
    fn held_elsewhere(&self, view: &View, troubled: &BTreeSet<&str>, now: u64) -> Option<TroubleLine> {
        let (mut requests, mut oldest, mut routers) = (0, 0, 0);
        let mut waiting: BTreeSet<PartitionId> = BTreeSet::new();
        for report in self.of_living(view) {
            let of_pods = report.pods.iter().filter(|pod| troubled.contains(pod.pod_name.as_str()));
            let others = report.held_requests.saturating_sub(of_pods.map(|pod| pod.held_requests).sum());
            let is_elsewhere = |partition| {
                let owner = view.live_owner(partition).map(|(assignment, _)| assignment.owner.as_str());
                owner.is_none_or(|owner| !troubled.contains(owner))
            };
            let held: Vec<_> = report.held.iter().filter(|held| is_elsewhere(held.partition)).collect();
            if others == 0 || held.is_empty() {
                continue;
            }
            let age = now.saturating_sub(report.at);
            requests += others;
            oldest = held.iter().map(|held| held.oldest_ms + age).fold(oldest, u64::max);
            routers += 1;
            waiting.extend(held.iter().map(|held| held.partition));
        }
        let first = *waiting.first()?;
        let named: Vec<String> = waiting.iter().take(MOST_NAMED).map(ToString::to_string).collect();
        let more = if waiting.len() > MOST_NAMED { ", …" } else { "" };
        let what = format!(
            "{requests} requests held for {} ({}{more}), the oldest for {}; partition {first} {}",
            partitions(waiting.len()),
            named.join(", "),
            lasting(oldest),
            why_held(view, first)
        );
        Some(TroubleLine {
            pod: None,
            kind: "held".to_owned(),
            routers,
            of_routers: view.routers.len(),
            for_ms: oldest,
            held_requests: requests,
            oldest_held_ms: oldest,
            what,
            next_step: format!("segue explain {first}"),
        })
    }
}

/// Returns why requests of a partition wait, as far as the store says.
fn why_held(view: &View, partition: PartitionId) -> String {
    if let Some(handoff) = view.handoffs.get(&partition).map(|handoff| &handoff.value) {
        return format!("moves to {} ({})", handoff.new_owner, handoff.phase.as_str());
    }
    match view.live_owner(partition) {
        Some((assignment, _)) => format!("belongs to {}", assignment.owner),
        None => "has no living owner".to_owned(),
    }
}

/// The reports about one pod.
struct PodTroubles<'a> {
    pod: &'a PodRecord,
    /// Each with its age in milliseconds.
    reports: Vec<(&'a PodTrouble, u64)>,
}

impl PodTroubles<'_> {
    fn line(&self, view: &View) -> TroubleLine {
        let name = &self.pod.pod_name;
        // The order of the kinds is that of their gravity.
        let kind = self.reports.iter().map(|(trouble, _)| trouble.kind).min().unwrap_or(TroubleKind::Unknown);
        let of_kind = self.reports.iter().filter(|(trouble, _)| trouble.kind == kind);
        let for_ms = of_kind.clone().map(|(trouble, age)| trouble.for_ms + age).max().unwrap_or_default();
        let figures = of_kind.clone().map(|(trouble, _)| one_line(&trouble.figures)).next().unwrap_or_default();
        let held_requests = self.reports.iter().map(|(trouble, _)| trouble.held_requests).sum();
        let waiting = self.reports.iter().filter(|(trouble, _)| trouble.held_requests > 0);
        let oldest_held_ms = waiting.map(|(trouble, age)| trouble.oldest_held_ms + age).max().unwrap_or_default();
        let (routers, of_routers) = (of_kind.count(), view.routers.len());
        let at = format!("{routers} of {of_routers} router{}", if of_routers == 1 { "" } else { "s" });
        let lasts = lasting(for_ms);
        let mut what = match kind {
            TroubleKind::Unreachable => format!("{name}: unreachable from {at} for {lasts}"),
            TroubleKind::Refuses => format!("{name}: refuses the requests of {at} for {lasts}"),
            TroubleKind::Silent => format!("{name}: does not answer {at} for {lasts}: {figures}"),
            TroubleKind::Fails => format!("{name}: fails the requests of {at} for {lasts}: {figures}"),
            TroubleKind::Slow => format!("{name}: slow for {at} for {lasts}: {figures}"),
            TroubleKind::Unknown => format!("{name}: in trouble for {at} for {lasts}"),
        };
        if held_requests > 0 {
            what += &format!("; {held_requests} requests held, the oldest for {}", lasting(oldest_held_ms));
        }
        TroubleLine {
            pod: Some(name.clone()),
            kind: kind.as_str().to_owned(),
            routers,
            of_routers,
            for_ms,
            held_requests,
            oldest_held_ms,
            what,
            next_step: self.next_step(view, kind, for_ms),
        }
    }

    fn next_step(&self, view: &View, kind: TroubleKind, for_ms: u64) -> String {
        let name = &self.pod.pod_name;
        let others = view.pods.keys().any(|other| other != name && !view.is_draining(other));
        let or_drain =
            if others && !view.is_draining(name) { format!(", or segue drain {name}") } else { String::new() };
        match kind {
            TroubleKind::Unreachable => match self.pod.lease_ttl_ms.and_then(|ttl| ttl.checked_sub(for_ms)) {
                Some(left) => format!(
                    "wait: if its process is gone, its lease ends within {} and others take over; if you know that it is \
                     gone, segue forget pod {name} --force --yes",
                    lasting(left)
                ),
                None => format!(
                    "its process is registered: look at its address {}, its network and segue explain {name}{or_drain}",
                    self.pod.address
                ),
            },
            TroubleKind::Refuses => format!("look at its log and at segue explain {name}{or_drain}"),
            _ => format!("look at its service and at segue explain {name}{or_drain}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use segue_protocol::ids::{Incarnation, LeaseId, Revision};
    use segue_protocol::records::HeldRequests;
    use segue_protocol::txn::{KeyValue, Snapshot};

    use super::*;

    const LIFE: Incarnation = Incarnation::registered_at(Revision::new(3));

    /// Two pods, two routers and four partitions, of which `a` has the first two. All lives began at revision 3.
    fn view(handoff: Option<&str>) -> View {
        let owned = |partition: u32, pod| {
            let value = format!(r#"{{"partition":{partition},"owner":"{pod}","incarnation":3,"epoch":1}}"#);
            (format!("assignments/{partition}"), value)
        };
        let router = |name: &str| (format!("routers/{name}"), format!(r#"{{"router_name":"{name}"}}"#));
        let pod = |name: &str| {
            let value = format!(r#"{{"pod_name":"{name}","address":"h:1","lease_ttl_ms":15000}}"#);
            (format!("pods/{name}"), value)
        };
        let mut entries = vec![("config".to_owned(), r#"{"partitions":4}"#.to_owned())];
        entries.extend([pod("a"), pod("b"), router("r-0"), router("r-1")]);
        entries.extend([owned(0, "a"), owned(1, "a"), owned(2, "b"), owned(3, "b")]);
        entries.extend(handoff.map(|value| ("handoffs/2".to_owned(), value.to_owned())));
        let entry = |(key, value): (String, String)| KeyValue {
            lease: (key.starts_with("pods/") || key.starts_with("routers/")).then_some(LeaseId::new(1)),
            key: format!("/segue/default/{key}"),
            value: value.into_bytes(),
            create_revision: Revision::new(3),
            mod_revision: Revision::new(3),
        };
        let entries = entries.into_iter().map(entry).collect();
        View::from_snapshot(Keyspace::new("/segue/", "default"), Snapshot { revision: Revision::new(9), entries })
    }

    fn trouble(pod: &str, kind: TroubleKind, for_ms: u64, held_requests: u64) -> PodTrouble {
        PodTrouble {
            pod_name: pod.to_owned(),
            incarnation: LIFE,
            kind,
            for_ms,
            figures: "37 requests\nin flight".to_owned(),
            held_requests,
            oldest_held_ms: if held_requests > 0 { 5000 } else { 0 },
        }
    }

    fn held(partition: u32, requests: u64) -> HeldRequests {
        HeldRequests { partition: PartitionId::new(partition), requests, oldest_ms: 5000 }
    }

    /// A report that was written at the time 1000.
    fn report(router: &str, pods: Vec<PodTrouble>, held: Vec<HeldRequests>) -> RouterTroubles {
        let held_requests = held.iter().map(|held| held.requests).sum();
        RouterTroubles { router_name: router.to_owned(), incarnation: LIFE, at: 1000, pods, held, held_requests }
    }

    #[test]
    fn a_dead_pod_is_named_with_the_routers_the_held_requests_and_the_end_of_its_lease() {
        let of = |router, requests| {
            let pods = vec![trouble("a", TroubleKind::Unreachable, 5200, requests)];
            report(router, pods, vec![held(0, requests)])
        };
        let reports = TroubleReports(vec![of("r-0", 22), of("r-1", 18)]);
        let lines = reports.lines(&view(None), 1800);
        assert_eq!(lines.len(), 1, "{lines:?}");
        let TroubleLine { what, next_step, .. } = &lines[0];
        assert_eq!(what, "a: unreachable from 2 of 2 routers for 6.0 s; 40 requests held, the oldest for 5.8 s");
        assert!(next_step.starts_with("wait: if its process is gone, its lease ends within 9.0 s"), "{next_step}");
        let late = &reports.lines(&view(None), 20_000)[0].next_step;
        assert!(late.starts_with("its process is registered") && late.ends_with("or segue drain a"), "{late}");
    }

    #[test]
    fn reports_of_other_lives_and_about_them_say_nothing() {
        let other = Incarnation::registered_at(Revision::new(2));
        let pods = vec![trouble("a", TroubleKind::Slow, 5000, 0)];
        let of_router = RouterTroubles { incarnation: other, ..report("r-0", pods, vec![held(0, 1)]) };
        let about_pod =
            report("r-1", vec![PodTrouble { incarnation: other, ..trouble("a", TroubleKind::Slow, 9, 0) }], Vec::new());
        let gone = report("r-2", vec![trouble("a", TroubleKind::Slow, 9, 0)], Vec::new());
        assert_eq!(TroubleReports(vec![of_router, about_pod, gone]).lines(&view(None), 1000), []);
    }

    #[test]
    fn the_gravest_kind_is_told_and_foreign_words_have_no_line_breaks() {
        let reports = TroubleReports(vec![
            report("r-0", vec![trouble("b", TroubleKind::Slow, 900, 0)], Vec::new()),
            report("r-1", vec![trouble("b", TroubleKind::Silent, 4000, 0)], Vec::new()),
        ]);
        let lines = reports.lines(&view(None), 1000);
        assert_eq!(lines[0].what, "b: does not answer 1 of 2 routers for 4.0 s: 37 requests in flight");
        assert_eq!(lines[0].next_step, "look at its service and at segue explain b, or segue drain b");
    }

    #[test]
    fn requests_that_wait_for_a_move_are_told_by_their_partition() {
        let handoff = r#"{"partition":2,"old_owner":"b","old_incarnation":3,"new_owner":"a","new_incarnation":3,"phase":"Syncing","epoch":4,"mode":"barrier","started_at":1,"phase_entered_at":1,"reason":"r"}"#;
        let view = view(Some(handoff));
        let pods = vec![trouble("a", TroubleKind::Unreachable, 900, 3)];
        let reports = TroubleReports(vec![report("r-0", pods, vec![held(0, 3), held(2, 7)])]);
        let lines = reports.lines(&view, 1000);
        assert_eq!(lines.len(), 2);
        assert_eq!(
            lines[1].what,
            "7 requests held for 1 partition (2), the oldest for 5.0 s; partition 2 moves to a (Syncing)"
        );
        assert_eq!(
            reports.held(&view, PartitionId::new(2), 1000),
            Some(HeldLine { requests: 7, routers: 1, oldest_ms: 5000 })
        );
        assert_eq!(reports.held(&view, PartitionId::new(3), 1000), None);
    }
}
