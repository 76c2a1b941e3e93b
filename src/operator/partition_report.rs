//! The explanation of a partition, as text and as JSON.
//!
//! Not here: how it is found out ([`explain_partition`](super::explain_partition)).

use segue_coordination::session::unix_millis;
use segue_coordination::store::StoreError;
use segue_protocol::ids::{Epoch, HandoffId, PartitionId};
use segue_protocol::records::{HistoryEntry, Phase};
use segue_protocol::view::View;
use segue_proxy::tls::ClientTls;
use serde::{Deserialize, Serialize};

use super::explain::{AskedParticipant, Explanation, begin_with, steps_in_words};
use super::history::in_words;
use super::plan::PlannedMove;
use super::resting::ActiveBackOff;
use super::troubles::{HeldLine, TroubleLine, TroubleReports};
use super::waits::WaitLine;
use super::{Link, participants};

/// A partition explained.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PartitionReport {
    /// The keyspace's name. `None` from an earlier version.
    #[serde(default)]
    pub(super) keyspace: Option<String>,
    pub(super) partition: PartitionId,
    pub(super) owner: Option<String>,
    /// Whether the owner is registered in the life that owns the partition.
    pub(super) owner_lives: bool,
    pub(super) epoch: Option<Epoch>,
    /// The partition's pin, in words.
    pub(super) pinned: Option<String>,
    /// The newest checkpoint, from which the next owner starts.
    #[serde(default)]
    pub(super) checkpoint: Option<CheckpointReport>,
    pub(super) handoff: Option<HandoffReport>,
    /// The move that the planner would make.
    pub(super) wanted: Option<PlannedMove>,
    /// Why the leader holds back moves to the same pod, or those from the same dead owner.
    #[serde(default)]
    pub(super) held: Vec<String>,
    pub(super) candidates: Vec<Candidate>,
    /// The last handoffs, the newest first.
    pub(super) history: Vec<HistoryEntry>,
    /// What rests after failed moves of the partition.
    #[serde(default)]
    pub(super) resting: Vec<ActiveBackOff>,
    /// What clients of the pods in question suffer.
    #[serde(default)]
    pub(super) troubles: Vec<TroubleLine>,
    /// The requests that wait for the partition, as routers report them.
    #[serde(default)]
    pub(super) waiting: Option<HeldLine>,
    /// The routers, if the partition rests.
    #[serde(default)]
    pub(super) routers: Vec<AskedParticipant>,
    pub(super) next_steps: Vec<String>,
    /// Why the absence of next steps does not say that all is well.
    #[serde(default)]
    pub(super) doubt: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct CheckpointReport {
    pub(super) name: String,
    pub(super) pod: String,
    pub(super) epoch: Epoch,
    /// By the clocks of two machines. Informational.
    pub(super) age_ms: u64,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct HandoffReport {
    pub(super) id: HandoffId,
    pub(super) from: Option<String>,
    pub(super) to: String,
    pub(super) phase: Phase,
    pub(super) epoch: Epoch,
    pub(super) reason: String,
    /// How long the phase has lasted, by the clocks of two machines. Informational.
    #[serde(default)]
    pub(super) phase_age_ms: u64,
    pub(super) waits_for: Vec<String>,
    /// The same, each with the beginning of the wait. Empty from an earlier version.
    #[serde(default)]
    pub(super) waits: Vec<WaitLine>,
    /// The participants among those.
    #[serde(default)]
    pub(super) awaited: Vec<AskedParticipant>,
    pub(super) may_be_cancelled: bool,
}

/// Whether a partition goes to a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum PlacementVerdict {
    Owner,
    Chosen,
    No,
}

impl PlacementVerdict {
    fn word(self) -> &'static str {
        match self {
            PlacementVerdict::Owner => "owner",
            PlacementVerdict::Chosen => "chosen",
            PlacementVerdict::No => "no",
        }
    }
}

/// A pod, and whether the partition goes to it.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Candidate {
    pub(super) pod: String,
    pub(super) verdict: PlacementVerdict,
    pub(super) reason: String,
    pub(super) owns: usize,
}

impl PartitionReport {
    /// Notes which coordinators serve the streams of the pods that its handoff waits for.
    pub(super) async fn find_streams(&mut self, link: &Link) -> Result<(), StoreError> {
        participants::find_streams(self.awaited(), link).await
    }

    /// Adds what the routers report of the partition and of the pods that it belongs to and moves to.
    pub(super) fn add_troubles(&mut self, view: &View, reports: &TroubleReports) {
        let now = unix_millis();
        let pods = [self.owner.as_deref(), self.handoff.as_ref().map(|handoff| handoff.to.as_str())];
        let mut lines = reports.lines(view, now);
        lines.retain(|line| line.pod.is_some() && pods.contains(&line.pod.as_deref()));
        begin_with(&mut self.next_steps, lines.iter().map(|line| line.next_step.clone()));
        self.waiting = reports.held(view, self.partition, now);
        self.troubles = lines;
    }

    fn awaited(&mut self) -> &mut [AskedParticipant] {
        self.handoff.as_mut().map_or(&mut [], |handoff| &mut handoff.awaited)
    }
}

impl Explanation for PartitionReport {
    fn in_words(&self) -> String {
        let owner = self.owner.as_deref().unwrap_or("nobody");
        let dead = if self.owner.is_some() && !self.owner_lives { ", which is dead" } else { "" };
        let epoch = self.epoch.map_or(String::new(), |epoch| format!(" at epoch {epoch}"));
        let mut text = format!("partition   {}\nowner       {owner}{dead}{epoch}\n", self.partition);
        if let Some(pinned) = &self.pinned {
            text += &format!("pinned      {pinned}\n");
        }
        if let Some(CheckpointReport { name, pod, epoch, age_ms }) = &self.checkpoint {
            let age = super::lasting(*age_ms);
            text += &format!("checkpoint  {name}, by {pod} at epoch {epoch}, {age} old\n");
        }
        if let Some(handoff) = &self.handoff {
            let from = handoff.from.as_deref().unwrap_or("nobody");
            let (id, to, reason) = (handoff.id, &handoff.to, &handoff.reason);
            let (phase, lasts) = (handoff.phase.as_str(), super::lasting(handoff.phase_age_ms));
            text += &format!("handoff     {id}: {from} → {to}, {phase} for {lasts} ({reason})\n");
            let waits: Vec<String> = handoff.waits.iter().map(ToString::to_string).collect();
            for wait in if waits.is_empty() { &handoff.waits_for } else { &waits } {
                text += &format!("waits for   {wait}\n");
            }
            for AskedParticipant { kind, name, says, .. } in &handoff.awaited {
                text += &says.as_ref().map_or(String::new(), |says| format!("it says     {kind} {name}: {says}\n"));
            }
        }
        if let Some(wanted) = &self.wanted {
            text += &format!("wanted      on {}: {}\n", wanted.to, wanted.reason);
        }
        for held in &self.held {
            text += &format!("held        {held}\n");
        }
        for TroubleLine { what, .. } in &self.troubles {
            text += &format!("trouble     {what}\n");
        }
        if let Some(HeldLine { requests, routers, oldest_ms }) = &self.waiting {
            let (at, oldest) = (if *routers == 1 { "router" } else { "routers" }, super::lasting(*oldest_ms));
            text += &format!("waiting     {requests} requests at {routers} {at}, the oldest for {oldest}\n");
        }
        for AskedParticipant { name, says, .. } in &self.routers {
            text += &says.as_ref().map_or(String::new(), |says| format!("router      {name}: {says}\n"));
        }
        for Candidate { pod, verdict, reason, owns } in &self.candidates {
            text += &format!("candidate   {pod}: {}, {reason} (owns {owns})\n", verdict.word());
        }
        let now = unix_millis();
        for rest in &self.resting {
            text += &format!("resting     {}\n", rest.in_words(now));
        }
        for handoff in &self.history {
            text += &format!("earlier     {}\n", in_words(handoff, now));
        }
        text + &steps_in_words(&self.next_steps, self.doubt.as_deref())
    }

    fn has_participants(&self) -> bool {
        !self.routers.is_empty() || self.handoff.as_ref().is_some_and(|handoff| !handoff.awaited.is_empty())
    }

    async fn ask(&mut self, tls: Option<&ClientTls>) {
        // A process with several keyspaces has to be told which one is meant.
        let (partition, keyspace) = (self.partition, self.keyspace.clone());
        let refused = participants::ask(self.awaited(), partition, tls, keyspace.as_deref()).await;
        begin_with(&mut self.next_steps, refused);
        let owner = self.owner.as_deref().filter(|_| self.owner_lives);
        let expected = owner.zip(self.epoch);
        let agreement =
            participants::ask_routers(&mut self.routers, partition, expected, tls, keyspace.as_deref()).await;
        for router in &agreement.differing {
            let step =
                format!("segue status --routers: router {router} does not route the partition as the store says");
            self.next_steps.push(step);
        }
        self.doubt = agreement.doubt(&self.routers);
    }

    fn leave_unasked(&mut self, why: &str) {
        self.awaited().iter_mut().for_each(|one| one.says = Some(format!("not asked: {why}")));
        self.doubt = Some(format!("its routers were not asked: {why}"));
    }
}
