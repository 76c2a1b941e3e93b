//! Several keyspaces in one file: what is accepted, what it means, and the exact text of each mistake.

use std::time::Duration;

use segue_config::{Config, KeyspaceSection, compare, locate, parse};
use segue_protocol::planning::Strategy;
use segue_proxy::routing::keyspace_choice::{HostName, KeyspaceMatch, PathPrefix};
use segue_proxy::routing::partition_key::{KeySource, PartitionSource};
use segue_proxy::settings::UpstreamProtocol;

use crate::support::{assert_accepted, assert_refused, refused};

const SITE: &str = r#"
[router]
[router.stash]
max_total_bytes = "1GiB"
max_wait = "40s"
[coordinator]
partitions = 32
max_concurrent_handoffs = 20
cool_down = "3s"

[[keyspaces]]
name = "orders"
match = { host = "Orders.example" }
partitions = 256
strategy = "ring"
max_concurrent_handoffs = 1
max_warming_per_pod = 2
cool_down = "0s"
balance_load = true
max_keys_per_partition = 9
[keyspaces.partition]
key = { header = "x-order" }
[keyspaces.stash]
max_requests = 5
max_wait = "9s"
[keyspaces.upstream]
protocol = "http2"

[[keyspaces]]
name = "persons"
match = { path_prefix = "/persons" }
partition = { key = { path = "/persons/{key}" } }

[[keyspaces]]
name = "rest"
partition = { header = "x-partition" }
"#;

fn config(text: &str) -> Config {
    parse("segue.toml", text, [], "host-1").unwrap_or_else(|errors| panic!("{errors}"))
}

/// Returns a file of a router with these tables.
fn router(tables: &str) -> String {
    format!("[router]\n{tables}")
}

/// Returns a table of a router's file, in four lines.
fn table(name: &str, matching: &str) -> String {
    format!("[[keyspaces]]\nname = \"{name}\"\n{matching}\npartition.header = \"x-partition\"\n")
}

#[test]
fn each_table_is_a_keyspace_with_settings_of_its_own() {
    let config = config(SITE);
    assert!(config.lists_keyspaces && config.only_keyspace().is_none());
    let [orders, persons, rest] = &*config.keyspaces else { panic!("{:?}", config.keyspaces) };
    let names: Vec<_> = config.keyspaces.iter().map(|keyspace| &*keyspace.name).collect();
    assert_eq!(names, ["orders", "persons", "rest"]);
    let routing = |keyspace: &KeyspaceSection| keyspace.routing.clone().unwrap();
    let policy = |keyspace: &KeyspaceSection| keyspace.policy.clone().unwrap();
    assert_eq!(routing(orders).matching, Some(KeyspaceMatch::Host(HostName::new("orders.example").unwrap())));
    assert_eq!(routing(persons).matching, Some(KeyspaceMatch::PathPrefix(PathPrefix::new("/persons").unwrap())));
    assert_eq!(routing(rest).matching, None);
    assert!(matches!(routing(orders).partition, PartitionSource::Key { source: KeySource::Header(_), .. }));
    assert!(matches!(routing(persons).partition, PartitionSource::Key { source: KeySource::Path(_), .. }));
    assert!(matches!(routing(rest).partition, PartitionSource::Number { .. }));
    assert_eq!((policy(orders).partitions, policy(orders).strategy), (256, Strategy::Ring));
    assert_eq!((policy(rest).partitions, policy(rest).strategy), (32, Strategy::Sticky));
    assert_eq!((routing(orders).stash.max_requests, routing(orders).stash.max_wait), (5, Duration::from_secs(9)));
    assert_eq!((routing(rest).stash.max_requests, routing(rest).stash.max_wait), (10_000, Duration::from_secs(40)));
    let router = config.router.clone().unwrap();
    let protocol = |keyspace: &KeyspaceSection| router.forward_settings("", &routing(keyspace), None).upstream.protocol;
    assert_eq!((protocol(orders), protocol(rest)), (UpstreamProtocol::Http2, UpstreamProtocol::Auto));
    assert!(config.keyspaces.iter().all(|keyspace| routing(keyspace).stash.max_total_bytes == 1 << 30));
    let limits = |keyspace: &KeyspaceSection| {
        let policy = policy(keyspace);
        (policy.max_concurrent_handoffs, policy.max_warming_per_pod, policy.cool_down.as_secs())
    };
    assert_eq!([orders, persons, rest].map(limits), [(1, 2, 0), (20, 8, 3), (20, 8, 3)]);
    let of_load = |keyspace: &KeyspaceSection| (policy(keyspace).balance_load, policy(keyspace).max_keys_per_partition);
    assert_eq!([orders, persons, rest].map(of_load), [(true, 9), (false, 0), (false, 0)]);
    // Two thirds of the shortest.
    assert_eq!(config.router.unwrap().drain.timeout, Duration::from_secs(6));
}

#[test]
fn a_file_with_one_keyspace_has_a_list_of_one() {
    let config = config("keyspace = \"orders\"\n[router]\n[coordinator]\n[pod]\n");
    assert!(!config.lists_keyspaces);
    let only = config.only_keyspace().unwrap();
    assert_eq!(only.name, "orders");
    assert_eq!(only.routing.as_ref().unwrap().matching, None);
    assert_eq!(only.policy.as_ref().unwrap().partitions, 64);
}

#[test]
fn a_pod_names_its_keyspaces_only() {
    let config = config("[pod]\n[[keyspaces]]\nname = \"a\"\n[[keyspaces]]\nname = \"b\"\n");
    assert_eq!(config.keyspaces.len(), 2);
    assert!(config.keyspaces.iter().all(|keyspace| keyspace.routing.is_none() && keyspace.policy.is_none()));
}

#[test]
fn a_list_stands_in_place_of_the_single_keyspace() {
    assert_refused(
        "keyspace = \"x\"\n[router]\n[router.partition]\nheader = \"x-partition\"\n\
         [[keyspaces]]\nname = \"a\"\npartition.header = \"p\"\n",
        &[
            "segue.toml:1:1: keyspace: given beside [[keyspaces]] (segue.toml:5:3); expected one of the two",
            "segue.toml:3:9: router.partition: given beside [[keyspaces]] (segue.toml:5:3); expected \
             [keyspaces.partition] in each of them instead",
        ],
    );
    let variable = [("SEGUE__KEYSPACE".to_owned(), "x".to_owned())];
    let errors = parse("segue.toml", "[pod]\n[[keyspaces]]\nname = \"a\"\n", variable, "host-1").unwrap_err();
    assert_eq!(
        errors.to_string(),
        "SEGUE__KEYSPACE: keyspace: given beside [[keyspaces]] (segue.toml:2:3); expected one of the two"
    );
}

#[test]
fn a_file_that_follows_the_list_of_the_store_has_tables_or_no_keyspace() {
    let alone = config("follow_keyspaces = true\n[router]\n[coordinator]\n[pod]\n");
    assert!(alone.keyspaces.is_empty() && alone.lists_keyspaces && alone.follow_keyspaces);
    let beside = config(&format!("follow_keyspaces = true\n{SITE}"));
    assert_eq!(beside.keyspaces.len(), 3);
    assert_refused(
        "keyspace = \"x\"\nfollow_keyspaces = true\n[router]\n",
        &[
            "segue.toml:2:1: follow_keyspaces: given beside keyspace (segue.toml:1:1), which is the only one; expected tables \
           [[keyspaces]], or none",
        ],
    );
    assert_refused(
        "follow_keyspaces = true\n[router]\n[router.partition]\nheader = \"x-partition\"\n",
        &[
            "segue.toml:3:9: router.partition: given beside follow_keyspaces (segue.toml:1:1); expected [keyspaces.partition] \
           in each of them instead",
        ],
    );
}

#[test]
fn variables_do_not_reach_into_tables() {
    let variable = [("SEGUE__KEYSPACES__NAME".to_owned(), "x".to_owned())];
    let errors = parse("segue.toml", "[pod]\n[[keyspaces]]\nname = \"a\"\n", variable, "host-1").unwrap_err();
    assert!(errors.to_string().starts_with("SEGUE__KEYSPACES__NAME: variable: names no known key"), "{errors}");
}

#[test]
fn a_table_needs_a_name_and_in_a_routers_file_the_source_of_partitions() {
    assert_refused(
        "[router]\n[[keyspaces]]\n[[keyspaces]]\nname = \"a/b\"\nmatch = {}\npartition.header = \"p\"\n",
        &[
            "segue.toml:2:1: keyspaces.name: not given; expected the keyspace's name",
            "segue.toml:2:1: keyspaces.partition: not given; expected [keyspaces.partition] with a header or a key",
            "segue.toml:3:1: keyspaces.match: not given, as in another keyspace (segue.toml:2:1); expected one of host, \
             path_prefix: only one keyspace can have the requests that no other one matches",
            "segue.toml:4:8: keyspaces.name: \"a/b\" cannot be a name; expected letters, digits, '.', '_' and '-', 253 at \
             most",
            "segue.toml:5:1: keyspaces.match: empty; expected one of host, path_prefix",
        ],
    );
}

#[test]
fn names_and_matches_differ() {
    let tables = [
        table("a", "match.host = \"h\""),
        table("a", "match.host = \"H\""),
        table("b", "match.path_prefix = \"/p\""),
        table("c", "match.path_prefix = \"/p\""),
        table("d", ""),
        table("e", ""),
    ];
    assert_refused(
        &router(&tables.concat()),
        &[
            "segue.toml:7:8: keyspaces.name: \"a\" is the name of another keyspace, too (segue.toml:3:1); expected a name of \
             its own",
            "segue.toml:8:14: keyspaces.match.host: matches the same requests as another keyspace (segue.toml:4:7); expected \
             a match of its own",
            "segue.toml:16:21: keyspaces.match.path_prefix: matches the same requests as another keyspace \
             (segue.toml:12:7); expected a match of its own",
            "segue.toml:22:1: keyspaces.match: not given, as in another keyspace (segue.toml:18:1); expected one of host, \
             path_prefix: only one keyspace can have the requests that no other one matches",
        ],
    );
    let nested = [table("a", "match.path_prefix = \"/p\""), table("b", "match.path_prefix = \"/p/q\"")];
    assert_accepted(&router(&nested.concat()));
}

#[test]
fn a_match_is_one_host_or_one_prefix() {
    let tables = [
        table("a", "match = { host = \"h:80\" }"),
        table("b", "match = { path_prefix = \"/p/\" }"),
        table("c", "match = { host = \"h\", path_prefix = \"/\" }"),
        table("d", "match = { hots = \"h\" }"),
    ];
    assert_refused(
        &router(&tables.concat()),
        &[
            "segue.toml:4:18: keyspaces.match.host: \"h:80\" has a port, and ports are not compared; expected a host without \
             a port, such as \"orders.example\"",
            "segue.toml:8:25: keyspaces.match.path_prefix: \"/p/\" has an empty segment; expected the beginning of a path, such \
             as \"/orders\"; did you mean \"/p\"",
            "segue.toml:12:23: keyspaces.match.path_prefix: given beside keyspaces.match.host (segue.toml:12:11); expected \
             exactly one",
            "segue.toml:12:37: keyspaces.match.path_prefix: \"/\" matches every path; expected the beginning of a path, such as \
             \"/orders\"",
            "segue.toml:16:11: keyspaces.match.hots: unknown key; expected one of host, path_prefix; did you mean host",
        ],
    );
}

#[test]
fn a_table_has_only_settings_of_roles_that_run() {
    assert_refused(
        "[pod]\n[[keyspaces]]\nname = \"a\"\nmatch.host = \"h\"\npartition.header = \"p\"\nstash.max_requests = 1\n\
         partitions = 8\nstrategy = \"jump\"\nmax_concurrent_handoffs = 4\nmax_warming_per_pod = 2\ncool_down = \"1s\"\n\
         balance_load = true\nmax_keys_per_partition = 7\n",
        &[
            "segue.toml:4:1: keyspaces.match: given in a file without [router], which alone uses it; expected it in the \
             router's file",
            "segue.toml:5:1: keyspaces.partition: given in a file without [router], which alone uses it; expected it in the \
             router's file",
            "segue.toml:6:1: keyspaces.stash: given in a file without [router], which alone uses it; expected it in the \
             router's file",
            "segue.toml:7:1: keyspaces.partitions: given in a file without [coordinator], which alone uses it; expected it in \
             the coordinator's file",
            "segue.toml:8:1: keyspaces.strategy: given in a file without [coordinator], which alone uses it; expected it in \
             the coordinator's file",
            "segue.toml:9:1: keyspaces.max_concurrent_handoffs: given in a file without [coordinator], which alone uses it; \
             expected it in the coordinator's file",
            "segue.toml:10:1: keyspaces.max_warming_per_pod: given in a file without [coordinator], which alone uses it; \
             expected it in the coordinator's file",
            "segue.toml:11:1: keyspaces.cool_down: given in a file without [coordinator], which alone uses it; \
             expected it in the coordinator's file",
            "segue.toml:12:1: keyspaces.balance_load: given in a file without [coordinator], which alone uses it; \
             expected it in the coordinator's file",
            "segue.toml:13:1: keyspaces.max_keys_per_partition: given in a file without [coordinator], which alone uses it; \
             expected it in the coordinator's file",
        ],
    );
}

#[test]
fn a_table_takes_the_same_values_as_the_coordinators_section() {
    let values = [
        ("max_concurrent_handoffs", &["1", "9223372036854775807"][..], &["0", "-1", "\"4\"", "1.5", "true"][..]),
        ("max_warming_per_pod", &["1", "9223372036854775807"], &["0", "-1", "\"4\"", "1.5", "true"]),
        ("cool_down", &["\"0s\"", "\"1h\""], &["10", "\"10\"", "\"-1s\"", "\"9000h\""]),
        ("balance_load", &["true", "false"], &["1", "\"true\""]),
        ("max_keys_per_partition", &["0", "1"], &["-1", "\"0\""]),
        ("partitions", &["1", "65536"], &["0", "65537"]),
        ("strategy", &["\"jump\""], &["\"jmp\"", "1"]),
    ];
    for (name, accepted, wrong) in values {
        for value in accepted {
            assert_accepted(&format!("[coordinator]\n[[keyspaces]]\n{name} = {value}\nname = \"a\"\n"));
        }
        for value in wrong {
            let in_the_section = refused(&format!("\n[coordinator]\n{name} = {value}\n"));
            let in_a_table = refused(&format!("[coordinator]\n[[keyspaces]]\n{name} = {value}\nname = \"a\"\n"));
            assert_eq!(
                in_a_table,
                in_the_section.replace(&format!(" coordinator.{name}:"), &format!(" keyspaces.{name}:"))
            );
        }
    }
    assert_refused(
        "[coordinator]\n[[keyspaces]]\nname = \"a\"\nmax_concurrent_handoffs = 0\nmax_warming_per_pods = 3\n",
        &[
            "segue.toml:4:27: keyspaces.max_concurrent_handoffs: 0 is out of range; expected a whole number of at least 1",
            "segue.toml:5:1: keyspaces.max_warming_per_pods: unknown key; expected one of name, service, match, partition, stash, \
             upstream, limits, partitions, strategy, max_concurrent_handoffs, max_warming_per_pod, cool_down, balance_load, \
             max_keys_per_partition; did you mean max_warming_per_pod",
        ],
    );
}

#[test]
fn variables_of_the_coordinators_section_are_the_default_of_the_tables() {
    let variable = |name: &str, value: &str| (format!("SEGUE__COORDINATOR__{name}"), value.to_owned());
    let text = "[coordinator]\n[[keyspaces]]\nname = \"a\"\nmax_concurrent_handoffs = 2\n[[keyspaces]]\nname = \"b\"\n";
    let variables = [variable("MAX_CONCURRENT_HANDOFFS", "5"), variable("MAX_WARMING_PER_POD", "3")];
    let config = parse("segue.toml", text, variables, "host-1").unwrap();
    let limits = |keyspace: &KeyspaceSection| {
        let policy = keyspace.policy.as_ref().unwrap();
        (policy.max_concurrent_handoffs, policy.max_warming_per_pod)
    };
    assert_eq!(config.keyspaces.iter().map(limits).collect::<Vec<_>>(), [(2, 3), (5, 3)]);
}

#[test]
fn limits_of_a_table_fit_those_of_all() {
    let text = "[router]\n[router.stash]\nmax_total_bytes = \"1GiB\"\n[router.drain]\ntimeout = \"8s\"\n\
                [[keyspaces]]\nname = \"a\"\npartition.header = \"p\"\nstash.max_bytes = \"2GiB\"\nstash.max_wait = \"8s\"\n";
    assert_refused(
        text,
        &[
            "segue.toml:5:11: router.drain.timeout: 8s is not below stash.max_wait of keyspace \"a\", which is 8s; expected \
             less than 8s",
            "segue.toml:9:19: keyspaces.stash.max_bytes: 2GiB is above router.stash.max_total_bytes, which is 1GiB \
             (segue.toml:3:1); expected at most 1GiB",
        ],
    );
}

#[test]
fn a_list_is_written_with_two_brackets() {
    for text in ["[pod]\n[keyspaces]\nname = \"a\"\n", "keyspaces = [\"a\"]\n[pod]\n", "keyspaces = 1\n[pod]\n"] {
        let refused = refused(text);
        assert!(refused.contains("keyspaces: not a list of tables; expected [[keyspaces]] before each"), "{refused}");
    }
    assert_refused("keyspaces = []\n[pod]\n", &["segue.toml:1:1: keyspaces: empty; expected at least one table"]);
}

#[test]
fn files_are_compared_keyspace_by_keyspace() {
    let located = |name: &str, text: &str| locate(name, text, [], name).unwrap();
    let router = located("router", &format!("[router]\n{}{}", table("a", "match.host = \"a\""), table("b", "")));
    let other = located(
        "other",
        &format!(
            "[router]\n{}[[keyspaces]]\nname = \"a\"\npartition.key.header = \"k\"\n",
            table("c", "match.host = \"c\"")
        ),
    );
    let alone = located("alone", "keyspace = \"b\"\n[router]\npartition.key.query = \"k\"\n");
    let texts = |files: &[_]| -> (Vec<_>, Vec<_>) {
        let found = compare(files);
        let text = |problems: Vec<segue_config::Problem>| problems.iter().map(ToString::to_string).collect();
        (text(found.problems), text(found.warnings))
    };
    let mapping = "another mapping of requests to partitions than router router has (router); expected the same in all \
                   routers of a keyspace";
    let (problems, _) = texts(&[router.clone(), other]);
    assert_eq!(problems, [format!("other:8:24: keyspaces.partition: {mapping}")]);
    let (problems, _) = texts(&[router.clone(), alone]);
    assert_eq!(problems, [format!("alone:1:1: router.partition: {mapping}")]);

    let elsewhere = located("elsewhere", &format!("[router]\n{}", table("a", "match.host = \"z\"")));
    let (problems, warnings) = texts(&[router.clone(), elsewhere]);
    assert_eq!(problems, [""; 0]);
    let choice = "another choice of the requests of keyspace \"a\" than router router has (router); expected the same `match` in \
                  all routers that the same clients use";
    assert_eq!(warnings, [format!("elsewhere:4:14: keyspaces.match: {choice}")]);

    let coordinator = located(
        "coordinator",
        "[coordinator]\nphase_timeout = \"29s\"\n[[keyspaces]]\nname = \"b\"\n[[keyspaces]]\nname = \"d\"\npartitions = 8\n",
    );
    let standby = located("standby", "keyspace = \"d\"\n[coordinator]\npartitions = 9\n");
    let (problems, warnings) = texts(&[router, coordinator, standby]);
    assert_eq!(problems, [""; 0]);
    assert_eq!(
        warnings,
        [
            "standby:3:14: coordinator.partitions: another value than coordinator coordinator has (coordinator): the keyspace \
          keeps that of its first leader; expected the same in all coordinators of a keyspace"
        ]
    );
}

#[test]
fn limits_of_a_keyspace_are_compared_wherever_they_stand() {
    let located = |name: &str, text: &str| locate(name, text, [], name).unwrap();
    let tables = "[coordinator]\nmax_warming_per_pod = 3\n[[keyspaces]]\nname = \"a\"\nmax_concurrent_handoffs = 1\n\
                  [[keyspaces]]\nname = \"b\"\n";
    let one = located("one", tables);
    let warnings = |text: &str| {
        let found = compare(&[one.clone(), located("two", text)]);
        assert_eq!(found.problems, []);
        found.warnings.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let why = "another value than coordinator one has (one): the keyspace keeps that of its first leader; expected the same \
               in all coordinators of a keyspace";
    // The same limits, as the section's.
    let same = "keyspace = \"a\"\n[coordinator]\nmax_concurrent_handoffs = 1\nmax_warming_per_pod = 3\n";
    assert_eq!(warnings(same), [""; 0]);
    assert_eq!(warnings(tables), [""; 0]);
    let tables = "[coordinator]\nmax_concurrent_handoffs = 1\n[[keyspaces]]\nname = \"b\"\nmax_warming_per_pod = 3\n";
    assert_eq!(warnings(tables), [format!("two:2:27: coordinator.max_concurrent_handoffs: {why}")]);
    let tables = "[coordinator]\n[[keyspaces]]\nname = \"a\"\nmax_concurrent_handoffs = 2\nmax_warming_per_pod = 4\n";
    assert_eq!(
        warnings(tables),
        [
            format!("two:4:27: keyspaces.max_concurrent_handoffs: {why}"),
            format!("two:5:23: keyspaces.max_warming_per_pod: {why}"),
        ]
    );
}
