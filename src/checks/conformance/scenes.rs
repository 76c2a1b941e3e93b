//! The scenes that are played with a pod, and what it must do in each.
//!
//! # Invariants
//!
//! * Each scene begins with a pod that owns what the scene needs, whatever it did in the scenes before.

mod checkpoint;
mod killed;
mod lives;

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use segue_protocol::handoff::advance::waiting_for;
use segue_protocol::ids::{Epoch, Incarnation, PartitionId};
use segue_protocol::records::{Capabilities, Phase, PodAckKind};
use segue_protocol::view::View;
use serde::Serialize;
use tokio::time::{Instant, sleep};

use super::cases::{Case, ExpectedResponse, ObservedResponse, fault, stamps};
use super::process::PodProcess;
use super::send;
use super::service::ServiceUnderTest;
use super::stage::{OWN, Party, Play, TestKeyspace};

const P0: PartitionId = PartitionId::new(0);
const P1: PartitionId = PartitionId::new(1);
const ASK_EVERY: Duration = Duration::from_millis(50);

/// The pod under test.
#[derive(Debug)]
pub(crate) struct PodUnderTest {
    /// Host and port.
    pub(crate) authority: String,
    pub(crate) path: String,
    /// `None`: the pod that registered `authority`.
    pub(crate) name: Option<String>,
}

/// A scene.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scene {
    FirstPlacement,
    Departure,
    Return,
    Checkpoint,
    CancelledDeparture,
    CancelledArrival,
    Restart,
    Silence,
    LeaseLoss,
    KilledWarming,
    KilledOwning,
}

impl Scene {
    const ALL: [Scene; 11] = [
        Scene::FirstPlacement,
        Scene::Departure,
        Scene::Return,
        Scene::Checkpoint,
        Scene::CancelledDeparture,
        Scene::CancelledArrival,
        Scene::Restart,
        Scene::Silence,
        Scene::LeaseLoss,
        Scene::KilledWarming,
        Scene::KilledOwning,
    ];

    fn name(self) -> &'static str {
        match self {
            Scene::FirstPlacement => "a partition is placed on the pod",
            Scene::Departure => "a partition moves to another pod",
            Scene::Return => "a partition comes from another pod",
            Scene::Checkpoint => "the pod makes a checkpoint before a partition moves",
            Scene::CancelledDeparture => "a handoff from the pod is cancelled after it has drained",
            Scene::CancelledArrival => "a handoff to the pod is cancelled, and planned again",
            Scene::Restart => "the service is restarted",
            Scene::Silence => "the service is gone for longer than the lease",
            Scene::LeaseLoss => "the pod's lease is revoked",
            Scene::KilledWarming => "the pod is killed while it warms, and started again",
            Scene::KilledOwning => "the pod is killed while it owns a partition, and started again",
        }
    }

    /// Returns whether there is nothing to play with this pod.
    fn is_left_out(self, player: &Player<'_>) -> bool {
        match self {
            Scene::Restart | Scene::Silence => player.service.is_none(),
            Scene::Checkpoint => !player.capabilities.checkpoint,
            Scene::KilledWarming | Scene::KilledOwning => player.process.is_none(),
            _ => false,
        }
    }
}

/// The result.
#[derive(Debug, Serialize)]
pub(crate) struct HandoffReport {
    pod: String,
    scenes: Vec<SceneOutcome>,
    pub(crate) conforms: bool,
}

/// The outcome of a scene.
#[derive(Debug, Serialize)]
struct SceneOutcome {
    scene: &'static str,
    /// What the pod got wrong; `None` if it conforms.
    fault: Option<String>,
}

/// Why a scene ended early.
enum SceneEnd {
    /// The pod got something wrong.
    Fault(String),
    /// The program could not play it.
    Failed(anyhow::Error),
}

impl From<anyhow::Error> for SceneEnd {
    fn from(error: anyhow::Error) -> Self {
        SceneEnd::Failed(error)
    }
}

type SceneResult<T = ()> = Result<T, SceneEnd>;

/// Plays all scenes, without `service` or `process` those that need none.
pub(super) async fn play(
    stage: &TestKeyspace,
    service: Option<ServiceUnderTest>,
    mut process: Option<PodProcess>,
    pod: PodUnderTest,
) -> anyhow::Result<HandoffReport> {
    let is_meant = |view: &View| {
        let mut pods = view.pods.iter();
        let found = pods.find(|(name, record)| match &pod.name {
            Some(meant) => meant == *name,
            None => record.value.address == pod.authority,
        });
        found.map(|(name, record)| (name.clone(), record.value.capabilities))
    };
    let registered = stage.until(is_meant).await?;
    let (name, capabilities) = registered.with_context(|| {
        let ended = process.as_mut().and_then(PodProcess::ended);
        let ended = ended.map_or_else(String::new, |ended| format!("; --command has ended: {ended}"));
        format!("no pod registered at {} within {:?}{ended}", pod.authority, stage.patience)
    })?;
    let mut player = Player { stage, service, listen: None, process, pod, name, capabilities };
    let mut scenes = Vec::new();
    for scene in Scene::ALL {
        if scene.is_left_out(&player) {
            continue;
        }
        let fault = match player.play(scene).await {
            Ok(()) => None,
            Err(SceneEnd::Fault(fault)) => Some(fault),
            Err(SceneEnd::Failed(error)) => return Err(error.context(format!("cannot play: {}", scene.name()))),
        };
        if fault.is_some() {
            stage.forget(P0).await?;
            stage.forget(P1).await?;
        }
        scenes.push(SceneOutcome { scene: scene.name(), fault });
    }
    if let Some(service) = player.service {
        service.stop().await;
    }
    let conforms = scenes.iter().all(|outcome| outcome.fault.is_none());
    Ok(HandoffReport { pod: player.name, scenes, conforms })
}

struct Player<'a> {
    stage: &'a TestKeyspace,
    service: Option<ServiceUnderTest>,
    /// The address of the service while it is stopped, and the file of its token.
    listen: Option<(SocketAddr, Option<PathBuf>)>,
    /// The pod's process, if this program has started it.
    process: Option<PodProcess>,
    pod: PodUnderTest,
    name: String,
    capabilities: Capabilities,
}

impl Player<'_> {
    async fn play(&mut self, scene: Scene) -> SceneResult {
        match scene {
            Scene::FirstPlacement => self.first_placement().await,
            Scene::Departure => self.departure().await,
            Scene::Return => self.comes_back().await,
            Scene::Checkpoint => self.checkpoint().await,
            Scene::CancelledDeparture => self.cancelled_departure().await,
            Scene::CancelledArrival => self.cancelled_arrival().await,
            Scene::Restart => self.restart().await,
            Scene::Silence => self.silence().await,
            Scene::LeaseLoss => self.lease_loss().await,
            Scene::KilledWarming => self.killed_while_it_warms().await,
            Scene::KilledOwning => self.killed_while_it_owns().await,
        }
    }

    async fn first_placement(&self) -> SceneResult {
        self.stage.forget(P0).await?;
        // A pod that warms at once owns the partition at once.
        let play = self.stage.begin(P0, &self.registered().await?).await?;
        self.is_ready(play).await?;
        self.takes_over(play).await
    }

    async fn departure(&self) -> SceneResult {
        let epoch = self.owns().await?;
        let play = self.gives_up(epoch).await?;
        self.stage.own_pod(play, PodAckKind::Synced).await?;
        self.stage.router(play, Phase::Switching).await?;
        if self.capabilities.released {
            self.says(play, PodAckKind::Released).await?;
        }
        self.stage.advance(P0).await?;
        self.refuses(P0, epoch, "after the partition has moved").await?;
        self.refuses(P0, play.epoch, "at the epoch of the next owner").await
    }

    async fn comes_back(&self) -> SceneResult {
        let before = self.owned_by_other(P0).await?;
        self.arrives(&self.registered().await?).await?;
        self.refuses(P0, before, "at the epoch of the old owner").await
    }

    /// Plays a handoff of the first partition to the pod from its owner: this program's pod, or a dead one.
    async fn arrives(&self, pod: &Party) -> SceneResult {
        let play = self.stage.begin(P0, pod).await?;
        self.is_ready(play).await?;
        self.refuses(P0, play.epoch, "before the routers have drained").await?;
        self.stage.router(play, Phase::Ready).await?;
        let view = self.stage.view().await?;
        let waits_for_drain = view.handoffs.get(&P0).is_some_and(|it| view.live_old_owner(&it.value).is_some());
        if waits_for_drain && view.pod_ack(P0, &self.name, PodAckKind::Synced, play.handoff).is_some() {
            return Err(SceneEnd::Fault("SYNCED before the old owner has drained: it may lack writes".to_owned()));
        }
        self.stage.own_pod(play, PodAckKind::Drained).await?;
        if self.capabilities.sync {
            self.says(play, PodAckKind::Synced).await?;
        }
        self.takes_over(play).await
    }

    async fn cancelled_departure(&self) -> SceneResult {
        let epoch = self.owns().await?;
        let play = self.gives_up(epoch).await?;
        self.stage.cancel(play).await?;
        self.accepts(P0, epoch, "after the handoff was cancelled").await?;
        self.refuses(P0, play.epoch, "at the epoch of a cancelled handoff").await
    }

    async fn cancelled_arrival(&self) -> SceneResult {
        self.owned_by_other(P1).await?;
        let pod = self.registered().await?;
        for _ in 0..2 {
            let play = self.stage.begin(P1, &pod).await?;
            self.is_ready(play).await?;
            self.stage.cancel(play).await?;
            self.refuses(P1, play.epoch, "at the epoch of a cancelled handoff").await?;
        }
        Ok(())
    }

    /// Makes the pod own the first partition, if it does not. Returns the epoch.
    async fn owns(&self) -> SceneResult<Epoch> {
        let pod = self.registered().await?;
        let view = self.stage.view().await?;
        let own = view.live_owner(P0).filter(|(owned, _)| owned.owner == pod.name && view.handoffs.is_empty());
        if let Some((owned, _)) = own {
            return Ok(owned.epoch);
        }
        self.stage.forget(P0).await?;
        let play = self.stage.begin(P0, &pod).await?;
        self.is_ready(play).await?;
        self.takes_over(play).await?;
        Ok(play.epoch)
    }

    /// Makes this program's pod own a partition. Returns the epoch.
    async fn owned_by_other(&self, partition: PartitionId) -> SceneResult<Epoch> {
        self.stage.forget(partition).await?;
        let own = self.stage.party(OWN).await?;
        let play = self.stage.begin(partition, &own).await?;
        self.stage.own_pod_is_warm(play).await?;
        self.stage.router(play, Phase::Ready).await?;
        self.stage.router(play, Phase::Switching).await?;
        Ok(play.epoch)
    }

    /// Plays a handoff of the first partition to the other pod until the pod has drained.
    async fn gives_up(&self, epoch: Epoch) -> SceneResult<Play> {
        let other = self.stage.party(OWN).await?;
        let play = self.stage.begin(P0, &other).await?;
        self.stage.own_pod_is_warm(play).await?;
        self.accepts(P0, epoch, "until the routers have drained").await?;
        self.stage.router(play, Phase::Ready).await?;
        if self.capabilities.drained {
            self.says(play, PodAckKind::Drained).await?;
            self.refuses(P0, epoch, "after it has said DRAINED").await?;
        } else {
            self.stops(P0, epoch, "after the routers have drained").await?;
        }
        self.refuses(P0, play.epoch, "at the epoch of the next owner").await?;
        Ok(play)
    }

    /// Plays the rest of a handoff to the pod, which is ready.
    async fn takes_over(&self, play: Play) -> SceneResult {
        let Play { partition, epoch, .. } = play;
        self.stage.router(play, Phase::Ready).await?;
        let flipped = |view: &View| view.assignments.get(&partition).filter(|it| it.value.epoch == epoch).map(drop);
        // A pod straight on etcd says `synced` and leaves the move of the phase to the coordinator.
        let has_synced = |view: &View| waiting_for(view, partition).is_empty().then_some(());
        self.sees(play, |view| flipped(view).or_else(|| has_synced(view))).await?;
        self.stage.advance(partition).await?;
        self.sees(play, flipped).await?;
        self.accepts(partition, epoch, "as the owner").await?;
        self.stage.router(play, Phase::Switching).await?;
        self.stage.own_pod(play, PodAckKind::Released).await?;
        Ok(())
    }

    async fn registered(&self) -> SceneResult<Party> {
        let registered = self.stage.until(|view| registration(view, &self.name)).await?;
        registered.ok_or_else(|| SceneEnd::Fault(format!("is not registered for {:?}", self.stage.patience)))
    }

    async fn is_ready(&self, play: Play) -> SceneResult {
        let is_ready =
            |view: &View| view.handoffs.get(&play.partition).is_none_or(|it| it.value.phase > Phase::Warming);
        self.sees(play, |view| is_ready(view).then_some(())).await
    }

    async fn says(&self, play: Play, ack: PodAckKind) -> SceneResult {
        let Play { partition, handoff, .. } = play;
        // The ack that completes a handoff goes with its record.
        let is_over = |view: &View| !view.handoffs.contains_key(&partition);
        let said = |view: &View| view.pod_ack(partition, &self.name, ack, handoff).is_some() || is_over(view);
        self.sees(play, |view| said(view).then_some(())).await
    }

    async fn sees(&self, play: Play, found: impl Fn(&View) -> Option<()>) -> SceneResult {
        if self.stage.until(found).await?.is_some() {
            return Ok(());
        }
        let waits = waiting_for(&self.stage.view().await?, play.partition);
        let waits: Vec<_> = waits.iter().map(ToString::to_string).collect();
        Err(SceneEnd::Fault(format!(
            "after {:?} the handoff still waits for {}",
            self.stage.patience,
            waits.join(", ")
        )))
    }

    /// Checks that the pod accepts a request in time.
    async fn accepts(&self, partition: PartitionId, epoch: Epoch, when: &str) -> SceneResult {
        self.conforms(ExpectedResponse::Accepted, partition, epoch, when, self.stage.patience).await
    }

    /// Checks that the pod refuses requests in time.
    async fn stops(&self, partition: PartitionId, epoch: Epoch, when: &str) -> SceneResult {
        self.conforms(ExpectedResponse::Refused, partition, epoch, when, self.stage.patience).await
    }

    /// Checks that the pod refuses a request at once.
    async fn refuses(&self, partition: PartitionId, epoch: Epoch, when: &str) -> SceneResult {
        self.conforms(ExpectedResponse::Refused, partition, epoch, when, Duration::ZERO).await
    }

    async fn conforms(
        &self,
        expected: ExpectedResponse,
        partition: PartitionId,
        epoch: Epoch,
        when: &str,
        within: Duration,
    ) -> SceneResult {
        let deadline = Instant::now() + within;
        loop {
            let Some(fault) = fault(expected, &self.ask(partition, epoch).await) else { return Ok(()) };
            if Instant::now() >= deadline {
                return Err(SceneEnd::Fault(format!("a request {when}: {fault}")));
            }
            sleep(ASK_EVERY).await;
        }
    }

    async fn ask(&self, partition: PartitionId, epoch: Epoch) -> ObservedResponse {
        let stamps = stamps(self.stage.keys.name(), partition, epoch);
        let case = Case { name: "", stamps, expected: ExpectedResponse::Accepted };
        send(&self.pod.authority, &self.pod.path, &case).await
    }
}

fn registration(view: &View, pod: &str) -> Option<Party> {
    let incarnation = view.incarnation_of(pod);
    (incarnation != Incarnation::NONE).then(|| Party { name: pod.to_owned(), incarnation })
}

impl fmt::Display for HandoffReport {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for SceneOutcome { scene, fault } in &self.scenes {
            match fault {
                None => writeln!(out, "ok     {scene}")?,
                Some(fault) => writeln!(out, "WRONG  {scene}: {fault}")?,
            }
        }
        let wrong = self.scenes.iter().filter(|outcome| outcome.fault.is_some()).count();
        writeln!(out, "conformance: pod={} scenes={} wrong={wrong}", self.pod, self.scenes.len())
    }
}
