//! The TLS files of a section.
//!
//! For: checking that settings which belong together are given together, and that URLs and files agree on whether TLS
//! is used. Not for: the contents of the files, which are not opened here.
//!
//! # Invariants
//!
//! * A TLS section turns TLS on or is refused: an incomplete one never leaves traffic in clear text.

use std::net::IpAddr;

use segue_proxy::tls::{ClientFiles, IdentityFiles, ServerFiles};

use super::is_host_name;
use crate::error::{Wrong, nearest, quoted};
use crate::raw::RawValue;
use crate::reader::{ConfigReader, show, text, toml};

/// The keys of a section for a listener.
pub(super) struct ServerKeys {
    pub(super) section: &'static str,
    pub(super) cert: &'static str,
    pub(super) key: &'static str,
    pub(super) client_ca: &'static str,
    /// The list of further certificates, where clients may ask for one by its name.
    pub(super) certificates: Option<&'static str>,
}

/// The keys of a section for outgoing connections.
pub(super) struct ClientKeys {
    pub(super) section: &'static str,
    pub(super) ca: &'static str,
    pub(super) cert: &'static str,
    pub(super) key: &'static str,
    pub(super) server_name: Option<&'static str>,
}

pub(super) const STORE: ClientKeys = ClientKeys {
    section: "store.tls",
    ca: "store.tls.ca",
    cert: "store.tls.cert",
    key: "store.tls.key",
    server_name: None,
};

/// Reads the certificates of a listener, and what it requires of its clients.
pub(super) fn server(r: &mut ConfigReader<'_>, keys: &ServerKeys) -> Option<ServerFiles> {
    let (cert, key, client_ca) = (r.text(keys.cert), r.text(keys.key), r.text(keys.client_ca));
    let others = keys.certificates.and_then(|key| r.read(key, certificates)).unwrap_or_default();
    let place = r.anything_in(keys.section)?;
    for missing in [keys.cert, keys.key].into_iter().filter(|key| !r.is_given(key)).collect::<Vec<_>>() {
        let remedy = "expected the files cert and key, and client_ca if clients must have certificates";
        r.report(Some(place.clone()), keys.section, Wrong::new(format!("given without {missing}"), remedy));
    }
    let client_ca = client_ca.map(Into::into);
    Some(ServerFiles { cert: cert?.into(), key: key?.into(), client_ca, client_cert_is_optional: false, others })
}

/// Returns the files of a list of certificates. A variable contains TOML.
fn certificates(value: &RawValue) -> Result<Vec<IdentityFiles>, Wrong> {
    let parsed = toml(value);
    let RawValue::List(items) = parsed.as_ref().unwrap_or(value) else {
        return Err(Wrong::new(format!("{} is not a list of tables", show(value)), EXPECTED_LIST));
    };
    items.iter().map(certificate).collect()
}

fn certificate(item: &RawValue) -> Result<IdentityFiles, Wrong> {
    const KEYS: [&str; 2] = ["cert", "key"];
    let RawValue::Table(table) = item else {
        return Err(Wrong::new(format!("{} is not a table", show(item)), EXPECTED_LIST));
    };
    if let Some(unknown) = table.keys().find(|key| !KEYS.contains(&key.as_str())) {
        let near = nearest(unknown, KEYS).map(str::to_owned);
        return Err(Wrong::new(format!("unknown key {}", quoted(unknown)), EXPECTED_LIST).did_you_mean(near));
    }
    let [cert, key] = KEYS.map(|key| match table.get(key).map(|value| text(value, EXPECTED_LIST)) {
        None => Err(Wrong::new(format!("a table without {key}"), EXPECTED_LIST)),
        Some(Ok("")) => Err(Wrong::new(format!("{key} is empty"), EXPECTED_LIST)),
        Some(given) => given.map(Into::into),
    });
    Ok(IdentityFiles { cert: cert?, key: key? })
}

/// Reads the authorities that a client trusts, and its own certificate.
pub(super) fn client(r: &mut ConfigReader<'_>, keys: &ClientKeys) -> Option<ClientFiles> {
    let (ca, cert, key) = (r.text(keys.ca), r.text(keys.cert), r.text(keys.key));
    let server_name = keys.server_name.and_then(|name| r.read(name, |value| server_name(text(value, EXPECTED_NAME)?)));
    let place = r.anything_in(keys.section)?;
    if !r.is_given(keys.ca) {
        let fact = format!("given without {}", keys.ca);
        r.report(Some(place), keys.section, Wrong::new(fact, EXPECTED_CA));
    }
    for (given, missing) in [(keys.cert, keys.key), (keys.key, keys.cert)] {
        if r.is_given(given) && !r.is_given(missing) {
            r.report_key(given, Wrong::new(format!("given without {missing}"), "expected both or neither"));
        }
    }
    let identity = cert.zip(key).map(|(cert, key)| IdentityFiles { cert: cert.into(), key: key.into() });
    Some(ClientFiles { ca: ca?.into(), identity, server_name })
}

/// Checks that the endpoints of etcd use TLS all or none.
pub(super) fn endpoints_agree(r: &mut ConfigReader<'_>, endpoints: &[String]) {
    let secure = endpoints.iter().filter(|endpoint| endpoint.starts_with("https://")).count();
    match r.anything_in(STORE.section) {
        Some(_) if secure < endpoints.len() && r.is_given("store.endpoints") => {
            let plain = endpoints.iter().find(|endpoint| !endpoint.starts_with("https://")).map(|plain| quoted(plain));
            let near = plain.as_ref().map(|plain| plain.replacen("http://", "https://", 1));
            let fact = format!("{} is not secured, although store.tls is given", plain.unwrap_or_default());
            r.report_value("store.endpoints", Wrong::new(fact, "expected https:// URLs").did_you_mean(near));
        }
        Some(place) if secure < endpoints.len() => {
            let wrong = Wrong::new("given, and the endpoint is the default http://127.0.0.1:2379", EXPECTED_HTTPS);
            r.report(Some(place), STORE.section, wrong);
        }
        None if secure > 0 => {
            let fact = "an https:// URL, and nothing says which certificates to trust";
            r.report_value("store.endpoints", Wrong::new(fact, format!("{EXPECTED_CA}, in store.tls")));
        }
        _ => {}
    }
}

const EXPECTED_LIST: &str =
    "expected a list of certificates, such as [{ cert = \"/etc/segue/b.pem\", key = \"/etc/segue/b.key\" }]";
const EXPECTED_HTTPS: &str = "expected store.endpoints with https:// URLs";
const EXPECTED_CA: &str =
    "expected the file ca with the authorities to trust (those of the system: /etc/ssl/certs/ca-certificates.crt)";
const EXPECTED_NAME: &str = "expected the name or IP address that certificates are made out to, such as \"pods\"";

fn server_name(text: &str) -> Result<String, Wrong> {
    let is_name = text.parse::<IpAddr>().is_ok() || is_host_name(text);
    is_name.then(|| text.to_owned()).ok_or_else(|| {
        let near = text.rsplit_once(':').map(|(host, _)| host.trim_start_matches("https://")).map(quoted);
        Wrong::new(format!("{} is not the name of a server", quoted(text)), EXPECTED_NAME).did_you_mean(near)
    })
}
