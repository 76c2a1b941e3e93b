//! The series that are exported, and their sums over workers.

use prometheus_client::registry::Registry;

use super::*;

fn text(metrics: &Metrics) -> String {
    let mut registry = Registry::with_prefix("segue");
    metrics.register(&mut registry);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    text
}

#[test]
fn every_series_of_the_routers_own_is_there_at_zero() {
    let text = text(&Metrics::new(2));
    for own in LocalReply::ALL {
        let line =
            format!("segue_requests_total{{code=\"{}\",reason=\"{}\"}} 0\n", own.status().as_u16(), own.reason());
        assert!(text.contains(&line), "{line} in {text}");
    }
    for line in [
        "segue_requests_total{code=\"500\",reason=\"lease-lost\"} 0\n",
        "segue_requests_bounced_total{cause=\"misdirected\"} 0\n",
        "segue_requests_bounced_total{cause=\"refused\"} 0\n",
        "segue_requests_bounced_total{cause=\"spared\"} 0\n",
        "segue_requests_in_flight 0\n",
        "segue_request_duration_seconds_count 0\n",
        "segue_stash_wait_seconds_count 0\n",
        "segue_stash_rejected_total{reason=\"stash-full\"} 0\n",
        "segue_request_duration_seconds_bucket{le=\"0.0001\"} 0\n",
        "segue_request_duration_seconds_bucket{le=\"+Inf\"} 0\n",
    ] {
        assert!(text.contains(line), "{line} in {text}");
    }
}

#[test]
fn keyspaces_and_their_listener_share_no_series() {
    let (keyspace, listener) = (Metrics::new(1), Metrics::new(1));
    let mut registry = Registry::with_prefix("segue");
    keyspace.register_keyspace(registry.sub_registry_with_label(("keyspace".into(), "a".into())));
    listener.register_listener(&mut registry);
    listener.worker(0).answered(LocalReply::NoKeyspace);
    listener.worker(0).connected();
    keyspace.worker(0).passed(StatusCode::OK);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    for line in [
        "segue_requests_total{keyspace=\"a\",code=\"200\",reason=\"\"} 1\n",
        "segue_requests_total{keyspace=\"a\",code=\"400\",reason=\"no-partition\"} 0\n",
        "segue_requests_total{code=\"400\",reason=\"no-partition\"} 1\n",
        "segue_connections 1\n",
    ] {
        assert!(text.contains(line), "{line} in {text}");
    }
    let mut series: Vec<_> =
        text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.rsplit_once(' ')).collect();
    series.sort_unstable();
    assert!(series.windows(2).all(|two| two[0].0 != two[1].0), "{text}");
}

#[test]
fn a_status_that_means_nothing_is_counted_as_well() {
    let metrics = Metrics::new(1);
    for status in [200, 599, 600, 999] {
        metrics.worker(0).passed(StatusCode::from_u16(status).unwrap());
    }
    let text = text(&metrics);
    for status in [200, 599, 600, 999] {
        let line = format!("segue_requests_total{{code=\"{status}\",reason=\"\"}} 1\n");
        assert!(text.contains(&line), "{line} in {text}");
    }
}

#[test]
fn the_workers_are_added_up() {
    let metrics = Metrics::new(2);
    metrics.worker(0).passed(StatusCode::CREATED);
    metrics.worker(1).passed(StatusCode::CREATED);
    metrics.worker(0).begins();
    metrics.worker(1).took(Duration::from_micros(150));
    let text = text(&metrics);
    for line in [
        "segue_requests_total{code=\"201\",reason=\"\"} 2\n",
        "segue_requests_in_flight 1\n",
        "segue_request_duration_seconds_bucket{le=\"0.0001\"} 0\n",
        "segue_request_duration_seconds_bucket{le=\"0.0002\"} 1\n",
        "segue_request_duration_seconds_count 1\n",
    ] {
        assert!(text.contains(line), "{line} in {text}");
    }
    metrics.worker(0).ends();
    assert_eq!(metrics.requests_in_flight(), 0);
}
