//! The conversation, where a process of its own would take too long to show it: bounds, and words out of turn.

use std::time::Duration;

use prometheus_client::registry::Registry;
use tokio::net::UnixStream;

use super::*;

const PATIENCE: Duration = Duration::from_secs(30);

fn entry(path: &Path, predecessor: Option<Talk>) -> Entry {
    Entry {
        path: Some(path.to_owned()),
        patience: PATIENCE,
        name: "r".to_owned(),
        predecessor,
        place: None,
        listeners: Allotment { router: Vec::new(), admin: None },
        said: watch::Sender::default(),
    }
}

fn talks() -> (Talk, Talk) {
    let (one, other) = UnixStream::pair().unwrap();
    (Talk::new(one).unwrap(), Talk::new(other).unwrap())
}

async fn serving(path: &Path) -> Succession {
    let mut entry = entry(path, None);
    entry.take_place().unwrap();
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    entry.served(vec![socket], HandoverMetrics::new(&mut Registry::default())).await
}

#[tokio::test(start_paused = true)]
async fn a_newcomer_that_does_not_get_ready_gives_up() {
    let folder = tempfile::tempdir().unwrap();
    let (_running, newcomer) = talks();
    let begun = tokio::time::Instant::now();
    let error = entry(&folder.path().join("s"), Some(newcomer)).until(std::future::pending()).await.unwrap_err();
    assert!(error.to_string().contains("not ready to take over"), "{error:#}");
    assert_eq!(begun.elapsed().as_secs(), PATIENCE.as_secs());
}

#[tokio::test]
async fn a_newcomer_that_is_refused_does_not_serve_nor_go_on_serving() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let refusal = Message::Refusal { reason: "not now".to_owned() };
    let (mut running, newcomer) = talks();
    running.say(&refusal).await.unwrap();
    let error = entry(&path, Some(newcomer)).until(std::future::pending()).await.unwrap_err();
    assert!(error.to_string().ends_with("goes on: not now"), "{error:#}");

    let (mut running, newcomer) = talks();
    let metrics = HandoverMetrics::new(&mut Registry::default());
    let mut succession = entry(&path, Some(newcomer)).served(Vec::new(), metrics).await;
    assert_eq!(running.next().await.unwrap(), Some(Message::Ready));
    running.say(&refusal).await.unwrap();
    assert!(matches!(succession.turn().await, Turn::Withdrawn(reason) if reason == "not now"));
    assert!(!path.exists());
}

#[tokio::test(start_paused = true)]
async fn a_newcomer_that_falls_silent_is_given_up_and_the_next_one_gets_the_sockets() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let mut succession = serving(&path).await;
    let newcomers = async {
        let mut silent = arrive(&path, PATIENCE).await.unwrap().unwrap();
        assert_eq!((silent.name.as_str(), silent.sockets.len()), ("r", 1));
        let Some(Message::Refusal { reason }) = silent.talk.next().await.unwrap() else { panic!("no refusal") };
        assert!(reason.contains("not ready within"), "{reason}");
        let mut next = arrive(&path, PATIENCE).await.unwrap().unwrap();
        next.talk.say(&Message::Ready).await.unwrap();
        assert_eq!(next.talk.next().await.unwrap(), Some(Message::Leaving));
        next.talk.next().await.unwrap()
    };
    let running = async {
        match succession.turn().await {
            Turn::HandedOver(successor) => successor.ended().await,
            Turn::Withdrawn(reason) => panic!("{reason}"),
        }
    };
    assert_eq!(tokio::join!(newcomers, running).0, Some(Message::Ended));
    // Its successor puts its own there.
    drop(succession);
    assert!(path.exists());
}

#[tokio::test]
async fn one_that_gets_ready_goes_on_alone_when_the_running_one_ends() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let mut succession = serving(&path).await;
    let mut arrival = tokio::select! {
        _ = succession.turn() => panic!("handed over to one that is not ready"),
        arrival = arrive(&path, PATIENCE) => arrival.unwrap().unwrap(),
    };
    succession.leave();
    assert!(!path.exists());
    assert_eq!(arrival.talk.next().await.unwrap(), None);
    let mut newcomer = entry(&path, Some(arrival.talk));
    newcomer.until(std::future::pending()).await.unwrap();
    assert!(path.exists() && newcomer.predecessor.is_none());
}
