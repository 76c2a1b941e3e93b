//! Names that a shell offers at Tab: pods, routers and partitions of the keyspace that the command line is for.
//!
//! # Invariants
//!
//! * An answer comes within a second. Without one, nothing is offered and nothing is printed.
//! * A name that a shell would interpret is not offered.

use std::ffi::{OsStr, OsString};
use std::time::Duration;

use clap::Parser as _;
use clap_complete::CompletionCandidate;
use tokio::time::timeout;

use super::Reach;
use crate::commands::bash_words::joined;
use crate::commands::runtime;
use crate::commands::target::{ReachArgs, TLS_KEY};
use crate::operator::status::KeyspaceStatus;

/// How long a shell waits.
const PATIENCE: Duration = Duration::from_secs(1);
/// Most names that are offered.
const MOST_NAMES: usize = 256;
/// The options that say where the keyspace is.
const OPTIONS: [&str; 9] =
    ["--server", "--token-file", "--config", "--etcd", "--ca", "--cert", "--key", "--keyspace", "--prefix"];

/// Returns the names of pods that begin so.
pub(super) fn pods(current: &OsStr) -> Vec<CompletionCandidate> {
    candidates(current, pod_names)
}

/// Returns the names of pods and routers that begin so.
pub(super) fn participants(current: &OsStr) -> Vec<CompletionCandidate> {
    candidates(current, |status| [pod_names(status), status.routers.clone()].concat())
}

/// Returns the numbers of partitions that begin so.
pub(super) fn partitions(current: &OsStr) -> Vec<CompletionCandidate> {
    candidates(current, partition_numbers)
}

/// Returns the names of pods and the numbers of partitions that begin so.
pub(super) fn pods_and_partitions(current: &OsStr) -> Vec<CompletionCandidate> {
    candidates(current, |status| [pod_names(status), partition_numbers(status)].concat())
}

fn pod_names(status: &KeyspaceStatus) -> Vec<String> {
    status.pods.iter().map(|pod| pod.name.clone()).collect()
}

fn partition_numbers(status: &KeyspaceStatus) -> Vec<String> {
    (0..status.partitions).map(|number| number.to_string()).collect()
}

fn candidates(current: &OsStr, names: impl FnOnce(&KeyspaceStatus) -> Vec<String>) -> Vec<CompletionCandidate> {
    let Some((current, status)) = current.to_str().zip(status(std::env::args_os().collect())) else {
        return Vec::new();
    };
    let offered = names(&status).into_iter().filter(|name| name.starts_with(current) && is_plain(name));
    offered.take(MOST_NAMES).map(CompletionCandidate::new).collect()
}

/// Returns whether a shell takes the name as it is.
fn is_plain(name: &str) -> bool {
    !name.starts_with('-') && name.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
}

/// Returns the status of the keyspace that these words of a command line name.
fn status(words: Vec<OsString>) -> Option<KeyspaceStatus> {
    #[derive(Debug, clap::Parser)]
    struct Connection {
        #[command(flatten)]
        reach: ReachArgs,
    }
    let Connection { reach } = Connection::try_parse_from(connection_options(words)).ok()?;
    let runtime = runtime().ok()?;
    let asked = async { Reach::open(&reach).await.ok()?.status().await.ok() };
    let status = runtime.block_on(async { timeout(PATIENCE, asked).await.ok().flatten() });
    // Without waiting for a look-up of a name.
    runtime.shutdown_background();
    status
}

/// Returns the connection options among the words, each with its value.
fn connection_options(words: Vec<OsString>) -> Vec<OsString> {
    let (words, _) = joined(words, 0);
    let mut found = vec![OsString::from("segue")];
    let explains = words.get(1).is_some_and(|command| command == "explain");
    for (at, word) in words.iter().enumerate() {
        let Some(word) = word.to_str() else { continue };
        let (option, value) = word.split_once('=').map_or((word, None), |(option, value)| (option, Some(value)));
        let option = match option {
            "--key" if explains => continue,
            option if explains && option.strip_prefix("--") == Some(TLS_KEY) => "--key",
            option => option,
        };
        if OPTIONS.contains(&option) {
            let next = || words.get(at + 1).cloned();
            let Some(value) = value.map(OsString::from).or_else(next) else { continue };
            found.extend([option.into(), value]);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split('|').map(OsString::from).collect()
    }

    #[test]
    fn connection_options_are_found_however_a_shell_splits_the_words() {
        let expected = words("segue|--server|http://127.0.0.1:9090|--keyspace|k");
        for line in [
            "segue|drain|--server|http://127.0.0.1:9090|--keyspace|k|--no-wait|wr",
            "segue|drain|--server=http://127.0.0.1:9090|--keyspace=k|wr",
            "segue|drain|--server|http|:|//127.0.0.1|:|9090|--keyspace|=|k|wr",
        ] {
            assert_eq!(connection_options(words(line)), expected, "{line}");
        }
        assert_eq!(connection_options(words("segue|drain|--server")), words("segue"));
        let line = "segue|explain|--key|a|--cert|c|--tls-key|k|7";
        assert_eq!(connection_options(words(line)), words("segue|--cert|c|--key|k"), "the key of a request is none");
    }

    #[test]
    fn names_that_a_shell_would_interpret_are_not_offered() {
        assert!(["writer-1", "10.0.0.7", "a_b"].into_iter().all(is_plain));
        assert!(!["$(reboot)", "a b", "--yes", "a;b", "a\nb", "é"].into_iter().any(is_plain));
    }
}
