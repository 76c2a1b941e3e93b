//! The first state of a search: every running process has registered, seen the store and opened its routes.

use std::collections::BTreeMap;
use std::sync::Arc;

use segue_protocol::ids::{Epoch, Incarnation, LeaseId, PartitionId};
use segue_protocol::keys::{KeyName, RoundsKey};
use segue_protocol::planning::stored;
use segue_protocol::records::{
    Assignment, KeyspaceConfig, Leader, Participant, PodStatus, Round, RouterRecord, encode,
};
use segue_protocol::txn::{Op, Txn};

use crate::action::Process;
use crate::cluster::Cluster;
use crate::rounds::{LEASE, participant_name};
use crate::rules::Rule;
use crate::scenario::Scenario;
use crate::state::{Coordinators, Ledger, Pod, Request, Router, State};
use crate::store::StoreRef;

impl Cluster {
    pub(crate) fn initial_state(&self) -> State {
        let scenario = &self.scenario;
        let mut at = self.store.empty();
        let mut put = |key: String, value: Vec<u8>| at = self.write_first(at, key, value);
        let keys = &self.store.keys;
        let planning = Some(stored(&self.policy()));
        let config = KeyspaceConfig { planning, ..KeyspaceConfig::new(u32::from(scenario.partitions)) };
        put(keys.config(), encode(&config));
        if !self.has_rounds() {
            put(keys.leader(), encode(&Leader::new("coordinator", LeaseId::NONE)));
        }
        for pod in 0..scenario.pods_up as u8 {
            put(keys.pod(&self.pod_names[usize::from(pod)]), encode(&self.pod_record(pod, self.status(pod))));
        }
        for router in 0..scenario.routers_up as u8 {
            put(keys.router(&self.router_names[usize::from(router)]), self.router_record(router));
        }
        if self.has_rounds() {
            at = self.first_round(at);
        }
        if scenario.is_placed {
            let first = self.stands(at, Process::Pod(0));
            for partition in PartitionId::all(scenario.partitions.into()) {
                let assignment = Assignment {
                    work_ends_within_ms: self.bound_of(0),
                    ..Assignment::new(partition, self.pod_names[0].clone(), first, Epoch::new(1))
                };
                at = self.write_first(at, keys.assignment(partition), encode(&assignment));
            }
        }
        let mut state = State {
            history: vec![at],
            routers: (0..scenario.routers).map(|_| Arc::new(Router::down(scenario.partitions))).collect(),
            pods: (0..scenario.pods.len()).map(|_| Arc::new(Pod::down(scenario.partitions))).collect(),
            requests: vec![Request::Unsent; scenario.requests.len()],
            beside: vec![0; scenario.requests.len()],
            exchanges: Vec::new(),
            slow: Vec::new(),
            ledgers: vec![Ledger::default(); usize::from(scenario.partitions)],
            coordinators: Coordinators { up: self.first_participants().fold(0, |set, it| set | 1 << it), stuck: 0 },
            budget: scenario.budget,
            violated: 0,
            bound_passed: false,
        };
        for pod in 0..scenario.pods_up as u8 {
            let created = self.stands(at, Process::Pod(pod));
            let it = state.pod(pod);
            (it.is_up, it.incarnation, it.view) = (true, created, Some(at));
            self.reconcile_pod(&mut state, pod);
        }
        for router in 0..scenario.routers_up as u8 {
            let created = self.stands(at, Process::Router(router));
            let it = state.router(router);
            (it.is_up, it.incarnation, it.view) = (true, created, Some(at));
            it.assignments = self.without(Rule::OneRevision).then_some(at);
            self.reconcile_router(&mut state, router);
        }
        if scenario.is_planned {
            let planned: Vec<_> = self.authors().flat_map(|by| self.planned(&state, by, false)).collect();
            for write in planned {
                let _ = self.commit(&mut state, write.txn);
            }
        }
        state
    }

    /// The last by their names: one that joins comes before them, and takes over.
    fn first_participants(&self) -> impl Iterator<Item = u8> + use<> {
        let Scenario { participants, participants_up, .. } = self.scenario;
        participants - participants_up..participants
    }

    /// A round of all participants that run at the beginning.
    fn first_round(&self, mut at: StoreRef) -> StoreRef {
        let keys = &self.store.keys;
        let mut participants = BTreeMap::new();
        for name in self.first_participants().map(participant_name) {
            let record = Participant::new(&name, Some(1));
            at = self.write_first(at, keys.participant(&name), encode(&record));
            participants.insert(name, Incarnation::registered_at(self.store.view(at).revision));
        }
        let round = Round { number: 1, participants, closed_by: String::new() };
        at = self.write_first(at, keys.round(), encode(&round));
        self.write_first(at, keys.round_heartbeat(), encode(&round.number))
    }

    pub(crate) fn write_first(&self, at: StoreRef, key: String, value: Vec<u8>) -> StoreRef {
        let lease = self.lease_of(&key);
        let txn = Txn { when: Vec::new(), then: vec![Op::Put { key, value, lease }], otherwise: None };
        self.store.commit(at, self.store.txn(txn)).expect("a put without guards")
    }

    /// Registrations stand with a lease. Which one makes no difference here.
    pub(crate) fn lease_of(&self, key: &str) -> Option<LeaseId> {
        let is_leased = match self.store.keys.parse(key)? {
            KeyName::Pod(_) | KeyName::Router(_) | KeyName::Leader => true,
            KeyName::Rounds(key) => key != RoundsKey::Current,
            _ => false,
        };
        is_leased.then_some(LEASE)
    }

    pub(crate) fn status(&self, pod: u8) -> PodStatus {
        if self.scenario.drains && pod == 0 { PodStatus::Draining } else { PodStatus::Ready }
    }

    pub(crate) fn router_record(&self, router: u8) -> Vec<u8> {
        let router_name = self.router_names[usize::from(router)].clone();
        encode(&RouterRecord::new(router_name))
    }

    pub(crate) fn key_of(&self, who: Process) -> String {
        match who {
            Process::Router(router) => self.store.keys.router(&self.router_names[usize::from(router)]),
            Process::Pod(pod) => self.store.keys.pod(&self.pod_names[usize::from(pod)]),
        }
    }

    pub(crate) fn processes(&self) -> impl Iterator<Item = Process> {
        let routers = (0..self.scenario.routers as u8).map(Process::Router);
        routers.chain((0..self.scenario.pods.len() as u8).map(Process::Pod))
    }
}
