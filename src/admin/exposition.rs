//! The page `/metrics` in the format that its reader asks for: the classic text format of Prometheus, or OpenMetrics.
//!
//! `prometheus-client` writes OpenMetrics alone. The classic format differs in how families and two types are named, so
//! it is made from the other, line by line.
//!
//! # Invariants
//!
//! * A metric family is described once, and all its samples follow the description.

use std::collections::HashMap;

use axum::http::{HeaderMap, header};
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::registry::Registry;

use crate::telemetry::exemplars::Exemplars;

const OPEN_METRICS: &str = "application/openmetrics-text";

/// A format of the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    /// The text format 0.0.4, for readers that do not prefer the other.
    Classic,
    /// OpenMetrics 1.0.
    OpenMetrics,
}

impl Format {
    /// Returns the format that the `Accept` of a request prefers.
    pub(crate) fn of(request: &HeaderMap) -> Self {
        let accept = request.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
        let (mut open, mut classic) = (0.0, 0.0);
        for range in accept.flat_map(|value| value.split(',')) {
            let mut parts = range.split(';').map(str::trim);
            let weight = match parts.next() {
                Some(kind) if kind.eq_ignore_ascii_case(OPEN_METRICS) => &mut open,
                Some(kind) if kind.eq_ignore_ascii_case("text/plain") => &mut classic,
                _ => continue,
            };
            let quality = parts.find_map(|parameter| parameter.strip_prefix("q=")).map_or(Ok(1.0), str::parse);
            *weight = f64::max(*weight, quality.unwrap_or(0.0));
        }
        if open > 0.0 && open >= classic { Format::OpenMetrics } else { Format::Classic }
    }

    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Format::Classic => "text/plain; version=0.0.4; charset=utf-8",
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }

    /// Returns the page of these registries. Only OpenMetrics has exemplars.
    pub(crate) fn page(self, registries: &[&Registry], exemplars: &Exemplars) -> String {
        let mut text = String::new();
        // Only a custom collector could fail, and writing to a string does not.
        let _ = registries.iter().try_for_each(|registry| encode_registry(&mut text, registry));
        let mut text = gather(&text);
        let _ = encode_eof(&mut text);
        match self {
            Format::Classic => classic(&text),
            Format::OpenMetrics => exemplars.added_to(text),
        }
    }
}

/// Returns the page with the samples of each metric family in one place. A registry with sub-registries, as for the
/// routers of a demo, describes a family once for each of them, and strict parsers reject a family that is described
/// twice.
fn gather(page: &str) -> String {
    let (mut families, mut places): (Vec<[String; 2]>, HashMap<&str, usize>) = Default::default();
    let (mut place, mut is_new) = (0, true);
    for line in page.lines() {
        if let Some((family, _)) = line.strip_prefix("# HELP ").and_then(|described| described.split_once(' ')) {
            place = *places.entry(family).or_insert(families.len());
            is_new = place == families.len();
        }
        if place == families.len() {
            families.push(Default::default());
        }
        let [description, samples] = &mut families[place];
        match line.starts_with("# ") {
            true if is_new => description.extend([line, "\n"]),
            true => {}
            false => samples.extend([line, "\n"]),
        }
    }
    families.concat().concat()
}

/// Returns a page of OpenMetrics in the classic format. There a family of counters has the name of its series.
fn classic(page: &str) -> String {
    let mut text = String::with_capacity(page.len() + page.len() / 16);
    let mut help = "";
    for line in page.lines() {
        let Some(comment) = line.strip_prefix("# ") else {
            text.extend([line, "\n"]);
            continue;
        };
        if let Some(described) = comment.strip_prefix("HELP ") {
            help = described.split_once(' ').map_or("", |(_, help)| help);
        } else if let Some((family, kind)) = comment.strip_prefix("TYPE ").and_then(|typed| typed.split_once(' ')) {
            let (suffix, kind) = match kind {
                "counter" => ("_total", "counter"),
                "info" => ("_info", "gauge"),
                "unknown" => ("", "untyped"),
                kind => ("", kind),
            };
            text.extend(["# HELP ", family, suffix, " ", help, "\n# TYPE ", family, suffix, " ", kind, "\n"]);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::counter::Counter;
    use prometheus_client::metrics::gauge::Gauge;
    use prometheus_client::metrics::histogram::Histogram;
    use prometheus_client::metrics::info::Info;

    use super::*;

    fn format(accept: &[&str]) -> Format {
        let values = accept.iter().map(|value| (header::ACCEPT, value.parse().unwrap()));
        Format::of(&values.collect())
    }

    #[test]
    fn a_reader_gets_open_metrics_only_if_it_asks_for_that() {
        let prometheus = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,\
            application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;q=0.4,text/plain;version=0.0.4;q=0.3,\
            */*;q=0.2";
        for (accept, expected) in [
            (&[][..], Format::Classic),
            (&["*/*"], Format::Classic),
            (&["text/plain"], Format::Classic),
            (&["text/html, text/plain;q=0.5"], Format::Classic),
            (&["application/openmetrics-text"], Format::OpenMetrics),
            (&["text/plain", "Application/OpenMetrics-Text"], Format::OpenMetrics),
            (&["application/openmetrics-text; q=0.2, text/plain; q=0.3"], Format::Classic),
            (&["application/openmetrics-text;q=0"], Format::Classic),
            (&["application/openmetrics-text;q=none"], Format::Classic),
            (&[prometheus], Format::OpenMetrics),
        ] {
            assert_eq!(format(accept), expected, "{accept:?}");
        }
    }

    #[test]
    fn a_family_of_several_routers_is_described_once() {
        let mut registry = Registry::with_prefix("segue");
        for router in ["a", "b"] {
            let labelled = registry.sub_registry_with_label(("router".into(), router.into()));
            labelled.register("requests", "Requests", Counter::<u64>::default());
            labelled.register("in_flight", "In flight", Gauge::<i64>::default());
        }
        let expected = "# HELP segue_requests_total Requests.\n# TYPE segue_requests_total counter\n\
            segue_requests_total{router=\"a\"} 0\nsegue_requests_total{router=\"b\"} 0\n\
            # HELP segue_in_flight In flight.\n# TYPE segue_in_flight gauge\n\
            segue_in_flight{router=\"a\"} 0\nsegue_in_flight{router=\"b\"} 0\n";
        assert_eq!(Format::Classic.page(&[&registry], &Exemplars::default()), expected);
    }

    #[test]
    fn both_formats_tell_the_same() {
        let mut registry = Registry::with_prefix("segue");
        let counter = Counter::<u64>::default();
        counter.inc();
        registry.register("handoffs", "Handoffs that ended", counter);
        registry.register("leader", "Whether it leads", Gauge::<i64>::default());
        registry.register("pause_seconds", "How long it took", Histogram::new([0.5]));
        registry.register("build", "The build", Info::new([("version", "1")]));
        let same = [
            "# HELP segue_leader Whether it leads.\n# TYPE segue_leader gauge\nsegue_leader 0\n",
            "# TYPE segue_pause_seconds histogram\nsegue_pause_seconds_sum 0.0\nsegue_pause_seconds_count 0\n",
            "\nsegue_handoffs_total 1\n",
            "\nsegue_build_info{version=\"1\"} 1\n",
        ];
        let classic = [
            "# HELP segue_handoffs_total Handoffs that ended.\n# TYPE segue_handoffs_total counter\n",
            "# HELP segue_build_info The build.\n# TYPE segue_build_info gauge\n",
        ];
        let open = [
            "# HELP segue_handoffs Handoffs that ended.\n# TYPE segue_handoffs counter\n",
            "# HELP segue_build The build.\n# TYPE segue_build info\n",
            "# EOF\n",
        ];
        for (format, own) in [(Format::Classic, &classic[..]), (Format::OpenMetrics, &open)] {
            let page = format.page(&[&registry], &Exemplars::default());
            for lines in same.iter().chain(own) {
                assert!(page.contains(lines), "{lines} is missing in {page}");
            }
            assert_eq!(page.contains("EOF"), format == Format::OpenMetrics, "{page}");
        }
    }
}
