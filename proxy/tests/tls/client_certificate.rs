//! What a pod is told of a client's certificate, and that no client tells it so itself.

use std::collections::HashMap;

use http::{HeaderMap, Request, Response};
use hyper::body::Incoming;
use segue_proxy::settings::UpstreamProtocol;
use segue_proxy::tls::ServerTls;
use segue_tests::certificates::{DnType, Issued};

use super::{Authorities, curl, files, fixture, run, text};
use crate::support::client::{Body, full};
use crate::support::pod::{Pod, Speaks};
use crate::support::{BOTH_VERSIONS, Fixture, P0};

const NAME: &str = "x-forwarded-client-cert";

/// Answers with each line of the header.
async fn told(request: Request<Incoming>) -> Response<Body> {
    let lines = |headers: &HeaderMap| -> Vec<String> {
        headers.get_all(NAME).iter().map(|value| format!("[{}]", value.to_str().unwrap())).collect()
    };
    let head = lines(request.headers());
    let disguised = request.headers().keys().filter(|name| name.as_str().contains('_')).count();
    let trailers = http_body_util::BodyExt::collect(request.into_body()).await.unwrap();
    let trailers = trailers.trailers().map(lines).unwrap_or_default();
    Response::new(full(format!("{} {} {disguised}", head.concat(), trailers.concat())))
}

/// Returns what a pod is told of a client that curl plays, by each version of HTTP on both sides.
async fn told_of(
    authorities: &Authorities,
    tls: &ServerTls,
    trusts: bool,
    client: Option<&Issued>,
    more: &[&str],
) -> String {
    let mut answers = HashMap::new();
    for (speaks, protocol) in BOTH_VERSIONS {
        let fixture = started(tls, trusts, protocol);
        let pod = Pod::start(speaks, told).await;
        fixture.route(P0, pod.address, 1);
        for version in ["--http1.1", "--http2"] {
            let mut arguments = vec![version];
            if let Some(client) = client {
                arguments.extend(["--cert", client.cert.to_str().unwrap(), "--key", client.key.to_str().unwrap()]);
            }
            let output = run(curl(&authorities.ours, &[&arguments, more].concat(), fixture.address)).await;
            let answer = text(&output).lines().next().unwrap_or_default().to_owned();
            assert!(text(&output).contains("\n200 "), "{}", text(&output));
            answers.entry(answer).or_insert_with(Vec::new).push((protocol, version));
        }
    }
    assert_eq!(answers.len(), 1, "{answers:#?}");
    answers.into_keys().next().unwrap()
}

fn started(tls: &ServerTls, trusts: bool, protocol: UpstreamProtocol) -> Fixture {
    fixture(Some(tls.clone()), None, |settings| {
        settings.forward.trust_forwarded = trusts;
        settings.forward.upstream.protocol = protocol;
    })
}

/// Returns what OpenSSL says is the digest of a certificate.
async fn digest(client: &Issued) -> String {
    let mut command = tokio::process::Command::new("openssl");
    command.args(["x509", "-noout", "-fingerprint", "-sha256", "-in"]).arg(&client.cert);
    let output = text(&run(command).await);
    output.trim().rsplit('=').next().unwrap().replace(':', "").to_lowercase()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_is_told_whose_certificate_a_client_has_shown() {
    let authorities = Authorities::new();
    let names = ["client.example", "*.clients", "spiffe://site/ns/a", "urn:a;b=c,d"];
    let subject =
        [(DnType::CountryName, "DE"), (DnType::OrganizationName, "A, B; \"C\" \\ D"), (DnType::CommonName, "jörg")];
    let client = authorities.ours.issue_for("client", &names, &subject);
    let own = authorities.ours.issue_for("own", &["localhost", "spiffe://site/router"], &[]);
    // curl connects by address.
    let first = authorities.ours.issue("first");
    let ca = Some(authorities.ours.file.clone());
    let tls = ServerTls::load(files(first, ca.clone(), [])).unwrap();
    let hash = digest(&client).await;
    let subject = r"CN=j\C3\B6rg,O=A\, B\; \22C\22 \5C D,C=DE";
    let element = format!(
        "Hash={hash};Subject=\"{subject}\";URI=spiffe://site/ns/a;URI=\"urn:a;b=c,d\";DNS=client.example;DNS=*.clients"
    );
    let expected = format!("[{element}]  0");
    assert_eq!(told_of(&authorities, &tls, false, Some(&client), &[]).await, expected);
    // Whatever the client says.
    let forged = ["--header", "X-Forwarded-Client-Cert: Hash=00", "--header", "x_forwarded_client_cert: Hash=01"];
    assert_eq!(told_of(&authorities, &tls, false, Some(&client), &forged).await, expected);
    let named = ["--header", "connection: x-forwarded-client-cert, close"];
    let fixture = started(&tls, false, UpstreamProtocol::Http1);
    let pod = Pod::start(Speaks::Http1, told).await;
    fixture.route(P0, pod.address, 1);
    let arguments = ["--http1.1", "--cert", client.cert.to_str().unwrap(), "--key", client.key.to_str().unwrap()];
    let output = run(curl(&authorities.ours, &[&arguments[..], &named].concat(), fixture.address)).await;
    assert!(text(&output).starts_with(&expected), "{}", text(&output));
    // A trusted proxy's own client comes first, and the proxy after it.
    let expected = format!("[Hash=00, {element}]  0");
    assert_eq!(told_of(&authorities, &tls, true, Some(&client), &forged).await, expected);

    // The names by URI in the certificate that the client was shown.
    let tls = ServerTls::load(files(own, ca, [])).unwrap();
    let fixture = started(&tls, false, UpstreamProtocol::Http1);
    fixture.route(P0, pod.address, 1);
    let url = format!("https://localhost:{}/", fixture.address.port());
    let output =
        run(curl(&authorities.ours, &[&arguments[..], &["--noproxy", "*", "--ipv4", &url]].concat(), fixture.address))
            .await;
    assert!(text(&output).contains(&format!("[By=spiffe://site/router;{element}]")), "{}", text(&output));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_without_a_certificate_says_nothing_of_one_unless_a_proxy_is_trusted() {
    let authorities = Authorities::new();
    let tls = authorities.server(None);
    let forged = ["--header", "x-forwarded-client-cert: Hash=00", "--header", "x_forwarded_client_cert: Hash=01"];
    assert_eq!(told_of(&authorities, &tls, false, None, &forged).await, "  0");
    assert_eq!(told_of(&authorities, &tls, true, None, &forged).await, "[Hash=00]  0");
}

/// A client whose second connection resumes the session of the first, with a forged header in trailers.
const RESUMES: &str = "
import socket, ssl, sys
host, port = sys.argv[1].split(':')
context = ssl.create_default_context(cafile=sys.argv[2])
context.load_cert_chain(sys.argv[3], sys.argv[4])
session = None
for _ in range(2):
    stream = context.wrap_socket(socket.create_connection((host, int(port))), server_hostname='localhost', session=session)
    stream.sendall(b'POST / HTTP/1.1\\r\\nhost: h\\r\\nx-partition: 0\\r\\nconnection: close\\r\\ntransfer-encoding: chunked\\r\\n\\r\\n'
                   b'0\\r\\nx-forwarded-client-cert: Hash=00\\r\\n\\r\\n')
    seen = b''
    while True:
        piece = stream.recv(4096)
        if not piece: break
        seen += piece
    session = stream.session
    print(stream.session_reused, seen.split(b'\\r\\n\\r\\n')[1].decode())
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_resumed_session_has_the_certificate_of_the_first_and_trailers_have_none() {
    let authorities = Authorities::new();
    let tls = authorities.server(Some(&authorities.ours));
    let client = authorities.ours.issue("client");
    let fixture = started(&tls, false, UpstreamProtocol::Http1);
    let pod = Pod::start(Speaks::Http1, told).await;
    fixture.route(P0, pod.address, 1);
    let files = [&authorities.ours.file, &client.cert, &client.key].map(|path| path.to_str().unwrap());
    let address = fixture.address.to_string();
    let output = run(super::python(RESUMES, &[&address, files[0], files[1], files[2]])).await;
    let element = format!("[Hash={};Subject=\"CN=client\";DNS=localhost;DNS=client]  0", digest(&client).await);
    assert_eq!(text(&output), format!("False {element}\nTrue {element}\n"));
}
