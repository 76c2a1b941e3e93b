//! Reads one key at a time as the type that the program needs.
//!
//! For: the value, or the default, or a problem at the value's place; and the checks that two keys share. Not for:
//! knowing keys.
//!
//! # Invariants
//!
//! * A refused value is replaced by its default, so that reading continues and finds the other mistakes. No relation
//!   that involves it is reported. Such a default never leaves [`crate::parse`].

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use http::HeaderName;

use crate::error::{Place, Problem, Wrong, nearest, quoted};
use crate::keys;
use crate::raw::{Raw, RawValue};
use crate::units;

/// Longest name, in bytes: as long as a host's can be.
const MAX_NAME_BYTES: usize = 253;

pub(crate) struct ConfigReader<'a> {
    raw: &'a Raw,
    hostname: &'a str,
    problems: Vec<Problem>,
    refused: BTreeSet<&'static str>,
}

impl<'a> ConfigReader<'a> {
    /// Returns the name of the machine.
    pub(crate) fn hostname(&self) -> &'a str {
        self.hostname
    }

    pub(crate) fn new(raw: &'a Raw, hostname: &'a str) -> Self {
        Self { raw, hostname, problems: Vec::new(), refused: BTreeSet::new() }
    }

    pub(crate) fn into_problems(self) -> Vec<Problem> {
        self.problems
    }

    /// Adds the problems of a table of a list.
    pub(crate) fn include(&mut self, table: ConfigReader<'_>) {
        self.problems.extend(table.into_problems());
    }

    /// Returns the tables of a list and the list's place, if the file has it.
    pub(crate) fn tables(&self, list: &str) -> Option<(Place, Vec<ConfigReader<'a>>)> {
        let tables = self.raw.tables.get(list)?;
        Some((tables.place.clone(), tables.each.iter().map(|table| ConfigReader::new(table, self.hostname)).collect()))
    }

    pub(crate) fn has_section(&self, section: &str) -> bool {
        self.raw.sections.contains_key(section)
    }

    pub(crate) fn is_given(&self, key: &str) -> bool {
        self.raw.values.contains_key(key)
    }

    /// Returns whether the value was given and could not be read.
    pub(crate) fn is_refused(&self, key: &str) -> bool {
        self.refused.contains(key)
    }

    /// Returns the place of `section`, or of a key in it, if the file or a variable contains one.
    pub(crate) fn anything_in(&self, section: &str) -> Option<Place> {
        let header = self.raw.sections.get(section).map(|section| section.place.clone());
        let value = || self.raw.values.iter().find(|(key, _)| keys::within(key, section).is_some());
        header.or_else(|| value().map(|(_, given)| given.key_place.clone()))
    }

    /// Returns the place of a key, or of a section or a key in it, if it is given.
    pub(crate) fn given_at(&self, path: &str) -> Option<Place> {
        let key = self.raw.values.get(path).map(|given| given.key_place.clone());
        key.or_else(|| self.anything_in(path))
    }

    /// Returns the place of an empty section of the file.
    pub(crate) fn empty_section(&self, section: &str) -> Option<Place> {
        let section = self.raw.sections.get(section)?;
        section.is_empty.then(|| section.place.clone())
    }

    /// Returns where a key was written, for the text of a problem.
    pub(crate) fn origin(&self, key: &str) -> String {
        self.raw.values.get(key).map_or("the default".to_owned(), |given| given.key_place.to_string())
    }

    /// Reports a problem of the key itself.
    pub(crate) fn report_key(&mut self, key: &'static str, wrong: Wrong) {
        let place = self.raw.values.get(key).map(|given| given.key_place.clone());
        self.report(place, key, wrong);
    }

    /// Reports a problem of the key's value.
    pub(crate) fn report_value(&mut self, key: &'static str, wrong: Wrong) {
        let place = self.raw.values.get(key).map(|given| given.value_place.clone());
        self.report(place, key, wrong);
    }

    /// Reports a problem at `place`, or else at the section of `key`, or else at the start of the file.
    ///
    /// The problem is dropped if a part of the file was not understood: a key that seems to be missing may be there.
    pub(crate) fn report(&mut self, place: Option<Place>, key: &str, wrong: Wrong) {
        if self.raw.doubtful_from.is_some() {
            return;
        }
        let section = || {
            let mut parents = key.rmatch_indices('.').filter_map(|(i, _)| self.raw.sections.get(&key[..i]));
            parents.next().map(|section| section.place.clone())
        };
        let place = place.or_else(section);
        let place = place.unwrap_or_else(|| Place::File { file: self.raw.file.clone(), line: 1, column: 1 });
        self.problems.push(Problem::new(place, key, wrong));
    }

    /// Returns the value of `key` as `parse` reads it. `None` if it is absent or refused.
    pub(crate) fn read<T>(
        &mut self,
        key: &'static str,
        parse: impl FnOnce(&RawValue) -> Result<T, Wrong>,
    ) -> Option<T> {
        debug_assert!(self.raw.keys.known(key).is_some(), "{key} is missing in the table of keys");
        let given = self.raw.values.get(key)?;
        match parse(&given.value) {
            Ok(value) => Some(value),
            Err(wrong) => {
                self.refused.insert(key);
                let problem = Problem::new(given.value_place.clone(), key, wrong);
                if self.raw.doubtful_from.is_none_or(|line| problem.is_before(line)) {
                    self.problems.push(problem);
                }
                None
            }
        }
    }

    pub(crate) fn duration(&mut self, key: &'static str, default: Duration) -> Duration {
        self.duration_if_given(key).unwrap_or(default)
    }

    /// Returns a duration above zero; `None` by default.
    pub(crate) fn duration_if_given(&mut self, key: &'static str) -> Option<Duration> {
        self.read(key, |value| match duration(value)? {
            Duration::ZERO => Err(Wrong::new("zero", "expected more than that")),
            length => Ok(length),
        })
    }

    pub(crate) fn duration_or_zero(&mut self, key: &'static str, default: Duration) -> Duration {
        self.read(key, duration).unwrap_or(default)
    }

    /// Returns the time between two writes to the store that every participant or partition makes, or zero for none.
    pub(crate) fn write_interval_or_zero(&mut self, key: &'static str, default: Duration) -> Duration {
        let read = self.read(key, |value| match duration(value)? {
            interval if !interval.is_zero() && interval < Duration::from_secs(1) => Err(Wrong::new(
                format!("{} would write to the store too often", units::show_duration(interval)),
                "expected at least 1s, or 0s for none",
            )),
            interval => Ok(interval),
        });
        read.unwrap_or(default)
    }

    /// Returns the TTL of a lease. etcd grants whole seconds, and a single second leaves no time to renew.
    pub(crate) fn lease(&mut self, key: &'static str, default: Duration) -> Duration {
        let read = self.read(key, |value| match duration(value)? {
            ttl if ttl < Duration::from_secs(2) => Err(Wrong::new(
                format!("{} is too short for a lease", units::show_duration(ttl)),
                "expected at least 2s",
            )),
            ttl if ttl.subsec_nanos() > 0 => {
                let fact = format!("{} is not a whole number of seconds", units::show_duration(ttl));
                let near = quoted(&format!("{}s", ttl.as_secs() + 1));
                Err(Wrong::new(fact, "expected whole seconds, as etcd grants no others").did_you_mean(Some(near)))
            }
            ttl => Ok(ttl),
        });
        read.unwrap_or(default)
    }

    pub(crate) fn size(&mut self, key: &'static str, default: usize) -> usize {
        self.size_if_given(key).unwrap_or(default)
    }

    /// Returns a size above zero; `None` by default.
    pub(crate) fn size_if_given(&mut self, key: &'static str) -> Option<usize> {
        self.read(key, |value| match size(value)? {
            0 => Err(Wrong::new("zero", "expected more than that")),
            bytes => Ok(bytes),
        })
    }

    /// Returns a size above zero and up to `most`.
    pub(crate) fn size_up_to(&mut self, key: &'static str, most: usize, default: usize) -> usize {
        let read = self.read(key, |value| match size(value)? {
            0 => Err(Wrong::new("zero", format!("expected at most {}, and more than zero", units::show_size(most)))),
            bytes if bytes > most => {
                let fact = format!("{} is too large", units::show_size(bytes));
                Err(Wrong::new(fact, format!("expected at most {}", units::show_size(most))))
            }
            bytes => Ok(bytes),
        });
        read.unwrap_or(default)
    }

    pub(crate) fn size_or_zero(&mut self, key: &'static str, default: usize) -> usize {
        self.read(key, size).unwrap_or(default)
    }

    /// Returns a whole number within `range`.
    pub(crate) fn integer<T: TryFrom<i64>>(&mut self, key: &'static str, range: RangeInclusive<i64>, default: T) -> T {
        let expected = match (range.start(), range.end()) {
            (start, &i64::MAX) => format!("expected a whole number of at least {start}"),
            (start, end) => format!("expected a whole number from {start} to {end}"),
        };
        let read = self.read(key, |value| {
            let fits = |number: i64| T::try_from(number).ok().filter(|_| range.contains(&number));
            match toml(value).as_ref().unwrap_or(value) {
                RawValue::Integer(number) => {
                    fits(*number).ok_or_else(|| Wrong::new(format!("{number} is out of range"), &*expected))
                }
                other => Err(Wrong::new(format!("{} is not a whole number", show(other)), &*expected)),
            }
        });
        read.unwrap_or(default)
    }

    /// Returns a finite number above zero.
    pub(crate) fn weight(&mut self, key: &'static str, default: f64) -> f64 {
        let read = self.read(key, |value| {
            #[allow(clippy::cast_precision_loss, reason = "a weight of 2^53 is as good as its neighbour")]
            let number = match toml(value).as_ref().unwrap_or(value) {
                RawValue::Integer(number) => Some(*number as f64),
                RawValue::Float(number) => Some(*number),
                _ => None,
            };
            let wrong =
                || Wrong::new(format!("{} is not a weight", show(value)), "expected a number above zero, such as 1.0");
            number.filter(|number| number.is_finite() && *number > 0.0).ok_or_else(wrong)
        });
        read.unwrap_or(default)
    }

    /// Returns one of `choices`, by its name.
    pub(crate) fn choice<T: Copy>(&mut self, key: &'static str, choices: &[(&str, T)], default: T) -> T {
        self.choice_if_given(key, choices).unwrap_or(default)
    }

    pub(crate) fn choice_if_given<T: Copy>(&mut self, key: &'static str, choices: &[(&str, T)]) -> Option<T> {
        self.read(key, |value| choice(value, choices))
    }

    pub(crate) fn boolean(&mut self, key: &'static str, default: bool) -> bool {
        let read = self.read(key, |value| match value {
            RawValue::Boolean(value) => Ok(*value),
            RawValue::Variable(text) if text == "true" => Ok(true),
            RawValue::Variable(text) if text == "false" => Ok(false),
            other => Err(Wrong::new(format!("{} is not a boolean", show(other)), "expected true or false")),
        });
        read.unwrap_or(default)
    }

    pub(crate) fn listen(&mut self, key: &'static str, default: SocketAddr) -> SocketAddr {
        self.listen_if_given(key).unwrap_or(default)
    }

    /// Returns an address to listen at; `None` by default.
    pub(crate) fn listen_if_given(&mut self, key: &'static str) -> Option<SocketAddr> {
        const EXPECTED: &str = "expected an IP address and a port, such as \"127.0.0.1:8080\" or \"[::1]:8080\"";
        self.read(key, |value| {
            let text = text(value, EXPECTED)?;
            let any = text.strip_prefix(':').or(text.strip_prefix("*:"));
            let near = any.map(|port| quoted(&format!("0.0.0.0:{port}")));
            let near =
                near.or_else(|| text.strip_prefix("localhost:").map(|port| quoted(&format!("127.0.0.1:{port}"))));
            let wrong = || Wrong::new(format!("{} is not an address to listen at", quoted(text)), EXPECTED);
            text.parse().map_err(|_| wrong().did_you_mean(near))
        })
    }

    /// Returns text that is not empty.
    pub(crate) fn text(&mut self, key: &'static str) -> Option<String> {
        const EXPECTED: &str = "expected text that is not empty";
        self.read(key, |value| match text(value, EXPECTED)? {
            "" => Err(Wrong::new("empty", EXPECTED)),
            text => Ok(text.to_owned()),
        })
    }

    /// Returns a name that becomes part of keys in the store.
    pub(crate) fn name(&mut self, key: &'static str) -> Option<String> {
        self.read(key, |value| name(text(value, EXPECTED_NAME)?))
    }

    /// Returns a role's name: the given one, or the host's.
    pub(crate) fn role_name(&mut self, key: &'static str) -> String {
        if self.is_given(key) {
            return self.name(key).unwrap_or_default();
        }
        name(self.hostname).unwrap_or_else(|_| {
            let fact = format!("not given, and the host's name {} cannot stand in for it", quoted(self.hostname));
            self.report(None, key, Wrong::new(fact, EXPECTED_NAME));
            String::new()
        })
    }

    pub(crate) fn header(&mut self, key: &'static str) -> Option<HeaderName> {
        const EXPECTED: &str = "expected the name of a header, such as \"x-key\"";
        self.read(key, |value| {
            let text = text(value, EXPECTED)?;
            let wrong = |_| Wrong::new(format!("{} is not the name of a header", quoted(text)), EXPECTED);
            HeaderName::try_from(text).map_err(wrong)
        })
    }

    /// Checks that `low` does not exceed `high` or, if `strictly`, is below it. The problem points at the one that was
    /// given, or at `low` if both were.
    pub(crate) fn ordered<T: PartialOrd + Copy>(
        &mut self,
        (low_key, low): (&'static str, T),
        (high_key, high): (&'static str, T),
        strictly: bool,
        show: impl Fn(T) -> String,
    ) {
        let holds = if strictly { low < high } else { low <= high };
        if holds || self.is_refused(low_key) || self.is_refused(high_key) {
            return;
        }
        let (low, high) = (show(low), show(high));
        if self.is_given(low_key) {
            let (relation, bound) = if strictly { ("not below", "less than") } else { ("above", "at most") };
            let fact = format!("{low} is {relation} {high_key}, which is {high} ({})", self.origin(high_key));
            self.report_value(low_key, Wrong::new(fact, format!("expected {bound} {high}")));
        } else {
            let (relation, bound) = if strictly { ("not above", "more than") } else { ("below", "at least") };
            let fact = format!("{high} is {relation} {low_key}, which is {low} ({})", self.origin(low_key));
            self.report_value(high_key, Wrong::new(fact, format!("expected {bound} {low}")));
        }
    }
}

const EXPECTED_NAME: &str = "expected letters, digits, '.', '_' and '-', 253 at most";

/// Returns the text if it is a name.
pub(crate) fn name(text: &str) -> Result<String, Wrong> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if text.is_empty() || text.len() > MAX_NAME_BYTES || !text.chars().all(allowed) {
        return Err(Wrong::new(format!("{} cannot be a name", quoted(text)), EXPECTED_NAME));
    }
    Ok(text.to_owned())
}

fn size(value: &RawValue) -> Result<usize, Wrong> {
    match value {
        RawValue::Integer(number) => Err(without_unit(*number, "B", units::EXPECTED_SIZE)),
        value => units::size(text(value, units::EXPECTED_SIZE)?),
    }
}

pub(crate) fn choice<T: Clone>(value: &RawValue, choices: &[(&str, T)]) -> Result<T, Wrong> {
    let names = || choices.iter().map(|(name, _)| *name);
    let expected = format!("expected one of {}", names().collect::<Vec<_>>().join(", "));
    let text = text(value, &expected)?;
    let chosen = choices.iter().find(|(name, _)| *name == text);
    chosen.map(|(_, choice)| choice.clone()).ok_or_else(|| {
        let near = nearest(&text.to_lowercase(), names()).map(str::to_owned);
        Wrong::new(format!("{} is not known", quoted(text)), expected).did_you_mean(near)
    })
}

pub(crate) fn text<'v>(value: &'v RawValue, expected: &str) -> Result<&'v str, Wrong> {
    match value {
        RawValue::Text(text) | RawValue::Variable(text) => Ok(text),
        other => Err(Wrong::new(format!("{} is not a string", show(other)), expected)),
    }
}

/// Returns the strings of a list. A variable may contain TOML, or items separated by commas.
pub(crate) fn list(value: &RawValue, expected: &str) -> Result<Vec<String>, Wrong> {
    let parsed = match value {
        RawValue::Variable(written) if !written.trim_start().starts_with('[') => {
            let items = written.split(',').map(str::trim).filter(|item| !item.is_empty());
            return Ok(items.map(str::to_owned).collect());
        }
        value => toml(value),
    };
    match parsed.as_ref().unwrap_or(value) {
        RawValue::List(items) => items.iter().map(|item| text(item, expected).map(str::to_owned)).collect(),
        other => Err(Wrong::new(format!("{} is not a list", show(other)), expected)),
    }
}

fn duration(value: &RawValue) -> Result<Duration, Wrong> {
    match value {
        RawValue::Integer(number) => Err(without_unit(*number, "s", units::EXPECTED_DURATION)),
        value => units::duration(text(value, units::EXPECTED_DURATION)?),
    }
}

fn without_unit(number: i64, unit: &str, expected: &str) -> Wrong {
    let near = (number >= 0).then(|| quoted(&format!("{number}{unit}")));
    Wrong::new(format!("{number} has no unit"), expected).did_you_mean(near)
}

/// Parses a variable's content, for a key whose type is not text.
pub(crate) fn toml(value: &RawValue) -> Option<RawValue> {
    match value {
        RawValue::Variable(text) => RawValue::from_toml(text),
        _ => None,
    }
}

/// Returns a value as a problem names it.
pub(crate) fn show(value: &RawValue) -> String {
    match value {
        RawValue::Text(text) | RawValue::Variable(text) => quoted(text),
        RawValue::Integer(number) => number.to_string(),
        RawValue::Float(number) => number.to_string(),
        RawValue::Boolean(value) => value.to_string(),
        RawValue::List(_) => "a list".to_owned(),
        RawValue::Table(_) => "a table".to_owned(),
        RawValue::Other(what) => what.clone(),
    }
}
