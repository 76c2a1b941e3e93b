//! Runs chaos: builds a cluster, puts load on it, inflicts faults, heals everything, and judges.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use segue_demo::check::Evidence;
use segue_demo::load::{Gauge, LoadSettings, RunningLoad};
use segue_demo::log::Log;
use segue_demo::writer::names;
use segue_protocol::keys::Keyspace;
use tokio::runtime::Runtime;

use crate::arguments::Arguments;
use crate::cluster::{COORDINATORS, Cluster, MAX_WAIT, PARTITIONS, PODS, REQUEST_TIMEOUT, ROUTERS, Writers};
use crate::fault::{Fault, TERMINATE};
use crate::history::History;
use crate::sabotage::Sabotage;
use crate::scenario::{self, Failovers, RANDOM};
use crate::timeline::Timeline;
use crate::verdict::{Verdict, reasons};

/// How long the cluster may take to come to rest once everything is healed.
pub(crate) const REST: Duration = Duration::from_secs(60);
/// The longest that a router is stopped by a fault.
const LONGEST_STOP: Duration = Duration::from_secs(10);
/// Requests per second: enough for every partition to have some in flight at any moment of a handoff, and little enough
/// for two cores to be idle most of the time, so that what is slow is slow because of a fault.
const RATE: u32 = 500;

/// What is left of a limited time for coming to rest and for ending every process, when faults stop being drawn.
const RESERVE: Duration = Duration::from_secs(40);

/// Errors of the store that processes are to report.
const SAID_IN_ERROR: [&str; 2] = ["the store went back", "etcd does not accept this process's user"];

/// What is happening on a cluster.
pub(crate) struct Stage<'a> {
    pub(crate) cluster: &'a mut Cluster,
    pub(crate) history: &'a History,
    pub(crate) random: StdRng,
    pub(crate) timeline: &'a Timeline,
    pub(crate) verdict: Verdict,
    pub(crate) faults: u64,
    pub(crate) failovers: Failovers,
    gauge: Arc<Gauge>,
}

/// All runs: the process inside.
pub(crate) fn play(arguments: &Arguments, folder: &Path) -> anyhow::Result<ExitCode> {
    crate::namespaces::settle_in()?;
    let seed = arguments.seed.context("--inside comes with a seed")?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let timeline = Arc::new(Timeline::begin(folder)?);
    if let Some(limit) = arguments.limit() {
        // A slow machine may take longer. What takes twice as long is stuck.
        end_after(2 * limit, timeline.clone());
    }
    let group = folder.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let writers = arguments.sabotage.map_or_else(Writers::default, Sabotage::writers);
    let mut cluster = Cluster::build(folder, &group, writers, &arguments.coordination, timeline.clone())?;
    timeline.say(&format!("seed {seed}; a slow disk is {}", cluster.disk.in_words()));
    if !cluster.network.can_delay() {
        timeline.say("this kernel cannot delay packets (no netem): delays are those of lost packets");
    }
    let (mut all, mut faults, mut moved, mut cancelled, mut refused) = (Verdict::default(), 0, 0, 0, 0);
    let mut failovers = Failovers::default();
    for run in 1..=arguments.runs() {
        let own = folder.join(format!("run-{run}"));
        std::fs::create_dir_all(&own)?;
        cluster = cluster.rebuild(&own);
        timeline.say(&format!("run {run} of {}: logs in {}", arguments.runs(), own.display()));
        let random = StdRng::seed_from_u64(seed.wrapping_add(u64::from(run) << 32));
        let done = one(arguments, run, &mut cluster, random, &timeline, &runtime)?;
        done.verdict.in_words().iter().for_each(|line| timeline.say(line));
        (faults, moved) = (faults + done.faults, moved + done.moved);
        (cancelled, refused) = (cancelled + done.cancelled, refused + done.refused);
        failovers.merge(done.failovers);
        all.merge(done.verdict);
        if all.harm() > 0 {
            break;
        }
    }
    let (harm, errors) = (all.harm(), all.errors.values().sum::<u64>());
    let line = format!(
        "chaos: runs={} faults={faults} harm={harm} requests={} handoffs={moved} cancelled={cancelled} errors={errors} \
         records={} reads={} held_pairs={} refused_appends={refused} seed={seed}",
        arguments.runs(),
        all.requests,
        all.records,
        all.reads,
        all.held_pairs
    );
    failovers.in_words().iter().try_for_each(|line| write_line(line))?;
    timeline.say(&format!("errors that clients saw: {}", reasons(&all.errors)));
    write_line(&line)?;
    Ok(if harm == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Gives up when the time is over, whatever is being waited for. Everything else goes with this process, which is the
/// first of its namespace.
fn end_after(limit: Duration, timeline: Arc<Timeline>) {
    std::thread::spawn(move || {
        std::thread::sleep(limit);
        timeline.say(&format!("chaos: not through after {limit:?}; see above where it was"));
        std::process::exit(1);
    });
}

fn write_line(line: &str) -> std::io::Result<()> {
    use std::io::Write as _;
    writeln!(std::io::stdout(), "{line}")
}

/// What a run leaves to be added up.
struct Done {
    verdict: Verdict,
    faults: u64,
    failovers: Failovers,
    moved: u64,
    cancelled: u64,
    refused: u64,
}

fn one(
    arguments: &Arguments,
    run: u32,
    cluster: &mut Cluster,
    mut random: StdRng,
    timeline: &Timeline,
    runtime: &Runtime,
) -> anyhow::Result<Done> {
    cluster.start_etcd()?;
    let keys = Keyspace::new("/segue/", "default");
    let history = History::begin(cluster.etcd_options(), keys, runtime.handle())?;
    cluster.start_all()?;
    cluster.settle(REST).context("the cluster does not start")?;
    timeline.say("every partition has an owner; the load begins");
    let load = {
        let _inside = runtime.enter();
        RunningLoad::start(LoadSettings {
            routers: cluster.routers().into_iter().map(Into::into).collect(),
            partitions: PARTITIONS,
            clients: 32,
            bursts: 2,
            rate: RATE,
            // Few requests meet a move otherwise.
            paces_bursts: false,
            // Past it a request counts as lost: every wait of a router is bounded.
            patience: MAX_WAIT + REQUEST_TIMEOUT + LONGEST_STOP + Duration::from_secs(5),
            seed: random.random(),
            partition_header: Some(names::PARTITION),
            snapshot: None,
        })
    };
    let gauge = load.gauge().clone();
    let verdict = Verdict::default();
    let (faults, failovers) = Default::default();
    let mut stage = Stage { cluster, history: &history, random, timeline, verdict, faults, failovers, gauge };
    stage.pause(1_000);
    match arguments.sabotage {
        Some(sabotage) => sabotage.commit(&mut stage)?,
        None => stage.play(arguments, run)?,
    }
    timeline.say("everything is healed; reading every key once more");
    stage.settle();
    let exchanges = runtime.block_on(load.finish());
    let Stage { mut verdict, faults, failovers, .. } = stage;
    // All together, so that the last pods have no successor; a pod gives up the handover by itself.
    let all: Vec<&str> = PODS.into_iter().collect();
    let revision = history.catch_up();
    cluster.terminate(&all, TERMINATE);
    cluster.terminate(&ROUTERS, TERMINATE);
    cluster.terminate(&COORDINATORS, TERMINATE);
    for fault in std::mem::take(&mut cluster.faults) {
        verdict.add("processes", fault);
    }
    for (name, output) in cluster.outputs() {
        let is_expected = |line: &&str| SAID_IN_ERROR.iter().any(|said| line.contains(said));
        let errors = output.lines().filter(|line| line.contains("panicked") || line.contains(" ERROR "));
        for line in errors.filter(|line| !is_expected(line)) {
            verdict.add("processes", format!("{name} said: {line}"));
        }
    }
    if let Err(error) = revision {
        verdict.add("unwatched", format!("{error:#}"));
    }
    let log = Log::in_directory(&cluster.logs())?;
    let refused = log.refused()?;
    for late in refused.iter().filter(|late| !cluster.were_stopped.contains(&*late.pod)) {
        verdict.add(
            "late_appends",
            format!("{} wrote to partition {} at epoch {}, which was over", late.pod, late.partition, late.epoch),
        );
    }
    if let Some(sabotage) = arguments.sabotage {
        sabotage.spoil(&cluster.logs())?;
    }
    let (owners, moved, cancelled, breaches) = {
        let mut seen = history.seen();
        (std::mem::take(&mut seen.owners), seen.moved, seen.cancelled, std::mem::take(&mut seen.breaches))
    };
    for breach in breaches {
        verdict.add("contract", format!("{}: {}", breach.rule, breach.what));
    }
    verdict.judge(&Evidence { exchanges, log: Some(log.read_all()?), owners: Some(owners) });
    Ok(Done { verdict, faults, failovers, moved, cancelled, refused: refused.len() as u64 })
}

impl Stage<'_> {
    fn play(&mut self, arguments: &Arguments, run: u32) -> anyhow::Result<()> {
        let mut names: Vec<&str> = match arguments.scenario.as_slice() {
            [] if run == 1 => scenario::names().collect(),
            [] => vec![RANDOM],
            chosen => chosen.iter().map(String::as_str).collect(),
        };
        if arguments.scenario.is_empty() && run == 1 {
            names.shuffle(&mut self.random);
            names.push(RANDOM);
        }
        for name in names {
            match scenario::find(name) {
                Some(scenario) => {
                    self.faults += 1;
                    self.timeline.say(&format!("scenario {name}: {}", scenario.says));
                    let before = self.seen();
                    (scenario.play)(self)?;
                    let settled = self.settle();
                    self.tell_since(&before);
                    if !settled {
                        return Ok(());
                    }
                }
                None => {
                    let wanted = arguments.duration();
                    let left = arguments.limit().map(|limit| limit.saturating_sub(RESERVE + self.timeline.elapsed()));
                    let time = left.map_or(wanted, |left| left.min(wanted));
                    if time < wanted {
                        self.timeline.say(&format!("there is time for {time:.1?} of faults, not for {wanted:?}"));
                    }
                    self.random_faults(time)?;
                }
            }
        }
        Ok(())
    }

    fn random_faults(&mut self, duration: Duration) -> anyhow::Result<()> {
        let begun = Instant::now();
        while begun.elapsed() < duration {
            let mut victims = Vec::new();
            let mut under_way = Vec::new();
            let together = if self.random.random_bool(0.35) { 2 } else { 1 };
            let (before, mut lasts) = (self.seen(), Duration::ZERO);
            for _ in 0..together {
                let Some((mut fault, time)) = Fault::draw(&mut self.random, self.cluster, &victims) else { continue };
                let words = fault.in_words(self.cluster);
                self.timeline.say(&format!("{words}, for {:.1} s", time.as_secs_f64()));
                victims.extend(fault.victims());
                fault.inflict(self.cluster)?;
                under_way.push(fault);
                lasts = lasts.max(time);
            }
            self.hold(&under_way, lasts);
            for fault in &under_way {
                if let Some(said) = fault.heal(self.cluster)? {
                    self.timeline.say(&said);
                }
            }
            self.faults += under_way.len() as u64;
            // Often the next one comes before this one's consequences are over.
            let pause = self.random.random_range(100..2_500);
            self.pause(pause);
            self.tell_since(&before);
        }
        Ok(())
    }

    /// Lets faults last; a disk that can only be made slow by hand is made so meanwhile.
    pub(crate) fn hold(&mut self, faults: &[Fault], time: Duration) {
        let flickering = faults.iter().find_map(|fault| match fault {
            Fault::SlowDisk(who, _) if matches!(self.cluster.disk, crate::disk::SlowDisk::Flicker) => Some(*who),
            _ => None,
        });
        let begun = Instant::now();
        while begun.elapsed() < time {
            match flickering {
                Some(who) => {
                    self.cluster.stop(who);
                    self.pause(100);
                    self.cluster.resume(who);
                    self.pause(30);
                }
                None => self.pause(20),
            }
        }
        self.cluster.look_for_the_dead();
    }

    pub(crate) fn pause(&self, milliseconds: u64) {
        std::thread::sleep(Duration::from_millis(milliseconds));
    }

    /// Waits until the cluster is at rest. Not to get there is harm.
    pub(crate) fn settle(&mut self) -> bool {
        let begun = Instant::now();
        match self.cluster.settle(REST) {
            Ok(()) => {
                self.timeline.say(&format!("  at rest after {:.1} s", begun.elapsed().as_secs_f64()));
                true
            }
            Err(error) => {
                self.verdict.add("unsettled", format!("{error:#}"));
                false
            }
        }
    }

    /// Waits until `condition` holds, but not for ever: whether it did.
    pub(crate) fn until(&mut self, within: Duration, condition: impl Fn(&Self) -> bool) -> bool {
        let begun = Instant::now();
        while !condition(self) {
            if begun.elapsed() > within {
                return false;
            }
            self.pause(10);
        }
        true
    }

    pub(crate) fn errors(&self) -> BTreeMap<(u16, Arc<str>), u64> {
        self.gauge.errors()
    }

    pub(crate) fn seen(&self) -> Before {
        let seen = self.history.seen();
        Before { moved: seen.moved, cancelled: seen.cancelled, ok: self.gauge.ok.load(Relaxed), errors: self.errors() }
    }

    fn tell_since(&self, before: &Before) {
        let now = self.seen();
        let mut errors = now.errors;
        for (error, count) in &mut errors {
            *count -= before.errors.get(error).copied().unwrap_or(0);
        }
        errors.retain(|_, count| *count > 0);
        self.timeline.say(&format!(
            "  {} answered, {} handoffs, {} cancelled; errors: {}",
            now.ok - before.ok,
            now.moved - before.moved,
            now.cancelled - before.cancelled,
            reasons(&errors)
        ));
    }
}

/// What had been seen at some moment.
pub(crate) struct Before {
    pub(crate) moved: u64,
    cancelled: u64,
    ok: u64,
    pub(crate) errors: BTreeMap<(u16, Arc<str>), u64>,
}
