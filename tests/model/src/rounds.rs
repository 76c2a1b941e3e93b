//! The participants of assignment rounds: production's [`Member`] decides on each step and who acts for a partition.
//!
//! A participant has no state of its own but whether it runs and whether it still acts. It decides on what the store holds
//! now; one that sees the store late, or lives on without its lease, is a delayed write, as under a leader. The interval
//! between rounds is left out: a round that opens later is a participant that takes its step later. A window ends only
//! for a participant that does nothing, or by the budget.

use segue_protocol::authority::Authority;
use segue_protocol::ids::{Incarnation, LeaseId, PartitionId, Revision};
use segue_protocol::rounds::{LeasedKey, Member, RoundStep as Taken, StepDraft};
use segue_protocol::txn::{Op, Txn};
use segue_protocol::view::View;

use crate::action::{Author, Step};
use crate::cluster::Cluster;
use crate::rules::Rule;
use crate::state::{Decided, State, Violation};
use crate::store::{StoreRef, TxnRef};
use crate::writes::{Post, StepResult};

/// Partitions for which actors are counted, whether the scenario has so many or not.
const COUNTED: u32 = 4;

/// The lease of every key that has one. Which one makes no difference here.
pub(crate) const LEASE: LeaseId = LeaseId::new(1);

pub(crate) fn participant_name(participant: u8) -> String {
    format!("participant-{participant}")
}

/// The right to write about partitions that the store gives to somebody, without names.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Standing {
    /// The leadership or the participant's life.
    by: Revision,
    round: Option<Revision>,
    /// The partitions that it covers, as a set of bits.
    covers: u8,
}

impl Cluster {
    pub(crate) fn has_rounds(&self) -> bool {
        self.scenario.participants > 0
    }

    pub(crate) fn authors(&self) -> impl Iterator<Item = Author> + use<> {
        std::iter::once(Author::Leader).chain((0..self.scenario.participants).map(Author::Participant))
    }

    fn member(&self, at: StoreRef, participant: u8) -> Option<Member> {
        let name = participant_name(participant);
        let registered = self.store.view(at).rounds.participants.get(&name)?;
        let incarnation = Incarnation::registered_at(registered.create_revision);
        Some(Member { name, incarnation, lease: LEASE })
    }

    /// The right to write about partitions that the store gives to somebody.
    pub(crate) fn authority(&self, at: StoreRef, author: Author) -> Option<Authority> {
        let view = self.view(at);
        match author {
            Author::Leader => {
                let leader = view.leader.as_ref().filter(|leader| leader.lease.is_some())?;
                Some(Authority::Leader { term: leader.create_revision })
            }
            Author::Participant(participant) => {
                let authority = self.member(at, participant)?.authority(view)?;
                Some(if self.without(Rule::OneActor) { misplaced(authority, participant) } else { authority })
            }
        }
    }

    pub(crate) fn is_led(&self, at: StoreRef) -> bool {
        self.standing(at, Author::Leader).is_some()
    }

    fn standing(&self, at: StoreRef, author: Author) -> Option<Standing> {
        self.remember(
            |memory| &mut memory.standings,
            (at.id(), author),
            || {
                let authority = self.authority(at, author)?;
                let covered = PartitionId::all(COUNTED).filter(|partition| authority.acts_for(Some(*partition)));
                let covers = covered.fold(0, |set, partition| set | 1 << partition.get());
                Some(match authority {
                    Authority::Leader { term } => Standing { by: term, round: None, covers },
                    Authority::Round { incarnation, round, .. } => {
                        Standing { by: incarnation.revision(), round: Some(round), covers }
                    }
                })
            },
        )
    }

    /// Whether a leader of rounds has still to end them, before it does anything else.
    pub(crate) fn must_end_rounds(&self, at: StoreRef, author: Author) -> bool {
        let is_leader = author == Author::Leader && self.scenario.leader_knows_rounds;
        is_leader && !self.without(Rule::LeaderEndsRounds) && self.store.view(at).rounds.current.is_some()
    }

    /// Whether this one does what it decides.
    pub(crate) fn acts(state: &State, author: Author) -> bool {
        match author {
            Author::Leader => true,
            Author::Participant(it) => state.coordinators.up & !state.coordinators.stuck & (1 << it) != 0,
        }
    }

    /// The step of a round that a participant takes now.
    pub(crate) fn round_step(&self, state: &State, participant: u8) -> Option<TxnRef> {
        if !Self::acts(state, Author::Participant(participant)) {
            return None;
        }
        let at = state.now();
        self.remember(
            |memory| &mut memory.round_steps,
            (at.id(), participant),
            || self.next_round_step(at, participant),
        )
    }

    fn next_round_step(&self, at: StoreRef, participant: u8) -> Option<TxnRef> {
        let view = self.view(at);
        let member = self.member(at, participant)?;
        let step = match self.without(Rule::WindowWaits).then(|| early_close(&member, view)).flatten() {
            Some(early) => early,
            None => member.next_step(view)?,
        };
        if step == Taken::ClearLeader && self.without(Rule::ClearLeader) {
            return None;
        }
        let StepDraft { txn, leased } = member.draft(view, step, &self.policy());
        let Txn { when, mut then, otherwise } = txn;
        let is_kept = |it: &LeasedKey| it.key != self.store.keys.round_interval();
        let put = |it: LeasedKey| Op::Put { key: it.key, value: it.value, lease: Some(LEASE) };
        then.extend(leased.into_iter().filter(is_kept).map(put));
        let txn = self.store.txn(Txn { when, then, otherwise });
        self.store.commit(at, txn).map(|_| txn)
    }

    /// Calls `each` with every step of the participants until it says to stop. Returns whether it did.
    pub(crate) fn each_round_progress(&self, state: &State, each: &mut dyn FnMut(Step) -> bool) -> bool {
        let rounds = &self.store.view(state.now()).rounds;
        for participant in 0..self.scenario.participants {
            let name = participant_name(participant);
            let runs = state.coordinators.up & (1 << participant) != 0;
            let is_registered = rounds.participants.contains_key(&name);
            if runs && !is_registered && each(Step::Participate { participant }) {
                return true;
            }
            if self.round_step(state, participant).is_some() && each(Step::ActInRound { participant }) {
                return true;
            }
        }
        let waits_for_stuck = || {
            let number = rounds.gathering.as_ref().map(|gathering| gathering.value.number);
            self.stuck(state).any(|name| rounds.participants.get(&name).is_some_and(|it| it.value.round != number))
        };
        if rounds.gathering.is_some() && waits_for_stuck() && each(Step::EndWindow) {
            return true;
        }
        let has_stuck = || {
            let current = rounds.current.as_ref().map(|current| &current.value.participants);
            self.stuck(state).any(|name| current.is_some_and(|participants| participants.contains_key(&name)))
        };
        self.has_heartbeat(state) && has_stuck() && each(Step::EndHeartbeat)
    }

    fn stuck(&self, state: &State) -> impl Iterator<Item = String> + use<> {
        let stuck = state.coordinators.stuck;
        (0..self.scenario.participants).filter(move |it| stuck & (1 << it) != 0).map(participant_name)
    }

    fn has_heartbeat(&self, state: &State) -> bool {
        self.store.has(state.now(), &self.store.keys.round_heartbeat())
    }

    /// The faults of coordinators in a keyspace with rounds that the budget still allows.
    pub(crate) fn round_faults(&self, state: &State, steps: &mut Vec<Step>) {
        if !self.has_rounds() {
            return;
        }
        let (budget, view) = (state.budget, self.store.view(state.now()));
        for participant in 0..self.scenario.participants {
            let runs = state.coordinators.up & (1 << participant) != 0;
            let takes_part = self.standing(state.now(), Author::Participant(participant)).is_some();
            if runs && budget.participant_crashes > 0 {
                steps.push(Step::CrashParticipant { participant });
            }
            if !runs && budget.participant_starts > 0 {
                steps.push(Step::StartParticipant { participant });
            }
            // One that never joined would ask for rounds until its lease ends.
            if takes_part && Self::acts(state, Author::Participant(participant)) && budget.stuck_participants > 0 {
                steps.push(Step::Stick { participant });
            }
        }
        if budget.windows > 0 && view.rounds.gathering.is_some() {
            steps.push(Step::EndWindow);
        }
        if budget.heartbeats > 0 && self.has_heartbeat(state) {
            steps.push(Step::EndHeartbeat);
        }
        if budget.leaders > 0 && view.leader.is_none() {
            steps.push(Step::Elect);
        }
        if budget.foreign_leaders > 0 && view.leader.is_none() {
            steps.push(Step::ForeignLeader);
        }
    }

    pub(crate) fn take_round_step(&self, state: &mut State, participant: u8, post: &mut Post) -> StepResult {
        let txn = self.round_step(state, participant)?;
        self.post(state, txn, None, post)
    }

    /// What a coordinator's write is remembered by while it is on its way.
    pub(crate) fn decided(&self, state: &State, author: Author, partition: Option<PartitionId>) -> Option<Decided> {
        let Standing { by, round, .. } = self.standing(state.now(), author).filter(|_| self.has_rounds())?;
        Some(Decided { by, round, partition: partition?, is_ignorant: false })
    }

    /// Judges a write of a coordinator that was accepted, by what has happened since it was decided.
    pub(crate) fn judge_accepted(&self, state: &mut State, before: StoreRef, decided: &Decided) {
        if !self.has_rounds() {
            return;
        }
        let in_force = self.store.view(before).rounds.current.as_ref().map(|current| current.mod_revision);
        if decided.is_ignorant || decided.round.is_some_and(|round| Some(round) != in_force) {
            state.violate(Violation::OneActor);
        }
        let others = state.slow.iter_mut().filter_map(|slow| slow.decided.as_mut());
        let about_it = others.filter(|it| it.partition == decided.partition && it.by != decided.by);
        about_it.for_each(|it| it.is_ignorant = true);
    }

    /// Judges the rounds after a commit: nobody shares a partition, and they come to an end.
    pub(crate) fn judge_rounds(&self, state: &mut State, after: StoreRef) {
        if !self.has_rounds() {
            return;
        }
        if (0..COUNTED).any(|partition| self.actors(after, partition).count() > 1) {
            state.violate(Violation::OneActor);
        }
        let current = self.store.view(after).rounds.current.as_ref();
        if current.is_some_and(|current| current.value.number > self.scenario.most_rounds()) {
            state.violate(Violation::Converges);
        }
    }

    fn actors(&self, at: StoreRef, partition: u32) -> impl Iterator<Item = Author> {
        let covers = move |standing: Standing| standing.covers & (1 << partition) != 0;
        self.authors().filter(move |author| self.standing(at, *author).is_some_and(covers))
    }

    /// Whether each partition has an actor that acts, if anybody could be one.
    pub(crate) fn rounds_have_converged(&self, state: &State) -> bool {
        let now = state.now();
        let somebody_acts = self.authors().skip(1).any(|author| Self::acts(state, author));
        let acts = |partition| self.actors(now, partition).any(|author| Self::acts(state, author));
        !self.has_rounds() || self.is_led(now) || !somebody_acts || (0..COUNTED).all(acts)
    }
}

/// Whoever has joined a round closes it.
fn early_close(member: &Member, view: &View) -> Option<Taken> {
    let number = view.rounds.gathering.as_ref()?.value.number;
    let joined = view.rounds.participants.get(&member.name)?.value.round;
    (joined == Some(number)).then_some(Taken::Close(number))
}

/// Everybody but the first counts from another place. It still finds the place of one that is alone.
fn misplaced(authority: Authority, participant: u8) -> Authority {
    match authority {
        Authority::Round { name, incarnation, round, rank, of } if participant > 0 => {
            Authority::Round { name, incarnation, round, rank: (rank + 1) % of, of }
        }
        other => other,
    }
}
