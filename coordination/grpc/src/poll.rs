//! The call by which a pod takes part without a stream.

use std::sync::Arc;
use std::time::Duration;

use segue_coordination::session::boottime;
use segue_protocol::ids::Revision;
use segue_protocol::lease::keepalive_interval;
use tokio::time::timeout;
use tonic::Status;

use crate::attach::{Attached, Way, attach};
use crate::events::{event, welcome};
use crate::proto::{Event, Heartbeat, Hello};
use crate::shared::Shared;
use crate::status::Load;
use crate::stream::remote_pod;

/// Returns the full event of a pod, once there is something newer than the event of revision `after`, or after `wait`.
pub(crate) async fn poll(
    shared: &Arc<Shared>,
    heartbeat: &Heartbeat,
    hello: &Hello,
    (after, wait): (Revision, Duration),
) -> Result<Event, Status> {
    let load = heartbeat.load.as_ref().map(Load::read).transpose()?;
    let mut attached = attach(shared, hello, Way::Poll).await?;
    shared.hub.shows(attached.seen).await?;
    attached.keep_registration(shared).await?;
    let ttl = u64::try_from(attached.token.ttl().as_micros()).unwrap_or(u64::MAX);
    let longest = Duration::from_micros(keepalive_interval(ttl));
    news(shared, &attached, heartbeat, (after, wait.min(longest))).await;
    let mut pod = remote_pod(shared, &attached, heartbeat);
    let view = shared.hub.view();
    let partitions = pod.concerned(&view.parties);
    let leaving = pod.tell_leaving(&view, partitions.iter().copied());
    let mut changes = pod.update(&view, partitions, boottime(), &mut shared.hub.waits());
    changes.tasks.extend(leaving);
    shared.loads.take(&shared.store, &view, &attached.token, load.as_ref());
    shared.sessions.polled(&attached.token, &pod.tasks().collect::<Vec<_>>(), (load, &heartbeat.progress));
    let event = Event {
        seq: 1,
        welcome: Some(welcome(&attached, &view)),
        confirmed: heartbeat.seq,
        ..event(&view, &shared.settings, changes, true)
    };
    attached.told();
    shared.observer.polled();
    Ok(event)
}

/// Returns once the keyspace has changed after this revision, or a `Warm` of this pod has waited for a checkpoint in vain,
/// or after `longest`.
async fn news(shared: &Shared, attached: &Attached, heartbeat: &Heartbeat, (after, longest): (Revision, Duration)) {
    let until = {
        let (mut pod, view) = (remote_pod(shared, attached, heartbeat), shared.hub.view());
        let partitions = pod.concerned(&view.parties);
        pod.update(&view, partitions, boottime(), &mut shared.hub.waits());
        pod.waits_until()
    };
    let wait = until.map_or(longest, |until| until.saturating_sub(boottime()).min(longest));
    let _ = timeout(wait, shared.hub.changed_after(after)).await;
}
