//! `segue dev` as a user meets it: a site that answers, the commands that it prints, copies that die, and what does not
//! start.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Command, Output, Stdio};

use segue_tests::http::{Request, get, is_ready};
use segue_tests::ports::{free_address, free_ports};
use segue_tests::process::{Process, until};
use serde_json::Value;
use tempfile::TempDir;

use crate::cli::{segue, stderr};

/// A site of a service that serves the files of a folder.
struct DevSite {
    process: Process,
    folder: TempDir,
    router: SocketAddr,
    admin: SocketAddr,
}

impl DevSite {
    /// Starts a site with these options, and waits until it has said what there is to try.
    fn start(options: &[&str], command: &[&str]) -> Self {
        let folder = TempDir::new().unwrap();
        std::fs::write(folder.path().join("42"), "Ann\n").unwrap();
        // The copies get the ports above that of the router.
        let (router, admin) = (SocketAddr::from((Ipv4Addr::LOCALHOST, free_ports(8))), free_address());
        let mut dev = segue();
        dev.current_dir(folder.path()).arg("dev").args(["--listen", &router.to_string()]);
        dev.args(["--admin", &admin.to_string()]).args(options).arg("--").args(command);
        let process = Process::start("dev", folder.path(), &mut dev);
        let mut site = DevSite { process, folder, router, admin };
        site.until_said("Ctrl-C ends everything");
        site
    }

    fn until_said(&mut self, words: &str) {
        let log = self.folder.path().join("dev.log");
        self.process.until(words, || std::fs::read_to_string(&log).unwrap().contains(words));
    }

    /// Returns the commands that it says can be tried.
    fn tries(&self) -> Vec<String> {
        let said = self.process.output();
        let tries = said.split("Try in another terminal:").nth(1).unwrap().split("Ctrl-C").next().unwrap();
        let commands = tries.lines().map(|line| line.trim().split("  # ").next().unwrap().to_owned());
        commands.filter(|line| !line.is_empty() && !line.starts_with("# ")).collect()
    }

    /// Returns the first of these commands with this word.
    fn try_with(&self, word: &str) -> String {
        let tries = self.tries();
        tries.iter().find(|line| line.contains(word)).unwrap_or_else(|| panic!("no {word} in {tries:?}")).clone()
    }

    /// Returns the process ids of the copies, as they are shown.
    fn pids(&self) -> Vec<String> {
        let said = self.process.output();
        let pids = said.split("Try in").next().unwrap().lines().filter_map(|line| line.split("   pid ").nth(1));
        pids.map(str::to_owned).collect()
    }

    /// Returns the process id of a copy that has been started again.
    fn pid_again(&self, name: &str) -> String {
        let said = self.process.output();
        let after = said.split(&format!("{name} is ready, with pid ")).nth(1).unwrap();
        after.lines().next().unwrap().to_owned()
    }

    /// Returns the number of partitions of each pod.
    fn owned(&self) -> Vec<(String, u64)> {
        let status: Value = serde_json::from_str(&get(self.admin, "/status").unwrap().1).unwrap();
        let pods = status["keyspace"]["pods"].as_array().unwrap();
        pods.iter().map(|pod| (pod["name"].as_str().unwrap().to_owned(), pod["partitions"].as_u64().unwrap())).collect()
    }
}

/// Runs a command line as it was printed, in another folder.
fn shell(line: &str) -> Output {
    let mut shell = Command::new("sh");
    for name in ["SEGUE_CONFIG", "SEGUE_SERVER", "SEGUE_KEYSPACE", "SEGUE_TOKEN_FILE"] {
        shell.env_remove(name);
    }
    shell.args(["-c", line]).current_dir("/").output().unwrap()
}

/// Runs a command line that succeeds. Returns what it printed.
fn succeeds(line: &str) -> String {
    let output = shell(line);
    assert!(output.status.success(), "{line}: {}", stderr(&output));
    String::from_utf8(output.stdout).unwrap()
}

fn is_alive(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // A zombie is dead.
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

const FILES: [&str; 6] = ["python3", "-m", "http.server", "{port}", "--bind", "127.0.0.1"];

#[test]
fn a_site_answers_and_what_it_says_can_be_tried_works_as_it_stands() {
    let mut site = DevSite::start(&[], &FILES);
    let answer = || Request::get("/42").send(site.router);
    assert_eq!(answer().map(|it| (it.status, it.body)), Some((200, "Ann\n".to_owned())), "{}", site.process.output());
    // On a slow machine the site says what can be tried before all copies are ready.
    until("readiness", || is_ready(site.admin));
    assert!(get(site.admin, "/").unwrap().1.contains("<title>Segue</title>"));
    assert_eq!(site.try_with("curl"), format!("curl http://{}/42", site.router));
    let key = succeeds(&site.try_with("explain"));
    assert!(key.contains("taken from  the path /{key}"), "{key}");
    let status = succeeds(&site.try_with("status"));
    assert!(["dev-1", "dev-2", "dev-3"].iter().all(|pod| status.contains(pod)), "{status}");

    let moved = site.try_with(" move ");
    let words: Vec<&str> = moved.split(' ').collect();
    let at = |word: &str| words[words.iter().position(|found| *found == word).unwrap() + 1];
    let (partition, to) = (at("move"), at("--to"));
    assert_eq!(succeeds(&moved), format!("partition {partition} is on {to}\n"));
    let server = format!("--server http://{}", site.admin);
    let history = format!("{} history {partition} {server}", words[0]);
    until("the move in the history", || succeeds(&history).contains(&format!("→ {to} ")));

    assert!(succeeds(&site.try_with("drain")).contains("pod dev-1 is empty"));
    assert!(site.owned().contains(&("dev-1".to_owned(), 0)));
    succeeds(&site.try_with("drain").replace("drain", "undrain"));
    let explained = succeeds(&format!("{} explain dev-1 {server}", words[0]));
    assert!(explained.contains("it says     no hook runs"), "{explained}");
    let page = "{\"partition\":0,\"to\":\"dev-1\"}";
    let foreign = Request::json("POST", "/v1/moves", page).header("origin", "http://evil.example").send(site.admin);
    assert_eq!(foreign.map(|answer| answer.status), Some(403));

    let pids = site.pids();
    assert!(pids.len() == 3 && pids.iter().all(|pid| is_alive(pid)), "{pids:?}");
    succeeds(&site.try_with("kill -9"));
    site.until_said("was killed (SIGKILL): its partitions move; it restarts in 1 s");
    site.until_said("dev-3 is ready, with pid ");
    let again = site.pid_again("dev-3");
    assert!(!pids.contains(&again) && is_alive(&again));

    site.process.signal("INT");
    assert_eq!(site.process.wait().code(), Some(0), "{}", site.process.output());
    assert!(!pids.iter().chain([&again]).any(|pid| is_alive(pid)), "a copy is left");
    assert!(site.process.output().contains("dev-1 | "), "{}", site.process.output());
}

#[test]
fn the_partitions_of_a_copy_that_stays_away_move_and_come_back_with_it() {
    // The service of this port fails while there is a file of its name.
    let script = "test -e broken-$PORT && exit 7; exec python3 -m http.server $PORT --bind 127.0.0.1";
    let mut site =
        DevSite::start(&["--pods", "2", "--partitions", "8", "--key", "header:x-key"], &["sh", "-c", script]);
    let port = site.router.port() + 1;
    let broken = site.folder.path().join(format!("broken-{port}"));
    std::fs::write(&broken, "").unwrap();
    succeeds(&format!("kill -9 {}", site.pids()[0]));
    site.until_said("dev-1 exited with code 7 (2 times in a row); it restarts in 2 s");
    until("partitions on the other copy alone", || site.owned() == [("dev-2".to_owned(), 8)]);
    let ask = Request::get("/42").header("x-key", "Ann");
    assert_eq!(ask.send(site.router).map(|answer| answer.status), Some(200));
    std::fs::remove_file(&broken).unwrap();
    site.until_said("dev-1 is ready, with pid ");
    until("partitions on both", || site.owned() == [("dev-1".to_owned(), 4), ("dev-2".to_owned(), 4)]);
}

#[test]
fn a_supervisor_that_dies_takes_its_own_copy_along_and_a_site_that_is_killed_all() {
    let mut site = DevSite::start(&["--pods", "2"], &FILES);
    let mut pids = site.pids();
    assert!(pids.len() == 2 && pids.iter().all(|pid| is_alive(pid)), "{pids:?}");
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pids[0])).unwrap();
    let supervisor = stat.rsplit_once(") ").unwrap().1.split(' ').nth(1).unwrap();
    succeeds(&format!("kill -9 {supervisor}"));
    site.until_said("dev-1 is ready, with pid ");
    assert!(!is_alive(&pids[0]) && is_alive(&pids[1]), "{}", site.process.output());
    assert!(!site.process.output().contains("dev-2 was killed"), "{}", site.process.output());
    pids.push(site.pid_again("dev-1"));
    assert!(is_alive(&pids[2]));
    site.process.kill();
    until("end of the copies", || !pids.iter().any(|pid| is_alive(pid)));
}

/// Runs a site that does not start. Returns its exit code and its last words.
fn fails(options: &[&str], command: &[&str]) -> (Option<i32>, String) {
    let (listen, admin) = (format!("127.0.0.1:{}", free_ports(8)), free_address().to_string());
    let mut dev = segue();
    let dev = dev.args(["dev", "--listen", &listen, "--admin", &admin]).args(options).arg("--").args(command);
    let output = dev.stdin(Stdio::null()).output().unwrap();
    (output.status.code(), stderr(&output))
}

#[test]
fn a_command_that_does_not_come_up_is_an_error_with_its_last_lines() {
    let (code, said) = fails(&[], &["sh", "-c", "echo no database >&2; exit 3"]);
    assert!(code == Some(1) && said.contains("has come up: dev-1 exited with code 3"), "{said}");
    assert!(said.ends_with("\nlast lines of dev-1:\n  no database\n"), "{said}");
    let (code, said) = fails(&[], &["false"]);
    assert!(code == Some(1) && said.ends_with("\ndev-1 has written nothing\n"), "{said}");
    let (code, said) = fails(&[], &["segue-has-no-such-program", "{port}"]);
    assert!(code == Some(1) && said.contains("segue-has-no-such-program is in no folder of PATH"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    let silent = ["sh", "-c", "echo I am $$; exec sleep 1000"];
    let (code, said) = fails(&["--pods", "1", "--start-timeout", "1s"], &silent);
    assert!(code == Some(1) && said.contains("listens on its port (") && said.contains("--start-timeout"), "{said}");
    let pid = said.split("  I am ").nth(1).unwrap().trim_end();
    assert!(!is_alive(pid), "{said}");
}

#[test]
fn an_address_in_use_is_named_with_its_option() {
    let site = DevSite::start(&["--pods", "1"], &FILES);
    let (router, admin) = (site.router.to_string(), site.admin.to_string());
    let second = |listen: &str, admin: &str| {
        let output = segue().args(["dev", "--listen", listen, "--admin", admin, "--"]).args(FILES).output().unwrap();
        (output.status.code(), stderr(&output))
    };
    let (code, said) = second(&router, &admin);
    assert!(code == Some(1) && said.contains(&format!("--listen {router}: Address already in use")), "{said}");
    assert!(said.contains(&format!("--admin {admin}: Address already in use")) && said.lines().count() == 1, "{said}");
    let (code, said) = second(&free_address().to_string(), &admin);
    assert!(code == Some(1) && said.contains(&format!("--admin {admin}")) && !said.contains("--listen"), "{said}");
}

#[test]
fn what_cannot_be_obeyed_is_refused() {
    let with = |name: &str, value: &str, options: &[&str]| {
        let output = segue().arg("dev").args(options).args(["--", "true"]).env(name, value).output().unwrap();
        (output.status.code(), stderr(&output))
    };
    let (code, said) = with("SEGUE__STORE__KIND", "etcd", &[]);
    assert!(code == Some(2) && said.contains("SEGUE__STORE__KIND is set"), "{said}");
    let (code, said) = with("SEGUE__ROUTER__STASH__MAX_WAT", "1s", &[]);
    assert!(code == Some(2) && said.contains("did you mean SEGUE__ROUTER__STASH__MAX_WAIT"), "{said}");
    let (code, said) = with("UNRELATED", "1", &["--key", "path:/persons"]);
    assert!(code == Some(2) && said.contains("\"/persons\" has no segment {key}"), "{said}");
    let (code, said) = with("UNRELATED", "1", &["--pods", "0"]);
    assert!(code == Some(2) && said.contains("1..=32"), "{said}");
}
