//! The smallest proxy that Pingora makes: a header names the backend, over connections that are kept.

use async_trait::async_trait;
use pingora_core::apps::HttpServerOptions;
use pingora_core::listeners::TcpSocketOptions;
use pingora_core::server::Server;
use pingora_core::server::configuration::ServerConf;
use pingora_core::upstreams::peer::HttpPeer;
use pingora_core::{Error, ErrorType};
use pingora_proxy::{ProxyHttp, Session};

/// The backends by the values of `x-partition` that lead to them.
struct ByHeader(Vec<(String, String)>);

#[async_trait]
impl ProxyHttp for ByHeader {
    type CTX = ();

    fn new_ctx(&self) {}

    async fn upstream_peer(&self, session: &mut Session, _: &mut ()) -> pingora_core::Result<Box<HttpPeer>> {
        let wanted = session.req_header().headers.get("x-partition").map(|value| value.as_bytes());
        let found = self.0.iter().find(|(value, _)| Some(value.as_bytes()) == wanted);
        let (_, backend) = found.ok_or_else(|| Error::explain(ErrorType::HTTPStatus(404), "no such partition"))?;
        Ok(Box::new(HttpPeer::new(backend.as_str(), false, String::new())))
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let listen = arguments.next();
    let backends: Option<Vec<_>> = arguments
        .map(|pair| pair.split_once('=').map(|(value, backend)| (value.to_owned(), backend.to_owned())))
        .collect();
    let (Some(listen), Some(backends)) = (listen, backends) else {
        eprintln!("usage: peer-pingora LISTEN PARTITION=BACKEND...");
        std::process::exit(2);
    };
    let configuration = ServerConf { threads: 1, upstream_keepalive_pool_size: 4096, ..ServerConf::default() };
    let mut server = Server::new_with_opt_and_conf(None, configuration);
    server.bootstrap();
    let mut service = pingora_proxy::http_proxy_service(&server.configuration, ByHeader(backends));
    if let Some(logic) = service.app_logic_mut() {
        let mut options = HttpServerOptions::default();
        options.h2c = true;
        logic.server_options = Some(options);
    }
    let mut socket = TcpSocketOptions::default();
    socket.so_reuseport = Some(true);
    service.add_tcp_with_settings(&listen, socket);
    server.add_service(service);
    server.run_forever();
}
