//! Settings from `SEGUE__SECTION__KEY` variables in the environment.

use std::time::Duration;

use segue_config::{Config, Errors, parse};
use segue_proxy::routing::partition_key::{KeySource, PartitionSource as Partition};

fn with(variables: &[(&str, &str)], text: &str) -> Result<Config, Errors> {
    let env = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    parse("segue.toml", text, env, "host-1")
}

#[track_caller]
fn assert_refused(variables: &[(&str, &str)], text: &str, expected: &[&str]) {
    let errors = with(variables, text).unwrap_err().to_string();
    assert_eq!(errors.lines().collect::<Vec<_>>(), expected);
}

#[test]
fn a_variable_overrides_the_file() {
    let variables = [
        ("SEGUE__KEYSPACE", "orders"),
        ("SEGUE__ROUTER__STASH__MAX_WAIT", "5s"),
        ("SEGUE__ROUTER__WORKERS", "4"),
        ("SEGUE__ROUTER__PARTITION__KEY__QUERY", "id"),
        ("SEGUE__POD__NAME", "7"),
        ("SEGUE__POD__WEIGHT", "0.5"),
        ("SEGUE_CONFIG", "not ours"),
        ("HOME", "/root"),
    ];
    let config = with(&variables, "keyspace = \"a\"\n[router]\nstash.max_wait = \"soon\"\n[pod]\n").unwrap();
    let (router, pod) = (config.router.unwrap(), config.pod.unwrap());
    let keyspace = &config.keyspaces[0];
    let routing = keyspace.routing.clone().unwrap();
    assert_eq!(keyspace.name, "orders");
    assert_eq!(routing.stash.max_wait, Duration::from_secs(5));
    assert_eq!(router.workers.unwrap().get(), 4);
    assert!(matches!(routing.partition, Partition::Key { source: KeySource::Query(name), .. } if name == "id"));
    assert_eq!((&*pod.name, pod.weight), ("7", 0.5));
}

#[test]
fn a_list_is_toml_or_items_between_commas() {
    for written in ["http://a:1, http://b:2,", "[\"http://a:1\", \"http://b:2\"]"] {
        let config = with(&[("SEGUE__STORE__ENDPOINTS", written)], "[pod]\n").unwrap();
        assert_eq!(config.store.endpoints, ["http://a:1", "http://b:2"], "{written}");
    }
    let expected = "expected a list of URLs, such as [\"http://127.0.0.1:2379\"]";
    for (written, fact) in [("", "names no endpoint"), ("[1]", "1 is not a string"), ("[\"", "\"[\\\"\" is not a list")]
    {
        let problem = format!("SEGUE__STORE__ENDPOINTS: store.endpoints: {fact}; {expected}");
        assert_refused(&[("SEGUE__STORE__ENDPOINTS", written)], "[pod]\n", &[&problem]);
    }
}

#[test]
fn fields_of_a_body_are_toml_or_items_between_commas() {
    for (key, written, told) in [
        ("JSON", "person.id", "json:person.id"),
        ("JSON", "team,person.id", "json:team,person.id joined by :"),
        ("GRPC", "3.1", "grpc:3.1"),
        ("GRPC", "1", "grpc:1"),
        ("GRPC", "1, 3.1", "grpc:1,3.1 joined by :"),
        ("GRPC", "[1, \"3.1\"]", "grpc:1,3.1 joined by :"),
    ] {
        let name = format!("SEGUE__ROUTER__PARTITION__KEY__{key}");
        let config = with(&[(&name, written)], "[router]\n").unwrap();
        let routing = config.keyspaces[0].routing.as_ref().unwrap();
        assert_eq!(routing.partition.partitioner().to_string(), format!("the murmur2 hash of {told}"), "{written}");
    }
}

#[test]
fn a_table_is_toml_or_names_and_values_between_commas() {
    let pod = |written: &str| with(&[("SEGUE__POD__EXEC_ENV", written)], "[pod]\nexec = [\"a\"]\n");
    for written in ["{ A = \"b\", C = \"d=e\" }", "A=b, C=d=e"] {
        let env = pod(written).unwrap().pod.unwrap().exec.unwrap().env;
        assert_eq!(env, [("A".to_owned(), "b".to_owned()), ("C".to_owned(), "d=e".to_owned())], "{written}");
    }
    assert_eq!(pod("").unwrap().pod.unwrap().exec.unwrap().env, []);
    for (written, fact) in [("A", "\"A\" has no ="), ("{ A", "\"{ A\" is not a table")] {
        let told = pod(written).unwrap_err().to_string();
        assert!(told.starts_with(&format!("SEGUE__POD__EXEC_ENV: pod.exec_env: {fact}; expected variables")), "{told}");
    }
}

#[test]
fn a_variable_that_names_no_key_is_refused_with_the_nearest() {
    assert_refused(
        &[
            ("SEGUE__ROUTER__STASH__MAXWAIT", "5s"),
            ("SEGUE__", "x"),
            ("SEGUE__log__level", "debug"),
            ("SEGUE__POD__NOTHING_LIKE_IT\n", ""),
        ],
        "[router]\n",
        &[
            "SEGUE__: variable: names no known key; expected SEGUE__SECTION__KEY with the name of a key",
            "SEGUE__POD__NOTHING_LIKE_IT\\n: variable: names no known key; expected SEGUE__SECTION__KEY with the name of a key",
            "SEGUE__ROUTER__STASH__MAXWAIT: variable: names no known key; expected SEGUE__SECTION__KEY with the name of \
             a key; did you mean SEGUE__ROUTER__STASH__MAX_WAIT",
            "SEGUE__log__level: variable: names no known key; expected SEGUE__SECTION__KEY with the name of a key; did \
             you mean SEGUE__LOG__LEVEL",
        ],
    );
}

#[test]
fn a_variable_of_a_renamed_key_names_the_new_one() {
    assert_refused(
        &[("SEGUE__ROUTER__HANDOVER", "/run/segue/router-0.sock")],
        "[router]\n",
        &["SEGUE__ROUTER__HANDOVER: variable: renamed; use SEGUE__ROUTER__HOT_RESTART_SOCKET"],
    );
}

#[test]
fn a_bad_value_names_its_variable() {
    assert_refused(
        &[("SEGUE__COORDINATOR__PARTITIONS", "many"), ("SEGUE__COORDINATOR__SETTLE", "1m")],
        "[coordinator]\nsettle_max = \"5s\"\npartitions = 0\n",
        &[
            "SEGUE__COORDINATOR__PARTITIONS: coordinator.partitions: \"many\" is not a whole number; expected a whole \
             number from 1 to 65536",
            "SEGUE__COORDINATOR__SETTLE: coordinator.settle: 1m is above coordinator.settle_max, which is 5s \
             (segue.toml:2:1); expected at most 5s",
        ],
    );
}

#[test]
fn a_second_source_from_a_variable_points_at_both() {
    assert_refused(
        &[("SEGUE__ROUTER__PARTITION__KEY__HEADER", "x-key")],
        "[router.partition]\nheader = \"x-partition\"\n",
        &[
            "SEGUE__ROUTER__PARTITION__KEY__HEADER: router.partition.key.header: a second source of the partition beside \
           router.partition.header (segue.toml:2:1); expected exactly one",
        ],
    );
}

#[test]
fn a_variable_starts_no_role() {
    assert_refused(
        &[("SEGUE__POD__UPSTREAM", "127.0.0.1:80")],
        "[router]\n",
        &[
            "SEGUE__POD__UPSTREAM: pod.upstream: segue.toml has no section [pod]; expected it there: the file says which \
           roles run, variables only override their keys",
        ],
    );
}

#[test]
fn a_variable_turns_the_admin_endpoint_on() {
    let config = with(&[("SEGUE__ADMIN__LISTEN", "127.0.0.1:9999")], "[router]\n").unwrap();
    assert_eq!(config.admin.unwrap().listen.port(), 9999);
    assert_eq!(with(&[], "[router]\n").unwrap().admin, None);
}

#[test]
fn half_of_tls_from_a_variable_is_refused() {
    assert_refused(
        &[("SEGUE__ROUTER__TLS__CERT", "/a.pem")],
        "[router]\n",
        &["SEGUE__ROUTER__TLS__CERT: router.tls: given without router.tls.key; expected the files cert and key, and \
           client_ca if clients must have certificates"],
    );
}
