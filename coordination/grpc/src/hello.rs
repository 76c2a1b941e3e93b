//! Reads how a pod introduces itself: the version of the protocol, its record, and the TTL of its lease.
//!
//! Pure. A value that is refused is named, with what was expected.

use std::time::Duration;

use segue_protocol::records::{Capabilities, MAX_PARTITIONS, PodRecord};
use tonic::Status;

use crate::proto::Hello;
use crate::token::MAX_TTL;

/// The version of this protocol.
pub(crate) const PROTOCOL: u32 = 1;

const DEFAULT_TTL: Duration = Duration::from_secs(15);
const MAX_TEXT_BYTES: usize = 253;
const MAX_HOLDINGS: usize = MAX_PARTITIONS as usize;

/// Checks that the pod speaks this protocol.
pub(crate) fn agree(hello: &Hello) -> Result<(), Status> {
    if !(hello.protocol_min..=hello.protocol_max).contains(&PROTOCOL) {
        return Err(Status::failed_precondition(format!(
            "this server speaks version {PROTOCOL} of the protocol, the pod versions {} to {}",
            hello.protocol_min, hello.protocol_max
        )));
    }
    Ok(())
}

/// Reads a hello: the pod's record, and the TTL of its lease.
pub(crate) fn read(hello: &Hello) -> Result<(PodRecord, Duration), Status> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if hello.pod.is_empty() || hello.pod.len() > MAX_TEXT_BYTES || !hello.pod.chars().all(allowed) {
        return Err(Status::invalid_argument(format!(
            "`pod`: {:?} cannot be a name; expected letters, digits, '.', '_' and '-', {MAX_TEXT_BYTES} at most",
            hello.pod
        )));
    }
    for (field, text) in [("address", &hello.address), ("zone", &hello.zone), ("version", &hello.version)] {
        if text.len() > MAX_TEXT_BYTES {
            return Err(Status::invalid_argument(format!(
                "`{field}`: {} bytes; expected {MAX_TEXT_BYTES} at most",
                text.len()
            )));
        }
    }
    if hello.holdings.len() > MAX_HOLDINGS {
        return Err(Status::invalid_argument(format!(
            "`holdings`: {} partitions; expected {MAX_PARTITIONS} at most",
            hello.holdings.len()
        )));
    }
    // Of a partition that only this keyspace lacks, the pod is told to release the state.
    if let Some(held) = hello.holdings.iter().find(|held| held.partition >= MAX_PARTITIONS) {
        return Err(Status::invalid_argument(format!(
            "`holdings`: partition {}; no keyspace has more than {MAX_PARTITIONS}",
            held.partition
        )));
    }
    let port = hello.address.rsplit_once(':').filter(|(host, _)| !host.is_empty()).map(|(_, port)| port.parse::<u16>());
    if !matches!(port, Some(Ok(1..))) {
        return Err(Status::invalid_argument(format!(
            "`address`: {:?} cannot be reached; expected host:port",
            hello.address
        )));
    }
    if !(hello.weight.is_finite() && hello.weight >= 0.0) {
        return Err(Status::invalid_argument(format!("`weight`: {}; expected a positive number", hello.weight)));
    }
    let text = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    let weight = if hello.weight == 0.0 { 1.0 } else { hello.weight };
    let ttl = ttl(hello)?;
    let record = PodRecord {
        lease_ttl_ms: u64::try_from(ttl.as_millis()).ok(),
        weight: weight.into(),
        zone: text(&hello.zone),
        version: text(&hello.version),
        capabilities: Capabilities::from(hello.capabilities.clone()),
        nothing_to_warm: hello.nothing_to_warm,
        ..PodRecord::new(hello.pod.clone(), hello.address.clone())
    };
    Ok((record, ttl))
}

fn ttl(hello: &Hello) -> Result<Duration, Status> {
    let Some(asked) = hello.lease_ttl else { return Ok(DEFAULT_TTL) };
    Duration::try_from(asked)
        .ok()
        .filter(|ttl| ttl.subsec_nanos() == 0 && (Duration::from_secs(2)..=MAX_TTL).contains(ttl))
        .ok_or_else(|| Status::invalid_argument("`lease_ttl`: expected whole seconds, from 2 to 3600"))
}
