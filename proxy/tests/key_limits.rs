//! Limits of each key: what a key gets that sends too much, and that no other key gets less for it.

use std::time::Duration;

use segue_protocol::handoff::router::HoldCause;
use segue_proxy::routing::key_limit::{KeyLimiter, KeyLimits, LimitedBy};
use tokio::time::{Instant, MissedTickBehavior};

use crate::support::client::{Http2Client, empty};
use crate::support::{Fixture, OK, P0, P1, Settings, get_at, soon};

fn limited(limits: &KeyLimits) -> Settings {
    Settings::with(|settings| settings.forward.key_limit = Some(KeyLimiter::new(limits)))
}

fn of_key(key: &str) -> String {
    get_at(P0, &format!("x-key: {key}\r\n"))
}

/// Returns the number of requests that were refused for the rate, by the page of metrics.
fn counted(fixture: &Fixture) -> u64 {
    let page = fixture.metrics_page();
    let series = "segue_requests_total{code=\"429\",reason=\"rate\"} ";
    page.lines().find_map(|line| line.strip_prefix(series)).unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_key_beyond_its_rate_is_told_so_by_each_version_and_in_the_words_of_grpc() {
    let fixture = Fixture::with(limited(&KeyLimits { requests_per_second: 1, ..KeyLimits::default() }));
    let _pod = fixture.quick_pod().await;
    assert_eq!(counted(&fixture), 0);
    let mut client = fixture.client().await;
    assert_eq!(client.ask(of_key("a")).await.status, 200);
    // The first that comes within a second of another one.
    let refused = soon(async {
        loop {
            let answer = client.ask(of_key("a")).await;
            if answer.status != 200 {
                return answer;
            }
        }
    })
    .await;
    assert_eq!((refused.reason(), refused.header("retry-after")), ((429, "rate"), "1"));
    assert!(refused.text().contains("\"partition\":0"), "{}", refused.text());
    assert_eq!(client.ask(of_key("b")).await.status, 200, "the connection goes on, and so does another key");

    let client = fixture.http2_client().await;
    let ask = |key: &'static str, content_type: &'static str| {
        let request = client.request("GET", "/").header("x-key", key).header("content-type", content_type);
        client.ask(request.body(empty()).unwrap())
    };
    // The pod, which speaks HTTP/1.1, understands no call that passes.
    for (key, content_type, status, grpc_status) in [("c", "text/plain", 429, ""), ("d", "application/grpc", 200, "8")]
    {
        let before = counted(&fixture);
        soon(async {
            loop {
                let answer = ask(key, content_type).await;
                if answer.header("segue-reason") == "rate" {
                    assert_eq!((answer.status, answer.header("grpc-status")), (status, grpc_status));
                    assert_eq!(answer.header("retry-after"), "1");
                    return;
                }
            }
        })
        .await;
        assert_eq!(counted(&fixture), before + 1);
    }
}

#[tokio::test]
async fn a_key_has_no_more_requests_than_it_may_whether_they_wait_or_are_in_flight() {
    let fixture = Fixture::with(limited(&KeyLimits { max_in_flight: 1, ..KeyLimits::default() }));
    let pod = fixture.scripted_pod().await;
    let (mut first, mut one) = fixture.exchange(&pod, of_key("a")).await;
    for _ in 0..2 {
        assert_eq!(fixture.ask(of_key("a")).await.reason(), (429, "rate"));
    }
    // One whose client has left still counts, because its pod goes on with it.
    let (gone, _theirs) = fixture.exchange(&pod, of_key("b").replace("GET", "POST")).await;
    drop(gone);
    assert_eq!(fixture.ask(of_key("b")).await.reason(), (429, "rate"));
    // A held one counts as well, in its partition and in another one.
    fixture.hold(P1, HoldCause::Handoff);
    let mut held = fixture.send(get_at(P1, "x-key: c\r\n")).await;
    fixture.held(P1, 1).await;
    assert_eq!(fixture.ask(of_key("c")).await.reason(), (429, "rate"));
    // Requests without a key are no key's.
    let without = [fixture.exchange(&pod, get_at(P0, "")).await, fixture.exchange(&pod, get_at(P0, "")).await];

    one.write(OK).await;
    assert_eq!(first.answer().await.status, 200);
    let mut again = fixture.send(of_key("a")).await;
    one.head().await;
    one.write(OK).await;
    assert_eq!(again.answer().await.status, 200);
    fixture.route(P1, pod.address, 1);
    one.head().await;
    one.write(OK).await;
    assert_eq!(held.answer().await.status, 200);
    drop(without);
}

#[tokio::test]
async fn a_request_that_its_pod_bounces_counts_once() {
    let limits = KeyLimits { requests_per_second: 1, burst: 1000, max_in_flight: 1, ..KeyLimits::default() };
    let fixture = Fixture::with(limited(&limits));
    let pod = fixture.scripted_pod().await;
    let (mut client, mut connection) = fixture.exchange(&pod, of_key("a")).await;
    for _ in 0..3 {
        connection.write("HTTP/1.1 421 Misdirected Request\r\ncontent-length: 0\r\n\r\n").await;
        connection.head().await;
        assert_eq!(fixture.ask(of_key("a")).await.reason(), (429, "rate"));
    }
    connection.write(OK).await;
    assert_eq!(client.answer().await.status, 200);
    client.write(of_key("a")).await;
    connection.head().await;
}

#[tokio::test]
async fn a_tenant_is_the_last_value_of_a_header() {
    let by = LimitedBy::Header("x-tenant".parse().unwrap());
    let fixture = Fixture::with(limited(&KeyLimits { by, max_in_flight: 1, ..KeyLimits::default() }));
    let pod = fixture.scripted_pod().await;
    let of = |tenants: &[&str]| {
        let lines: String = tenants.iter().map(|tenant| format!("x-tenant: {tenant}\r\n")).collect();
        get_at(P0, &(lines + "x-key: a\r\n"))
    };
    let _first = fixture.exchange(&pod, of(&["mine"])).await;
    for same in [&["mine"][..], &["other", "mine"]] {
        assert_eq!(fixture.ask(of(same)).await.reason(), (429, "rate"), "{same:?}");
    }
    let _second = fixture.exchange(&pod, of(&["mine", "other"])).await;
    let _third = fixture.exchange(&pod, of(&[])).await;
    assert_eq!(fixture.ask(of(&[])).await.reason(), (429, "rate"));
}

/// Sends requests of this key, as fast as they are answered, for this time. Returns how many were served.
async fn flood(client: Http2Client, time: Duration) -> u32 {
    let (began, mut served) = (Instant::now(), 0);
    while began.elapsed() < time {
        let request = client.request("GET", "/").header("x-key", "hot").body(empty()).unwrap();
        match client.ask(request).await.status {
            200 => served += 1,
            status => assert_eq!(status, 429),
        }
    }
    served
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_far_above_its_rate_gets_its_rate_from_all_workers_and_leaves_others_untouched() {
    // Slow enough that any machine can send ten times as many.
    const RATE: u32 = 10;
    let mut settings = limited(&KeyLimits { requests_per_second: RATE, burst: 5, ..KeyLimits::default() });
    settings.server.workers = 2;
    let fixture = Fixture::with(settings);
    let _pod = fixture.quick_pod().await;
    let began = Instant::now();
    let mut hot = tokio::task::JoinSet::new();
    for _ in 0..8 {
        hot.spawn(flood(fixture.http2_client().await, Duration::from_secs(2)));
    }
    let mut others = tokio::task::JoinSet::new();
    for key in 0..20 {
        let mut client = fixture.client().await;
        others.spawn(async move {
            let mut pace = tokio::time::interval(Duration::from_secs(1) / (RATE - 2));
            pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
            for _ in 0..16 {
                pace.tick().await;
                assert_eq!(client.ask(of_key(&format!("key-{key}"))).await.status, 200);
            }
        });
    }
    others.join_all().await;
    let served: u32 = hot.join_all().await.into_iter().sum();
    let most = 5 + (f64::from(RATE) * began.elapsed().as_secs_f64()) as u32 + 1;
    assert!(served <= most && served > 5, "{served} of at most {most}");
    assert!(counted(&fixture) > u64::from(served) * 9, "it sent little: {} refused", counted(&fixture));
}
