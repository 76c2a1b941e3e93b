//! A process's record of its etcd: which cluster it is, up to which revision it was seen, and under which leader.
//!
//! A pure record. etcd puts the id of its cluster, its revision and its raft term into the header of each response.
//!
//! # Invariants
//!
//! * The cluster does not change once it is known.
//! * A term counts only if its member had a quorum when it responded: a member that is cut off raises its own term with
//!   each election that it loses.

use etcd_client::ResponseHeader;
use segue_protocol::ids::Revision;
use tokio::time::Instant;

use super::super::StoreFailure;
use super::convert;

/// A process's record of its etcd.
#[derive(Debug, Default)]
pub(super) struct ClusterRecord {
    cluster: Option<u64>,
    /// Why no endpoint may be used any more.
    refused: Option<StoreFailure>,
    /// The highest revision.
    revision: Revision,
    /// The raft term, and when it was seen.
    term: Option<(u64, Instant)>,
}

impl ClusterRecord {
    /// Returns the cluster, once it is known.
    pub(super) fn cluster(&self) -> Option<u64> {
        self.cluster
    }

    /// Remembers the cluster if none is known, and returns why one is refused.
    pub(super) fn admit(&mut self, cluster: u64) -> Result<(), StoreFailure> {
        let known = *self.cluster.get_or_insert(cluster);
        if known == cluster {
            return Ok(());
        }
        let why = format!(
            "it belongs to etcd cluster {cluster:x}, and this process follows cluster {known:x}, which it has seen at \
             revision {}",
            self.revision
        );
        Err(why.into())
    }

    /// Returns why no endpoint may be used any more, if so.
    pub(super) fn refused(&self) -> Option<StoreFailure> {
        self.refused.clone()
    }

    /// Refuses all endpoints from now on.
    pub(super) fn refuse(&mut self, why: StoreFailure) {
        self.refused = Some(why);
    }

    /// Records the header of a response. `of_quorum` is whether its member cannot have responded without one. It was asked
    /// at `asked`.
    pub(super) fn record(&mut self, header: &ResponseHeader, of_quorum: bool, asked: Instant) {
        self.revision = self.revision.max(convert::unsigned(header.revision()));
        if of_quorum {
            self.record_term(header.raft_term(), asked, Instant::now());
        }
    }

    /// Records a term. A lower one that was asked for after the known one shows that the known one never ruled.
    fn record_term(&mut self, term: u64, asked: Instant, now: Instant) {
        if self.term.is_none_or(|(known, since)| term > known || asked > since) {
            self.term = Some((term, now));
        }
    }

    /// Returns why a response of a leader of this term counts for nothing, if a later leader has been seen.
    pub(super) fn deposed(&self, term: u64) -> Option<String> {
        let (known, _) = self.term.filter(|(known, _)| term < *known)?;
        Some(format!("the response comes from a member in raft term {term}, after term {known} was seen"))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn another_cluster_is_refused_by_both_ids() {
        let mut seen = ClusterRecord::default();
        assert!(seen.admit(0xab).is_ok());
        assert!(seen.admit(0xab).is_ok());
        let refused = seen.admit(0xcd).unwrap_err().to_string();
        assert!(refused.contains("cluster cd") && refused.contains("cluster ab"), "{refused}");
        assert_eq!(seen.cluster(), Some(0xab));
    }

    #[test]
    fn a_term_below_one_seen_before_counts_for_nothing_until_a_later_response_shows_it() {
        let mut seen = ClusterRecord::default();
        let at = |seconds| Instant::now() + Duration::from_secs(seconds);
        assert_eq!(seen.deposed(1), None);
        seen.record_term(5, at(0), at(1));
        assert_eq!((seen.deposed(5), seen.deposed(6)), (None, None));
        assert!(seen.deposed(4).is_some());
        // Asked before term 5 was seen.
        seen.record_term(4, at(0), at(2));
        assert!(seen.deposed(4).is_some());
        seen.record_term(4, at(3), at(4));
        assert_eq!(seen.deposed(4), None);
    }
}
