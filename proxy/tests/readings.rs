//! A pod finds the same key in a request as the router does: paths, queries and cookies made of parts that servers read
//! differently, compared with the rules of those servers. The fuzz target `partition` searches further.

#[path = "../../tests/fuzz/support/servers.rs"]
#[allow(dead_code, unreachable_pub)]
mod servers;

use http::header::{COOKIE, HeaderValue};
use http::request::Parts;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use segue_protocol::ids::PartitionId;
use segue_proxy::routing::key_hash::KeyHash;
use segue_proxy::routing::partition_key::{KeySource, LocationError, PartitionSource};
use servers::{SERVERS, cookies, decoded, parameters};

/// So many that no two keys have the same partition by chance.
const MANY: u32 = i32::MAX as u32;

fn locate(source: KeySource, head: &Parts) -> Result<PartitionId, LocationError> {
    PartitionSource::Key { source, hash: KeyHash::Xxh3 }.locate(head, MANY).map(|at| at.partition)
}

fn partition(key: &[u8]) -> PartitionId {
    KeyHash::Xxh3.partition(key, MANY)
}

fn head(target: &str) -> Option<Parts> {
    Some(http::Request::get(target).body(()).ok()?.into_parts().0)
}

fn parts(of: &'static [&'static str], most: usize) -> impl Strategy<Value = String> {
    vec(select(of), 0..=most).prop_map(|parts| parts.concat())
}

const OF_A_PATH: &[&str] = &[
    "/", ".", "..", "%2e", "%2E", "\\", "%2f", "%5C", ";", "%3b", "%00", "%25", "%2", "%ff", "%c0%ae", "%41", "a", "b",
    "/../", "/./", "é", "=",
];
const OF_A_QUERY: &[&str] =
    &["id", "ID", "i%64", "id[]", "=", "=", "&", "&", ";", "1", "2", "%31", "%ff", "%00", "+", "%2b", "x"];
const OF_A_COOKIE: &[&str] = &["id", "ID", "=", "=", ";", "; ", "\"", "\\", "1", "2", "%31", "%ff", "%", " ", "x", ","];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    #[test]
    fn every_server_finds_the_key_that_a_path_is_routed_by(
        before in parts(OF_A_PATH, 2),
        literal in parts(OF_A_PATH, 1),
        key in parts(OF_A_PATH, 3),
        after in parts(OF_A_PATH, 1),
        behind in parts(OF_A_PATH, 5),
    ) {
        let target = format!("{before}/a{literal}/{key}/b{after}{behind}");
        let Some(head) = head(&target) else { return Ok(()) };
        let Ok(found) = locate(KeySource::Path("/a/{key}/b".parse().unwrap()), &head) else { return Ok(()) };
        for (server, read) in SERVERS {
            let Some(segments) = read(head.uri.path().as_bytes()) else { continue };
            match &segments[..] {
                [a, key, b, ..] if a == b"a" && b == b"b" => prop_assert_eq!(partition(key), found, "{}: {}", server, target),
                _ => prop_assert!(false, "{server} finds no key in {target}: {segments:?}"),
            }
        }
    }

    #[test]
    fn every_server_finds_the_key_that_a_query_is_routed_by(query in parts(OF_A_QUERY, 9)) {
        let Some(head) = head(&format!("/?{query}")) else { return Ok(()) };
        let Ok(found) = locate(KeySource::Query("id".to_owned()), &head) else { return Ok(()) };
        for values in parameters(query.as_bytes(), b"id") {
            prop_assert!(values.len() == 1 && partition(&values[0]) == found, "{query}: {values:?}");
        }
    }

    #[test]
    fn every_server_finds_the_key_that_a_cookie_is_routed_by(lines in vec(parts(OF_A_COOKIE, 9), 1..3)) {
        let mut head = head("/").unwrap();
        for line in &lines {
            head.headers.append(COOKIE, HeaderValue::from_bytes(line.as_bytes()).unwrap());
        }
        let Ok(found) = locate(KeySource::Cookie("id".to_owned()), &head) else { return Ok(()) };
        let sent: Vec<&[u8]> = lines.iter().map(|line| line.as_bytes()).collect();
        for values in cookies(&sent, b"id") {
            let plain = |value: &Vec<u8>| decoded(value).unwrap_or_else(|| value.clone());
            // As servers read it that replace what is not UTF-8.
            let read = |value: &Vec<u8>| partition(String::from_utf8_lossy(&plain(value)).as_bytes());
            prop_assert!(!values.is_empty(), "{lines:?}");
            prop_assert!(values.iter().all(|value| read(value) == found), "{lines:?}: {values:?}");
        }
    }
}

/// Without any that are accepted, the others say nothing.
#[test]
fn most_of_what_clients_send_is_accepted() {
    for path in ["/a/k/b", "/a/k.l/b/..c/%2F;x", "/a/%41%20/b//x", "/a/é/b"] {
        assert!(locate(KeySource::Path("/a/{key}/b".parse().unwrap()), &head(path).unwrap()).is_ok(), "{path}");
    }
    for query in ["/?id=1", "/?x=2&id=%31+&y;z"] {
        assert!(locate(KeySource::Query("id".to_owned()), &head(query).unwrap()).is_ok(), "{query}");
    }
}
