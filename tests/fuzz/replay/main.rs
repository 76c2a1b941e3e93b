//! Replays the corpus and the regressions of each fuzz target, and then inputs that are made of them and that are new in each run.
//!
//! The seed of the new inputs is printed. An input that fails is printed and kept in a file.
//!
//! | variable | meaning |
//! | --- | --- |
//! | `SEGUE_SEED` | the seed, in place of another one each time |
//! | `SEGUE_INPUTS` | the number of new inputs for each target, in place of 10,000 or 100,000 |
//! | `SEGUE_INPUT` | a file with the one input that is run |

#![allow(clippy::unwrap_used)]

mod mutator;

use std::cell::Cell;
use std::env;
use std::io::Write as _;
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{fs, process, thread};

use segue_fuzz::Outcome;
use segue_fuzz::targets::{config, http1_request, http1_response, http2_request, partition, stash, store_values};

use self::mutator::Mutator;

/// Longer than any input takes, on whatever machine.
const PATIENCE: Duration = Duration::from_secs(120);

thread_local! {
    static HAS_PANICKED: Cell<bool> = const { Cell::new(false) };
}

#[test]
fn config_gives_settings_or_mistakes_with_their_places() {
    Target { name: "config", run: config::run, inputs: 10_000 }.replay();
}

#[test]
fn http1_request_reaches_the_pod_whole_or_not_at_all() {
    Target { name: "http1_request", run: http1_request::run, inputs: 10_000 }.replay();
}

#[test]
fn http1_response_is_read_as_hyper_reads_it() {
    Target { name: "http1_response", run: http1_response::run, inputs: 100_000 }.replay();
}

#[test]
fn http2_request_reaches_the_pod_whole_or_not_at_all() {
    Target { name: "http2_request", run: http2_request::run, inputs: 10_000 }.replay();
}

#[test]
fn partition_is_that_of_the_key_that_servers_find() {
    Target { name: "partition", run: partition::run, inputs: 100_000 }.replay();
}

#[test]
fn stash_starts_whom_a_plain_list_would_start() {
    Target { name: "stash", run: stash::run, inputs: 100_000 }.replay();
}

#[test]
fn store_values_of_any_kind_lead_to_no_wrong_decision() {
    Target { name: "store_values", run: store_values::run, inputs: 100_000 }.replay();
}

#[derive(Clone, Copy)]
struct Target {
    name: &'static str,
    run: fn(&[u8]) -> Outcome,
    /// How many new inputs take about a second, or a few for those that use sockets.
    inputs: u64,
}

impl Target {
    fn replay(self) {
        note_panics();
        if let Some(file) = env::var_os("SEGUE_INPUT") {
            // cargo runs tests in the folder of their package.
            let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(file);
            let input = fs::read(&file).unwrap_or_else(|error| panic!("SEGUE_INPUT, {}: {error}", file.display()));
            assert!(self.outcome(&input).is_some(), "{} fails on {}", self.name, file.display());
            return;
        }
        let (seed, inputs) =
            (number("SEGUE_SEED").unwrap_or_else(some_seed), number("SEGUE_INPUTS").unwrap_or(self.inputs));
        let (begin, begun) = channel();
        let watch = thread::spawn(move || self.watch(seed, &begun));
        let known = self.known_inputs();
        let mut checked = 0;
        let mut check = |input: Vec<u8>| {
            begin.send(input.clone()).expect("the thread that watches");
            checked += u64::from(self.outcome(&input).unwrap_or_else(|| self.fail(seed, &input)) == Outcome::Checked);
        };
        known.iter().cloned().for_each(&mut check);
        let mut mutator = Mutator::new(known.clone(), seed);
        (0..inputs).for_each(|_| check(mutator.next_input()));
        drop(begin);
        watch.join().expect("the thread that watches");
        say(&format!("fuzz: target={} seed={seed} known={} new={inputs} checked={checked}\n", self.name, known.len()));
    }

    /// Runs an input. `None` if it panicked, in whatever task of this thread.
    fn outcome(self, input: &[u8]) -> Option<Outcome> {
        HAS_PANICKED.set(false);
        let outcome = panic::catch_unwind(AssertUnwindSafe(|| (self.run)(input))).ok();
        outcome.filter(|_| !HAS_PANICKED.get())
    }

    /// Returns the corpus and the regressions.
    fn known_inputs(self) -> Vec<Vec<u8>> {
        let folder = |kind: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join(kind).join(self.name);
        let files =
            ["corpus", "regressions"].map(folder).into_iter().filter(|folder| folder.is_dir()).flat_map(|folder| {
                let mut files: Vec<PathBuf> =
                    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
                files.sort();
                files
            });
        let known: Vec<Vec<u8>> = files.map(|file| fs::read(file).unwrap()).collect();
        assert!(!known.is_empty(), "{} has no corpus", self.name);
        known
    }

    /// Ends the tests when an input takes too long.
    fn watch(self, seed: u64, begun: &Receiver<Vec<u8>>) {
        let mut current = Vec::new();
        loop {
            match begun.recv_timeout(PATIENCE) {
                Ok(input) => current = input,
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {
                    say(&format!("fuzz: no end after {PATIENCE:?}\n{}\n", self.report(seed, &current)));
                    process::exit(1);
                }
            }
        }
    }

    fn fail(self, seed: u64, input: &[u8]) -> ! {
        panic!("{}", self.report(seed, input));
    }

    /// Keeps an input in a file. Returns how to run it again.
    fn report(self, seed: u64, input: &[u8]) -> String {
        let name = self.name;
        let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{seed}"));
        let (shown, again) = (input.escape_ascii(), file.display());
        fs::write(&file, input).unwrap();
        format!(
            "{name} fails with seed {seed} on b\"{shown}\"\n\
             the input again: SEGUE_INPUT={again} cargo test --workspace --test replay {name}\n\
             all of them: SEGUE_SEED={seed} cargo test --workspace --test replay {name}\n\
             to keep it: cp {again} tests/fuzz/regressions/{name}/"
        )
    }
}

/// Notes each panic for its thread. tokio keeps those of a task to itself.
fn note_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            HAS_PANICKED.set(true);
            usual(info);
        }));
    });
}

fn number(variable: &str) -> Option<u64> {
    let value = env::var(variable).ok()?;
    Some(value.parse().unwrap_or_else(|error| panic!("{variable}={value}: {error}")))
}

fn some_seed() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64)
}

/// Writes to stderr even if the test passes.
fn say(text: &str) {
    // Nobody may be reading.
    let _ = std::io::stderr().write_all(text.as_bytes());
}
