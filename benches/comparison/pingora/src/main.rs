//! The smallest proxy that Pingora makes: everything to one backend, over connections that are kept.

use async_trait::async_trait;
use pingora_core::apps::HttpServerOptions;
use pingora_core::listeners::TcpSocketOptions;
use pingora_core::server::Server;
use pingora_core::server::configuration::ServerConf;
use pingora_core::upstreams::peer::HttpPeer;
use pingora_proxy::{ProxyHttp, Session};

struct ToBackend(String);

#[async_trait]
impl ProxyHttp for ToBackend {
    type CTX = ();

    fn new_ctx(&self) {}

    async fn upstream_peer(&self, _: &mut Session, _: &mut ()) -> pingora_core::Result<Box<HttpPeer>> {
        Ok(Box::new(HttpPeer::new(self.0.as_str(), false, String::new())))
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let (listen, backend) = (arguments.next(), arguments.next());
    let (Some(listen), Some(backend)) = (listen, backend) else {
        eprintln!("usage: peer-pingora LISTEN BACKEND");
        std::process::exit(2);
    };
    let configuration = ServerConf { threads: 2, upstream_keepalive_pool_size: 4096, ..ServerConf::default() };
    let mut server = Server::new_with_opt_and_conf(None, configuration);
    server.bootstrap();
    let mut service = pingora_proxy::http_proxy_service(&server.configuration, ToBackend(backend));
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
