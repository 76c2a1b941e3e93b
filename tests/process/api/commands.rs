//! Commands with `--server`, also while answers are lost and the process has lost its store.

use std::io::{Read as _, copy};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use segue_tests::http::Request;
use segue_tests::ports::free_address;
use segue_tests::process::until;

use super::site::{Site, says};

#[test]
fn commands_need_nothing_but_a_server() {
    let site = Site::with_token(&["w-0", "w-1"]);
    let (server, token) = (format!("http://{}", site.admin), site.cluster.path().join("token"));
    let run = |words: &[&str]| {
        let with = ["--server", &server, "--token-file", token.to_str().unwrap()];
        says(&[words, &with].concat())
    };
    #[track_caller]
    fn done((code, said): (Option<i32>, String), part: &str) {
        assert!(code == Some(0) && said.contains(part), "{code:?} {said}");
    }
    let to = if site.owner(3) == "w-0" { "w-1" } else { "w-0" };
    done(run(&["move", "3", "--to", to, "--pin"]), &format!("partition 3 is on {to}"));
    done(run(&["explain", "3"]), &format!("pinned      to {to}, by ann@"));
    done(run(&["explain", to]), "state       registered");
    done(run(&["unpin", "3", "--why", "cooler"]), "was pinned");
    done(run(&["pin", "4"]), "is pinned to");
    done(run(&["drain", "w-1", "--why", "kernel"]), "pod w-1 is empty");
    done(run(&["status"]), "drained     w-1, by ann@");
    done(run(&["wait", "drained", "w-1"]), "pod w-1 is empty");
    done(run(&["undrain", "w-1"]), "may be given partitions again");
    done(run(&["wait", "settled"]), "at rest");
    done(run(&["wait", "moved", "4"]), "partition 4 is on");
    done(run(&["pause", "--for", "90s"]), "paused for 90s");
    done(run(&["resume"]), "planned moves go on");
    done(run(&["plan", "--without", "w-0"]), "would move");
    let file = site.cluster.path().join("wanted.json");
    for (generation, code) in [(2, Some(0)), (1, Some(1))] {
        std::fs::write(&file, format!(r#"{{"generation":{generation},"owners":{{"0":"w-0"}}}}"#)).unwrap();
        assert_eq!(run(&["wanted", file.to_str().unwrap()]).0, code, "generation {generation}");
    }
    done(run(&["config", "set", "settle", "250ms"]), "settle is 250ms in place of");
    done(run(&["config", "get", "settle"]), "250ms");
    let router = site.cluster.path().join("router.toml");
    let text = "[store]\nkind = \"memory\"\n[router]\n[router.partition]\nkey = { header = \"x-key\" }\n";
    std::fs::write(&router, text).unwrap();
    let remap = ["remap", "--to", router.to_str().unwrap()];
    let (code, said) = run(&remap);
    assert!(code == Some(1) && said.contains("--yes"), "{said}");
    done(run(&[&remap[..], &["--yes"]].concat()), "the murmur2 hash of header:x-key");
    let (code, said) = run(&["move", "3", "--to", "w-9"]);
    assert!(code == Some(1) && said.contains("no pod w-9 is registered"), "{said}");
    let (code, said) = run(&["forget", "pod", "w-0"]);
    assert!(code == Some(1) && said.contains("ends with the lease"), "{said}");
    let (code, said) = run(&["pause", "--for", "0s"]);
    assert!(code == Some(2) && said.contains("above zero"), "{said}");
    done(run(&["pause"]), "paused until segue resume");
    let (code, said) = run(&["move", "3", "--to", "w-0", "--timeout", "1s"]);
    let is_there = said.contains("partition 3 is on w-0\n");
    assert!(is_there || (code == Some(4) && said.contains("segue resume")), "{code:?} {said}");

    let (code, said) = says(&["drain", "w-0", "--server", &server]);
    assert!(code == Some(1) && said.contains("Bearer"), "{said}");
    let nowhere = format!("http://{}", free_address());
    for words in [&["drain", "w-0"][..], &["status"], &["plan"], &["wait", "settled"], &["explain", "3"]] {
        let (code, said) = says(&[words, &["--server", &nowhere]].concat());
        assert!(code == Some(3) && said.contains(&nowhere), "{words:?}: {code:?} {said}");
    }
    for server in ["127.0.0.1:9090", "ftp://a", "http://a/b", "https://a", "unix:"] {
        let (code, said) = says(&["status", "--server", server]);
        assert!(code == Some(2) && said.contains("expected"), "{server}: {code:?} {said}");
    }
    assert_eq!(says(&["status", "--server", &server, "--etcd", "http://a:1"]).0, Some(2));
}

/// Starts an endpoint that passes requests on to `admin`, and loses the answers to the first `lost` of them.
fn losing_answers(admin: SocketAddr, lost: usize) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for (number, client) in listener.incoming().enumerate() {
            let (mut client, mut server) = (client.unwrap(), TcpStream::connect(admin).unwrap());
            let (mut from, mut to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            std::thread::spawn(move || {
                let _ = copy(&mut from, &mut to);
                let _ = to.shutdown(Shutdown::Write);
            });
            if number < lost {
                let _ = server.read(&mut [0]);
            } else {
                let _ = copy(&mut server, &mut client);
            }
            let _ = client.shutdown(Shutdown::Both);
        }
    });
    address
}

#[test]
fn a_command_asks_again_for_an_answer_that_was_lost_and_takes_effect_once() {
    let site = Site::with_token(&["w-0", "w-1"]);
    let token = site.cluster.path().join("token");
    let run = |words: &[&str], lost: usize| {
        let server = format!("http://{}", losing_answers(site.admin, lost));
        says(&[words, &["--server", &server, "--token-file", token.to_str().unwrap()]].concat())
    };
    let to = if site.owner(3) == "w-0" { "w-1" } else { "w-0" };
    let (code, said) = run(&["move", "3", "--to", to], 2);
    assert!(code == Some(0) && said.contains(&format!("partition 3 is on {to}")), "{code:?} {said}");
    let operations = site.intentions().into_iter().filter(|key| key.contains("/operations/"));
    assert_eq!(operations.count(), 1, "one move");
    assert_eq!(run(&["wait", "settled"], 1).0, Some(0));

    let (code, said) = run(&["pause", "--id", "p-1"], usize::MAX);
    assert!(code == Some(3) && said.contains("--id p-1"), "{code:?} {said}");
    assert!(site.intentions().iter().any(|key| key.ends_with("/operations/p-1")), "the pause took effect");
}

#[test]
fn a_process_that_has_lost_its_store_says_how_old_its_view_is() {
    let site = Site::with_token(&["w-0"]);
    let server = format!("http://{}", site.admin);
    let stale = || site.read("/status")["keyspace"]["stale"].clone();
    assert!(stale().is_null());
    assert_eq!(says(&["status", "--server", &server]).0, Some(0));

    site.cluster.etcd().pause();
    until("a status that is known to be old, though the connection stands", || stale().is_object());
    site.cluster.etcd().resume();
    until("a status of the present", || stale().is_null());

    site.cluster.etcd().kill();
    until("a status that is known to be old", || stale().is_object());
    let age = || stale()["age_ms"].as_u64().unwrap();
    let first = age();
    until("an older one", || age() > first);
    let (code, said) = says(&["status", "--server", &server]);
    assert!(code == Some(3) && said.contains("stale       ") && said.contains("w-0  Ready"), "{code:?} {said}");
    let (code, said) = says(&["status", "--json", "--server", &server]);
    assert!(code == Some(3) && said.contains(r#""stale":{"since":"#), "{code:?} {said}");
    let get = |path| Request::get(path).timeout(Duration::from_secs(30)).send(site.admin).unwrap();
    for path in ["/v1/partitions/3", "/v1/pods/w-0", "/v1/plan", "/v1/wait/settled"] {
        let response = get(path);
        assert_eq!(response.status, 503, "{path}: {}", response.body);
    }
    // A reading of the history, such as that of `segue status`, serves others for a second.
    until("a history that cannot be read", || get("/v1/history").status == 503);

    site.cluster.etcd().restart();
    until("a status of the present", || stale().is_null());
    assert_eq!(says(&["status", "--server", &server]).0, Some(0));
}
