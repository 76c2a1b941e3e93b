//! Checks that the faults of `make sabotage`, which runs seldom, still fit the sources.

use std::fs;
use std::process::Command;

use super::structure::root;

#[test]
fn every_fault_of_sabotage_still_applies() {
    let folder = root().join("tests/sabotage");
    let faults = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let faults: Vec<_> = faults.filter(|path| path.extension().is_some_and(|extension| extension == "patch")).collect();
    let applies = |fault: &_| {
        let mut git = Command::new("git");
        // The paths of a copy inside another repository would count from that one's root.
        git.env("GIT_CEILING_DIRECTORIES", root().parent().unwrap());
        git.current_dir(root()).args(["apply", "--check"]).arg(fault).status().unwrap().success()
    };
    let stale: Vec<_> = faults.iter().filter(|fault| !applies(fault)).collect();
    assert!(!faults.is_empty() && stale.is_empty(), "renew {stale:?}");
}
