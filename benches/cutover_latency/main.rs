//! Measures how long clients wait when partitions move, by the number of routers, the number of partitions that move at
//! once, the length of requests and the size of the state.
//!
//! Everything but etcd runs in this process: coordinators, routers with a worker each, pods and clients. etcd is a real
//! one that waits for its disk. A router measures the pause of a cutover from closing the gate until the first request
//! can pass again. Less the longest time that any router waited for requests in flight, it is the cost of the protocol.
//! The last line of the output is for programs.

#![allow(clippy::print_stdout, reason = "it reports on stdout")]

mod measurement;
mod plot;

use std::time::Duration;

use anyhow::{Context, ensure};
use segue_demo::Options;
use segue_demo::measure::Distribution;
use segue_protocol::records::Capabilities;
use segue_tests::etcd::Etcd;

use measurement::{Measurement, Moves, ending_after, measure, puts};
use plot::{Curve, Panel};

/// Capabilities of pods that only refuse what they do not own. A cutover waits for routers alone.
const PLAIN: Capabilities =
    Capabilities { sync: false, drained: false, released: false, fence: true, checkpoint: false };

/// How long puts follow each other without a pause.
const IN_A_ROW: Duration = Duration::from_millis(300);

/// The command line.
#[derive(Debug, Default)]
struct Arguments {
    /// Begins five times as many rounds of moves.
    long: bool,
    /// Restricts the run to measurements with this in their name.
    only: String,
    /// File to draw the curves to.
    plot: Option<String>,
}

fn main() -> anyhow::Result<()> {
    let mut arguments = Arguments::default();
    let mut given = std::env::args().skip(1);
    while let Some(argument) = given.next() {
        match argument.as_str() {
            // cargo adds this one.
            "--bench" => {}
            "--long" => arguments.long = true,
            "--only" => arguments.only = given.next().context("--only what?")?,
            "--plot" => arguments.plot = Some(given.next().context("--plot FILE")?),
            other => anyhow::bail!("{other}: there are --long, --only PART-OF-A-NAME and --plot FILE"),
        }
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(run(arguments))
}

async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let times = if arguments.long { 5 } else { 1 };
    let mut bench = Bench { etcd: Etcd::start_on_disk(), only: arguments.only, done: Vec::new() };
    let in_a_row = bench.puts_in_a_row().await?;
    println!("{HEAD}");
    let small = Options { clients: 16, rate: 500, partitions: 17, ..Options::default() };
    let begun = |at_once, rounds: u32| Moves::Begun { at_once, rounds: rounds * times };
    let (plain, sync) = (PLAIN, Capabilities::ALL);
    for (routers, pods) in [(1, plain), (2, plain), (3, plain), (8, plain), (1, sync), (3, sync)] {
        let options = Options { routers, capabilities: pods, ..small.clone() };
        let name = if pods.sync { "sync" } else { "plain" };
        bench.cell(routers, format!("routers={routers} pods={name}"), 1, options, begun(1, 200)).await?;
    }
    for routers in [1, 3] {
        for at_once in [16, 64, 256, 1024] {
            let options = Options { routers, partitions: 2 * at_once + 1, ..small.clone() };
            let rounds = (256 / at_once).max(2);
            bench
                .cell(routers, format!("routers={routers} pods=sync"), at_once, options, begun(at_once, rounds))
                .await?;
        }
    }
    let three = |what: &str| format!("routers=3 pods=sync {what}");
    let many = Options { routers: 3, partitions: 2048, max_concurrent_handoffs: 1024, ..small.clone() };
    bench.cell(3, three("planned"), 1024, many, Moves::Planned).await?;
    for (size, bytes) in [("1KiB", 1 << 10), ("256MiB", 256 << 20)] {
        let options = Options { routers: 3, state_bytes: bytes, ..small.clone() };
        bench.cell(3, three(&format!("state={size}")), 1, options, begun(1, 20)).await?;
    }
    let slow = Options { routers: 3, service_time: Duration::from_millis(50), clients: 64, ..small };
    bench.cell(3, three("requests=50ms"), 1, slow.clone(), begun(1, 30)).await?;
    let busy = Options { partitions: 3, rate: 0, clients: 128, ..slow };
    bench.cell(3, three("requests=50ms stash=filling"), 1, busy.clone(), begun(1, 30)).await?;
    let full = Options { stash_requests: 4, ..busy };
    bench.cell(3, three("requests=50ms stash=full"), 1, full, begun(1, 30)).await?;

    bench.tell_latencies();
    if let Some(file) = arguments.plot {
        std::fs::write(file, plot::svg(&bench.panels()))?;
    }
    let again = bench.puts_in_a_row().await?;
    let (p50, p99) = (in_a_row.p50.min(again.p50), in_a_row.p99.min(again.p99));
    let puts = bench.single_puts();
    println!(
        "pause:{} etcd_put_p50_us={} etcd_put_p99_us={} etcd_puts_in_a_row_p50_us={p50} etcd_puts_in_a_row_p99_us={p99}",
        bench.summary(puts.p50, puts.p99),
        puts.p50,
        puts.p99,
    );
    ensure!(bench.done.iter().all(|cell| cell.measured.harm.none()), "requests were harmed");
    Ok(())
}

const HEAD: &str = "\
                                                       pause beyond drain, us           with drain   moved  per move   most  refused                puts, us
                                              at once     p50     p99   p99.9     max     p50     p99     ms txns puts  held /requests     moves    p50    p99";

struct Bench {
    etcd: Etcd,
    only: String,
    done: Vec<Cell>,
}

struct Cell {
    routers: u32,
    name: String,
    at_once: u32,
    measured: Measurement,
}

impl Cell {
    /// Returns whether the measurement is one of this kind, whatever the number of routers.
    fn is_of(&self, kinds: &[&str]) -> bool {
        kinds.iter().any(|kind| self.name == format!("routers={} pods={kind}", self.routers))
    }
}

impl Bench {
    async fn cell(
        &mut self,
        routers: u32,
        name: String,
        at_once: u32,
        options: Options,
        moves: Moves,
    ) -> anyhow::Result<()> {
        if !format!("{name} at_once={at_once}").contains(&self.only) {
            return Ok(());
        }
        let measured = measure(&self.etcd, options, moves).await.with_context(|| name.clone())?;
        let Measurement { pause, whole, .. } = &measured;
        let asked = format!("{}/{}", measured.refused, measured.requests);
        let amid = measured.puts_amid;
        println!(
            "{name:48}{at_once:5} {:7} {:7} {:7} {:7} {:7} {:7} {:6} {:4.1} {:4.1} {:5}  {asked:14}{:5} {:6} {:6}",
            pause.p50,
            pause.p99,
            pause.p999,
            pause.max,
            whole.p50,
            whole.p99,
            measured.moved_in.as_millis(),
            measured.transactions,
            measured.puts,
            measured.stashed,
            measured.moves,
            amid.p50,
            amid.p99,
        );
        if !measured.harm.none() {
            println!("  HARM: {:?}", measured.harm);
        }
        self.done.push(Cell { routers, name, at_once, measured });
        Ok(())
    }

    fn tell_latencies(&self) {
        println!(
            "latency of requests, us                                             steady                       under way in a cutover"
        );
        println!(
            "                                              at once     p50     p99   p99.9     max     p50     p99   p99.9     max"
        );
        for Cell { name, at_once, measured, .. } in &self.done {
            let [steady, during] = [measured.latency.steady, measured.latency.during_cutovers]
                .map(|it| format!("{:7} {:7} {:7} {:7}", it.p50, it.p99, it.p999, it.max));
            println!("{name:48}{at_once:5} {steady} {during}");
        }
    }

    fn panels(&self) -> Vec<Panel> {
        let curve = |name: String, routers: u32, of: &dyn Fn(&Measurement) -> u64| {
            let wanted = |cell: &&Cell| cell.name == format!("routers={routers} pods=sync");
            let points = self.done.iter().filter(wanted).map(|cell| (cell.at_once, of(&cell.measured))).collect();
            Curve { name, points }
        };
        let pauses = [1, 3].into_iter().flat_map(|routers| {
            [
                curve(format!("{routers} routers, p50"), routers, &|it| it.pause.p50),
                curve(format!("{routers} routers, p99"), routers, &|it| it.pause.p99),
            ]
        });
        type Quantile = fn(&Distribution) -> u64;
        let quantiles: [(&str, Quantile); 4] =
            [("p50", |it| it.p50), ("p99", |it| it.p99), ("p99.9", |it| it.p999), ("max", |it| it.max)];
        let latencies = quantiles.into_iter().flat_map(|(name, of)| {
            [
                curve(format!("in a cutover, {name}"), 3, &move |it| of(&it.latency.during_cutovers)),
                curve(format!("steady, {name}"), 3, &move |it| of(&it.latency.steady)),
            ]
        });
        vec![
            Panel { title: "pause of a cutover beyond its drain".to_owned(), curves: pauses.collect() },
            Panel { title: "latency of requests, 3 routers".to_owned(), curves: latencies.collect() },
        ]
    }

    /// Returns the figures that have goals, in microseconds and as multiples (`x`) of the same percentile of a single
    /// put under the same load. Multiples differ less between machines. The time in which many partitions move is a multiple of the median
    /// put.
    fn summary(&self, put_p50: u64, put_p99: u64) -> String {
        let mut summary = String::new();
        let times = |figure: u64, put: u64| figure as f64 / put as f64;
        for cell in &self.done {
            let Cell { name, at_once, measured, .. } = cell;
            let pause = measured.pause;
            if !cell.is_of(&["plain", "sync", "sync planned"]) || ![1, 1024].contains(at_once) {
                continue;
            }
            let (p50, p99) = (times(pause.p50, put_p50), times(pause.p99, put_p99));
            let amid = measured.puts_amid.p99;
            summary += &format!(" {}", name.replace(" planned", " moves=planned"));
            if *at_once > 1 {
                let moved = measured.moved_in;
                let puts = times(moved.as_micros() as u64, put_p50);
                summary += &format!(
                    " at_once={at_once} moved_ms={} moved_x={puts:.0} puts_amid_p99_us={amid}",
                    moved.as_millis()
                );
            }
            summary += &format!(" p50_us={} p99_us={} p50_x={p50:.1} p99_x={p99:.1}", pause.p50, pause.p99);
        }
        summary
    }

    /// Measures the time of a put that follows the one before at once, while etcd has nothing else to do.
    async fn puts_in_a_row(&self) -> anyhow::Result<Distribution> {
        let puts = Distribution::of(puts(&self.etcd, Duration::ZERO, ending_after(IN_A_ROW)).await?);
        let Distribution { p50, p99, max, .. } = puts;
        println!("etcd puts in a row: p50 {p50} us, p99 {p99} us, max {max} us; load {}", load());
        Ok(puts)
    }

    /// Returns the times of the single puts under the load of the measurements of single partitions.
    fn single_puts(&self) -> Distribution {
        let single = self.done.iter().filter(|cell| cell.is_of(&["plain", "sync"]) && cell.at_once == 1);
        Distribution::of(single.flat_map(|cell| cell.measured.put_times.iter().copied()))
    }
}

/// Returns the load average of the machine over the last minute.
fn load() -> String {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    load.split(' ').next().unwrap_or_default().to_owned()
}
