//! The scene of a checkpoint, for pods that make them.

use segue_protocol::view::View;

use super::{OWN, P0, Player, SceneEnd, SceneResult};

impl Player<'_> {
    /// Begins a handoff of the first partition to the other pod, whose pod would warm from a checkpoint, and cancels it once
    /// there is one.
    pub(super) async fn checkpoint(&self) -> SceneResult {
        let epoch = self.owns().await?;
        let play = self.stage.begin(P0, &self.stage.party(OWN).await?).await?;
        let made = |view: &View| view.checkpoints.get(&P0).filter(|it| it.value.handoff == play.handoff).cloned();
        let Some(made) = self.stage.until(made).await? else {
            let fault = format!("makes no checkpoint within {:?} of the beginning of a handoff", self.stage.patience);
            return Err(SceneEnd::Fault(fault));
        };
        if made.value.checkpoint.is_none() {
            return Err(SceneEnd::Fault("has nothing new, although it has made no checkpoint before".to_owned()));
        }
        self.accepts(P0, epoch, "after it has made a checkpoint").await?;
        Ok(self.stage.cancel(play).await?)
    }
}
