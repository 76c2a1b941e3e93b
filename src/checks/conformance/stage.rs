//! The stage on which handoffs are played: this program is the only coordinator, the only router and the other pod of
//! a keyspace, and writes what each of them writes.
//!
//! # Invariants
//!
//! * A keyspace in which a coordinator or a router takes part is left alone.
//! * What the program has written is deleted at its end, and expires if it is killed.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use segue_coordination::session::unix_millis;
use segue_coordination::store::Store;
use segue_protocol::handoff::advance::{Ack, acknowledge, advance, advance_past_bound, pending_bound};
use segue_protocol::handoff::pod::warmed;
use segue_protocol::ids::{Epoch, HandoffId, Incarnation, LeaseId, PartitionId, Revision};
use segue_protocol::keys::Keyspace;
use segue_protocol::records::{
    Capabilities, Handoff, KeyspaceConfig, Leader, Phase, PodAck, PodAckKind, PodRecord, RouterCutoverAck,
    RouterDrainedAck, RouterRecord, encode,
};
use segue_protocol::txn::{Compare, Keys, Op, Txn};
use segue_protocol::view::View;
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::view;

/// The name of this program's router, and of its pod.
pub(super) const OWN: &str = "segue-conformance";

/// The TTL of this program's lease: longer than any run.
const TTL: Duration = Duration::from_secs(3600);

const PARTITIONS: u32 = 2;
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A life of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Party {
    pub(super) name: String,
    pub(super) incarnation: Incarnation,
}

/// A handoff that is being played.
#[derive(Debug, Clone, Copy)]
pub(super) struct Play {
    pub(super) partition: PartitionId,
    pub(super) handoff: HandoffId,
    pub(super) epoch: Epoch,
}

/// The keyspace.
#[derive(Debug)]
pub(super) struct TestKeyspace {
    pub(super) store: Arc<dyn Store>,
    pub(super) keys: Keyspace,
    pub(super) patience: Duration,
    lease: LeaseId,
}

impl TestKeyspace {
    /// Takes the keyspace.
    pub(super) async fn take(store: Arc<dyn Store>, keys: Keyspace, patience: Duration) -> anyhow::Result<Self> {
        let seen = view(&*store, &keys).await?;
        let router = seen.routers.keys().next().map(|router| format!("router {router} takes part"));
        let participant = seen.rounds.participants.keys().next();
        let participant = participant.map(|name| format!("coordinator {name} takes part in assignment rounds"));
        let leads = seen.leader.is_some().then(|| "a coordinator leads".to_owned());
        if let Some(why) = leads.or(participant).or(router) {
            return Err(anyhow!("{why} in keyspace {}; handoffs are played in a keyspace without any", keys.name()));
        }
        let lease = store.grant(TTL).await.context("cannot get a lease from the store")?;
        let leased = |key: String, value| Op::put_leased(key, value, lease);
        let leader = Leader::new(OWN, lease);
        let own = PodRecord { capabilities: Capabilities::ALL, ..PodRecord::new(OWN, "127.0.0.1:1") };
        // No interval passes during the run, so a checkpoint is due only before a move.
        let planning = json!({ "checkpoint_interval_ms": TTL.as_millis() as u64 });
        let settings = KeyspaceConfig { planning: Some(planning), ..KeyspaceConfig::new(PARTITIONS) };
        let begin = Txn::guarded(
            [
                Compare::created_at(keys.leader(), Revision::ZERO),
                Compare::created_at(keys.round(), Revision::ZERO),
                Compare::created_at(keys.pod(OWN), Revision::ZERO),
            ],
            [
                leased(keys.leader(), encode(&leader)),
                leased(keys.router(OWN), encode(&RouterRecord::new(OWN))),
                leased(keys.pod(OWN), encode(&own)),
                Op::put(keys.config(), encode(&settings)),
            ],
        );
        if !store.commit(begin).await?.committed() {
            store.revoke(lease).await?;
            return Err(anyhow!("another program takes part in keyspace {}", keys.name()));
        }
        Ok(TestKeyspace { store, keys, patience, lease })
    }

    /// Leaves the keyspace.
    pub(super) async fn clear(&self) -> anyhow::Result<()> {
        for partition in PartitionId::all(PARTITIONS) {
            self.forget(partition).await?;
        }
        self.store.revoke(self.lease).await.context("cannot revoke the lease; it expires within an hour")
    }

    pub(super) async fn view(&self) -> anyhow::Result<View> {
        view(&*self.store, &self.keys).await
    }

    /// Waits until `found` finds something in the view. `None` if it does not in time.
    pub(super) async fn until<T>(&self, found: impl Fn(&View) -> Option<T>) -> anyhow::Result<Option<T>> {
        let deadline = Instant::now() + self.patience;
        loop {
            let found = found(&self.view().await?);
            if found.is_some() || Instant::now() > deadline {
                return Ok(found);
            }
            sleep(LOOK_EVERY).await;
        }
    }

    /// Returns the revision that last changed a key, 0 if it does not exist.
    pub(super) async fn modified(&self, key: &str) -> anyhow::Result<Revision> {
        let found = self.store.snapshot(&Keys::One(key.to_owned())).await.context("cannot read the keyspace")?;
        Ok(found.entries.first().map_or(Revision::ZERO, |entry| entry.mod_revision))
    }

    /// Returns the present life of a pod.
    pub(super) async fn party(&self, name: &str) -> anyhow::Result<Party> {
        let incarnation = self.view().await?.incarnation_of(name);
        Ok(Party { name: name.to_owned(), incarnation })
    }

    /// Begins a handoff of a partition from its owner, if it has one.
    pub(super) async fn begin(&self, partition: PartitionId, to: &Party) -> anyhow::Result<Play> {
        let view = self.view().await?;
        let assignment = view.assignments.get(&partition).map(|assignment| &assignment.value);
        let over = assignment.map_or(0, |assignment| assignment.epoch.get() + 1);
        let epoch = Epoch::new(over.max(view.revision.get()));
        let mut record = Handoff {
            reason: "played by segue conformance".to_owned(),
            started_at: unix_millis(),
            phase_entered_at: unix_millis(),
            ..Handoff::new(partition, to.name.clone(), to.incarnation, epoch)
        };
        if let Some(old) = assignment {
            record = record.taken_from(old.owner.clone(), old.incarnation);
        }
        let put = Op::put(self.keys.handoff(partition), encode(&record));
        let absent = Compare::created_at(self.keys.handoff(partition), Revision::ZERO);
        let outcome = self.store.commit(Txn::guarded([absent], [put])).await?;
        if !outcome.committed() {
            return Err(anyhow!("somebody else writes to keyspace {}", self.keys.name()));
        }
        Ok(Play { partition, handoff: HandoffId::created_at(outcome.revision), epoch })
    }

    /// Says what the router says: that nothing is in flight, or that it has cut over. Then moves on what can move.
    pub(super) async fn router(&self, play: Play, phase: Phase) -> anyhow::Result<()> {
        let Play { partition, handoff, .. } = play;
        let ack = match phase {
            Phase::Ready => Ack::RouterDrained(RouterDrainedAck::new(OWN, partition, handoff)),
            _ => Ack::RouterCutover(RouterCutoverAck::new(OWN, partition, handoff)),
        };
        let view = self.view().await?;
        let own = view.routers.get(OWN).map_or(Incarnation::NONE, |own| own.incarnation());
        self.store.commit(acknowledge(&view, &ack, self.keys.router(OWN), own, unix_millis())).await?;
        self.advance(partition).await
    }

    /// Says what this program's pod says. Then moves on what can move.
    pub(super) async fn own_pod(&self, play: Play, ack: PodAckKind) -> anyhow::Result<()> {
        let view = self.view().await?;
        let ack = Ack::Pod(PodAck::new(OWN, play.partition, play.handoff, ack));
        let txn = acknowledge(&view, &ack, self.keys.pod(OWN), view.incarnation_of(OWN), unix_millis());
        self.store.commit(txn).await?;
        self.advance(play.partition).await
    }

    /// Moves a handoff to this program's pod on to `Ready`.
    pub(super) async fn own_pod_is_warm(&self, play: Play) -> anyhow::Result<()> {
        let view = self.view().await?;
        let own = view.incarnation_of(OWN);
        let ready = warmed(&view, OWN, own, play.handoff, play.partition, unix_millis());
        self.store.commit(ready.context("the handoff to this program has changed")?).await?;
        Ok(())
    }

    /// Moves a handoff on as far as it waits for nobody, as a coordinator does.
    pub(super) async fn advance(&self, partition: PartitionId) -> anyhow::Result<()> {
        loop {
            let view = self.view().await?;
            let next = match pending_bound(&view, partition) {
                Some(bound) => {
                    sleep(bound).await;
                    advance_past_bound(&view, partition, unix_millis())
                }
                None => advance(&view, partition, unix_millis()),
            };
            let Some(next) = next else { return Ok(()) };
            self.store.commit(next.txn).await?;
        }
    }

    /// Cancels a handoff.
    pub(super) async fn cancel(&self, play: Play) -> anyhow::Result<()> {
        let record = Op::Delete(Keys::One(self.keys.handoff(play.partition)));
        let acks = self.keys.acks_of(play.partition).map(|prefix| Op::Delete(Keys::Prefix(prefix)));
        let then: Vec<Op> = std::iter::once(record).chain(acks).collect();
        self.store.commit(Txn::guarded([], then)).await?;
        Ok(())
    }

    /// Deletes all that the store has about a partition.
    pub(super) async fn forget(&self, partition: PartitionId) -> anyhow::Result<()> {
        self.cancel(Play { partition, handoff: HandoffId::NONE, epoch: Epoch::new(0) }).await?;
        let of = [self.keys.assignment(partition), self.keys.checkpoint(partition)];
        let then: Vec<Op> = of.into_iter().map(|key| Op::Delete(Keys::One(key))).collect();
        self.store.commit(Txn::guarded([], then)).await?;
        Ok(())
    }
}
