//! The command line of the simulation: the seeds, the number of jobs, and what to print.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "it is a command-line program")]

use std::fs;
use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread::available_parallelism;
use std::time::Instant;

use anyhow::{Context as _, bail};
use clap::Parser;
use segue_simulation::{
    Sabotage, Scenario, Size, Step, Sweep, regressions, run, run_data_path, run_large, sweep_data_path,
};

/// Simulates whole clusters under random faults: coordinators, routers, pods and clients in one thread, a simulated clock
/// and network, every choice from a seed.
///
/// Each seed decides on a cluster and a mix of faults (crashes, pauses, partitions, a slow or absent store, clock drift …),
/// runs for a minute of simulated time, and checks the protocol's invariants at every event. When the faults stop, the
/// cluster must become well. A seed that breaks an invariant repeats exactly: run it with --seed to read its history.
#[derive(Debug, Parser)]
#[command(name = "simulate")]
struct Arguments {
    /// How many seeds to run, beside the ones that once found a fault.
    #[arg(long, default_value_t = 1000)]
    seeds: u64,

    /// The first of them.
    #[arg(long, default_value_t = 0)]
    from: u64,

    /// Run this seed alone and print its history.
    #[arg(long)]
    seed: Option<u64>,

    /// With --seed: where to write the history instead.
    #[arg(long, requires = "seed")]
    trace: Option<PathBuf>,

    /// How many seeds run at a time, each on a thread; as many as there are cores, if not said.
    #[arg(long)]
    jobs: Option<usize>,

    /// Run every seed twice and compare (else only every hundredth).
    #[arg(long)]
    check_determinism: bool,

    /// Run the data path alone, over real sockets, in place of whole clusters.
    #[arg(long, conflicts_with_all = ["routers", "sabotage", "check_determinism"])]
    data_path: bool,

    /// Instead of seeds: a site with this many routers, without faults, and what its moves cost.
    #[arg(long)]
    routers: Option<u64>,

    /// With --routers: the number of pods.
    #[arg(long, requires = "routers", default_value_t = 10)]
    pods: u64,

    /// With --routers: the number of partitions of each keyspace.
    #[arg(long, requires = "routers", default_value_t = 16)]
    partitions: u32,

    /// With --routers: the number of keyspaces, in each of which every process takes part.
    #[arg(long, requires = "routers", default_value_t = 1)]
    keyspaces: u64,

    /// Break a rule on purpose, to see whether it is noticed; `list` names them, `all` tries each.
    #[arg(long, hide = true)]
    sabotage: Option<String>,
}

fn main() -> anyhow::Result<ExitCode> {
    let arguments = Arguments::parse();
    let jobs = arguments.jobs.unwrap_or_else(|| available_parallelism().map_or(1, usize::from)).max(1);
    if arguments.data_path {
        return data_path(&arguments, jobs);
    }
    let sabotage = match arguments.sabotage.as_deref() {
        None => None,
        Some("list") => {
            for (_, name, what) in Sabotage::ALL {
                println!("{name:22} {what}");
            }
            return Ok(ExitCode::SUCCESS);
        }
        Some("all") => return Ok(try_each(&arguments, jobs)),
        Some(name) => match Sabotage::parse(name) {
            Some(sabotage) => Some(sabotage),
            None => bail!("there is no sabotage {name:?}; --sabotage list names them"),
        },
    };
    if let Some(routers) = arguments.routers {
        let Arguments { pods, partitions, keyspaces, .. } = arguments;
        if u64::from(partitions) <= pods {
            bail!(
                "{partitions} partitions on {pods} pods: a pod that joins gets one only if there are more partitions than pods"
            );
        }
        return play_large(Size { keyspaces, routers, pods, partitions });
    }
    if let Some(seed) = arguments.seed {
        return replay(seed, sabotage, arguments.trace.as_deref());
    }
    let sweep = Sweep {
        seeds: arguments.seeds,
        from: arguments.from,
        jobs,
        sabotage,
        check_all_twice: arguments.check_determinism,
        regressions: sabotage.is_none(),
    };
    let is_watched = std::io::stderr().is_terminal();
    let total = sweep.run(|progress| {
        if is_watched {
            eprint!("\r{progress}\x1b[K");
        }
    });
    if is_watched {
        eprintln!();
    }
    let mut failed = !total.failures.is_empty();
    for failure in &total.failures {
        eprintln!("{failure}");
    }
    if sabotage.is_none() && arguments.seeds >= 200 && !total.unseen().is_empty() {
        failed = true;
        for what in total.unseen() {
            eprintln!("never seen in {} seeds: {what}", total.seeds);
        }
    }
    println!("{total}");
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Runs the data path alone.
fn data_path(arguments: &Arguments, jobs: usize) -> anyhow::Result<ExitCode> {
    if let Some(seed) = arguments.seed {
        let outcome = run_data_path(seed, true).context("cannot run")?;
        write_history(&outcome.lines, arguments.trace.as_deref())?;
        for violation in &outcome.violations {
            eprintln!("{violation}");
        }
        return Ok(if outcome.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    let total = sweep_data_path(arguments.from, arguments.seeds, jobs).context("cannot run")?;
    for (seed, violation) in &total.violations {
        eprintln!("seed {seed}: {violation}");
    }
    println!("{total}");
    Ok(if total.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Plays the steps of a site of this size and tells what they took.
fn play_large(size: Size) -> anyhow::Result<ExitCode> {
    let Size { keyspaces, routers, pods, partitions } = size;
    let checks = if size.checks_calls() { "each call of the store" } else { "epochs and outcomes" };
    println!("keyspaces={keyspaces} routers={routers} pods={pods} partitions={partitions}, checked: {checks}");
    let began = Instant::now();
    let (steps, violations) = run_large(0, size).context("cannot make a runtime")?;
    for Step { name, simulated, moves, delivered } in steps {
        let each = delivered as f64 / moves.max(1) as f64;
        println!("{name}: simulated_s={:.1} moves={moves} delivered_per_move={each:.0}", simulated.as_secs_f64());
    }
    for violation in &violations {
        eprintln!("{violation}");
    }
    println!("large: violations={} took_s={}", violations.len(), began.elapsed().as_secs());
    Ok(if violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Writes the history of a seed to this file, or prints it.
fn write_history(lines: &[String], file: Option<&Path>) -> anyhow::Result<()> {
    let history = lines.join("\n");
    match file {
        Some(path) => fs::write(path, history + "\n").with_context(|| format!("cannot write {}", path.display())),
        None => {
            println!("{history}");
            Ok(())
        }
    }
}

/// Runs one seed and tells its history.
fn replay(seed: u64, sabotage: Option<Sabotage>, file: Option<&Path>) -> anyhow::Result<ExitCode> {
    let outcome = run(Scenario { seed, sabotage, keeps_lines: true }).context("cannot make a runtime")?;
    write_history(&outcome.lines, file)?;
    for why in regressions().iter().filter(|known| known.seed == seed) {
        eprintln!("seed {seed} is kept because: {}", why.why);
    }
    for violation in &outcome.violations {
        eprintln!("{violation}");
    }
    eprintln!("seed {seed}: {} events, hash {:016x}", outcome.events, outcome.hash);
    Ok(if outcome.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Breaks one rule after the other and says after how many seeds each was noticed.
fn try_each(arguments: &Arguments, jobs: usize) -> ExitCode {
    let mut missed = 0;
    for (sabotage, name, _) in Sabotage::ALL {
        let caught = (arguments.from..arguments.from + arguments.seeds).step_by(jobs).find_map(|from| {
            let sweep = Sweep {
                seeds: (jobs as u64).min(arguments.from + arguments.seeds - from),
                from,
                jobs,
                sabotage: Some(sabotage),
                check_all_twice: false,
                regressions: false,
            };
            sweep.run(|_| {}).failures.into_iter().next()
        });
        match caught {
            Some(failure) => {
                let after = failure.seed - arguments.from + 1;
                println!("sabotage={name} caught=true after={after} by={}", failure.invariant());
            }
            None => {
                missed += 1;
                println!("sabotage={name} caught=false after={}", arguments.seeds);
            }
        }
    }
    println!("simulate: sabotages={} caught={}", Sabotage::ALL.len(), Sabotage::ALL.len() - missed);
    if missed > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
