//! The section `[admin]`.

use segue_proxy::tls::{ClientFiles, ServerFiles};

use super::router::socket_path;
use super::{is_host_name, local, reachable, tls};
use crate::error::{Wrong, quoted};
use crate::raw::RawValue;
use crate::reader::{self, ConfigReader};
use crate::validated::{Admin, AdminWrite};

pub(super) const KEYS: &[&str] = &[
    "admin.listen",
    "admin.advertise",
    HOSTS,
    SOCKET,
    WRITE,
    TOKEN_FILE,
    "admin.tls.cert",
    "admin.tls.key",
    CLIENT_CA,
    PEERS_CA,
];

const HOSTS: &str = "admin.hosts";
const SOCKET: &str = "admin.socket";
const WRITE: &str = "admin.write";
const TOKEN_FILE: &str = "admin.token_file";
const CLIENT_CA: &str = "admin.tls.client_ca";
const PEERS: &str = "admin.peers_tls";
const PEERS_CA: &str = "admin.peers_tls.ca";
const TLS: tls::ServerKeys = tls::ServerKeys {
    section: "admin.tls",
    cert: "admin.tls.cert",
    key: "admin.tls.key",
    client_ca: CLIENT_CA,
    certificates: None,
};

#[derive(Clone, Copy, PartialEq, Eq)]
enum WriteAccess {
    None,
    Token,
    ClientCert,
}

pub(super) fn read(r: &mut ConfigReader<'_>) -> Admin {
    let listen = r.listen("admin.listen", local(9090));
    let advertise = r.read("admin.advertise", |value| reachable(value, "others"));
    let mut hosts = r.read(HOSTS, host_names).unwrap_or_default();
    hosts.extend(advertise.as_ref().and_then(|address| address.rsplit_once(':')).map(|(host, _)| host.to_owned()));
    hosts.push(r.hostname().to_owned());
    let is_an_address = !listen.ip().is_unspecified() && listen.port() != 0;
    let choices =
        [("none", WriteAccess::None), ("token", WriteAccess::Token), ("client_cert", WriteAccess::ClientCert)];
    let write = r.choice(WRITE, &choices, WriteAccess::None);
    let token_file = r.text(TOKEN_FILE);
    let tls = tls::server(r, &TLS);
    // Each of the two needs its counterpart, which has no effect without it.
    for (choice, name, needed) in
        [(WriteAccess::Token, "token", TOKEN_FILE), (WriteAccess::ClientCert, "client_cert", CLIENT_CA)]
    {
        if write == choice && !r.is_given(needed) {
            let fact = format!("\"{name}\" without {needed}");
            r.report_value(WRITE, Wrong::new(fact, "expected both"));
        }
        if write != choice && r.is_given(needed) && !r.is_refused(WRITE) {
            let fact = format!("given without {WRITE} = \"{name}\"");
            r.report_key(needed, Wrong::new(fact, "expected both or neither"));
        }
    }
    let peers_tls = r.text(PEERS_CA).map(|ca| ClientFiles { ca: ca.into(), identity: None, server_name: None });
    if let Some(place) = r.anything_in(PEERS).filter(|_| !r.is_given(PEERS_CA)) {
        r.report(
            Some(place),
            PEERS,
            Wrong::new(format!("given without {PEERS_CA}"), "expected the authorities to trust"),
        );
    }
    Admin {
        listen,
        advertise: advertise.or_else(|| is_an_address.then(|| listen.to_string())),
        hosts,
        socket: socket_path(r, SOCKET),
        write: match (write, token_file) {
            (WriteAccess::Token, Some(file)) => AdminWrite::Token(file.into()),
            (WriteAccess::ClientCert, _) => AdminWrite::ClientCert,
            _ => AdminWrite::None,
        },
        peers_tls,
        tls: tls.map(|tls| ServerFiles { client_cert_is_optional: true, ..tls }),
    }
}

fn host_names(value: &RawValue) -> Result<Vec<String>, Wrong> {
    const EXPECTED: &str = "expected a list of names without ports, such as [\"segue.example\"]";
    let names = reader::list(value, EXPECTED)?;
    let wrong = |name: &String| Wrong::new(format!("{} is not the name of a host", quoted(name)), EXPECTED);
    names.iter().find(|name| !is_host_name(name)).map_or(Ok(()), |name| Err(wrong(name)))?;
    Ok(names)
}
