//! The demo's progress on stderr: live on a terminal, line by line elsewhere.
//!
//! The live form has three lines at the bottom (time, load, and the current step with the pause of each cutover as a
//! bar). Each finished step leaves a line above them. This module only reads the timeline and the load's gauge.

use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use tokio_util::task::AbortOnDropHandle;

use super::clock;
use super::history::History;
use super::load::Gauge;
use super::options;
use super::report::{WIDTH, micros, thousands, wrapped};
use super::timeline::{ScenarioStep, Timeline, changes};

const FRAME: Duration = Duration::from_millis(100);
/// Frames between two lines about the load without a terminal.
const FRAMES_PER_LINE: u32 = 20;
/// Most cutovers of a step that are drawn.
const BARS: usize = 48;

/// Shows progress until it is dropped or finished.
#[derive(Debug)]
pub struct ProgressDisplay {
    _task: Option<AbortOnDropHandle<()>>,
    screen: Screen,
}

#[derive(Debug, Clone)]
enum Screen {
    Live(Bars),
    Lines,
    Quiet,
}

#[derive(Debug, Clone)]
struct Bars {
    all: MultiProgress,
    time: ProgressBar,
    load: ProgressBar,
    step: ProgressBar,
}

struct DemoGauges {
    timeline: Arc<Timeline>,
    history: History,
    gauge: Arc<Gauge>,
    duration: Duration,
}

impl ProgressDisplay {
    /// Prints `text` before the run starts.
    pub fn announce(wanted: options::ProgressOutput, text: &str) {
        if wanted == options::ProgressOutput::Stderr {
            line(text);
        }
    }

    /// Shows the progress of this timeline and load.
    pub fn start(
        wanted: options::ProgressOutput,
        timeline: Arc<Timeline>,
        history: History,
        gauge: Arc<Gauge>,
        duration: Duration,
    ) -> Self {
        let screen = match wanted {
            options::ProgressOutput::Quiet => Screen::Quiet,
            options::ProgressOutput::Stderr if std::io::stderr().is_terminal() => Screen::Live(bars(duration)),
            options::ProgressOutput::Stderr => Screen::Lines,
        };
        let watched = DemoGauges { timeline, history, gauge, duration };
        let task = match screen {
            Screen::Quiet => None,
            _ => Some(AbortOnDropHandle::new(tokio::spawn(show(screen.clone(), watched)))),
        };
        ProgressDisplay { _task: task, screen }
    }

    /// Announces the work after the load.
    pub fn say(&self, timeline: &Timeline, text: &'static str) {
        timeline.events().closing = Some(text);
        if matches!(self.screen, Screen::Lines) {
            line(&format!("  {text}"));
        }
    }

    /// Removes the live lines.
    pub fn finish(self) {
        drop(self._task);
        if let Screen::Live(bars) = &self.screen {
            let _ = bars.all.clear();
        }
    }
}

fn bars(duration: Duration) -> Bars {
    let all = MultiProgress::new();
    let style = |template: &str| {
        let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        style.progress_chars("━╸┄")
    };
    let total = duration.as_millis() as u64;
    let time = all.add(ProgressBar::new(total).with_style(style("  {bar:40.cyan/dim} {msg}")));
    let load = all.add(ProgressBar::new_spinner().with_style(style("  {wide_msg}")));
    let step = all.add(ProgressBar::new_spinner().with_style(style("  {spinner:.cyan} {wide_msg}")));
    Bars { all, time, load, step }
}

async fn show(screen: Screen, watched: DemoGauges) {
    let (mut finished, mut frame) = (0, 0);
    let (mut before, mut at) = (0, Instant::now());
    let mut rate = 0;
    loop {
        tokio::time::sleep(FRAME).await;
        frame += 1;
        if frame % 5 == 0 {
            let ok = watched.gauge.ok.load(Relaxed);
            rate = ((ok - before) as f64 / at.elapsed().as_secs_f64()) as u64;
            (before, at) = (ok, Instant::now());
        }
        let (steps, closing) = {
            let events = watched.timeline.events();
            (events.steps.clone(), events.closing)
        };
        let done = |step: &&ScenarioStep| step.took_ms.is_some();
        for step in steps.iter().skip(finished).take_while(done) {
            finished += 1;
            let text = finished_step(step);
            match &screen {
                Screen::Live(bars) => drop(bars.all.println(wrapped(&text, WIDTH, 11))),
                _ => line(&text),
            }
        }
        match &screen {
            Screen::Live(bars) => {
                let elapsed = watched.timeline.elapsed();
                bars.time.set_position(elapsed.min(watched.duration).as_millis() as u64);
                let scenario = steps.last().map_or("", |step| step.scenario);
                bars.time.set_message(format!(
                    "{:.0} s of {:.0} s  {scenario}",
                    elapsed.as_secs_f64(),
                    watched.duration.as_secs_f64()
                ));
                bars.load.set_message(load_line(&watched, rate));
                let now = steps.last().map_or(String::new(), |step| current_step(step, &watched));
                bars.step.set_message(closing.map_or(now, str::to_owned));
                bars.step.tick();
            }
            _ if frame % FRAMES_PER_LINE == 0 => {
                let step = steps.last().filter(|step| step.took_ms.is_none()).map_or("", |step| &step.what);
                let between = if step.is_empty() { "" } else { "; now: " };
                line(&format!(
                    "  {:>5.1} s  {}{between}{step}",
                    watched.timeline.elapsed().as_secs_f64(),
                    load_line(&watched, rate)
                ));
            }
            _ => {}
        }
    }
}

fn load_line(watched: &DemoGauges, rate: u64) -> String {
    let events = watched.timeline.events();
    let (in_flight, leader) = (events.in_flight, events.leader.clone().unwrap_or_else(|| "nobody".to_owned()));
    drop(events);
    let errors = watched.gauge.errors();
    let mut text =
        format!("{} req/s, {} done, {leader} leads", thousands(rate), thousands(watched.gauge.ok.load(Relaxed)));
    if in_flight > 0 {
        text += &format!(", {in_flight} handoffs in flight");
    }
    let counts: Vec<String> = errors
        .iter()
        .map(|((code, reason), count)| match code {
            0 => format!("{count} × {reason}"),
            _ => format!("{count} × {code} {reason}"),
        })
        .collect();
    match counts.is_empty() {
        true => text + ", no errors",
        false => text + ", errors: " + &counts.join(", "),
    }
}

/// Draws the current step with the pauses of its cutovers so far.
fn current_step(step: &ScenarioStep, watched: &DemoGauges) -> String {
    if step.took_ms.is_some() {
        return "steady".to_owned();
    }
    let seen = watched.history.seen();
    let events = watched.timeline.events();
    let began =
        clock::nanos(Duration::from_millis(step.at_ms)) + (clock::now() - clock::nanos(watched.timeline.elapsed()));
    let cutovers: Vec<_> =
        changes(&events, &seen).filter(|(hold, change, _)| hold.at >= began && change.moved()).collect();
    let pauses: Vec<Duration> = cutovers.iter().map(|(.., pause)| *pause).collect();
    let last = cutovers.last().map_or(String::new(), |(hold, _, pause)| {
        let pause = micros(pause.as_micros() as u64);
        format!("  partition {} → {} in {pause}, {} waited", hold.partition, hold.pod, hold.times.stashed)
    });
    format!("{}  {}{last}", step.what, drawn(&pauses))
}

fn finished_step(step: &ScenarioStep) -> String {
    let took = step.took_ms.map_or("never".to_owned(), |took| micros(took * 1_000));
    let head = format!("  {:>5.1} s  {}: settled in {took}", step.at_ms as f64 / 1e3, step.what);
    match step.pause_us.count {
        0 => format!("{head}, {} handoffs", step.handoffs),
        _ => {
            let (p50, max) = (micros(step.pause_us.p50), micros(step.pause_us.max));
            format!("{head}, {} handoffs, pause p50 {p50}, max {max}  {}", step.handoffs, drawn(&step.pauses))
        }
    }
}

/// Draws each pause as a bar on a doubling scale from 0.5 ms (lowest) to 64 ms and more.
fn drawn(pauses: &[Duration]) -> String {
    const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let level = |pause: &Duration| (1..8).take_while(|level| pause.as_micros() >= 250 << level).count();
    let skipped = pauses.len().saturating_sub(BARS);
    let bars: String = pauses.iter().skip(skipped).map(|pause| LEVELS[level(pause)]).collect();
    if skipped > 0 { format!("…{bars}") } else { bars }
}

pub(super) fn line(text: &str) {
    // A closed reader is no reason to stop.
    let _ = writeln!(std::io::stderr(), "{text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_longer_pause_is_a_higher_bar() {
        let pauses = [0, 499, 500, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 9_000_000];
        assert_eq!(drawn(&pauses.map(Duration::from_micros)), "▁▁▂▃▄▅▆▇███");
    }
}
