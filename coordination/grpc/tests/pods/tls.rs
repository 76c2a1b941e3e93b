//! The service by TLS, with certificates for clients.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use segue_grpc::PodsTls;
use segue_grpc::proto::pods_client::PodsClient;
use segue_grpc::proto::{AckRequest, Event, Heartbeat, Hello, LeaveRequest, PollRequest};
use segue_tests::certificates::{Authority, Issued};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use super::client::hello;
use super::site::Site;

struct Certificates {
    ours: Authority,
    server: Issued,
    _folder: TempDir,
}

impl Certificates {
    fn new() -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let folder = TempDir::new().unwrap();
        let ours = Authority::new(folder.path(), "ours");
        Certificates { server: ours.issue("coordinator"), ours, _folder: folder }
    }

    fn roots(&self) -> Arc<RootCertStore> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(&self.ours.file).unwrap()).unwrap();
        Arc::new(roots)
    }

    fn of_server(&self) -> PodsTls {
        let clients = WebPkiClientVerifier::builder(self.roots()).build().unwrap();
        let (chain, key) = read(&self.server);
        let config = ServerConfig::builder().with_client_cert_verifier(clients).with_single_cert(chain, key);
        let mut config = config.unwrap();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let config = Arc::new(config);
        PodsTls::new(move || config.clone(), |_| {})
    }

    /// Connects with a certificate for this name, or with none.
    async fn connect(
        &self,
        address: SocketAddr,
        name: Option<&str>,
    ) -> Result<PodsClient<Channel>, tonic::transport::Error> {
        let config = ClientConfig::builder().with_root_certificates(self.roots());
        let mut config = match name {
            Some(name) => {
                let (chain, key) = read(&self.ours.issue(name));
                config.with_client_auth_cert(chain, key).unwrap()
            }
            None => config.with_no_client_auth(),
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        let connector = TlsConnector::from(Arc::new(config));
        let connect = tower::service_fn(move |_| {
            let connector = connector.clone();
            async move {
                let stream = TcpStream::connect(address).await?;
                let secured = connector.connect(ServerName::try_from("localhost").unwrap(), stream).await?;
                io::Result::Ok(TokioIo::new(secured))
            }
        });
        let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
        endpoint.connect_with_connector(connect).await.map(PodsClient::new)
    }
}

fn read(issued: &Issued) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
    let pem = |path: &Path| std::fs::read(path).unwrap();
    let chain = CertificateDer::pem_slice_iter(&pem(&issued.cert)).collect::<Result<_, _>>().unwrap();
    (chain, PrivateKeyDer::from_pem_slice(&pem(&issued.key)).unwrap())
}

async fn poll(client: &mut PodsClient<Channel>, hello: Hello) -> Result<Event, Status> {
    let heartbeat = Some(Heartbeat { seq: 1, hello: Some(hello), ..Heartbeat::default() });
    client.poll(PollRequest { heartbeat, ..PollRequest::default() }).await.map(tonic::Response::into_inner)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_with_a_certificate_speaks_only_for_the_pod_that_it_names() {
    let certificates = Certificates::new();
    let mut site = Site::start().await;
    let address = site.instance(Some(certificates.of_server())).await;
    let mut a = certificates.connect(address, Some("a")).await.unwrap();
    let mut b = certificates.connect(address, Some("b")).await.unwrap();

    let resume = poll(&mut a, hello(&site.name, "a")).await.unwrap().welcome.unwrap().resume;
    // Even with the token of the other pod.
    let refused = poll(&mut b, Hello { resume: resume.clone(), ..hello(&site.name, "a") }).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused:?}");
    assert!(refused.message().contains("does not name pod a"), "{refused:?}");
    let heartbeat = Heartbeat { seq: 1, hello: Some(hello(&site.name, "a")), ..Heartbeat::default() };
    let refused = b.register(tokio_stream::iter([heartbeat])).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    let refused = b.ack(AckRequest { resume: resume.clone(), acks: Vec::new() }).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    let refused = b.leave(LeaveRequest { resume: resume.clone(), now: true }).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);

    a.ack(AckRequest { resume: resume.clone(), acks: Vec::new() }).await.unwrap();
    a.leave(LeaveRequest { resume, now: true }).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_in_clear_text_or_without_a_certificate_gets_no_response() {
    let certificates = Certificates::new();
    let mut site = Site::start().await;
    let address = site.instance(Some(certificates.of_server())).await;
    // By TLS 1.3 the client learns of the refusal with its first call.
    let called = match certificates.connect(address, None).await {
        Ok(mut client) => poll(&mut client, hello(&site.name, "a")).await.is_ok(),
        Err(_) => false,
    };
    assert!(!called);
    let in_clear = match PodsClient::connect(format!("http://{address}")).await {
        Ok(mut client) => poll(&mut client, hello(&site.name, "a")).await.is_ok(),
        Err(_) => false,
    };
    assert!(!in_clear);
    assert!(site.view().await.pods.is_empty());
    // A client that says nothing at all holds up nobody.
    let _silent = TcpStream::connect(address).await.unwrap();
    let mut a = certificates.connect(address, Some("a")).await.unwrap();
    poll(&mut a, hello(&site.name, "a")).await.unwrap();
}
