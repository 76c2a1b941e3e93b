//! The lease clock of a pod with a stream: which heartbeat a renewal confirms.

use std::time::Duration;

use segue_coordination::store::{Fault, StoreCall};
use segue_grpc::proto::{Heartbeat, Hello, Load};
use tokio::sync::{mpsc, oneshot};
use tonic::{Code, Status};

use super::client::{hello, register};
use super::site::Site;

/// A renewal that has been called and goes on to the store once this is used.
type Begun = oneshot::Sender<()>;

/// Sends heartbeats while renewals are under way. Fails only if the instance gives a renewal up.
async fn beats_during_renewals(
    site: &Site,
    instance: usize,
    pod: &str,
    begun: &mut mpsc::UnboundedReceiver<Begun>,
) -> Result<(), Status> {
    let lease_ttl = Duration::from_secs(600).try_into().ok();
    let (beats, mut events) = register(site.address(instance), Hello { lease_ttl, ..hello(&site.name, pod) }).await?;
    let load = |newest: u64| Load { total: newest as f64, ..Load::default() };
    let beat = |seq| Heartbeat { seq, seen: u64::MAX, load: Some(load(seq)), ..Heartbeat::default() };
    let mut newest = 2;
    let _ = beats.send(beat(newest)).await;
    for _ in 0..3 {
        let go_on = begun.recv().await.unwrap();
        let before_the_call = newest;
        for _ in 0..3 {
            newest += 1;
            let _ = beats.send(beat(newest)).await;
        }
        let streams = || site.instances[instance].status.streams();
        let heard = |total: f64| streams().iter().any(|it| it.load.as_ref().is_some_and(|load| load.total == total));
        site.until("it is heard, or closed", |_| heard(newest as f64) || streams().is_empty()).await;
        let _ = go_on.send(());
        let confirmed = loop {
            match events.message().await?.map(|event| event.confirmed) {
                // Nothing new, or the registration.
                Some(0..=1) => {}
                Some(confirmed) => break confirmed,
                None => return Err(Status::unavailable("the stream has ended")),
            }
        };
        assert_eq!(confirmed, before_the_call, "while {newest} was the newest");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_confirms_no_heartbeat_that_came_while_it_was_under_way() {
    let mut site = Site::start().await;
    let (sender, mut begun) = mpsc::unbounded_channel();
    let (_, store) = site.instance_on_faulty_store().await;
    store.set_rule(move |call| {
        if !matches!(call, StoreCall::KeepAlive) {
            return Fault::Pass;
        }
        let (go_on, goes_on) = oneshot::channel();
        let _ = sender.send(go_on);
        Fault::hold(async { drop(goes_on.await) })
    });
    let mut pod = "a".to_owned();
    // An instance that was stopped for longer than it waits for the store sends its pods elsewhere.
    while let Err(status) = beats_during_renewals(&site, 2, &pod, &mut begun).await {
        assert_eq!(status.code(), Code::Unavailable, "{status:?}");
        while begun.try_recv().is_ok() {}
        pod.push('a');
    }
}
