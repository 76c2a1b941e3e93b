//! Clients: each sends one request after the other to some router, waits for the response, and hangs up now and then.

use std::rc::Rc;
use std::time::Duration;

use segue_protocol::ids::PartitionId;
use tokio::sync::oneshot;
use tokio::task::spawn_local;
use tokio::time::{sleep, timeout};

use crate::cluster::Cluster;
use crate::history::Status;
use crate::router::Asked;

/// Keys per partition: few, so that requests of one key follow each other closely.
const KEYS: u64 = 3;

/// Sends requests as long as `goes_on`.
pub(crate) async fn client(cluster: Rc<Cluster>, goes_on: impl Fn() -> bool) {
    let world = cluster.world.clone();
    let (setting, rng) = (&world.setting, &world.rng);
    while goes_on() {
        // Now and then several at once.
        let burst = if rng.percent(5) { rng.among(5..=30) } else { 1 };
        let mut sent = Vec::new();
        for _ in 0..burst {
            sent.push(spawn_local(request(cluster.clone())));
        }
        for one in sent {
            // A panic of it has been reported by then.
            let _ = one.await;
        }
        sleep(rng.millis(1..=setting.rest_ms)).await;
    }
}

async fn request(cluster: Rc<Cluster>) {
    let world = cluster.world.clone();
    let (setting, rng, history) = (&world.setting, &world.rng, &world.history);
    let partition = PartitionId::new(rng.among(0..=u64::from(setting.partitions) - 1) as u32);
    let key = rng.percent(80).then(|| rng.among(0..=KEYS - 1));
    let long = setting.long_work > 0 && rng.percent(setting.long_work);
    let work = rng.millis(0..=setting.work_ms * if long { 100 } else { 1 });
    let routers: Vec<_> = cluster.routers().into_iter().filter(|router| router.listens()).collect();
    let Some(router) = rng.pick(&routers).cloned() else {
        return sleep(Duration::from_millis(50)).await;
    };
    let id = history.made(partition, key);
    let (answer, answered) = oneshot::channel();
    sleep(rng.millis(0..=setting.message_ms)).await;
    let asked = Asked { id, partition, key, work };
    spawn_local(router.member.process.run(router.clone().handle(cluster.clone(), asked, answer)));
    drop(router);
    let patience = match rng.percent(setting.hang_ups) {
        true => rng.millis(1..=setting.work_ms * 3 + 500),
        // Longer than any router may take, unless it stands still for ever.
        false => Duration::from_secs(600),
    };
    match timeout(patience, answered).await {
        Ok(Ok(status)) => {
            if status == Status::Done {
                world.logs.acked(partition, id);
            }
            history.answered(id, status);
        }
        Ok(Err(_)) => history.answered(id, Status::Reset),
        Err(_) => history.hung_up(id),
    }
}
