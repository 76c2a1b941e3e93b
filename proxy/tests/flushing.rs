//! The order within a flush. A request waits only for earlier ones of its own key.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use segue_coordination::router::DataPlane;
use segue_protocol::handoff::router::{GateStage, HoldCause};
use segue_proxy::settings::UpstreamProtocol;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::support::client::{Answer, Body, Http2Client, RawHttp1Client, data, empty, full, stream};
use crate::support::pod::{Pod, Speaks, start_h2_pod};
use crate::support::{BOTH_VERSIONS, Fixture, P0, Settings, soon, until};

/// Far less than `max_wait`, and far more than a flush takes.
const PROMPT_RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);

fn settings(protocol: UpstreamProtocol) -> Settings {
    let mut settings = Settings::with_protocol(protocol);
    settings.stash.flush_concurrency = 4;
    settings
}

/// Sends a `GET` of this key on a connection of its own.
async fn asks(fixture: &Fixture, path: &str, key: &str) -> RawHttp1Client {
    fixture.send(format!("GET {path} HTTP/1.1\r\nhost: h\r\nx-partition: 0\r\nx-key: {key}\r\n\r\n")).await
}

/// Returns the response to a request that must not wait for others.
async fn at_once(fixture: &Fixture, path: &str, key: &str) -> Answer {
    let answered = async { asks(fixture, path, key).await.answer().await };
    tokio::time::timeout(PROMPT_RESPONSE_TIMEOUT, answered).await.expect("an answer, although others wait")
}

/// Waits for `work` while other requests are served. The router gives a refused request up only while its pod accepts
/// others.
async fn while_others_go_on<T>(fixture: &Fixture, work: impl Future<Output = T>) -> T {
    let goes_on = async {
        loop {
            assert_eq!(at_once(fixture, "/ok", "other").await.status, 200);
        }
    };
    tokio::select! {
        done = soon(work) => done,
        never = goes_on => never,
    }
}

/// A pod that records each path on arrival. It refuses `/poison…`, answers `/poll…` as often as it has permits, and the
/// rest at once.
struct Service {
    pod: Pod,
    seen: Arc<Mutex<Vec<String>>>,
    polls: Arc<Semaphore>,
}

impl Service {
    async fn start(speaks: Speaks) -> Self {
        let (seen, polls) = (Arc::<Mutex<Vec<String>>>::default(), Arc::new(Semaphore::new(0)));
        let (notes, answers) = (seen.clone(), polls.clone());
        let pod = Pod::start(speaks, move |request| answer(request, notes.clone(), answers.clone())).await;
        Service { pod, seen, polls }
    }

    fn seen(&self) -> Vec<String> {
        self.seen.lock().unwrap().clone()
    }

    fn has_seen(&self, path: &str) -> bool {
        self.seen().iter().any(|seen| seen == path)
    }
}

async fn answer(request: Request<Incoming>, seen: Arc<Mutex<Vec<String>>>, polls: Arc<Semaphore>) -> Response<Body> {
    let path = request.uri().path().to_owned();
    seen.lock().unwrap().push(path.clone());
    if path.starts_with("/poison") {
        return Response::builder().status(StatusCode::MISDIRECTED_REQUEST).body(empty()).unwrap();
    }
    if path.starts_with("/poll") {
        polls.acquire().await.unwrap().forget();
    }
    let _ = request.into_body().collect().await;
    Response::new(full(path))
}

/// An upload whose client has sent one byte of it.
fn upload(
    client: &Http2Client,
    key: &str,
) -> (tokio::sync::mpsc::UnboundedSender<Option<http_body::Frame<bytes::Bytes>>>, JoinHandle<Answer>) {
    let (sender, body) = stream();
    sender.send(data("x")).unwrap();
    let request = client.request("POST", "/upload").header("x-key", key).body(body).unwrap();
    (sender, client.spawn_ask(request))
}

#[tokio::test]
async fn requests_that_come_before_the_partitions_are_known_keep_their_order() {
    let fixture = Fixture::with(Settings { partitions: 0, ..settings(UpstreamProtocol::Http1) });
    let service = Service::start(Speaks::Http1).await;
    let client = fixture.http2_client().await;
    let ask = |method: &str, path: &str, key: &str| {
        let request = client.request(method, path).header("x-key", key).body(empty()).unwrap();
        client.spawn_ask(request)
    };
    let numbers = Vec::from_iter((1..20).map(|number| format!("/{number}")));
    let first = ask("GET", "/poll", "one");
    let mut later: Vec<_> = numbers.iter().map(|path| ask("GET", path, "one")).collect();
    // The router refuses it at once, so it has taken those before it.
    assert_eq!(soon(ask("TRACE", "/", "")).await.unwrap().status, 405);
    fixture.table.set_partitions(8);
    fixture.route(P0, service.pod.address, 1);
    later.push(ask("GET", "/newcomer", "one"));
    assert_eq!(soon(ask("GET", "/ok", "other")).await.unwrap().status, 200);
    until(|| service.has_seen("/poll"), "the first one").await;
    assert_eq!(service.seen().len(), 2, "the later ones wait for the first: {:?}", service.seen());
    service.polls.add_permits(1);
    for answer in std::iter::once(first).chain(later) {
        assert_eq!(soon(answer).await.unwrap().status, 200);
    }
    assert_eq!(service.seen()[2..].split_last(), Some((&"/newcomer".to_owned(), &*numbers)));
}

#[tokio::test]
async fn uploads_that_wait_for_their_clients_hold_up_nobody_else() {
    for (speaks, protocol) in BOTH_VERSIONS {
        let fixture = Fixture::with(settings(protocol));
        let service = Service::start(speaks).await;
        let attacker = fixture.http2_client().await;
        let uploads: Vec<_> = (0..40).map(|number| upload(&attacker, &format!("upload-{number}"))).collect();
        fixture.held(P0, 40).await;
        let mut held = asks(&fixture, "/held", "other").await;
        fixture.held(P0, 41).await;
        let begun = Instant::now();
        fixture.route(P0, service.pod.address, 1);
        let answered = tokio::time::timeout(PROMPT_RESPONSE_TIMEOUT, held.answer()).await;
        assert_eq!(answered.expect("an answer, although uploads wait for their clients").status, 200);
        // At a quarter of a second for each, four at a time, it would take two and a half seconds.
        assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
        assert_eq!(at_once(&fixture, "/new", "another").await.status, 200);
        // A request of an upload's own key waits behind the upload.
        let mut behind = asks(&fixture, "/behind", "upload-0").await;
        fixture.held(P0, 1).await;
        assert_eq!(at_once(&fixture, "/newer", "another").await.status, 200);
        assert!(fixture.table.stashed(P0).0 == 1 && !service.has_seen("/behind"));
        for (sender, _) in &uploads {
            sender.send(None).unwrap();
        }
        assert_eq!(soon(behind.answer()).await.status, 200);
        for (_, answer) in uploads {
            assert_eq!(soon(answer).await.unwrap().status, 200);
        }
        until(|| matches!(fixture.table_stage(), GateStage::Open(_)), "the gate").await;
    }
}

#[tokio::test]
async fn long_polls_hold_up_nobody_else_for_long() {
    for (speaks, protocol) in BOTH_VERSIONS {
        let fixture = Fixture::with(settings(protocol));
        let service = Service::start(speaks).await;
        let mut polls = Vec::new();
        for number in 0..6 {
            polls.push(asks(&fixture, &format!("/poll/{number}"), &format!("poll-{number}")).await);
            fixture.held(P0, number + 1).await;
        }
        let mut held = asks(&fixture, "/held", "other").await;
        fixture.held(P0, 7).await;
        let begun = Instant::now();
        fixture.route(P0, service.pod.address, 1);
        let answered = tokio::time::timeout(PROMPT_RESPONSE_TIMEOUT, held.answer()).await;
        assert_eq!(answered.expect("an answer, although polls wait at the pod").status, 200);
        assert!(begun.elapsed() >= Duration::from_millis(150), "places are given away at once");
        // Requests that arrive after the flush has begun pass.
        for _ in 0..3 {
            assert_eq!(at_once(&fixture, "/new", "another").await.status, 200);
        }
        let mut behind = asks(&fixture, "/behind", "poll-0").await;
        fixture.held(P0, 1).await;
        assert_eq!(at_once(&fixture, "/newer", "another").await.status, 200);
        assert!(!service.has_seen("/behind"), "it has overtaken one of its key");
        service.polls.add_permits(100);
        assert_eq!(soon(behind.answer()).await.status, 200);
        for mut poll in polls {
            assert_eq!(soon(poll.answer()).await.status, 200);
        }
    }
}

#[tokio::test]
async fn a_flush_is_over_for_the_handoff_once_nothing_but_what_is_slow_holds_its_key() {
    let fixture = Fixture::with(settings(UpstreamProtocol::Http1));
    let service = Service::start(Speaks::Http1).await;
    let mut polls = vec![asks(&fixture, "/poll/0", "poll").await];
    fixture.held(P0, 1).await;
    polls.push(asks(&fixture, "/poll/1", "poll").await);
    fixture.held(P0, 2).await;
    let begun = Instant::now();
    fixture.route(P0, service.pod.address, 1);
    until(|| service.has_seen("/poll/0"), "the first poll at the pod").await;
    let stage = fixture.table_stage();
    // On a machine that is busy for longer, the poll may have given its place away already.
    if begun.elapsed() < Duration::from_millis(150) {
        assert!(matches!(stage, GateStage::Flushing(_)), "acknowledged before the poll has had its time");
    }
    until(|| matches!(fixture.table_stage(), GateStage::Open(_)), "the flush to be over").await;
    assert_eq!(fixture.table.stashed(P0).0, 1, "the second poll waits for the first one's outcome");
    let times = DataPlane::take_times(&*fixture.table, P0).expect("what the acknowledgement says");
    assert!(times.stashed == 2 && times.flush < PROMPT_RESPONSE_TIMEOUT, "{times:?}");
    // To the next handoff the poll is in flight like any other request.
    fixture.hold(P0, HoldCause::Handoff);
    assert!(matches!(fixture.table_stage(), GateStage::Draining(_)));
    service.polls.add_permits(2);
    fixture.in_flight(P0, 0).await;
    assert!(matches!(fixture.table_stage(), GateStage::Closed));
    fixture.route(P0, service.pod.address, 2);
    for mut poll in polls {
        assert_eq!(soon(poll.answer()).await.status, 200);
    }
    assert_eq!(service.seen(), ["/poll/0", "/poll/1"]);
}

#[tokio::test]
async fn a_request_that_is_refused_for_ever_is_answered_and_holds_up_nobody_for_long() {
    for (speaks, protocol) in BOTH_VERSIONS {
        let fixture = Fixture::with(settings(protocol));
        let service = Service::start(speaks).await;
        fixture.route(P0, service.pod.address, 1);
        let mut poison = asks(&fixture, "/poison", "poisonous").await;
        until(|| service.has_seen("/poison"), "the poison at the pod").await;
        assert_eq!(at_once(&fixture, "/ok", "other").await.status, 200);
        let answered = while_others_go_on(&fixture, poison.answer()).await;
        assert_eq!(answered.reason(), (503, "no-owner"));
        let tries = service.seen().iter().filter(|path| *path == "/poison").count();
        assert!(tries >= 4, "three, and one more once another was taken; not {tries}");
        assert_eq!(at_once(&fixture, "/ok", "poisonous").await.status, 200);
    }
}

#[tokio::test]
async fn what_stands_behind_a_request_that_is_refused_for_ever_goes_when_that_is_answered() {
    let fixture = Fixture::with(settings(UpstreamProtocol::Http1));
    let service = Service::start(Speaks::Http1).await;
    let mut clients = Vec::new();
    for (number, (path, key)) in
        [("/poison/a", "a"), ("/behind", "a"), ("/poison/b", "b"), ("/ok", "c")].into_iter().enumerate()
    {
        clients.push(asks(&fixture, path, key).await);
        fixture.held(P0, number + 1).await;
    }
    fixture.route(P0, service.pod.address, 1);
    let all_answered = async {
        let mut statuses = Vec::new();
        for client in &mut clients {
            statuses.push(client.answer().await.status);
        }
        statuses
    };
    let statuses = while_others_go_on(&fixture, all_answered).await;
    assert_eq!(statuses, [503, 200, 503, 200]);
    let seen = service.seen();
    let last = |path: &str| seen.iter().rposition(|at| at == path).unwrap();
    assert!(last("/poison/a") < last("/behind"), "{seen:?}");
}

#[tokio::test]
async fn many_requests_that_are_refused_for_ever_hold_up_nobody_for_long() {
    let fixture = Fixture::with(settings(UpstreamProtocol::Http1));
    let service = Service::start(Speaks::Http1).await;
    let mut poisons = Vec::new();
    for number in 0..40 {
        poisons.push(asks(&fixture, "/poison", &format!("poison-{number}")).await);
    }
    fixture.held(P0, 40).await;
    fixture.route(P0, service.pod.address, 1);
    until(|| service.seen().len() >= 4, "the first refusals").await;
    assert_eq!(at_once(&fixture, "/ok", "other").await.status, 200);
    let all_answered = async {
        for poison in &mut poisons {
            assert_eq!(poison.answer().await.reason(), (503, "no-owner"));
        }
    };
    while_others_go_on(&fixture, all_answered).await;
}

#[tokio::test]
async fn a_stream_that_is_refused_for_ever_is_answered_and_holds_up_nobody_for_long() {
    let fixture = Fixture::with(settings(UpstreamProtocol::Http2));
    let address = start_h2_pod(|request, mut respond| {
        if request.uri().path() == "/poison" {
            respond.send_reset(h2::Reason::REFUSED_STREAM);
        } else {
            respond.send_response(Response::new(()), true).unwrap();
        }
    })
    .await;
    fixture.route(P0, address, 1);
    let mut poison = asks(&fixture, "/poison", "poisonous").await;
    until(|| fixture.table.stashed(P0).0 == 1, "the poison to be refused").await;
    assert_eq!(at_once(&fixture, "/ok", "other").await.status, 200);
    let answered = while_others_go_on(&fixture, poison.answer()).await;
    assert_eq!(answered.reason(), (503, "no-owner"));
}

#[tokio::test]
async fn a_held_request_whose_client_is_gone_is_not_sent() {
    let requests = [
        // The client has pipelined, so the router does not read on and cannot see the end.
        ("POST /gone HTTP/1.1\r\nhost: h\r\nx-partition: 0\r\ncontent-length: 1\r\n\r\nyG".to_owned(), 0),
        // The client waits for `100 Continue` before it sends its body.
        (
            "POST /gone HTTP/1.1\r\nhost: h\r\nx-partition: 0\r\nexpect: 100-continue\r\ncontent-length: 5\r\n\r\n"
                .to_owned(),
            0,
        ),
        // The client sends its body without waiting, so the body lies unread in front of the end.
        (
            "POST /gone HTTP/1.1\r\nhost: h\r\nx-partition: 0\r\nexpect: 100-continue\r\ncontent-length: 30000\r\n\r\n"
                .to_owned(),
            30_000,
        ),
    ];
    for (request, body) in requests {
        let fixture = Fixture::with(settings(UpstreamProtocol::Http1));
        let service = Service::start(Speaks::Http1).await;
        let mut client = fixture.send(&request).await;
        client.write(vec![b'x'; body]).await;
        fixture.held(P0, 1).await;
        drop(client);
        let mut other = asks(&fixture, "/other", "other").await;
        until(|| fixture.table.stashed(P0).0 >= 1, "the other").await;
        fixture.route(P0, service.pod.address, 1);
        assert_eq!(soon(other.answer()).await.status, 200);
        fixture.in_flight(P0, 0).await;
        assert_eq!(service.seen(), ["/other"], "{request}");
    }
}
