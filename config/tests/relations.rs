//! The rules that a file must satisfy as a whole, and the exact text of each mistake.

use std::time::Duration;

use segue_config::parse;

use crate::support::{assert_accepted, assert_refused, refused};

#[test]
fn a_file_without_a_role_is_refused() {
    let expected = "segue.toml:1:1: router, coordinator, pod: there is no role to run; expected at least one of the \
                    sections [router], [coordinator], [pod]";
    assert_refused("", &[expected]);
    assert_refused("keyspace = \"orders\"\n[admin]\n", &[expected]);
}

#[test]
fn two_sources_of_the_partition_point_at_both() {
    assert_refused(
        "[router.partition]\nheader = \"x-partition\"\nkey = { path = \"/persons/{key}\", cookie = \"sid\" }\n",
        &[
            "segue.toml:3:9: router.partition.key.path: a second source of the partition beside \
             router.partition.header (segue.toml:2:1); expected exactly one",
            "segue.toml:3:34: router.partition.key.cookie: a second source of the partition beside \
             router.partition.header (segue.toml:2:1); expected exactly one",
        ],
    );
}

#[test]
fn a_key_or_an_order_that_names_nothing_is_refused() {
    assert_refused(
        "[router.partition]\nkey = {}\norder_by = {}\n",
        &[
            "segue.toml:2:1: router.partition.key: empty; expected one of header, headers, path, paths, query, cookie, host, \
             json, grpc",
            "segue.toml:3:1: router.partition.order_by: empty; expected header",
        ],
    );
}

#[test]
fn a_hash_needs_a_key_and_an_order_needs_none() {
    assert_refused(
        "[router.partition]\nhash = \"crc32\"\n",
        &["segue.toml:2:1: router.partition.hash: given without router.partition.key; the header's number is the \
           partition, and nothing is hashed; expected a key, or no hash"],
    );
    assert_refused(
        "[router.partition]\nkey = { query = \"id\" }\norder_by = { header = \"x-key\" }\n",
        &["segue.toml:3:14: router.partition.order_by.header: given beside router.partition.key, which is what \
           requests are ordered by; expected it only with router.partition.header"],
    );
}

#[test]
fn ambiguous_paths_need_a_key_in_the_path_and_a_template_without_doubts() {
    let keyed = |key: &str, more: &str| format!("[router.partition]\nkey = {{ {key} }}\n{more}");
    assert_refused(
        &keyed("query = \"id\"", "ambiguous_paths = \"pass\"\n"),
        &[
            "segue.toml:3:1: router.partition.ambiguous_paths: given without router.partition.key.path; no path is looked \
           at; expected it only with a key in the path",
        ],
    );
    for segment in [".", "..", "a;b", "a\\\\b"] {
        let key = format!("path = \"/{segment}/{{key}}\"");
        let text = refused(&keyed(&key, ""));
        assert!(text.contains("has a segment that not all servers read alike; expected a path"), "{text}");
        assert_accepted(&keyed(&key, "ambiguous_paths = \"pass\"\n"));
    }
}

#[test]
fn a_host_is_a_key_of_its_own_and_no_header() {
    assert_accepted("[router.partition]\nkey = { host = true }\n");
    assert_refused(
        "[router.partition]\nkey = { host = false }\n",
        &["segue.toml:2:16: router.partition.key.host: false; expected true, or no key"],
    );
    assert_refused(
        "[router.partition]\nkey = { header = \"Host\" }\n",
        &[
            "segue.toml:2:18: router.partition.key.header: \"host\" is a header by HTTP/1.1 alone; expected key = { host = true }, \
           which is the host by HTTP/2 too",
        ],
    );
}

#[test]
fn bounds_in_the_wrong_order_point_at_the_one_that_was_given() {
    assert_refused(
        "[coordinator]\nsettle = \"10s\"\nsettle_max = \"5s\"\n",
        &["segue.toml:2:10: coordinator.settle: 10s is above coordinator.settle_max, which is 5s (segue.toml:3:1); \
           expected at most 5s"],
    );
    assert_refused(
        "[coordinator]\nsettle_max = \"500ms\"\n",
        &["segue.toml:2:14: coordinator.settle_max: 500ms is below coordinator.settle, which is 1s (the default); \
           expected at least 1s"],
    );
    assert_refused(
        "[router]\nstash.max_bytes = \"1GiB\"\nupstream.request_timeout = \"100ms\"\n",
        &[
            "segue.toml:2:19: router.stash.max_bytes: 1GiB is above router.stash.max_total_bytes, which is 512MiB (the \
             default); expected at most 512MiB",
            "segue.toml:3:28: router.upstream.request_timeout: 100ms is below router.upstream.connect_timeout, which \
             is 1s (the default); expected at least 1s",
        ],
    );
    assert_accepted("[coordinator]\nsettle = \"5s\"\nmin_interval = \"0s\"\n");
}

#[test]
fn a_drain_must_end_before_its_phase_where_both_roles_are_in_the_file() {
    assert_refused(
        "[router.drain]\ntimeout = \"25s\"\n[coordinator]\n",
        &["segue.toml:2:11: router.drain.timeout: 25s, 1s until sidecars have reset what was severed and 2s for \
           acknowledgements are together 28s, which is not below coordinator.phase_timeout, which is 25s (the default); \
           expected less than 22s"],
    );
    assert_refused(
        "[router]\n[coordinator]\nphase_timeout = \"10s\"\n",
        &["segue.toml:3:17: coordinator.phase_timeout: 10s is not above router.drain.timeout, which is 20s (the \
           default), 1s until sidecars have reset what was severed and 2s for acknowledgements, which are together 23s; \
           expected more than 23s"],
    );
    assert_refused(
        "[router.drain]\ntimeout = \"1s\"\n[coordinator]\nphase_timeout = \"3s\"\n",
        &["segue.toml:2:11: router.drain.timeout: 1s, 1s until sidecars have reset what was severed and 2s for \
           acknowledgements are together 4s, which is not below coordinator.phase_timeout, which is 3s (segue.toml:4:1); \
           expected coordinator.phase_timeout to be more than 4s"],
    );
    // To the second.
    let drains = |drain| format!("[router.drain]\ntimeout = \"{drain}s\"\n[coordinator]\n");
    assert_accepted(&drains(21));
    assert_refused(
        &drains(22),
        &["segue.toml:2:11: router.drain.timeout: 22s, 1s until sidecars have reset what was severed and 2s for \
           acknowledgements are together 25s, which is not below coordinator.phase_timeout, which is 25s (the default); \
           expected less than 22s"],
    );
    assert_accepted("[router.drain]\ntimeout = \"25s\"\n");
}

#[test]
fn a_drain_ends_before_what_is_held_is_refused() {
    assert_refused(
        "[router.drain]\ntimeout = \"30s\"\n",
        &[
            "segue.toml:2:11: router.drain.timeout: 30s is not below router.stash.max_wait, which is 30s (the default); \
           expected less than 30s",
        ],
    );
    assert_refused(
        "[router.stash]\nmax_wait = \"5s\"\n[router.drain]\ntimeout = \"6s\"\n",
        &[
            "segue.toml:4:11: router.drain.timeout: 6s is not below router.stash.max_wait, which is 5s (segue.toml:2:1); \
           expected less than 5s",
        ],
    );
    for (max_wait, drain) in [("9s", 6), ("2m", 20)] {
        let config = parse("f", &format!("[router.stash]\nmax_wait = \"{max_wait}\"\n"), [], "host-1").unwrap();
        assert_eq!(config.router.unwrap().drain.timeout, Duration::from_secs(drain), "{max_wait}");
    }
}

#[test]
fn streams_end_no_later_than_the_drain_and_patience_leaves_time_for_it() {
    assert_refused(
        "[router.drain]\ntimeout = \"5s\"\nstreams = \"6s\"\n",
        &[
            "segue.toml:3:11: router.drain.streams: 6s is above router.drain.timeout, which is 5s (segue.toml:2:1); expected \
           at most 5s",
        ],
    );
    assert_refused(
        "[router.drain]\npatience = \"11s\"\n",
        &[
            "segue.toml:2:12: router.drain.patience: 11s and router.drain.timeout, which is 20s (the default), are together \
           above stash.max_wait, which is 30s; expected at most 10s",
        ],
    );
    assert_accepted("[router.drain]\nstreams = \"0s\"\npatience = \"0s\"\n");
    for (timeout, streams, patience) in [("1s", 1, 10), ("20s", 2, 10), ("25s", 2, 5)] {
        let config = parse("f", &format!("[router.drain]\ntimeout = \"{timeout}\"\n"), [], "host-1").unwrap();
        let drain = config.router.unwrap().drain;
        let seconds = Duration::from_secs;
        assert_eq!((drain.streams, drain.patience), (seconds(streams), seconds(patience)), "{timeout}");
    }
}

#[test]
fn a_connection_comes_up_before_the_lease_of_its_router_can_end() {
    assert_refused(
        "[router]\nlease_ttl = \"3s\"\nupstream.connect_timeout = \"1s\"\n",
        &[
            "segue.toml:3:28: router.upstream.connect_timeout: 1s is not below a third of router.lease_ttl, which is 3s \
           (segue.toml:2:1); expected less than 1s",
        ],
    );
    for (ttl, millis) in [("2s", 500), ("15s", 1000)] {
        let config = parse("f", &format!("[router]\nlease_ttl = \"{ttl}\"\n"), [], "host-1").unwrap();
        assert_eq!(config.router.unwrap().upstream.connect_timeout, Duration::from_millis(millis), "{ttl}");
    }
}

#[test]
fn a_value_that_was_refused_causes_no_further_complaint() {
    assert_refused(
        "[coordinator]\nsettle = \"soon\"\nsettle_max = \"500ms\"\n",
        &["segue.toml:2:10: coordinator.settle: \"soon\" is not a duration; expected a duration such as \"250ms\", \
           \"10s\", \"5m\" or \"1h\""],
    );
}

#[test]
fn two_roles_cannot_listen_at_one_address() {
    assert_refused(
        "[router]\nlisten = \"127.0.0.1:9000\"\n[pod]\nlisten = \"127.0.0.1:9000\"\n[admin]\nlisten = \"0.0.0.0:7070\"\n\
         [coordinator]\nlisten = \"127.0.0.1:7070\"\n",
        &[
            "segue.toml:4:10: pod.listen: the same address as router.listen (segue.toml:2:1); expected an address of \
             its own",
            "segue.toml:6:10: admin.listen: the same address as coordinator.listen (segue.toml:8:1); expected an address \
             of its own",
        ],
    );
    assert_accepted("[router]\nlisten = \"127.0.0.1:0\"\n[coordinator]\nlisten = \"127.0.0.1:0\"\n");
    assert_accepted("[router]\nlisten = \"127.0.0.1:80\"\n[coordinator]\nlisten = \"127.0.0.2:80\"\n");
}

#[test]
fn a_pod_needs_an_address_that_routers_can_connect_to() {
    assert_refused(
        "[pod]\nlisten = \"0.0.0.0:8181\"\n",
        &[
            "segue.toml:1:2: pod.advertise: not given, and no router could connect to pod.listen, 0.0.0.0:8181; expected \
           a host and a port, such as \"10.0.0.7:8181\" or \"writer-0:8181\"",
        ],
    );
    for bad in ["writer-0", "writer-0:0", "writer-0:http", ":8181", "a b:1", "fd00:10::", "fd00:10::7:0", "127.0.0.1:0"]
    {
        assert_refused(
            &format!("[pod]\nadvertise = \"{bad}\"\n"),
            &[&format!(
                "segue.toml:2:13: pod.advertise: \"{bad}\" is not a host and a port; expected a host and a port, such \
                 as \"10.0.0.7:8181\" or \"writer-0:8181\""
            )],
        );
    }
    assert!(refused("[pod]\nadvertise = \"[::]:8181\"\n").contains("is no address that a router could connect to"));
    assert!(refused("[pod]\nadvertise = \":::8181\"\n").contains("is no address that a router could connect to"));
    assert_accepted("[pod]\nlisten = \"[::]:8181\"\nadvertise = \"[2001:db8::7]:8181\"\n");
}

#[test]
fn an_ipv6_address_before_a_port_needs_no_brackets() {
    let text = "[pod]\nadvertise = \"fd00:10:244::7:8181\"\n[admin]\nadvertise = \"fd00:10:244::7:9090\"\n";
    let config = parse("f", text, [], "host-1").unwrap();
    assert_eq!(config.pod.unwrap().advertise, "[fd00:10:244::7]:8181");
    assert_eq!(config.admin.unwrap().advertise.as_deref(), Some("[fd00:10:244::7]:9090"));
}

#[test]
fn the_admin_endpoint_answers_to_names_without_ports() {
    let hosts = |text: &str| {
        let config = parse("f", &format!("[router]\n[admin]\n{text}\n"), [], "host-1").unwrap();
        config.admin.unwrap().hosts
    };
    assert_eq!(hosts("listen = \"0.0.0.0:9090\""), ["host-1"]);
    assert_eq!(hosts("hosts = [\"segue.example\"]\nadvertise = \"r-0:9090\""), ["segue.example", "r-0", "host-1"]);
    for name in ["segue.example:9090", "http://segue.example", ""] {
        assert_refused(
            &format!("[router]\n[admin]\nhosts = [\"{name}\"]\n"),
            &[&format!(
                "segue.toml:3:9: admin.hosts: \"{name}\" is not the name of a host; expected a list of names without \
                 ports, such as [\"segue.example\"]"
            )],
        );
    }
}

#[test]
fn those_who_may_write_are_named_together_with_what_they_present() {
    assert_refused(
        "[router]\n[admin]\nwrite = \"token\"\n",
        &["segue.toml:3:9: admin.write: \"token\" without admin.token_file; expected both"],
    );
    assert_refused(
        "[router]\n[admin]\nwrite = \"client_cert\"\ntls = { cert = \"a\", key = \"b\" }\n",
        &["segue.toml:3:9: admin.write: \"client_cert\" without admin.tls.client_ca; expected both"],
    );
    assert_refused(
        "[router]\n[admin]\ntoken_file = \"a\"\n",
        &["segue.toml:3:1: admin.token_file: given without admin.write = \"token\"; expected both or neither"],
    );
    assert_refused(
        "[router]\n[admin]\ntls = { cert = \"a\", key = \"b\", client_ca = \"c\" }\n",
        &[
            "segue.toml:3:32: admin.tls.client_ca: given without admin.write = \"client_cert\"; expected both or neither",
        ],
    );
    let files = "write = \"client_cert\"\ntls = { cert = \"a\", key = \"b\", client_ca = \"c\" }";
    let config = parse("f", &format!("[router]\n[admin]\n{files}\n"), [], "host-1").unwrap();
    assert!(config.admin.unwrap().tls.unwrap().client_cert_is_optional, "readers need no certificate");
}

#[test]
fn the_token_of_pods_needs_the_listener_where_they_present_it() {
    assert_refused(
        "[coordinator]\ntoken_file = \"a\"\n",
        &["segue.toml:2:1: coordinator.token_file: given without coordinator.listen; expected both, because pods \
           present the token there"],
    );
    assert_accepted("[coordinator]\nlisten = \"127.0.0.1:7070\"\ntoken_file = \"a\"\n");
}

#[test]
fn a_service_opens_its_stream_from_the_same_host_and_has_no_hooks_beside_it() {
    for (address, fact) in [
        ("0.0.0.0:7071", "\"0.0.0.0:7071\" can be reached from other hosts"),
        ("10.0.0.1:7071", "\"10.0.0.1:7071\" can be reached from other hosts"),
        ("unix:pod.sock", "\"unix:pod.sock\" does not name a socket by an absolute path"),
        ("pod", "\"pod\" is not an address to listen at"),
    ] {
        assert!(refused(&format!("[pod]\nstream = \"{address}\"\n")).contains(fact), "{address}");
    }
    for hook in ["warm_url", "hooks.drain.url", "hooks.checkpoint.url", "hooks.load.url"] {
        let hooked = format!("[pod]\nstream = \"[::1]:7071\"\n{hook} = \"http://127.0.0.1:8182/hook\"\n");
        let fact = format!("pod.{hook}: given in addition to pod.stream (segue.toml:2:1)");
        assert!(refused(&hooked).contains(&fact), "{hooked}");
    }
    assert!(refused("[pod]\nstream = \"127.0.0.1:8181\"\n").contains("the same address as pod.listen"));
    assert_accepted(
        "[pod]\nstream = \"unix:/run/segue/pod.sock\"\nhooks.lease.url = \"http://127.0.0.1:8182/lease\"\n",
    );
}

#[test]
fn two_sockets_have_two_paths() {
    assert_refused(
        "[router]\nhot_restart_socket = \"/run/s\"\n[admin]\nsocket = \"/run/s\"\n",
        &["segue.toml:2:22: router.hot_restart_socket: the same path as admin.socket; expected a path of its own"],
    );
    assert_refused(
        "[pod]\nstream = \"unix:/run/s\"\n[admin]\nsocket = \"/run/s\"\n",
        &["segue.toml:2:10: pod.stream: the same path as admin.socket; expected a path of its own"],
    );
}

#[test]
fn an_admin_endpoint_is_advertised_where_it_can_be_reached() {
    for (section, advertised) in [
        ("listen = \"10.0.0.7:9090\"", Some("10.0.0.7:9090")),
        ("listen = \"0.0.0.0:9090\"", None),
        ("listen = \"10.0.0.7:0\"", None),
        ("listen = \"[::]:9090\"\nadvertise = \"router-0:9091\"", Some("router-0:9091")),
    ] {
        let config = parse("f", &format!("[router]\n[admin]\n{section}\n"), [], "host-1").unwrap();
        assert_eq!(config.admin.unwrap().advertise.as_deref(), advertised, "{section}");
    }
    let text = refused("[router]\n[admin]\nadvertise = \"0.0.0.0:9090\"\n");
    assert!(text.contains("admin.advertise: \"0.0.0.0:9090\" is no address that others could connect to"), "{text}");
}

#[test]
fn a_hot_restart_is_of_a_router_without_a_pod_at_an_absolute_path() {
    assert_accepted("[router]\nhot_restart_socket = \"/run/segue/router-0.sock\"\n[coordinator]\n[admin]\n");
    assert_refused(
        "[router]\nhot_restart_socket = \"/run/segue/router-0.sock\"\n[pod]\n",
        &["segue.toml:2:1: router.hot_restart_socket: given in a file with [pod], whose partitions have to move to \
           other pods before it ends; expected the router and the pod in files of their own"],
    );
    assert_refused(
        "[router]\nhot_restart_socket = \"/run/segue/router-0.sock\"\n[coordinator]\nlisten = \"127.0.0.1:7070\"\n",
        &[
            "segue.toml:2:1: router.hot_restart_socket: given with coordinator.listen, which two processes cannot listen \
           at; expected the router and the coordinator in files of their own",
        ],
    );
    assert_refused(
        "[store]\nkind = \"memory\"\n[router]\nhot_restart_socket = \"/run/segue/router-0.sock\"\n[coordinator]\n",
        &[
            "segue.toml:4:1: router.hot_restart_socket: given with store.kind = \"memory\", which another process cannot see; \
           expected it only with etcd",
        ],
    );
    let long = format!("/{}", "x".repeat(90));
    for (path, why) in [
        ("router.sock", "does not begin with '/'"),
        ("/run/", "names no file"),
        ("/", "names no file"),
        ("/run/..", "names no file"),
        (&long, "is longer than 90 bytes"),
    ] {
        let text = refused(&format!("[router]\nhot_restart_socket = \"{path}\"\n"));
        assert!(text.contains("segue.toml:2:22: router.hot_restart_socket: ") && text.contains(why), "{text}");
        let text = refused(&format!("[router]\n[admin]\nsocket = \"{path}\"\n"));
        assert!(text.contains("segue.toml:3:10: admin.socket: ") && text.contains(why), "{text}");
    }
}

/// While both processes of a hot restart run, the new one has this name. No other router may have it.
#[test]
fn no_router_has_the_name_of_a_new_process() {
    assert!(refused("[router]\nname = \"router-0~next\"\n").contains("cannot be a name"));
}

#[test]
fn a_sidecar_is_not_in_front_of_itself() {
    assert_refused(
        "[pod]\nupstream = \"127.0.0.1:8181\"\n",
        &[
            "segue.toml:2:12: pod.upstream: the same as pod.listen (the default); expected the address of the service itself",
        ],
    );
}

#[test]
fn the_store_is_told_completely() {
    assert_refused(
        "[store]\nendpoints = []\nprefix = \"segue\"\nusername = \"u\"\n[pod]\n",
        &[
            "segue.toml:2:13: store.endpoints: names no endpoint; expected a list of URLs, such as \
             [\"http://127.0.0.1:2379\"]",
            "segue.toml:3:10: store.prefix: \"segue\" does not begin and end with '/'; expected a prefix that begins \
             and ends with '/'; did you mean \"/segue/\"",
            "segue.toml:4:1: store.username: given without store.password_file; expected both or neither",
        ],
    );
}

#[test]
fn a_host_without_a_usable_name_must_name_its_roles() {
    let errors = parse("segue.toml", "[router]\n[coordinator]\nname = \"c\"\n", [], "").unwrap_err();
    assert_eq!(
        errors.to_string(),
        "segue.toml:1:2: router.name: not given, and the host's name \"\" cannot stand in for it; expected letters, \
         digits, '.', '_' and '-', 253 at most"
    );
}
