//! Ends all descendants of a subreaper process. Orphans among them become children of the subreaper instead of `init`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, getpid, kill_process, set_child_subreaper, wait, waitpid};

/// Pause before killed processes are looked for again.
pub(super) const RETRY_PAUSE: Duration = Duration::from_millis(2);

/// Makes this process the parent of orphaned descendants from now on.
pub(super) fn adopt() -> io::Result<()> {
    Ok(set_child_subreaper(Some(getpid()))?)
}

/// Reaps the children that have ended and passes each to `of`. Returns whether any child is left.
pub(super) fn reap(mut of: impl FnMut(Pid, WaitStatus)) -> bool {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) => of(pid, status),
            Ok(None) => return true,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}

/// Reaps the children among `pids`, and no others.
pub(super) fn reap_only(pids: &BTreeSet<i32>) {
    for pid in pids.iter().filter_map(|pid| Pid::from_raw(*pid)) {
        let _ = waitpid(Some(pid), WaitOptions::NOHANG);
    }
}

/// Kills all descendants of this process, once, but not those `spared` and theirs. Returns those that are not reaped yet.
pub(super) fn kill(spared: &BTreeSet<i32>) -> BTreeSet<i32> {
    let found = descendants(getpid().as_raw_nonzero().get(), spared);
    for pid in found.iter().filter_map(|pid| Pid::from_raw(*pid)) {
        let _ = kill_process(pid, Signal::KILL);
    }
    found
}

/// Kills all descendants and reaps them, until there are none.
pub(super) async fn kill_all(mut of: impl FnMut(Pid, WaitStatus)) {
    loop {
        kill(&BTreeSet::new());
        if !reap(&mut of) {
            return;
        }
        tokio::time::sleep(RETRY_PAUSE).await;
    }
}

fn descendants(of: i32, spared: &BTreeSet<i32>) -> BTreeSet<i32> {
    let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    for pid in processes.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok()) {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        if let Some(parent) = parent(&stat) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let (mut found, mut next) = (BTreeSet::new(), vec![of]);
    while let Some(parent) = next.pop() {
        for child in children.remove(&parent).unwrap_or_default() {
            if !spared.contains(&child) && found.insert(child) {
                next.push(child);
            }
        }
    }
    found
}

/// Returns the parent in `/proc/PID/stat`: the second word after the name, which is in parentheses and may contain any.
fn parent(stat: &str) -> Option<i32> {
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parent_is_read_whatever_the_process_is_called() {
        assert_eq!(parent("7 (a) R 8) S 42 7 7 0 -1"), Some(42));
        assert_eq!(parent(""), None);
    }

    #[test]
    fn a_child_is_a_descendant_unless_it_is_spared() {
        let mut child = std::process::Command::new("/proc/self/exe").arg("--list").spawn().unwrap();
        let (me, pid) = (std::process::id() as i32, child.id() as i32);
        assert!(descendants(me, &BTreeSet::new()).contains(&pid));
        assert!(!descendants(me, &BTreeSet::from([pid])).contains(&pid));
        child.wait().unwrap();
    }
}
