//! The scenes in which the service is gone, or the pod's registration is.

use anyhow::Context as _;
use tokio::time::{Instant, sleep};

use super::super::cases::{ExpectedResponse, fault};
use super::super::service::ServiceUnderTest;
use super::{ASK_EVERY, P0, Player, SceneEnd, SceneResult, registration};

impl Player<'_> {
    pub(super) async fn restart(&mut self) -> SceneResult {
        let epoch = self.owns().await?;
        let pod = self.registered().await?;
        let mark = self.stage.keys.pod_stream(&self.name);
        let before = self.stage.modified(&mark).await?;
        self.stop_service().await;
        self.start_service().await?;
        let deadline = Instant::now() + self.stage.patience;
        while self.stage.modified(&mark).await? <= before {
            if Instant::now() > deadline {
                return Err(SceneEnd::Fault(format!("does not come back within {:?}", self.stage.patience)));
            }
            sleep(ASK_EVERY).await;
        }
        if self.stage.party(&self.name).await? != pod {
            let fault = "registers anew although its process lives: it loses its partitions; `resume` continues";
            return Err(SceneEnd::Fault(fault.to_owned()));
        }
        self.accepts(P0, epoch, "after the restart").await
    }

    pub(super) async fn silence(&mut self) -> SceneResult {
        let epoch = self.owns().await?;
        let pod = self.registered().await?;
        self.stop_service().await;
        let fault = loop {
            let is_over = self.stage.party(&self.name).await? != pod;
            let Some(fault) = fault(ExpectedResponse::Refused, &self.ask(P0, epoch).await) else { break None };
            if is_over {
                break Some(format!("a request after its lease has ended: {fault}"));
            }
            sleep(ASK_EVERY).await;
        };
        self.start_service().await?;
        self.registered().await?;
        fault.map_or(Ok(()), |fault| Err(SceneEnd::Fault(fault)))
    }

    pub(super) async fn lease_loss(&self) -> SceneResult {
        let epoch = self.owns().await?;
        let before = self.registered().await?;
        let lease = self.stage.view().await?.pod_key(&self.name).and_then(|key| key.lease);
        let lease = lease.context("the pod's registration has no lease")?;
        self.stage.store.revoke(lease).await.context("cannot revoke the pod's lease")?;
        self.stops(P0, epoch, "after its registration is gone").await?;
        let again = self.stage.until(|view| registration(view, &self.name).filter(|now| *now != before)).await?;
        let Some(again) = again else {
            return Err(SceneEnd::Fault(format!("does not register again within {:?}", self.stage.patience)));
        };
        self.refuses(P0, epoch, "at the epoch of its former life").await?;
        let play = self.stage.begin(P0, &again).await?;
        self.is_ready(play).await?;
        self.takes_over(play).await
    }

    async fn stop_service(&mut self) {
        if let Some(service) = self.service.take() {
            self.listen = Some(service.stop().await);
        }
    }

    async fn start_service(&mut self) -> anyhow::Result<()> {
        if let Some((listen, token)) = self.listen.take() {
            self.service = Some(ServiceUnderTest::start(self.stage, listen, token).await?);
        }
        Ok(())
    }
}
