//! Placement and the coordinator's decisions: which partitions move where, when, and which moves are given up.
//!
//! [`plan`] is the whole of it: a view of the keyspace in, [`Action`]s out, each with its reason, and the moment at which
//! to ask again. [`txn`] makes an action a transaction whose guards carry its safety. Rounds ([`round`]) decide *when*
//! moves are planned, strategies ([`placement`], [`sticky`], [`jump`]) *where to*, [`budget`] *how many* at a time,
//! [`flight`] which handoffs are given up.
//!
//! Pure: no clock, no randomness, no I/O, no log; the same view, policy, memory and moment give the same plan.
//!
//! # How it is driven
//!
//! A leader starts with `Memory::default()`. It calls [`plan`] after every change of its view and at `next_wake`, carries
//! the actions out in any order, each as its own transaction, and calls again once its view is at or past the revision
//! of what it committed (earlier, moves that are under way would not be counted against the budget). An action that
//! failed is no error: it comes again while its cause stands.
//!
//! # What stays true
//!
//! * A partition whose handoff stands is pinned: it counts as moved and no second handoff is planned for it.
//! * Nothing but the store is needed to go on: a new leader with an empty memory only measures its times anew.
//! * Past the point of no return ([`flight::past_no_return`]) nothing is cancelled.
//!
//! Not here: moving a phase on ([`advance`](crate::handoff::advance)).

use std::time::Duration;

use crate::ids::{Incarnation, PartitionId, Revision};
use crate::keys::KeyName;
use crate::records::{KeyspaceConfig, Mode, Partitioner};
use crate::view::{PodLife, View};

mod actions;
mod backoff;
pub mod budget;
mod departures;
pub mod flight;
pub mod jump;
mod moves;
mod notice;
pub mod placement;
pub mod round;
pub mod sticky;

#[cfg(test)]
mod tests;

pub use self::actions::{Action, CancelReason, Standing, txn};
pub use self::backoff::{FIRST_BACK_OFF, MAX_BACK_OFF};
pub use self::budget::MoveCause;
pub use self::departures::REBIRTH_GRACE;
pub use self::notice::{Assurance, Notice};
pub use self::round::RoundCause;

/// The pause after which an action that may have failed is tried again, at least.
const MIN_RETRY: Duration = Duration::from_millis(100);

/// What the operator wants of the coordinator: section `[coordinator]` of the file.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Policy {
    /// How many partitions the keyspace is to have. More than it has: it grows, if requests name their partition, and
    /// this is refused otherwise. Fewer: refused.
    pub partitions: u32,
    /// Where partitions belong.
    pub strategy: Strategy,
    /// How routers cut over; `Independent` only while fewer than two routers are registered.
    pub mode: Mode,
    /// A round closes once nothing has changed for this long …
    pub settle: Duration,
    /// … and at the latest this long after the first change.
    pub settle_max: Duration,
    /// Rounds are at least this far apart.
    pub min_interval: Duration,
    /// Without any change there is a round this long after the last.
    pub heartbeat: Duration,
    /// How long a new owner may take to get warm.
    pub warm_timeout: Duration,
    /// How long `Ready` and `Syncing` may take together, and each of the later phases.
    pub phase_timeout: Duration,
    /// How many moves are in flight at a time, in all ([`budget`]).
    pub max_concurrent_handoffs: usize,
}

/// The defaults of the file.
impl Default for Policy {
    fn default() -> Self {
        Policy {
            partitions: 64,
            strategy: Strategy::default(),
            mode: Mode::default(),
            settle: Duration::from_secs(1),
            settle_max: Duration::from_secs(5),
            min_interval: Duration::from_secs(2),
            heartbeat: Duration::from_secs(30),
            warm_timeout: Duration::from_secs(300),
            phase_timeout: Duration::from_secs(25),
            max_concurrent_handoffs: 64,
        }
    }
}

/// Where partitions belong, by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Strategy {
    /// [`sticky`]: balanced to the quota with the fewest moves; weights and zones.
    #[default]
    Sticky,
    /// [`jump`]: jump consistent hash; no weights.
    Jump,
}

impl Strategy {
    /// All strategies, by their names in the file.
    pub const NAMES: &[(&str, Self)] = &[("sticky", Strategy::Sticky), ("jump", Strategy::Jump)];

    /// The function behind the name.
    pub fn placement(self) -> &'static dyn placement::Placement {
        match self {
            Strategy::Sticky => &sticky::Sticky,
            Strategy::Jump => &jump::Jump,
        }
    }
}

/// What the planner remembers from call to call: when it first saw what it times, and what failed how often. May be lost
/// at any moment: the times begin anew and failed moves are tried again sooner.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Memory {
    rounds: round::Rounds,
    departures: departures::Departures,
    flights: flight::Flights,
    backoffs: backoff::BackOffs,
    rest: moves::Rest,
}

impl Memory {
    /// When the partition's handoff has waited out its dead owner's bound, by this process's own clock
    /// ([`pending_bound`](crate::handoff::advance::pending_bound)). `None`: it waits for none.
    pub fn bound_ends(&self, view: &View, partition: PartitionId) -> Option<Duration> {
        self.departures.bound_ends(view, partition)
    }
}

/// What to do now, and when to ask again.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    /// What to write, each in a transaction of its own ([`txn`]). What ends handoffs comes before what begins them.
    pub actions: Vec<Action>,
    /// When to ask again although nothing has changed, on the clock of `now`. Always later than `now`.
    pub next_wake: Option<Duration>,
    /// The round that closed with this plan, if one did.
    pub round: Option<RoundCause>,
    /// How many moves are wanted but wait: for a place in the budget, a back-off, or the end of a handoff. As of the last
    /// time that moves were computed.
    pub waiting: usize,
    /// What an operator should know. Repeated in every plan as long as it is so.
    pub notices: Vec<Notice>,
}

/// Decides what the leader does about this view. `now` is the time since some fixed moment of this process.
pub fn plan(view: &View, policy: &Policy, memory: &mut Memory, now: Duration) -> Plan {
    let mut plan = Plan { notices: notice::about(view, policy), ..Plan::default() };
    memory.rounds.observe(view, policy, now);
    memory.departures.observe(view, now);
    if memory.flights.observe(view, &mut memory.backoffs, now) {
        memory.rest.a_handoff_ended();
    }
    memory.backoffs.forget_old(now);

    match write_config(view, policy) {
        Ok(action) => plan.actions.extend(action),
        Err(notice) => plan.notices.push(notice),
    }
    let ending = end_handoffs(view, policy, memory, now, &mut plan);

    let retry_at = now + retry_pause(policy);
    plan.round = memory.rounds.close(policy, now);
    let is_settling = memory.rounds.is_settling();
    // Partitions of dead owners do not wait until changes have settled.
    let owners_died = memory.departures.take_due(view, now);
    let rest_is_due = memory.rest.is_due(now) && (!is_settling || memory.rest.has_dead_owners());
    if plan.round.is_some() || owners_died || rest_is_due {
        memory.rest = match partitions(view) {
            Some(count) => {
                let context = moves::Context {
                    view,
                    policy,
                    backoffs: &memory.backoffs,
                    departures: &memory.departures,
                    only_dead_owners: is_settling,
                    now,
                    retry_at,
                };
                context.create(count, &mut plan.actions)
            }
            None => moves::Rest::default(),
        };
    }
    if ending {
        memory.rest.try_again_at(retry_at);
    }
    if plan.round == Some(RoundCause::Heartbeat) {
        plan.actions.extend(flight::sweep(view));
    }
    plan.waiting = memory.rest.waiting();
    plan.notices.extend(memory.backoffs.notices(now));
    plan.next_wake = next_wake(policy, memory, now, !plan.actions.is_empty());
    plan
}

/// How many partitions there are, if that is known. Until settings have been read no partition is planned, and none is
/// "beyond" them either.
fn partitions(view: &View) -> Option<u32> {
    Some(view.settings()?.partitions)
}

/// The settings that are to be written, or why those that the file asks for are not.
fn write_config(view: &View, policy: &Policy) -> Result<Option<Action>, Notice> {
    let wanted = policy.partitions;
    let write = |config, seen| Ok(Some(Action::WriteConfig { config, seen }));
    if view.malformed.contains_key(&view.keys().config()) {
        return Ok(None);
    }
    if let Some(standing) = &view.config {
        let kept = standing.value.partitions;
        return match &standing.value.partitioner {
            _ if kept == wanted => Ok(None),
            _ if kept > wanted => Err(Notice::ShrinkRefused { wanted, kept }),
            Some(Partitioner::Number { number: true }) => {
                write(KeyspaceConfig { partitions: wanted, ..standing.value.clone() }, standing.mod_revision)
            }
            partitioner => Err(Notice::GrowthRefused { wanted, kept, partitioner: partitioner.clone() }),
        };
    }
    match (view.settings(), partitions_shown(view)) {
        // Deleted by hand: they come back as they were.
        (Some(known), _) => write(known.clone(), Revision::ZERO),
        (None, Some(shown)) if shown != wanted => {
            Err(Notice::ConfigMissing { wanted, shown, key: view.keys().config() })
        }
        (None, _) => write(KeyspaceConfig::new(wanted), Revision::ZERO),
    }
}

/// How many partitions the keyspace must have had, going by what is assigned or moving.
fn partitions_shown(view: &View) -> Option<u32> {
    let keys = [
        view.assignments.last_key_value().map(|(partition, _)| *partition),
        view.handoffs.last_key_value().map(|(partition, _)| *partition),
    ];
    let unreadable = view.malformed.keys().filter_map(|key| match view.keys().parse(key)? {
        KeyName::Assignment(partition) | KeyName::Handoff(partition) => Some(partition),
        _ => None,
    });
    keys.into_iter().flatten().chain(unreadable).max().map(|last| last.get().saturating_add(1))
}

/// Gives up and tidies away what has to be, whatever the rounds do. Whether there was any.
fn end_handoffs(view: &View, policy: &Policy, memory: &mut Memory, now: Duration, plan: &mut Plan) -> bool {
    let partitions = partitions(view);
    let mut ending = false;
    for (&partition, handoff) in &view.handoffs {
        if flight::waits_for_bound(view, handoff) {
            memory.flights.restart(partition, now);
        }
        let age = memory.flights.age(partition, now);
        match flight::verdict(view, policy, partitions, handoff, age) {
            None => continue,
            Some(flight::Verdict::Overdue(notice)) => plan.notices.push(notice),
            Some(flight::Verdict::End(action)) => {
                if memory.flights.gives_up(partition) {
                    memory.backoffs.note(&action, now);
                }
                plan.actions.push(action);
                ending = true;
            }
        }
    }
    ending
}

fn retry_pause(policy: &Policy) -> Duration {
    policy.min_interval.max(MIN_RETRY)
}

fn next_wake(policy: &Policy, memory: &Memory, now: Duration, acted: bool) -> Option<Duration> {
    let retry = acted.then(|| now + retry_pause(policy));
    [
        memory.rounds.next_wake(policy),
        memory.flights.next_wake(policy, now),
        // While changes settle only dead owners' partitions move: the round that they make comes first.
        memory.rest.next_wake().filter(|_| !memory.rounds.is_settling() || memory.rest.has_dead_owners()),
        memory.departures.next_wake(),
        retry,
    ]
    .into_iter()
    .flatten()
    .map(|wake| wake.max(now + Duration::from_millis(1)))
    .min()
}

/// Whether this life of a pod is over. A pod whose registration cannot be read is not taken for dead: it may well serve.
fn is_dead(view: &View, pod: &str, incarnation: Incarnation) -> bool {
    view.life(pod, incarnation) == PodLife::Over
}
