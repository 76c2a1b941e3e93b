//! Explanations: the state of a partition or a pod, the reasons, and the next steps. This is what both have in common.

use segue_coordination::session::unix_millis;
use segue_protocol::planning::SLOW_WARM;
use segue_protocol::records::HeldMoves;
use segue_protocol::view::{PodLife, View};
use segue_proxy::tls::ClientTls;
use serde::{Deserialize, Serialize};

use super::status::heartbeat_age;

/// An explanation, as text or as JSON.
pub(crate) trait Explanation: Serialize {
    /// Returns it as text, a line for each fact.
    fn in_words(&self) -> String;

    /// Returns whether participants can be asked about it.
    fn has_participants(&self) -> bool;

    /// Asks the participants, by TLS if `tls` is given.
    fn ask(&mut self, tls: Option<&ClientTls>) -> impl Future<Output = ()> + Send;

    /// Says why the participants were not asked.
    fn leave_unasked(&mut self, why: &str);
}

/// A registered participant that can be asked what it does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AskedParticipant {
    /// `router` or `pod`.
    pub(crate) kind: String,
    pub(crate) name: String,
    /// The address of the admin endpoint of its process, or of the coordinator that serves its stream.
    pub(crate) admin: Option<String>,
    /// Whether a coordinator serves its stream: the participant is a pod that uses the gRPC service.
    #[serde(default)]
    pub(crate) by_stream: bool,
    /// The answer of its process, if that was asked.
    #[serde(default)]
    pub(crate) says: Option<String>,
}

/// Returns why a pod gets no partitions at all.
pub(super) fn obstacle(view: &View, pod: &str) -> Option<String> {
    if let Some(drain) = view.intentions.drains.get(pod) {
        return Some(format!("it is drained by {}", drain.value.origin));
    }
    if view.leaves_by_itself(pod) {
        return Some("it gives up its partitions by itself".to_owned());
    }
    let life = view.pods.get(pod).map(|record| view.life(pod, record.incarnation()));
    if matches!(life, Some(PodLife::Leaseless(_))) {
        return Some("its registration has no lease".to_owned());
    }
    let (age, _) = heartbeat_age(view, pod, unix_millis()).filter(|(_, is_suspected)| *is_suspected)?;
    Some(format!("it is suspected: its last heartbeat was {} ago", super::lasting(age)))
}

/// The beginning of the step that helps against a store that refuses writes.
const MEND_THE_STORE: &str = "mend the store, which refuses writes";

/// Returns what helps against a store that refuses writes in these words.
pub(super) fn store_step(words: &str) -> String {
    format!("{MEND_THE_STORE}: {words}")
}

/// Begins with the steps that help single participants, unless it is the store that has to be mended.
pub(super) fn begin_with(steps: &mut Vec<String>, of_participants: impl IntoIterator<Item = String>) {
    if steps.first().is_none_or(|first| !first.starts_with(MEND_THE_STORE)) {
        steps.splice(0..0, of_participants);
    }
}

/// Returns what is wrong with the keyspace as a whole.
pub(super) fn keyspace_steps(view: &View) -> Vec<String> {
    let mut steps = Vec::new();
    if view.coordinator().is_none() {
        steps.push("start a coordinator: none leads".to_owned());
    }
    if view.pods.keys().all(|pod| view.is_draining(pod)) {
        steps.push("start a pod, or undrain one: none accepts partitions".to_owned());
    }
    if let Some(pause) = &view.intentions.pause {
        steps.push(format!("segue resume: planned moves are paused by {}", pause.value.origin));
    }
    steps
}

/// Returns the moves that are held back and `is_meant` selects, in words.
pub(super) fn held(view: &View, is_meant: impl Fn(&HeldMoves) -> bool) -> Vec<String> {
    let words = |held: &HeldMoves| {
        let HeldMoves { to, partitions: number, why, .. } = held;
        format!("{number} to {to}: {why}")
    };
    view.held().iter().filter(|held| is_meant(held)).map(words).collect()
}

/// Returns what helps against a pod that has warmed a partition for so long, in milliseconds, if other pods accept
/// partitions.
pub(super) fn slow_warm_step(view: &View, pod: &str, millis: u64) -> Option<String> {
    let is_slow = u128::from(millis) >= SLOW_WARM.as_millis();
    let has_others = view.pods.keys().any(|other| other != pod && obstacle(view, other).is_none());
    (is_slow && has_others && !view.is_draining(pod)).then(|| {
        let lasts = super::lasting(millis);
        format!("segue drain {pod}: it has warmed a partition for {lasts}, and other pods accept partitions")
    })
}

/// Returns the next steps in words. `doubt` is why the absence of steps does not say that all is well.
pub(super) fn steps_in_words(steps: &[String], doubt: Option<&str>) -> String {
    match steps {
        [] => match doubt {
            None => "next steps  none: it is as it should be\n".to_owned(),
            Some(doubt) => format!("next steps  none known: {doubt}\n"),
        },
        steps => steps.iter().map(|step| format!("next step   {step}\n")).collect(),
    }
}
