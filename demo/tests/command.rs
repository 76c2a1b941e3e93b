//! `segue-demo` as `make demo` runs it: what it plays, and what it leaves to the whole `segue`.
#![allow(clippy::unwrap_used)]

use std::process::{Command, Output};

fn demo(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_segue-demo")).args(arguments).output().unwrap()
}

#[test]
fn a_short_demo_ends_with_the_report_of_a_sound_cluster() {
    let load = ["--partitions", "16", "--clients", "4", "--rate", "100", "--duration", "1s", "--scenario", "scale-up"];
    let output = demo(&[&load[..], &["--json", "--seed", "7"]].concat());
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{said}");
    let report: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!((&report["seed"], &report["sound"]), (&7.into(), &true.into()), "{report}");
    assert_eq!(report["cluster"]["store"], "embedded");
}

#[test]
fn an_option_that_needs_the_whole_segue_is_refused_with_the_command_that_has_it() {
    for (option, value) in [("--etcd", "http://127.0.0.1:2379"), ("--admin", "127.0.0.1:9090")] {
        let output = demo(&[option, value]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(&format!("`make demo ARGS=\"{option} {value}\"`")), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}
