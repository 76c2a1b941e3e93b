//! The sidecar's hooks, called over real sockets.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use segue_coordination::pod::{
    HandoffContext, HandoffHandler as _, Hook, HookSettings, HookUrl, Hooks, LoadReport, PermanentFailure, PodAddress,
    PodHandle, PodSettings,
};
use segue_protocol::handoff::pod_reconcile::Callback;
use segue_protocol::ids::{Epoch, HandoffId, PartitionId, Revision};
use segue_protocol::records::{Phase, PodAckKind};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::task::JoinHandle;

use super::fixture::{Fixture, Pod};

const H42: HandoffId = HandoffId::created_at(Revision::new(42));
const E3: Epoch = Epoch::new(3);
const P0: PartitionId = PartitionId::new(0);
const P1: PartitionId = PartitionId::new(1);
const P7: PartitionId = PartitionId::new(7);

/// Longer than any call here takes.
const LONG: Duration = Duration::from_secs(60);
/// Shorter than a service of these tests stays silent.
const SHORT: Duration = Duration::from_millis(300);

pub(crate) fn url(port: u16, path: &str) -> HookUrl {
    format!("http://127.0.0.1:{port}{path}").parse().unwrap()
}

fn hook(url: HookUrl, timeout: Duration) -> Option<Hook> {
    Some(Hook { url, timeout })
}

fn hooks_of(settings: HookSettings) -> Hooks {
    Hooks::new(settings, "orders")
}

fn warms(port: u16, timeout: Duration) -> Hooks {
    hooks_of(HookSettings { warm: hook(url(port, "/warm"), timeout), ..HookSettings::default() })
}

fn part() -> HandoffContext {
    HandoffContext {
        keyspace: "orders".to_owned(),
        partition: P7,
        epoch: E3,
        handoff: H42,
        checkpoint: None,
        partitions: 4,
        from: None,
        to: Some(PodAddress { pod: "w-1".to_owned(), address: "10.0.0.1:1".to_owned() }),
    }
}

/// Answers each connection with the next of these statuses. The task returns the requests.
pub(crate) async fn service(statuses: Vec<u16>) -> (u16, JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let task = tokio::spawn(async move {
        let mut seen = Vec::new();
        for status in statuses {
            seen.push(answer(&listener, status).await);
        }
        seen
    });
    (port, task)
}

/// Answers the next connection and closes it. Returns its request.
pub(crate) async fn answer(listener: &TcpListener, status: u16) -> String {
    let (mut stream, _) = listener.accept().await.unwrap();
    let request = read_request(&mut stream).await.unwrap();
    let answer = format!("HTTP/1.1 {status} X\r\nconnection: close\r\ncontent-length: 0\r\n\r\n");
    stream.write_all(answer.as_bytes()).await.unwrap();
    request
}

/// Returns the next request of a hook; `None` if the connection was closed instead.
async fn read_request(stream: &mut (impl AsyncRead + Unpin)) -> Option<String> {
    let mut request = String::new();
    while !request.ends_with('}') {
        let mut part = [0; 1024];
        let read = stream.read(&mut part).await.unwrap();
        if read == 0 {
            assert!(request.is_empty(), "closed after: {request}");
            return None;
        }
        request.push_str(std::str::from_utf8(&part[..read]).unwrap());
    }
    Some(request)
}

async fn write_answer(stream: &mut (impl AsyncWrite + Unpin), status: u16, body: &str) {
    let head = format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\n\r\n", body.len());
    stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
}

/// A service that answers the requests of all connections with these, one after the other, and keeps connections open.
/// The task returns the number of connections that it took.
async fn script(answers: Vec<(u16, &'static str)>) -> (u16, JoinHandle<usize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let task = tokio::spawn(async move {
        let (mut answers, mut connections) = (answers.into_iter().peekable(), 0);
        while answers.peek().is_some() {
            let (mut stream, _) = listener.accept().await.unwrap();
            connections += 1;
            while answers.peek().is_some() && read_request(&mut stream).await.is_some() {
                let (status, body) = answers.next().unwrap();
                write_answer(&mut stream, status, body).await;
            }
        }
        connections
    });
    (port, task)
}

/// A service that reads one request, writes `bytes` and then does as `then` says.
async fn broken(bytes: &'static str, then: fn(TcpStream)) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        read_request(&mut stream).await.unwrap();
        stream.write_all(bytes.as_bytes()).await.unwrap();
        then(stream);
    });
    port
}

/// Keeps a connection open until the test's end.
fn keep(stream: TcpStream) {
    tokio::spawn(async move {
        let _stream = stream;
        std::future::pending::<()>().await;
    });
}

#[tokio::test]
async fn a_hook_gets_the_move_as_json_and_any_2xx_means_done() {
    let (port, task) = service(vec![204, 200, 500]).await;
    let settings = HookSettings {
        warm: hook(url(port, "/segue/warm?a=b"), LONG),
        drain: hook(url(port, "/segue/drain"), LONG),
        release: hook(url(port, "/segue/release"), LONG),
        ..HookSettings::default()
    };
    let capabilities = settings.capabilities(true);
    assert!(!capabilities.sync && capabilities.drained && capabilities.fence);
    let hooks = hooks_of(settings);
    hooks.warm(&part()).await.unwrap();
    hooks.drain(&part()).await.unwrap();
    let error = hooks.release(&part()).await.unwrap_err();
    assert_eq!(error.to_string(), format!("http://127.0.0.1:{port}/segue/release responded 500 Internal Server Error"));
    hooks.sync(&part()).await.unwrap();

    let seen = task.await.unwrap();
    assert!(seen[0].starts_with("POST /segue/warm?a=b HTTP/1.1\r\n"), "{}", seen[0]);
    assert!(seen[0].contains(&format!("host: 127.0.0.1:{port}\r\n")) && !seen[0].contains("segue-hook-secret"));
    let (_, body) = seen[0].split_once("\r\n\r\n").unwrap();
    let body: serde_json::Value = serde_json::from_str(body).unwrap();
    assert_eq!(
        body,
        serde_json::json!({
            "keyspace": "orders", "partition": 7, "epoch": 3, "handoff": 42, "partitions": 4,
            "from": null, "to": {"pod": "w-1", "address": "10.0.0.1:1"},
        })
    );
    assert!(seen[1].starts_with("POST /segue/drain HTTP/1.1\r\n"), "{}", seen[1]);
}

#[tokio::test]
async fn a_service_that_is_not_there_is_an_error() {
    let port = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let error = warms(port, LONG).warm(&part()).await.unwrap_err().to_string();
    assert!(error.contains("cannot be reached") && error.contains("Connection refused"), "{error}");
}

#[tokio::test]
async fn a_service_that_is_still_at_work_is_asked_again_on_the_same_connection() {
    let at_work = |body| (202, body);
    let (port, task) = script(vec![
        at_work(r#"{"progress":0.1,"detail":"7 of 70 files"}"#),
        at_work(r#"{"progress":0.4}"#),
        (200, "a text that nobody reads"),
        (200, ""),
    ])
    .await;
    let hooks = warms(port, LONG);
    hooks.warm(&part()).await.unwrap();
    assert!(hooks.reports().all().is_empty(), "what has succeeded leaves no report");
    hooks.warm(&part()).await.unwrap();
    assert_eq!(task.await.unwrap(), 1);
}

#[tokio::test]
async fn what_a_service_says_is_reported_while_it_works_and_after_it_has_failed() {
    let (port, _task) = script(vec![(503, "no\ndisk"), (202, r#"{"progress":0.4,"detail":"half of it"}"#)]).await;
    let hooks = Arc::new(warms(port, LONG));
    hooks.warm(&part()).await.unwrap_err();
    let failed = hooks.reports().all()[&P7].clone();
    assert_eq!((failed.callback, failed.handoff, failed.epoch), (Callback::Warm, H42, E3));
    let failure = format!("http://127.0.0.1:{port}/warm responded 503 Service Unavailable: no disk");
    assert_eq!((failed.is_running, failed.failures, failed.failure), (false, 1, Some(failure.clone())));
    let running = tokio::spawn({
        let hooks = hooks.clone();
        async move { hooks.warm(&part()).await }
    });
    let report = loop {
        let report = hooks.reports().all()[&P7].clone();
        if report.progress.is_some() {
            break report;
        }
        tokio::task::yield_now().await;
    };
    assert_eq!((report.progress, report.detail.as_deref()), (Some(0.4), Some("half of it")));
    assert_eq!((report.is_running, report.failures, report.failure), (true, 1, Some(failure)), "so far");
    running.abort();
    assert!(running.await.unwrap_err().is_cancelled());
    assert!(hooks.reports().all().is_empty(), "what is no longer due leaves no report");
}

#[tokio::test]
async fn a_silent_service_and_one_that_never_gets_done_fail_at_their_timeout() {
    let port = broken("", keep).await;
    let error = warms(port, SHORT).warm(&part()).await.unwrap_err();
    assert_eq!(error.to_string(), format!("http://127.0.0.1:{port}/warm did not respond within {SHORT:?}"));
    let (port, _task) = script(vec![(202, r#"{"progress":0.9,"detail":"nearly there"}"#); 100]).await;
    let error = warms(port, SHORT).warm(&part()).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("http://127.0.0.1:{port}/warm was not done within {SHORT:?}; it last said 90 % (nearly there)")
    );
}

#[tokio::test]
async fn a_service_that_breaks_off_has_not_succeeded() {
    for (bytes, why) in [
        ("", "connection closed before message completed"),
        ("HTTP/1.1 200", "connection closed before message completed"),
        ("HTTP/1.1 202 X\r\ncontent-length: 100\r\n\r\n{}", "end of file before message length reached"),
        ("HTTP/1.1 409 X\r\ncontent-length: 100\r\n\r\n{\"permanent\":true}", "end of file before"),
        ("this is no HTTP\r\n\r\n", "invalid HTTP version parsed"),
    ] {
        let port = broken(bytes, drop).await;
        let error = warms(port, LONG).warm(&part()).await.unwrap_err();
        assert!(!error.is::<PermanentFailure>(), "{bytes}: {error}");
        let error = error.to_string();
        assert!(error.contains("did not respond") && error.contains(why), "{bytes}: {error}");
    }
    // Its status is known, and the rest would only explain it.
    let port = broken("HTTP/1.1 500 X\r\ncontent-length: 100\r\n\r\nhalf of", drop).await;
    let error = warms(port, LONG).warm(&part()).await.unwrap_err().to_string();
    assert!(error.ends_with("responded 500 Internal Server Error"), "{error}");
}

#[tokio::test]
async fn an_endless_response_is_no_answer_unless_its_status_is_one() {
    let port = broken("HTTP/1.1 200 X\r\ntransfer-encoding: chunked\r\n\r\n", keep).await;
    warms(port, LONG).warm(&part()).await.unwrap();
    let port = broken("HTTP/1.1 202 X\r\ntransfer-encoding: chunked\r\n\r\n", keep).await;
    let error = warms(port, SHORT).warm(&part()).await.unwrap_err().to_string();
    assert!(error.contains("did not respond within"), "{error}");
}

#[tokio::test]
async fn garbage_in_a_202_is_a_failure_that_says_what_was_expected() {
    let (port, _task) = script(vec![(202, r#"{"progress":40}"#)]).await;
    let error = warms(port, LONG).warm(&part()).await.unwrap_err().to_string();
    let expected = "responded 202 Accepted with the progress 40; expected nothing, or {\"progress\":0.4";
    assert!(error.contains(expected), "{error}");
}

#[tokio::test]
async fn only_a_new_owner_can_fail_for_good() {
    let (port, _task) = script(vec![(409, r#"{"permanent":true,"reason":"no disk"}"#); 4]).await;
    let each = hook(url(port, "/"), LONG);
    let hooks = hooks_of(HookSettings {
        warm: each.clone(),
        sync: each.clone(),
        drain: each.clone(),
        release: each,
        ..HookSettings::default()
    });
    let failed = [hooks.warm(&part()).await.unwrap_err(), hooks.sync(&part()).await.unwrap_err()];
    for error in failed {
        assert_eq!(error.downcast_ref(), Some(&PermanentFailure::new("no disk")));
    }
    for error in [hooks.drain(&part()).await.unwrap_err(), hooks.release(&part()).await.unwrap_err()] {
        assert!(!error.is::<PermanentFailure>());
        assert_eq!(error.to_string(), format!("http://127.0.0.1:{port}/ cannot do it: no disk"));
    }
}

#[tokio::test]
async fn a_hook_is_called_on_a_unix_socket() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("a.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let service = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let request = read_request(&mut stream).await.unwrap();
        write_answer(&mut stream, 200, "").await;
        request
    });
    let url: HookUrl = format!("unix:{}:/segue/warm?a=b", socket.display()).parse().unwrap();
    hooks_of(HookSettings { warm: hook(url, LONG), ..HookSettings::default() }).warm(&part()).await.unwrap();
    let request = service.await.unwrap();
    assert!(request.starts_with("POST /segue/warm?a=b HTTP/1.1\r\n"), "{request}");
    assert!(request.contains("host: localhost\r\n"), "{request}");
    let url: HookUrl = format!("unix:{}/gone.sock", folder.path().display()).parse().unwrap();
    let hooks = hooks_of(HookSettings { warm: hook(url, LONG), ..HookSettings::default() });
    let error = hooks.warm(&part()).await.unwrap_err().to_string();
    assert!(error.contains("gone.sock cannot be reached") && error.contains("No such file"), "{error}");
}

#[tokio::test]
async fn each_call_carries_the_secret_that_its_file_has_by_then() {
    let folder = tempfile::tempdir().unwrap();
    let file: PathBuf = folder.path().join("secret");
    let (port, task) = service(vec![200, 200]).await;
    let hooks = hooks_of(HookSettings {
        warm: hook(url(port, "/"), LONG),
        secret_file: Some(file.clone()),
        ..HookSettings::default()
    });
    let refused = async |why: &str| {
        let error = hooks.warm(&part()).await.unwrap_err().to_string();
        assert!(
            error.contains(&format!("pod.hooks.secret_file {}: ", file.display())) && error.contains(why),
            "{error}"
        );
    };
    refused("No such file").await;
    for (content, why) in [(" \n", "it is empty"), ("two\nlines", "expected a secret on one line")] {
        std::fs::write(&file, content).unwrap();
        refused(why).await;
    }
    for secret in ["first", "second"] {
        std::fs::write(&file, format!("{secret}\n")).unwrap();
        hooks.warm(&part()).await.unwrap();
    }
    let seen = task.await.unwrap();
    assert!(seen[0].contains("\r\nsegue-hook-secret: first\r\n"), "{}", seen[0]);
    assert!(seen[1].contains("\r\nsegue-hook-secret: second\r\n"), "{}", seen[1]);
}

/// Starts a sidecar's pod with a handoff to it that is warming.
async fn warming(fixture: &Fixture, port: u16) -> (PodHandle, Pod, HandoffId) {
    let settings = HookSettings { warm: hook(url(port, "/warm"), LONG), ..HookSettings::default() };
    let capabilities = settings.capabilities(true);
    let pod = PodSettings { capabilities, ..PodSettings::new("w", "127.0.0.1:1") };
    let hooks = Arc::new(hooks_of(settings));
    let handle = PodHandle::start(fixture.store.clone(), "default", fixture.keys.clone(), pod, hooks);
    handle.status().wait_for(|state| state.not_ready.is_none()).await.unwrap();
    // The record needs a name and a life, not a service of the test's.
    let stand_in = Pod::start(fixture, "other").await;
    let mut record = {
        fixture.begin(P1, None, &stand_in, 1).await;
        fixture.handoff(P1).await.unwrap()
    };
    record.partition = P0;
    record.phase = Phase::Warming;
    record.new_owner = "w".to_owned();
    record.new_incarnation = handle.status().borrow().incarnation;
    let revision = fixture.put(fixture.keys.handoff(P0), segue_protocol::records::encode(&record)).await;
    (handle, stand_in, HandoffId::created_at(revision))
}

#[tokio::test]
async fn a_sidecar_moves_its_handoff_when_the_service_has_warmed_at_last() {
    let (fixture, _) = Fixture::new();
    let (port, task) = service(vec![503, 503, 200]).await;
    let _pods = warming(&fixture, port).await;
    fixture.assigned(P0).await;
    assert_eq!(task.await.unwrap().len(), 3);
}

#[tokio::test]
async fn a_sidecar_whose_service_fails_for_good_says_so_once_and_does_not_try_again() {
    let (fixture, _) = Fixture::new();
    // A second call would find nobody, and the handoff's next one has to be another attempt.
    let (port, task) = script(vec![(409, r#"{"permanent":true,"reason":"no disk"}"#), (200, "")]).await;
    let (_handle, _other, handoff) = warming(&fixture, port).await;
    let says = |view: &segue_protocol::view::View| view.pod_ack(P0, "w", PodAckKind::Failed, handoff).is_some();
    let view = fixture.until("failed", says).await;
    let ack = view.pod_ack(P0, "w", PodAckKind::Failed, handoff).unwrap();
    assert_eq!(ack.reason.as_deref(), Some("no disk"));
    let mut record = view.handoffs[&P0].value.clone();
    assert_eq!(record.phase, Phase::Warming);
    assert!(!task.is_finished(), "the service is not called again");
    // The coordinator cancels, and plans the same pod again later.
    fixture.delete(P0).await;
    record.epoch = record.epoch.next();
    fixture.put(fixture.keys.handoff(P0), segue_protocol::records::encode(&record)).await;
    fixture.assigned(P0).await;
    assert!(task.await.unwrap() > 0);
}

#[tokio::test]
async fn the_hook_checkpoint_returns_what_the_service_names_and_warm_is_told_the_newest() {
    let bad = "no JSON";
    let (port, _) = script(vec![(200, r#"{"checkpoint":"at 42"}"#), (200, ""), (200, bad), (503, "busy")]).await;
    let settings = HookSettings { checkpoint: hook(url(port, "/checkpoint"), LONG), ..HookSettings::default() };
    assert!(settings.capabilities(false).checkpoint && !HookSettings::default().capabilities(false).checkpoint);
    let hooks = hooks_of(settings);
    assert_eq!(hooks.checkpoint(&part()).await.unwrap().as_deref(), Some("at 42"));
    assert_eq!(hooks.checkpoint(&part()).await.unwrap(), None);
    for expected in ["a body that is not JSON; expected nothing, or", "503 Service Unavailable: busy"] {
        let error = hooks.checkpoint(&part()).await.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }

    let (port, seen) = service(vec![200, 200]).await;
    let hooks = warms(port, LONG);
    hooks.warm(&part()).await.unwrap();
    hooks.warm(&HandoffContext { checkpoint: Some("at 42".to_owned()), ..part() }).await.unwrap();
    let seen = seen.await.unwrap();
    assert!(!seen[0].contains("checkpoint") && seen[1].contains(r#""checkpoint":"at 42""#), "{seen:?}");
}

#[tokio::test]
async fn a_service_reports_the_keys_of_its_partitions_for_later_heartbeats() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let hooks = hooks_of(HookSettings { load: Some(url(port, "/load")), ..HookSettings::default() });
    assert_eq!(hooks.load(P7), LoadReport::default(), "it is asked first");
    let (mut stream, _) = listener.accept().await.unwrap();
    let request = read_request(&mut stream).await.unwrap();
    assert!(
        request.starts_with("POST /load HTTP/1.1\r\n") && request.ends_with(r#"{"keyspace":"orders"}"#),
        "{request}"
    );
    write_answer(&mut stream, 200, r#"{"partitions":{"7":{"keys":1200}}}"#).await;
    let expected = LoadReport { load: None, keys: Some(1200) };
    while hooks.load(P7) != expected {
        tokio::task::yield_now().await;
    }
    assert_eq!(hooks.load(P1), LoadReport::default());
}
