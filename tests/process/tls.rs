//! TLS on every connection: etcd, the router, the sidecar and the service demand client certificates. The service is Python,
//! and the client is curl.
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use segue_tests::certificates::{Authority, Issued};
use segue_tests::cluster::TestCluster;
use segue_tests::config::Config;
use segue_tests::etcd::Etcd;
use segue_tests::http::{get, is_ready, metric};
use segue_tests::ports::free_address;
use segue_tests::process::{Process, until};
use tempfile::TempDir;

use crate::site::SEGUE;

const SERVICE: &str = "
import http.server, ssl, sys
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def do_GET(self):
        body = ' '.join([self.headers['segue-epoch'], self.headers['x-forwarded-proto']]).encode()
        self.send_response(200)
        self.send_header('content-length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_): pass
address, cert, key, authority = sys.argv[1:]
host, port = address.split(':')
server = http.server.ThreadingHTTPServer((host, int(port)), Handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(cert, key)
context.load_verify_locations(authority)
context.verify_mode = ssl.CERT_REQUIRED
server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
";

/// A cluster whose etcd, routers and pods want certificates of one authority.
struct Secured {
    cluster: TestCluster,
    ours: Authority,
    own: Issued,
}

impl Secured {
    fn start() -> Self {
        let folder = TempDir::new().unwrap();
        let ours = Authority::new(folder.path(), "ours");
        let own = ours.issue("segue");
        let etcd = Etcd::start_with_tls(&ours.issue("etcd"), &ours.file);
        Secured { cluster: TestCluster::new(SEGUE, folder, etcd), ours, own }
    }

    fn path(&self) -> &Path {
        self.cluster.path()
    }

    /// Returns the keys of a `tls` section for connections that are made.
    fn client(&self) -> String {
        let (ca, cert, key) = (self.ours.file.display(), self.own.cert.display(), self.own.key.display());
        format!("ca = \"{ca}\"\ncert = \"{cert}\"\nkey = \"{key}\"")
    }

    /// Returns the keys of a `tls` section for connections that are accepted.
    fn server(&self, own: &Issued) -> String {
        let (cert, key, ca) = (own.cert.display(), own.key.display(), self.ours.file.display());
        format!("cert = \"{cert}\"\nkey = \"{key}\"\nclient_ca = \"{ca}\"")
    }

    fn config(&self) -> Config {
        self.cluster.config().with("store.tls", &self.client())
    }

    /// Starts `segue run` with a file that `segue check` finds nothing wrong with.
    fn run(&self, name: &str, config: &Config) -> Process {
        let file = config.write(self.path(), name);
        let checked = segue(&["check", "--config", file.to_str().unwrap()]);
        assert!(checked.status.success(), "{}", text(&checked));
        self.cluster.run(name, config)
    }

    fn curl(&self, address: SocketAddr, more: &[&str]) -> Output {
        let mut command = Command::new("curl");
        command.args(["--silent", "--show-error", "--max-time", "30", "--header", "x-partition: 0", "--cacert"]);
        command.arg(&self.ours.file).args(["--write-out", " %{http_code} %{http_version}"]).args(more);
        command.arg(format!("https://{address}/")).stdin(Stdio::null()).output().unwrap()
    }

    fn ask(&self, address: SocketAddr, more: &[&str]) -> String {
        let (cert, key) = (self.own.cert.to_str().unwrap(), self.own.key.to_str().unwrap());
        text(&self.curl(address, &[&["--cert", cert, "--key", key], more].concat()))
    }
}

fn segue(arguments: &[&str]) -> Output {
    crate::cli::segue().args(arguments).output().unwrap()
}

fn text(output: &Output) -> String {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    format!("{out}{err}")
}

#[test]
fn a_cluster_behind_tls_serves_moves_and_takes_new_certificates_over() {
    let secured = Secured::start();
    let (listen, admin) = (free_address(), free_address());
    let served = secured.ours.issue("router");
    let config = secured.config().router("r-0", listen).coordinator("c-0", 1).admin(admin).quick();
    let config = config.with("router.tls", &secured.server(&served)).with("router.upstream.tls", &secured.client());
    let control = secured.run("control", &config);
    let pod = |name: &str| {
        let (listen, upstream) = (free_address(), free_address());
        let own = secured.ours.issue("service");
        let mut command = Command::new("python3");
        command.args(["-c", SERVICE, &upstream.to_string()]).args([&own.cert, &own.key, &secured.ours.file]);
        let service = Process::start("service", secured.path(), &mut command);
        let tls = secured.server(&secured.ours.issue(name));
        let config = secured.config().pod(name, listen, upstream).with("pod.tls", &tls).quick();
        let config = config.with("pod.upstream_tls", &secured.client());
        (service, secured.run(name, &config), listen)
    };
    let (_service_a, a, a_listen) = pod("a");
    let epoch = || secured.ask(listen, &["--http1.1"]).strip_suffix(" https 200 1.1")?.parse::<u64>().ok();
    until("answer of a", || epoch().is_some());
    let first = epoch();

    // Router and sidecar refuse clients without a certificate, and the sidecar speaks TLS too.
    for address in [listen, a_listen] {
        let stranger = secured.curl(address, &[]);
        assert!(!stranger.status.success() && text(&stranger).contains("certificate required"), "{}", text(&stranger));
    }
    assert_eq!(secured.ask(a_listen, &["--http1.1"]).rsplit(' ').nth(1), Some("421"));

    let etcd = secured.cluster.etcd().endpoint();
    let files = [&secured.ours.file, &secured.own.cert, &secured.own.key].map(|path| path.to_str().unwrap());
    let status = segue(&["status", "--etcd", &etcd, "--ca", files[0], "--cert", files[1], "--key", files[2]]);
    assert!(status.status.success() && text(&status).contains("c-0"), "{}", text(&status));
    let config = secured.path().join("control.toml");
    let status = segue(&["status", "--json", "--config", config.to_str().unwrap()]);
    assert!(status.status.success() && text(&status).contains("\"r-0\""), "{}", text(&status));
    let half = segue(&["status", "--etcd", &etcd]);
    assert_eq!(half.status.code(), Some(2));
    assert!(text(&half).contains("expected https:// together with --ca"), "{}", text(&half));

    // A bad file is named and changes nothing; a good one is served at once after SIGHUP.
    let (_, metrics) = get(admin, "/metrics").unwrap();
    assert!(metrics.contains("segue_certificate_not_after_seconds{section=\"router.tls\"} 1"), "{metrics}");
    let other = Authority::new(secured.path(), "other");
    let fresh = other.issue("fresh");
    std::fs::copy(&fresh.cert, &served.cert).unwrap();
    control.signal("HUP");
    let expected = format!("{}: it is not the key of the certificate in", served.key.display());
    until("line about the bad file", || control.output().contains(&expected));
    assert!(first.is_some() && epoch() == first, "{first:?}");
    std::fs::copy(&fresh.key, &served.key).unwrap();
    control.signal("HUP");
    until("the new certificate", || secured.curl(listen, &[]).status.code() == Some(60));
    // And of itself, without a signal.
    let again = secured.ours.issue("again");
    std::fs::copy(&again.key, &served.key).unwrap();
    std::fs::copy(&again.cert, &served.cert).unwrap();
    until("the certificate after that", || epoch() == first);

    let (_service_b, _b, _) = pod("b");
    let (status, output) = a.terminate();
    assert!(status.success(), "{output}");
    until("answer of b", || epoch() > first);

    let (status, output) = control.terminate();
    assert!(status.success(), "{output}");
    let error = "\u{1b}[31mERROR";
    assert_eq!(output.matches(" ERROR ").count() + output.matches(error).count(), 1, "the bad file alone:\n{output}");
}

#[test]
fn check_names_every_file_that_is_no_good_where_the_configuration_names_it() {
    let folder = TempDir::new().unwrap();
    let (ours, late) = (Authority::new(folder.path(), "ours"), Authority::new(folder.path(), "late"));
    let (good, other) = (ours.issue("good"), ours.issue("other"));
    let expired = late.issue_expired("expired");
    let check = |router: &str, upstream: &str| {
        let path = folder.path().join("segue.toml");
        std::fs::write(&path, format!("[router]\nname = \"r\"\n{router}\n[router.upstream]\n{upstream}\n")).unwrap();
        let output = segue(&["check", "--config", path.to_str().unwrap()]);
        let told = text(&output).replace(folder.path().to_str().unwrap(), "");
        (output.status.code(), told, path)
    };
    let tls =
        |cert: &Path, key: &Path| format!("tls = {{ cert = \"{}\", key = \"{}\" }}", cert.display(), key.display());

    let (code, told, path) = check(&tls(&good.cert, &other.key), "tls = { ca = \"/no/such/ca.pem\" }");
    assert_eq!(code, Some(2));
    let lines: Vec<&str> = told.lines().collect();
    assert_eq!(lines.len(), 2, "{told}");
    let place = format!("/segue.toml:3:{}: router.tls.key: ", 26 + good.cert.display().to_string().len());
    assert!(lines[0].starts_with(&place) && lines[0].contains("not the key of the certificate in"), "{told}");
    assert!(
        lines[1].starts_with("/segue.toml:5:14: router.upstream.tls.ca: /no/such/ca.pem: cannot be read"),
        "{told}"
    );
    assert!(lines[1].ends_with("expected certificates of authorities, PEM"), "{told}");
    let run = segue(&["run", "--config", path.to_str().unwrap()]);
    assert_eq!(run.status.code(), Some(2), "run refuses the same: {}", text(&run));

    let (code, told, _) = check(&tls(&good.cert, &good.key), &format!("tls = {{ ca = \"{}\" }}", good.key.display()));
    assert_eq!(code, Some(2));
    assert!(told.contains("router.upstream.tls.ca: /good.key.pem: there is no certificate in it"), "{told}");
    let (code, told, _) = check(&tls(&good.cert, &good.key), "");
    assert_eq!(code, Some(0), "{told}");
    assert!(told.contains("router.tls.cert: its certificate is valid for less than 14 days, until 20"), "{told}");
    // The same of certificates for other names, which have one place in the file.
    let with = |cert: &Path, key: &Path| {
        let more = format!(", certificates = [{{ cert = \"{}\", key = \"{}\" }}] }}", cert.display(), key.display());
        tls(&good.cert, &good.key).replace(" }", &more)
    };
    let named = |name: &str| ours.issue_for(name, &["a.example"], &[]);
    let (a, b, late) = (named("a"), named("b"), late.issue_expired("late"));
    for (router, fact) in [
        (
            with(&a.cert, &b.key),
            "/b.key.pem: it is not the key of the certificate in /a.cert.pem; expected the private key",
        ),
        (with(Path::new("/no/a.pem"), &a.key), "/no/a.pem: cannot be read: "),
        (
            with(&other.cert, &other.key),
            "/other.cert.pem: it names \"localhost\", as /good.cert.pem does; expected names",
        ),
        (with(&late.cert, &late.key).replace("good", "a"), "/late.cert.pem was valid until 20"),
    ] {
        let (code, told, _) = check(&router, "");
        let place = told.lines().find(|line| line.contains("router.tls.certificates: ")).unwrap_or_default();
        assert!(code == Some(2) && place.contains(fact), "{told}");
    }
    let (code, told, _) = check(&with(&a.cert, &a.key), "");
    assert!(code == Some(0) && told.contains("certificates: /a.cert.pem is valid for less than 14 days"), "{told}");
    // It may be renewed any moment, so `run` accepts it; `check` reports it.
    let (code, told, _) = check(&tls(&expired.cert, &expired.key), "");
    assert_eq!(code, Some(2));
    assert!(told.contains(":3:16: router.tls.cert: its certificate was valid until 20"), "{told}");
}

#[test]
fn a_load_over_https_wants_to_know_whom_to_trust() {
    let output = segue(&["bench", "https://127.0.0.1:1", "--duration", "10ms"]);
    assert!(!output.status.success() && text(&output).contains("needs --ca"), "{}", text(&output));
    let output = segue(&["bench", "https://127.0.0.1:1", "--ca", "/no/ca.pem", "--duration", "10ms"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output).contains("--ca: /no/ca.pem: cannot be read"), "{}", text(&output));
}

#[test]
fn handshakes_that_fail_are_counted_and_told_once_and_a_look_at_the_port_is_none() {
    let cluster = TestCluster::start(SEGUE);
    let own = Authority::new(cluster.path(), "ours").issue("router");
    let (router, admin) = (free_address(), free_address());
    let tls = format!("cert = {:?}\nkey = {:?}", own.cert, own.key);
    let config =
        cluster.config().coordinator("c-0", 2).router("r-0", router).admin(admin).with("router.tls", &tls).quick();
    let mut process = cluster.run("segue", &config);
    process.until("/ready", || is_ready(admin));
    let failed = || metric(&get(admin, "/metrics")?.1, "segue_tls_handshakes_failed_total");
    assert_eq!(failed(), Some(0.0));
    // Balancers look in this way whether a port is open.
    drop(TcpStream::connect(router).unwrap());
    for _ in 0..3 {
        let mut client = TcpStream::connect(router).unwrap();
        client.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        // The router answers with an alert.
        client.read_to_end(&mut Vec::new()).unwrap();
    }
    process.until("the failed handshakes", || failed() == Some(3.0));
    let log = cluster.output("segue");
    let lines = log.lines().filter(|line| line.contains("WARN") && line.contains("TLS handshakes of peers fail"));
    assert_eq!(lines.count(), 1, "{log}");
}
