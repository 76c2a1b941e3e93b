//! The scenes in which the pod's process is killed and started again.
//!
//! A new process has none of the state, so it is another life of the pod: it registers anew, and owns nothing until it has
//! warmed.

use std::time::Duration;

use segue_protocol::records::Phase;
use segue_protocol::view::View;
use tokio::time::{Instant, sleep};

use super::super::cases::{ExpectedResponse, fault};
use super::super::process::PodProcess;
use super::super::stage::Party;
use super::{ASK_EVERY, P0, P1, Player, SceneEnd, SceneResult, registration};

/// How long a pod is left to warm before it is killed. A pod that takes less is killed when it is ready.
const WARMS_FOR: Duration = Duration::from_millis(100);

impl Player<'_> {
    pub(super) async fn killed_while_it_warms(&mut self) -> SceneResult {
        let before = self.registered().await?;
        self.owned_by_other(P0).await?;
        let begun = self.stage.begin(P0, &before).await?;
        let phase = |view: &View| view.handoffs.get(&P0).map(|record| record.value.phase);
        let deadline = Instant::now() + WARMS_FOR;
        while phase(&self.stage.view().await?) == Some(Phase::Warming) && Instant::now() < deadline {
            sleep(ASK_EVERY).await;
        }
        self.kill();
        let killed_in = phase(&self.stage.view().await?);
        self.start_again()?;
        let again = self.registers_anew(&before).await?;
        self.refuses(P0, begun.epoch, "at the epoch of a handoff to the process that was killed").await?;

        // Once it is ready for a handoff of its own, it has seen the older one as well.
        self.owned_by_other(P1).await?;
        let own = self.stage.begin(P1, &again).await?;
        self.is_ready(own).await?;
        if phase(&self.stage.view().await?) != killed_in {
            let fault = "moves on a handoff to the process that was killed: that state is gone; a handoff names a life";
            return Err(SceneEnd::Fault(fault.to_owned()));
        }
        self.stage.cancel(own).await?;
        self.stage.cancel(begun).await?;
        self.arrives(&again).await
    }

    pub(super) async fn killed_while_it_owns(&mut self) -> SceneResult {
        let epoch = self.owns().await?;
        let before = self.registered().await?;
        self.kill();
        self.start_again()?;
        let again = self.registers_anew(&before).await?;
        self.refuses(P0, epoch, "at the epoch of the process that was killed").await?;
        self.arrives(&again).await
    }

    /// Waits until the new process has registered. Until then it must serve nothing of the one before.
    async fn registers_anew(&mut self, before: &Party) -> SceneResult<Party> {
        let served = self.stage.view().await?.live_owner(P0).map(|(owned, _)| owned.epoch);
        let mut deadline = Instant::now() + self.stage.patience;
        let mut was_there = true;
        loop {
            let now = registration(&self.stage.view().await?, &self.name);
            if let Some(now) = now.as_ref().filter(|now| *now != before) {
                return Ok(now.clone());
            }
            if let Some(epoch) = served
                && fault(ExpectedResponse::Accepted, &self.ask(P0, epoch).await).is_none()
            {
                let fault =
                    "serves what the process that was killed has owned: it lacks that state, and others may own it";
                return Err(SceneEnd::Fault(fault.to_owned()));
            }
            if was_there && now.is_none() {
                (was_there, deadline) = (false, Instant::now() + self.stage.patience);
            }
            if Instant::now() > deadline {
                let ended = self.process.as_mut().and_then(|process| process.ended());
                return Err(SceneEnd::Fault(match (ended, was_there) {
                    (Some(ended), _) => format!("ends after it was started again: {ended}"),
                    (None, true) => format!(
                        "keeps the registration of the process that was killed for {:?}: a new process registers anew; a \
                         longer lease needs a longer --patience",
                        self.stage.patience
                    ),
                    (None, false) => format!("does not register again within {:?}", self.stage.patience),
                }));
            }
            sleep(ASK_EVERY).await;
        }
    }

    fn kill(&mut self) {
        self.process.iter_mut().for_each(PodProcess::kill);
    }

    fn start_again(&mut self) -> anyhow::Result<()> {
        self.process.iter_mut().try_for_each(PodProcess::start_again)
    }
}
