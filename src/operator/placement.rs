//! Why the strategy does not place a partition on a pod, in words.
//!
//! Not here: where partitions go (`segue_protocol::planning`), and obstacles that keep a pod from getting any partition
//! ([`obstacle`](super::explain::obstacle)).

use std::collections::BTreeMap;

use segue_protocol::ids::PartitionId;
use segue_protocol::planning::{Plan, Policy, Strategy, in_force};
use segue_protocol::records::PodRecord;
use segue_protocol::view::View;

use super::plan::moves;
use super::standing::owned;

/// The strategy that is in force, and what it gives each pod.
pub(super) struct PlacementReasons<'view> {
    view: &'view View,
    strategy: Strategy,
    /// Partitions that each pod gains by moves in flight and planned ones, less those that it loses.
    gains: BTreeMap<String, i64>,
}

impl<'view> PlacementReasons<'view> {
    /// `plan` is the plan of a dry run on the view.
    pub(super) fn of(view: &'view View, policy: &Policy, plan: &Plan) -> Self {
        let in_flight = view.handoffs.values().map(|handoff| &handoff.value);
        let in_flight = in_flight.map(|handoff| (handoff.old_owner.clone(), handoff.new_owner.clone()));
        let planned = moves(plan).into_iter().map(|planned| (planned.from, planned.to));
        let mut gains: BTreeMap<String, i64> = BTreeMap::new();
        for (from, to) in in_flight.chain(planned) {
            if let Some(from) = from {
                *gains.entry(from).or_default() -= 1;
            }
            *gains.entry(to).or_default() += 1;
        }
        PlacementReasons { view, strategy: in_force(view, policy).strategy, gains }
    }

    /// Returns why the partition is not placed on this pod.
    pub(super) fn elsewhere(&self, partition: PartitionId, pod: &str) -> String {
        match self.strategy {
            Strategy::Sticky => {
                let has = owned(self.view, pod);
                let gets = (has as i64).saturating_add(self.gains.get(pod).copied().unwrap_or(0));
                format!("it has {has} of the {gets} partitions that are its share{}", traits(self.view, pod))
            }
            Strategy::Jump | Strategy::Ring => {
                format!("the strategy {} places the partition elsewhere by its hash", self.strategy.name())
            }
            Strategy::External => self.wanted(partition),
            Strategy::Custom(_) | Strategy::Unknown => "the strategy places the partition elsewhere".to_owned(),
        }
    }

    fn wanted(&self, partition: PartitionId) -> String {
        let Some(wanted) = self.view.wanted.as_ref().map(|wanted| &wanted.value) else {
            return "the strategy is external, and nobody has written wanted owners".to_owned();
        };
        let generation = wanted.generation;
        match wanted.owners.get(&partition) {
            None => format!("wanted owners of generation {generation} do not name the partition, which stays"),
            Some(pod) if self.view.pods.contains_key(pod) => {
                format!("wanted owners of generation {generation} name {pod}")
            }
            Some(pod) => format!("wanted owners of generation {generation} name {pod}, which is not registered"),
        }
    }

    /// Returns the step that helps if the wanted owner of a partition does not exist.
    pub(super) fn step(&self, partition: PartitionId) -> Option<String> {
        let wanted = &self.view.wanted.as_ref().filter(|_| self.strategy == Strategy::External)?.value;
        let pod = wanted.owners.get(&partition).filter(|pod| !self.view.pods.contains_key(*pod))?;
        let generation = wanted.generation;
        Some(format!("start pod {pod}, or correct the wanted owners of generation {generation} with segue wanted"))
    }
}

/// Returns what the share of a pod depends on, where pods differ in it.
fn traits(view: &View, pod: &str) -> String {
    let Some(record) = view.pods.get(pod).map(|pod| &pod.value) else { return String::new() };
    let differs = |same: &dyn Fn(&PodRecord) -> bool| view.pods.values().any(|other| !same(&other.value));
    let mut text = String::new();
    if differs(&|other| other.weight == record.weight) {
        text += &format!(", with weight {}", f64::from(record.weight));
    }
    if let Some(zone) = record.zone.as_ref().filter(|_| differs(&|other| other.zone == record.zone)) {
        text += &format!(", in zone {zone}");
    }
    if let Some(version) = record.version.as_ref().filter(|_| differs(&|other| other.version == record.version)) {
        text += &format!(", of version {version}");
    }
    text
}

#[cfg(test)]
mod tests {
    use segue_protocol::planning::preview;

    use super::super::test_view;
    use super::*;

    /// Three partitions, two of which `heavy` has with twice the weight of `light`.
    fn view(entries: &[(&str, &str)]) -> View {
        let always = [
            ("pods/heavy", r#"{"pod_name":"heavy","address":"127.0.0.1:1","weight":2.0}"#),
            ("pods/light", r#"{"pod_name":"light","address":"127.0.0.1:2","zone":"b"}"#),
            ("assignments/0", r#"{"partition":0,"owner":"heavy","incarnation":3,"epoch":1}"#),
            ("assignments/1", r#"{"partition":1,"owner":"heavy","incarnation":3,"epoch":1}"#),
            ("assignments/2", r#"{"partition":2,"owner":"light","incarnation":3,"epoch":1}"#),
        ];
        test_view::view(&[&always, entries].concat())
    }

    fn reason(view: &View, pod: &str) -> (String, Option<String>) {
        let policy = Policy { partitions: 3, ..Policy::default() };
        let reasons = PlacementReasons::of(view, &policy, &preview(view, &policy));
        (reasons.elsewhere(PartitionId::new(0), pod), reasons.step(PartitionId::new(0)))
    }

    #[test]
    fn the_share_of_a_pod_is_told_with_what_it_depends_on() {
        let view = view(&[("config", r#"{"partitions":3}"#)]);
        let expected = "it has 1 of the 1 partitions that are its share, with weight 1, in zone b";
        assert_eq!(reason(&view, "light"), (expected.to_owned(), None));
    }

    #[test]
    fn a_wanted_owner_that_is_not_registered_is_named_with_the_next_step() {
        let wanted = |owners: &str| {
            let wanted = format!(r#"{{"generation":7,"owners":{owners}}}"#);
            reason(
                &view(&[("config", r#"{"partitions":3,"planning":{"strategy":"external"}}"#), ("wanted", &wanted)]),
                "light",
            )
        };
        let (why, step) = wanted(r#"{"0":"ghost"}"#);
        assert_eq!(why, "wanted owners of generation 7 name ghost, which is not registered");
        assert!(step.as_ref().is_some_and(|step| step.starts_with("start pod ghost, or correct ")), "{step:?}");
        let (why, step) = wanted(r#"{"1":"light"}"#);
        assert_eq!(why, "wanted owners of generation 7 do not name the partition, which stays");
        assert_eq!(step, None);
    }
}
