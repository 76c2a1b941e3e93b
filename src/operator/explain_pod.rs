//! Explanations of a pod: its state, what comes and goes, and the next steps.

use segue_coordination::session::unix_millis;
use segue_protocol::ids::PartitionId;
use segue_protocol::planning::{Policy, preview};
use segue_protocol::records::Resting;
use segue_protocol::view::View;
use serde::{Deserialize, Serialize};

use super::explain::{Explanation, keyspace_steps, obstacle, steps_in_words};
use super::or_none;
use super::plan::{Move, moves};
use crate::history::History;
use crate::resting::Rest;

/// A pod explained.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PodReport {
    pod: String,
    state: String,
    owns: Vec<PartitionId>,
    arriving: Vec<PartitionId>,
    leaving: Vec<PartitionId>,
    /// Moves that the planner would make to the pod or away from it.
    wanted: Vec<Move>,
    /// What it does not get after failed moves.
    #[serde(default)]
    resting: Vec<Rest>,
    next_steps: Vec<String>,
}

/// Explains a pod, without what rests.
pub(super) fn pod(view: &View, policy: &Policy, pod: &str) -> Result<PodReport, String> {
    let plan = &preview(view, policy);
    let owns: Vec<PartitionId> =
        view.assignments.iter().filter(|(_, it)| it.value.owner == pod).map(|(partition, _)| *partition).collect();
    let drain = view.intentions.drains.get(pod);
    if view.pod_key(pod).is_none() && owns.is_empty() && drain.is_none() {
        let pods: Vec<&str> = view.pods.keys().map(String::as_str).collect();
        return Err(format!("no pod {pod} is registered; registered are: {}", or_none(&pods.join(", "))));
    }
    let life = match view.pod_key(pod) {
        None if owns.is_empty() => "not registered".to_owned(),
        None => "dead: its partitions move to other pods".to_owned(),
        Some(_) if !view.pods.contains_key(pod) => "registered, but the registration cannot be read".to_owned(),
        Some(_) => "registered".to_owned(),
    };
    let state = obstacle(view, pod).map_or(life.clone(), |obstacle| format!("{life}; {obstacle}"));
    let moving = |is_it: &dyn Fn(&segue_protocol::records::Handoff) -> bool| -> Vec<PartitionId> {
        view.handoffs.iter().filter(|(_, handoff)| is_it(&handoff.value)).map(|(partition, _)| *partition).collect()
    };
    let wanted = moves(plan).into_iter().filter(|wanted| wanted.to == pod || wanted.from.as_deref() == Some(pod));
    let mut next_steps = keyspace_steps(view);
    let key = view.keys().pod(pod);
    if view.malformed.contains_key(&key) || view.leaseless().any(|leaseless| leaseless == key) {
        next_steps.push(format!("if its process is gone: segue forget pod {pod}"));
    }
    if drain.is_some() {
        if !owns.is_empty() {
            next_steps.push(format!("segue wait drained {pod}"));
        }
        next_steps.push(format!("segue undrain {pod}"));
    }
    Ok(PodReport {
        pod: pod.to_owned(),
        state,
        arriving: moving(&|handoff| handoff.new_owner == pod),
        leaving: moving(&|handoff| handoff.old_owner.as_deref() == Some(pod)),
        wanted: wanted.collect(),
        resting: Vec::new(),
        owns,
        next_steps,
    })
}

fn list(partitions: &[PartitionId]) -> String {
    let names: Vec<String> = partitions.iter().map(ToString::to_string).collect();
    or_none(&names.join(", ")).to_owned()
}

impl PodReport {
    /// Adds what the pod does not get after failed moves.
    pub(super) fn add_resting(&mut self, history: History) {
        let is_its = |rest: &Rest| rest.of != Resting::Partition && rest.pod == self.pod;
        self.resting = history.resting.into_iter().filter(is_its).collect();
    }
}

impl Explanation for PodReport {
    fn in_words(&self) -> String {
        let mut text = format!("pod         {}\nstate       {}\n", self.pod, self.state);
        text += &format!("owns        {}: {}\n", self.owns.len(), list(&self.owns));
        text += &format!("arriving    {}\nleaving     {}\n", list(&self.arriving), list(&self.leaving));
        for wanted in &self.wanted {
            let from = wanted.from.as_deref().unwrap_or("nobody");
            text += &format!("wanted      {}: {from} → {} ({})\n", wanted.partition, wanted.to, wanted.reason);
        }
        for rest in &self.resting {
            text += &format!("resting     {}\n", rest.in_words(unix_millis()));
        }
        text + &steps_in_words(&self.next_steps)
    }
}
