//! The keys of a keyspace, and their meaning. The layout is part of the protocol and fixed.

use crate::ids::{HandoffId, PartitionId, Revision};
use crate::records::PodAckKind;
use crate::txn::Keys;

/// The beginning of every key that not all participants follow. It sorts after all other keys, so that one range has those.
const APART: char = '~';

/// The folder of the routers' acknowledgements. Only those who plan follow them: each move brings as many as there are
/// routers, and nobody else has to know them.
const ROUTER_ACKS: &str = "~acks/";

/// The folder of the pods' heartbeats. Only those who plan read a pod's load, and everybody else would receive it every few
/// seconds.
const HEARTBEATS: &str = "~heartbeats/";

/// The folder of the history. It sorts after every other key, so that one range has everything else: nobody watches the
/// history.
const HISTORY: &str = "~history/";

/// The folder of what the routers' clients suffer. It sorts after every other key, too: only operators read it.
const TROUBLES: &str = "~troubles/";

/// Builds and reads the keys of one keyspace: everything below `{prefix}{keyspace}/`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Keyspace {
    root: String,
    service: Option<String>,
}

/// The meaning of a key.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum KeyName {
    /// `config`
    Config,
    /// `pods/{pod}`
    Pod(String),
    /// `routers/{router}`
    Router(String),
    /// `assignments/{partition}`
    Assignment(PartitionId),
    /// `handoffs/{partition}`
    Handoff(PartitionId),
    /// `~acks/handoff_drains/{partition}/{router}`
    RouterDrained(PartitionId, String),
    /// `~acks/handoff_acks/{partition}/{router}`
    RouterCutover(PartitionId, String),
    /// `pod_acks/{partition}/{pod}/{ack}`
    PodAck(PartitionId, String, PodAckKind),
    /// `coordinator/leader`
    Leader,
    /// `operator/drains/{pod}`
    Drain(String),
    /// `operator/pins/{partition}`
    Pin(PartitionId),
    /// `operator/pause`
    Pause,
    /// `operations/{id}`
    Operation(String),
    /// `wanted`
    Wanted,
    /// `~heartbeats/{pod}`
    Load(String),
    /// `checkpoints/{partition}`
    Checkpoint(PartitionId),
    /// A key of the [assignment rounds](crate::rounds).
    Rounds(RoundsKey),
}

/// The meaning of a key of the assignment rounds.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum RoundsKey {
    /// `rounds/current`
    Current,
    /// `rounds/gathering`
    Gathering,
    /// `rounds/interval`
    Interval,
    /// `rounds/heartbeat`
    Heartbeat,
    /// `participants/{name}`
    Participant(String),
}

impl Keyspace {
    /// Returns the keyspace `name` below `prefix`, which ends with a slash.
    pub fn new(prefix: &str, name: &str) -> Self {
        Keyspace { root: format!("{prefix}{name}/"), service: None }
    }

    /// Adds the service that the participants of this process belong to. They do not register in a keyspace of another one.
    pub fn of_service(self, service: Option<String>) -> Self {
        Keyspace { service, ..self }
    }

    /// Returns the service that the participants of this process belong to.
    pub fn service(&self) -> Option<&str> {
        self.service.as_deref()
    }

    /// Returns the keyspace's name.
    pub fn name(&self) -> &str {
        self.root.trim_end_matches('/').rsplit('/').next().unwrap_or_default()
    }

    /// Returns the prefix of every key of the keyspace.
    pub fn root(&self) -> &str {
        &self.root
    }

    /// Returns the keys that routers and pods follow: all but routers' acknowledgements, heartbeats and the history, which
    /// sort after them.
    pub fn followed(&self) -> Keys {
        Keys::Between(self.root.clone(), format!("{}{APART}", self.root))
    }

    /// Returns the keys of all routers' acknowledgements.
    pub fn router_acks(&self) -> Keys {
        Keys::Prefix(format!("{}{ROUTER_ACKS}", self.root))
    }

    /// Returns the keys that those follow who plan: all but the history.
    pub fn planned(&self) -> Keys {
        Keys::Between(self.root.clone(), format!("{}{HISTORY}", self.root))
    }

    /// Returns the key of what a router's clients suffer.
    pub fn trouble(&self, router: &str) -> String {
        format!("{}{TROUBLES}{router}", self.root)
    }

    /// Returns the keys of what all routers' clients suffer.
    pub fn troubles(&self) -> Keys {
        Keys::Prefix(format!("{}{TROUBLES}", self.root))
    }

    /// Returns the keys of the history.
    pub fn history(&self) -> Keys {
        Keys::Prefix(format!("{}{HISTORY}", self.root))
    }

    /// Returns the keys of a partition's history.
    pub fn history_of(&self, partition: PartitionId) -> Keys {
        Keys::Prefix(self.ended_handoffs(partition))
    }

    /// Returns the prefix of a partition's history: a key below it is created as a handoff ends.
    pub(crate) fn ended_handoffs(&self, partition: PartitionId) -> String {
        format!("{}{HISTORY}{partition}/", self.root)
    }

    /// Returns the key of the history entry of a handoff.
    pub fn history_entry(&self, partition: PartitionId, handoff: HandoffId) -> String {
        format!("{}{HISTORY}{partition}/{handoff}", self.root)
    }

    /// Parses the key of a history entry: the inverse of [`history_entry`](Self::history_entry).
    pub fn parse_history_entry(&self, key: &str) -> Option<(PartitionId, HandoffId)> {
        let (partition, handoff) = key.strip_prefix(self.root.as_str())?.strip_prefix(HISTORY)?.split_once('/')?;
        let handoff = HandoffId::created_at(Revision::new(handoff.parse().ok()?));
        Some((number(partition)?, handoff))
            .filter(|(partition, handoff)| self.history_entry(*partition, *handoff) == key)
    }

    /// Returns the key of the keyspace's settings.
    pub fn config(&self) -> String {
        format!("{}config", self.root)
    }

    /// Returns the key of the elected coordinator.
    pub fn leader(&self) -> String {
        format!("{}coordinator/leader", self.root)
    }

    /// Returns the key of the assignment round in force.
    pub fn round(&self) -> String {
        format!("{}rounds/current", self.root)
    }

    /// Returns the key of the assignment round that gathers its participants.
    pub fn gathering(&self) -> String {
        format!("{}rounds/gathering", self.root)
    }

    /// Returns the key that exists until the next assignment round may open.
    pub fn round_interval(&self) -> String {
        format!("{}rounds/interval", self.root)
    }

    /// Returns the key that exists until the next assignment round must open.
    pub fn round_heartbeat(&self) -> String {
        format!("{}rounds/heartbeat", self.root)
    }

    /// Returns the key of a process that may take part in assignment rounds.
    pub fn participant(&self, name: &str) -> String {
        format!("{}participants/{name}", self.root)
    }

    /// Returns the key that an instance of the gRPC service puts when a pod attaches to it. A view that shows its
    /// revision shows everything before it. Others than that service read only a [`PodStream`](crate::records::PodStream)
    /// in its value.
    pub fn pod_stream(&self, pod: &str) -> String {
        format!("{}pod_streams/{pod}", self.root)
    }

    /// Returns the key of the owners that the strategy `external` follows.
    pub fn wanted(&self) -> String {
        format!("{}wanted", self.root)
    }

    /// Returns the key of a pod's registration.
    pub fn pod(&self, pod: &str) -> String {
        format!("{}pods/{pod}", self.root)
    }

    /// Returns the key of a pod's heartbeats.
    pub fn load(&self, pod: &str) -> String {
        format!("{}{HEARTBEATS}{pod}", self.root)
    }

    /// Returns the key of a partition's newest checkpoint.
    pub fn checkpoint(&self, partition: PartitionId) -> String {
        format!("{}checkpoints/{partition}", self.root)
    }

    /// Returns the prefix of all pods' registrations.
    pub fn pods(&self) -> String {
        format!("{}pods/", self.root)
    }

    /// Returns the prefix of the registrations of all processes that may take part in assignment rounds.
    pub fn participants(&self) -> String {
        format!("{}participants/", self.root)
    }

    /// Returns the prefix of all routers' registrations.
    pub fn routers(&self) -> String {
        format!("{}routers/", self.root)
    }

    /// Returns the key of a router's registration.
    pub fn router(&self, router: &str) -> String {
        format!("{}routers/{router}", self.root)
    }

    /// Returns the key of a partition's assignment.
    pub fn assignment(&self, partition: PartitionId) -> String {
        format!("{}assignments/{partition}", self.root)
    }

    /// Returns the key of a partition's handoff.
    pub fn handoff(&self, partition: PartitionId) -> String {
        format!("{}handoffs/{partition}", self.root)
    }

    /// Returns the key of a router's ack that it has drained.
    pub fn router_drained(&self, partition: PartitionId, router: &str) -> String {
        format!("{}{ROUTER_ACKS}handoff_drains/{partition}/{router}", self.root)
    }

    /// Returns the key of a router's ack that it has cut over.
    pub fn router_cutover(&self, partition: PartitionId, router: &str) -> String {
        format!("{}{ROUTER_ACKS}handoff_acks/{partition}/{router}", self.root)
    }

    /// Returns the key of a pod's ack.
    pub fn pod_ack(&self, partition: PartitionId, pod: &str, kind: PodAckKind) -> String {
        format!("{}pod_acks/{partition}/{pod}/{}", self.root, kind.as_str())
    }

    /// Returns the key of an operator's drain of a pod.
    pub fn drain(&self, pod: &str) -> String {
        format!("{}operator/drains/{pod}", self.root)
    }

    /// Returns the key of an operator's pin of a partition.
    pub fn pin(&self, partition: PartitionId) -> String {
        format!("{}operator/pins/{partition}", self.root)
    }

    /// Returns the key of an operator's pause of planned moves.
    pub fn pause(&self) -> String {
        format!("{}operator/pause", self.root)
    }

    /// Returns the key of an operation.
    pub fn operation(&self, id: &str) -> String {
        format!("{}operations/{id}", self.root)
    }

    /// Returns the prefixes of all acks of a partition's handoff.
    pub fn acks_of(&self, partition: PartitionId) -> [String; 3] {
        let [drains, cutovers] = ["handoff_drains", "handoff_acks"].map(|kind| format!("{ROUTER_ACKS}{kind}"));
        [drains, cutovers, "pod_acks".to_owned()].map(|kind| format!("{}{kind}/{partition}/", self.root))
    }

    /// Returns the meaning of `key`. `None` if it is not a key of this keyspace that this version knows.
    pub fn parse(&self, key: &str) -> Option<KeyName> {
        let mut parts = key.strip_prefix(self.root.as_str())?.split('/');
        let kind = parts.next()?;
        let name = match kind {
            "config" => KeyName::Config,
            "wanted" => KeyName::Wanted,
            "coordinator" => (parts.next()? == "leader").then_some(KeyName::Leader)?,
            "pods" => KeyName::Pod(name(parts.next()?)?),
            "~heartbeats" => KeyName::Load(name(parts.next()?)?),
            "checkpoints" => KeyName::Checkpoint(number(parts.next()?)?),
            "routers" => KeyName::Router(name(parts.next()?)?),
            "assignments" => KeyName::Assignment(number(parts.next()?)?),
            "handoffs" => KeyName::Handoff(number(parts.next()?)?),
            "~acks" => match parts.next()? {
                "handoff_drains" => KeyName::RouterDrained(number(parts.next()?)?, name(parts.next()?)?),
                "handoff_acks" => KeyName::RouterCutover(number(parts.next()?)?, name(parts.next()?)?),
                _ => return None,
            },
            "pod_acks" => {
                let partition = number(parts.next()?)?;
                let pod = name(parts.next()?)?;
                KeyName::PodAck(partition, pod, PodAckKind::parse(parts.next()?)?)
            }
            "operator" => match parts.next()? {
                "drains" => KeyName::Drain(name(parts.next()?)?),
                "pins" => KeyName::Pin(number(parts.next()?)?),
                "pause" => KeyName::Pause,
                _ => return None,
            },
            "rounds" => KeyName::Rounds(match parts.next()? {
                "current" => RoundsKey::Current,
                "gathering" => RoundsKey::Gathering,
                "interval" => RoundsKey::Interval,
                "heartbeat" => RoundsKey::Heartbeat,
                _ => return None,
            }),
            "participants" => KeyName::Rounds(RoundsKey::Participant(name(parts.next()?)?)),
            "operations" => KeyName::Operation(name(parts.next()?)?),
            _ => return None,
        };
        parts.next().is_none().then_some(name)
    }
}

fn name(part: &str) -> Option<String> {
    (!part.is_empty()).then(|| part.to_owned())
}

/// Parses the canonical decimal form only, so that two keys never mean one partition.
fn number(part: &str) -> Option<PartitionId> {
    let canonical = part == "0" || (!part.starts_with('0') && part.bytes().all(|byte| byte.is_ascii_digit()));
    canonical.then(|| part.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    const P0: PartitionId = PartitionId::new(0);
    const P7: PartitionId = PartitionId::new(7);
    const P1023: PartitionId = PartitionId::new(1023);

    #[test]
    fn every_key_reads_back_as_what_it_was_built_from() {
        let keys = Keyspace::new("/segue/", "default");
        assert_eq!(keys.name(), "default");
        for (key, name) in [
            (keys.config(), KeyName::Config),
            (keys.leader(), KeyName::Leader),
            (keys.wanted(), KeyName::Wanted),
            (keys.pod("w-0"), KeyName::Pod("w-0".into())),
            (keys.load("w-0"), KeyName::Load("w-0".into())),
            (keys.checkpoint(P7), KeyName::Checkpoint(P7)),
            (keys.router("r"), KeyName::Router("r".into())),
            (keys.assignment(P0), KeyName::Assignment(P0)),
            (keys.handoff(P1023), KeyName::Handoff(P1023)),
            (keys.router_drained(P7, "r"), KeyName::RouterDrained(P7, "r".into())),
            (keys.router_cutover(P7, "r"), KeyName::RouterCutover(P7, "r".into())),
            (keys.pod_ack(P7, "w", PodAckKind::Released), KeyName::PodAck(P7, "w".into(), PodAckKind::Released)),
            (keys.drain("w"), KeyName::Drain("w".into())),
            (keys.pin(P7), KeyName::Pin(P7)),
            (keys.pause(), KeyName::Pause),
            (keys.operation("a-1"), KeyName::Operation("a-1".into())),
            (keys.round(), KeyName::Rounds(RoundsKey::Current)),
            (keys.gathering(), KeyName::Rounds(RoundsKey::Gathering)),
            (keys.round_interval(), KeyName::Rounds(RoundsKey::Interval)),
            (keys.round_heartbeat(), KeyName::Rounds(RoundsKey::Heartbeat)),
            (keys.participant("c"), KeyName::Rounds(RoundsKey::Participant("c".into()))),
        ] {
            assert_eq!(keys.parse(&key), Some(name), "{key}");
        }
    }

    #[test]
    fn the_history_is_apart_from_what_participants_follow() {
        let keys = Keyspace::new("/segue/", "default");
        let handoff = HandoffId::created_at(Revision::new(70));
        let entry = keys.history_entry(P7, handoff);
        assert_eq!(entry, "/segue/default/~history/7/70");
        assert_eq!(keys.parse_history_entry(&entry), Some((P7, handoff)));
        assert!(keys.history().contains(&entry) && keys.history_of(P7).contains(&entry));
        assert!(!keys.history_of(P0).contains(&entry) && !keys.followed().contains(&entry));
        for key in [keys.config(), keys.wanted(), keys.router("~"), keys.pod_stream("~")] {
            assert!(keys.followed().contains(&key) && keys.parse_history_entry(&key).is_none(), "{key}");
        }
        for key in ["~history/07/70", "~history/7/070", "~history/7/+70", "~history/7/70/1", "~history/7"] {
            assert_eq!(keys.parse_history_entry(&format!("{}{key}", keys.root())), None, "{key}");
        }
        assert!(!keys.followed().contains("/segue/other/config"));
    }

    #[test]
    fn only_those_who_plan_follow_heartbeats_and_the_acknowledgements_of_routers() {
        let keys = Keyspace::new("/segue/", "default");
        for name in ["0", "w-0", "~"] {
            for key in [keys.load(name), keys.router_drained(P7, name), keys.router_cutover(P7, name)] {
                assert!(keys.planned().contains(&key) && !keys.followed().contains(&key), "{key}");
            }
            assert!(keys.router_acks().contains(&keys.router_drained(P7, name)));
            assert!(!keys.router_acks().contains(&keys.load(name)));
            assert!(keys.followed().contains(&keys.pod_ack(P7, name, PodAckKind::Drained)));
        }
        assert_eq!(keys.router_drained(P7, "r"), "/segue/default/~acks/handoff_drains/7/r");
        assert_eq!(keys.router_cutover(P7, "r"), "/segue/default/~acks/handoff_acks/7/r");
        let trouble = keys.trouble("r");
        assert!(keys.troubles().contains(&trouble) && !keys.planned().contains(&trouble));
        for key in [keys.config(), keys.wanted(), keys.router("~"), keys.pod_stream("~")] {
            assert!(keys.planned().contains(&key), "{key}");
        }
        assert!(!keys.planned().contains(&keys.history_entry(P7, HandoffId::created_at(Revision::new(70)))));
    }

    #[test]
    fn a_key_that_is_not_canonical_means_nothing() {
        let keys = Keyspace::new("/segue/", "default");
        for key in [
            "/segue/default/assignments/07",
            "/segue/default/assignments/-1",
            "/segue/default/assignments/",
            "/segue/default/assignments/4294967296",
            "/segue/default/pods/",
            "/segue/default/pods/a/b",
            "/segue/other/pods/a",
            "/segue/default/pod_acks/1/w/flushed",
            "/segue/default/news",
            "/segue/default/operator/pause/now",
            "/segue/default/operator/pins/07",
            "/segue/default/rounds/7",
            "/segue/default/participants/a/b",
        ] {
            assert_eq!(keys.parse(key), None, "{key}");
        }
    }
}
