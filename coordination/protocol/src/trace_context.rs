//! W3C trace context: the place of a request in a distributed trace, as `traceparent` says it, and the trace of a
//! handoff.
//!
//! Pure. Not here: which requests are recorded, and what is recorded of them (`segue-proxy`).
//!
//! # Invariants
//!
//! * No identifier that is read here is all zeros.
//! * All participants derive the same trace from the same handoff, without telling each other.

use std::fmt;

use crate::ids::{HandoffId, PartitionId};
use crate::keys::Keyspace;

/// The identifier of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceId(pub [u8; 16]);

/// The identifier of a span within its trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SpanId(pub [u8; 8]);

/// A span as others refer to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SpanContext {
    /// The trace.
    pub trace: TraceId,
    /// The span.
    pub span: SpanId,
    /// The flags of its `traceparent`.
    pub flags: Flags,
}

/// The flags of a `traceparent`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Flags(u8);

impl Flags {
    /// The trace is recorded.
    pub const SAMPLED: Flags = Flags(1);

    /// Those that versions 1 and 2 of the recommendation define: sampled, and a random trace identifier. Others are to
    /// be sent as zero.
    const KNOWN: u8 = 0b11;

    /// Returns whether the trace is recorded.
    pub const fn sampled(self) -> bool {
        self.0 & Flags::SAMPLED.0 != 0
    }

    /// Returns the flags as one byte.
    pub const fn bits(self) -> u8 {
        self.0
    }
}

impl SpanContext {
    /// Reads the value of a `traceparent`. `None` if it is invalid, and so to be treated as absent.
    pub fn parse(traceparent: &[u8]) -> Option<Self> {
        let (head, rest) = traceparent.split_at_checked(55)?;
        let (version, fields) = head.split_at(2);
        let version = hex::<1>(version)?[0];
        // A later version may append fields, which are to be ignored.
        if version == 0xff || !(rest.is_empty() || (version > 0 && rest[0] == b'-')) {
            return None;
        }
        if [fields[0], fields[33], fields[50]] != *b"---" {
            return None;
        }
        let (trace, span) = (hex(&fields[1..33])?, hex(&fields[34..50])?);
        let flags = Flags(hex::<1>(&fields[51..])?[0] & Flags::KNOWN);
        (trace != [0; 16] && span != [0; 8]).then_some(SpanContext { trace: TraceId(trace), span: SpanId(span), flags })
    }

    /// Returns the span that stands for a whole handoff. `started_at` is that of its record: revisions begin anew in a
    /// new store, and the handoffs of two stores are not to share a trace.
    pub fn of_handoff(keys: &Keyspace, partition: PartitionId, handoff: HandoffId, started_at: u64) -> Self {
        let name = format!("{}@{handoff}@{started_at}", keys.handoff(partition));
        let span = fnv_1a_64(name.as_bytes());
        let trace = TraceId(fnv_1a_128(name.as_bytes()).to_be_bytes());
        SpanContext { trace, span: SpanId(span.to_be_bytes()), flags: Flags::SAMPLED }
    }
}

/// The value of `traceparent`.
impl fmt::Display for SpanContext {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (trace, span) = (u128::from_be_bytes(self.trace.0), u64::from_be_bytes(self.span.0));
        write!(out, "00-{trace:032x}-{span:016x}-{:02x}", self.flags.0)
    }
}

/// Reads lower-case hexadecimal digits, twice as many as bytes.
fn hex<const BYTES: usize>(text: &[u8]) -> Option<[u8; BYTES]> {
    let digit = |digit: u8| match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; BYTES];
    for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    (text.len() == 2 * BYTES).then_some(bytes)
}

/// FNV-1a, which is the same in every version and on every machine.
fn fnv_1a_64(text: &[u8]) -> u64 {
    text.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

fn fnv_1a_128(text: &[u8]) -> u128 {
    const BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    text.iter().fold(BASIS, |hash, byte| (hash ^ u128::from(*byte)).wrapping_mul(PRIME))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Revision;

    const EXAMPLE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_traceparent_is_written_as_it_was_read() {
        for text in [EXAMPLE, &EXAMPLE.replace("-01", "-00"), &EXAMPLE.replace("-01", "-03")] {
            assert_eq!(SpanContext::parse(text.as_bytes()).unwrap().to_string(), text);
        }
        assert!(SpanContext::parse(EXAMPLE.as_bytes()).unwrap().flags.sampled());
        assert!(!SpanContext::parse(EXAMPLE.replace("-01", "-02").as_bytes()).unwrap().flags.sampled());
    }

    #[test]
    fn flags_and_fields_of_later_versions_are_not_passed_on() {
        let known = EXAMPLE.replace("-01", "-03");
        for later in [EXAMPLE.replace("-01", "-ff"), EXAMPLE.replace("00-4", "cc-4").replace("-01", "-07-more")] {
            assert_eq!(SpanContext::parse(later.as_bytes()).unwrap().to_string(), known, "{later}");
        }
    }

    #[test]
    fn what_is_no_traceparent_is_treated_as_absent() {
        let no_trace = EXAMPLE.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32));
        let no_span = EXAMPLE.replace("00f067aa0ba902b7", &"0".repeat(16));
        for invalid in [
            "",
            "00",
            &no_trace,
            &no_span,
            &EXAMPLE.to_uppercase(),
            &EXAMPLE.replace("00-4", "ff-4"),
            &EXAMPLE.replace("00-4", "0x-4"),
            &EXAMPLE.replace("36-00", "3600-"),
            &EXAMPLE[..54],
            &format!("{EXAMPLE}-more"),
            &format!("cc{}0", &EXAMPLE[2..]),
            &EXAMPLE.replace('3', "ä"),
        ] {
            assert_eq!(SpanContext::parse(invalid.as_bytes()), None, "{invalid}");
        }
    }

    /// The vectors are those of the FNV reference.
    #[test]
    fn the_hash_is_fnv_1a() {
        assert_eq!(fnv_1a_64(b"foobar"), 0x8594_4171_f739_67e8);
        assert_eq!(fnv_1a_128(b"foobar"), 0x343e_1662_793c_64bf_6f0d_3597_ba44_6f18);
    }

    #[test]
    fn each_handoff_has_a_trace_of_its_own() {
        let context = |prefix, keyspace, partition, handoff, started_at| {
            let keys = Keyspace::new(prefix, keyspace);
            let handoff = HandoffId::created_at(Revision::new(handoff));
            SpanContext::of_handoff(&keys, PartitionId::new(partition), handoff, started_at)
        };
        let one = context("/segue/", "default", 7, 42, 1);
        assert_eq!(one, context("/segue/", "default", 7, 42, 1));
        assert_eq!(SpanContext::parse(one.to_string().as_bytes()), Some(one));
        for other in [
            context("/other/", "default", 7, 42, 1),
            context("/segue/", "other", 7, 42, 1),
            context("/segue/", "default", 8, 42, 1),
            context("/segue/", "default", 7, 43, 1),
            context("/segue/", "default", 7, 42, 2),
        ] {
            assert_ne!(one.trace, other.trace);
            assert_ne!(one.span, other.span);
        }
        // All participants have to agree on it, also those of different versions.
        assert_eq!(one.to_string(), "00-d065884e5d4d0450d77a45e9d920f14a-b3c0dc723474e72a-01");
    }
}
