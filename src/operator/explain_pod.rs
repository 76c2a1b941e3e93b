//! Explanations of a pod: its state, what comes and goes, what it works on, and the next steps.

use segue_coordination::session::unix_millis;
use segue_coordination::store::StoreError;
use segue_protocol::ids::PartitionId;
use segue_protocol::planning::{Policy, or_none, preview};
use segue_protocol::records::{BackOffSubject, Phase, canonical_address};
use segue_protocol::view::View;
use segue_proxy::tls::ClientTls;
use serde::{Deserialize, Serialize};

use super::explain::{
    AskedParticipant, Explanation, begin_with, held, keyspace_steps, obstacle, slow_warm_step, steps_in_words,
    store_step,
};
use super::history::HandoffHistory;
use super::plan::{PlannedMove, moves};
use super::process_status::Work;
use super::resting::ActiveBackOff;
use super::troubles::{TroubleLine, TroubleReports};
use super::{Link, participants, partitions};

/// A pod explained.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PodReport {
    /// The keyspace's name. `None` from an earlier version.
    #[serde(default)]
    keyspace: Option<String>,
    pod: String,
    state: String,
    owns: Vec<PartitionId>,
    arriving: Vec<PartitionId>,
    leaving: Vec<PartitionId>,
    /// Moves that the planner would make to the pod or away from it.
    wanted: Vec<PlannedMove>,
    /// Why the leader holds moves to it back.
    #[serde(default)]
    held: Vec<String>,
    /// What it does not get after failed moves.
    #[serde(default)]
    resting: Vec<ActiveBackOff>,
    /// Its process, or the coordinator that serves its stream. `None` unless it is registered.
    #[serde(default)]
    process: Option<AskedParticipant>,
    /// The work that it has not finished, if its process was asked.
    #[serde(default)]
    works_on: Vec<Work>,
    /// What its clients suffer, as the routers report it.
    #[serde(default)]
    troubles: Vec<TroubleLine>,
    next_steps: Vec<String>,
    /// Why the absence of next steps does not say that all is well.
    #[serde(default)]
    doubt: Option<String>,
}

/// Explains a pod, without what rests. `refusal` are the words in which the store refuses writes, if it does.
pub(super) fn pod(view: &View, policy: &Policy, pod: &str, refusal: Option<&str>) -> Result<PodReport, String> {
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
    let mut next_steps: Vec<String> = refusal.map(store_step).into_iter().chain(keyspace_steps(view)).collect();
    let holds = held(view, |held| held.to == pod || held.instead_of.as_deref() == Some(pod));
    let key = view.keys().pod(pod);
    if view.malformed.contains_key(&key) || view.leaseless().any(|leaseless| leaseless == key) {
        next_steps.push(format!("if its process is gone: segue forget pod {pod}"));
    }
    let address = view.pods.get(pod).map_or("", |record| &record.value.address);
    if let Some(pods) = view.shared_addresses().get(&canonical_address(address)) {
        let others: Vec<&str> = pods.iter().copied().filter(|other| *other != pod).collect();
        let others = others.join(" and ");
        next_steps.push(format!("correct pod.advertise: {pod} and {others} have one address, {address}"));
    }
    let warms = view.handoffs.values().map(|handoff| &handoff.value);
    let warms = warms.filter(|handoff| handoff.new_owner == pod && handoff.phase == Phase::Warming);
    let longest = warms.map(|handoff| unix_millis().saturating_sub(handoff.phase_entered_at)).max();
    // No pod can say that it is warm while the store refuses writes.
    let longest = longest.filter(|_| refusal.is_none());
    next_steps.extend(longest.and_then(|millis| slow_warm_step(view, pod, millis)));
    if view.pod_key(pod).is_none() && !owns.is_empty() {
        next_steps.push(format!("segue wait settled: other pods take over its {}", partitions(owns.len())));
    }
    next_steps.extend(holds.iter().map(|held| format!("wait: the leader holds back {held}")));
    if drain.is_some() {
        if !owns.is_empty() {
            next_steps.push(format!("segue wait drained {pod}"));
        }
        next_steps.push(format!("segue undrain {pod}"));
    }
    let process = view.pods.get(pod).map(|record| AskedParticipant {
        kind: "pod".to_owned(),
        name: pod.to_owned(),
        admin: record.value.admin.clone(),
        by_stream: false,
        says: None,
    });
    Ok(PodReport {
        keyspace: Some(view.keys().name().to_owned()),
        pod: pod.to_owned(),
        state,
        arriving: moving(&|handoff| handoff.new_owner == pod),
        leaving: moving(&|handoff| handoff.old_owner.as_deref() == Some(pod)),
        wanted: wanted.collect(),
        held: holds,
        resting: Vec::new(),
        process,
        works_on: Vec::new(),
        troubles: Vec::new(),
        owns,
        next_steps,
        doubt: Some("its process was not asked".to_owned()),
    })
}

fn list(partitions: &[PartitionId]) -> String {
    let names: Vec<String> = partitions.iter().map(ToString::to_string).collect();
    or_none(&names.join(", ")).to_owned()
}

impl PodReport {
    /// Adds what the pod does not get after failed moves.
    pub(super) fn add_resting(&mut self, history: HandoffHistory) {
        let is_its = |rest: &ActiveBackOff| rest.of != BackOffSubject::Partition && rest.pod == self.pod;
        self.resting = history.resting.into_iter().filter(is_its).collect();
    }

    /// Adds what the routers report of it.
    pub(super) fn add_troubles(&mut self, view: &View, reports: &TroubleReports) {
        self.troubles = reports.lines(view, unix_millis());
        self.troubles.retain(|line| line.pod.as_ref() == Some(&self.pod));
        begin_with(&mut self.next_steps, self.troubles.iter().map(|line| line.next_step.clone()));
    }

    /// Notes which coordinator serves the pod's stream.
    pub(super) async fn find_stream(&mut self, link: &Link) -> Result<(), StoreError> {
        participants::find_streams(self.process.as_mut_slice(), link).await
    }
}

impl Explanation for PodReport {
    fn in_words(&self) -> String {
        let mut text = format!("pod         {}\nstate       {}\n", self.pod, self.state);
        text += &format!("owns        {}: {}\n", self.owns.len(), list(&self.owns));
        text += &format!("arriving    {}\nleaving     {}\n", list(&self.arriving), list(&self.leaving));
        for TroubleLine { what, .. } in &self.troubles {
            text += &format!("trouble     {what}\n");
        }
        if let Some(says) = self.process.as_ref().and_then(|process| process.says.as_ref()).filter(|it| !it.is_empty())
        {
            text += &format!("it says     {says}\n");
        }
        for Work { partition, says, .. } in &self.works_on {
            text += &format!("works on    {partition}: {says}\n");
        }
        for wanted in &self.wanted {
            let from = wanted.from.as_deref().unwrap_or("nobody");
            text += &format!("wanted      {}: {from} → {} ({})\n", wanted.partition, wanted.to, wanted.reason);
        }
        for held in &self.held {
            text += &format!("held        {held}\n");
        }
        for rest in &self.resting {
            text += &format!("resting     {}\n", rest.in_words(unix_millis()));
        }
        text + &steps_in_words(&self.next_steps, self.doubt.as_deref())
    }

    fn has_participants(&self) -> bool {
        self.process.is_some()
    }

    async fn ask(&mut self, tls: Option<&ClientTls>) {
        if let Some(process) = &mut self.process {
            let asked = participants::ask_pod(process, tls, self.keyspace.as_deref()).await;
            self.works_on = asked.work;
            let failing = self.works_on.iter().find_map(Work::failing);
            let mends = failing.map(|failing| format!("mend what {failing}, or segue drain {}", self.pod));
            begin_with(&mut self.next_steps, asked.refused.into_iter().chain(mends));
            self.doubt = asked.doubt;
        }
    }

    fn leave_unasked(&mut self, why: &str) {
        self.process.iter_mut().for_each(|process| process.says = Some(format!("not asked: {why}")));
        self.doubt = Some(format!("its process was not asked: {why}"));
    }
}
