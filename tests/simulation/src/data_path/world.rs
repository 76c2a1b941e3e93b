//! State that the parts of a run share: the scenario, the owners of partitions, and the history of each request.
//!
//! # Invariants
//!
//! * What is seen is judged at once where it can be, and otherwise at the end by [`judge`](super::judge).

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use segue_proxy::routing::table::Table;
use tokio::time::Instant;

use crate::rng::Rng;

/// How much of a body a router keeps for another attempt.
pub(super) const KEPT_BYTES: usize = 64 << 10;

/// The number of partitions.
pub(super) const PARTITIONS: u32 = 3;

/// Whether pods speak HTTP/2, and which faults there are, each so often out of a hundred exchanges.
#[derive(Debug)]
pub(super) struct Scenario {
    pub(super) pods_speak_http2: bool,
    pub(super) pods: usize,
    pub(super) clients: usize,
    pub(super) requests_per_client: u64,
    /// A pod refuses a request that is its own, and takes it when it comes again.
    pub(super) refuses: u32,
    /// A pod ends the connection: without having acted, or with a broken response or none after it has.
    pub(super) breaks: u32,
    /// A pod closes a connection that is idle.
    pub(super) closes_idle: u32,
    /// A pod answers late, or not at all.
    pub(super) stalls: u32,
    /// A pod listens no longer for a while, in a thousand milliseconds.
    pub(super) outages: u32,
    /// How long the router does not know the number of partitions, in milliseconds.
    pub(super) blind: u64,
    /// When the router stops.
    pub(super) stops_after: Option<Duration>,
    /// A client leaves.
    pub(super) leaves: u32,
    /// A handoff severs what is in flight.
    pub(super) severs: u32,
}

impl Scenario {
    pub(super) fn new(rng: &Rng) -> Self {
        let seldom = |most| if rng.percent(50) { 0 } else { rng.among(1..=most) as u32 };
        Scenario {
            pods_speak_http2: rng.percent(50),
            pods: rng.among(2..=3) as usize,
            clients: rng.among(2..=6) as usize,
            requests_per_client: rng.among(5..=25),
            refuses: seldom(15),
            breaks: seldom(10),
            closes_idle: seldom(30),
            stalls: seldom(5),
            outages: seldom(100),
            blind: if rng.percent(50) { 0 } else { rng.among(1..=60) },
            stops_after: rng.percent(25).then(|| rng.millis(1..=600)),
            leaves: seldom(15),
            severs: seldom(30),
        }
    }

    /// Whether a request may fail that no pod has seen: its connection may have ended under it.
    pub(super) fn loses_unseen(&self) -> bool {
        self.breaks > 0 || self.closes_idle > 0 || self.outages > 0
    }
}

/// The owner of a partition, and its epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Owner {
    pub(super) pod: usize,
    pub(super) epoch: u64,
}

/// How a request ended for its client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It got a whole response with this status, and the router's reason, if it is the router's.
    Answered(u16, String),
    /// It left.
    Left,
    /// The connection or the stream ended before the whole response was there.
    CutOff,
    /// The connection was closed behind the response to an earlier request.
    Unserved,
}

/// The history of a request.
#[derive(Debug, Clone)]
pub(super) struct Request {
    pub(super) partition: u32,
    pub(super) key: u64,
    pub(super) client: usize,
    pub(super) body: usize,
    /// Whether it is a `GET`, which may be repeated.
    pub(super) is_safe: bool,
    /// The request before it on its connection, if the router reads it only behind that one's response.
    pub(super) behind: Option<u64>,
    pub(super) sent_at: Option<Duration>,
    /// The acts of pods, by their place among all acts.
    pub(super) acts: Vec<u64>,
    /// The epochs with which it has reached pods.
    pub(super) epochs: Vec<u64>,
    /// Whether a pod of its own works on it.
    pub(super) is_at_work: bool,
    /// How often a pod of its own has refused it.
    pub(super) refusals: u32,
    /// A deed of a pod that may cost it its response.
    pub(super) fault: Option<&'static str>,
    pub(super) ended: Option<(Duration, Outcome)>,
}

/// Two requests of a key that waited when a flush began, the earlier one first.
pub(super) type HeldPair = (u64, u64);

pub(super) struct World {
    pub(super) rng: Rng,
    pub(super) scenario: Scenario,
    pub(super) table: Arc<Table>,
    pub(super) owners: RefCell<BTreeMap<u32, Owner>>,
    /// Epochs whose exchanges were severed.
    pub(super) severed: RefCell<Vec<(u32, u64)>>,
    pub(super) requests: RefCell<Vec<Request>>,
    /// When the router began to stop.
    pub(super) stopped_at: Cell<Option<Duration>>,
    pub(super) held: RefCell<Vec<HeldPair>>,
    pub(super) cutovers: Cell<u64>,
    pub(super) faults: Cell<u64>,
    pub(super) violations: RefCell<Vec<String>>,
    acts: Cell<u64>,
    began: Instant,
    lines: Option<RefCell<Vec<String>>>,
}

impl World {
    pub(super) fn new(rng: Rng, scenario: Scenario, table: Arc<Table>, keeps_lines: bool) -> Self {
        World {
            rng,
            scenario,
            table,
            owners: RefCell::default(),
            severed: RefCell::default(),
            requests: RefCell::default(),
            stopped_at: Cell::new(None),
            held: RefCell::default(),
            cutovers: Cell::new(0),
            faults: Cell::new(0),
            violations: RefCell::default(),
            acts: Cell::new(0),
            began: Instant::now(),
            lines: keeps_lines.then(RefCell::default),
        }
    }

    pub(super) fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// Writes a line of the history.
    pub(super) fn note(&self, line: impl FnOnce() -> String) {
        if let Some(lines) = &self.lines {
            lines.borrow_mut().push(format!("{:>8.3} {}", self.now().as_secs_f64(), line()));
        }
    }

    pub(super) fn violated(&self, what: String) {
        self.note(|| format!("VIOLATION {what}"));
        self.violations.borrow_mut().push(what);
    }

    /// Notes that the router begins to stop.
    pub(super) fn stops(&self) {
        self.note(|| "the router stops".to_owned());
        self.stopped_at.set(Some(self.now()));
    }

    /// Begins a request, and returns its number.
    pub(super) fn begin(&self, client: usize, behind: Option<u64>) -> u64 {
        let mut requests = self.requests.borrow_mut();
        let key = self.rng.among(0..=4);
        let most = if self.rng.percent(15) { 4 * KEPT_BYTES } else { KEPT_BYTES / 4 };
        let body = if self.rng.percent(50) { 0 } else { self.rng.among(1..=most as u64) as usize };
        requests.push(Request {
            partition: (key % u64::from(PARTITIONS)) as u32,
            key,
            client,
            body,
            is_safe: body == 0 && self.rng.percent(50),
            behind,
            sent_at: None,
            acts: Vec::new(),
            epochs: Vec::new(),
            is_at_work: false,
            refusals: 0,
            fault: None,
            ended: None,
        });
        requests.len() as u64 - 1
    }

    pub(super) fn request(&self, id: u64) -> Request {
        self.requests.borrow()[id as usize].clone()
    }

    pub(super) fn change(&self, id: u64, change: impl FnOnce(&mut Request)) {
        change(&mut self.requests.borrow_mut()[id as usize]);
    }

    /// Notes that the head of a request has been sent.
    pub(super) fn sent(&self, id: u64) {
        let now = self.now();
        self.change(id, |request| request.sent_at = Some(now));
        self.note(|| format!("client {} sends {id}: {:?}", self.request(id).client, self.request(id)));
    }

    /// Notes how a request has ended, unless it has ended.
    pub(super) fn ends(&self, id: u64, outcome: Outcome) {
        self.note(|| format!("client {}: {id} ends: {outcome:?}", self.request(id).client));
        let now = self.now();
        self.change(id, |request| {
            request.ended.get_or_insert((now, outcome));
        });
    }

    /// Notes something that a pod does to a request, which may cost it its response.
    pub(super) fn faulted(&self, id: u64, what: &'static str) {
        self.note(|| format!("pod: {what}, {id}"));
        self.faults.set(self.faults.get() + 1);
        self.change(id, |request| request.fault = Some(what));
    }

    /// Returns whether a pod owns the partition of a request that has arrived with this epoch.
    pub(super) fn arrives(&self, id: u64, pod: usize, epoch: u64) -> bool {
        let partition = self.request(id).partition;
        let owner = self.owners.borrow().get(&partition).copied();
        let is_owner = owner == Some(Owner { pod, epoch });
        self.change(id, |request| {
            request.epochs.push(epoch);
            request.is_at_work = is_owner;
        });
        self.note(|| format!("pod {pod} gets {id} of partition {partition} with epoch {epoch}"));
        // A severed request may still be on its way.
        if !is_owner && !self.severed.borrow().contains(&(partition, epoch)) {
            self.violated(format!("{id} reached pod {pod} with epoch {epoch}, while the owner was {owner:?}"));
        }
        is_owner
    }

    /// Gives a partition to this owner. Nothing of the owner before it may be at work.
    pub(super) fn own(&self, partition: u32, owner: Owner) {
        self.note(|| format!("partition {partition} is owned by pod {} with epoch {}", owner.pod, owner.epoch));
        let requests = self.requests.borrow();
        let unfinished = |request: &&Request| {
            // The response to a safe request is not waited for once its client has left.
            let is_abandoned = request.is_safe && request.ended.is_some();
            let may_be_left = request.fault.is_some() || self.was_severed(request) || is_abandoned;
            request.partition == partition && request.is_at_work && !may_be_left
        };
        if let Some(request) = requests.iter().find(unfinished) {
            self.violated(format!("partition {partition} changes hands while a pod is at work: {request:?}"));
        }
        self.owners.borrow_mut().insert(partition, owner);
    }

    /// Notes that a pod is done with a request.
    pub(super) fn leaves(&self, id: u64) {
        self.change(id, |request| request.is_at_work = false);
    }

    /// Notes that a pod has acted on a request.
    pub(super) fn acts(&self, id: u64, pod: usize, body: &[u8]) {
        let request = self.request(id);
        self.note(|| format!("pod {pod} acts on {id}"));
        if body != body_of(id, request.body) {
            self.violated(format!(
                "{id} reached pod {pod} with {} bytes that are not its {}",
                body.len(),
                request.body
            ));
        }
        let act = self.acts.replace(self.acts.get() + 1);
        self.change(id, |request| request.acts.push(act));
    }

    /// Notes a whole response, which names the request that it is to.
    pub(super) fn response(&self, id: u64, status: &str, named: Option<&str>, reason: Option<&str>, body: &[u8]) {
        let is_own = named == Some(id.to_string().as_str()) && body == body_of(id + 1, self.request(id).body);
        if status == "200" && !is_own {
            self.violated(format!("{id} got a response to {named:?} with {} bytes", body.len()));
        }
        let status = status.parse().unwrap_or_default();
        self.ends(id, Outcome::Answered(status, reason.unwrap_or_default().to_owned()));
    }

    /// Takes the history.
    pub(super) fn lines(&self) -> Vec<String> {
        self.lines.as_ref().map(RefCell::take).unwrap_or_default()
    }

    /// Returns whether a request may have been severed.
    pub(super) fn was_severed(&self, request: &Request) -> bool {
        let severed = self.severed.borrow();
        let mut of_partition = severed.iter().filter(|(partition, _)| *partition == request.partition);
        // A request that no pod has seen may have been on its way.
        of_partition.any(|(_, epoch)| request.epochs.is_empty() || request.epochs.contains(epoch))
    }
}

/// Returns the body that a request of this number and length has.
pub(super) fn body_of(id: u64, length: usize) -> Vec<u8> {
    (0..length).map(|index| (id as usize + index) as u8).collect()
}
