//! Both ends of every limit: the last value that is accepted and the first that is refused.

use proptest::prelude::*;
use segue_config::parse;
use segue_proxy::routing::key_limit::{KeyLimits, LimitedBy};

use crate::support::{assert_accepted, assert_refused, refused};

/// Returns the smallest file in which the key has this value.
fn file(key: &str, value: &str) -> String {
    let (section, name) = key.rsplit_once('.').unwrap();
    format!("[{section}]\n{name} = {value}\n")
}

#[test]
fn whole_numbers_end_where_they_say() {
    let most = i64::MAX;
    for (key, least, most) in [
        ("router.workers", 0, 1024),
        ("router.stash.max_requests", 1, most),
        ("router.stash.flush_concurrency", 1, most),
        ("router.upstream.max_idle_per_pod", 0, most),
        ("router.upstream.max_in_flight_per_pod", 1, most),
        ("router.limits.max_connections", 1, most),
        ("router.limits.max_streams_per_connection", 1, 10_000),
        ("router.limits.max_in_flight_per_client", 0, most),
        ("coordinator.partitions", 1, 65_536),
        ("coordinator.max_concurrent_handoffs", 1, most),
        ("coordinator.max_warming_per_pod", 1, most),
    ] {
        for value in [least, most] {
            assert_accepted(&file(key, &value.to_string()));
        }
        for value in [i128::from(least) - 1, i128::from(most) + 1, i128::from(i64::MIN)] {
            let text = refused(&file(key, &value.to_string()));
            assert!(text.contains("whole number") || text.contains("syntax"), "{key} = {value}: {text}");
        }
        for value in ["1.0", "\"1\"", "true", "[1]", "1e3", ""] {
            refused(&file(key, value));
        }
    }
}

#[test]
fn durations_end_at_nothing_and_at_a_year() {
    for key in [
        "router.stash.max_wait",
        "router.drain.timeout",
        "router.upstream.request_timeout",
        "router.limits.header_read_timeout",
        "coordinator.heartbeat",
        "coordinator.warm_timeout",
        "coordinator.phase_timeout",
        "pod.shutdown_timeout",
    ] {
        let zero = refused(&file(key, "\"0s\""));
        assert!(zero.contains(&format!("{key}: zero; expected more than that")), "{zero}");
        let long = refused(&file(key, "\"31536000001ms\""));
        assert!(long.contains("is too long; expected at most a year"), "{key}: {long}");
        // A year is no mistake by itself. Its relation to another key may be one.
        let year = parse("segue.toml", &file(key, "\"8760h\""), [], "h");
        assert!(year.err().is_none_or(|errors| !errors.to_string().contains("too long")), "{key}");
    }
    for key in ["router.lease_ttl", "coordinator.lease_ttl", "pod.lease_ttl"] {
        assert!(refused(&file(key, "\"1s\"")).contains("too short for a lease"));
        assert_refused(
            &file(key, "\"1999ms\""),
            &[&format!("segue.toml:2:13: {key}: 1999ms is too short for a lease; expected at least 2s")],
        );
        assert_accepted(&file(key, "\"2s\""));
    }
}

#[test]
fn what_is_written_to_the_store_for_each_pod_or_partition_is_written_once_a_second_at_most() {
    for key in ["coordinator.checkpoint_interval", "pod.load_interval"] {
        for often in ["\"1ms\"", "\"999ms\""] {
            let fact = format!("{key}: {} would write to the store too often", often.trim_matches('"'));
            let text = refused(&file(key, often));
            assert!(text.contains(&fact) && text.contains("expected at least 1s, or 0s for none"), "{text}");
        }
        for seldom in ["\"0s\"", "\"1s\"", "\"1m\""] {
            assert_accepted(&file(key, seldom));
        }
    }
}

#[test]
fn sizes_end_at_nothing_and_where_the_machine_does() {
    for key in ["router.stash.max_total_bytes", "router.limits.max_body_bytes"] {
        assert!(refused(&file(key, "\"0B\"")).contains(&format!("{key}: zero")));
        assert!(refused(&file(key, "\"18446744073709551616B\"")).contains("is too large"));
        assert_accepted(&file(key, "\"18446744073709551615B\""));
    }
    assert_accepted(&file("router.stash.max_bytes", "\"1B\""));
}

#[test]
fn a_head_has_no_more_headers_than_a_map_of_them() {
    let key = "router.limits.max_header_bytes";
    for (size, fact) in [("0B", "zero"), ("524289B", "524289B is too large"), ("1MiB", "1MiB is too large")] {
        let text = refused(&file(key, &format!("\"{size}\"")));
        assert!(text.contains(&format!("{key}: {fact}")) && text.contains("expected at most 512KiB"), "{text}");
    }
    assert_accepted(&file(key, "\"512KiB\""));
}

#[test]
fn limits_of_keys_have_a_number_and_a_key() {
    let limited =
        |limits: &str| format!("[router]\npartition = {{ key = {{ header = \"x-key\" }} }}\nlimits.key = {limits}\n");
    let of = |text: &str| {
        let config = parse("segue.toml", text, [], "h").unwrap_or_else(|errors| panic!("{errors}"));
        config.keyspaces[0].routing.clone().unwrap().key_limits
    };
    let rate = KeyLimits { requests_per_second: 100, ..KeyLimits::default() };
    assert_eq!(of(&limited("{ requests_per_second = 100 }")), Some(rate.clone()));
    let all = "{ requests_per_second = 100, burst = 7, max_in_flight = 3, by = { header = \"X-Tenant\" } }";
    let by = LimitedBy::Header("x-tenant".parse().unwrap());
    assert_eq!(of(&limited(all)), Some(KeyLimits { by, burst: 7, max_in_flight: 3, ..rate }));
    assert_eq!(of("[router]\n"), None);
    for (limits, key, fact) in [
        ("{}", "", "limits nothing; expected requests_per_second or max_in_flight"),
        ("{ by = { header = \"a\" } }", "", "limits nothing"),
        ("{ requests_per_second = 0, max_in_flight = 0 }", "", "limits nothing"),
        ("{ burst = 5, max_in_flight = 1 }", ".burst", "given without router.limits.key.requests_per_second"),
        ("{ requests_per_second = 1000001 }", ".requests_per_second", "1000001 is out of range"),
        ("{ requests_per_second = 0.5 }", ".requests_per_second", "0.5 is not a whole number"),
        ("{ requests_per_second = 1, burst = 0 }", ".burst", "0 is out of range"),
        ("{ max_in_flight = -1 }", ".max_in_flight", "-1 is out of range"),
        ("{ max_in_flight = 1, by = {} }", ".by", "empty; expected header"),
    ] {
        let told = refused(&limited(limits));
        assert!(
            told.contains(&format!("router.limits.key{key}: {fact}")) && told.lines().count() == 1,
            "{limits}: {told}"
        );
    }
    // A partition's number alone is no key.
    let numbered = |more: &str| format!("[router]\n{more}\nlimits.key = {{ max_in_flight = 1 }}\n");
    let told = refused(&numbered("partition = { header = \"x-partition\" }"));
    assert!(
        told.contains("segue.toml:3:8: router.limits.key: given without a key: router.partition has a number alone"),
        "{told}"
    );
    assert!(refused(&numbered("")).contains("given without a key"));
    assert_accepted(&numbered("partition = { header = \"x-partition\", order_by = { header = \"x-key\" } }"));
    assert_accepted(&numbered("").replace("max_in_flight = 1", "max_in_flight = 1, by = { header = \"x-tenant\" }"));
}

#[test]
fn a_keyspace_has_the_routers_limits_of_keys_or_its_own_or_none() {
    let text = "[router.limits.key]\nrequests_per_second = 10\n\
        [[keyspaces]]\nname = \"a\"\nmatch = { host = \"a\" }\npartition.key.header = \"x-key\"\n\
        [[keyspaces]]\nname = \"b\"\nmatch = { host = \"b\" }\npartition.key.header = \"x-key\"\nlimits.key.max_in_flight = 5\n\
        [[keyspaces]]\nname = \"c\"\nmatch = { host = \"c\" }\npartition.header = \"x-p\"\nlimits.key.requests_per_second = 0\n";
    let config = parse("segue.toml", text, [], "h").unwrap_or_else(|errors| panic!("{errors}"));
    let limits = config.keyspaces.iter().map(|keyspace| keyspace.routing.as_ref().unwrap().key_limits.clone());
    let rate = KeyLimits { requests_per_second: 10, ..KeyLimits::default() };
    assert_eq!(limits.collect::<Vec<_>>(), [Some(rate.clone()), Some(KeyLimits { max_in_flight: 5, ..rate }), None]);
    // The mistake stands where the limits do.
    let told = refused(&text.replace("limits.key.requests_per_second = 0\n", ""));
    assert!(told.contains("segue.toml:1:16: router.limits.key: given without a key"), "{told}");
    let told = refused(&text.replace("limits.key.requests_per_second = 0\n", "limits.key.max_in_flight = 1\n"));
    assert!(
        told.contains("keyspaces.limits.key: given without a key: keyspaces.partition has a number alone"),
        "{told}"
    );
    assert!(
        refused("[coordinator]\n[[keyspaces]]\nname = \"a\"\nlimits.key.max_in_flight = 1\n")
            .contains("without [router]")
    );
}

proptest! {
    #[test]
    fn a_key_that_is_not_known_is_never_ignored(
        section in prop::sample::select(&["", "store.", "router.", "router.stash.", "router.upstream.", "coordinator.",
            "pod.", "admin.", "log."][..]),
        name in "[a-z]{1,8}_[a-z]{1,8}_x",
        value in prop::sample::select(&["1", "\"1s\"", "true", "{}", "[]", "\"x\""][..]),
    ) {
        let text = refused(&format!("{section}{name} = {value}\n[router]\n"));
        prop_assert!(text.contains("segue.toml:1:") && text.contains("unknown key"), "{text}");
    }
}
