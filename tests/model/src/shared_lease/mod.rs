//! A process with two keyspaces under one lease, searched exhaustively.
//!
//! Production decides whose share a renewal extends and whose key is deleted ([`Holders`]), and what an attempt to register
//! may delete ([`clear_obstacle`]). Modelled are the store with its leases, the requests to it with their delays, the loops
//! of the parts, the process's death, and another pod that takes a keyspace over once the owner's key is gone. A part
//! accepts work while its share is trusted, and works on for half of the rest; a part that was dropped does so too.
//!
//! A clock ticks once for each keepalive, so that a lease lasts for six ticks. The search ends after a number of ticks.
//!
//! [`Holders`]: segue_protocol::holders::Holders
//! [`clear_obstacle`]: segue_protocol::registration::clear_obstacle

mod process;
mod searches;
mod state;
mod step;
mod store;

use std::time::Instant;

use segue_protocol::ids::{Incarnation, LeaseId};
use segue_protocol::txn::Op;
use stateright::{Checker as _, HasDiscoveries, Model, Property};

use self::process::drop_unheld;
pub(crate) use self::searches::{Rule, Search, all, mutants};
use self::state::{Faults, Owner, Part, Request, Stage, State};
use self::step::{Ending, Step};
use self::store::{Response, Store};
use crate::search::{Outcome, outcome};

const KEYSPACES: [&str; 2] = ["x", "y"];
/// The process's key in each.
const KEYS: [&str; 2] = ["x/pods/a", "y/pods/a"];
/// Ticks of the lease.
const TTL: u64 = 6;
/// Ticks for which a key may stand that nobody acts by: one and a half times the lease, one for the end of the lease in the
/// store, and one in which the lease goes on after all.
const MOST_BLOCKED: u64 = TTL * 3 / 2 + 2;
/// Ticks within which a loop follows the store again after an outage.
const BLIND: u64 = 4;

/// The process, the store and what is between them.
pub(crate) struct SharedLease {
    without: Option<Rule>,
    ticks: u64,
    faults: Faults,
}

/// Searches all states, with one of the rules taken out if there is one.
pub(crate) fn search(of: &Search, without: Option<Rule>, most: usize) -> Outcome {
    let model = SharedLease { without, ticks: of.ticks, faults: of.faults };
    let begun = Instant::now();
    let builder = model.checker().finish_when(HasDiscoveries::AnyFailures).target_state_count(most);
    // With one thread the search for a violation is in order of depth.
    let threads = if without.is_some() { 1 } else { 2 };
    let outcome = outcome(&builder.threads(threads).spawn_bfs().join(), most);
    Outcome { took: begun.elapsed(), ..outcome }
}

impl Model for SharedLease {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let mut state = State {
            now: 0,
            store: Store::default(),
            is_up: true,
            leases: Vec::new(),
            newest: LeaseId::NONE,
            parts: [Part::STARTING; 2],
            ghosts: [].into(),
            under_way: Vec::new(),
            owners: [Owner::Life(Incarnation::NONE); 2],
            blocked: [(Incarnation::NONE, 0); 2],
            slips: 0,
            turned_at: 0,
            faults: self.faults,
            violated: None,
        };
        for part in 0..2 {
            let by_other = false;
            let registers = [Step::Attempt { part }, Step::Arrive { part }, Step::Answer { part }];
            registers
                .into_iter()
                .chain([Step::TakeOver { part, by_other }])
                .for_each(|step| self.take(&mut state, step));
        }
        vec![state]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        if state.violated.is_some() {
            return;
        }
        self.tick(state, steps);
        (0..2).for_each(|part| self.of_part(state, part, steps));
        for kept in &state.leases {
            self.of_lease(state, kept.id, steps);
        }
        if !state.store.is_away {
            let requests = (0..state.under_way.len()).filter(|request| !is_of_nobody(state, *request));
            steps.extend(requests.map(|request| Step::Late { request }));
            steps.extend(state.store.overdue(state.now).into_iter().map(|lease| Step::Expire { lease }));
        }
        steps.extend((state.is_up && state.faults.crashes > 0).then_some(Step::Crash));
        steps.extend((!state.is_up).then_some(Step::Restart));
        let vanishes = !state.store.is_away && state.faults.outages > 0;
        steps.extend(vanishes.then_some(Step::Vanish));
        let returns = state.store.is_away && state.now >= state.turned_at + TTL;
        steps.extend(returns.then_some(Step::Return));
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let mut state = last.clone();
        self.take(&mut state, step);
        judge(&mut state);
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("single_writer", |_, state: &State| state.violated != Some("single_writer")),
            Property::always("nobody_blocks", |_, state: &State| state.violated != Some("nobody_blocks")),
            Property::always("healthy_goes_on", |_, state: &State| state.violated != Some("healthy_goes_on")),
            Property::always("spares_successor", |_, state: &State| state.violated != Some("spares_successor")),
        ]
    }
}

impl SharedLease {
    /// Time passes once all has happened that takes no time.
    fn tick(&self, state: &State, steps: &mut Vec<Step>) {
        let is_away = state.store.is_away;
        let has_turns = state.leases.iter().any(|kept| kept.turn < state.now && !kept.is_gone);
        let is_late = |part: usize| {
            let Part { stage, is_blind, .. } = state.parts[part];
            let waits = state.store.get(KEYS[part]).is_some() && self.clears(state, part).is_none();
            match stage {
                Stage::Starting => !waits && !is_away,
                Stage::Putting { .. } => state.faults.slow == 0 && !is_away,
                Stage::On { .. } if is_blind => !is_away && state.now >= state.turned_at + BLIND,
                Stage::On { .. } => state.must_fence(part) && !is_away,
                Stage::Off => false,
            }
        };
        let is_overdue = !is_away && state.now > 0 && !state.store.overdue(state.now - 1).is_empty();
        if state.now < self.ticks && !has_turns && !is_overdue && (!state.is_up || !(0..2).any(is_late)) {
            steps.push(Step::Tick);
        }
    }

    fn of_part(&self, state: &State, part: usize, steps: &mut Vec<Step>) {
        let Faults { sticks, drops, leaves, starts, late, give_ups, .. } = state.faults;
        let Part { stage, is_stuck, is_blind, .. } = state.parts[part];
        let is_away = state.store.is_away;
        let endings = [Ending::Done, Ending::KeyLater, Ending::Unanswered, Ending::LeaseLater];
        let endings = endings.into_iter().filter(|ending| *ending == Ending::Done || late > 0);
        match stage {
            Stage::Off => steps.extend((state.is_up && starts > 0).then_some(Step::Start { part })),
            Stage::Starting => {
                let is_free = state.store.get(KEYS[part]).is_none() || self.clears(state, part).is_some();
                steps.extend((is_free && !is_away).then_some(Step::Attempt { part }));
            }
            Stage::Putting { response, .. } => {
                let arrives = response.is_none() && !is_away;
                steps.extend(arrives.then_some(Step::Arrive { part }));
                steps.extend(response.map(|_| Step::Answer { part }));
                steps.extend((give_ups > 0).then_some(Step::GiveUp { part }));
            }
            Stage::On { .. } if !is_away => {
                if state.must_fence(part) {
                    steps.extend(endings.clone().map(|ending| Step::Fence { part, ending }));
                }
                if leaves > 0 && !is_stuck && !is_blind {
                    steps.extend(endings.map(|ending| Step::Leave { part, ending }));
                }
                steps.extend(is_blind.then_some(Step::See { part }));
            }
            Stage::On { .. } => {}
        }
        if let Stage::On { .. } = stage {
            steps.extend((sticks > 0 && !is_stuck).then_some(Step::Stick { part }));
            steps.extend(is_stuck.then_some(Step::Resume { part }));
        }
        let is_there = !matches!(stage, Stage::Off | Stage::Starting);
        steps.extend((drops > 0 && is_there).then_some(Step::Drop { part }));
        let Owner::Life(owner) = state.owners[part] else { return };
        if state.store.life(KEYS[part]) != owner {
            steps.push(Step::TakeOver { part, by_other: true });
            let is_registered = matches!(stage, Stage::On { life, .. } if state.store.life(KEYS[part]) == life);
            steps.extend(is_registered.then_some(Step::TakeOver { part, by_other: false }));
        }
    }

    fn of_lease(&self, state: &State, lease: LeaseId, steps: &mut Vec<Step>) {
        let Some(kept) = state.kept(lease) else { return };
        let Faults { lost, unheard, late, .. } = state.faults;
        let renew = |is_lost, deletes_later| Step::Renew { lease, is_lost, deletes_later };
        let is_free = (kept.renewal.is_none() && kept.looks.is_empty()) || unheard > 0;
        if kept.turn < state.now && !kept.is_gone && is_free {
            if state.store.is_away {
                steps.push(renew(true, false));
            } else {
                steps.push(renew(false, false));
                steps.extend((lost > 0).then(|| renew(true, false)));
                steps.extend((late > 0).then(|| renew(false, true)));
            }
        }
        steps.extend(kept.renewal.as_ref().map(|_| Step::Hear { lease }));
        let has_read = kept.looks.first().is_some_and(|look| look.seen.is_some());
        let unread = kept.looks.first().filter(|look| look.seen.is_none() && !state.store.is_away);
        let of = |key: &str| KEYS.iter().position(|known| *known == key);
        steps.extend(unread.and_then(|look| of(&look.left.keys.key)).map(|part| Step::Read { lease, part }));
        if has_read && !state.store.is_away {
            steps.push(Step::Look { lease, deletes_later: false });
            steps.extend((late > 0).then_some(Step::Look { lease, deletes_later: true }));
        }
    }

    fn take(&self, state: &mut State, step: Step) {
        let now = state.now;
        match step {
            Step::Tick => self.pass(state),
            Step::Renew { lease, is_lost, deletes_later } => {
                let is_unheard = state.kept(lease).is_some_and(|it| it.renewal.is_some() || !it.looks.is_empty());
                state.faults.unheard -= u8::from(is_unheard);
                state.faults.lost -= u8::from(is_lost && !state.store.is_away);
                state.faults.late -= u8::from(deletes_later);
                state.slips += u64::from(is_unheard) + u64::from(is_lost) + u64::from(deletes_later);
                self.renew(state, lease, is_lost, deletes_later);
            }
            Step::Hear { lease } => self.hear(state, lease),
            Step::Look { lease, deletes_later } => {
                state.faults.late -= u8::from(deletes_later);
                state.slips += u64::from(deletes_later);
                self.look(state, lease, deletes_later);
            }
            Step::Read { lease, part } => self.read(state, lease, part),
            Step::Expire { lease } => state.store.end(lease),
            Step::Attempt { part } => self.attempt(state, part),
            Step::Arrive { part } => self.arrive(state, part),
            Step::Answer { part } => self.answer(state, part),
            Step::GiveUp { part } => {
                state.faults.give_ups -= 1;
                self.give_up(state, part);
            }
            Step::Late { request } => match state.under_way.remove(request) {
                Request::Commit(txn) => drop(state.store.commit(&txn)),
                Request::Revoke(lease) => {
                    state.store.end(lease);
                    drop_unheld(state);
                }
            },
            Step::Fence { part, ending } => {
                self.spend_ending(state, ending);
                self.withdraw(state, part, ending, Stage::Starting);
            }
            Step::Leave { part, ending } => {
                state.faults.leaves -= 1;
                self.spend_ending(state, ending);
                self.withdraw(state, part, ending, Stage::Off);
            }
            Step::TakeOver { part, by_other: true } => state.owners[part] = Owner::Other,
            Step::TakeOver { part, by_other: false } => {
                if let Stage::On { owns, life, .. } = &mut state.parts[part].stage {
                    (*owns, state.owners[part]) = (true, Owner::Life(*life));
                }
            }
            Step::Drop { part } => {
                state.faults.drops -= 1;
                self.drop_part(state, part);
            }
            Step::Start { part } => {
                state.faults.starts -= 1;
                state.parts[part] = Part::STARTING;
            }
            Step::Stick { part } => {
                state.faults.sticks -= 1;
                (state.parts[part].is_stuck, state.parts[part].was_stuck) = (true, true);
            }
            Step::Resume { part } => state.parts[part].is_stuck = false,
            Step::Crash => {
                state.faults.crashes -= 1;
                let slips = state.slips;
                (0..2).for_each(|part| self.drop_part(state, part));
                state.ghosts.clear();
                state.leases.clear();
                state.slips = slips;
                (state.is_up, state.newest) = (false, LeaseId::NONE);
            }
            Step::Restart => (state.is_up, state.parts) = (true, [Part::STARTING; 2]),
            Step::Vanish => {
                state.faults.outages -= 1;
                (state.store.is_away, state.turned_at) = (true, now);
                let on = state.parts.iter_mut().filter(|part| matches!(part.stage, Stage::On { .. }));
                on.for_each(|part| part.is_blind = true);
            }
            Step::Return => {
                state.store.returns(now);
                (state.turned_at, state.blocked) = (now, [(Incarnation::NONE, 0); 2]);
            }
            Step::See { part } => state.parts[part].is_blind = false,
        }
    }

    fn spend_ending(&self, state: &mut State, ending: Ending) {
        let is_late = ending != Ending::Done;
        state.faults.late -= u8::from(is_late);
        state.slips += u64::from(is_late);
    }

    fn pass(&self, state: &mut State) {
        state.now += 1;
        let now = state.now;
        for (part, key) in KEYS.iter().enumerate() {
            let Part { stage, .. } = state.parts[part];
            state.faults.slow -= u8::from(matches!(stage, Stage::Putting { .. }) && !state.store.is_away);
            let counts = state.parts[part].moves() || self.without == Some(Rule::OnlyProgressCounts);
            if counts && let Some((lease, holder)) = state.parts[part].lease() {
                state.kept_mut(lease).iter_mut().for_each(|kept| kept.holders.made_progress(holder, now - kept.base));
            }
            let life = state.store.life(key);
            let (of, ticks) = state.blocked[part];
            let is_free = life == Incarnation::NONE || state.is_attended(part) || state.store.is_away;
            state.blocked[part] = (life, if is_free || of != life { 0 } else { ticks + 1 });
        }
        if state.store.is_away && self.without == Some(Rule::OutageGivesTime) {
            state.leases.iter_mut().for_each(|kept| kept.holders.confirm(now - kept.base, &[]));
        }
    }
}

/// Returns whether a request puts the key of a part that has left or does not look again. It is left out: the key would
/// stand until the process ends, and etcd gives a request up within seconds.
fn is_of_nobody(state: &State, request: usize) -> bool {
    let Request::Commit(txn) = &state.under_way[request] else { return false };
    let is_off = |key: &String| KEYS.iter().zip(state.parts).any(|(of, part)| of == key && part.stage == Stage::Off);
    state.is_up && txn.then.iter().any(|op| matches!(op, Op::Put { key, .. } if is_off(key)))
}

fn judge(state: &mut State) {
    state.ghosts.retain(|ghost| ghost.until > state.now);
    for part in 0..2 {
        let works =
            matches!(state.parts[part].stage, Stage::On { owns: true, .. }) && state.now < state.works_until(part);
        let ghosts = state.ghosts.iter().filter(|ghost| ghost.part == part).count();
        let others = usize::from(state.owners[part] == Owner::Other);
        if usize::from(works) + ghosts + others > 1 {
            state.violated = Some("single_writer");
        } else if state.blocked[part].1 > MOST_BLOCKED + state.slips {
            state.violated = Some("nobody_blocks");
        } else if is_cheated(state, part) {
            state.violated = Some("healthy_goes_on");
        } else if is_robbed(state, part) {
            state.violated = Some("spares_successor");
        }
    }
}

/// Returns whether a part whose loop makes progress is denied what its renewals give it.
fn is_cheated(state: &State, part: usize) -> bool {
    let Part { stage: Stage::On { lease, .. }, was_stuck: false, heard, .. } = state.parts[part] else { return false };
    let Some((base, share)) = state.share(part) else { return true };
    let is_trusted = state.now < base + share.times.trusted_until;
    (share.lost && state.store.has(lease)) || (state.now < heard + TTL * 2 / 3 && !is_trusted)
}

/// Returns whether the key of a part that has it is gone, although its lease is not.
fn is_robbed(state: &State, part: usize) -> bool {
    let (lease, life) = match state.parts[part].stage {
        Stage::On { lease, life, .. } if state.share(part).is_some_and(|(_, share)| !share.lost) => (lease, life),
        Stage::Putting { lease, response: Some(Response::Committed(life)), .. } => (lease, life),
        _ => return false,
    };
    state.store.has(lease) && state.store.life(KEYS[part]) != life
}
