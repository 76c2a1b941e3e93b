//! The accepted counts, and the comparison with them.

use std::path::PathBuf;

use anyhow::Context as _;

use crate::say;

/// Largest accepted growth.
const MAX_GROWTH: f64 = 0.02;

/// The accepted number of instructions per request of each load.
pub(crate) struct Accepted(Vec<(String, u64)>);

impl Accepted {
    pub(crate) fn read() -> anyhow::Result<Self> {
        let path = path();
        let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let lines = text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
        let parsed = lines.map(|line| {
            let (name, count) = line.split_once(' ')?;
            Some((name.to_owned(), count.trim().parse().ok()?))
        });
        let expected = || format!("each line of {} should be a load's name and its instructions", path.display());
        parsed.collect::<Option<Vec<_>>>().map(Accepted).with_context(expected)
    }

    pub(crate) fn write(counts: &[(&str, u64)]) -> anyhow::Result<()> {
        let mut text = "# Instructions per request, written by `make instructions ARGS=--accept`.\n".to_owned();
        counts.iter().for_each(|(name, count)| text.push_str(&format!("{name} {count}\n")));
        std::fs::write(path(), text).with_context(|| format!("cannot write {}", path().display()))
    }

    fn of(&self, load: &str) -> Option<u64> {
        self.0.iter().find(|(name, _)| name == load).map(|(_, count)| *count)
    }

    /// Returns whether the count of a load has not grown beyond the bound.
    pub(crate) fn allows(&self, load: &str, count: u64) -> bool {
        self.of(load).is_some_and(|accepted| growth(count, accepted) <= MAX_GROWTH)
    }

    /// Reports each count and the accepted one. Returns how many counts have grown beyond the bound.
    pub(crate) fn compare(&self, counts: &[(&str, u64)]) -> anyhow::Result<usize> {
        let mut grown = 0;
        for (name, count) in counts {
            let accepted = self.of(name).with_context(|| {
                format!("{} has no line for {name}; `make instructions ARGS=--accept` writes it", path().display())
            })?;
            let growth = growth(*count, accepted);
            say(&format!("{name}: {count} instructions per request, accepted {accepted}, {:+.2} %", 100.0 * growth));
            grown += usize::from(growth > MAX_GROWTH);
        }
        if grown > 0 {
            say(&format!(
                "A request may not take over {:.0} % more instructions than accepted. If the growth is worth its cost, run \
                 `make instructions ARGS=--accept` and say why in the commit. Another compiler or C library changes the \
                 counts as well; accept those in a commit of their own.",
                100.0 * MAX_GROWTH
            ));
        }
        Ok(grown)
    }
}

fn growth(count: u64, accepted: u64) -> f64 {
    count as f64 / accepted as f64 - 1.0
}

fn path() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/accepted.txt"))
}
