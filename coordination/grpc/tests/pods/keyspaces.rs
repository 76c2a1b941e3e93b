//! One listener for several keyspaces.

use segue_grpc::proto::{Ack, AckKind, AckOutcome, Heartbeat, Hello, LeaveRequest, PollRequest, TaskId};
use segue_protocol::view::View;
use tonic::Code;

use super::client::{Pod, ack, connect, hello, register};
use super::site::Site;

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_takes_part_in_two_keyspaces_by_a_stream_for_each() {
    let (one, two) = (Site::start().await, Site::start().await);
    let (address, _instance) = Site::instance_of_all(&[&one, &two]).await;
    let first = Pod::start(address, hello(&one.name, "w")).await;
    let second = Pod::start(address, hello(&two.name, "w")).await;
    let (known, other) = (first.owns(4).await, second.owns(4).await);
    for site in [&one, &two] {
        site.until("the first placement is over", |view| view.handoffs.is_empty()).await;
    }
    // A token is that of one keyspace, whatever its pod is called.
    let stale = Ack { id: Some(TaskId { partition: 0, handoff: 3 }), kind: AckKind::Drained.into(), ..Ack::default() };
    assert_eq!(ack(address, known.token(), vec![stale]).await.unwrap(), [AckOutcome::Stale]);
    let mixed = Hello { resume: known.token(), ..hello(&two.name, "w") };
    let refused = register(address, mixed).await.unwrap_err();
    assert!(
        refused.code() == Code::InvalidArgument && refused.message().contains("`resume` is of keyspace"),
        "{refused}"
    );
    // By Poll as well.
    let heartbeat = Some(Heartbeat { seq: 1, hello: Some(hello(&two.name, "p")), ..Heartbeat::default() });
    connect(address).await.poll(PollRequest { heartbeat, ..PollRequest::default() }).await.unwrap();
    assert!(two.view().await.pods.contains_key("p") && !one.view().await.pods.contains_key("p"));
    // The end of one registration leaves the other.
    drop(first);
    let request = LeaveRequest { resume: known.token(), now: true };
    connect(address).await.leave(request).await.unwrap();
    one.until("the pod is gone", |view| view.pods.is_empty()).await;
    let incarnation = |view: &View| view.incarnation_of("w").get();
    assert_eq!(incarnation(&two.view().await), other.incarnation());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_without_a_keyspace_or_with_an_unknown_one_is_told_the_names() {
    let (one, two) = (Site::start().await, Site::start().await);
    let (address, _instance) = Site::instance_of_all(&[&one, &two]).await;
    for (wanted, code) in [("", Code::InvalidArgument), ("other", Code::FailedPrecondition)] {
        let refused = register(address, hello(wanted, "w")).await.unwrap_err();
        let names = format!("{:?}, {:?}", one.name, two.name);
        assert!(refused.code() == code && refused.message().contains(&names), "{refused}");
    }
    let pod = Pod::start(one.address(0), hello("", "w")).await;
    pod.owns(4).await;
    assert!(one.view().await.pods.contains_key("w"), "an instance of one keyspace needs no name");
}
