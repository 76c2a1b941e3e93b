//! The answer to a `Poll` at a sidecar, for a service that keeps no stream open.
//!
//! A Poll is a stream of one event: it opens, waits, tells everything and ends. Between two of them the service counts as
//! connected for as long as the last one lets it work.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::session::Session;
use crate::proto::{Event, Heartbeat};

/// How long the Poll of a new service waits until the pod has registered.
const REGISTERS_WITHIN: Duration = Duration::from_secs(5);

impl Session {
    /// Returns the full event, once there is something newer than the event of revision `after`, or after `wait`. The
    /// first Poll of a service waits for the registration of its pod instead.
    pub(super) async fn answer(
        mut self,
        heartbeat: &Heartbeat,
        (after, wait): (u64, Duration),
        ending: &CancellationToken,
    ) -> Result<Event, Status> {
        // Before anything can fail: between two Polls the service counts as connected.
        self.polls = true;
        self.report(heartbeat)?;
        self.begin_poll();
        let (mut changes, mut pod) = (self.shared.state.subscribe(), self.pod.clone());
        let until = Instant::now() + if self.resumed { wait } else { REGISTERS_WITHIN };
        loop {
            self.still_open()?;
            let is_over = Instant::now() >= until;
            // Before the event is made: it may show more than this revision says, and not less.
            let revision = self.revision();
            let is_due = if self.resumed { is_over || revision != after } else { self.is_registered() };
            if is_due && let Some(event) = self.next_event(true) {
                // Again, because only now the tasks are known that progress is reported of.
                self.report(heartbeat)?;
                return Ok(Event { revision, ..event });
            }
            if is_over {
                return Err(Status::unavailable("the pod has not registered yet; ask again"));
            }
            tokio::select! {
                () = ending.cancelled() => return Err(Status::unavailable("this sidecar shuts down")),
                // `shared` holds the sender, so this cannot fail.
                _ = changes.changed() => {}
                changed = pod.changed() => if changed.is_err() {
                    return Err(Status::unavailable("the pod has ended"));
                },
                () = sleep_until(until) => {}
            }
        }
    }

    /// Returns the number of what there is to tell, which is another one whenever that has changed.
    fn revision(&self) -> u64 {
        let owned = self.pod.borrow().owned.clone();
        self.shared.note(|state| state.revision(owned))
    }
}
