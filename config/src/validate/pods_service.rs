//! The listener of the pods' gRPC service, and what a pod presents there.

use std::net::SocketAddr;
use std::path::PathBuf;

use segue_proxy::tls::ServerFiles;

use super::tls;
use crate::error::Wrong;
use crate::reader::ConfigReader;

const LISTEN: &str = "coordinator.listen";
pub(super) const TOKEN_FILE: &str = "coordinator.token_file";
const TLS: tls::ServerKeys = tls::ServerKeys {
    section: "coordinator.tls",
    cert: "coordinator.tls.cert",
    key: "coordinator.tls.key",
    client_ca: "coordinator.tls.client_ca",
    certificates: None,
};

pub(super) struct PodsService {
    pub(super) listen: Option<SocketAddr>,
    pub(super) token_file: Option<PathBuf>,
    pub(super) tls: Option<ServerFiles>,
}

pub(super) fn read(r: &mut ConfigReader<'_>) -> PodsService {
    let (listen, tls, token_file) = (r.listen_if_given(LISTEN), tls::server(r, &TLS), r.text(TOKEN_FILE));
    let needed = [
        (tls.is_some(), TLS.cert, "expected both, because TLS is for that listener"),
        (token_file.is_some(), TOKEN_FILE, "expected both, because pods present the token there"),
    ];
    for (is_there, key, expected) in needed {
        if is_there && !r.is_given(LISTEN) {
            r.report_key(key, Wrong::new("given without coordinator.listen", expected));
        }
    }
    PodsService { listen, token_file: token_file.map(Into::into), tls }
}
