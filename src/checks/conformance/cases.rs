//! The requests of the conformance test, and the responses that conform to the protocol. Pure.
//!
//! Not here: handoffs (`scenes`). A request shows whether a pod obeys the stamps, not whether its state is complete.

use std::fmt;

use http::StatusCode;
use segue_protocol::headers::{SEGUE_EPOCH, SEGUE_KEYSPACE, SEGUE_PARTITION, SEGUE_ROUTER};
use segue_protocol::ids::{Epoch, PartitionId};

/// Distance from the current epoch to the future one. It is so large that no pod can be about to see that epoch.
const FUTURE: u64 = 1_000_000;

/// The partition and epoch that the pod under test owns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TestedOwnership {
    pub(super) keyspace: String,
    pub(super) partition: PartitionId,
    pub(super) epoch: Epoch,
    /// A partition that the pod does not own.
    pub(super) foreign: PartitionId,
}

/// The response that the protocol requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ExpectedResponse {
    /// The service's own response.
    Accepted,
    /// `421`.
    Refused,
}

/// One request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Case {
    /// What distinguishes the request.
    pub(super) name: &'static str,
    pub(super) stamps: Vec<(&'static str, String)>,
    pub(super) expected: ExpectedResponse,
}

/// The outcome of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ObservedResponse {
    /// The head of a response, with its `segue-misdirected`.
    Response { status: StatusCode, misdirected: Option<String> },
    /// No response within this many seconds.
    Silence(u64),
    /// The exchange broke.
    Broken(String),
}

/// Returns the requests to send, in this order. The last one repeats the first one, because refusals must not change
/// anything.
pub(super) fn cases(owned: &TestedOwnership) -> Vec<Case> {
    let TestedOwnership { keyspace, partition, epoch, foreign } = owned;
    let (partition, epoch, foreign) = (partition.get().to_string(), epoch.get(), foreign.get().to_string());
    let (now, before, after) = (epoch.to_string(), epoch.saturating_sub(1).to_string(), (epoch + FUTURE).to_string());
    let stamped = |partition: &[&str], epoch: &[&str], keyspace: &str| {
        let partitions = partition.iter().map(|partition| (SEGUE_PARTITION, (*partition).to_owned()));
        let epochs = epoch.iter().map(|epoch| (SEGUE_EPOCH, (*epoch).to_owned()));
        let rest = [(SEGUE_KEYSPACE, keyspace.to_owned()), (SEGUE_ROUTER, "segue-conformance".to_owned())];
        partitions.chain(epochs).chain(rest).collect::<Vec<_>>()
    };
    let accepted =
        |name| Case { name, stamps: stamped(&[&partition], &[&now], keyspace), expected: ExpectedResponse::Accepted };
    let refused = |name, stamps| Case { name, stamps, expected: ExpectedResponse::Refused };
    vec![
        accepted("the right partition and epoch"),
        refused("an epoch that is over", stamped(&[&partition], &[&before], keyspace)),
        refused("an epoch that has not begun", stamped(&[&partition], &[&after], keyspace)),
        refused("a partition that the pod does not own", stamped(&[&foreign], &[&now], keyspace)),
        refused("another keyspace", stamped(&[&partition], &[&now], &format!("not-{keyspace}"))),
        refused("no stamps at all", Vec::new()),
        refused("no partition", stamped(&[], &[&now], keyspace)),
        refused("no epoch", stamped(&[&partition], &[], keyspace)),
        refused("an epoch that is no number", stamped(&[&partition], &["latest"], keyspace)),
        refused("a partition that is no number", stamped(&["all"], &[&now], keyspace)),
        refused("two epochs", stamped(&[&partition], &[&now, &before], keyspace)),
        accepted("the right partition and epoch, after the refusals"),
    ]
}

/// Returns the stamps of a router for this partition and epoch.
pub(super) fn stamps(keyspace: &str, partition: PartitionId, epoch: Epoch) -> Vec<(&'static str, String)> {
    vec![
        (SEGUE_PARTITION, partition.to_string()),
        (SEGUE_EPOCH, epoch.to_string()),
        (SEGUE_KEYSPACE, keyspace.to_owned()),
        (SEGUE_ROUTER, "segue-conformance".to_owned()),
    ]
}

impl ObservedResponse {
    /// Returns whether the pod has refused the request as not its own.
    pub(super) fn is_refusal(&self) -> bool {
        match self {
            ObservedResponse::Response { status, misdirected } => {
                *status == StatusCode::MISDIRECTED_REQUEST && misdirected.as_deref() != Some("0")
            }
            ObservedResponse::Silence(_) | ObservedResponse::Broken(_) => false,
        }
    }
}

/// Returns what is wrong with a response and its consequence, or `None` if it conforms.
pub(super) fn fault(expected: ExpectedResponse, observed: &ObservedResponse) -> Option<String> {
    let (status, own) = match observed {
        ObservedResponse::Response { status, misdirected } => (*status, misdirected.as_deref() == Some("0")),
        ObservedResponse::Silence(seconds) => return Some(format!("no response within {seconds} s")),
        ObservedResponse::Broken(why) => {
            let expected = match expected {
                ExpectedResponse::Accepted => "the service's own response",
                ExpectedResponse::Refused => "421",
            };
            return Some(format!("the exchange broke ({why}); expected {expected}: a client gets 502"));
        }
    };
    let misdirected = status == StatusCode::MISDIRECTED_REQUEST;
    match expected {
        ExpectedResponse::Accepted if observed.is_refusal() => {
            Some("refused; expected the service's own response: the router holds the request".to_owned())
        }
        ExpectedResponse::Accepted if status.is_server_error() => {
            Some(format!("{status}; expected the service's own response: choose a --path that succeeds"))
        }
        ExpectedResponse::Refused if misdirected && own => {
            Some("421 with segue-misdirected: 0; expected 1 or none: the client gets the refusal".to_owned())
        }
        ExpectedResponse::Refused if !misdirected && status.is_success() => {
            Some(format!("accepted with {status}; expected 421: two pods may apply requests of one partition"))
        }
        ExpectedResponse::Refused if !misdirected => {
            Some(format!("{status}; expected 421: the client gets this response instead of the owner's"))
        }
        _ => None,
    }
}

impl fmt::Display for ExpectedResponse {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            ExpectedResponse::Accepted => "accepted",
            ExpectedResponse::Refused => "refused",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(status: u16, misdirected: Option<&str>) -> ObservedResponse {
        let status = StatusCode::from_u16(status).unwrap();
        ObservedResponse::Response { status, misdirected: misdirected.map(str::to_owned) }
    }

    #[test]
    fn a_refusal_is_a_421_that_is_not_the_services_own() {
        for (expected, observed, conforms) in [
            (ExpectedResponse::Refused, response(421, Some("1")), true),
            (ExpectedResponse::Refused, response(421, None), true),
            (ExpectedResponse::Refused, response(421, Some("0")), false),
            (ExpectedResponse::Refused, response(200, None), false),
            (ExpectedResponse::Refused, response(409, Some("1")), false),
            (ExpectedResponse::Refused, ObservedResponse::Silence(5), false),
            (ExpectedResponse::Accepted, response(200, None), true),
            (ExpectedResponse::Accepted, response(404, None), true),
            (ExpectedResponse::Accepted, response(421, Some("0")), true),
            (ExpectedResponse::Accepted, response(421, None), false),
            (ExpectedResponse::Accepted, response(500, None), false),
            (ExpectedResponse::Accepted, ObservedResponse::Broken("reset".to_owned()), false),
        ] {
            assert_eq!(fault(expected, &observed).is_none(), conforms, "{expected} {observed:?}");
        }
    }

    #[test]
    fn every_case_differs_from_the_right_stamps_in_one_respect() {
        let owned = TestedOwnership {
            keyspace: "orders".to_owned(),
            partition: PartitionId::new(7),
            epoch: Epoch::new(42),
            foreign: PartitionId::new(8),
        };
        let cases = cases(&owned);
        let right = &cases[0].stamps;
        assert_eq!(right[..2], [(SEGUE_PARTITION, "7".to_owned()), (SEGUE_EPOCH, "42".to_owned())]);
        assert_eq!(cases.last().unwrap().stamps, *right);
        for case in &cases[1..cases.len() - 1] {
            assert_eq!(case.expected, ExpectedResponse::Refused);
            assert_ne!(case.stamps, *right, "{}", case.name);
            let other = case.stamps.iter().filter(|stamp| !right.contains(stamp)).count();
            assert!(other <= 1, "{}: {:?}", case.name, case.stamps);
        }
    }
}
