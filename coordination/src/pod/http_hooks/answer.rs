//! Interprets a service's response to a hook. Pure.

use std::fmt;

use http::StatusCode;
use segue_protocol::records::{CheckpointName, one_line};
use serde_json::Value;

/// The meaning of a service's response.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum HookAnswer {
    /// Any other 2xx: the call is done.
    Done,
    /// `202` with `{"progress":0.4,"detail":"…"}`: the call is in progress; ask again.
    AtWork(HookProgress),
    /// `409` with `{"permanent":true,"reason":"…"}`: the call failed for good.
    Permanent {
        /// The reason that the service gives.
        reason: String,
    },
    /// Any other status: try again.
    Failed {
        /// The beginning of the response, on one line.
        detail: String,
    },
    /// `202` with an invalid body: try again.
    Unreadable {
        /// What was wrong, and what was expected.
        why: String,
    },
}

/// The progress that a service reports.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct HookProgress {
    /// From 0 to 1.
    pub(super) progress: f64,
    /// The service's description of its progress.
    pub(super) detail: Option<String>,
}

impl fmt::Display for HookProgress {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:.0} %", self.progress * 100.0)?;
        self.detail.iter().try_for_each(|detail| write!(out, " ({detail})"))
    }
}

impl HookAnswer {
    /// Returns the meaning of a response.
    pub(super) fn of(status: StatusCode, body: &[u8]) -> HookAnswer {
        match status {
            StatusCode::ACCEPTED => at_work(body),
            status if status.is_success() => HookAnswer::Done,
            StatusCode::CONFLICT => match serde_json::from_slice::<Value>(body) {
                Ok(said) if said["permanent"] == true => {
                    let reason = said["reason"].as_str().map(one_line).filter(|reason| !reason.is_empty());
                    HookAnswer::Permanent { reason: reason.unwrap_or_else(|| "the service gives no reason".to_owned()) }
                }
                _ => HookAnswer::Failed { detail: one_line(&String::from_utf8_lossy(body)) },
            },
            _ => HookAnswer::Failed { detail: one_line(&String::from_utf8_lossy(body)) },
        }
    }
}

/// Reads the checkpoint in a response that means done. An empty body or none in it: the service has nothing new.
pub(super) fn checkpoint_in(body: &[u8]) -> Result<Option<String>, String> {
    const EXPECTED: &str = "expected nothing, or {\"checkpoint\":\"…\"} with text of at most 1024 bytes on one line";
    if body.trim_ascii().is_empty() {
        return Ok(None);
    }
    let said = serde_json::from_slice::<Value>(body).map_err(|_| format!("a body that is not JSON; {EXPECTED}"))?;
    match said.get("checkpoint") {
        Some(Value::Null) => Ok(None),
        Some(Value::String(name)) => match CheckpointName::try_from(name.as_bytes()) {
            Ok(name) => Ok(Some(name.into())),
            Err(error) => Err(format!("a bad name: {error}; {EXPECTED}")),
        },
        Some(_) | None => Err(format!("a body without the text `checkpoint`; {EXPECTED}")),
    }
}

/// Reads a `202`. Without `progress` it means done, as every other 2xx does.
fn at_work(body: &[u8]) -> HookAnswer {
    const EXPECTED: &str = "expected nothing, or {\"progress\":0.4,\"detail\":\"…\"} with a progress from 0 to 1";
    if body.trim_ascii().is_empty() {
        return HookAnswer::Done;
    }
    let unreadable = |what: &str| HookAnswer::Unreadable { why: format!("{what}; {EXPECTED}") };
    let Ok(said) = serde_json::from_slice::<Value>(body) else {
        return unreadable("a body that is not JSON");
    };
    if !said.is_object() {
        return unreadable("a body that is no JSON object");
    }
    match said.get("progress") {
        None => HookAnswer::Done,
        Some(progress) => match progress.as_f64().filter(|progress| (0.0..=1.0).contains(progress)) {
            Some(progress) => {
                HookAnswer::AtWork(HookProgress { progress, detail: said["detail"].as_str().map(one_line) })
            }
            None => unreadable(&format!("the progress {}", one_line(&progress.to_string()))),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(status: u16, body: &str) -> HookAnswer {
        HookAnswer::of(StatusCode::from_u16(status).unwrap(), body.as_bytes())
    }

    #[test]
    fn a_2xx_means_done_whatever_else_it_says() {
        for (status, body) in [(200, ""), (204, ""), (200, "{\"progress\":0.1}"), (201, "garbage"), (299, "")] {
            assert_eq!(of(status, body), HookAnswer::Done, "{status} {body}");
        }
        // Without progress, a `202` means done.
        assert_eq!(of(202, ""), HookAnswer::Done);
        assert_eq!(of(202, "{\"status\":\"accepted\"}"), HookAnswer::Done);
    }

    #[test]
    fn a_202_with_progress_means_ask_again_and_one_that_cannot_be_read_never_means_done() {
        let at_work = |progress, detail: Option<&str>| {
            HookAnswer::AtWork(HookProgress { progress, detail: detail.map(str::to_owned) })
        };
        assert_eq!(of(202, r#"{"progress":0.4,"detail":"7 of 20 files"}"#), at_work(0.4, Some("7 of 20 files")));
        assert_eq!(of(202, r#"{"progress":1,"detail":7}"#), at_work(1.0, None));
        let numbers = [r#"{"progress":0."#, r#"{"progress":40}"#, r#"{"progress":"0.4"}"#, r#"{"progress":null}"#];
        for bad in numbers.into_iter().chain(["soon", "\"soon\"", "[]", "null"]) {
            let HookAnswer::Unreadable { why } = of(202, bad) else { panic!("{bad}") };
            assert!(why.contains("expected nothing, or {\"progress\":0.4"), "{why}");
        }
    }

    #[test]
    fn only_a_409_that_says_so_is_permanent() {
        let permanent = |reason: &str| HookAnswer::Permanent { reason: reason.to_owned() };
        assert_eq!(of(409, r#"{"permanent":true,"reason":"no\ndisk"}"#), permanent("no disk"));
        assert_eq!(of(409, r#"{"permanent":true}"#), permanent("the service gives no reason"));
        for (status, body) in [(409, ""), (409, r#"{"permanent":"true"}"#), (409, "[]"), (500, r#"{"permanent":true}"#)]
        {
            assert_eq!(of(status, body), HookAnswer::Failed { detail: body.to_owned() }, "{status} {body}");
        }
    }

    #[test]
    fn a_checkpoint_is_a_bounded_text_and_anything_else_is_a_failure() {
        assert_eq!(checkpoint_in(br#"{"checkpoint":"s3://b/7@42","news":1}"#), Ok(Some("s3://b/7@42".to_owned())));
        for none in ["", " \n", r#"{"checkpoint":null}"#] {
            assert_eq!(checkpoint_in(none.as_bytes()), Ok(None), "{none}");
        }
        let long = format!(r#"{{"checkpoint":"{}"}}"#, "x".repeat(1025));
        for bad in
            ["done", "{}", "[]", r#"{"checkpoint":7}"#, r#"{"checkpoint":""}"#, r#"{"checkpoint":"a\nb"}"#, &long]
        {
            let why = checkpoint_in(bad.as_bytes()).unwrap_err();
            assert!(why.contains("expected nothing, or {\"checkpoint\""), "{bad}: {why}");
        }
    }

    #[test]
    fn a_long_text_is_cut_and_stays_on_its_line() {
        let HookAnswer::Failed { detail } = of(503, &format!("one\r\ntwo {}", "ä".repeat(1000))) else { panic!() };
        assert_eq!(detail.chars().count(), 256);
        assert!(detail.starts_with("one  two ää"), "{detail}");
    }
}
