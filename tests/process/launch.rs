//! How a sidecar starts its service: the folder, the variables and the user of `exec`.

use segue_tests::cluster::TestCluster;
use segue_tests::ports::free_address;
use segue_tests::process::{Process, until};

use crate::service;
use crate::site::SEGUE;

/// Starts a sidecar of this name, whose service is this script.
fn sidecar(cluster: &TestCluster, name: &str, script: &str, more: &str) -> Process {
    let exec = format!("exec = [\"sh\", \"-c\", '''{script}''']\n{more}");
    cluster.run(name, &cluster.config().pod(name, free_address(), free_address()).with("pod", &exec))
}

/// Returns the words that the service has printed between `launched` and `end`.
fn printed(sidecar: &mut Process) -> Vec<String> {
    let line = |output: &str| Some(output.split_once("launched ")?.1.split_once(" end")?.0.to_owned());
    let output = std::cell::RefCell::new(None);
    let mut found = || {
        let printed = line(&sidecar.output());
        let is_there = printed.is_some();
        output.replace(printed);
        is_there
    };
    until("the service's line", &mut found);
    let printed = output.into_inner().unwrap();
    printed.split_whitespace().map(str::to_owned).collect()
}

/// Returns whether a process runs. Nobody takes note of its end while the sidecar is stopped.
fn runs(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn a_service_starts_in_its_folder_with_its_variables_and_nobody_else_has_them() {
    let cluster = TestCluster::start(SEGUE);
    let script = "echo launched $PWD $GREETING ${SEGUE_LAUNCH:-none} end; exec sleep 600";
    let more = "exec_cwd = \"/usr\"\nexec_env = { GREETING = \"hello, \\\"world\\\"\" }\n";
    let mut a = sidecar(&cluster, "a", script, more);
    assert_eq!(printed(&mut a), ["/usr", "hello,", "\"world\"", "none"]);
    for pid in service::children(a.id()) {
        let read =
            |file: &str| String::from_utf8_lossy(&std::fs::read(format!("/proc/{pid}/{file}")).unwrap()).into_owned();
        assert!(!read("cmdline").contains("hello") && !read("environ").contains("\0GREETING="));
    }
}

#[test]
fn a_service_runs_as_its_user_with_that_users_groups_and_dies_with_its_supervisor_all_the_same() {
    if !is_root() {
        return;
    }
    let cluster = TestCluster::start(SEGUE);
    let script = "echo launched $$ $HOME $USER $(id -u) $(id -g) $(id -G) end; exec sleep 600";
    for (name, user, expected) in [
        ("a", "nobody", &["/nonexistent", "nobody", "65534", "65534", "65534"][..]),
        ("b", "4242:4343", &["/kept", "4242", "4343", "4343"]),
    ] {
        let more = format!("exec_user = \"{user}\"\n");
        let more =
            if user == "nobody" { more } else { format!("{more}exec_env = {{ HOME = \"/kept\", USER = \"\" }}\n") };
        let mut a = sidecar(&cluster, name, script, &more);
        let printed = printed(&mut a);
        assert_eq!(printed[1..], *expected, "{user}");
        let pid = printed[0].parse().unwrap();
        assert!(runs(pid));
        // So that only the service's own signal can end it.
        a.signal("STOP");
        service::kill(service::children(a.id())[0]);
        until("the service's end", || !runs(pid));
        a.signal("CONT");
    }
}

#[test]
fn a_service_that_cannot_be_started_as_its_file_says_ends_its_sidecar() {
    let cluster = TestCluster::start(SEGUE);
    for (name, more, told) in [
        ("a", "exec_user = \"segue-nobody\"\n", "segue: pod.exec_user: there is no user segue-nobody here"),
        ("b", "exec_cwd = \"/nowhere\"\n", "segue: pod.exec_cwd: cannot enter /nowhere: No such file"),
    ] {
        let mut a = sidecar(&cluster, name, "exec sleep 600", more);
        assert_eq!(a.wait().code(), Some(126), "{}", a.output());
        assert!(a.output().contains(told), "{}", a.output());
    }
    if !is_root() {
        let mut a = sidecar(&cluster, "c", "exec sleep 600", "exec_user = \"0:0\"\n");
        assert_eq!(a.wait().code(), Some(126), "{}", a.output());
        assert!(a.output().contains("segue: pod.exec_user: cannot become 0:0: permission denied"), "{}", a.output());
    }
}
