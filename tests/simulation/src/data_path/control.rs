//! The control side: it moves partitions between pods at random times, as `segue_coordination::router` would.
//!
//! # Invariants
//!
//! * A partition leads to another pod only once the table says that its gate is closed.

use std::rc::Rc;
use std::time::Duration;

use segue_coordination::router::DataPlane;
use segue_protocol::handoff::router::{GateStage, HoldCause, Target};
use segue_protocol::ids::{Incarnation, PartitionId};
use segue_protocol::records::PodRecord;
use tokio::time::{Instant, sleep};

use super::world::{Owner, PARTITIONS, Request, World};

/// How often it looks at the table.
const INTERVAL: Duration = Duration::from_millis(1);
/// How long the requests that are left at the end may take.
const SETTLING: Duration = Duration::from_secs(120);

/// A partition that is moved.
struct Move {
    since: Duration,
    /// How long nobody owns the partition at least.
    holds: Duration,
    /// When what is in flight is severed.
    severs_at: Option<Duration>,
}

pub(super) struct Control {
    world: Rc<World>,
    addresses: Vec<String>,
    moves: Vec<Option<Move>>,
}

impl Control {
    pub(super) fn new(world: Rc<World>, addresses: Vec<String>) -> Self {
        Control { world, addresses, moves: (0..PARTITIONS).map(|_| None).collect() }
    }

    /// Leads each partition to a pod, and moves partitions for ever.
    pub(super) async fn run(&mut self) {
        sleep(Duration::from_millis(self.world.scenario.blind)).await;
        self.world.table.set_partitions(PARTITIONS);
        for partition in 0..PARTITIONS {
            self.own(partition, 1);
            self.note_held(partition);
            self.switch(partition);
        }
        loop {
            for partition in 0..PARTITIONS {
                if self.moves[partition as usize].is_none() && self.world.rng.among(0..=99) < 2 {
                    self.begin(partition);
                }
                self.step(partition);
            }
            sleep(INTERVAL).await;
        }
    }

    /// Ends all moves, and returns once nothing is in flight.
    pub(super) async fn settle(&mut self) {
        if self.world.table.partitions() == 0 {
            // All clients have gone before.
            return;
        }
        let deadline = self.world.now() + SETTLING;
        while !(0..PARTITIONS).all(|partition| self.is_at_rest(partition)) {
            if self.world.now() > deadline {
                let told = (0..PARTITIONS).map(PartitionId::new).map(|partition| {
                    let table = &self.world.table;
                    (DataPlane::stage(&**table, partition), table.in_flight(partition), table.stashed(partition))
                });
                let told: Vec<_> = told.collect();
                return self.world.violated(format!("does not come to rest: {told:?}"));
            }
            (0..PARTITIONS).for_each(|partition| self.step(partition));
            sleep(INTERVAL).await;
        }
    }

    fn is_at_rest(&self, partition: u32) -> bool {
        let (table, id) = (&self.world.table, PartitionId::new(partition));
        let is_open = matches!(DataPlane::stage(&**table, id).0, GateStage::Open(_));
        is_open && table.in_flight(id) == 0 && table.stashed(id) == (0, 0)
    }

    fn begin(&mut self, partition: u32) {
        let world = &self.world;
        let severs = world.rng.percent(world.scenario.severs);
        let now = world.now();
        world.note(|| format!("partition {partition} is held"));
        world.cutovers.set(world.cutovers.get() + 1);
        self.moves[partition as usize] = Some(Move {
            since: now,
            holds: world.rng.millis(0..=30),
            severs_at: severs.then(|| now + world.rng.millis(1..=20)),
        });
        DataPlane::stop(&*world.table, PartitionId::new(partition), HoldCause::Handoff);
    }

    /// Does what is due for a partition.
    fn step(&mut self, partition: u32) {
        let (world, id) = (&self.world, PartitionId::new(partition));
        let (stage, retry_at) = DataPlane::stage(&*world.table, id);
        let owner = world.owners.borrow()[&partition];
        let Some(moving) = &mut self.moves[partition as usize] else {
            let may_retry = retry_at.is_none_or(|at| at <= Instant::now());
            if may_retry && matches!(stage, GateStage::Closed | GateStage::Draining(_)) {
                self.switch(partition);
            }
            return;
        };
        if stage != GateStage::Closed {
            if moving.severs_at.is_some_and(|at| at <= world.now()) {
                moving.severs_at = None;
                world.note(|| format!("partition {partition} is severed"));
                world.severed.borrow_mut().push((partition, owner.epoch));
                DataPlane::sever(&*world.table, id);
            }
        } else if world.now() >= moving.since + moving.holds {
            self.moves[partition as usize] = None;
            self.own(partition, owner.epoch + 1);
            self.note_held(partition);
            self.switch(partition);
        }
    }

    /// Gives a partition to a pod.
    fn own(&self, partition: u32, epoch: u64) {
        let pod = self.world.rng.among(0..=self.addresses.len() as u64 - 1) as usize;
        self.world.own(partition, Owner { pod, epoch });
    }

    fn switch(&self, partition: u32) {
        let Owner { pod, epoch } = self.world.owners.borrow()[&partition];
        let record = PodRecord::new(format!("pod-{pod}"), self.addresses[pod].clone());
        let target = Target {
            pod: record.pod_name.clone(),
            incarnation: Incarnation::registered_at(1.into()),
            epoch: epoch.into(),
        };
        DataPlane::switch(&*self.world.table, PartitionId::new(partition), &target, &record, false);
    }

    /// Notes the pairs of requests that wait now and have to be served in their order.
    fn note_held(&self, partition: u32) {
        let (world, now) = (&self.world, self.world.now());
        let requests = world.requests.borrow();
        let arrived = |request: &Request| {
            let before =
                request.behind.map_or(Some(Duration::ZERO), |id| Some(requests[id as usize].ended.as_ref()?.0));
            request.sent_at.max(before).filter(|at| *at < now && before.is_some() && request.sent_at.is_some())
        };
        let waits = |request: &&(u64, &Request)| {
            let request = request.1;
            request.partition == partition && request.acts.is_empty() && request.ended.is_none()
        };
        let all: Vec<(u64, &Request)> = requests.iter().enumerate().map(|(id, request)| (id as u64, request)).collect();
        let waiting: Vec<_> =
            all.iter().filter(waits).filter_map(|(id, request)| Some((arrived(request)?, *id, request.key))).collect();
        for (at, id, key) in &waiting {
            for (later_at, later, _) in waiting.iter().filter(|(_, _, other)| other == key) {
                if at < later_at {
                    world.held.borrow_mut().push((*id, *later));
                }
            }
        }
    }
}
