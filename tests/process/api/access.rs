//! Who may change something: with a token, a client certificate, or by the Unix socket.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use segue_tests::certificates::Authority;
use segue_tests::http::Request;
use segue_tests::process::until;
use serde_json::Value;

use super::site::{Site, TOKEN, says, text};

/// A request that changes something, each by its method, path and body.
const WRITES: [(&str, &str, &str); 11] = [
    ("POST", "/v1/moves", r#"{"partition":3,"to":"w-0"}"#),
    ("PUT", "/v1/partitions/3/pin", "{}"),
    ("DELETE", "/v1/partitions/3/pin", "{}"),
    ("POST", "/v1/pods/w-1/drain", "{}"),
    ("DELETE", "/v1/pods/w-1/drain", "{}"),
    ("POST", "/v1/planner", r#"{"paused":true,"for":"1h"}"#),
    ("POST", "/v1/handoffs/3/cancel", "{}"),
    ("PUT", "/v1/wanted", r#"{"generation":1,"owners":{"0":"w-0"}}"#),
    ("DELETE", "/v1/pods/w-1", r#"{"yes":true,"force":true}"#),
    ("DELETE", "/v1/routers/r-0", r#"{"yes":true,"force":true}"#),
    ("POST", "/drain", "{}"),
];

#[test]
fn nothing_is_changed_without_the_token_or_for_another_site() {
    let site = Site::with_token(&["w-0", "w-1"]);
    assert_eq!(site.read("/v1/access")["write"], "token");
    let bearer = |token: &str| format!("Bearer {token}");
    for (method, path, body) in WRITES {
        let plain = || Request::json(method, path, body);
        let authorized = || plain().header("authorization", bearer(TOKEN));
        let (longer, prefix) = (format!("{TOKEN}x"), &TOKEN[..8]);
        let foreign = format!("http://{}.example", site.admin);
        for (request, status, reason) in [
            (plain(), 401, "unauthorized"),
            (plain().header("authorization", bearer(&longer)), 401, "unauthorized"),
            (plain().header("authorization", bearer(prefix)), 401, "unauthorized"),
            (plain().header("authorization", format!("Basic {TOKEN}")), 401, "unauthorized"),
            (authorized().header("origin", foreign), 403, "origin"),
            (authorized().header("origin", "null"), 403, "origin"),
            (authorized().header("sec-fetch-site", "cross-site"), 403, "origin"),
        ] {
            let response = request.send(site.admin).unwrap();
            let (given, why) = (response.status, text(&response, "reason"));
            assert_eq!((given, why.as_str()), (status, reason), "{method} {path}: {}", response.body);
        }
        let typed = Request::json(method, path, "").header("content-type", "text/plain").header("content-length", 2);
        let typed = typed.header("authorization", bearer(TOKEN)).send(site.admin).unwrap();
        assert_eq!((typed.status, text(&typed, "reason").as_str()), (415, "content-type"), "{method} {path}");
        if path.starts_with("/v1") {
            let unknown = site.send(method, path, r#"{"news":1}"#);
            assert_eq!(unknown.status, 400, "{method} {path}: {}", unknown.body);
        }
    }
    let large = format!(r#"{{"partition":3,"to":"w-0","why":"{}"}}"#, "x".repeat(70_000));
    assert_eq!(site.send("POST", "/v1/moves", &large).status, 413);
    let long = format!(r#"{{"partition":3,"to":"w-0","why":"{}"}}"#, "x".repeat(2_000));
    for (method, path, body) in [
        ("POST", "/v1/moves", long.as_str()),
        ("POST", "/v1/moves", "[]"),
        ("POST", "/v1/moves", r#"{"partition":3,"to":"w-0","id":"a/b"}"#),
        ("PUT", "/v1/partitions/x/pin", "{}"),
        ("POST", "/v1/planner", r#"{"paused":true,"for":"0s"}"#),
        ("POST", "/v1/planner", r#"{"paused":false,"for":"1h"}"#),
        ("POST", "/v1/moves?wait=long", r#"{"partition":3,"to":"w-0"}"#),
    ] {
        let response = site.send(method, path, body);
        assert_eq!(response.status, 400, "{method} {path}: {}", response.body);
        assert_eq!(text(&response, "reason"), "bad-request");
    }
    assert_eq!(site.intentions(), [""; 0]);
    assert_eq!(site.cluster.status().pods(), ["w-0", "w-1"]);
    assert_eq!(site.send("PATCH", "/v1/moves", "{}").status, 405);

    std::fs::write(site.cluster.path().join("token"), "replaced").unwrap();
    assert_eq!(site.send("POST", "/v1/planner", r#"{"paused":true}"#).status, 401, "the old token");
}

#[test]
fn the_unix_socket_is_its_users_alone_and_may_always_write() {
    let site = Site::start(&["w-0"], |site, config| {
        config.set("admin.socket", site.path().join("admin.sock").to_str().unwrap())
    });
    let socket = site.cluster.path().join("admin.sock");
    assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(site.read("/v1/access")["write"], "none", "by TCP");
    let refused = site.send("POST", "/v1/planner", r#"{"paused":true}"#);
    assert_eq!((refused.status, text(&refused, "reason").as_str()), (403, "read-only"), "by TCP");
    assert!(text(&refused, "error").contains("admin.socket"), "{}", refused.body);
    assert_eq!(site.read("/v1/partitions/3")["owner"], "w-0");
    let server = format!("unix:{}", socket.display());
    let (code, said) = says(&["pause", "--server", &server, "--why", "incident"]);
    assert!(code == Some(0) && said.contains("paused until"), "{said}");
    let mut paused = String::new();
    // The status follows the store by a watch of its own.
    until("the pause", || {
        let shown = site.read("/status")["keyspace"]["paused"].clone();
        shown.as_str().inspect(|shown| (*shown).clone_into(&mut paused)).is_some()
    });
    assert!(paused.starts_with("ann@") && paused.ends_with("(incident)"), "{paused}");
    let mut site = site;
    assert!(site.cluster.take("c-0").terminate().0.success());
    assert!(!socket.exists(), "the socket goes with its process");
}

#[test]
fn a_client_certificate_is_needed_to_write_and_not_to_read() {
    let folder = tempfile::tempdir().unwrap();
    let (ours, others) = (Authority::new(folder.path(), "ours"), Authority::new(folder.path(), "others"));
    let served = ours.issue("served");
    let site = Site::start(&["w-0"], |_, config| {
        let (cert, key, ca) = (served.cert.display(), served.key.display(), ours.file.display());
        let tls = format!("cert = \"{cert}\"\nkey = \"{key}\"\nclient_ca = \"{ca}\"");
        config.set("admin.write", "client_cert").with("admin.tls", &tls)
    });
    let server = format!("https://{}", site.admin);
    let with = |words: &[&str], authority: Option<&Authority>| {
        let own = authority.map(|authority| authority.issue("operator"));
        let mut words = words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        words.extend(["--server".to_owned(), server.clone(), "--ca".to_owned(), ours.file.display().to_string()]);
        if let Some(own) = own {
            words.extend(["--cert".to_owned(), own.cert.display().to_string()]);
            words.extend(["--key".to_owned(), own.key.display().to_string()]);
        }
        says(&words.iter().map(String::as_str).collect::<Vec<_>>())
    };
    assert_eq!(with(&["status"], None).0, Some(0));
    let access = |own: &[&Path]| {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--show-error", "--cacert"]).arg(&ours.file).args(own);
        let output = curl.arg(format!("{server}/v1/access")).output().unwrap();
        serde_json::from_slice::<Value>(&output.stdout).unwrap()["write"].clone()
    };
    let own = ours.issue("operator");
    assert_eq!(access(&[]), "none");
    assert_eq!(access(&["--cert".as_ref(), &own.cert, "--key".as_ref(), &own.key]), "allowed");
    let (code, said) = with(&["pause"], None);
    assert!(code == Some(1) && said.contains("client certificate"), "{said}");
    assert_eq!(with(&["pause"], Some(&others)).0, Some(3), "a certificate of others");
    assert_eq!(site.intentions(), [""; 0]);
    let (code, said) = with(&["pause"], Some(&ours));
    assert!(code == Some(0) && said.contains("paused until"), "{said}");
}
