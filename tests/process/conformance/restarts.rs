//! `segue conformance --handoffs --command` with pods that it kills and starts again: pods that each go wrong only after a
//! restart, and correct ones.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread;

use rustix::process::{Pid, Signal, kill_process};
use segue_tests::cluster::TestCluster;
use segue_tests::ports::free_address;
use segue_tests::process::until;

use crate::site::SEGUE;

/// The lease of a pod in seconds. Several programs play at the same time, and none of them may starve a pod for so long.
const LEASE: &str = "20";
const PATIENCE: &str = "45s";

const KILLED_WARMING: &str = "the pod is killed while it warms, and started again";
const KILLED_OWNING: &str = "the pod is killed while it owns a partition, and started again";

/// Returns the test of a pod in Python, by `"grpc"` or straight on `"etcd"`, with a fault of `tests/pods/broken.py`.
fn conformance(cluster: &TestCluster, way: &str, fault: Option<&str>) -> Command {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let python = root.join(".tools/pods/bin/python");
    assert!(python.exists(), "{} is missing: run scripts/setup python-pods", python.display());
    let pod = match fault {
        None => format!("{}/examples/python-{way}-pod/pod.py", root.display()),
        Some(fault) => format!("{}/tests/pods/broken.py {way}-{fault}", root.display()),
    };
    let (listen, service, etcd) = (free_address(), free_address(), cluster.etcd().endpoint());
    let whom = if way == "grpc" { format!("--coordinator {service}") } else { format!("--etcd {etcd}") };
    let keyspace = format!("{way}-{}", fault.unwrap_or("correct"));
    let logs = cluster.path().join(&keyspace);
    let pod = format!(
        "exec {} {pod} {whom} --keyspace {keyspace} --name w --listen {listen} --log-dir {} --lease-ttl {LEASE} \
         --warm-time 1 --service-time 0",
        python.display(),
        logs.display()
    );
    let mut command = crate::cli::segue();
    command.env("PYTHONDONTWRITEBYTECODE", "1").args(["conformance", "--handoffs", "--patience", PATIENCE]);
    command.args(["--path", "/keys/a", "--pod", &format!("http://{listen}"), "--name", "w", "--etcd", &etcd]);
    command.args(["--keyspace", &keyspace, "--command", &pod]);
    if way == "grpc" {
        command.args(["--listen", &service.to_string()]);
    }
    command
}

/// Returns what a run says of the scenes that the pod got wrong.
fn wrong(output: &Output) -> Vec<(String, String)> {
    let text = String::from_utf8_lossy(&output.stdout);
    let wrong = text.lines().filter_map(|line| line.strip_prefix("WRONG  ")?.split_once(": "));
    let wrong: Vec<_> = wrong.map(|(scene, why)| (scene.to_owned(), why.to_owned())).collect();
    let last = format!(" wrong={}", wrong.len());
    assert!(text.trim_end().ends_with(&last), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!([KILLED_WARMING, KILLED_OWNING].iter().all(|scene| text.contains(scene)), "{text}");
    assert_eq!(output.status.code(), Some(i32::from(!wrong.is_empty())), "{text}");
    wrong
}

/// How a pod takes part, its flaw, and the scenes that it gets wrong, each with a part of what is said of it.
type Case<'a> = (&'a str, Option<&'a str>, &'a [(&'a str, &'a str)]);

#[test]
fn each_flaw_of_a_restarted_pod_is_found_and_correct_pods_conform() {
    let cluster = TestCluster::start(SEGUE);
    let serves = "serves what the process that was killed has owned";
    let cases: [Case<'_>; 6] = [
        ("grpc", None, &[]),
        ("etcd", None, &[]),
        ("grpc", Some("keeps-token"), &[(KILLED_WARMING, "keeps the registration"), (KILLED_OWNING, serves)]),
        ("grpc", Some("keeps-ownership"), &[(KILLED_OWNING, serves)]),
        ("grpc", Some("stays-down"), &[(KILLED_WARMING, "ends after it"), (KILLED_OWNING, "is not registered")]),
        ("etcd", Some("any-life"), &[(KILLED_WARMING, "moves on a handoff to the process that was killed")]),
    ];
    thread::scope(|scope| {
        for (way, fault, expected) in cases {
            let cluster = &cluster;
            scope.spawn(move || {
                let output = conformance(cluster, way, fault).output().unwrap();
                let wrong = wrong(&output);
                let is_expected = |((scene, why), (expected, begins)): (&(String, String), &(&str, &str))| {
                    scene == expected && why.starts_with(begins)
                };
                let all = wrong.len() == expected.len() && wrong.iter().zip(expected).all(is_expected);
                assert!(all, "{way} {fault:?}: {wrong:#?}\n{}", String::from_utf8_lossy(&output.stderr));
            });
        }
    });
}

#[test]
fn a_pod_that_was_started_is_dead_once_the_test_has_ended_by_a_signal() {
    let cluster = TestCluster::start(SEGUE);
    let pid = cluster.path().join("pid");
    let mut command = crate::cli::segue();
    let pod = format!("sleep 600 & echo $! > {0}.new; mv {0}.new {0}; wait", pid.display());
    command.args(["conformance", "--handoffs", "--pod", "http://127.0.0.1:2", "--etcd", &cluster.etcd().endpoint()]);
    command.args(["--keyspace", "ended", "--patience", "10m", "--command", &pod]);
    let mut running = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    until("the pod has started", || pid.exists());
    let sleep = std::fs::read_to_string(&pid).unwrap().trim().to_owned();
    kill_process(Pid::from_child(&running), Signal::TERM).unwrap();
    assert_eq!(running.wait().unwrap().code(), Some(1));
    // A process that nobody has waited for yet is dead as well.
    let stat = format!("/proc/{sleep}/stat");
    until("the pod is dead", || std::fs::read_to_string(&stat).map_or(true, |stat| stat.contains(") Z ")));
}

#[test]
fn a_command_that_ends_before_the_pod_has_registered_is_named() {
    let cluster = TestCluster::start(SEGUE);
    let mut command = crate::cli::segue();
    command.args(["conformance", "--handoffs", "--pod", "http://127.0.0.1:2", "--etcd", &cluster.etcd().endpoint()]);
    let output = command.args(["--keyspace", "none", "--patience", "1s", "--command", "exit 7"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && text.contains("--command has ended: exit status: 7"), "{text}");
}
