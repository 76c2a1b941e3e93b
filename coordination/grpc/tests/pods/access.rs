//! The token that calls present.

use std::sync::{Arc, Mutex};

use segue_grpc::PodsToken;
use segue_grpc::proto::pods_client::PodsClient;
use segue_grpc::proto::{AckRequest, Heartbeat, LeaveRequest, PollRequest};
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

use super::client::{connect, hello};
use super::site::Site;

type Presenting = PodsClient<InterceptedService<Channel, Box<dyn FnMut(Request<()>) -> Result<Request<()>, Status>>>>;

/// Returns a client that presents this authorization.
async fn presenting(address: std::net::SocketAddr, authorization: &'static str) -> Presenting {
    let channel = Channel::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
    PodsClient::with_interceptor(
        channel,
        Box::new(move |mut request: Request<()>| {
            request.metadata_mut().insert("authorization", authorization.parse().unwrap());
            Ok(request)
        }),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn every_call_without_the_token_is_refused_and_a_replaced_token_counts_at_once() {
    let mut site = Site::start().await;
    let token = Arc::new(Mutex::new(Ok("first")));
    let known = token.clone();
    let recognise =
        move |presented: &[u8]| known.lock().unwrap().clone().map(|token: &str| token.as_bytes() == presented);
    let address = site.instance_with_token(PodsToken::new(recognise)).await;
    let poll = || PollRequest {
        heartbeat: Some(Heartbeat { seq: 1, hello: Some(hello(&site.name, "a")), ..Heartbeat::default() }),
        ..PollRequest::default()
    };
    let code = |status: Status| {
        assert!(!format!("{status:?}").contains("first"), "{status:?}");
        status.code()
    };

    let mut without = connect(address).await;
    assert_eq!(code(without.poll(poll()).await.unwrap_err()), Code::Unauthenticated);
    let stream = tokio_stream::iter([poll().heartbeat.unwrap()]);
    assert_eq!(code(without.register(stream).await.unwrap_err()), Code::Unauthenticated);
    assert_eq!(code(without.ack(AckRequest::default()).await.unwrap_err()), Code::Unauthenticated);
    assert_eq!(code(without.leave(LeaveRequest::default()).await.unwrap_err()), Code::Unauthenticated);
    for wrong in ["Bearer second", "Bearer ", "Basic first", "first"] {
        let refused = presenting(address, wrong).await.poll(poll()).await.unwrap_err();
        assert_eq!(code(refused), Code::Unauthenticated, "{wrong}");
    }
    assert!(site.view().await.pods.is_empty());

    let mut first = presenting(address, "Bearer first").await;
    first.poll(poll()).await.unwrap();
    *token.lock().unwrap() = Ok("second");
    assert_eq!(code(first.poll(poll()).await.unwrap_err()), Code::Unauthenticated);
    *token.lock().unwrap() = Err("no such file".to_owned());
    assert_eq!(code(presenting(address, "bearer second").await.poll(poll()).await.unwrap_err()), Code::Unavailable);
}
