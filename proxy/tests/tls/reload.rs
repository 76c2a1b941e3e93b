//! Certificates that change while a router runs.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use segue_proxy::tls::RefreshOutcome;
use segue_tests::certificates::Authority;

use super::{Authorities, curl, fixture, python, run, server, tell, text};
use crate::support::P0;
use crate::support::pod::{Pod, Speaks};

/// Returns the line of OpenSSL that names the issuer of the certificate that is served now.
async fn issuer(address: &str) -> String {
    let mut command = tokio::process::Command::new("openssl");
    command.args(["s_client", "-connect", address, "-showcerts"]).stdin(std::process::Stdio::null());
    text(&run(command).await).lines().find(|line| line.starts_with("issuer=")).unwrap_or_default().to_owned()
}

fn copy(from: &segue_tests::certificates::Issued, to: &segue_tests::certificates::Issued) {
    fs::copy(&from.cert, &to.cert).unwrap();
    fs::copy(&from.key, &to.key).unwrap();
}

/// A client that keeps its connection and sends a request for each line of its input.
const STAYS: &str = "
import http.client, ssl, sys
host, port = sys.argv[1].split(':')
context = ssl.create_default_context(cafile=sys.argv[2])
client = http.client.HTTPSConnection(host, int(port), context=context)
client.connect()
socket = client.sock
for line in sys.stdin:
    client.request('GET', '/', headers={'x-partition': '0'})
    answer = client.getresponse()
    answer.read()
    assert client.sock is socket, 'it has connected anew'
    print(answer.status, flush=True)
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_certificates_are_taken_over_under_load_without_losing_a_request() {
    use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _};
    let authorities = Authorities::new();
    let pod = Pod::start(Speaks::Http1, |request| async { tell(request).await.unwrap() }).await;
    let served = authorities.ours.issue("served");
    let tls = server(served.clone(), None);
    let fixture = fixture(Some(tls.clone()), None, |_| {});
    fixture.route(P0, pod.address, 1);
    // Clients trust both.
    let both = Authority::new(authorities.path(), "both");
    let trusted =
        [&authorities.ours, &authorities.other].map(|authority| fs::read_to_string(&authority.file).unwrap()).concat();
    fs::write(&both.file, trusted).unwrap();
    let address = fixture.address.to_string();

    let mut stays = python(STAYS, &[&address, both.file.to_str().unwrap()])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let (mut ask, answers) = (stays.stdin.take().unwrap(), stays.stdout.take().unwrap());
    let mut answers = tokio::io::BufReader::new(answers).lines();
    let mut asked = async || {
        ask.write_all(b"go\n").await.unwrap();
        super::soon(answers.next_line()).await.unwrap().unwrap()
    };
    assert_eq!(asked().await, "200");

    let both = Arc::new(both);
    let stop = Arc::new(AtomicBool::new(false));
    let load: Vec<_> = (0..2)
        .map(|client| {
            let (both, stop, to) = (both.clone(), stop.clone(), fixture.address);
            tokio::spawn(async move {
                let version = if client == 0 { "--http1.1" } else { "--http2" };
                let mut done = 0;
                while !stop.load(SeqCst) {
                    // A new connection each time, with two requests.
                    let more = format!("https://{to}/more");
                    let output = run(curl(&both, &[version, &more], to)).await;
                    assert!(output.status.success(), "{}", text(&output));
                    assert_eq!(text(&output).matches("\n200 ").count(), 2, "{}", text(&output));
                    done += 2;
                }
                done
            })
        })
        .collect();
    let fresh = [authorities.other.issue("fresh-0"), authorities.ours.issue("fresh-1")];
    for round in 0..20 {
        copy(&fresh[round % 2], &served);
        assert_eq!(tls.material().refresh(), RefreshOutcome::Replaced);
        assert_eq!(tls.material().refresh(), RefreshOutcome::Same);
        let issuer = issuer(&address).await;
        assert!(issuer.contains(if round % 2 == 0 { "other" } else { "ours" }), "{round}: {issuer}");
    }
    stop.store(true, SeqCst);
    let mut done = 0;
    for client in load {
        done += client.await.unwrap();
    }
    assert!(done > 40, "{done} requests tell little");
    assert_eq!(asked().await, "200", "the connection from before is still there");
}

#[tokio::test]
async fn files_that_are_no_good_are_told_of_once_and_change_nothing() {
    let authorities = Authorities::new();
    let served = authorities.ours.issue("served");
    let tls = server(served.clone(), None);
    let fixture = fixture(Some(tls.clone()), None, |_| {});
    let address = fixture.address.to_string();
    let (good, material) = (authorities.other.issue("good"), tls.material());
    let until = || material.expires_first().map(|first| first.until());
    let before = until();

    let refused = |told: &str| match material.refresh() {
        RefreshOutcome::Refused(error) => {
            assert!(error.to_string().contains(told), "{error}");
            assert_eq!(material.refresh(), RefreshOutcome::Same, "told once: {told}");
            assert_eq!(until(), before);
        }
        other => panic!("{other:?}: {told}"),
    };
    // The certificate comes before its key.
    fs::copy(&good.cert, &served.cert).unwrap();
    refused("it is not the key of the certificate in");
    fs::write(&served.cert, "half a file").unwrap();
    refused("there is no certificate in it; expected a certificate");
    fs::write(&served.cert, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").unwrap();
    refused("cannot be used");
    fs::copy(&good.cert, &served.cert).unwrap();
    fs::write(&served.key, "").unwrap();
    refused("there is no private key in it; expected the private key");
    fs::remove_file(&served.key).unwrap();
    refused("cannot be read: No such file");
    assert!(issuer(&address).await.contains("ours"));

    fs::copy(&good.key, &served.key).unwrap();
    assert_eq!(material.refresh(), RefreshOutcome::Replaced);
    assert!(issuer(&address).await.contains("other"));
    assert!(!format!("{tls:?}").contains("PRIVATE"));
}

#[tokio::test]
async fn clients_of_an_authority_that_is_no_longer_trusted_cannot_resume() {
    let (authorities, pod) =
        (Authorities::new(), Pod::start(Speaks::Http1, |request| async { tell(request).await.unwrap() }).await);
    let trusted = authorities.path().join("clients.pem");
    fs::copy(&authorities.ours.file, &trusted).unwrap();
    let tls = server(authorities.ours.issue("router"), Some(trusted.clone()));
    let fixture = fixture(Some(tls.clone()), None, |_| {});
    fixture.route(P0, pod.address, 1);
    let client = authorities.ours.issue("client");
    let session = authorities.path().join("session");
    let shake = async |how: &str| {
        let mut command = tokio::process::Command::new("openssl");
        command.args(["s_client", "-tls1_2", "-connect", &fixture.address.to_string(), "-cert"]);
        command.arg(&client.cert).arg("-key").arg(&client.key).arg(how).arg(&session);
        text(
            &run({
                command.stdin(std::process::Stdio::null());
                command
            })
            .await,
        )
    };
    assert!(shake("-sess_out").await.contains("New, TLSv1.2"));
    let told = shake("-sess_in").await;
    assert!(told.contains("Reused, TLSv1.2"), "{told}");
    fs::copy(&authorities.other.file, &trusted).unwrap();
    assert_eq!(tls.material().refresh(), RefreshOutcome::Replaced);
    let told = shake("-sess_in").await;
    assert!(!told.contains("Reused") && told.contains("unknown ca"), "{told}");
}
