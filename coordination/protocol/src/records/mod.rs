//! The values in the store, as JSON: participants, ownership, handoffs, acknowledgements and operators' intentions.
//!
//! Readers ignore unknown fields and give absent ones their default, so that versions can be mixed. Timestamps are Unix
//! milliseconds and informational: no decision compares the clocks of two machines.

mod acks;
mod checkpoint;
mod handoff;
mod history;
mod keyspace;
mod load;
mod operator;
mod participants;
mod rounds;
mod troubles;
mod wanted;

use serde::Serialize;

pub use self::acks::{PodAck, PodAckKind, RouterCutoverAck, RouterDrainedAck};
pub use self::checkpoint::{Checkpoint, CheckpointName, CheckpointNameError, MAX_CHECKPOINT_NAME};
pub use self::handoff::{Assignment, AssignmentStatus, Handoff, Mode, PastPhase, Phase};
pub use self::history::{BackOffSubject, HandoffEnd, HistoryEntry, PastBackOff, RouterPart};
pub use self::keyspace::{CheckpointTimes, KeyspaceConfig, MAX_PARTITIONS, PROTOCOL, Partitioner};
pub use self::load::{MAX_LISTED, PartitionLoad, PodLoad};
pub use self::operator::{Answer, Drain, Operation, Origin, Pause, Pin, Request};
pub use self::participants::{
    Capabilities, ClockOffset, HeldMoves, Leader, PodRecord, PodStatus, PodStream, RouterRecord, Thousandths,
    canonical_address,
};
pub use self::rounds::{GatheringRound, Participant, Round};
pub use self::troubles::{HeldRequests, MAX_TROUBLES_LISTED, PodTrouble, RouterTroubles, TroubleKind};
pub use self::wanted::{Wanted, WantedDefault};

/// Returns a record as JSON, ready to be put.
pub fn encode<T: Serialize>(record: &T) -> Vec<u8> {
    // Serialisation cannot fail: records are structs of numbers, strings and lists with string keys.
    serde_json::to_vec(record).expect("a record serialises")
}

/// Most characters of a service's text that are kept for logs, status and the store.
const MAX_TEXT: usize = 256;

/// Returns the beginning of a service's text without line breaks and other control characters.
pub fn one_line(text: &str) -> String {
    let clean = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    let kept: String = clean.take(MAX_TEXT).collect();
    kept.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Epoch, HandoffId, Incarnation, PartitionId, Revision};

    const I12: Incarnation = Incarnation::registered_at(Revision::new(12));
    const H1: HandoffId = HandoffId::created_at(Revision::new(1));
    const H12: HandoffId = HandoffId::created_at(Revision::new(12));
    const H120: HandoffId = HandoffId::created_at(Revision::new(120));
    const E3: Epoch = Epoch::new(3);
    const P7: PartitionId = PartitionId::new(7);

    #[test]
    fn a_pod_that_says_little_gets_the_defaults() {
        let pod: PodRecord = serde_json::from_str(
            r#"{"pod_name":"w","address":"10.0.0.1:80","capabilities":["fence","teleport"],"news":1}"#,
        )
        .unwrap();
        assert_eq!(pod.weight, Thousandths(1000));
        assert_eq!(pod.status, PodStatus::Ready);
        assert_eq!(pod.capabilities, Capabilities { fence: true, ..Capabilities::default() });
    }

    #[test]
    fn settings_keep_what_they_do_not_know_when_they_are_written_again() {
        for (text, partitioner) in [
            (r#"{"partitions":64,"partitioner":null}"#, None),
            (r#"{"partitions":64,"partitioner":{"number":true}}"#, Some(Partitioner::NUMBER)),
            (
                r#"{"partitions":64,"partitioner":{"key":"path:/persons/{key}","hash":"murmur2"},"news":[1]}"#,
                Some(Partitioner::Key { key: "path:/persons/{key}".into(), hash: "murmur2".into() }),
            ),
            (
                r#"{"partitions":64,"partitioner":{"range":4}}"#,
                Some(Partitioner::Unknown(serde_json::json!({ "range": 4 }))),
            ),
        ] {
            let config: KeyspaceConfig = serde_json::from_str(text).unwrap();
            assert_eq!(config.partitioner, partitioner);
            assert_eq!(String::from_utf8(encode(&config)).unwrap(), text);
        }
    }

    #[test]
    fn records_have_the_wire_form_of_the_protocol() {
        let handoff = Handoff {
            partition: P7,
            old_owner: None,
            old_incarnation: Incarnation::NONE,
            new_owner: "w-1".into(),
            new_incarnation: I12,
            phase: Phase::Warming,
            epoch: E3,
            mode: Mode::Barrier,
            started_at: 1,
            phase_entered_at: 2,
            reason: "first placement".into(),
            work_has_ended: false,
            cause: String::new(),
            past: Vec::new(),
        };
        assert_eq!(
            String::from_utf8(encode(&handoff)).unwrap(),
            r#"{"partition":7,"old_owner":null,"old_incarnation":0,"new_owner":"w-1","new_incarnation":12,"phase":"Warming","epoch":3,"mode":"barrier","started_at":1,"phase_entered_at":2,"reason":"first placement"}"#
        );
        assert_eq!(serde_json::to_string(&Capabilities::ALL).unwrap(), r#"["sync","drained","released","fence"]"#);
    }

    #[test]
    fn a_word_of_cutover_is_known_by_its_first_bytes() {
        let said = |handoff| {
            let (router_name, partition) = ("r".to_owned(), P7);
            let (acked_at, stashed, drain_us, pause_us, flush_us) = (1, 2, 3, 4, 5);
            let ack =
                RouterCutoverAck { handoff, router_name, partition, acked_at, stashed, drain_us, pause_us, flush_us };
            encode(&ack)
        };
        let known = |value: Vec<u8>| value.starts_with(RouterCutoverAck::starts_with(H12).as_bytes());
        assert!(known(said(H12)));
        assert!(!known(said(H1)) && !known(said(H120)));
    }

    #[test]
    fn a_word_of_drained_is_known_by_its_first_bytes() {
        let said = |handoff, gave_up| {
            let (router_name, partition, acked_at, severed) = ("r".to_owned(), P7, 1, 0);
            encode(&RouterDrainedAck { handoff, gave_up, router_name, partition, acked_at, severed })
        };
        let known = |value: Vec<u8>| value.starts_with(RouterDrainedAck::starts_with(H12).as_bytes());
        assert!(known(said(H12, false)));
        assert!(!known(said(H12, true)) && !known(said(H1, false)) && !known(said(H120, false)));
    }

    #[test]
    fn intentions_of_operators_have_their_wire_form_and_are_not_read_without_who() {
        let origin = Origin { who: "ann".into(), why: "hot".into(), at: 5 };
        let request = Request::Move { partition: P7, to: "w".into(), pin: false };
        let operation = Operation { request, origin: origin.clone(), answer: None };
        for (value, text) in [
            (encode(&Drain { origin: origin.clone() }), r#"{"who":"ann","why":"hot","at":5}"#),
            (
                encode(&Pin { to: "w".into(), incarnation: I12, origin: origin.clone() }),
                r#"{"to":"w","incarnation":12,"who":"ann","why":"hot","at":5}"#,
            ),
            (encode(&Pause { origin, until: None }), r#"{"who":"ann","why":"hot","at":5,"until":null}"#),
            (
                encode(&Operation { request: Request::Change { what: "drain pod w".into() }, ..operation.clone() }),
                r#"{"kind":"change","what":"drain pod w","who":"ann","why":"hot","at":5,"answer":null}"#,
            ),
            (
                encode(&Operation { request: Request::Pin { partition: P7, to: None }, ..operation.clone() }),
                r#"{"kind":"pin","partition":7,"who":"ann","why":"hot","at":5,"answer":null}"#,
            ),
            (
                encode(&operation),
                r#"{"kind":"move","partition":7,"to":"w","pin":false,"who":"ann","why":"hot","at":5,"answer":null}"#,
            ),
        ] {
            assert_eq!(String::from_utf8(value).unwrap(), text);
        }
        let cancel: Operation =
            serde_json::from_str(r#"{"kind":"cancel","partition":7,"handoff":12,"who":"ann","news":1}"#).unwrap();
        assert_eq!(cancel.request, Request::Cancel { partition: P7, handoff: H12 });
        assert!(serde_json::from_str::<Drain>("{}").is_err());
    }

    #[test]
    fn odd_weights_become_numbers_that_planning_can_use() {
        for (text, expected) in [("0.5", 500), ("-3", 0), ("1e300", u32::MAX)] {
            assert_eq!(serde_json::from_str::<Thousandths>(text).unwrap(), Thousandths(expected));
        }
    }
}
