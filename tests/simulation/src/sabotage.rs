//! Rules of the protocol that can be switched off, to show that the simulation notices.
//!
//! Production code is not touched: what surrounds it breaks the rule (the link to the store, the simulated network, the
//! simulated writer). One rule is missing: that a router registers before it takes its snapshot. The store is seen too
//! soon afterwards for the harm to show in a thousand seeds; the model finds it (`make mutants ARGS="--rule
//! RegisterFirst"`).

use segue_protocol::ids::Epoch;
use segue_protocol::keys::{KeyName, Keyspace};
use segue_protocol::records::{Handoff, Phase, encode};
use segue_protocol::txn::{Compare, Field, Keys, Op, Relation, Txn};

/// A rule that is broken on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sabotage {
    /// Acks are written whether their handoff stands or not.
    AckIdentity,
    /// A coordinator writes whether it has the authority or not.
    LeaderGuard,
    /// A phase moves on although a router has registered since.
    RouterRange,
    /// A phase moves on although its record has changed since.
    PhaseCompare,
    /// The store is said to have confirmed the lease, whatever it says.
    LeaseClock,
    /// A pod's 421 is shown to the client.
    ShowBounce,
    /// An exchange counts no longer once its client has hung up.
    HangUp,
    /// A request whose exchange broke is sent again.
    SendAgain,
    /// A pod accepts every epoch.
    AnyEpoch,
    /// A pod's work continues when its lease is over.
    WorkPastLease,
    /// A pod says `drained` as soon as it is asked.
    EarlyDrained,
    /// A router says that it has drained while requests are in flight.
    EarlyRouterDrained,
    /// A pod does not read the tail of the log.
    NoTail,
    /// Requests wait in no order.
    NoOrder,
    /// Epochs begin at the store's revision, whatever the floor is.
    EpochFloor,
}

impl Sabotage {
    /// All, with names and what they do.
    pub const ALL: [(Sabotage, &'static str, &'static str); 15] = [
        (Sabotage::AckIdentity, "ack-identity", "acks are written whether their handoff stands or not"),
        (Sabotage::LeaderGuard, "leader-guard", "a coordinator writes whether it has the authority or not"),
        (Sabotage::RouterRange, "router-range", "a phase moves on although a router has registered since"),
        (Sabotage::PhaseCompare, "phase-compare", "a phase moves on although its record has changed since"),
        (Sabotage::LeaseClock, "lease-clock", "participants are told that the store has confirmed their lease"),
        (Sabotage::ShowBounce, "show-bounce", "a pod's 421 is shown to the client"),
        (Sabotage::HangUp, "hang-up", "an exchange counts no longer once its client has hung up"),
        (Sabotage::SendAgain, "send-again", "a request whose exchange broke is sent again"),
        (Sabotage::AnyEpoch, "any-epoch", "a pod accepts every epoch"),
        (
            Sabotage::WorkPastLease,
            "work-past-lease",
            "a pod's work goes on when its lease is over, and its log fences nobody",
        ),
        (Sabotage::EarlyDrained, "early-drained", "a pod says drained as soon as it is asked"),
        (Sabotage::EarlyRouterDrained, "early-router-drained", "a router says drained while requests are in flight"),
        (Sabotage::NoTail, "no-tail", "a new owner does not read the tail of the log"),
        (Sabotage::NoOrder, "no-order", "held requests have no order"),
        (Sabotage::EpochFloor, "epoch-floor", "epochs begin at the store's revision, whatever the floor is"),
    ];

    /// The one of that name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, known, _)| *known == name).map(|(sabotage, ..)| *sabotage)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(known, ..)| *known == self).map_or("", |(_, name, _)| name)
    }

    /// Takes out of a transaction what the rule is: a guard, or the `floor` of an epoch.
    pub(crate) fn strip(self, keys: &Keyspace, floor: Epoch, txn: &mut Txn) {
        if let Some(otherwise) = &mut txn.otherwise {
            self.strip(keys, floor, otherwise);
        }
        let one = |compare: &Compare, prefix: &str| matches!(&compare.keys, Keys::One(key) if key.starts_with(prefix));
        let (seats, handoffs) = ([keys.leader(), keys.round()], format!("{}handoffs/", keys.root()));
        let acks =
            ["~acks/handoff_drains/", "~acks/handoff_acks/", "pod_acks/"].map(|kind| format!("{}{kind}", keys.root()));
        let is_ack = |op: &Op| matches!(op, Op::Put { key, .. } if acks.iter().any(|kind| key.starts_with(kind)));
        match self {
            Sabotage::LeaderGuard => {
                txn.when.retain(|compare| !seats.iter().any(|seat| one(compare, seat)));
            }
            Sabotage::RouterRange => {
                txn.when
                    .retain(|compare| !(compare.relation == Relation::Less && matches!(compare.keys, Keys::Prefix(_))));
            }
            Sabotage::PhaseCompare => {
                txn.when.retain(|compare| !(one(compare, &handoffs) && matches!(compare.field, Field::ModRevision(_))));
            }
            Sabotage::AckIdentity if txn.then.iter().any(is_ack) => {
                txn.when
                    .retain(|compare| !(one(compare, &handoffs) && matches!(compare.field, Field::CreateRevision(_))));
            }
            Sabotage::EpochFloor => txn.then.iter_mut().for_each(|op| lower(keys, floor, op)),
            _ => {}
        }
    }
}

/// Takes the floor out of the epoch of a handoff that begins.
fn lower(keys: &Keyspace, floor: Epoch, op: &mut Op) {
    let Op::Put { key, value, .. } = op else { return };
    let Some(KeyName::Handoff(_)) = keys.parse(key) else { return };
    let Ok(handoff) = serde_json::from_slice::<Handoff>(value) else { return };
    if let Some(epoch) = handoff.epoch.get().checked_sub(floor.get()).filter(|_| handoff.phase == Phase::Warming) {
        *value = encode(&Handoff { epoch: Epoch::new(epoch), ..handoff });
    }
}
