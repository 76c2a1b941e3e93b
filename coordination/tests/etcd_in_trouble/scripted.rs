//! An etcd whose answers a test writes: gRPC as far as the store's client speaks it, over h2.
//!
//! A script is a function from a method and a request to a reply. It keeps no state of its own and checks no request.

use std::future::Future;
use std::net::Ipv4Addr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::{Buf as _, Bytes, BytesMut};
use h2::RecvStream;
use h2::server::SendResponse;
use http::{HeaderMap, HeaderValue, Request, Response};
use prost::Message;
use tokio::net::{TcpListener, TcpStream};

use tokio_util::task::AbortOnDropHandle;

/// The id of the cluster that scripted etcds belong to.
const CLUSTER: u64 = 0xc1;

/// gRPC's code of a member that cannot serve.
pub(super) const UNAVAILABLE: u32 = 14;
/// gRPC's code of a request that nobody would serve.
pub(super) const INVALID_ARGUMENT: u32 = 3;

/// What the script answers to a message.
pub(super) enum Reply {
    /// These messages. A call that is no stream then ends well.
    Messages(Vec<Vec<u8>>),
    /// The end of the call, with a code and a text.
    Failure(u32, &'static str),
}

type Script = dyn Fn(String) -> Pin<Box<dyn Future<Output = Reply> + Send>> + Send + Sync;

/// A scripted etcd. Dropping it closes its port and its connections.
pub(super) struct Scripted {
    pub(super) endpoint: String,
    /// Number of connections that were made to it.
    pub(super) connections: Arc<AtomicUsize>,
    _server: AbortOnDropHandle<()>,
}

impl Scripted {
    /// Starts an etcd that answers each message of a method as `script` says, and by itself that it is a member.
    pub(super) async fn start<F>(script: impl Fn(String) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Reply> + Send + 'static,
    {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let script: Arc<Script> = Arc::new(move |method| Box::pin(script(method)));
        let connections = Arc::new(AtomicUsize::new(0));
        let count = connections.clone();
        let server = tokio::spawn(async move {
            let mut connections = Vec::new();
            while let Ok((socket, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::Relaxed);
                connections.push(AbortOnDropHandle::new(tokio::spawn(connection(socket, script.clone()))));
            }
        });
        Scripted { endpoint, connections, _server: AbortOnDropHandle::new(server) }
    }
}

async fn connection(socket: TcpStream, script: Arc<Script>) {
    let mut connection = h2::server::handshake(socket).await.unwrap();
    let mut calls = Vec::new();
    while let Some(Ok((request, respond))) = connection.accept().await {
        calls.push(AbortOnDropHandle::new(tokio::spawn(call(request, respond, script.clone()))));
    }
}

async fn call(request: Request<RecvStream>, mut respond: SendResponse<Bytes>, script: Arc<Script>) -> Option<()> {
    let method = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
    let is_stream = matches!(&*method, "Watch" | "LeaseKeepAlive");
    let mut body = request.into_body();
    let mut received = BytesMut::new();
    let mut open = None;
    loop {
        // A message has five bytes before it, the last four of which are its length.
        while received.len() < 5 || received.len() - 5 < usize::try_from((&received[1..5]).get_u32()).unwrap() {
            let data = body.data().await?.ok()?;
            let _ = body.flow_control().release_capacity(data.len());
            received.extend_from_slice(&data);
        }
        let length = usize::try_from((&received[1..5]).get_u32()).unwrap();
        received.advance(5 + length);
        let reply = match &*method {
            "Status" => Reply::Messages(vec![Status { header: header(1, 1) }.encode_to_vec()]),
            _ => script(method.clone()).await,
        };
        let headers = Response::builder().header("content-type", "application/grpc");
        match reply {
            Reply::Messages(messages) => {
                if open.is_none() {
                    open = Some(respond.send_response(headers.body(()).unwrap(), false).ok()?);
                }
                let stream = open.as_mut()?;
                for message in messages {
                    let mut frame = vec![0];
                    frame.extend(u32::try_from(message.len()).unwrap().to_be_bytes());
                    frame.extend(message);
                    stream.send_data(frame.into(), false).ok()?;
                }
                if !is_stream {
                    let end = HeaderMap::from_iter([("grpc-status".parse().unwrap(), HeaderValue::from_static("0"))]);
                    return stream.send_trailers(end).ok();
                }
            }
            Reply::Failure(code, text) => {
                let failed = headers.header("grpc-status", code).header("grpc-message", text).body(()).unwrap();
                return respond.send_response(failed, true).ok().map(drop);
            }
        }
    }
}

/// Returns a header of the scripted cluster.
pub(super) fn header(revision: i64, raft_term: u64) -> Option<Header> {
    Some(Header { cluster_id: CLUSTER, member_id: 1, revision, raft_term })
}

/// Returns a reply of one message.
pub(super) fn one(message: &impl Message) -> Reply {
    Reply::Messages(vec![message.encode_to_vec()])
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Header {
    #[prost(uint64, tag = "1")]
    cluster_id: u64,
    #[prost(uint64, tag = "2")]
    member_id: u64,
    #[prost(int64, tag = "3")]
    revision: i64,
    #[prost(uint64, tag = "4")]
    raft_term: u64,
}

#[derive(Clone, PartialEq, Message)]
struct Status {
    #[prost(message, optional, tag = "1")]
    header: Option<Header>,
}

/// The response to a range, or to a transaction without operations.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Empty {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<Header>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Token {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<Header>,
    #[prost(string, tag = "2")]
    pub(super) token: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Renewed {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<Header>,
    #[prost(int64, tag = "2")]
    pub(super) id: i64,
    #[prost(int64, tag = "3")]
    pub(super) ttl: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Watched {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<Header>,
    #[prost(bool, tag = "3")]
    pub(super) created: bool,
    #[prost(message, repeated, tag = "11")]
    pub(super) events: Vec<Event>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Event {
    /// 0 for a put, 1 for a deletion.
    #[prost(int32, tag = "1")]
    pub(super) kind: i32,
    #[prost(message, optional, tag = "2")]
    pub(super) kv: Option<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct KeyValue {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
    #[prost(int64, tag = "2")]
    pub(super) create_revision: i64,
    #[prost(int64, tag = "3")]
    pub(super) mod_revision: i64,
}
