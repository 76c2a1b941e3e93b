//! The page's files, its journal and its stream, over changes of the store that are written here.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Response;
use futures_util::{Stream, StreamExt as _};
use segue_coordination::session::Update;
use segue_protocol::ids::{Epoch, HandoffId, Incarnation, LeaseId, PartitionId, Revision};
use segue_protocol::keys::Keyspace;
use segue_protocol::records::{Assignment, Handoff, Phase, PodRecord, RouterCutoverAck, encode};
use segue_protocol::txn::{Batch, Event, KeyValue};
use segue_protocol::view::View;
use serde::Serialize;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::board::Board;
use super::feed::Feed;
use super::{FILES, file, tag};

/// A store whose changes go to a board.
struct World {
    keys: Keyspace,
    revision: u64,
    created: BTreeMap<String, u64>,
    board: Arc<Board>,
}

impl World {
    fn new(partitions: u32) -> Self {
        let keys = Keyspace::new("/segue/", "default");
        let board = Arc::new(Board::new(keys.clone(), 0));
        board.update(Update::Snapshot(Box::new(View::empty(keys.clone()))), 0);
        let mut world = World { keys, revision: 0, created: BTreeMap::new(), board };
        let config = world.keys.config();
        world.put(config, &json!({ "partitions": partitions }));
        world
    }

    fn put(&mut self, key: String, record: &impl Serialize) -> Revision {
        self.revision += 1;
        let revision = Revision::new(self.revision);
        let create_revision = Revision::new(*self.created.entry(key.clone()).or_insert(self.revision));
        let lease = Some(LeaseId::default());
        let entry = KeyValue { key, value: encode(record), create_revision, mod_revision: revision, lease };
        self.board.update(Update::Batch(Batch { revision, events: vec![Event::Put(entry)] }), 0);
        create_revision
    }

    fn delete(&mut self, key: String) {
        self.revision += 1;
        self.created.remove(&key);
        let revision = Revision::new(self.revision);
        self.board
            .update(Update::Batch(Batch { revision, events: vec![Event::Delete { key, mod_revision: revision }] }), 0);
    }

    fn register(&mut self, pod: &str) -> Incarnation {
        Incarnation::registered_at(self.put(self.keys.pod(pod), &PodRecord::new(pod, "127.0.0.1:1")))
    }

    fn assign(&mut self, partition: u32, pod: &str, life: Incarnation) {
        let partition = PartitionId::new(partition);
        let epoch = Epoch::new(self.revision);
        self.put(self.keys.assignment(partition), &Assignment::new(partition, pod, life, epoch));
    }

    /// Returns the lines of the event log.
    fn log(&self) -> Vec<String> {
        let entries = self.board.take(0, true, 0).entries;
        entries.iter().map(|entry| json!(entry)["text"].as_str().unwrap().to_owned()).collect()
    }

    fn feed(&self) -> Arc<Feed> {
        Arc::new(Feed::new(self.board.clone(), Box::new(|| json!({})), Box::new(|| ()), CancellationToken::new()))
    }
}

/// A reader as the page is: it keeps the owners as it is told.
struct Reader {
    stream: Pin<Box<dyn Stream<Item = Result<axum::body::Bytes, std::convert::Infallible>> + Send>>,
    last: Option<String>,
    owners: Vec<i64>,
    names: Value,
}

impl Reader {
    fn open(feed: &Arc<Feed>, last: Option<&str>) -> Result<Self, String> {
        let stream = Box::pin(feed.subscribe(last)?);
        Ok(Reader { stream, last: last.map(str::to_owned), owners: Vec::new(), names: Value::Null })
    }

    /// Takes the next event over, and returns its name.
    async fn next(&mut self) -> Option<String> {
        let event = self.stream.next().await?.unwrap();
        let text = String::from_utf8(event.to_vec()).unwrap();
        let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        self.last = field("id").map(str::to_owned).or(self.last.take());
        let data: Value = serde_json::from_str(field("data").unwrap()).unwrap();
        let name = field("event").unwrap();
        match name {
            "state" => {
                self.owners = data["owners"].as_array().unwrap().iter().map(|one| one.as_i64().unwrap()).collect();
                self.names = data["names"].clone();
            }
            "change" if !data["keyspace"].is_null() => {
                for change in data["owners"].as_array().unwrap() {
                    self.owners[change[0].as_u64().unwrap() as usize] = change[1].as_i64().unwrap();
                }
                self.names = data["names"].clone();
            }
            _ => {}
        }
        Some(name.to_owned())
    }

    fn owner(&self, partition: usize) -> Option<&str> {
        self.names[usize::try_from(self.owners[partition]).ok()?].as_str()
    }
}

fn running(feed: &Arc<Feed>) -> tokio_util::task::AbortOnDropHandle<()> {
    let feed = feed.clone();
    tokio_util::task::AbortOnDropHandle::new(tokio::spawn(async move { feed.run().await }))
}

#[tokio::test(start_paused = true)]
async fn a_reader_gets_the_state_and_then_what_changes() {
    let mut world = World::new(4);
    let (a, b) = (world.register("a"), world.register("b"));
    (0..4).for_each(|partition| world.assign(partition, "a", a));
    let feed = world.feed();
    let _running = running(&feed);
    let mut reader = Reader::open(&feed, None).unwrap();
    assert_eq!(reader.next().await.unwrap(), "state");
    assert!((0..4).all(|partition| reader.owner(partition) == Some("a")), "{:?}", reader.owners);
    world.assign(2, "b", b);
    assert_eq!(reader.next().await.unwrap(), "change");
    assert_eq!([1, 2].map(|partition| reader.owner(partition)), [Some("a"), Some("b")]);
    world.delete(world.keys.pod("a"));
    assert_eq!(reader.next().await.unwrap(), "change");
    assert_eq!([1, 2].map(|partition| reader.owner(partition)), [None, Some("b")], "the owner of the first is dead");
    assert_eq!(reader.next().await.unwrap(), "beat", "nothing changes any more");
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_comes_back_gets_only_what_it_missed() {
    let mut world = World::new(4);
    let a = world.register("a");
    let feed = world.feed();
    let _running = running(&feed);
    let mut reader = Reader::open(&feed, None).unwrap();
    reader.next().await.unwrap();
    world.assign(0, "a", a);
    reader.next().await.unwrap();
    let (last, owners) = (reader.last.clone(), reader.owners.clone());
    drop(reader);
    world.assign(1, "a", a);
    let mut back = Reader::open(&feed, last.as_deref()).unwrap();
    back.owners = owners;
    assert_eq!(back.next().await.unwrap(), "beat", "the stream is known to be open");
    assert_eq!(back.next().await.unwrap(), "change");
    assert_eq!([0, 1, 2].map(|partition| back.owner(partition)), [Some("a"), Some("a"), None]);
}

#[tokio::test(start_paused = true)]
async fn a_place_in_the_events_of_another_process_says_nothing() {
    let (mut feeds, mut lasts) = (Vec::new(), Vec::new());
    for _ in 0..2 {
        let mut world = World::new(4);
        let a = world.register("a");
        let feed = world.feed();
        let _running = running(&feed);
        let mut reader = Reader::open(&feed, None).unwrap();
        reader.next().await.unwrap();
        for partition in 0..4 {
            world.assign(partition, "a", a);
            assert_eq!(reader.next().await.unwrap(), "change");
        }
        lasts.push(reader.last);
        feeds.push(feed);
    }
    let first_event =
        async |feed, last: &Option<String>| Reader::open(feed, last.as_deref()).unwrap().next().await.unwrap();
    assert_eq!(first_event(&feeds[1], &lasts[1]).await, "beat", "its own events go on");
    assert_eq!(first_event(&feeds[1], &lasts[0]).await, "state");
}

#[tokio::test(start_paused = true)]
async fn a_slow_reader_gets_the_state_in_place_of_a_backlog() {
    let mut world = World::new(64);
    let a = world.register("a");
    let feed = world.feed();
    let _running = running(&feed);
    let (mut slow, mut quick) = (Reader::open(&feed, None).unwrap(), Reader::open(&feed, None).unwrap());
    slow.next().await.unwrap();
    quick.next().await.unwrap();
    for partition in 0..32 {
        world.assign(partition, "a", a);
        assert_eq!(quick.next().await.unwrap(), "change");
    }
    assert_eq!(slow.next().await.unwrap(), "state");
    assert_eq!(slow.owners, quick.owners);
}

#[tokio::test]
async fn one_reader_too_many_is_refused_with_the_reason() {
    let feed = World::new(1).feed();
    let mut readers: Vec<_> = (0..32).map(|_| Reader::open(&feed, None).unwrap()).collect();
    let refused = Reader::open(&feed, None).err().unwrap();
    assert!(refused.contains("32 readers"), "{refused}");
    readers.pop();
    Reader::open(&feed, None).unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_stream_ends_before_its_connection_has_to() {
    let feed = World::new(1).feed();
    let _running = running(&feed);
    let (mut reader, began) = (Reader::open(&feed, None).unwrap(), tokio::time::Instant::now());
    while reader.next().await.is_some() {}
    assert_eq!(began.elapsed().as_secs(), 45);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_made_while_nobody_reads() {
    let world = World::new(1);
    let made = Arc::<AtomicUsize>::default();
    let counted = made.clone();
    let summary = Box::new(move || json!(counted.fetch_add(1, SeqCst)));
    let feed = Arc::new(Feed::new(world.board.clone(), summary, Box::new(|| ()), CancellationToken::new()));
    let _running = running(&feed);
    tokio::time::sleep(std::time::Duration::from_secs(60)).await;
    assert_eq!(made.load(SeqCst), 0);
    let mut reader = Reader::open(&feed, None).unwrap();
    for _ in 0..5 {
        reader.next().await.unwrap();
    }
    assert!(made.load(SeqCst) >= 4);
}

#[test]
fn the_journal_tells_how_a_move_ended() {
    let mut world = World::new(8);
    let (a, b) = (world.register("a"), world.register("b"));
    let partition = PartitionId::new(7);
    let key = world.keys.handoff(partition);
    let handoff = Handoff::new(partition, "b", b, Epoch::new(9)).taken_from("a", a);
    let id = HandoffId::created_at(world.put(key.clone(), &handoff));
    for (router, pause_us) in [("r-0", 1_500), ("r-1", 42_000)] {
        let ack = RouterCutoverAck { pause_us, ..RouterCutoverAck::new(router, partition, id) };
        world.put(world.keys.router_cutover(partition, router), &ack);
    }
    world.put(key.clone(), &Handoff { phase: Phase::Complete, ..handoff.clone() });
    world.delete(key.clone());
    world.put(key.clone(), &Handoff { phase: Phase::Ready, ..handoff });
    world.delete(key);
    world.delete(world.keys.pod("b"));
    let expected = [
        "reading the keyspace from revision 0",
        "pod a registered",
        "pod b registered",
        "partition 7 moved from a to b: paused 42 ms on r-1",
        "move of partition 7 from a to b cancelled in Ready",
        "pod b is gone",
    ];
    assert_eq!(world.log(), expected);
    let cutovers = world.board.take(0, true, 0).cutovers;
    assert_eq!(
        cutovers.iter().map(|one| json!(one)["pause_us"].as_u64().unwrap()).collect::<Vec<_>>(),
        [1_500, 42_000]
    );
}

#[test]
fn a_first_placement_counts_as_no_cutover() {
    let mut world = World::new(1);
    let a = world.register("a");
    let (partition, key) = (PartitionId::new(0), world.keys.handoff(PartitionId::new(0)));
    let handoff = Handoff { phase: Phase::Switching, ..Handoff::new(partition, "a", a, Epoch::new(2)) };
    let id = HandoffId::created_at(world.put(key.clone(), &handoff));
    world.put(world.keys.router_cutover(partition, "r"), &RouterCutoverAck::new("r", partition, id));
    world.delete(key);
    assert!(world.board.take(0, true, 0).cutovers.is_empty());
    assert_eq!(world.log().last().unwrap(), "partition 0 placed on a");
}

fn request(path: usize, if_none_match: &str) -> Response {
    let (_, kind, content) = FILES[path];
    let headers = HeaderMap::from_iter([(header::IF_NONE_MATCH, if_none_match.parse().unwrap())]);
    file(&headers, kind, content, &tag(content))
}

#[test]
fn a_browser_that_has_a_file_is_not_sent_it_again() {
    let first = request(0, "\"other\"");
    assert_eq!(first.status(), StatusCode::OK);
    let tag = first.headers()[header::ETAG].to_str().unwrap().to_owned();
    for known in [tag.clone(), format!("\"x\", W/{tag}")] {
        assert_eq!(request(0, &known).status(), StatusCode::NOT_MODIFIED, "{known}");
    }
    assert_eq!(request(1, &tag).status(), StatusCode::OK, "that is another file");
}

#[test]
fn the_page_needs_no_more_than_its_policy_allows() {
    for (path, _, text) in FILES {
        for refused in ["http:", "https:", "style=", "onclick=", "innerHTML", "url(", "eval(", "<style", "<script>"] {
            let found = text.replace("http://www.w3.org/2000/svg", "").contains(refused);
            assert!(!found, "{path} contains {refused}");
        }
    }
}
