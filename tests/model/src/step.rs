//! Carries out one step of the cluster.

use segue_protocol::handoff::epoch_fence::EpochCheck;
use segue_protocol::ids::{LeaseId, PartitionId};
use segue_protocol::records::{Leader, Participant, encode};

use crate::action::{Process, Step, Write};
use crate::cluster::Cluster;
use crate::rounds::participant_name;
use crate::router::DrainEnd;
use crate::rules::Rule;
use crate::state::{Clock, Exchange, Reached, Request, State};
use crate::writes::{Post, StepResult};

impl Cluster {
    pub(crate) fn step(&self, state: &mut State, step: Step, post: &mut Post) -> StepResult {
        match step {
            Step::Deliver { to, ahead } => self.deliver(state, to, usize::from(ahead)),
            Step::DeliverAssignments { to } => {
                let now = state.now();
                state.router(to).assignments = Some(now);
                self.reconcile_router(state, to);
                Some(())
            }
            Step::Register(who) => self.register(state, who),
            Step::Elect => {
                state.budget.leaders = state.budget.leaders.saturating_sub(1);
                let record = Leader::new("coordinator", LeaseId::NONE);
                self.put(state, self.store.keys.leader(), encode(&record))
            }
            Step::Write(write) => {
                if matches!(write, Write::Overdue { .. }) {
                    state.budget.phase_timeouts -= 1;
                }
                let (txn, decided) = self.write_of(state, write)?;
                self.post_decided(state, txn, decided, post)
            }
            Step::Commit { index } | Step::CommitForgotten { index } => {
                let slow = state.slow.remove(usize::from(index));
                self.arrive(state, slow);
                Some(())
            }
            Step::GiveUpWrite { index } => {
                state.slow[usize::from(index)].writer = None;
                Some(())
            }
            Step::Take { request } => {
                self.take(state, request);
                Some(())
            }
            Step::Arrive { exchange } => {
                let index = usize::from(exchange);
                match self.answer_of(state, &state.exchanges[index]) {
                    EpochCheck::Accept => self.accept(state, index),
                    EpochCheck::Wait => return None,
                    EpochCheck::Stale | EpochCheck::NotOwner => self.refuse(state, index),
                }
                Some(())
            }
            Step::CatchUpTimeout { exchange } => {
                self.refuse(state, usize::from(exchange));
                Some(())
            }
            Step::Finish { exchange } => {
                self.finish(state, usize::from(exchange));
                Some(())
            }
            Step::ConnectFails { exchange } => {
                self.come_back(state, usize::from(exchange));
                Some(())
            }
            Step::EndBackOff { router, partition } => {
                state.gate(router, partition).backing_off = false;
                self.reconcile_router(state, router);
                Some(())
            }
            Step::AbortWork { pod } => {
                self.abort_work(state, pod);
                self.reconcile_pod(state, pod);
                Some(())
            }
            Step::Regain(who) => {
                self.set_clock(state, who, Clock::Held);
                Some(())
            }
            Step::RunOut(who) => {
                let clocks = match who {
                    Process::Router(_) => &mut state.budget.router_clocks,
                    Process::Pod(_) => &mut state.budget.pod_clocks,
                };
                *clocks -= 1;
                self.set_clock(state, who, Clock::RunOut);
                Some(())
            }
            Step::EndLease(who) => {
                let (is_up, incarnation, clock, _) = Self::facts(state, who);
                let is_held = is_up && self.stands(state.now(), who) == incarnation;
                if is_held && clock == Clock::Held {
                    match who {
                        Process::Router(_) => state.budget.router_clocks -= 1,
                        Process::Pod(_) => state.budget.pod_clocks -= 1,
                    }
                }
                self.delete(state, self.key_of(who))
            }
            Step::Start(who) => {
                match who {
                    Process::Router(router) => {
                        state.budget.router_starts -= 1;
                        let now = state.now();
                        let it = state.router(router);
                        it.is_up = true;
                        it.view = self.without(Rule::RegisterFirst).then_some(now);
                    }
                    Process::Pod(pod) => {
                        state.budget.pod_starts -= 1;
                        state.pod(pod).is_up = true;
                    }
                }
                Some(())
            }
            Step::Crash(who) => {
                match who {
                    Process::Router(router) => {
                        state.budget.router_crashes -= 1;
                        self.crash_router(state, router);
                    }
                    Process::Pod(pod) => {
                        state.budget.pod_crashes -= 1;
                        self.crash_pod(state, pod);
                    }
                }
                Some(())
            }
            Step::PutBack { pod } => {
                self.reach(Reached::PutBackKey);
                let value = encode(&self.pod_record(pod, self.status(pod)));
                self.overwrite(state, self.key_of(Process::Pod(pod)), value, true)
            }
            Step::Forget { pod } => self.delete(state, self.key_of(Process::Pod(pod))),
            Step::Detach { pod } => {
                state.budget.detachments -= 1;
                self.overwrite(state, self.key_of(Process::Pod(pod)), b"garbage".to_vec(), false)
            }
            Step::BoundPasses => {
                self.reach(Reached::BoundPassed);
                state.bound_passed = true;
                Some(())
            }
            Step::EndLeadersLease => {
                state.budget.leader_losses -= 1;
                // The next one has seen nothing go.
                state.bound_passed = false;
                self.delete(state, self.store.keys.leader())
            }
            Step::MakeCheckpoint { pod, partition } => self.make_checkpoint(state, pod, partition, false),
            Step::IntervalPasses { pod, partition } => {
                state.budget.intervals -= 1;
                self.make_checkpoint(state, pod, partition, true)
            }
            Step::RecordCheckpoint { pod, partition } => self.record_checkpoint(state, pod, partition, post),
            Step::StopWaiting { pod, partition } => self.stop_waiting(state, pod, partition),
            Step::Hang { pod } => {
                state.budget.hangs -= 1;
                state.pod(pod).hangs = true;
                Some(())
            }
            Step::Participate { participant } => {
                let value = Participant::new(participant_name(participant), None);
                self.put(state, self.store.keys.participant(&value.name), encode(&value))
            }
            Step::ActInRound { participant } => self.take_round_step(state, participant, post),
            Step::StartParticipant { participant } => {
                state.budget.participant_starts -= 1;
                state.coordinators.up |= 1 << participant;
                Some(())
            }
            Step::CrashParticipant { participant } => {
                state.budget.participant_crashes -= 1;
                state.coordinators.up &= !(1 << participant);
                state.coordinators.stuck &= !(1 << participant);
                // Its lease may have ended before.
                let _ = self.delete(state, self.store.keys.participant(&participant_name(participant)));
                Some(())
            }
            Step::Stick { participant } => {
                state.budget.stuck_participants -= 1;
                state.coordinators.stuck |= 1 << participant;
                Some(())
            }
            Step::EndWindow => {
                state.budget.windows = state.budget.windows.saturating_sub(1);
                self.delete(state, self.store.keys.gathering())
            }
            Step::EndHeartbeat => {
                state.budget.heartbeats = state.budget.heartbeats.saturating_sub(1);
                self.delete(state, self.store.keys.round_heartbeat())
            }
            Step::ForeignLeader => {
                state.budget.foreign_leaders -= 1;
                let record = Leader::new("nobody", LeaseId::NONE);
                self.overwrite(state, self.store.keys.leader(), encode(&record), false)
            }
            Step::Break { exchange } => {
                state.budget.breaks -= 1;
                self.break_off(state, usize::from(exchange));
                Some(())
            }
            Step::HangUp { request } => {
                state.budget.hang_ups -= 1;
                self.hang_up(state, request);
                Some(())
            }
            Step::Expire { request } => {
                state.budget.expiries -= 1;
                self.give_up(state, request);
                Some(())
            }
            Step::DrainTimeout { router, partition } => {
                state.budget.drain_timeouts -= 1;
                match self.drain_timed_out(state, router, partition)? {
                    DrainEnd::Sever => self.sever(state, router, partition),
                    DrainEnd::Write(txn) => {
                        self.reach(Reached::GaveUp);
                        return self.commit(state, txn);
                    }
                }
                Some(())
            }
            Step::DeleteHandoff { partition } => {
                state.budget.deletions -= 1;
                self.delete(state, self.store.keys.handoff(PartitionId::new(partition.into())))
            }
        }
    }

    pub(crate) fn refuse(&self, state: &mut State, index: usize) {
        self.reach(Reached::Refused);
        self.come_back(state, index);
    }

    /// No pod has acted on it: it waits for its turn again, unless its client or its router is gone.
    pub(crate) fn come_back(&self, state: &mut State, index: usize) {
        let exchange = state.exchanges[index];
        match state.requests[usize::from(exchange.request)] {
            Request::Going if exchange.is_counted => self.put_back(state, index),
            _ => self.end(state, index),
        }
    }

    pub(crate) fn break_off(&self, state: &mut State, index: usize) {
        let orphan = Exchange { is_counted: false, is_tried: false, ..state.exchanges[index] };
        if self.without(Rule::NeverSendTwice) && state.requests[usize::from(orphan.request)] == Request::Going {
            self.put_back(state, index);
            state.exchanges.push(orphan);
        } else {
            self.cut(state, index);
        }
    }

    pub(crate) fn hang_up(&self, state: &mut State, request: u8) {
        if matches!(state.requests[usize::from(request)], Request::Held) {
            return self.give_up(state, request);
        }
        state.requests[usize::from(request)] = Request::Failed;
        let index = state.exchanges.iter().position(|exchange| exchange.request == request && exchange.is_counted);
        if let Some(index) = index.filter(|_| self.without(Rule::DrainUntilDone)) {
            self.forget(state, index);
        }
    }
}
