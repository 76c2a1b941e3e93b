//! The export of traces: the collector's address, and which requests are recorded.

use http::Uri;
use segue_proxy::spans::Sampler;

use super::{uri, without_user};
use crate::error::{Wrong, nearest, quoted};
use crate::raw::RawValue;
use crate::reader::{ConfigReader, show, text};
use crate::validated::Tracing;

pub(super) const KEYS: &[&str] = &[ENDPOINT, SAMPLE];

const ENDPOINT: &str = "tracing.endpoint";
const SAMPLE: &str = "tracing.sample";

pub(super) fn read(r: &mut ConfigReader<'_>) -> Option<Tracing> {
    let endpoint = r.read(ENDPOINT, endpoint);
    let sampling = r.read(SAMPLE, sampling).unwrap_or_default();
    if r.is_given(SAMPLE) && !r.is_given(ENDPOINT) {
        r.report_key(SAMPLE, Wrong::new(format!("given without {ENDPOINT}"), "expected both or neither"));
    }
    endpoint.map(|endpoint| Tracing { endpoint, sampling })
}

const EXPECTED_ENDPOINT: &str =
    "expected the URL of a collector's OTLP receiver for HTTP, such as \"http://127.0.0.1:4318\"";

fn endpoint(value: &RawValue) -> Result<Uri, Wrong> {
    let given = text(value, EXPECTED_ENDPOINT)?;
    without_user(given, EXPECTED_ENDPOINT)?;
    if given.starts_with("https://") {
        let fact = format!("{}: spans are exported without TLS", quoted(given));
        return Err(Wrong::new(fact, "expected the http:// URL of a collector on this host or in this pod"));
    }
    let endpoint = uri(given, &["http"], EXPECTED_ENDPOINT)?;
    if endpoint.query().is_some() {
        return Err(Wrong::new(format!("{} has a query", quoted(given)), EXPECTED_ENDPOINT));
    }
    if endpoint.path().trim_end_matches('/').ends_with(TRACES) {
        let near = quoted(&given.replacen(TRACES, "", 1));
        let fact = format!("{} names the path of the traces, which Segue adds", quoted(given));
        return Err(Wrong::new(fact, EXPECTED_ENDPOINT).did_you_mean(Some(near)));
    }
    Ok(endpoint)
}

const TRACES: &str = "/v1/traces";

const EXPECTED_SAMPLE: &str = "expected \"parent\", \"always\" or a share of the requests from 0 to 1, such as 0.01";

fn sampling(value: &RawValue) -> Result<Sampler, Wrong> {
    let share = match value {
        RawValue::Variable(text) => text.parse().ok(),
        RawValue::Float(share) => Some(*share),
        RawValue::Integer(0) => Some(0.0),
        RawValue::Integer(1) => Some(1.0),
        RawValue::Integer(_) => Some(f64::NAN),
        _ => None,
    };
    match share {
        Some(share) => {
            let wrong = || Wrong::new(format!("{} is not a share", show(value)), EXPECTED_SAMPLE);
            Sampler::share(share).ok_or_else(wrong)
        }
        None => {
            let name = text(value, EXPECTED_SAMPLE)?;
            let known = Sampler::NAMES.iter().find(|(known, _)| *known == name);
            known.map(|(_, sampling)| *sampling).ok_or_else(|| {
                let near = nearest(name, Sampler::NAMES.iter().map(|(known, _)| *known)).map(quoted);
                Wrong::new(format!("{} is not known", quoted(name)), EXPECTED_SAMPLE).did_you_mean(near)
            })
        }
    }
}
