//! Request targets that a router and a pod may read as different keys, so that two pods would write one key.
//!
//! Each aims at the key `smuggled` through the partition of another key. None may reach a pod.
//! `tests/fuzz/targets/partition.rs` compares how servers read such paths.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use anyhow::ensure;

use super::{Attack, Got, Target, attack};
use crate::wire::{END_HEADERS, END_STREAM, HEADERS, Raw, block, frame, preface, request};

const PATIENCE: Duration = Duration::from_secs(3);

type Targets = &'static [&'static str];

pub(super) fn all() -> Vec<Attack> {
    let families: [(&'static str, Targets); 5] = [
        (
            "target-dot-segments",
            &[
                "/persons/anna/../smuggled",
                "/persons/anna/x/../../smuggled",
                "/persons/./smuggled",
                "/persons/anna/%2e%2e/smuggled",
                "/persons/anna/.%2E/smuggled",
                "/persons/anna/..;/smuggled",
                "/persons/anna/x/..%3b/..;a=b/smuggled",
            ],
        ),
        (
            "target-escaped-slashes",
            &["/persons/anna%2f..%2fsmuggled", "/persons/smuggled%2Fx", "/persons/anna/x%2f..%2f..%2fsmuggled"],
        ),
        (
            "target-backslashes",
            &["/persons/anna\\..\\smuggled", "/persons/smuggled%5cx", "/persons/anna/x\\..\\..\\smuggled"],
        ),
        ("target-parameters", &["/persons/smuggled;v=1", "/persons;v=1/smuggled", "/persons/anna;/../smuggled"]),
        (
            "target-unclear-keys",
            &["/persons/smuggled%00", "/persons/smuggled%ff", "/persons//smuggled", "//persons/smuggled"],
        ),
    ];
    let attacks =
        families.into_iter().map(|(name, targets)| attack(name, move |at| async move { play(&at, targets).await }));
    attacks.collect()
}

async fn play(target: &Target, targets: Targets) -> anyhow::Result<Got> {
    let good = "GET /persons/anna HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n";
    let came = Raw::connect(target.keyed).await?.ask(good, PATIENCE).await;
    ensure!(came.statuses() == [200], "a plain path is not served: {:?}", came.statuses());
    let before = target.seen.smuggled.load(Relaxed);
    let (mut refused, mut sent) = (0, 0);
    for path in targets {
        for path in [(*path).to_owned(), format!("http://h{path}")] {
            let mut raw = Raw::connect(target.keyed).await?;
            let head = format!("GET {path} HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n");
            let came = raw.ask(head, PATIENCE).await;
            sent += 1;
            refused += usize::from(came.statuses() == [400] && came.says("segue-reason: bad-partition"));
        }
        let mut raw = Raw::connect(target.keyed).await?;
        raw.send(preface(&[]), PATIENCE).await;
        raw.send(frame(HEADERS, END_HEADERS | END_STREAM, 1, &block(&request("GET", path, &[]))), PATIENCE).await;
        let said = raw.read_answer(PATIENCE).await;
        let is_answered = said.answers + said.resets > 0 || said.goaway.is_some();
        sent += 1;
        refused += usize::from(is_answered && said.ok == 0);
    }
    let reached = target.seen.smuggled.load(Relaxed) - before;
    Ok(Got::new(refused == sent && reached == 0, format!("{refused}/{sent} refused, {reached} reached a pod")))
}
