//! A key in the body of requests: members of a JSON object, or fields of a gRPC message.

use std::fmt::Display;
use std::str::FromStr;

use segue_proxy::routing::partition_key::{BodyKey, FieldPath, FieldPathError, MAX_KEY_PARTS, OverlappingPaths};

use crate::error::{Wrong, quoted};
use crate::raw::RawValue;
use crate::reader::{ConfigReader, list, toml};

const EXPECTED_MEMBERS: &str = "expected members, such as \"person.id\" or [\"team\", \"person.id\"]";
const EXPECTED_FIELDS: &str = "expected numbers of fields, such as 1 or [\"1\", \"3.1\"]";

/// Reads the members of a JSON object that are the key. Returns their number too.
pub(super) fn json(r: &mut ConfigReader<'_>, key: &'static str, join: &str) -> Option<(BodyKey, usize)> {
    r.read(key, |value| {
        let texts = match value {
            RawValue::Text(text) => vec![text.clone()],
            value => list(value, EXPECTED_MEMBERS)?,
        };
        of_paths(&texts, EXPECTED_MEMBERS, |paths| BodyKey::json(paths, join))
    })
}

/// Reads the numbers of the fields of a gRPC message that are the key. Returns how many they are too.
pub(super) fn grpc(r: &mut ConfigReader<'_>, key: &'static str, join: &str) -> Option<(BodyKey, usize)> {
    r.read(key, |value| {
        let written = toml(value);
        let texts = match (written.as_ref(), value) {
            (Some(RawValue::List(items)), _) | (None, RawValue::List(items)) => {
                list(&RawValue::List(items.iter().map(numbers_as_text).collect()), EXPECTED_FIELDS)?
            }
            (_, RawValue::Variable(_)) => list(value, EXPECTED_FIELDS)?,
            (_, value) => match numbers_as_text(value) {
                RawValue::Text(text) => vec![text],
                value => list(&value, EXPECTED_FIELDS)?,
            },
        };
        of_paths(&texts, EXPECTED_FIELDS, |paths| BodyKey::grpc(paths, join))
    })
}

fn numbers_as_text(value: &RawValue) -> RawValue {
    match value {
        RawValue::Integer(number) => RawValue::Text(number.to_string()),
        value => value.clone(),
    }
}

fn of_paths<Step>(
    texts: &[String],
    expected: &'static str,
    key: impl FnOnce(Vec<FieldPath<Step>>) -> Result<BodyKey, OverlappingPaths>,
) -> Result<(BodyKey, usize), Wrong>
where
    Step: FromStr<Err = FieldPathError> + Display,
{
    if texts.is_empty() || texts.len() > MAX_KEY_PARTS {
        return Err(Wrong::new(format!("has {} parts", texts.len()), format!("expected 1 to {MAX_KEY_PARTS}")));
    }
    let path = |text: &String| {
        text.parse().map_err(|why: FieldPathError| Wrong::new(format!("{} {why}", quoted(text)), expected))
    };
    let paths: Vec<FieldPath<Step>> = texts.iter().map(path).collect::<Result<_, _>>()?;
    let found = key(paths).map_err(|OverlappingPaths { later, earlier }| {
        let fact =
            format!("{} leads to the same field as {}, or through it", quoted(&texts[later]), quoted(&texts[earlier]));
        Wrong::new(fact, "expected each part once")
    })?;
    Ok((found, texts.len()))
}
