//! The protocol where real processes would take too long to show it: limits, and messages out of turn.

use std::time::Duration;

use prometheus_client::registry::Registry;
use tokio::net::UnixStream;

use super::*;

const PATIENCE: Duration = Duration::from_secs(30);

fn startup(path: &Path, predecessor: Option<Channel>) -> Startup {
    Startup {
        path: Some(path.to_owned()),
        patience: PATIENCE,
        name: "r".to_owned(),
        predecessor,
        socket: None,
        listeners: AdoptedSockets { router: Vec::new(), admin: None },
        log: None,
        status: watch::Sender::default(),
    }
}

fn channels() -> (Channel, Channel) {
    let (one, other) = UnixStream::pair().unwrap();
    (Channel::new(one).unwrap(), Channel::new(other).unwrap())
}

async fn serving(path: &Path) -> HotRestartServer {
    let mut startup = startup(path, None);
    startup.open_socket().unwrap();
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    startup.serving(vec![socket], HotRestartMetrics::new(&mut Registry::default())).await
}

#[tokio::test(start_paused = true)]
async fn a_new_process_that_does_not_get_ready_gives_up() {
    let folder = tempfile::tempdir().unwrap();
    let (_old, new) = channels();
    let begun = tokio::time::Instant::now();
    let error = startup(&folder.path().join("s"), Some(new)).until(std::future::pending()).await.unwrap_err();
    assert!(error.to_string().contains("not ready to take over"), "{error:#}");
    assert_eq!(begun.elapsed().as_secs(), PATIENCE.as_secs());
}

#[tokio::test]
async fn a_new_process_that_is_refused_does_not_serve_nor_go_on_serving() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let refusal = Message::Refusal { reason: "not now".to_owned() };
    let (mut old, new) = channels();
    old.send(&refusal).await.unwrap();
    let error = startup(&path, Some(new)).until(std::future::pending()).await.unwrap_err();
    assert!(error.to_string().ends_with("keeps serving: not now"), "{error:#}");

    let (mut old, new) = channels();
    let metrics = HotRestartMetrics::new(&mut Registry::default());
    let mut server = startup(&path, Some(new)).serving(Vec::new(), metrics).await;
    assert_eq!(old.receive().await.unwrap(), Some(Message::Ready));
    old.send(&refusal).await.unwrap();
    assert!(matches!(server.succeed().await, Some(Exit::Withdrawn(reason)) if reason == "not now"));
    assert!(!path.exists());
}

#[tokio::test(start_paused = true)]
async fn an_old_process_that_does_not_respond_to_ready_is_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let (mut old, new) = channels();
    let metrics = HotRestartMetrics::new(&mut Registry::default());
    let mut server = startup(&path, Some(new)).serving(Vec::new(), metrics).await;
    assert!(server.succeed().await.is_none());
    assert!(!path.exists());
    old.send(&Message::Leaving).await.unwrap();
    drop(old);
    tokio::select! {
        _ = server.run() => panic!("it has no successor"),
        () = async { while !path.exists() { tokio::task::yield_now().await } } => {}
    }
}

#[tokio::test(start_paused = true)]
async fn a_new_process_that_falls_silent_is_given_up_and_the_next_one_gets_the_sockets() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let mut server = serving(&path).await;
    let new_processes = async {
        let mut silent = request_sockets(&path, PATIENCE, false).await.unwrap().unwrap();
        assert_eq!((silent.name.as_str(), silent.sockets.len()), ("r", 1));
        let Some(Message::Refusal { reason }) = silent.channel.receive().await.unwrap() else { panic!("no refusal") };
        assert!(reason.contains("not ready within"), "{reason}");
        let mut next = request_sockets(&path, PATIENCE, false).await.unwrap().unwrap();
        next.channel.send(&Message::Ready).await.unwrap();
        assert_eq!(next.channel.receive().await.unwrap(), Some(Message::Leaving));
        next.channel.receive().await.unwrap()
    };
    let old_process = async {
        match server.run().await {
            Exit::Replaced(successor) => successor.ended().await,
            Exit::Withdrawn(reason) => panic!("{reason}"),
        }
    };
    assert_eq!(tokio::join!(new_processes, old_process).0, Some(Message::Ended));
    // Its successor puts its own socket there.
    drop(server);
    assert!(path.exists());
}

#[tokio::test]
async fn a_new_process_starts_alone_when_the_old_one_ends_before_it_is_ready() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let mut server = serving(&path).await;
    let mut offer = tokio::select! {
        _ = server.run() => panic!("replaced by a process that is not ready"),
        offer = request_sockets(&path, PATIENCE, false) => offer.unwrap().unwrap(),
    };
    server.shutdown();
    assert!(!path.exists());
    assert_eq!(offer.channel.receive().await.unwrap(), None);
    let mut startup = startup(&path, Some(offer.channel));
    startup.until(std::future::pending()).await.unwrap();
    assert!(path.exists() && startup.predecessor.is_none());
}
