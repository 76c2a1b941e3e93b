//! Several certificates of one listener: which of them a client is shown.

use std::fs;

use segue_proxy::tls::{File, RefreshOutcome, ServerTls};
use segue_tests::certificates::Issued;

use super::{Authorities, curl, files, fixture, run, text};
use crate::support::pod::{Pod, Speaks};
use crate::support::{Fixture, P0};

/// Returns the subject of the certificate that a client is shown who asks for this name, or for none.
async fn shown(fixture: &Fixture, name: Option<&str>) -> String {
    let mut command = tokio::process::Command::new("openssl");
    command.args(["s_client", "-connect", &fixture.address.to_string()]).stdin(std::process::Stdio::null());
    match name {
        Some(name) => command.args(["-servername", name]),
        None => command.arg("-noservername"),
    };
    let output = text(&run(command).await);
    let subject = output.lines().find_map(|line| line.strip_prefix("subject="));
    subject.unwrap_or_else(|| panic!("{output}")).trim_start_matches("CN").trim_start_matches([' ', '=']).to_owned()
}

fn issue(authorities: &Authorities, subject: &str, names: &[&str]) -> Issued {
    authorities.ours.issue_for(subject, names, &[(segue_tests::certificates::DnType::CommonName, subject)])
}

#[tokio::test]
async fn a_client_is_shown_the_certificate_of_the_name_that_it_asks_for() {
    let authorities = Authorities::new();
    let others = [
        issue(&authorities, "a", &["a.example", "A.Other"]),
        issue(&authorities, "wild", &["*.example"]),
        issue(&authorities, "b", &["b.a.example"]),
    ];
    let tls = ServerTls::load(files(authorities.ours.issue("first"), None, others)).unwrap();
    let fixture = fixture(Some(tls), None, |_| {});
    for (name, expected) in [
        (Some("a.example"), "a"),
        (Some("A.EXAMPLE"), "a"),
        (Some("a.other"), "a"),
        (Some("b.example"), "wild"),
        // A wildcard stands for one label, and not for none.
        (Some("c.b.example"), "first"),
        (Some("example"), "first"),
        (Some("b.a.example"), "b"),
        (Some("unknown"), "first"),
        (Some("localhost"), "first"),
        (None, "first"),
    ] {
        assert_eq!(shown(&fixture, name).await, expected, "{name:?}");
    }
}

#[tokio::test]
async fn requests_by_each_version_reach_the_name_that_they_are_for() {
    let authorities = Authorities::new();
    // One that is not trusted, so that only the right one lets a request through.
    let first = authorities.other.issue("first");
    let others = [issue(&authorities, "a", &["a.example"]), issue(&authorities, "wild", &["*.wild.example"])];
    let tls = ServerTls::load(files(first, None, others)).unwrap();
    let fixture = fixture(Some(tls), None, |_| {});
    let pod = Pod::start(Speaks::Http1, |request| async { super::tell(request).await.unwrap() }).await;
    fixture.route(P0, pod.address, 1);
    for (version, shown) in [("--http1.1", "200 1.1"), ("--http2", "200 2")] {
        for name in ["a.example", "b.wild.example"] {
            let port = fixture.address.port();
            let (to, url) = (format!("{name}:{port}:127.0.0.1"), format!("https://{name}:{port}/"));
            let mut command = tokio::process::Command::new("curl");
            command.args(["--silent", "--show-error", "--header", "x-partition: 0", "--resolve", &to, version]);
            command.arg("--cacert").arg(&authorities.ours.file).args(["--write-out", " %{http_code} %{http_version}"]);
            let output = run({
                command.arg(url);
                command
            })
            .await;
            assert!(text(&output).ends_with(shown), "{name}: {}", text(&output));
        }
        let output = run(curl(&authorities.ours, &[version], fixture.address)).await;
        assert!(!output.status.success(), "the first one is not trusted: {}", text(&output));
    }
}

#[tokio::test]
async fn the_files_of_every_certificate_are_loaded_when_they_change() {
    let authorities = Authorities::new();
    let other = issue(&authorities, "before", &["a.example"]);
    let tls = ServerTls::load(files(authorities.ours.issue("first"), None, [other.clone()])).unwrap();
    let (fixture, material) = (fixture(Some(tls.clone()), None, |_| {}), tls.material());
    assert_eq!(shown(&fixture, Some("a.example")).await, "before");
    let after = issue(&authorities, "after", &["a.example", "b.example"]);
    fs::copy(&after.cert, &other.cert).unwrap();
    let refused = material.refresh();
    assert!(
        matches!(&refused, RefreshOutcome::Refused(error) if error.file == File::OtherKey && error.path == other.key),
        "{refused:?}"
    );
    assert_eq!(shown(&fixture, Some("a.example")).await, "before");
    fs::copy(&after.key, &other.key).unwrap();
    assert_eq!(material.refresh(), RefreshOutcome::Replaced);
    assert_eq!(shown(&fixture, Some("b.example")).await, "after");
    assert_eq!(shown(&fixture, Some("c.example")).await, "first");
}

#[test]
fn certificates_without_names_of_their_own_are_refused() {
    let authorities = Authorities::new();
    let first = || authorities.ours.issue("first");
    let load = |others: Vec<Issued>| ServerTls::load(files(first(), None, others)).map(drop);
    let (a, again) =
        (issue(&authorities, "a", &["a.example"]), issue(&authorities, "again", &["b.example", "A.example"]));
    let error = load(vec![a.clone(), again.clone()]).unwrap_err();
    let fact = format!("it names \"a.example\", as {} does", a.cert.display());
    assert_eq!((error.file.key(), &error.path, error.fact), ("certificates", &again.cert, fact));
    let error = load(vec![issue(&authorities, "c", &["localhost"])]).unwrap_err();
    assert!(error.fact.starts_with("it names \"localhost\", as ") && error.fact.contains("first.cert.pem"), "{error}");
    let error = load(vec![issue(&authorities, "none", &["spiffe://site/none"])]).unwrap_err();
    assert_eq!(error.fact, "it names no host in its subjectAltName");
    let missing = Issued { cert: "/no/cert.pem".into(), key: a.key };
    let error = load(vec![missing]).unwrap_err();
    assert!(error.to_string().starts_with("certificates: /no/cert.pem: cannot be read: "), "{error}");
}

#[test]
fn each_certificate_tells_how_long_it_is_valid() {
    let authorities = Authorities::new();
    let (other, late) = (issue(&authorities, "a", &["a.example"]), authorities.other.issue_expired("late"));
    let tls = ServerTls::load(files(authorities.ours.issue("first"), None, [other, late.clone()]));
    // Both have the name localhost.
    assert!(tls.is_err());
    let tls = ServerTls::load(files(late.clone(), None, [issue(&authorities, "a", &["a.example"])])).unwrap();
    let validities: Vec<_> = tls.material().validities().into_iter().map(|validity| validity.file).collect();
    assert_eq!(validities, [File::Cert, File::OtherCert]);
    assert_eq!(tls.material().expires_first().unwrap().path, late.cert);
}
