//! The text of `segue status`.

use std::fmt;

use segue_coordination::session::unix_millis;
use segue_protocol::ids::Epoch;
use segue_protocol::planning::or_none;
use segue_protocol::records::HeldMoves;

use super::lasting;
use super::status::{HandoffLine, KeyspaceStatus, PinLine, Stale};
use super::troubles::TroubleLine;

impl fmt::Display for KeyspaceStatus {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(stale) = &self.stale {
            writeln!(out, "stale       {stale}")?;
        }
        if let Some(words) = &self.store_refuses_writes {
            writeln!(out, "store       refuses writes: {words}; no move begins")?;
        }
        for TroubleLine { what, next_step, .. } in &self.troubles {
            writeln!(out, "trouble     {what}")?;
            writeln!(out, "next step   {next_step}")?;
        }
        let nobody = match self.partitions {
            0 => "none, and none has led here yet (is a coordinator running, and the keyspace's name right?)",
            _ => "none (is a coordinator running?)",
        };
        let leader = self.leader.as_deref().unwrap_or(nobody);
        writeln!(out, "leader      {leader}")?;
        writeln!(out, "partitions  {}, {} without a living owner", self.partitions, self.unowned)?;
        if self.epoch_floor > Epoch::default() {
            writeln!(out, "epochs      above {} (epoch_floor)", self.epoch_floor)?;
        }
        writeln!(out, "routers     {}", or_none(&self.routers.join(", ")))?;
        self.list_pods(out)?;
        for (address, pods) in &self.shared_addresses {
            writeln!(out, "one address {address}: pods {}; correct pod.advertise", pods.join(" and "))?;
        }
        writeln!(out, "handoffs    {}", if self.handoffs.is_empty() { "none" } else { "" })?;
        for handoff in &self.handoffs {
            let from = handoff.from.as_deref().unwrap_or("nobody");
            let lasts = lasting(handoff.phase_age_ms);
            write!(out, "  {:>5}  {from} → {}  {:?} for {lasts}", handoff.partition, handoff.to, handoff.phase)?;
            write!(out, "{}", handoff.waits_in_words())?;
            writeln!(out, "  ({})", handoff.reason)?;
        }
        for clock in &self.clocks {
            writeln!(out, "clock       {clock}")?;
        }
        for HeldMoves { to, partitions, why, .. } in &self.held {
            writeln!(out, "held        {partitions} to {to}: {why}")?;
        }
        for rest in &self.resting {
            writeln!(out, "resting     {}", rest.in_words(unix_millis()))?;
        }
        self.intentions(out)?;
        if let Some(assurance) = &self.assurance {
            writeln!(out, "assurance   {assurance}")?;
        }
        for (key, reason) in &self.malformed {
            writeln!(out, "malformed   {key}: {reason}")?;
        }
        for key in &self.leaseless {
            writeln!(out, "leaseless   {key}: it has no lease and will not end by itself")?;
        }
        for command in &self.repairs {
            let when = match command {
                _ if command.starts_with("segue forget") => "if its process is gone:",
                _ if command.contains("/assignments/") || command.contains("/handoffs/") => "once nobody works on it:",
                _ => "to remove it:",
            };
            writeln!(out, "{when}  {command}")?;
        }
        Ok(())
    }
}

impl KeyspaceStatus {
    fn list_pods(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "pods        {}", if self.pods.is_empty() { "none" } else { "" })?;
        let width = self.pods.iter().map(|pod| pod.name.len()).max().unwrap_or(0);
        let status_width = self.pods.iter().map(|pod| format!("{:?}", pod.status).len()).max().unwrap_or(0);
        for pod in &self.pods {
            let (name, status, owns) = (&pod.name, format!("{:?}", pod.status), pod.partitions);
            let can = or_none(&pod.capabilities.join(", ")).to_owned();
            write!(out, "  {name:width$}  {status:status_width$}  owns {owns:>4}  at {}  can {can}", pod.address)?;
            if let Some(weight) = pod.weight.filter(|weight| *weight != 1.0) {
                write!(out, "  weight {weight}")?;
            }
            if let Some(zone) = &pod.zone {
                write!(out, "  zone {zone}")?;
            }
            if let Some(version) = &pod.version {
                write!(out, "  version {version}")?;
            }
            if let Some(load) = pod.load {
                write!(out, "  load {load:.1}")?;
            }
            if let Some(age) = pod.heartbeat_age_ms.filter(|_| pod.suspected) {
                write!(out, "  suspected: last heartbeat {} ago", lasting(age))?;
            }
            if let Some(age) = pod.oldest_checkpoint_age_ms {
                let (with, age) = (pod.checkpoints, lasting(age));
                write!(out, "  checkpoints of {with} partitions, the oldest {age} old")?;
            }
            writeln!(out)?;
        }
        Ok(())
    }

    fn intentions(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(by) = &self.paused {
            writeln!(out, "paused      planned moves, by {by}")?;
        }
        for (pod, by) in &self.drains {
            writeln!(out, "drained     {pod}, by {by}")?;
        }
        for PinLine { partition, to, until_pod_goes, by } in &self.pins {
            let to = to.as_deref().unwrap_or("where it is");
            let word = if *until_pod_goes { "moved" } else { "pinned" };
            writeln!(out, "{word:11} {partition} to {to}, by {by}")?;
        }
        Ok(())
    }
}

impl HandoffLine {
    /// Returns what the handoff waits for, and the time of each wait that began after the phase.
    fn waits_in_words(&self) -> String {
        if self.waiting_for.is_empty() {
            return String::new();
        }
        let later = self.waits.iter().filter(|wait| wait.age_ms.is_some_and(|age| age < self.phase_age_ms));
        let later: Vec<String> = later.map(ToString::to_string).collect();
        let later = if later.is_empty() { String::new() } else { format!(" ({})", later.join("; ")) };
        format!(", waiting for {}{later}", self.waiting_for)
    }
}

impl fmt::Display for Stale {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "the store has not been followed for {}: {}", lasting(self.age_ms), self.reason)
    }
}
