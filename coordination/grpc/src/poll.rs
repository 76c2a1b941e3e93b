//! The call by which a pod takes part without a stream.

use std::sync::Arc;
use std::time::Duration;

use segue_coordination::session::boottime;
use segue_protocol::ids::Revision;
use segue_protocol::lease::keepalive_interval;
use tokio::time::{Instant, timeout};
use tonic::Status;

use crate::attach::{AttachMode, AttachedPod, attach, ensure_goes_on};
use crate::events::{event, welcome};
use crate::hub::{HubChanges, micros};
use crate::proto::{Event, Heartbeat, Hello};
use crate::sessions::LastPoll;
use crate::shared::KeyspaceService;
use crate::status::{ReportedLoad, tasks_in};
use crate::stream::remote_pod;

/// Returns the full event of a pod, once there is something newer for it than the event of revision `after`, or after `wait`.
pub(crate) async fn poll(
    shared: &Arc<KeyspaceService>,
    heartbeat: &Heartbeat,
    hello: &Hello,
    (after, wait): (Revision, Duration),
) -> Result<Event, Status> {
    let load = ReportedLoad::in_heartbeat(heartbeat)?;
    let mut attached = attach(shared, hello, AttachMode::Poll, after).await?;
    shared.hub.shows(attached.seen).await?;
    attached.keep_registration(shared).await?;
    let ttl = attached.token.ttl();
    let longest = Duration::from_micros(keepalive_interval(micros(ttl)));
    let mut changes = news(shared, &mut attached, heartbeat, (after, wait.min(longest))).await;
    ensure_goes_on(shared, &attached.token)?;
    let mut pod = remote_pod(shared, &attached, heartbeat);
    // Before the view is read: what changes from now on is news for the next Poll.
    changes.take();
    let view = shared.hub.view();
    let partitions = pod.concerned(&view.parties);
    let leaving = pod.tell_leaving(&view, partitions.iter().copied());
    let mut told = pod.update(&view, partitions.iter().copied(), boottime(), &mut shared.hub.waits());
    told.tasks.extend(leaving);
    shared.loads.take(&shared.store, &view, &attached.token, load.as_ref());
    shared.sessions.polled(&attached.token, &pod.tasks().collect::<Vec<_>>(), (load, &heartbeat.progress));
    let event = Event {
        seq: 1,
        welcome: Some(welcome(&attached, &view)),
        confirmed: heartbeat.seq,
        ..event(&view, &shared.settings, told, true)
    };
    let (record, until) = (attached.record().clone(), Instant::now() + ttl);
    let (told, attendance) = (view.revision, attached.attendance);
    let last = LastPoll { told, record, attendance, partitions, changes, until };
    shared.sessions.told(attached.incarnation(), last);
    attached.told();
    shared.observer.polled();
    Ok(event)
}

/// Returns once a partition of this pod has changed after this revision, or a `Warm` of it has waited for a checkpoint in vain,
/// or after `longest`.
async fn news(
    shared: &KeyspaceService,
    attached: &mut AttachedPod,
    heartbeat: &Heartbeat,
    (after, longest): (Revision, Duration),
) -> HubChanges {
    let (mut partitions, mut changes) = match attached.last.take() {
        Some(last) => (last.partitions, last.changes),
        // Beside what the pod owns and holds, the instance that told it last may have told it to warm this.
        None => {
            let running = tasks_in(&heartbeat.progress).map(|(partition, _)| partition);
            (running.collect(), shared.hub.changes_since(attached.name(), after))
        }
    };
    changes.catch_up();
    let pod = remote_pod(shared, attached, heartbeat);
    let until = {
        let (mut pod, view) = (pod.clone(), shared.hub.view());
        let concerned = pod.concerned(&view.parties);
        pod.update(&view, concerned, boottime(), &mut shared.hub.waits());
        pod.waits_until()
    };
    let wait = until.map_or(longest, |until| until.saturating_sub(boottime()).min(longest));
    let concerns = async {
        loop {
            partitions.extend(pod.concerned(&shared.hub.view().parties));
            if changes.concern(&partitions) && shared.hub.has_changed_after(after) {
                return;
            }
            changes.wait().await;
        }
    };
    let _ = timeout(wait, concerns).await;
    changes
}
