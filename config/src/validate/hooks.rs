//! The hooks of a sidecar's service: their addresses, timeouts and secret.
//!
//! For: checking each address, and that a hook is given once, in its long or its short form. Not for: the secret's file,
//! which is not opened here.

use std::path::PathBuf;

use segue_coordination::pod::{Hook, HookSettings, HookUrl, HookUrlError, MAX_SOCKET_PATH};
use segue_protocol::handoff::pod_reconcile::Callback;

use super::without_user;
use crate::error::{Wrong, quoted};
use crate::reader::{ConfigReader, text};

/// The keys of a hook.
struct HookKeys {
    callback: Callback,
    url: &'static str,
    timeout: &'static str,
    /// The short form of `url`.
    short: Option<&'static str>,
}

const WARM: HookKeys = HookKeys {
    callback: Callback::Warm,
    url: "pod.hooks.warm.url",
    timeout: "pod.hooks.warm.timeout",
    short: Some("pod.warm_url"),
};
const SYNC: HookKeys = HookKeys {
    callback: Callback::Sync,
    url: "pod.hooks.sync.url",
    timeout: "pod.hooks.sync.timeout",
    short: Some("pod.sync_url"),
};
const LEAVING: HookKeys = HookKeys {
    callback: Callback::Leaving,
    url: "pod.hooks.leaving.url",
    timeout: "pod.hooks.leaving.timeout",
    short: None,
};
const DRAIN: HookKeys =
    HookKeys { callback: Callback::Drain, url: "pod.hooks.drain.url", timeout: "pod.hooks.drain.timeout", short: None };
const RELEASE: HookKeys = HookKeys {
    callback: Callback::Release,
    url: "pod.hooks.release.url",
    timeout: "pod.hooks.release.timeout",
    short: Some("pod.release_url"),
};
const CHECKPOINT: HookKeys = HookKeys {
    callback: Callback::Checkpoint,
    url: "pod.hooks.checkpoint.url",
    timeout: "pod.hooks.checkpoint.timeout",
    short: None,
};

const LOAD_URL: &str = "pod.hooks.load.url";
const LEASE_URL: &str = "pod.hooks.lease.url";
const SECRET_FILE: &str = "pod.hooks.secret_file";

pub(super) fn read(r: &mut ConfigReader<'_>) -> HookSettings {
    let settings = HookSettings {
        warm: hook(r, &WARM),
        sync: hook(r, &SYNC),
        leaving: hook(r, &LEAVING),
        drain: hook(r, &DRAIN),
        release: hook(r, &RELEASE),
        checkpoint: hook(r, &CHECKPOINT),
        load: url(r, LOAD_URL),
        lease: url(r, LEASE_URL),
        secret_file: r.text(SECRET_FILE).map(PathBuf::from),
    };
    let hooks = [&WARM, &SYNC, &LEAVING, &DRAIN, &RELEASE, &CHECKPOINT];
    let mut urls =
        hooks.into_iter().flat_map(|keys| [Some(keys.url), keys.short]).flatten().chain([LOAD_URL, LEASE_URL]);
    if r.is_given(SECRET_FILE) && !urls.any(|key| r.is_given(key)) {
        r.report_key(SECRET_FILE, Wrong::new("given without a hook", "expected a hook that is called with the secret"));
    }
    settings
}

fn hook(r: &mut ConfigReader<'_>, keys: &HookKeys) -> Option<Hook> {
    let (long, short) = (url(r, keys.url), keys.short.and_then(|key| url(r, key)));
    let timeout = r.duration(keys.timeout, Hook::default_timeout(keys.callback));
    let given_short = keys.short.filter(|key| r.is_given(key));
    match given_short {
        Some(short) if r.is_given(keys.url) => {
            let fact = format!("given in addition to {} ({})", keys.url, r.origin(keys.url));
            r.report_key(short, Wrong::new(fact, "expected one of them: the first is the short form of the second"));
        }
        None if r.is_given(keys.timeout) && !r.is_given(keys.url) => {
            r.report_key(keys.timeout, Wrong::new(format!("given without {}", keys.url), "expected both"));
        }
        _ => {}
    }
    long.or(short).map(|url| Hook { url, timeout })
}

fn url(r: &mut ConfigReader<'_>, key: &'static str) -> Option<HookUrl> {
    r.read(key, |value| {
        let text = text(value, EXPECTED_URL)?;
        without_user(text, "expected a URL without them")?;
        text.parse().map_err(|error| wrong(text, &error))
    })
}

const EXPECTED_URL: &str =
    "expected a URL that begins with http://, or unix: and a socket, such as \"unix:/run/a.sock:/warm\"";

fn wrong(text: &str, error: &HookUrlError) -> Wrong {
    let shown = quoted(text);
    match error {
        HookUrlError::Form if text.starts_with("https://") => {
            let near = quoted(&text.replacen("https://", "http://", 1));
            Wrong::new(format!("{shown}: hooks are called without TLS"), EXPECTED_URL).did_you_mean(Some(near))
        }
        HookUrlError::Form => {
            let near = (!text.contains("://") && text.contains(':')).then(|| quoted(&format!("http://{text}")));
            Wrong::new(format!("{shown} is not a URL of this kind"), EXPECTED_URL).did_you_mean(near)
        }
        // The text is not repeated: it may hold a password.
        HookUrlError::Credentials => {
            let expected = "expected a URL without credentials; pod.hooks.secret_file names what each request carries";
            Wrong::new("the URL of this hook has a user's name or password", expected)
        }
        HookUrlError::RelativeSocket => {
            Wrong::new(format!("{shown} does not name a socket by an absolute path"), EXPECTED_URL)
        }
        HookUrlError::LongSocket => {
            let expected = format!("expected at most {MAX_SOCKET_PATH} bytes, as the kernel accepts no more");
            Wrong::new(format!("{shown} names a socket by too long a path"), expected)
        }
    }
}
