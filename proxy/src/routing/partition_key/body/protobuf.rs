//! The fields of a protobuf message that are the parts of a key. Its schema is not known.
//!
//! Pure. A varint is the two's complement of 64 bits, as of `int64`, in decimal. What the wire does not tell is not guessed:
//! zigzag (`sint64`) and numbers above 2^63 (`uint64`) become other texts, though never the same one for two values.
//!
//! # Invariants
//!
//! * The last occurrence of a field counts, and messages that occur twice are merged, as every parser does.
//! * A field that occurs with several wire types is refused: a parser takes that of its schema alone.

use super::super::decoding::LocationError;
use super::field_path::{FieldNumber, FieldPath};

/// Most groups within each other, as of the parsers of protobuf.
const MAX_GROUPS: usize = 100;

/// Returns the values of the fields at these paths, in their order, as text. `None`: it is not there.
pub(super) fn find(paths: &[FieldPath<FieldNumber>], message: &[u8]) -> Result<Vec<Option<Vec<u8>>>, LocationError> {
    let mut found = vec![None; paths.len()];
    search(paths, message, 0, u8::MAX >> (8 - paths.len()), &mut found)?;
    let text = |value: FieldValue<'_>| match value {
        FieldValue::Varint(number) => number.cast_signed().to_string().into_bytes(),
        FieldValue::Bytes(bytes) => bytes.to_vec(),
        FieldValue::Other => Vec::new(),
    };
    Ok(found.into_iter().map(|value| value.map(text)).collect())
}

/// Returns a message with these strings at the paths.
pub(super) fn write(paths: &[FieldPath<FieldNumber>], parts: &[&str]) -> Vec<u8> {
    let mut message = Vec::new();
    for (path, part) in paths.iter().zip(parts) {
        let mut value = part.as_bytes().to_vec();
        for depth in (0..path.len()).rev() {
            let mut field = Vec::new();
            write_varint(u64::from(path.step(depth).get()) << 3 | 2, &mut field);
            write_varint(value.len() as u64, &mut field);
            field.append(&mut value);
            value = field;
        }
        message.append(&mut value);
    }
    message
}

fn write_varint(mut number: u64, out: &mut Vec<u8>) {
    while number > 0x7f {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

#[derive(Debug, Clone, Copy)]
enum FieldValue<'a> {
    Varint(u64),
    Bytes(&'a [u8]),
    /// One that is no part of a key: a number of fixed size, which may be a float, or a group.
    Other,
}

/// Searches a message to which the first `depth` steps of some paths lead, those with a bit in `led_by`.
fn search<'a>(
    paths: &[FieldPath<FieldNumber>],
    mut message: &'a [u8],
    depth: usize,
    led_by: u8,
    found: &mut [Option<FieldValue<'a>>],
) -> Result<(), LocationError> {
    while !message.is_empty() {
        let (number, value) = field(&mut message).ok_or(LocationError::Unreadable)?;
        let is_next = |(part, path): &(usize, &FieldPath<FieldNumber>)| {
            led_by >> part & 1 == 1 && path.step(depth).get() == number
        };
        let leads = paths.iter().enumerate().filter(is_next).fold(0, |leads, (part, _)| leads | 1u8 << part);
        let Some(path) = paths.get(leads.trailing_zeros() as usize) else { continue };
        if path.len() > depth + 1 {
            let FieldValue::Bytes(within) = value else { return Err(LocationError::Unclear) };
            search(paths, within, depth + 1, leads, found)?;
            continue;
        }
        // No path leads through the field of another one.
        let found = &mut found[leads.trailing_zeros() as usize];
        match (&*found, value) {
            (None | Some(FieldValue::Varint(_)), FieldValue::Varint(_))
            | (None | Some(FieldValue::Bytes(_)), FieldValue::Bytes(_)) => *found = Some(value),
            _ => return Err(LocationError::Unclear),
        }
    }
    Ok(())
}

/// Takes a field off the front. `None`: there is none.
fn field<'a>(message: &mut &'a [u8]) -> Option<(u32, FieldValue<'a>)> {
    let (number, wire_type) = tag(message)?;
    let value = match wire_type {
        3 => {
            skip_group(message, number)?;
            FieldValue::Other
        }
        _ => plain(message, wire_type)?,
    };
    Some((number, value))
}

/// Takes the number of a field and its wire type off the front.
fn tag(message: &mut &[u8]) -> Option<(u32, u8)> {
    let tag = u32::try_from(varint(message)?).ok()?;
    Some((tag >> 3, (tag & 7) as u8)).filter(|(number, _)| *number > 0)
}

/// Takes a value that is no group off the front.
fn plain<'a>(message: &mut &'a [u8], wire_type: u8) -> Option<FieldValue<'a>> {
    match wire_type {
        0 => varint(message).map(FieldValue::Varint),
        1 => message.split_off(..8).map(|_| FieldValue::Other),
        2 => {
            let length = usize::try_from(varint(message)?).ok()?;
            message.split_off(..length).map(FieldValue::Bytes)
        }
        5 => message.split_off(..4).map(|_| FieldValue::Other),
        _ => None,
    }
}

/// Takes the rest of a group off the front, and those within it.
fn skip_group(message: &mut &[u8], number: u32) -> Option<()> {
    let mut open = vec![number];
    while let Some(innermost) = open.last() {
        match tag(message)? {
            (number, 3) if open.len() < MAX_GROUPS => open.push(number),
            (number, 4) if number == *innermost => drop(open.pop()),
            (_, wire_type) => drop(plain(message, wire_type)?),
        }
    }
    Some(())
}

/// Takes a varint of 64 bits off the front.
fn varint(message: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..70).step_by(7) {
        let byte = *message.split_off_first()?;
        // The tenth byte has one bit left.
        if shift == 63 && byte > 1 {
            return None;
        }
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(path: &str, message: &[u8]) -> Result<Option<String>, LocationError> {
        let found = find(&[path.parse().unwrap()], message)?;
        let [part] = <[_; 1]>::try_from(found).unwrap();
        Ok(part.map(|part| String::from_utf8(part).unwrap()))
    }

    fn text(key: &str) -> Result<Option<String>, LocationError> {
        Ok(Some(key.to_owned()))
    }

    #[test]
    fn varints_and_bytes_are_keys() {
        for (message, key) in [
            (&b"\x08\x07"[..], "7"),
            (b"\x08\x00", "0"),
            (b"\x08\xac\x02", "300"),
            // The same number in more bytes than it needs.
            (b"\x08\x87\x80\x00", "7"),
            (b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "9223372036854775807"),
            (b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "-1"),
            (b"\x0a\x04anna", "anna"),
            (b"\x0a\x00", ""),
        ] {
            assert_eq!(at("1", message), text(key), "{message:?}");
        }
        assert_eq!(find(&["1".parse().unwrap()], b"\x0a\x02\xff\x00"), Ok(vec![Some(b"\xff\0".to_vec())]));
    }

    #[test]
    fn a_field_is_found_among_others_of_all_wire_types() {
        let others = b"\x10\x01\x19\0\0\0\0\0\0\0\0\x22\x02\x08\x09\x2d\0\0\0\0\x33\x08\x09\x3b\x08\x01\x3c\x34";
        let message = [others, &b"\x08\x07"[..], others].concat();
        assert_eq!(at("1", &message), text("7"));
        assert_eq!(at("8", &message), Ok(None));
        assert_eq!(at("1", b""), Ok(None));
        assert_eq!(at("536870911", b"\xf8\xff\xff\xff\x0f\x07"), text("7"));
    }

    #[test]
    fn the_last_occurrence_counts_and_messages_are_merged() {
        assert_eq!(at("1", b"\x08\x07\x10\x01\x08\x08"), text("8"));
        assert_eq!(at("1", b"\x0a\x01a\x0a\x00"), text(""));
        assert_eq!(at("3.1", b"\x1a\x02\x08\x07\x1a\x02\x08\x08"), text("8"));
        assert_eq!(at("3.1", b"\x1a\x02\x08\x07\x1a\x02\x10\x08\x1a\x00"), text("7"));
        assert_eq!(at("3.1", b"\x08\x07\x10\x01"), Ok(None));
        assert_eq!(at("3.1.2", b"\x1a\x04\x0a\x02\x10\x05\x0a\x02\x10\x06"), text("5"));
    }

    #[test]
    fn a_field_of_another_kind_or_of_several_is_refused() {
        for message in [
            &b"\x08\x07\x0a\x01a"[..],
            b"\x0a\x01a\x08\x07",
            b"\x09\0\0\0\0\0\0\0\0",
            b"\x0d\0\0\0\0",
            b"\x0b\x0c",
            b"\x08\x07\x0b\x0c",
        ] {
            assert_eq!(at("1", message), Err(LocationError::Unclear), "{message:?}");
        }
        assert_eq!(at("3.1", b"\x18\x07"), Err(LocationError::Unclear));
    }

    #[test]
    fn what_is_no_message_is_unreadable_wherever_it_breaks_off() {
        for message in [
            &b"\x08"[..],
            b"\x08\x80",
            b"\x08\x07\x08",
            b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02",
            b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x81\x00",
            b"\x0a\x05anna",
            b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
            b"\x00\x01",
            b"\xf8\xff\xff\xff\x1f\x07",
            b"\x0c",
            b"\x0b\x14",
            b"\x0b",
            b"\x0e\x00",
            b"\x19\0\0\0\0\0\0\0",
            b"\x2d\0\0\0",
        ] {
            assert_eq!(at("1", message), Err(LocationError::Unreadable), "{message:?}");
        }
        assert_eq!(at("3.1", b"\x1a\x01\x08"), Err(LocationError::Unreadable));
        // Nobody looks into what is no message of a path.
        assert_eq!(at("1", b"\x08\x07\x1a\x01\x08"), text("7"));
        let groups = |depth: usize| [b"\x13".repeat(depth), b"\x14".repeat(depth), b"\x08\x07".to_vec()].concat();
        assert_eq!(at("1", &groups(MAX_GROUPS)), text("7"));
        assert_eq!(at("1", &groups(MAX_GROUPS + 1)), Err(LocationError::Unreadable));
    }
}
