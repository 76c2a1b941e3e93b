//! Breaks promises on purpose, from outside, to prove that harm is counted.

use std::fs;
use std::path::Path;
use std::time::Duration;

use segue_protocol::records::{Assignment, encode};
use segue_protocol::txn::{Keys, Op};

use crate::cluster::{PODS, Writers};
use crate::fault::TERMINATE;
use crate::run::Stage;

/// What is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Sabotage {
    /// A pod is stopped and its registration deleted by hand; woken up, it goes on with what it had begun, and its log
    /// refuses nothing: two writers.
    ForgottenPod,
    /// A partition is given to another pod by hand, past the protocol: two writers, and against the contract.
    StolenPartition,
    /// The last records of each log vanish: lost writes.
    ForgetfulLog,
}

impl Sabotage {
    pub(crate) fn writers(self) -> Writers {
        match self {
            // A lease that outlasts the stop, so that nothing in the pod itself tells it to end.
            Sabotage::ForgottenPod => {
                let (lease_ttl, service_time) = (Duration::from_secs(40), Duration::from_millis(100));
                Writers { fence: false, lease_ttl, service_time }
            }
            Sabotage::StolenPartition => Writers { fence: false, ..Writers::default() },
            Sabotage::ForgetfulLog => Writers::default(),
        }
    }

    /// Does it.
    pub(crate) fn commit(self, stage: &mut Stage<'_>) -> anyhow::Result<()> {
        stage.timeline.say(&format!("sabotage: {self:?}"));
        match self {
            Sabotage::ForgottenPod => forget_a_pod(stage),
            Sabotage::StolenPartition => steal_partitions(stage),
            Sabotage::ForgetfulLog => {
                stage.cluster.terminate(&[PODS[0]], TERMINATE);
                stage.settle();
                stage.cluster.start(PODS[0])
            }
        }
    }

    /// What is done to the logs before they are looked at.
    pub(crate) fn spoil(self, logs: &Path) -> anyhow::Result<()> {
        if self != Sabotage::ForgetfulLog {
            return Ok(());
        }
        for entry in fs::read_dir(logs)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "log") {
                let text = fs::read_to_string(&path)?;
                let lines: Vec<&str> = text.lines().collect();
                let kept: String =
                    lines[..lines.len().saturating_sub(2)].iter().map(|line| format!("{line}\n")).collect();
                fs::write(&path, kept)?;
            }
        }
        Ok(())
    }
}

fn forget_a_pod(stage: &mut Stage<'_>) -> anyhow::Result<()> {
    let pod = PODS[0];
    let key = stage.history.keys().pod(pod);
    stage.cluster.stop(pod);
    stage.history.by_hand(Op::Delete(Keys::One(key)))?;
    let owns = |stage: &Stage<'_>| {
        stage.history.seen().view.assignments.values().any(|assignment| assignment.value.owner == pod)
    };
    let gone = stage.until(Duration::from_secs(20), |stage| !owns(stage));
    stage.timeline.say(&format!("  others own its partitions: {gone}; it wakes up"));
    stage.pause(2_000);
    stage.cluster.resume(pod);
    Ok(())
}

fn steal_partitions(stage: &mut Stage<'_>) -> anyhow::Result<()> {
    let thefts: Vec<(String, Assignment)> = {
        let seen = stage.history.seen();
        let Some(thief) = seen.view.pods.get(PODS[1]) else { return Ok(()) };
        let of_another = seen.view.assignments.values().filter(|assignment| assignment.value.owner != PODS[1]);
        of_another
            .map(|assignment| {
                let (owner, incarnation) = (PODS[1].to_owned(), thief.incarnation());
                let stolen = Assignment { owner, incarnation, ..assignment.value.clone() };
                (stage.history.keys().assignment(stolen.partition), stolen)
            })
            .collect()
    };
    for (key, stolen) in thefts {
        stage.history.by_hand(Op::Put { key, value: encode(&stolen), lease: None })?;
    }
    stage.pause(3_000);
    Ok(())
}
