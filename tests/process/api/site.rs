//! A coordinator with an admin endpoint and writers, and what a test asks of them: by HTTP, by a command, by the store.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use segue_protocol::keys::Keyspace;
use segue_tests::config::Config;
use segue_tests::http::{Request, Response, get, is_ready};
use segue_tests::ports::free_address;
use serde_json::Value;

pub(crate) use crate::site::says;
use crate::site::{keys_below, put_by_hand};
use crate::writers::{PARTITIONS, WriterCluster};

pub(crate) const TOKEN: &str = "correct-horse-battery-staple";

/// A cluster with one coordinator that has an admin endpoint, and writers.
pub(crate) struct Site {
    pub(crate) cluster: WriterCluster,
    pub(crate) admin: SocketAddr,
}

impl Site {
    /// Starts a coordinator whose endpoint admits those with the token.
    pub(crate) fn with_token(pods: &[&str]) -> Self {
        Self::with_token_and(pods, |config| config)
    }

    /// Starts the same with more in the coordinator's file.
    pub(crate) fn with_token_and(pods: &[&str], with: impl FnOnce(Config) -> Config) -> Self {
        Self::start(pods, |site, config| {
            let file = site.path().join("token");
            std::fs::write(&file, format!("{TOKEN}\n")).unwrap();
            with(config.set("admin.write", "token").set("admin.token_file", file.to_str().unwrap()))
        })
    }

    pub(crate) fn start(pods: &[&str], with: impl FnOnce(&WriterCluster, Config) -> Config) -> Self {
        let (mut cluster, admin) = (WriterCluster::start(), free_address());
        let config = Config::new([cluster.etcd().endpoint()]).coordinator("c-0", PARTITIONS).admin(admin).quick();
        let config = with(&cluster, config);
        let mut process = cluster.run("c-0", &config);
        process.until("the admin endpoint", || is_ready(admin) || TcpProbe(admin).answers());
        cluster.processes.insert("c-0".to_owned(), process);
        for pod in pods {
            cluster.writer(pod);
        }
        cluster.settles(pods);
        Site { cluster, admin }
    }

    /// Sends a request with the token.
    #[track_caller]
    pub(crate) fn send(&self, method: &str, path: &str, body: &str) -> Response {
        let request = Request::json(method, path, body).header("authorization", format!("Bearer {TOKEN}"));
        let response = request.send(self.admin).unwrap();
        eprintln!("{method} {path} {body}\n{} {}", response.status, response.body);
        response
    }

    /// Sends a request with the token that has to succeed. Returns the text of the response.
    #[track_caller]
    pub(crate) fn does(&self, method: &str, path: &str, body: &str) -> String {
        let response = self.send(method, path, body);
        assert_eq!(response.status, 200, "{method} {path} {body}: {}", response.body);
        text(&response, "text")
    }

    /// Sends `GET path` and leaves its response to be [received](receive).
    pub(crate) fn ask(&self, path: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.admin).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n", self.admin).unwrap();
        stream
    }

    pub(crate) fn read(&self, path: &str) -> Value {
        let (status, body) = get(self.admin, path).unwrap();
        assert_eq!(status, 200, "{path}: {body}");
        serde_json::from_str(&body).unwrap()
    }

    /// Returns the keys that operators write.
    pub(crate) fn intentions(&self) -> Vec<String> {
        let root = Keyspace::new("/segue/", "default").root().to_owned();
        let keys = keys_below(self.cluster.etcd(), &root).into_iter();
        keys.filter(|key| ["/operator/", "/operations/", "/wanted"].iter().any(|part| key.contains(part))).collect()
    }

    /// Registers a participant that only has an admin address.
    pub(crate) fn register(&self, key: impl FnOnce(&Keyspace) -> String, record: &Value) {
        let key = key(&Keyspace::new("/segue/", "default"));
        put_by_hand(self.cluster.etcd(), key, &record.to_string(), true);
    }

    pub(crate) fn owner(&self, partition: u32) -> String {
        self.read(&format!("/v1/partitions/{partition}"))["owner"].as_str().unwrap().to_owned()
    }
}

/// An endpoint by TLS, which is only known to listen.
pub(crate) struct TcpProbe(SocketAddr);

impl TcpProbe {
    pub(crate) fn answers(&self) -> bool {
        TcpStream::connect(self.0).is_ok()
    }
}

/// Returns the body of a response that has the status 200.
pub(crate) fn receive(mut stream: TcpStream) -> Value {
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    let (head, body) = response.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 "), "{response}");
    serde_json::from_str(body).unwrap()
}

pub(crate) fn text(response: &Response, field: &str) -> String {
    let value: Value = serde_json::from_str(&response.body).unwrap_or_default();
    value[field].as_str().unwrap_or_default().to_owned()
}
