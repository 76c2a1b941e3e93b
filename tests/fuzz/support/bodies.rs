//! Reads JSON and protobuf as trees, slowly: twins written from RFC 8259 and from the encoding guide of protobuf.

/// A value of JSON. Text that is not Unicode is `None`.
#[derive(Debug)]
pub enum Tree {
    Object(Vec<(Option<String>, Tree)>),
    Array,
    Text(Option<String>),
    Number(String),
    True,
    False,
    Null,
}

/// Which of several members a parser takes.
#[derive(Debug, Clone, Copy)]
pub enum Pick {
    First,
    Last,
    LastInAnyCase,
}

/// Returns the value of a whole text.
pub fn json(text: &[u8]) -> Option<Tree> {
    let mut rest = text;
    let tree = value(&mut rest)?;
    space(&mut rest);
    rest.is_empty().then_some(tree)
}

fn space(rest: &mut &[u8]) {
    while let [b' ' | b'\t' | b'\n' | b'\r', after @ ..] = *rest {
        *rest = after;
    }
}

fn take(rest: &mut &[u8], word: &[u8]) -> Option<()> {
    *rest = rest.strip_prefix(word)?;
    Some(())
}

fn value(rest: &mut &[u8]) -> Option<Tree> {
    space(rest);
    match rest.first()? {
        b'{' => object(rest),
        b'[' => array(rest),
        b'"' => Some(Tree::Text(string(rest)?)),
        b't' => take(rest, b"true").map(|()| Tree::True),
        b'f' => take(rest, b"false").map(|()| Tree::False),
        b'n' => take(rest, b"null").map(|()| Tree::Null),
        _ => number(rest),
    }
}

fn object(rest: &mut &[u8]) -> Option<Tree> {
    let mut members = Vec::new();
    take(rest, b"{")?;
    space(rest);
    while rest.first() != Some(&b'}') {
        if !members.is_empty() {
            take(rest, b",")?;
            space(rest);
        }
        let name = string(rest)?;
        space(rest);
        take(rest, b":")?;
        members.push((name, value(rest)?));
        space(rest);
    }
    take(rest, b"}")?;
    Some(Tree::Object(members))
}

fn array(rest: &mut &[u8]) -> Option<Tree> {
    let mut is_first = true;
    take(rest, b"[")?;
    space(rest);
    while rest.first() != Some(&b']') {
        if !is_first {
            take(rest, b",")?;
        }
        is_first = false;
        value(rest)?;
        space(rest);
    }
    take(rest, b"]")?;
    Some(Tree::Array)
}

fn string(rest: &mut &[u8]) -> Option<Option<String>> {
    take(rest, b"\"")?;
    let (mut units, mut bytes, mut is_unicode) = (Vec::new(), Vec::new(), true);
    let mut text = String::new();
    // Escapes are UTF-16, all else is UTF-8.
    let mut flush = |units: &mut Vec<u16>, bytes: &mut Vec<u8>| {
        is_unicode &= String::from_utf16(units).map(|part| text.push_str(&part)).is_ok();
        is_unicode &= std::str::from_utf8(bytes).map(|part| text.push_str(part)).is_ok();
        units.clear();
        bytes.clear();
    };
    loop {
        let (&byte, after) = rest.split_first()?;
        *rest = after;
        match byte {
            b'"' => break,
            ..0x20 => return None,
            b'\\' => {
                let (&escape, after) = rest.split_first()?;
                *rest = after;
                if !bytes.is_empty() {
                    flush(&mut units, &mut bytes);
                }
                units.push(match escape {
                    b'"' | b'\\' | b'/' => u16::from(escape),
                    b'b' => 8,
                    b'f' => 12,
                    b'n' => 10,
                    b'r' => 13,
                    b't' => 9,
                    b'u' => {
                        let (digits, after) = rest.split_at_checked(4)?;
                        *rest = after;
                        let digit = |number: u16, byte: &u8| {
                            Some(number * 16 + u16::try_from(char::from(*byte).to_digit(16)?).ok()?)
                        };
                        digits.iter().try_fold(0, digit)?
                    }
                    _ => return None,
                });
            }
            _ => {
                if !units.is_empty() && bytes.is_empty() {
                    flush(&mut units, &mut bytes);
                }
                bytes.push(byte);
            }
        }
    }
    flush(&mut units, &mut bytes);
    Some(is_unicode.then_some(text))
}

fn number(rest: &mut &[u8]) -> Option<Tree> {
    let whole = *rest;
    let digits = |rest: &mut &[u8]| {
        let count = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        *rest = &rest[count..];
        (count > 0).then_some(())
    };
    let _ = take(rest, b"-");
    if take(rest, b"0").is_none() {
        digits(rest)?;
    }
    if take(rest, b".").is_some() {
        digits(rest)?;
    }
    if let [b'e' | b'E', after @ ..] = *rest {
        *rest = after;
        let _ = take(rest, b"+").or_else(|| take(rest, b"-"));
        digits(rest)?;
    }
    let text = &whole[..whole.len() - rest.len()];
    Some(Tree::Number(String::from_utf8(text.to_vec()).ok()?))
}

/// Returns the member to which a way leads, as text. Whatever is neither text nor a number is shown as it is written.
pub fn member(tree: &Tree, way: &[&str], pick: Pick) -> Option<Vec<u8>> {
    let Some((step, way)) = way.split_first() else {
        return match tree {
            Tree::Null => None,
            Tree::Text(Some(text)) | Tree::Number(text) => Some(text.clone().into_bytes()),
            other => Some(format!("{other:?}").into_bytes()),
        };
    };
    let Tree::Object(members) = tree else { return None };
    let is_step = |(name, _): &&(Option<String>, Tree)| {
        let name = name.as_deref().unwrap_or_default();
        match pick {
            Pick::First | Pick::Last => name == *step,
            Pick::LastInAnyCase => name.to_lowercase() == *step,
        }
    };
    let found = match pick {
        Pick::First => members.iter().find(is_step),
        Pick::Last | Pick::LastInAnyCase => members.iter().rfind(is_step),
    };
    found.and_then(|(_, value)| member(value, way, pick))
}

/// Returns whether nobody could read an object differently: all members have names of their own, of small letters, and values
/// that have one form.
pub fn is_plain(tree: &Tree) -> bool {
    let Tree::Object(members) = tree else { return false };
    let is_name = |name: &String| name.bytes().all(|byte| byte.is_ascii_lowercase());
    let are_names = members.iter().all(|(name, _)| name.as_ref().is_some_and(is_name));
    let is_own = |index: usize| members[..index].iter().all(|(other, _)| *other != members[index].0);
    let is_whole = |text: &String| text.parse::<i64>().is_ok_and(|number| number.to_string() == *text);
    let has_one_form = |(name, value): &(Option<String>, Tree)| match (name.as_deref(), value) {
        (_, Tree::Text(Some(text))) => name.as_deref() != Some("person") && !text.contains('\0'),
        (_, Tree::Number(text)) => name.as_deref() != Some("person") && is_whole(text),
        (_, Tree::Null) => true,
        (Some("person"), value) => is_plain(value),
        _ => false,
    };
    are_names && (0..members.len()).all(is_own) && members.iter().all(has_one_form)
}

/// A field of a message.
#[derive(Debug, Clone)]
pub enum Field {
    Varint(i64),
    Bytes(Vec<u8>),
    Other,
}

/// Returns the fields of a message in their order.
pub fn message(bytes: &[u8]) -> Option<Vec<(u64, Field)>> {
    let mut rest = bytes;
    let mut fields = Vec::new();
    while !rest.is_empty() {
        let (number, field) = field(&mut rest, 0)?;
        fields.push((number, field?));
    }
    Some(fields)
}

/// Takes a field off the front, or the end of a group, which has no value.
fn field(rest: &mut &[u8], depth: usize) -> Option<(u64, Option<Field>)> {
    let tag = varint(rest)?;
    let number = tag / 8;
    if number == 0 || tag > u64::from(u32::MAX) {
        return None;
    }
    let mut fixed = |length: u64| {
        let (taken, after) = rest.split_at_checked(usize::try_from(length).ok()?)?;
        *rest = after;
        Some(taken.to_vec())
    };
    let value = match tag % 8 {
        0 => Field::Varint(i64::from_ne_bytes(varint(rest)?.to_ne_bytes())),
        1 => fixed(8).map(|_| Field::Other)?,
        2 => {
            let length = varint(rest)?;
            let (taken, after) = rest.split_at_checked(usize::try_from(length).ok()?)?;
            *rest = after;
            Field::Bytes(taken.to_vec())
        }
        3 if depth < 100 => loop {
            match field(rest, depth + 1)? {
                (_, Some(_)) => {}
                (end, None) if end == number => break Field::Other,
                (_, None) => return None,
            }
        },
        4 if depth > 0 => return Some((number, None)),
        5 => fixed(4).map(|_| Field::Other)?,
        _ => return None,
    };
    Some((number, Some(value)))
}

fn varint(rest: &mut &[u8]) -> Option<u64> {
    let length = rest.iter().position(|byte| *byte < 0x80)? + 1;
    let (bytes, after) = rest.split_at(length);
    *rest = after;
    let number = bytes.iter().rev().fold(0u128, |number, byte| number << 7 | u128::from(byte & 0x7f));
    if length > 10 { None } else { u64::try_from(number).ok() }
}

/// Returns the fields of all messages in a field, in their order, as parsers merge them. `None` if one of them is none.
pub fn merged(fields: &[(u64, Field)], number: u64) -> Option<Vec<(u64, Field)>> {
    let within = fields.iter().filter(|(other, _)| *other == number).map(|(_, field)| match field {
        Field::Bytes(bytes) => message(bytes),
        Field::Varint(_) | Field::Other => None,
    });
    Some(within.collect::<Option<Vec<_>>>()?.concat())
}

/// Returns the text of the last occurrence of a field. `None` if parsers with different types find different ones.
#[allow(clippy::option_option, reason = "no value, or none that all read alike")]
pub fn part(fields: &[(u64, Field)], number: u64) -> Option<Option<Vec<u8>>> {
    let of_kind = |kind: fn(&Field) -> Option<Vec<u8>>| {
        let mut values = fields.iter().filter(|(other, _)| *other == number).filter_map(|(_, field)| kind(field));
        values.next_back()
    };
    let varint =
        of_kind(|field| if let Field::Varint(number) = field { Some(number.to_string().into()) } else { None });
    let bytes = of_kind(|field| if let Field::Bytes(bytes) = field { Some(bytes.clone()) } else { None });
    let other = of_kind(|field| if let Field::Other = field { Some(Vec::new()) } else { None });
    match (varint, bytes, other) {
        (None, found, None) | (found, None, None) => Some(found),
        _ => None,
    }
}
