//! Fuzzes the mapping of requests to partitions. Hashes and extraction are compared with twins that were written from
//! the producers' sources and from RFC 3986 and 6265. The key that the router finds is compared with the keys that
//! other servers find, whatever they resolve, decode, merge or drop, and in bodies whichever of two members they take.
//!
//! An input is a byte that selects the source of the key, one for the hash, four for the number of partitions, and
//! text.

use http::header::{COOKIE, HeaderName, HeaderValue};
use segue_protocol::ids::PartitionId;
use segue_proxy::routing::key_hash::KeyHash;
use segue_proxy::routing::partition_key::{
    AmbiguousPaths, BodyKey, JoinedHeaders, KeySource, LocationError, PartitionSource, PathTemplate, PathTemplates,
    RequestLocation,
};

use crate::Outcome;
use crate::support::bodies::{self, Pick};
use crate::support::hashes;
use crate::support::servers::{SERVERS, cookies, decoded, parameters};

const NAME: &str = "x-key";
/// Most partitions. The keys of a request are so few that no two of them share a partition by chance.
const MANY: u32 = i32::MAX as u32;

pub fn run(data: &[u8]) -> Outcome {
    check(data).map_or(Outcome::NoInput, |()| Outcome::Checked)
}

/// Checks an input. `None` means that no client can send it.
fn check(input: &[u8]) -> Option<()> {
    let (&[place, hash, a, b, c, d], text) = input.split_first_chunk::<6>()?;
    // Kafka numbers partitions with a signed 32-bit integer.
    let partitions = u32::from_le_bytes([a, b, c, d]) % MANY + 1;
    let hash = KeyHash::NAMES[usize::from(hash) % KeyHash::NAMES.len()].1;
    hash_agrees(hash, text, partitions);
    match place {
        b'n' => number(text, partitions)?,
        b'h' => header(text, hash, partitions)?,
        b'j' => headers(text, hash, partitions)?,
        b'p' => path(text, hash)?,
        b't' => templates(text, hash)?,
        b'q' => query(text, hash)?,
        b'c' => cookie(text, hash)?,
        b'o' => object(text),
        b'g' => message(text),
        _ => {}
    }
    Some(())
}

fn key(source: KeySource, hash: KeyHash) -> PartitionSource {
    PartitionSource::Key { source, hash }
}

/// Returns a head with one field of this name for each line of the text.
fn lines(name: HeaderName, text: &[u8]) -> Option<http::request::Parts> {
    let (mut head, ()) = http::Request::new(()).into_parts();
    for line in text.split(|byte| *byte == b'\n') {
        head.headers.append(&name, HeaderValue::from_bytes(line).ok()?);
    }
    Some(head)
}

fn target(text: &[u8]) -> Option<http::request::Parts> {
    let (head, ()) = http::Request::builder().uri(text).body(()).ok()?.into_parts();
    Some(head)
}

fn number(text: &[u8], partitions: u32) -> Option<()> {
    let name = HeaderName::from_static(NAME);
    let head = lines(name.clone(), text)?;
    let found = PartitionSource::Number { header: name, order_by: None }.locate(&head, partitions);
    let values: Vec<&[u8]> = head.headers.values().map(HeaderValue::as_bytes).collect();
    // A number has a single form: `+7` and `07` could be read differently by others.
    let read = std::str::from_utf8(values[0])
        .ok()
        .and_then(|text| text.parse::<u32>().ok().filter(|number| number.to_string() == text && *number < partitions));
    let expected = read.filter(|_| values.iter().all(|other| *other == values[0])).ok_or(LocationError::Bad);
    assert_eq!(found.map(|at| at.partition.get()), expected);
    Some(())
}

fn header(text: &[u8], hash: KeyHash, partitions: u32) -> Option<()> {
    let name = HeaderName::from_static(NAME);
    let head = lines(name.clone(), text)?;
    let found = key(KeySource::Header(name), hash).locate(&head, partitions);
    let mut values = head.headers.values();
    let expected = match (values.next(), values.next()) {
        (Some(only), None) if only.is_empty() => Err(LocationError::Missing),
        // In HTTP/1.1 surrounding spaces are not part of the value.
        (Some(only), None) if only.as_bytes().trim_ascii() == only.as_bytes() => {
            Ok(hash.partition(only.as_bytes(), partitions))
        }
        _ => Err(LocationError::Bad),
    };
    agrees(found, expected);
    Some(())
}

/// The key of two headers: every other line is of the second one.
fn headers(text: &[u8], hash: KeyHash, partitions: u32) -> Option<()> {
    let names = [NAME, "x-other"].map(HeaderName::from_static);
    let (mut head, ()) = http::Request::new(()).into_parts();
    for (index, line) in text.split(|byte| *byte == b'\n').enumerate() {
        head.headers.append(&names[index % 2], HeaderValue::from_bytes(line).ok()?);
    }
    let source = KeySource::Headers(JoinedHeaders { names: names.to_vec(), join: ":".to_owned() });
    let found = key(source, hash).locate(&head, partitions);
    let lines = names.each_ref().map(|name| head.headers.get_all(name).iter().collect::<Vec<_>>());
    let is_spaced = |value: &HeaderValue| value.as_bytes().trim_ascii() != value.as_bytes();
    let expected = if lines.iter().any(|lines| lines.len() > 1 || lines.iter().any(|value| is_spaced(value))) {
        Err(LocationError::Bad)
    } else if lines.iter().any(|lines| lines.is_empty() || lines[0].is_empty()) {
        Err(LocationError::Missing)
    } else {
        let joined = [lines[0][0].as_bytes(), b":", lines[1][0].as_bytes()].concat();
        Ok(hash.partition(&joined, partitions))
    };
    agrees(found, expected);
    Some(())
}

/// Returns the key that a server would find by the templates of [`templates`], the first that matches.
fn dispatched<S: AsRef<[u8]>>(segments: &[S]) -> Option<Vec<u8>> {
    let segments: Vec<&[u8]> = segments.iter().map(AsRef::as_ref).collect();
    match &segments[..] {
        [b"a", team, b"b", person, ..] if !team.is_empty() && !person.is_empty() => {
            Some([*team, b":", *person].concat())
        }
        [b"a", person, ..] | [_, b"c", person, ..] if !segments[0].is_empty() && !person.is_empty() => {
            Some(person.to_vec())
        }
        _ => None,
    }
}

/// The key of several templates, of which longer and shorter ones overlap.
fn templates(text: &[u8], hash: KeyHash) -> Option<()> {
    let head = target(text)?;
    let source = |ambiguous| {
        let parse = |text| PathTemplate::new(text, &["team", "person"], ambiguous).expect("a template");
        let templates = ["/a/{team}/b/{person}", "/a/{person}", "/{x}/c/{person}"].map(parse).to_vec();
        KeySource::Path(PathTemplates::new(templates, 2, ":", ambiguous).expect("templates"))
    };
    let path = head.uri.path();
    let raw: Vec<&[u8]> = path.as_bytes().split(|byte| *byte == b'/').skip(1).collect();
    let is_rooted = path.starts_with('/');
    // Whatever becomes of escapes within a part, the joiner is not one of them.
    let written = match dispatched(&raw).filter(|_| is_rooted) {
        Some(key) => decoded(&key).ok_or(LocationError::Bad),
        None => Err(LocationError::Missing),
    };
    let written = written.map(|key| hash.partition(&key, MANY));
    agrees(key(source(AmbiguousPaths::Pass), hash).locate(&head, MANY), written);

    let found = key(source(AmbiguousPaths::Reject), hash).locate(&head, MANY);
    let readings = SERVERS.iter().filter_map(|(server, read)| Some((server, read(path.as_bytes())?)));
    match found {
        Ok(at) => {
            agrees(found, written);
            for (server, segments) in readings {
                let seen = dispatched(&segments).map(|key| hash.partition(&key, MANY));
                assert_eq!(seen, Some(at.partition), "{server} reads {path:?} as {segments:?}");
            }
        }
        // What has no key has none for anybody: such a request may go to any pod.
        Err(LocationError::Missing) => {
            for (server, segments) in readings {
                assert_eq!(dispatched(&segments), None, "{server} reads {path:?} as {segments:?}");
            }
        }
        Err(LocationError::Bad) => {
            let is_usual = |byte: u8| byte.is_ascii_alphanumeric() || b"/-_~=,:@!$&'()*+".contains(&byte);
            assert!(!path.bytes().all(is_usual) || path.contains("//"), "{path:?} was refused");
        }
        Err(why) => panic!("{why:?} of a path"),
    }
    Some(())
}

/// Returns the key of two parts, unless one is missing or empty.
fn joined(parts: [Option<Vec<u8>>; 2]) -> Option<Vec<u8>> {
    let [Some(team), Some(person)] = parts else { return None };
    (!team.is_empty() && !person.is_empty()).then(|| [team, b":".to_vec(), person].concat())
}

/// The key of two members of a JSON object.
fn object(text: &[u8]) {
    let paths = ["team", "person.id"].map(|path| path.parse().expect("a path"));
    let found = BodyKey::json(paths.to_vec(), ":").expect("a key").key(text);
    let Some(tree) = bodies::json(text) else {
        let expected = if text.is_empty() { LocationError::Missing } else { LocationError::Unreadable };
        // A body that goes wrong later may be refused for what comes before.
        assert!(found == Err(expected) || (!text.is_empty() && found == Err(LocationError::Unclear)), "{found:?}");
        return;
    };
    let readings = [Pick::First, Pick::Last, Pick::LastInAnyCase].map(|pick| {
        let part = |way: &[&str]| bodies::member(&tree, way, pick);
        joined([part(&["team"]), part(&["person", "id"])])
    });
    match found {
        Ok(key) => readings.iter().for_each(|read| assert_eq!(read.as_ref(), Some(&key))),
        Err(LocationError::Missing) => assert_eq!(readings, [None, None, None]),
        Err(why) => {
            assert!(matches!(why, LocationError::Unreadable | LocationError::Unclear), "{why:?}");
            assert!(!bodies::is_plain(&tree), "refused: {why:?}");
        }
    }
}

/// The key of two fields of a gRPC message, of which one is in another message.
fn message(text: &[u8]) {
    let paths = ["1", "3.1"].map(|path| path.parse().expect("a path"));
    let key = BodyKey::grpc(paths.to_vec(), ":").expect("a key");
    // As the whole body it has any prefix.
    let _ = key.key(text);
    let prefixed = [&[0][..], &(text.len() as u32).to_be_bytes(), text].concat();
    let found = key.key(&prefixed);
    let parts = bodies::message(text).and_then(|fields| {
        let within = bodies::merged(&fields, 3)?;
        Some([bodies::part(&fields, 1)?, bodies::part(&within, 1)?])
    });
    match (found, parts) {
        (Ok(key), Some(parts)) => assert_eq!(Some(key), joined(parts)),
        (Err(LocationError::Missing), Some(parts)) => assert_eq!(joined(parts), None),
        (Err(LocationError::Unreadable | LocationError::Unclear), None) => {}
        (found, parts) => panic!("{found:?}, not {parts:?}"),
    }
}

fn path(text: &[u8], hash: KeyHash) -> Option<()> {
    let head = target(text)?;
    let template = |ambiguous| KeySource::Path(PathTemplates::only("/a/{key}/b", ambiguous).expect("a template"));
    let path = head.uri.path();
    let segments: Vec<&str> = path.split('/').collect();
    let written = match segments[..] {
        ["", "a", key, "b", ..] if !key.is_empty() => decoded(key.as_bytes()).ok_or(LocationError::Bad),
        _ => Err(LocationError::Missing),
    };
    let written = written.map(|key| hash.partition(&key, MANY));
    let passing = key(template(AmbiguousPaths::Pass), hash).locate(&head, MANY);
    agrees(passing, written);

    let found = key(template(AmbiguousPaths::Reject), hash).locate(&head, MANY);
    let Ok(at) = found else {
        // A path of usual characters without empty segments is never refused.
        let is_usual = |byte: u8| byte.is_ascii_alphanumeric() || b"/-_~=,:@!$&'()*+".contains(&byte);
        let is_plain = path.bytes().all(is_usual) && !path.contains("//");
        assert!(written.is_err() || !is_plain, "{path:?} was refused");
        return Some(());
    };
    agrees(found, written);
    for (server, read) in SERVERS {
        let Some(segments) = read(path.as_bytes()) else { continue };
        let seen = match &segments[..] {
            [a, key, b, ..] if a == b"a" && b == b"b" => key,
            _ => panic!("{server} reads {path:?} as {segments:?}, which has no key"),
        };
        let partition = hash.partition(seen, MANY);
        assert_eq!(partition, at.partition, "{server} reads the key {:?} in {path:?}", String::from_utf8_lossy(seen));
    }
    Some(())
}

fn query(text: &[u8], hash: KeyHash) -> Option<()> {
    let head = target(text)?;
    let found = key(KeySource::Query(NAME.to_owned()), hash).locate(&head, MANY);
    let query = head.uri.query().unwrap_or_default();
    let readings = parameters(query.as_bytes(), NAME.as_bytes());
    match found {
        Ok(at) => {
            agrees(found, Ok(at.partition));
            for values in readings {
                let [only] = &values[..] else { panic!("somebody reads {values:?} in {query:?}") };
                assert_eq!(hash.partition(only, MANY), at.partition, "{query:?}");
            }
        }
        Err(why) => {
            nobody_finds_a_key(why, &readings);
            let is_usual = |byte: u8| byte.is_ascii_alphanumeric() || b"&=-_.~+".contains(&byte);
            let is_plain = query.bytes().all(is_usual) && readings.iter().all(|values| is_one_key(values));
            assert!(!is_plain, "{query:?} was refused");
        }
    }
    Some(())
}

fn cookie(text: &[u8], hash: KeyHash) -> Option<()> {
    let head = lines(COOKIE, text)?;
    let found = key(KeySource::Cookie(NAME.to_owned()), hash).locate(&head, MANY);
    let lines: Vec<&[u8]> = head.headers.values().map(HeaderValue::as_bytes).collect();
    let readings = cookies(&lines, NAME.as_bytes());
    match found {
        Ok(at) => {
            agrees(found, Ok(at.partition));
            for values in readings {
                assert!(!values.is_empty(), "somebody reads nothing in {lines:?}");
                for value in values {
                    // Some servers decode the value, as the router does. To others it is the same text wherever it
                    // occurs.
                    let plain = decoded(&value).unwrap_or(value);
                    let text = String::from_utf8_lossy(&plain);
                    assert_eq!(hash.partition(text.as_bytes(), MANY), at.partition, "{lines:?}");
                }
            }
        }
        Err(why) => {
            nobody_finds_a_key(why, &readings);
            let is_usual = |byte: u8| byte.is_ascii_alphanumeric() || b"; =-_.".contains(&byte);
            let is_plain = lines.concat().into_iter().all(is_usual) && readings.iter().all(|values| is_one_key(values));
            let spaced = lines.concat().windows(2).any(|pair| pair == b" =");
            assert!(!is_plain || spaced, "{lines:?} was refused");
        }
    }
    Some(())
}

/// What has no key for the router has none for anybody: it may go to any pod.
fn nobody_finds_a_key<'a, V: AsRef<[u8]> + 'a>(why: LocationError, readings: impl IntoIterator<Item = &'a Vec<V>>) {
    let mut found = readings.into_iter().flatten().filter(|value| !value.as_ref().is_empty());
    assert!(why == LocationError::Bad || found.next().is_none(), "somebody reads a key where the router finds none");
}

/// Returns whether somebody reads one key. An empty one is none.
fn is_one_key<V: AsRef<[u8]>>(values: &[V]) -> bool {
    matches!(values, [only] if !only.as_ref().is_empty())
}

fn agrees(found: Result<RequestLocation, LocationError>, expected: Result<PartitionId, LocationError>) {
    assert_eq!(found.map(|at| at.partition), expected);
    // Whatever the partition, the requests of a key are ordered.
    assert!(found.is_err() || found.is_ok_and(|at| at.order.is_some()));
}

fn hash_agrees(hash: KeyHash, key: &[u8], partitions: u32) {
    let twin = match hash {
        KeyHash::Murmur2 => Some(hashes::java(key, partitions)),
        KeyHash::Crc32 => Some(hashes::librdkafka(key, partitions)),
        KeyHash::Fnv1a => Some(hashes::sarama(key, partitions)),
        KeyHash::Xxh3 => hashes::xxh3(key).map(|hash| (hash % u64::from(partitions)) as u32),
    };
    let found = hash.partition(key, partitions).get();
    assert!(found < partitions);
    assert!(twin.is_none_or(|twin| twin == found), "{hash:?} of {key:?} among {partitions}: {found}, not {twin:?}");
}
