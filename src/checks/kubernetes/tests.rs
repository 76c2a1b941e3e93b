//! A good set of manifests, and one mistake at a time.

use super::{ManifestFindings, check};

const GOOD: &str = include_str!("good.yaml");
/// The service of [`GOOD`], as one of `containers` with a preStop hook.
const USUAL_ORDER: [(&str, &str); 4] = [
    ("initContainers:\n        - name: orders\n          restartPolicy: Always\n          args: [serve]\n      ", ""),
    (
        "- name: segue\n",
        "- name: orders\n          args: [serve]\n          lifecycle:\n            preStop: {exec: {command: [segue, drain, --self, --wait, 60s]}}\n          volumeMounts: [{name: run, mountPath: /run/segue}]\n        - name: segue\n",
    ),
    ("mountPath: /etc/segue}\n", "mountPath: /etc/segue}\n            - {name: run, mountPath: /run/segue/}\n"),
    (
        "shutdown_timeout = \"60s\"\n    [admin]\n",
        "shutdown_timeout = \"60s\"\n    [admin]\n    socket = \"/run/segue/admin.sock\"\n",
    ),
];

fn changed(text: &str, changes: &[(&str, &str)]) -> String {
    changes.iter().fold(text.to_owned(), |text, (from, to)| {
        assert!(text.contains(from), "{from:?} is not in:\n{text}");
        text.replacen(from, to, 1)
    })
}

fn found(text: &str) -> ManifestFindings {
    check(&[("all.yaml".to_owned(), text.to_owned())], None)
}

/// Checks that a change is the only problem, or warning, and is described like this.
fn finds(text: &str, change: (&str, &str), described: &str) {
    let found = found(&changed(text, &[change]));
    let all = [found.problems, found.warnings].concat();
    assert!(all.len() == 1 && all[0].contains(described), "{change:?}: {described:?} is not what is found: {all:#?}");
}

fn finds_nothing(text: &str, changes: &[(&str, &str)]) {
    let found = found(&changed(text, changes));
    assert!(found.problems.is_empty() && found.warnings.is_empty(), "{changes:?}: {found:#?}");
}

#[test]
fn good_manifests_have_no_findings() {
    for text in [GOOD.to_owned(), changed(GOOD, &USUAL_ORDER)] {
        let found = found(&text);
        assert!(found.problems.is_empty() && found.warnings.is_empty(), "{found:#?}");
        assert_eq!(found.configs.len(), 2);
    }
}

#[test]
fn a_grace_period_covers_what_a_process_may_take() {
    finds(
        GOOD,
        ("Seconds: 90", "Seconds: 60"),
        "all.yaml:36:38: StatefulSet writer, container segue: the grace period is 60s",
    );
    finds(
        GOOD,
        ("      terminationGracePeriodSeconds: 90\n", ""),
        "the grace period is 30s, and the process may take pod",
    );
    let remedy = "its preStop hook, 10s and router.drain.timeout, 20s; expected terminationGracePeriodSeconds above 30";
    finds(GOOD, ("seconds: 9", "seconds: 10"), remedy);
    finds(&changed(GOOD, &USUAL_ORDER), ("--wait, 60s", "--wait, 90s"), "its preStop hook takes up to 90s");
}

#[test]
fn a_service_ends_after_the_handover() {
    finds(GOOD, ("          restartPolicy: Always\n", ""), "no other container of the pod can be the service");
    let usual = changed(GOOD, &USUAL_ORDER);
    let hook = "          lifecycle:\n            preStop: {exec: {command: [segue, drain, --self, --wait, 60s]}}\n";
    finds(&usual, (hook, ""), "container orders: it gets SIGTERM together with its sidecar, and breaks");
    let sleep = "          lifecycle:\n            preStop: {sleep: {seconds: 5}}\n";
    finds(&usual, (hook, sleep), "it gets SIGTERM together with its sidecar");
    let on_sidecar = changed(&usual, &[(hook, "")]);
    finds(
        &on_sidecar,
        ("        - name: segue\n", &format!("        - name: segue\n{}", hook.replace("60s", "20s"))),
        "because the preStop hook is that of container segue",
    );
    finds(
        GOOD,
        ("args: [serve]\n", "args: [serve]\n          lifecycle: {preStop: {exec: {command: [stop]}}}\n"),
        "Kubernetes runs its preStop hook at once",
    );
}

const HOOK: &str = "exec: {command: [segue, drain, --self, --wait, 60s]}";
const TOKEN: (&str, &str) = ("[admin]\n", "[admin]\n    write = \"token\"\n    token_file = \"/t\"\n");

#[test]
fn a_hook_that_does_not_wait_for_the_drain_protects_nothing() {
    let usual = changed(GOOD, &USUAL_ORDER);
    for hook in [
        "exec: {command: [segue, drain, --self, --no-wait]}",
        "exec: {command: [segue, drain, --self, --wait, 0s]}",
        "exec: {command: [sh, -c, \"segue drain --self --no-wait\"]}",
        "exec: {command: [echo, segue, drain, --self]}",
        "httpGet: {path: \"/drain?wait=0s\", port: 9090}",
    ] {
        finds(&usual, (HOOK, hook), "container orders: it gets SIGTERM together with its sidecar");
    }
    for command in
        ["[sh, -c, \"segue drain --self --wait 60s\"]", "[/bin/sh, -ec, \"sleep 1; exec segue drain --self\"]"]
    {
        let command = command.replace("--self\"", "--self --wait=60s\"");
        finds_nothing(&usual, &[(HOOK, &format!("exec: {{command: {command}}}"))]);
    }
}

#[test]
fn the_time_of_a_hook_is_what_its_command_takes() {
    let usual = changed(GOOD, &USUAL_ORDER);
    let forever = "exec: {command: [segue, drain, --self]}";
    finds(&usual, (HOOK, forever), "its preStop hook takes up to 600s, and the grace period is 90s");
    let in_script = "exec: {command: [sh, -c, \"segue drain --self --timeout 2m || true\"]}";
    finds(&usual, (HOOK, in_script), "its preStop hook takes up to 120s, and the grace period is 90s");
    for (hook, time) in [
        ("exec: {command: [sleep, \"15\"]}", "15s"),
        ("exec: {command: [sh, -c, \"sleep 15 && /bin/sleep 2\"]}", "17s"),
        ("httpGet: {path: /drain, port: 9090}", "20s"),
        ("httpGet: {path: \"/drain?wait=300s\", port: 9090}", "50s"),
    ] {
        let described = format!("the process may take its preStop hook, {time} and router.drain.timeout, 20s");
        finds(GOOD, ("sleep: {seconds: 9}", hook), &described);
    }
    for hook in
        ["exec: {command: [stop]}", "httpGet: {path: /stop, port: 80}", "exec: {command: [sh, -c, \"sleep 1; stop\"]}"]
    {
        finds(GOOD, ("sleep: {seconds: 9}", hook), "container router: it is unknown how long its preStop hook takes");
    }
}

#[test]
fn the_hook_of_a_service_reaches_its_sidecar_by_the_socket() {
    let usual = changed(GOOD, &USUAL_ORDER);
    let unreachable = "its preStop hook asks the sidecar at /run/segue/admin.sock, which it cannot reach";
    let no_socket = ("    socket = \"/run/segue/admin.sock\"\n", "");
    finds(&usual, no_socket, unreachable);
    finds(&usual, ("            - {name: run, mountPath: /run/segue/}\n", ""), unreachable);
    // Without a socket it asks the loopback, and presents no token there.
    finds(&changed(&usual, &[no_socket]), TOKEN, unreachable);
    let elsewhere = "exec: {command: [segue, drain, --self, --server, \"unix:/run/other.sock\", --wait, 60s]}";
    finds(&usual, (HOOK, elsewhere), "asks the sidecar at /run/other.sock, which it cannot reach");
    finds_nothing(&usual, &[(HOOK, &elsewhere.replace("/run/other", "/run/segue/admin"))]);
    let by_file = "exec: {command: [segue, drain, --self, --config, /etc/segue/segue.toml, --wait, 60s]}";
    finds_nothing(&usual, &[(HOOK, by_file)]);
    finds(&changed(&usual, &[no_socket]), (HOOK, by_file), "that file names no way to ask the sidecar");

    let other_user = ("args: [serve]\n", "args: [serve]\n          securityContext: {runAsUser: 1000}\n");
    finds(&usual, other_user, "runs as user 1000 and may not connect to /run/segue/admin.sock, which belongs to user");
    let all = ("      terminationGrace", "      securityContext: {runAsUser: 1000}\n      terminationGrace");
    finds_nothing(&usual, &[other_user, all]);
    finds_nothing(&usual, &[all]);
}

#[test]
fn the_hook_of_a_service_may_have_its_sidecar_drain() {
    let usual = changed(GOOD, &USUAL_ORDER);
    let with_token = changed(&usual, &[TOKEN]);
    let by_http = "exec: {command: [segue, drain, --self, --wait, 60s, --server, \"http://127.0.0.1:9090\"]}";
    let and_token = by_http.replace("9090\"", "9090\", --token-file, /t");
    finds(&usual, (HOOK, by_http), "admin.write of the sidecar lets nobody");
    finds(&with_token, (HOOK, by_http), "its preStop hook presents no token");
    finds_nothing(&with_token, &[(HOOK, &and_token)]);
    finds(&with_token, (HOOK, &and_token.replace("http:", "https:")), "the sidecar's endpoint is served by http;");
    for elsewhere in ["127.0.0.1:9091", "127.0.0.1", "[::1]:8080/"] {
        let hook = and_token.replace("127.0.0.1:9090", elsewhere);
        let described =
            format!("asks http://{elsewhere}, which is not the sidecar's admin endpoint; expected port 9090");
        finds(&with_token, (HOOK, &hook), &described);
    }
    finds_nothing(&with_token, &[(HOOK, &and_token.replace("127.0.0.1:9090", "localhost:9090/"))]);

    let get = "httpGet: {path: \"/drain?wait=50s\", port: 9090, httpHeaders: [{name: Authorization, value: Bearer t}]}";
    finds(&usual, (HOOK, get), "admin.write of the sidecar lets nobody");
    finds_nothing(&with_token, &[(HOOK, get)]);
    finds(&with_token, (HOOK, &get.replace("Authorization", "Accept")), "its preStop hook presents no token");
    finds(&with_token, (HOOK, &get.replace("9090", "8080")), "does not ask the admin endpoint of the sidecar");
    finds(&with_token, (HOOK, &get.replace("9090", "9090, scheme: HTTPS")), "served by HTTP, and its preStop hook");
}

#[test]
fn the_hook_of_a_service_presents_a_certificate_where_one_is_asked_for() {
    let tls = "[admin]\n    write = \"client_cert\"\n    tls.cert = \"/c\"\n    tls.key = \"/k\"\n    tls.client_ca = \"/a\"\n";
    let https = ("port: admin}", "port: admin, scheme: HTTPS}");
    let liveness = ("/health, port: 9090}", "/health, port: 9090, scheme: HTTPS}");
    let usual = changed(&changed(GOOD, &USUAL_ORDER), &[("[admin]\n", tls), https, liveness]);
    let by_https =
        "exec: {command: [segue, drain, --self, --wait, 60s, --server, \"https://localhost:9090\", --ca, /a]}";
    finds(&usual, (HOOK, by_https), "its preStop hook presents no certificate");
    finds_nothing(&usual, &[(HOOK, &by_https.replace("/a]", "/a, --cert, /c, --key, /k]"))]);
    let get =
        "httpGet: {path: /drain, port: 9090, scheme: HTTPS, httpHeaders: [{name: Authorization, value: Bearer t}]}";
    finds(&usual, (HOOK, get), "its preStop hook has no certificate");
}

#[test]
fn probes_ask_the_admin_endpoint() {
    let ready = "          readinessProbe: {httpGet: {path: /ready, port: admin}}\n";
    finds(GOOD, (ready, ""), "it has no readinessProbe; expected httpGet of /ready at port 9090");
    finds(GOOD, ("path: /ready", "path: /health"), "its readinessProbe does not ask for /ready");
    finds(GOOD, ("containerPort: 9090", "containerPort: 9091"), "its readinessProbe does not ask for /ready");
    finds(GOOD, ("path: /health", "path: /ready"), "its livenessProbe asks for /ready");
    finds(GOOD, ("          livenessProbe: {httpGet: {path: /health, port: 9090}}\n", ""), "it has no livenessProbe");
    let foreign = "args: [serve]\n          livenessProbe: {httpGet: {path: /, port: 8181}}\n";
    finds(GOOD, ("args: [serve]\n", foreign), "container orders: its livenessProbe asks container segue");
    finds(GOOD, ("0.0.0.0:9090", "127.0.0.1:9090"), "the kubelet connects to the pod's own address");
}

#[test]
fn probes_have_the_scheme_of_the_admin_endpoint() {
    let ready = ("port: admin}", "port: admin, scheme: HTTPS}");
    let health = ("/health, port: 9090}", "/health, port: 9090, scheme: HTTPS}");
    let tls = ("[admin]\n", "[admin]\n    tls.cert = \"/c\"\n    tls.key = \"/k\"\n");
    finds(GOOD, ready, "its readinessProbe has another scheme than [admin]; expected httpGet of /ready at port 9090");
    finds(
        &changed(GOOD, &[ready]),
        tls,
        "its livenessProbe has another scheme than [admin]; expected httpGet of /health at port 9090, scheme: HTTPS",
    );
    finds_nothing(GOOD, &[tls, ready, health]);
}

#[test]
fn addresses_can_be_reached_from_other_pods() {
    finds(GOOD, ("0.0.0.0:8080", "127.0.0.1:8080"), "router.listen is 127.0.0.1:8080, which no other pod reaches");
    finds(GOOD, ("0.0.0.0:8181", "127.0.0.1:8181"), "pod.listen is 127.0.0.1:8181, which no other pod reaches");
    finds(GOOD, ("SEGUE__POD__ADVERTISE", "OTHER"), "pod.advertise is 127.0.0.1, which no router reaches");
    let named = ("\"$(POD_IP):8181\"", "\"writer-0.writers:8181\"");
    finds(GOOD, named, "expected publishNotReadyAddresses: true");
    let service = "kind: Service\nspec: {publishNotReadyAddresses: true, selector: {app: writer}}\n---\n";
    assert!(found(&(service.to_owned() + &changed(GOOD, &[named]))).problems.is_empty());
}

#[test]
fn a_budget_lets_some_pods_go_and_not_all() {
    finds(GOOD, ("{app: writer}}\n---\n", "{app: other}}\n---\n"), "no PodDisruptionBudget selects its pods");
    finds(GOOD, ("maxUnavailable: 1", "maxUnavailable: 0"), "PodDisruptionBudget writer lets none of its 3 pods go");
    finds(GOOD, ("minAvailable: 50%", "minAvailable: 2"), "PodDisruptionBudget router lets none of its 2 pods go");
    finds(GOOD, ("maxUnavailable: 1", "maxUnavailable: 100%"), "lets all of its 3 pods go at once");
    // An autoscaler determines their number.
    let replicas = ("replicas: 2\n", "revisionHistoryLimit: 2\n");
    finds_nothing(GOOD, &[replicas, ("minAvailable: 50%", "minAvailable: 1")]);
    let none = "PodDisruptionBudget router lets none of its pods go";
    finds(&changed(GOOD, &[replicas]), ("minAvailable: 50%", "minAvailable: 100%"), none);
    finds(&changed(GOOD, &[replicas]), ("minAvailable: 50%", "maxUnavailable: 0"), none);
    let second =
        "kind: PodDisruptionBudget\nmetadata: {name: second}\nspec: {selector: {matchLabels: {app: router}}}\n---\n";
    finds(GOOD, ("apiVersion: v1\n", second), "PodDisruptionBudgets second and router both select its pods");
}

#[test]
fn a_router_accepts_requests_for_a_while_after_it_is_told_to_end() {
    finds(GOOD, ("          lifecycle:\n            preStop: {sleep: {seconds: 9}}\n", ""), "it has no preStop hook");
    finds(GOOD, ("replicas: 2\n", "replicas: 2\n  strategy: {type: Recreate}\n"), "an update ends all of its pods");
}

#[test]
fn configurations_are_checked_in_their_places() {
    finds(GOOD, ("upstream =", "upstreams ="), "ConfigMap writer: segue.toml:4:1: pod.upstreams: unknown key");
    finds(GOOD, ("name: SEGUE__POD__ADVERTISE", "name: SEGUE__POD__ADVERTIZE"), "SEGUE__POD__ADVERTIZE");
    let lost = "container router: /etc/router/segue.toml is in no ConfigMap of these files; expected its ConfigMap, or";
    finds(GOOD, ("metadata: {name: router}", "metadata: {name: router-2}"), lost);
    let given =
        segue_config::locate("given.toml", "[router]\n[admin]\nlisten = \"0.0.0.0:9090\"", [], "router").unwrap();
    let text = changed(GOOD, &[("metadata: {name: router}", "metadata: {name: router-2}")]);
    let found = check(&[("all.yaml".to_owned(), text)], Some(&given));
    assert!(found.problems.iter().all(|problem| problem.contains("router.listen is 127.0.0.1:8080")), "{found:#?}");
}

#[test]
fn a_variable_has_the_value_that_the_files_give_it() {
    const ADVERTISE: &str = "            - {name: SEGUE__POD__ADVERTISE, value: \"$(POD_IP):8181\"}\n";
    const NAME: &str = "        - name: segue\n";
    let map = |data: &str| format!("{GOOD}---\nkind: ConfigMap\nmetadata: {{name: more}}\ndata: {{{data}}}\n");
    let from = |key: &str, map: &str| {
        format!(
            "{ADVERTISE}            - {{name: {key}, valueFrom: {{configMapKeyRef: {{name: {map}, key: time}}}}}}\n"
        )
    };
    let timeout = from("SEGUE__POD__SHUTDOWN_TIMEOUT", "more");
    let all = format!("{NAME}          envFrom: [{{prefix: SEGUE__POD__, configMapRef: {{name: more}}}}]\n");
    let too_long = "the process may take pod.shutdown_timeout, 120s";
    for (key, change) in [("time", (ADVERTISE, timeout.as_str())), ("SHUTDOWN_TIMEOUT", (NAME, &all))] {
        finds_nothing(&map(&format!("{key}: 61s")), &[change]);
        finds(&map(&format!("{key}: 120s")), change, too_long);
    }
    let elsewhere = "the value of SEGUE__POD__SHUTDOWN_TIMEOUT is somewhere else";
    finds(GOOD, (ADVERTISE, &timeout), elsewhere);
    let secret = timeout.replace("configMapKeyRef", "secretKeyRef");
    finds(&map("time: 120s"), (ADVERTISE, &secret), elsewhere);
    finds_nothing(GOOD, &[(ADVERTISE, &secret.replace("SHUTDOWN_TIMEOUT", "NAME"))]);
    finds(GOOD, (NAME, &all), "ConfigMap more is not in these files");
    finds(GOOD, (NAME, &all.replace("configMapRef", "secretRef")), "Secret more is not in these files");
}

#[test]
fn a_volume_may_give_keys_other_names() {
    let items = |path: &str| format!("{{name: writer, items: [{{key: segue.toml, path: {path}}}]}}");
    let own = format!("configMap: {}", items("own.toml"));
    let own_name = [("configMap: {name: writer}", own.as_str()), ("/etc/segue/segue.toml", "/etc/segue/own.toml")];
    finds_nothing(GOOD, &own_name);
    finds(GOOD, own_name[0], "container segue: /etc/segue/segue.toml is in no ConfigMap");
}

#[test]
fn a_shell_may_start_segue() {
    let script = |script: &str| format!("command: [/bin/sh, -c, \"{script}\"]");
    let args = "args: [run, --config, /etc/segue/segue.toml]";
    let good = script("ulimit -n 9000; exec segue run --config /etc/segue/segue.toml");
    assert_eq!(found(&changed(GOOD, &[(args, &good)])).configs.len(), 2);
    finds_nothing(GOOD, &[(args, &good)]);
    let lost = script("exec /usr/bin/segue run --config=/etc/other.toml");
    finds(GOOD, (args, &lost), "container segue: /etc/other.toml is in no ConfigMap");
}

#[test]
fn the_address_of_the_node_is_an_address() {
    finds_nothing(GOOD, &[("fieldPath: status.podIP", "fieldPath: status.hostIP")]);
}

#[test]
fn what_is_no_manifest_of_segue_is_refused() {
    for (text, described) in
        [("kind: [", "all.yaml: "), ("kind: Pod\n", "all.yaml: no container"), ("", "no container")]
    {
        let found = found(text);
        assert!(matches!(found.problems.as_slice(), [one] if one.contains(described)), "{text:?}: {found:#?}");
    }
}

#[test]
fn the_objects_of_a_list_count() {
    let list = "kind: List\nitems:\n- kind: Deployment\n  metadata: {name: d}\n  spec: {template: {spec: {containers: [{name: c, args: [run, --config, x]}]}}}\n";
    assert!(found(list).problems[0].contains("all.yaml:5:41: Deployment d, container c: x is in no ConfigMap"));
}
