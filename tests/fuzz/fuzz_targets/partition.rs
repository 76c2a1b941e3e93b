//! Which partition a request is for: extraction and hashes against twins that were written from the producers' sources
//! and from RFC 3986 and 6265.

#![no_main]

use arbitrary::Arbitrary;
use http::header::{COOKIE, HeaderName, HeaderValue};
use libfuzzer_sys::{Corpus, fuzz_target};
use segue_fuzz::hashes;
use segue_proxy::hash::KeyHash;
use segue_proxy::partition::{KeyFrom, Located, Locator, PartitionSource, PathTemplate, Unlocated};

#[derive(Debug, Arbitrary)]
struct Input<'a> {
    place: Place,
    hash: u8,
    partitions: u32,
    target: &'a str,
    values: Vec<&'a [u8]>,
    key: &'a [u8],
}

#[derive(Debug, Clone, Copy, Arbitrary)]
enum Place {
    Number,
    Header,
    Path,
    Query,
    Cookie,
    /// Nowhere: the hashes alone.
    Bare,
}

const NAME: &str = "x-key";

fuzz_target!(|input: Input<'_>| -> Corpus { if run(&input) { Corpus::Keep } else { Corpus::Reject } });

fn run(input: &Input<'_>) -> bool {
    // Kafka numbers partitions with a signed 32-bit integer.
    let partitions = input.partitions % (i32::MAX as u32) + 1;
    let hash = [KeyHash::Murmur2, KeyHash::Crc32, KeyHash::Fnv1a, KeyHash::Xxh3][usize::from(input.hash % 4)];
    hash_agrees(hash, input.key, partitions);
    let from = match input.place {
        Place::Bare => return true,
        Place::Number | Place::Header => KeyFrom::Header(HeaderName::from_static(NAME)),
        Place::Path => KeyFrom::Path("/a/{key}/b".parse::<PathTemplate>().expect("a template")),
        Place::Query => KeyFrom::Query(NAME.to_owned()),
        Place::Cookie => KeyFrom::Cookie(NAME.to_owned()),
    };
    let source = match input.place {
        Place::Number => PartitionSource::Header(HeaderName::from_static(NAME)),
        _ => PartitionSource::Key { from, hash },
    };
    let Some(head) = head(input) else { return false };
    let found = Locator { source, order_by: None }.locate(&head, partitions);
    if let Ok(Located { partition, .. }) = found {
        assert!(partition < partitions);
    }
    let values: Vec<&[u8]> = head.headers.values().map(HeaderValue::as_bytes).collect();
    match input.place {
        Place::Number => {
            let number = only(values).and_then(|text| {
                let text = std::str::from_utf8(text).map_err(|_| Unlocated::Bad)?;
                let number: u32 = text.parse().map_err(|_| Unlocated::Bad)?;
                // There is one way to write a number; `+7` and `07` are for those who want to be read differently.
                if number.to_string() != text || number >= partitions { Err(Unlocated::Bad) } else { Ok(number) }
            });
            assert_eq!(found.map(|at| at.partition), number);
        }
        Place::Header => agrees(found, only(values).map(<[u8]>::to_vec), hash, partitions),
        Place::Cookie => {
            let pairs = values.iter().flat_map(|line| line.split(|byte| *byte == b';')).map(<[u8]>::trim_ascii);
            let named = pairs.filter_map(|pair| pair.strip_prefix(b"x-key=")).collect();
            agrees(found, only(named).map(<[u8]>::to_vec), hash, partitions);
        }
        Place::Path => {
            let segments: Vec<&str> = head.uri.path().split('/').collect();
            let key = match segments[..] {
                ["", "a", key, "b", ..] if !key.is_empty() => unescape(key.as_bytes(), false).ok_or(Unlocated::Bad),
                _ => Err(Unlocated::Missing),
            };
            agrees(found, key, hash, partitions);
        }
        Place::Query => {
            let mut keys = Vec::new();
            for pair in head.uri.query().unwrap_or_default().split('&') {
                let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
                if unescape(name.as_bytes(), true) == Some(NAME.as_bytes().to_vec()) {
                    keys.push(unescape(value.as_bytes(), true));
                }
            }
            let key = match keys.split_first() {
                None => Err(Unlocated::Missing),
                Some((Some(first), rest)) if rest.iter().all(|other| other.as_ref() == Some(first)) => {
                    Ok(first.clone())
                }
                Some(_) => Err(Unlocated::Bad),
            };
            agrees(found, key, hash, partitions);
        }
        Place::Bare => {}
    }
    true
}

/// The head that a client would have to send; `None` if no client can.
fn head(input: &Input<'_>) -> Option<http::request::Parts> {
    let mut request = http::Request::builder();
    if matches!(input.place, Place::Path | Place::Query) {
        request = request.uri(input.target);
    }
    let (mut head, ()) = request.body(()).ok()?.into_parts();
    let name = if matches!(input.place, Place::Cookie) { COOKIE } else { HeaderName::from_static(NAME) };
    for value in &input.values {
        head.headers.append(&name, HeaderValue::from_bytes(value).ok()?);
    }
    Some(head)
}

/// A value may be repeated; it may not contradict itself.
fn only(values: Vec<&[u8]>) -> Result<&[u8], Unlocated> {
    match values.split_first() {
        None => Err(Unlocated::Missing),
        Some((first, rest)) if rest.iter().all(|other| other == first) => Ok(first),
        Some(_) => Err(Unlocated::Bad),
    }
}

fn agrees(found: Result<Located, Unlocated>, key: Result<Vec<u8>, Unlocated>, hash: KeyHash, partitions: u32) {
    assert_eq!(found.map(|at| at.partition), key.map(|key| hash.partition(&key, partitions)));
    // Whatever the partition, requests of one key have one order.
    assert!(found.is_err() || found.is_ok_and(|at| at.order.is_some()));
}

fn hash_agrees(hash: KeyHash, key: &[u8], partitions: u32) {
    let twin = match hash {
        KeyHash::Murmur2 => Some(hashes::java(key, partitions)),
        KeyHash::Crc32 => Some(hashes::librdkafka(key, partitions)),
        KeyHash::Fnv1a => Some(hashes::sarama(key, partitions)),
        KeyHash::Xxh3 => hashes::xxh3(key).map(|hash| (hash % u64::from(partitions)) as u32),
    };
    let found = hash.partition(key, partitions);
    assert!(found < partitions);
    assert!(twin.is_none_or(|twin| twin == found), "{hash:?} of {key:?} among {partitions}: {found}, not {twin:?}");
}

/// `%XX`, and `+` for a space in forms. `None`: a `%` without two digits.
fn unescape(text: &[u8], form: bool) -> Option<Vec<u8>> {
    let digit = |byte: u8| (byte as char).to_digit(16);
    let (mut plain, mut at) = (Vec::new(), 0);
    while at < text.len() {
        match text[at] {
            b'%' => {
                plain.push((digit(*text.get(at + 1)?)? * 16 + digit(*text.get(at + 2)?)?) as u8);
                at += 2;
            }
            b'+' if form => plain.push(b' '),
            other => plain.push(other),
        }
        at += 1;
    }
    Some(plain)
}
