//! The exact text of each mistake in a key or a value, with its place.

use segue_config::ExecUser;
use segue_proxy::routing::partition_key::PartitionSource;

use crate::support::{accepted, assert_accepted, assert_refused, refused};

#[test]
fn an_unknown_key_names_the_nearest_known_one() {
    assert_refused(
        "[coordinator]\nmin_intervall = \"2s\"\n[admin]\nlisten_at = 1\n",
        &[
            "segue.toml:2:1: coordinator.min_intervall: unknown key; expected one of name, partitions, strategy, \
             lease_ttl, settle, settle_max, min_interval, heartbeat, max_concurrent_handoffs, max_warming_per_pod, cool_down, \
             balance_load, max_keys_per_partition, config_wins, mode, coordination, warm_timeout, phase_timeout, \
             checkpoint_interval, checkpoint_timeout, listen, token_file, tls; did you mean min_interval",
            "segue.toml:4:1: admin.listen_at: unknown key; expected one of listen, advertise, hosts, \
             socket, write, token_file, tls, peers_tls; did you mean listen",
        ],
    );
}

#[test]
fn a_renamed_key_names_the_new_one() {
    assert_refused(
        "[router]\nhandover = \"/run/segue/router-0.sock\"\n",
        &["segue.toml:2:1: router.handover: renamed; use router.hot_restart_socket"],
    );
}

#[test]
fn an_unknown_section_names_the_nearest_known_one() {
    assert_refused(
        "[router]\n[cordinator]\n",
        &[
            "segue.toml:2:2: cordinator: unknown key; expected one of keyspace, follow_keyspaces, service, store, router, coordinator, pod, admin, \
           log, tracing, keyspaces; did you mean coordinator",
        ],
    );
}

#[test]
fn a_known_key_in_the_wrong_section_is_told_where_it_belongs() {
    assert_refused(
        "[log]\nmax_wait = \"1s\"\n[stash]\n[pod]\n",
        &[
            "segue.toml:2:1: log.max_wait: unknown key; expected one of level, format, requests; did you mean \
             router.stash.max_wait",
            "segue.toml:3:2: stash: unknown key; expected one of keyspace, follow_keyspaces, service, store, router, coordinator, pod, admin, log, \
             tracing, keyspaces; did you mean router.stash",
        ],
    );
}

#[test]
fn a_key_with_a_dot_in_quotes_is_not_a_path() {
    let text = refused("[pod]\n\"log.level\" = \"debug\"\n\"\\n\" = 1\n");
    assert!(text.contains(":2:1: pod.\"log.level\": unknown key"), "{text}");
    assert!(text.contains(":3:1: pod.\"\\n\": unknown key"), "{text}");
    assert_eq!(text.lines().count(), 2, "{text}");
}

#[test]
fn every_mistake_is_reported_at_once_in_the_order_of_the_file() {
    assert_refused(
        "keyspace = \"a/b\"\n[router]\nlisten = \"localhost:80\"\nworkers = \"four\"\n[router.stash]\nmax_wait = \"0s\"\n\
         max_bytes = \"64MB\"\n[coordinator]\npartitions = 0\nmode = \"Barier\"\n[log]\nlevel = true\n",
        &[
            "segue.toml:1:12: keyspace: \"a/b\" cannot be a name; expected letters, digits, '.', '_' and '-', 253 at \
             most",
            "segue.toml:3:10: router.listen: \"localhost:80\" is not an address to listen at; expected an IP address \
             and a port, such as \"127.0.0.1:8080\" or \"[::1]:8080\"; did you mean \"127.0.0.1:80\"",
            "segue.toml:4:11: router.workers: \"four\" is not a whole number; expected a whole number from 0 to 1024",
            "segue.toml:6:12: router.stash.max_wait: zero; expected more than that",
            "segue.toml:7:13: router.stash.max_bytes: \"64MB\" is not a size; expected a size such as \"512B\", \
             \"64KiB\" or \"64MiB\"; did you mean \"64MiB\"",
            "segue.toml:9:14: coordinator.partitions: 0 is out of range; expected a whole number from 1 to 65536",
            "segue.toml:10:8: coordinator.mode: \"Barier\" is not known; expected one of barrier, independent; did you \
             mean barrier",
            "segue.toml:12:9: log.level: true is not a string; expected one of error, warn, info, debug, trace",
        ],
    );
}

#[test]
fn a_collector_is_named_by_the_url_that_spans_can_be_posted_below() {
    let expected = "expected the URL of a collector's OTLP receiver for HTTP, such as \"http://127.0.0.1:4318\"";
    for (endpoint, mistake) in [
        ("http://c:4318/v1/traces", ": \"http://c:4318/v1/traces\" names the path of the traces, which Segue adds; "),
        ("c:4318", ": \"c:4318\" is not a URL of this kind; "),
        ("http://c:4318?a=b", ": \"http://c:4318?a=b\" has a query; "),
        ("http://user:pw@c:4318", ": a URL contains a user or a password; "),
    ] {
        let text = refused(&format!("[router]\n[tracing]\nendpoint = \"{endpoint}\"\n"));
        let start = format!("segue.toml:3:12: tracing.endpoint{mistake}{expected}");
        assert!(text.starts_with(&start), "{text}");
    }
    assert_refused(
        "[router]\n[tracing]\nendpoint = \"https://c:4318\"\n",
        &[
            "segue.toml:3:12: tracing.endpoint: \"https://c:4318\": spans are exported without TLS; expected the http:// URL \
           of a collector on this host or in this pod",
        ],
    );
    let alone = "[router]\n[tracing]\nsample = \"always\"\n";
    assert_refused(
        alone,
        &["segue.toml:3:1: tracing.sample: given without tracing.endpoint; expected both or neither"],
    );
}

#[test]
fn a_sample_is_a_choice_or_a_share() {
    let traced = |sample: &str| format!("[router]\n[tracing]\nendpoint = \"http://c:4318/otlp\"\nsample = {sample}\n");
    for sample in ["\"parent\"", "\"always\"", "0.01", "0", "1", "1.0"] {
        assert_accepted(&traced(sample));
    }
    let expected = "expected \"parent\", \"always\" or a share of the requests from 0 to 1, such as 0.01";
    for (sample, mistake) in [
        ("1.5", "1.5 is not a share; "),
        ("2", "2 is not a share; "),
        ("-0.1", "-0.1 is not a share; "),
        ("nan", "NaN is not a share; "),
        ("\"sometimes\"", "\"sometimes\" is not known; "),
        ("true", "true is not a string; "),
    ] {
        assert_refused(&traced(sample), &[&format!("segue.toml:4:10: tracing.sample: {mistake}{expected}")]);
    }
    let text = refused(&traced("\"allways\""));
    assert!(text.ends_with("did you mean \"always\""), "{text}");
}

#[test]
fn a_number_without_a_unit_is_offered_one() {
    assert_refused(
        "[router]\nlease_ttl = 15\nstash = { max_bytes = 65536 }\n",
        &[
            "segue.toml:2:13: router.lease_ttl: 15 has no unit; expected a duration such as \"250ms\", \"10s\", \"5m\" \
             or \"1h\"; did you mean \"15s\"",
            "segue.toml:3:23: router.stash.max_bytes: 65536 has no unit; expected a size such as \"512B\", \"64KiB\" or \
             \"64MiB\"; did you mean \"65536B\"",
        ],
    );
}

#[test]
fn columns_count_characters() {
    assert_refused(
        "log = { \"ü\" = 1, level = \"lóud\" }\n[pod]\n",
        &[
            "segue.toml:1:9: log.\"ü\": unknown key; expected one of level, format, requests",
            "segue.toml:1:26: log.level: \"lóud\" is not known; expected one of error, warn, info, debug, trace",
        ],
    );
}

#[test]
fn a_section_that_is_no_table_is_refused() {
    let text = refused("router = 1\n[[pod]]\n");
    assert!(text.contains("segue.toml:1:10: router: not a section; expected a table of name, listen,"), "{text}");
    assert!(text.contains("segue.toml:2:1: pod: not a section; expected a table of name,"), "{text}");
}

#[test]
fn text_without_quotes_and_keys_given_twice_do_not_hide_other_mistakes() {
    assert_refused(
        "[router]\nlease_ttl = 15s\nworkers = 1\nworkers = 2\n[admin]\nlisten = \"x\"\n",
        &[
            "segue.toml:2:13: syntax: the text 15s has no quotes; expected a quoted string; did you mean \"15s\"",
            "segue.toml:4:1: syntax: the key \"workers\" is given twice; expected it once",
            "segue.toml:6:10: admin.listen: \"x\" is not an address to listen at; expected an IP address and a port, \
             such as \"127.0.0.1:8080\" or \"[::1]:8080\"",
        ],
    );
}

#[test]
fn what_follows_broken_toml_is_not_judged() {
    // Parts that the parser lost after the break must not be reported as missing: here a role, and the other bound of
    // `settle`.
    let broken = "[coordinator]\nsettle = \"10s\"\nsettle_max 20\nlisten = \"x\"\n";
    assert_refused(broken, &["segue.toml:3:12: syntax: key with no value; expected `=`"]);
    assert_refused(
        "keyspace = \"\"\n[router\nname = \"a b\"\n[log]\nlevel = 1\n",
        &[
            "segue.toml:1:12: keyspace: \"\" cannot be a name; expected letters, digits, '.', '_' and '-', 253 at most",
            "segue.toml:2:8: syntax: unclosed table; expected `]`",
        ],
    );
}

#[test]
fn a_path_has_exactly_one_key() {
    for (path, why) in [
        ("persons/{key}", "does not begin with '/'"),
        ("/persons", "has no segment {key}"),
        ("/persons/x{key}", "has no segment {key}"),
        ("/{key}/{key}", "has more than one segment {key}"),
        ("/{tenant}", "has no segment {key}"),
        ("/{a b}/{key}", "has a segment that no path has"),
        ("//{key}", "has a segment that no path has"),
        ("/{key}/", "has a segment that no path has"),
        ("/{key}/a?b", "has a segment that no path has"),
    ] {
        assert_refused(
            &format!("[router.partition.key]\npath = \"{path}\"\n"),
            &[&format!(
                "segue.toml:2:8: router.partition.key.path: \"{path}\" {why}; expected a path with one segment {{key}}, \
                 such as \"/persons/{{key}}\""
            )],
        );
    }
}

#[test]
fn a_star_in_a_path_matches_nothing_else_and_is_refused() {
    assert_refused(
        "[router.partition.key]\npath = \"/teams/*/persons/{key}\"\n",
        &["segue.toml:2:8: router.partition.key.path: \"/teams/*/persons/{key}\" has a '*', which would match itself \
           alone; expected a path with one segment {key}, such as \"/persons/{key}\"; did you mean \
           \"/teams/{}/persons/{key}\""],
    );
    let text = refused("[router]\n[[keyspaces]]\nname = \"a\"\nmatch = { path_prefix = \"/a/*\" }\n");
    assert!(text.contains("segue.toml:4:25: keyspaces.match.path_prefix: \"/a/*\" has a '*', which would"), "{text}");
}

#[test]
fn mistakes_in_a_key_of_several_parts_are_named() {
    let expected = "expected paths with named segments, such as [\"/teams/{team}/persons/{person}\"]";
    for (rest, problem) in [
        ("paths = []", format!("2:9: router.partition.key.paths: empty; {expected}")),
        ("paths = [7]", format!("2:9: router.partition.key.paths: 7 is not a string; {expected}")),
        ("paths = \"/{key}\"", format!("2:9: router.partition.key.paths: \"/{{key}}\" is not a list; {expected}")),
        (
            "paths = [\"/a/{key}\", \"/b\"]",
            format!("2:9: router.partition.key.paths: \"/b\" has no segment {{key}}; {expected}"),
        ),
        (
            "paths = [\"/a/{b}/{b}/{key}\"]",
            format!("2:9: router.partition.key.paths: \"/a/{{b}}/{{b}}/{{key}}\" has more than one segment {{b}}; {expected}"),
        ),
        (
            "paths = [\"/{team}\", \"/x/{b}\"]\nof = [\"team\", \"person\"]",
            format!("2:9: router.partition.key.paths: \"/x/{{b}}\" has no segment {{team}} or {{person}}; {expected}"),
        ),
        (
            "paths = [\"/{x}/{key}\", \"/a/{key}/b\"]",
            "2:9: router.partition.key.paths: \"/a/{key}/b\" stands behind \"/{x}/{key}\", which matches the same paths: it \
             is never reached; expected it in front, or not at all"
                .to_owned(),
        ),
        (
            "paths = [\"/{team}\"]\nof = [\"team\", \"persn\"]",
            "3:6: router.partition.key.of: \"persn\" is a segment of no path; expected the names of segments in \
             router.partition.key.paths"
                .to_owned(),
        ),
        (
            "paths = [\"/{a}\"]\nof = [\"a\", \"a\"]",
            "3:6: router.partition.key.of: names \"a\" twice; expected each part once".to_owned(),
        ),
        ("paths = [\"/{a}\"]\nof = []", "3:6: router.partition.key.of: has 0 names; expected 1 to 8".to_owned()),
        (
            "paths = [\"/{a}\"]\nof = [\"{a}\"]",
            "3:6: router.partition.key.of: \"{a}\" is not the name of a segment; expected names of segments, such as \
             [\"team\", \"person\"]"
                .to_owned(),
        ),
        (
            "paths = [\"/{key}\"]\njoin = \"-\"",
            "3:1: router.partition.key.join: the key has one part; expected it only with a key of several parts".to_owned(),
        ),
        (
            "headers = [\"x-a\", \"x-b\"]\njoin = \"\"",
            "3:8: router.partition.key.join: empty; expected text that is not empty".to_owned(),
        ),
        (
            "headers = [\"x-a\", \"X-A\"]",
            "2:11: router.partition.key.headers: names \"X-A\" twice; expected each header once".to_owned(),
        ),
        (
            "headers = [\"x a\"]",
            "2:11: router.partition.key.headers: \"x a\" is not the name of a header; expected the names of headers, such as \
             [\"x-team\", \"x-person\"]"
                .to_owned(),
        ),
        (
            "headers = [\"host\", \"x-a\"]",
            "2:11: router.partition.key.headers: \"host\" is a header by HTTP/1.1 alone; expected key = { host = true }, which \
             is the host by HTTP/2 too"
                .to_owned(),
        ),
        (
            "header = \"x-a\"\nof = [\"a\"]",
            "3:1: router.partition.key.of: given without router.partition.key.paths; no segment has a name; expected it only \
             with key.paths"
                .to_owned(),
        ),
        (
            "header = \"x-a\"\njoin = \":\"",
            "3:1: router.partition.key.join: given without router.partition.key.paths, headers, json or grpc; the key has one \
             part; expected it only with a key of several parts"
                .to_owned(),
        ),
    ] {
        assert_refused(&format!("[router.partition.key]\n{rest}\n"), &[&format!("segue.toml:{problem}")]);
    }
}

#[test]
fn mistakes_in_a_key_of_the_body_are_named() {
    let members = "expected members, such as \"person.id\" or [\"team\", \"person.id\"]";
    let fields = "expected numbers of fields, such as 1 or [\"1\", \"3.1\"]";
    let no_name = "has a member without a name, or with a space, a comma or a control character in its name";
    let no_number = "is not the number of a field, or several with dots between them";
    let deep = "a.".repeat(16) + "a";
    for (rest, problem) in [
        ("json = 7", format!("2:8: router.partition.key.json: 7 is not a list; {members}")),
        ("json = [7]", format!("2:8: router.partition.key.json: 7 is not a string; {members}")),
        ("json = []", "2:8: router.partition.key.json: has 0 parts; expected 1 to 8".to_owned()),
        ("json = \"\"", format!("2:8: router.partition.key.json: \"\" {no_name}; {members}")),
        ("json = \"person..id\"", format!("2:8: router.partition.key.json: \"person..id\" {no_name}; {members}")),
        ("json = [\"a\", \"b c\"]", format!("2:8: router.partition.key.json: \"b c\" {no_name}; {members}")),
        (&format!("json = \"{deep}\""), format!("2:8: router.partition.key.json: \"{deep}\" has more than 16 steps; {members}")),
        (
            "json = [\"person.id\", \"person\"]",
            "2:8: router.partition.key.json: \"person\" leads to the same field as \"person.id\", or through it; expected each \
             part once"
                .to_owned(),
        ),
        (
            "json = \"id\"\njoin = \":\"",
            "3:1: router.partition.key.join: the key has one part; expected it only with a key of several parts".to_owned(),
        ),
        ("grpc = \"person\"", format!("2:8: router.partition.key.grpc: \"person\" {no_number}; {fields}")),
        ("grpc = 0", format!("2:8: router.partition.key.grpc: \"0\" {no_number}; {fields}")),
        ("grpc = -1", format!("2:8: router.partition.key.grpc: \"-1\" {no_number}; {fields}")),
        ("grpc = 536870912", format!("2:8: router.partition.key.grpc: \"536870912\" {no_number}; {fields}")),
        ("grpc = 3.1", format!("2:8: router.partition.key.grpc: 3.1 is not a list; {fields}")),
        ("grpc = [1, 3.1]", format!("2:8: router.partition.key.grpc: 3.1 is not a string; {fields}")),
        ("grpc = [1, \"01\"]", format!("2:8: router.partition.key.grpc: \"01\" {no_number}; {fields}")),
        ("grpc = true", format!("2:8: router.partition.key.grpc: true is not a list; {fields}")),
        ("grpc = [1, 2, 3, 4, 5, 6, 7, 8, 9]", "2:8: router.partition.key.grpc: has 9 parts; expected 1 to 8".to_owned()),
        (
            "grpc = [1, \"1\"]",
            "2:8: router.partition.key.grpc: \"1\" leads to the same field as \"1\", or through it; expected each part once"
                .to_owned(),
        ),
        (
            "grpc = [1]\njoin = \":\"",
            "3:1: router.partition.key.join: the key has one part; expected it only with a key of several parts".to_owned(),
        ),
        (
            "json = \"id\"\ngrpc = 1",
            "3:1: router.partition.key.grpc: a second source of the partition beside router.partition.key.json \
             (segue.toml:2:1); expected exactly one"
                .to_owned(),
        ),
        (
            "json = \"id\"\nof = [\"id\"]",
            "3:1: router.partition.key.of: given without router.partition.key.paths; no segment has a name; expected it only \
             with key.paths"
                .to_owned(),
        ),
    ] {
        assert_refused(&format!("[router.partition.key]\n{rest}\n"), &[&format!("segue.toml:{problem}")]);
    }
}

#[test]
fn a_key_of_the_body_is_one_field_or_several() {
    for (key, told) in [
        ("json = \"person.id\"", "json:person.id"),
        ("json = [\"person.id\"]", "json:person.id"),
        ("json = [\"team\", \"person.id\"]\njoin = \"/\"", "json:team,person.id joined by /"),
        ("grpc = 1", "grpc:1"),
        ("grpc = \"3.1\"", "grpc:3.1"),
        ("grpc = [1, 2]", "grpc:1,2 joined by :"),
        ("grpc = [\"1\", \"3.1\"]\njoin = \"-\"", "grpc:1,3.1 joined by -"),
    ] {
        let config = accepted(&format!("[router.partition.key]\n{key}\n"));
        let partition = &config.keyspaces[0].routing.as_ref().unwrap().partition;
        assert_eq!(partition.partitioner().to_string(), format!("the murmur2 hash of {told}"), "{key}");
        let described = PartitionSource::described(&partition.partitioner());
        assert_eq!(described.as_ref(), Some(partition), "{key}");
    }
}

#[test]
fn what_becomes_of_a_request_without_a_key_is_a_choice_or_a_partition() {
    let expected = "expected \"refuse\", \"any\" or { partition = 0 }";
    let partition = "segue.toml:2:29: router.partition.without_key.partition";
    for (value, problem) in [
        ("\"nobody\"", format!("segue.toml:2:15: router.partition.without_key: \"nobody\" is not known; {expected}")),
        ("\"ani\"", format!("segue.toml:2:15: router.partition.without_key: \"ani\" is not known; {expected}; did you mean any")),
        ("0", format!("segue.toml:2:15: router.partition.without_key: 0 is not a string; {expected}")),
        ("{}", format!("segue.toml:2:1: router.partition.without_key: empty; {expected}")),
        ("{ partition = \"0\" }", format!("{partition}: \"0\" is not a whole number; expected a whole number from 0 to 7")),
        ("{ partition = 8 }", format!("{partition}: 8 is out of range; expected a whole number from 0 to 7")),
        (
            "{ partitoin = 0 }",
            "segue.toml:2:17: router.partition.without_key.partitoin: unknown key; expected one of partition; did you mean \
             partition"
                .to_owned(),
        ),
    ] {
        assert_refused(
            &format!("[router.partition]\nwithout_key = {value}\n[coordinator]\npartitions = 8\n"),
            &[&problem],
        );
    }
    for value in ["\"refuse\"", "\"any\"", "{ partition = 65535 }"] {
        assert_accepted(&format!("[router.partition]\nwithout_key = {value}\n"));
    }
    assert_refused(
        "[router]\n[coordinator]\n[[keyspaces]]\nname = \"a\"\npartitions = 4\n[keyspaces.partition]\n\
         header = \"x-partition\"\nwithout_key = { partition = 4 }\n",
        &[
            "segue.toml:8:29: keyspaces.partition.without_key.partition: 4 is out of range; expected a whole number from 0 to 3",
        ],
    );
}

#[test]
fn names_of_headers_and_cookies_are_checked() {
    assert_refused(
        "[router.partition]\nheader = \"x partition\"\n",
        &[
            "segue.toml:2:10: router.partition.header: \"x partition\" is not the name of a header; expected the name of \
           a header, such as \"x-key\"",
        ],
    );
    assert_refused(
        "[router.partition.key]\ncookie = \"a=b\"\n",
        &["segue.toml:2:10: router.partition.key.cookie: \"a=b\" is not the name of a cookie; expected the name of a \
           cookie, such as \"sid\""],
    );
}

#[test]
fn a_lease_is_whole_seconds_and_at_least_two() {
    for section in ["router", "coordinator", "pod"] {
        assert_refused(
            &format!("[{section}]\nlease_ttl = \"1s\"\n"),
            &[&format!("segue.toml:2:13: {section}.lease_ttl: 1s is too short for a lease; expected at least 2s")],
        );
        assert_refused(
            &format!("[{section}]\nlease_ttl = \"2500ms\"\n"),
            &[&format!(
                "segue.toml:2:13: {section}.lease_ttl: 2500ms is not a whole number of seconds; expected whole \
                 seconds, as etcd grants no others; did you mean \"3s\""
            )],
        );
        assert_accepted(&format!("[{section}]\nlease_ttl = \"2000ms\"\n"));
    }
}

#[test]
fn urls_have_a_scheme_and_those_of_hooks_are_plain_http() {
    assert_refused(
        "[store]\nendpoints = [\"etcd:2379\"]\n[pod]\nwarm_url = \"https://a/warm\"\nsync_url = \"/sync\"\n",
        &[
            "segue.toml:2:13: store.endpoints: \"etcd:2379\" is not a URL of this kind; expected a URL that begins with \
             http:// or https://; did you mean \"http://etcd:2379\"",
            "segue.toml:4:12: pod.warm_url: \"https://a/warm\": hooks are called without TLS; expected a URL that begins \
             with http://, or unix: and a socket, such as \"unix:/run/a.sock:/warm\"; did you mean \"http://a/warm\"",
            "segue.toml:5:12: pod.sync_url: \"/sync\" is not a URL of this kind; expected a URL that begins with http://, \
             or unix: and a socket, such as \"unix:/run/a.sock:/warm\"",
        ],
    );
}

#[test]
fn a_hook_has_one_address_and_what_belongs_to_it() {
    assert_accepted(
        "[pod]\nsync_url = \"http://a/\"\n[pod.hooks]\nwarm = { url = \"unix:/run/a.sock:/warm\", timeout = \"1h\" }\n\
         drain.url = \"http://a/\"\nsync.timeout = \"1s\"\nsecret_file = \"/run/secret\"\n",
    );
    assert_refused(
        "[pod]\nwarm_url = \"http://a/\"\n[pod.hooks]\nwarm.url = \"http://b/\"\nrelease.timeout = \"1s\"\n",
        &[
            "segue.toml:2:1: pod.warm_url: given in addition to pod.hooks.warm.url (segue.toml:4:6); expected one of them: \
             the first is the short form of the second",
            "segue.toml:5:9: pod.hooks.release.timeout: given without pod.hooks.release.url; expected both",
        ],
    );
    assert_refused(
        "[pod.hooks]\nsecret_file = \"/run/secret\"\n",
        &[
            "segue.toml:2:1: pod.hooks.secret_file: given without a hook; expected a hook that is called with the secret",
        ],
    );
    for (bad, why) in [
        ("unix:run/a.sock", "does not name a socket by an absolute path"),
        (&*format!("unix:/{}", "x".repeat(107)), "names a socket by too long a path; expected at most 107 bytes"),
        ("http://me:secret@a/", "a URL contains a user or a password"),
    ] {
        let text = refused(&format!("[pod.hooks]\ndrain = {{ url = {bad:?} }}\n"));
        assert!(text.contains("segue.toml:2:17: pod.hooks.drain.url: ") && text.contains(why), "{text}");
    }
}

#[test]
fn a_url_holds_no_user_and_the_message_no_password() {
    for url in ["http://me:secret@etcd:2379", "https://me@etcd:2379/", "me:secret@etcd:2379", "ftp://me:secret@etcd"] {
        let text = refused(&format!("[store]\nendpoints = [\"http://a:1\", {url:?}]\n[coordinator]\n"));
        let expected = "segue.toml:2:13: store.endpoints: a URL contains a user or a password; expected a URL without \
                        them, and store.username and store.password_file";
        assert_eq!(text, expected);
    }
    assert_refused(
        "[pod]\nwarm_url = \"http://me:secret@a/warm\"\n",
        &["segue.toml:2:12: pod.warm_url: a URL contains a user or a password; expected a URL without them"],
    );
    assert_accepted("[store]\nendpoints = [\"http://etcd:2379/a@b\"]\n[coordinator]\n");
}

#[test]
fn a_boolean_is_true_or_false() {
    assert_accepted("[router]\ntrust_forwarded = true\n");
    for (bad, shown) in [("\"yes\"", "\"yes\""), ("1", "1"), ("\"true\"", "\"true\"")] {
        let text = refused(&format!("[router]\ntrust_forwarded = {bad}\n"));
        let expected =
            format!("segue.toml:2:19: router.trust_forwarded: {shown} is not a boolean; expected true or false");
        assert_eq!(text, expected);
    }
}

#[test]
fn a_weight_is_a_number_above_zero() {
    for bad in ["0", "-1.5", "nan", "inf", "\"1\"", "99999999999999999999"] {
        let text = refused(&format!("[pod]\nweight = {bad}\n"));
        assert!(text.ends_with("is not a weight; expected a number above zero, such as 1.0"), "{text}");
    }
    assert_accepted("[pod]\nweight = 2\n");
}

#[test]
fn a_services_command_line_is_a_list_with_a_program() {
    let refused_for = |value: &str, why: &str| {
        let text = refused(&format!("[pod]\nexec = {value}\n"));
        assert!(text.contains(&format!("segue.toml:2:8: pod.exec: {why}; expected a list of words")), "{text}");
    };
    refused_for("\"/usr/bin/service --port 1\"", "\"/usr/bin/service --port 1\" is not a list");
    refused_for("[]", "no command");
    refused_for("[\"\", \"x\"]", "the program has no name");
    refused_for("[\"a\\u0000\"]", "a word holds a zero byte");
}

#[test]
fn a_service_is_started_in_a_folder_with_variables_as_a_user() {
    let exec = |more: &str| accepted(&format!("[pod]\nexec = [\"a\"]\n{more}\n")).pod.unwrap().exec.unwrap();
    let whole = exec("exec_cwd = \"/srv\"\nexec_env = { A = \"b=c\", B = \"\" }\nexec_user = \"app\"");
    assert_eq!(whole.cwd.as_deref(), Some(std::path::Path::new("/srv")));
    assert_eq!(whole.env, [("A".to_owned(), "b=c".to_owned()), ("B".to_owned(), String::new())]);
    assert_eq!(whole.user, Some(ExecUser::Name("app".to_owned())));
    assert_eq!(exec("[pod.exec_env]\nA = \"b\"").env, [("A".to_owned(), "b".to_owned())]);
    let ids = |uid, gid| Some(ExecUser::Id { uid, gid });
    for (written, user) in [("1000", ids(1000, None)), ("\"1000\"", ids(1000, None)), ("\"7:8\"", ids(7, Some(8)))] {
        assert_eq!(exec(&format!("exec_user = {written}")).user, user);
    }
    let bad = |more: &str, told: &str| {
        let text = refused(&format!("[pod]\nexec = [\"a\"]\n{more}\n"));
        assert!(text.contains(told), "{text}");
    };
    bad(
        "exec_cwd = \"srv\"",
        "segue.toml:3:12: pod.exec_cwd: \"srv\" is not an absolute path; expected the absolute path",
    );
    bad("exec_env = [\"A=b\"]", "segue.toml:3:12: pod.exec_env: a list is not a table; expected variables, such as {");
    bad("exec_env = { A = 1 }", "segue.toml:3:12: pod.exec_env: 1 is not a string; expected variables");
    bad(
        "exec_env = { \"A=\" = \"1\" }",
        "segue.toml:3:12: pod.exec_env: \"A=\" cannot be a variable; expected variables",
    );
    for user in ["\"\"", "-1", "4294967295", "\"7:\"", "\"app:app\"", "\"a b\"", "\"7x\""] {
        bad(&format!("exec_user = {user}"), "is not a user; expected the name of a user, or a number such as");
    }
    for key in ["exec_cwd = \"/\"", "exec_env = {}", "exec_user = \"a\""] {
        let text = refused(&format!("[pod]\n{key}\n"));
        let name = key.split(' ').next().unwrap();
        assert_eq!(text, format!("segue.toml:2:1: pod.{name}: given without pod.exec; expected both"));
    }
}

#[test]
fn a_service_is_at_a_port_or_a_unix_socket() {
    for good in ["127.0.0.1:1", "service:80", "[::1]:1", "unix:/run/a.sock", "unix:///run/a.sock"] {
        assert_accepted(&format!("[pod]\nupstream = \"{good}\"\n"));
    }
    let long = format!("unix:/{}", "x".repeat(107));
    for (bad, told) in [
        ("unix:a.sock", "\"unix:a.sock\" does not name a socket by an absolute path; expected a host and a port"),
        (&*long, "names a socket by too long a path"),
        ("https://a:1", "is a URL; expected the host and the port alone, and upstream_tls; did you mean \"a:1\""),
        ("http://a:1/", "is a URL; expected a host and a port"),
        ("service", "\"service\" is not a host and a port"),
    ] {
        let text = refused(&format!("[pod]\nupstream = \"{bad}\"\n"));
        assert!(text.starts_with("segue.toml:2:12: pod.upstream: ") && text.contains(told), "{text}");
    }
    assert_refused(
        "[pod]\nupstream = \"unix:/a\"\nupstream_tls = { ca = \"a\" }\n",
        &[
            "segue.toml:3:1: pod.upstream_tls: given for a service that listens on a Unix socket (segue.toml:2:1); expected \
           TLS only towards a host and a port",
        ],
    );
}

#[test]
fn a_health_check_needs_a_path_and_a_count() {
    let text =
        refused("[pod]\nhealth = { path = \"healthz\", unhealthy_after = 0 }\nhooks = { lease = { url = \"x\" } }\n");
    assert!(
        text.contains("pod.health.path: \"healthz\" is not a path; expected a path, such as \"/healthz\""),
        "{text}"
    );
    assert!(text.contains("pod.health.unhealthy_after: 0 is out of range"), "{text}");
    assert!(text.contains("pod.hooks.lease.url: "), "{text}");
}
