//! One exchange between a router and a pod, as messages over the simulated network.
//!
//! # Invariants
//!
//! As with sockets:
//!
//! * Nothing was sent if no connection could be made.
//! * Once something was sent, only a response tells what became of it.
//! * A pod continues to work whether the connection stands or not.

use std::rc::Rc;
use std::time::Duration;

use segue_proxy::routing::permit::Permit;
use tokio::sync::oneshot;
use tokio::task::spawn_local;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::cluster::Cluster;
use crate::pod::{Answer, Job};
use crate::router::{Asked, Router};

/// What a router gets to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Never sent.
    Unreachable,
    /// Never sent: meanwhile the router's lease ran out.
    Fenced,
    /// 421: nothing was done.
    Misdirected,
    Done,
    Failed,
    /// Sent, and then nothing more.
    Broken,
    TimedOut,
    Severed,
}

/// Sends a request where its pass leads.
pub(crate) async fn exchange(cluster: &Rc<Cluster>, router: &Router, permit: &Permit, asked: Asked) -> Outcome {
    let world = &cluster.world;
    let (setting, rng) = (&world.setting, &world.rng);
    let (me, pod) = (router.member.process.name.clone(), permit.pod().name.clone());
    // Most requests find a connection that stands.
    let made_for_this = rng.percent(30) || cluster.pod(&pod).is_none();
    if made_for_this {
        sleep(rng.millis(0..=setting.message_ms)).await;
        if world.network.is_cut(&me, &pod) {
            sleep(setting.connect_timeout).await;
            return Outcome::Unreachable;
        }
        if cluster.pod(&pod).is_none() {
            return Outcome::Unreachable;
        }
        if !permit.may_still_go() {
            return Outcome::Fenced;
        }
    }
    permit.sent();
    world.history.sent(asked.id, &pod, permit.epoch());
    let job = Job { id: asked.id, partition: asked.partition, epoch: permit.epoch(), work: asked.work };
    let broken = CancellationToken::new();
    let (said, heard) = oneshot::channel();
    spawn_local(far_side(cluster.clone(), me, pod, job, broken.clone(), said));
    let severed = permit.sever_token();
    let breaks_after = cluster.breaks_after();
    tokio::select! {
        biased;
        answer = heard => match answer {
            Ok(Answer::Done) => Outcome::Done,
            Ok(Answer::Misdirected) => Outcome::Misdirected,
            Ok(Answer::Failed) => Outcome::Failed,
            Err(_) => Outcome::Broken,
        },
        () = severed.cancelled() => {
            broken.cancel();
            Outcome::Severed
        }
        () = sleep(setting.request_timeout) => {
            broken.cancel();
            Outcome::TimedOut
        }
        () = after(breaks_after) => {
            world.trace.seen("an exchange broke");
            // The pod may notice, or not.
            if rng.percent(50) {
                broken.cancel();
            }
            Outcome::Broken
        }
    }
}

async fn after(time: Option<Duration>) {
    match time {
        Some(time) => sleep(time).await,
        None => std::future::pending().await,
    }
}

/// The request on its way to the pod, its work there, and the answer on its way back.
async fn far_side(
    cluster: Rc<Cluster>,
    router: String,
    pod: String,
    job: Job,
    broken: CancellationToken,
    said: oneshot::Sender<Answer>,
) {
    let world = &cluster.world;
    let late = || world.rng.millis(0..=world.setting.message_ms);
    sleep(late()).await;
    let silence = 2 * world.setting.request_timeout.min(Duration::from_secs(60));
    if world.network.is_cut(&router, &pod) {
        sleep(silence).await;
        return;
    }
    // A new process at the old address may get what was meant for the one before it.
    let Some(at) = cluster.pod(&pod) else { return };
    let served = tokio::select! {
        biased;
        served = at.serve(job) => served,
        // The server drops its part of a connection that is gone; the work that it has begun continues.
        () = broken.cancelled() => return,
    };
    drop(at);
    let Some(answer) = served else { return };
    sleep(late()).await;
    if world.network.is_cut(&router, &pod) {
        sleep(silence).await;
        return;
    }
    let _ = said.send(answer);
}
