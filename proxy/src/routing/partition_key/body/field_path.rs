//! Paths to the fields of a body.
//!
//! Pure.

use std::fmt;
use std::str::FromStr;

/// Most steps of a path.
const MAX_STEPS: usize = 16;
/// The largest number that a field of protobuf may have.
const MAX_FIELD_NUMBER: u32 = (1 << 29) - 1;

/// The steps to a field through the objects or messages that contain it, at least one. As text they are separated by dots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldPath<Step>(Vec<Step>);

/// The name of a member of a JSON object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberName(String);

/// The number of a field in a message of protobuf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FieldNumber(u32);

/// Why a text is no path. Each message continues a sentence about that text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FieldPathError {
    /// A step is no name that can be written here.
    #[error("has a member without a name, or with a space, a comma or a control character in its name")]
    NoName,
    /// A step is no number of a field.
    #[error("is not the number of a field, or several with dots between them")]
    NoNumber,
    /// There are too many steps.
    #[error("has more than 16 steps")]
    TooDeep,
}

impl<Step> FieldPath<Step> {
    /// Returns the number of steps.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the step at this depth, below [`len`](Self::len).
    pub(super) fn step(&self, depth: usize) -> &Step {
        &self.0[depth]
    }

    /// Returns whether both lead to the same field, or one leads through the field of the other.
    pub(super) fn overlaps(&self, other: &FieldPath<Step>) -> bool
    where
        Step: PartialEq,
    {
        self.0.iter().zip(&other.0).all(|(own, other)| own == other)
    }

    /// Returns the last step, and those before it.
    pub(super) fn split_last(&self) -> (&Step, &[Step]) {
        self.0.split_last().expect("a path has a step")
    }
}

impl<Step: FromStr<Err = FieldPathError>> FromStr for FieldPath<Step> {
    type Err = FieldPathError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let steps: Vec<Step> = text.split('.').map(str::parse).collect::<Result<_, _>>()?;
        if steps.len() > MAX_STEPS { Err(FieldPathError::TooDeep) } else { Ok(FieldPath(steps)) }
    }
}

impl<Step: fmt::Display> fmt::Display for FieldPath<Step> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, step) in self.0.iter().enumerate() {
            if index > 0 {
                out.write_str(".")?;
            }
            step.fmt(out)?;
        }
        Ok(())
    }
}

impl MemberName {
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for MemberName {
    type Err = FieldPathError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_bad = |c: char| c.is_whitespace() || c.is_control() || c == ',';
        if text.is_empty() || text.contains(is_bad) { Err(FieldPathError::NoName) } else { Ok(Self(text.to_owned())) }
    }
}

impl fmt::Display for MemberName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl FieldNumber {
    pub(super) fn get(self) -> u32 {
        self.0
    }
}

impl FromStr for FieldNumber {
    type Err = FieldPathError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_written_once = |number: &u32| number.to_string() == text && (1..=MAX_FIELD_NUMBER).contains(number);
        let number = text.parse::<u32>().ok().filter(is_written_once);
        number.map(FieldNumber).ok_or(FieldPathError::NoNumber)
    }
}

impl fmt::Display for FieldNumber {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}
