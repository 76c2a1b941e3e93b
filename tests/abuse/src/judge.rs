//! Judges whether an attack harmed anybody else: the well-behaved clients, and the router's memory, files and life.

use std::time::{Duration, Instant};

use crate::attacks::{Attack, Target};
use crate::cluster::Router;
use crate::gauge::{Peak, Stalls, files, rss_kib};
use crate::good::{Good, Measured};
use crate::say;
use crate::service::Seen;

/// How much slower well-behaved clients may get, beside their usual time: attackers, clients, router, pods and etcd share
/// the machine, and what is to be seen is a client that waits for an attacker.
const SLOWER: u32 = 10;
const SLACK: Duration = Duration::from_millis(250);
/// How much memory all attacks together may take.
const ALL_MEMORY_KIB: u64 = 320 << 10;
const FILES_BACK: Duration = Duration::from_secs(10);
const FILES_SLACK: usize = 50;
/// From here on the machine stood still: the shortest waits for an answer are three times as long.
const STALL: Duration = Duration::from_millis(100);
const AGAIN: usize = 2;

/// What is usual.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Calm {
    pub(crate) p99: Duration,
    pub(crate) rss_kib: u64,
    pub(crate) files: usize,
}

impl Calm {
    pub(crate) fn bound(&self) -> Duration {
        self.p99 * SLOWER + SLACK
    }
}

/// The outcome of an attack.
pub(crate) struct Verdict {
    /// The attack in a line: what the attacker got, and what others measured meanwhile.
    pub(crate) line: String,
    /// `None`: all was well.
    pub(crate) harm: Option<Harm>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Harm {
    /// Others were slower than they may be. A busy machine does that too, now and then.
    Slow,
    /// The attacker did not get in time what it should get. A machine that stands still does that too.
    Late,
    Certain,
}

impl Verdict {
    pub(crate) fn certain(harmless: bool, line: String) -> Self {
        Verdict { line, harm: (!harmless).then_some(Harm::Certain) }
    }
}

/// Plays something. Plays it again if others were slow, as an attack that slows them down does so each time, and if somebody was
/// late while the machine stood still.
pub(crate) async fn undisturbed(mut play: impl AsyncFnMut() -> anyhow::Result<Verdict>) -> anyhow::Result<Verdict> {
    for _ in 0..AGAIN {
        let stalls = Stalls::watch();
        let verdict = play().await?;
        let stood = stalls.longest();
        let is_in_doubt = match verdict.harm {
            Some(Harm::Slow) => true,
            Some(Harm::Late) => stood >= STALL,
            Some(Harm::Certain) | None => false,
        };
        if !is_in_doubt {
            return Ok(verdict);
        }
        let stood = stood.as_millis();
        say(&format!("{}\n     again; the machine stood still for {stood} ms at a time", verdict.line));
    }
    play().await
}

/// Plays an attack.
pub(crate) async fn play(attack: &Attack, target: &Target, router: &mut Router, good: &Good, calm: &Calm) -> Verdict {
    good.take();
    let before = rss_kib(router.pid());
    let peak = Peak::watch(router.pid());
    let got = (attack.run)(target.clone()).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let measured = good.take();
    let rss = peak.end();
    let files = files_back(router, calm).await;
    let mut wrong = complaints(&measured, &target.seen);
    let slow = slow(&measured, calm);
    let mut late = Vec::new();
    if rss > before + attack.memory_kib || rss > calm.rss_kib + ALL_MEMORY_KIB {
        wrong.push(format!(
            "{} MiB of memory, {} before and {} when calm",
            rss >> 10,
            before >> 10,
            calm.rss_kib >> 10
        ));
    }
    if let Some(files) = files {
        wrong.push(format!("{files} files are still open, {} when calm", calm.files));
    }
    wrong.extend(router.ended());
    let what = match got {
        Ok(got) => {
            if !got.expected {
                late.push("that is not what it should get".to_owned());
            }
            got.what
        }
        Err(error) => {
            late.push(format!("{error:#}"));
            "the attack could not be played".to_owned()
        }
    };
    let harm = match (wrong.is_empty(), late.is_empty()) {
        (true, true) => slow.is_some().then_some(Harm::Slow),
        (true, false) => Some(Harm::Late),
        (false, _) => Some(Harm::Certain),
    };
    wrong.append(&mut late);
    wrong.extend(slow);
    let mark = if harm.is_none() { "ok  " } else { "HARM" };
    let line = format!(
        "{mark} {:<24} {what} | p99 {}/{} ms, {} requests, rss {} MiB",
        attack.name,
        millis(calm.p99),
        millis(measured.p99()),
        measured.requests,
        rss >> 10,
    );
    let complaint = if harm.is_none() {
        String::new()
    } else {
        let bounced = ["misdirected", "refused", "spared"]
            .map(|cause| router.metric(&format!("segue_requests_bounced_total{{cause=\"{cause}\"}}")));
        format!("\n     {}; bounced so far {bounced:?} (misdirected, refused, spared)", wrong.join("; "))
    };
    Verdict { line: line + &complaint, harm }
}

/// What well-behaved clients have to complain about, but for their times.
fn complaints(measured: &Measured, seen: &Seen) -> Vec<String> {
    let mut wrong = Vec::new();
    if let Some(first) = measured.errors.first() {
        wrong.push(format!("{} errors of good clients, such as: {first}", measured.errors.len()));
    }
    if measured.requests == 0 {
        wrong.push("no good client was served".to_owned());
    }
    let twice = seen.take_applied_twice();
    if twice > 0 {
        wrong.push(format!("{twice} requests of good clients were applied twice"));
    }
    wrong
}

/// `None`: they were served in time.
fn slow(measured: &Measured, calm: &Calm) -> Option<String> {
    (measured.p99() > calm.bound()).then(|| format!("good clients' p99 above {} ms", millis(calm.bound())))
}

/// `None`: they are.
async fn files_back(router: &Router, calm: &Calm) -> Option<usize> {
    let begun = Instant::now();
    loop {
        let open = files(router.pid());
        if open <= calm.files + FILES_SLACK {
            return None;
        }
        if begun.elapsed() > FILES_BACK {
            return Some(open);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

pub(crate) fn millis(duration: Duration) -> String {
    format!("{:.1}", duration.as_secs_f64() * 1000.0)
}
