//! Sums up the moves of a round in one line of the log. The lines about one partition are at `debug`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use segue_protocol::planning::PlannedWrite;
use segue_protocol::records::Handoff;
use tokio::time::Instant;

use super::super::HandoffResult;

/// Most pairs of pods, or causes, that a line names.
const MAX_NAMED: usize = 8;
/// How long moves are added up while there are always some in flight.
const MAX_AGE: Duration = Duration::from_secs(10);

/// Numbers of partitions by what a line calls them.
#[derive(Debug, Default)]
struct Counts(BTreeMap<String, usize>);

impl Counts {
    fn add(&mut self, name: String) {
        *self.0.entry(name).or_default() += 1;
    }

    fn total(&self) -> usize {
        self.0.values().sum()
    }

    /// Returns the names with their numbers, the largest first.
    fn in_words(&self) -> String {
        let mut counts: Vec<_> = self.0.iter().collect();
        counts.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        let named = counts.iter().take(MAX_NAMED).map(|(name, count)| format!("{name} ({count})"));
        let mut words = named.collect::<Vec<_>>().join(", ");
        if counts.len() > MAX_NAMED {
            let _ = write!(words, " and {} more", counts.len() - MAX_NAMED);
        }
        words
    }
}

fn pods(handoff: &Handoff) -> String {
    format!("{} → {}", handoff.old_owner.as_deref().unwrap_or("nobody"), handoff.new_owner)
}

/// Returns what a round has decided in one line. A decision about one partition is told in full. `None` if nothing is worth
/// a line.
pub(super) fn planned(decided: &[&PlannedWrite]) -> Option<String> {
    let (mut moves, mut cancels) = (Counts::default(), Counts::default());
    let mut only = None;
    for decision in decided {
        match decision {
            PlannedWrite::Create { handoff, .. } => moves.add(pods(handoff)),
            PlannedWrite::Assign { assignment, .. } => moves.add(format!("nobody → {}", assignment.owner)),
            PlannedWrite::Cancel { reason, .. } => cancels.add(reason.as_str().to_owned()),
            PlannedWrite::Abandon { .. } => cancels.add("new_owner_dead".to_owned()),
            _ => continue,
        }
        only = Some(decision);
    }
    let (planned, cancelled) = (moves.total(), cancels.total());
    match planned + cancelled {
        0 => None,
        1 => only.map(ToString::to_string),
        _ => {
            let moves = (planned > 0).then(|| format!("planned {planned} moves: {}", moves.in_words()));
            let cancels = (cancelled > 0).then(|| format!("cancelled {cancelled} moves: {}", cancels.in_words()));
            Some(moves.into_iter().chain(cancels).collect::<Vec<_>>().join("; "))
        }
    }
}

/// Returns whether a decision gets a line of its own: it is about no single partition, or an operator asked for it.
pub(super) fn stands_alone(decision: &PlannedWrite) -> bool {
    matches!(decision, PlannedWrite::Answer { .. } | PlannedWrite::WriteConfig { .. } | PlannedWrite::DropPin { .. })
}

/// The moves that have ended since the last line.
#[derive(Debug, Default)]
pub(super) struct EndedMoves {
    began: Option<Instant>,
    moved: Counts,
    cancelled: Counts,
}

impl EndedMoves {
    /// Adds a move that began at `began`.
    pub(super) fn add(&mut self, handoff: &Handoff, result: HandoffResult, began: Instant) {
        self.began = Some(self.began.map_or(began, |first| first.min(began)));
        match result {
            HandoffResult::Completed(_) => self.moved.add(pods(handoff)),
            HandoffResult::Cancelled(cause) => self.cancelled.add(cause.to_owned()),
        }
    }

    /// Returns the line about them, if it is due: no move is in flight, or they have been added up for long.
    pub(super) fn line(&mut self, in_flight: usize, now: Instant) -> Option<String> {
        let took = now.saturating_duration_since(self.began?);
        if in_flight > 0 && took < MAX_AGE {
            return None;
        }
        let EndedMoves { moved, cancelled, .. } = std::mem::take(self);
        let number = match moved.total() {
            1 => "1 partition".to_owned(),
            number => format!("{number} partitions"),
        };
        let mut line = format!("moved {number} in {:.1} s", took.as_secs_f64());
        if moved.total() > 0 {
            let _ = write!(line, ": {}", moved.in_words());
        }
        if cancelled.total() > 0 {
            let _ = write!(line, "; {} moves were cancelled: {}", cancelled.total(), cancelled.in_words());
        }
        if in_flight > 0 {
            let _ = write!(line, "; {in_flight} go on");
        }
        Some(line)
    }
}

#[cfg(test)]
mod tests {
    use segue_protocol::ids::{Epoch, Incarnation, PartitionId, Revision};
    use segue_protocol::planning::MoveCause;

    use super::*;

    fn handoff(partition: u32, from: Option<&str>, to: &str) -> Handoff {
        let incarnation = Incarnation::registered_at(Revision::new(1));
        let new = Handoff::new(PartitionId::new(partition), to, incarnation, Epoch::default());
        Handoff { old_owner: from.map(str::to_owned), reason: "balance".to_owned(), ..new }
    }

    fn create(handoff: Handoff) -> PlannedWrite {
        let (assignment, seen) = (Revision::ZERO, Revision::ZERO);
        PlannedWrite::Create { handoff, cause: MoveCause::Balance, assignment, seen }
    }

    #[test]
    fn a_round_is_one_line_and_a_single_move_is_told_in_full() {
        let moves: Vec<_> = (0..3).map(|number| create(handoff(number, Some("a"), "b"))).collect();
        let other = create(handoff(3, None, "c"));
        let sweep = PlannedWrite::Sweep { partition: PartitionId::new(9) };
        let all: Vec<_> = moves.iter().chain([&other, &sweep]).collect();
        assert_eq!(planned(&all).as_deref(), Some("planned 4 moves: a → b (3), nobody → c (1)"));
        assert_eq!(planned(&[&other, &sweep]).as_deref(), Some("move partition 3 from nobody to c: balance"));
        assert_eq!(planned(&[&sweep]), None);
    }

    #[test]
    fn moves_are_summed_up_once_none_is_in_flight_or_after_a_while() {
        let (mut ended, began) = (EndedMoves::default(), Instant::now());
        assert_eq!(ended.line(0, began), None);
        ended.add(&handoff(0, Some("a"), "b"), HandoffResult::Completed(MoveCause::Balance), began);
        ended.add(&handoff(1, Some("a"), "b"), HandoffResult::Cancelled("warm_timeout"), began);
        assert_eq!(ended.line(5, began + Duration::from_secs(1)), None);
        let line = ended.line(5, began + MAX_AGE).unwrap();
        let cancelled = "1 moves were cancelled: warm_timeout (1)";
        assert_eq!(line, format!("moved 1 partition in 10.0 s: a → b (1); {cancelled}; 5 go on"));
        assert_eq!(ended.line(0, began + MAX_AGE), None);
    }
}
