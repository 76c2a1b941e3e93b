//! Pods that take part by streams of the coordinators' gRPC service, searched exhaustively.
//!
//! Production decides what a pod is told ([`RemotePod`]), what its reports mean ([`judge`]), and how a phase moves on.
//! Modelled are the store, two instances of the service whose views lag, streams that break and lose what is under way,
//! registrations with their tokens and holds, and the pods' processes: they serve what they were told, do their tasks in
//! order, and may repeat an acknowledgement. There are no routers: a pod accepts a write while it believes to be the
//! owner. One partition moves between two pods.
//!
//! A lease ends only once no process has its token. The lease clocks are in the searches of the rest of the model.
//!
//! [`RemotePod`]: segue_protocol::handoff::remote_pod::RemotePod
//! [`judge`]: segue_protocol::handoff::remote_pod::judge

mod client;
mod instance;
mod keyspace;
mod state;

use std::fmt;
use std::time::{Duration, Instant};

use segue_protocol::ids::PartitionId;
use segue_protocol::keys::Keyspace;
use stateright::{Checker as _, HasDiscoveries, Model, Property};

use self::state::{Client, Faults, State};
use crate::scenario::Size;
use crate::search::{Outcome, outcome};
use crate::store::Store;

const PODS: [&str; 2] = ["a", "b"];
const INSTANCES: u8 = 2;
const PARTITION: PartitionId = PartitionId::new(0);

/// A rule of the service that can be taken out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rule {
    /// An acknowledgement counts for the handoff that it names.
    AckNamesHandoff,
    /// A stream begins with everything that the pod has to know.
    ReplayInFull,
    /// A stream begins once its instance sees all that the pod can have been told.
    InstanceCatchesUp,
}

/// A search, with what may happen in it.
pub(crate) struct Search {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) size: Size,
    faults: Faults,
}

const NO_FAULT: Faults = Faults { plans: 0, cancels: 0, writes: 0, breaks: 0, restarts: 0, repeats: 0 };

/// A stream breaks during a move, and its events are lost.
const BREAK: Faults = Faults { plans: 1, writes: 1, breaks: 1, ..NO_FAULT };
/// A process restarts, and a registration is left whose token never arrived.
const RESTART: Faults = Faults { writes: 2, breaks: 1, restarts: 1, ..NO_FAULT };
/// A move is cancelled and made again, and acknowledgements come twice.
const REPEAT: Faults = Faults { plans: 2, cancels: 1, repeats: 1, ..NO_FAULT };

pub(crate) fn all() -> Vec<Search> {
    let search = |name, about, size, faults| Search { name, about, size, faults };
    vec![
        search("streams-break", "pods by gRPC: a stream breaks, and its pod goes on elsewhere", Size::Quick, BREAK),
        search("streams-restart", "pods by gRPC: a process restarts, a token is lost", Size::Large, RESTART),
        search(
            "streams-repeat",
            "pods by gRPC: a move is cancelled, an acknowledgement comes twice",
            Size::Usual,
            REPEAT,
        ),
        search(
            "streams-all",
            "pods by gRPC: all of that at once",
            Size::Large,
            Faults { plans: 2, cancels: 1, writes: 1, breaks: 1, restarts: 1, repeats: 1 },
        ),
    ]
}

/// The rules, each with the search in which its absence shows.
pub(crate) fn mutants() -> Vec<(Rule, Search)> {
    let places = [
        (Rule::AckNamesHandoff, "streams-repeat"),
        (Rule::ReplayInFull, "streams-break"),
        (Rule::InstanceCatchesUp, "streams-break"),
    ];
    let of = |name| all().into_iter().find(|search| search.name == name);
    places.into_iter().filter_map(|(rule, name)| Some((rule, of(name)?))).collect()
}

/// One step. Numbers are those of pods and instances.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    // Steps of the protocol.
    Advance,
    /// The coordinator begins a move from a dead owner, or ends one to a dead new owner.
    Repair,
    CatchUp {
        instance: u8,
    },
    Connect {
        pod: u8,
        instance: u8,
    },
    Deliver {
        pod: u8,
    },
    Work {
        pod: u8,
    },
    Acknowledge {
        pod: u8,
        instance: u8,
        report: u8,
    },
    EndLease {
        pod: u8,
    },
    EndHold {
        hold: u8,
    },
    // What else may happen, as far as the budget goes.
    Plan,
    Cancel,
    Write {
        pod: u8,
    },
    Break {
        pod: u8,
    },
    Restart {
        pod: u8,
    },
    Repeat {
        pod: u8,
        instance: u8,
        report: u8,
    },
}

impl fmt::Display for Step {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |pod: &u8| PODS[usize::from(*pod)];
        match self {
            Step::Advance => out.write_str("a coordinator moves the phase on"),
            Step::Repair => out.write_str("a coordinator acts because an owner is dead"),
            Step::CatchUp { instance } => write!(out, "instance {instance} sees the store"),
            Step::Connect { pod, instance } => write!(out, "pod {} connects to instance {instance}", name(pod)),
            Step::Deliver { pod } => write!(out, "pod {} receives the next event", name(pod)),
            Step::Work { pod } => write!(out, "pod {} does its next task", name(pod)),
            Step::Acknowledge { pod, instance, report } => {
                write!(out, "report {report} of pod {} reaches instance {instance}", name(pod))
            }
            Step::EndLease { pod } => write!(out, "the lease of pod {} ends, whose token nobody has", name(pod)),
            Step::EndHold { hold } => write!(out, "hold {hold} ends, of a registration whose token was not sent"),
            Step::Plan => out.write_str("a coordinator begins a move"),
            Step::Cancel => out.write_str("a coordinator cancels the move"),
            Step::Write { pod } => write!(out, "pod {} accepts a write", name(pod)),
            Step::Break { pod } => write!(out, "the stream of pod {} breaks", name(pod)),
            Step::Restart { pod } => write!(out, "the process of pod {} restarts", name(pod)),
            Step::Repeat { pod, instance, report } => {
                write!(out, "report {report} of pod {} reaches instance {instance} once more", name(pod))
            }
        }
    }
}

/// The cluster that is searched.
pub(crate) struct Streams {
    store: Store,
    without: Option<Rule>,
    faults: Faults,
}

/// Searches all states, with one of the rules taken out if there is one.
pub(crate) fn search(of: &Search, without: Option<Rule>, most: usize) -> Outcome {
    let keys = Keyspace::new("/segue/", "model");
    let leases = PODS.iter().map(|pod| keys.pod(pod)).collect();
    let model = Streams { store: Store::new(keys, leases), without, faults: of.faults };
    let begun = Instant::now();
    let builder = model.checker().finish_when(HasDiscoveries::AnyFailures).target_state_count(most);
    let outcome = match of.size {
        // As in the rest of the model, it keeps a number of each state and no frontier.
        Size::Large => outcome(&builder.threads(2).spawn_dfs().join(), most),
        Size::Quick | Size::Usual => outcome(&builder.threads(1).spawn_bfs().join(), most),
    };
    Outcome { took: begun.elapsed(), ..outcome }
}

impl Model for Streams {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![self.placed()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Step>) {
        if state.violated.is_none() {
            self.progress(state, actions);
            self.faults(state, actions);
        }
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let mut state = last.clone();
        self.take(&mut state, step);
        state.forget_what_has_no_future();
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("single_writer", |_, state: &State| state.violated != Some("single_writer")),
            Property::always("no_lost_request", |_, state: &State| state.violated != Some("no_lost_request")),
            Property::always("converges", |model: &Self, state: &State| {
                state.violated.is_some() || model.goes_on(state) || model.is_at_rest(state)
            }),
        ]
    }
}

impl Streams {
    fn is_without(&self, rule: Rule) -> bool {
        self.without == Some(rule)
    }

    /// A keyspace at rest: both pods have a stream, and the first owns the partition.
    fn placed(&self) -> State {
        let mut state = State {
            now: self.store.empty(),
            views: [self.store.empty(); 2],
            clients: Default::default(),
            streams: [None, None],
            holds: Vec::new(),
            log: Default::default(),
            faults: self.faults,
            violated: None,
        };
        self.take(&mut state, Step::Connect { pod: 0, instance: 0 });
        self.take(&mut state, Step::Connect { pod: 1, instance: 1 });
        // Whatever is enabled leads there. Nothing fails yet.
        while let Some(step) = self.first_progress(&state) {
            self.take(&mut state, step);
        }
        state.forget_what_has_no_future();
        state
    }

    fn first_progress(&self, state: &State) -> Option<Step> {
        let mut steps = Vec::new();
        self.progress(state, &mut steps);
        steps.into_iter().find(|step| {
            let mut next = state.clone();
            self.take(&mut next, *step);
            next != *state
        })
    }

    fn goes_on(&self, state: &State) -> bool {
        self.first_progress(state).is_some()
    }

    fn progress(&self, state: &State, steps: &mut Vec<Step>) {
        steps.extend([Step::Advance, Step::Repair]);
        steps.extend((0..INSTANCES).map(|instance| Step::CatchUp { instance }));
        for pod in 0..PODS.len() as u8 {
            let client = &state.clients[usize::from(pod)];
            match &state.streams[usize::from(pod)] {
                None => steps.extend((0..INSTANCES).map(|instance| Step::Connect { pod, instance })),
                Some(_) => steps.push(Step::Deliver { pod }),
            }
            steps.extend([Step::Work { pod }, Step::EndLease { pod }]);
            for report in 0..client.reports.len() as u8 {
                steps.extend((0..INSTANCES).map(|instance| Step::Acknowledge { pod, instance, report }));
            }
        }
        steps.extend((0..state.holds.len() as u8).map(|hold| Step::EndHold { hold }));
    }

    fn faults(&self, state: &State, steps: &mut Vec<Step>) {
        let Faults { plans, cancels, writes, breaks, restarts, repeats } = state.faults;
        let mut may = |budget: u8, step: Step| steps.extend((budget > 0).then_some(step));
        may(plans, Step::Plan);
        may(cancels, Step::Cancel);
        for pod in 0..PODS.len() as u8 {
            may(writes, Step::Write { pod });
            may(breaks, Step::Break { pod });
            may(restarts, Step::Restart { pod });
            for report in 0..state.clients[usize::from(pod)].done.len() as u8 {
                (0..INSTANCES).for_each(|instance| may(repeats, Step::Repeat { pod, instance, report }));
            }
        }
    }

    fn take(&self, state: &mut State, step: Step) {
        let faults = &mut state.faults;
        match step {
            Step::Advance => self.advance(state),
            Step::Repair => self.repair(state),
            Step::CatchUp { instance } => self.catch_up(state, usize::from(instance)),
            Step::Connect { pod, instance } => self.connect(state, usize::from(pod), usize::from(instance)),
            Step::Deliver { pod } => self.deliver(state, usize::from(pod)),
            Step::Work { pod } => self.work(state, usize::from(pod)),
            Step::Acknowledge { pod, instance, report } => {
                self.acknowledge(state, usize::from(pod), usize::from(instance), usize::from(report));
            }
            Step::EndLease { pod } => self.end_lease(state, usize::from(pod)),
            Step::EndHold { hold } => self.end_hold(state, usize::from(hold)),
            Step::Plan => {
                faults.plans -= 1;
                self.plan(state);
            }
            Step::Cancel => {
                faults.cancels -= 1;
                self.cancel(state);
            }
            Step::Write { pod } => {
                faults.writes -= 1;
                self.write(state, usize::from(pod));
            }
            Step::Break { pod } => {
                faults.breaks -= 1;
                self.break_stream(state, usize::from(pod));
            }
            Step::Restart { pod } => {
                faults.restarts -= 1;
                self.break_stream(state, usize::from(pod));
                let done = std::mem::take(&mut state.clients[usize::from(pod)].done);
                state.clients[usize::from(pod)] = Client { done, ..Client::default() };
            }
            Step::Repeat { pod, instance, report } => {
                faults.repeats -= 1;
                let (life, report) = state.clients[usize::from(pod)].done[usize::from(report)].clone();
                self.judged(state, usize::from(pod), life, usize::from(instance), &report);
            }
        }
    }

    /// Whether one pod that has a stream owns the partition and has all that was written, and nothing moves.
    fn is_at_rest(&self, state: &State) -> bool {
        let view = self.store.view(state.now);
        let Some((owner, _)) = view.live_owner(PARTITION).filter(|_| view.handoffs.is_empty()) else { return false };
        let serves = |(pod, client): (&&str, &Client)| {
            let has_all = client.held == Some((owner.epoch, state.log.1));
            match **pod == owner.owner {
                true => client.owned == Some(owner.epoch) && has_all,
                false => client.owned.is_none() && client.reports.is_empty(),
            }
        };
        PODS.iter().zip(&state.clients).all(serves)
    }
}

/// The clock of a service that never waits.
const NO_TIME: Duration = Duration::ZERO;
