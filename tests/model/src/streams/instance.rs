//! An instance of the service: it registers pods, tells them what to do, and commits what they report.

use std::collections::VecDeque;

use segue_protocol::handoff::checkpoint::Waits;
use segue_protocol::handoff::parties::Parties;
use segue_protocol::handoff::pod_reconcile::Callback;
use segue_protocol::handoff::remote_pod::{RemotePod, ReportVerdict, TaskReport, judge};
use segue_protocol::ids::{HandoffId, Incarnation};
use segue_protocol::records::{Capabilities, PodRecord, encode};
use segue_protocol::txn::{Compare, Op, Txn};

use super::state::{Client, State, Stream};
use super::{NO_TIME, PARTITION, PODS, Rule, Streams};
use crate::rounds::LEASE;

impl Streams {
    /// An instance sees the present, and tells its streams.
    pub(super) fn catch_up(&self, state: &mut State, instance: usize) {
        state.views[instance] = state.now;
        let view = self.store.view(state.now);
        for stream in state.streams.iter_mut().flatten().filter(|stream| stream.instance == instance) {
            let concerned = stream.server.concerned(&Parties::of(view));
            let changes = stream.server.update(view, concerned, NO_TIME, &mut Waits::default());
            if !changes.is_empty() {
                stream.events.push_back((false, changes));
            }
        }
    }

    /// A pod opens a stream: it goes on with its registration by its token, or registers.
    pub(super) fn connect(&self, state: &mut State, pod: usize, instance: usize) {
        let life = match state.clients[pod].token {
            Some(life) if Self::stands(self.store.view(state.now), pod, life) => life,
            Some(_) => {
                // It has fenced itself: nothing of that life goes on.
                state.clients[pod] = Client::default();
                return;
            }
            None => match self.register(state, pod) {
                Some(life) => life,
                None => return,
            },
        };
        if !self.is_without(Rule::InstanceCatchesUp) || !Self::stands(self.store.view(state.views[instance]), pod, life)
        {
            self.catch_up(state, instance);
        }
        let view = self.store.view(state.views[instance]);
        let holdings = state.clients[pod].held.map(|(epoch, _)| (PARTITION, epoch));
        let mut server = RemotePod::new(view, PODS[pod], life, holdings);
        let concerned = server.concerned(&Parties::of(view));
        let changes = server.update(view, concerned, NO_TIME, &mut Waits::default());
        let is_full = !self.is_without(Rule::ReplayInFull);
        let events = VecDeque::from([(is_full, changes)]);
        state.streams[pod] = Some(Stream { instance, life, server, events, has_begun: false });
    }

    fn register(&self, state: &mut State, pod: usize) -> Option<Incarnation> {
        let record = PodRecord { capabilities: Capabilities::ALL, ..PodRecord::new(PODS[pod], "127.0.0.1:1") };
        let key = self.store.keys.pod(PODS[pod]);
        let when = vec![Compare::created_at(key.clone(), Incarnation::NONE.revision())];
        let then = vec![Op::Put { key, value: encode(&record), lease: Some(LEASE) }];
        let is_registered = self.commit(state, Txn { when, then, otherwise: None });
        is_registered.then(|| self.store.view(state.now).incarnation_of(PODS[pod]))
    }

    /// What is under way is lost. A registration whose token was not sent is ended by its instance, sooner or later.
    pub(super) fn break_stream(&self, state: &mut State, pod: usize) {
        let Some(stream) = state.streams[pod].take() else { return };
        if !stream.has_begun && state.clients[pod].token != Some(stream.life) {
            state.holds.push((pod, stream.life));
        }
    }

    pub(super) fn acknowledge(&self, state: &mut State, pod: usize, instance: usize, report: usize) {
        let Some(life) = state.clients[pod].token else { return };
        let told = state.clients[pod].reports[report].clone();
        if self.judged(state, pod, life, instance, &told) {
            state.clients[pod].reports.remove(report);
            state.clients[pod].done.push((life, told));
        }
    }

    /// Returns whether the report has got its outcome.
    pub(super) fn judged(
        &self,
        state: &mut State,
        pod: usize,
        life: Incarnation,
        instance: usize,
        report: &TaskReport,
    ) -> bool {
        let view = self.store.view(state.views[instance]);
        let present = view.handoffs.get(&PARTITION).map_or(HandoffId::NONE, |record| record.id());
        let names = if self.is_without(Rule::AckNamesHandoff) { present } else { report.handoff };
        match judge(view, PODS[pod], life, &TaskReport { handoff: names, ..report.clone() }, 0) {
            ReportVerdict::Commit(txn) => {
                let is_accepted = self.commit(state, *txn);
                let now = self.store.view(state.now);
                let ready = now.handoffs.get(&PARTITION).map(|record| record.value.epoch);
                // A first placement ends with this report.
                let epoch = ready.or_else(|| Some(now.assignments.get(&PARTITION)?.value.epoch));
                let held = state.clients[pod].held.map(|(epoch, _)| epoch);
                if is_accepted && report.callback == Callback::Warm && held != epoch {
                    // It is said to be ready, and has not the state.
                    state.violated = Some("no_lost_request");
                }
                is_accepted
            }
            ReportVerdict::Known | ReportVerdict::Stale => true,
            ReportVerdict::TooEarly => false,
        }
    }
}
