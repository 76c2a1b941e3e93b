//! The events among the pods while the load runs.
//!
//! A scenario is a sequence of steps. Each step is announced and carried out, and the scenario waits until every
//! partition has its owner. The seed chooses the pods and the pauses.

use std::time::{Duration, Instant};

use rand::RngExt;
use rand::rngs::StdRng;

use super::options::Scenario;
use super::site::Site;

/// How long a step may take until every partition has its owner.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

/// Plays scenarios on a cluster.
pub(super) struct Stage<'a> {
    pub(super) site: &'a mut Site,
    pub(super) random: StdRng,
    /// The number of pods at the start.
    pub(super) pods: usize,
}

impl Stage<'_> {
    /// Plays for this long, each scenario at least once.
    pub(super) async fn play(&mut self, scenario: Scenario, duration: Duration) -> anyhow::Result<()> {
        if scenario != Scenario::All {
            return self.repeat(scenario, Instant::now() + duration).await;
        }
        let all = [Scenario::ScaleUp, Scenario::ScaleDown, Scenario::Crash, Scenario::Rolling];
        let begin = Instant::now();
        for (number, scenario) in (1_u32..).zip(all) {
            self.repeat(scenario, begin + duration * number / all.len() as u32).await?;
        }
        Ok(())
    }

    async fn repeat(&mut self, scenario: Scenario, until: Instant) -> anyhow::Result<()> {
        loop {
            self.rest(until).await;
            let began = Instant::now();
            match scenario {
                Scenario::ScaleUp => self.scale_up().await?,
                Scenario::ScaleDown => self.scale_down().await?,
                Scenario::Crash => self.crash(until).await?,
                Scenario::Rolling => self.rolling().await?,
                Scenario::All => {}
            }
            // Repeats only if it is likely to end in time.
            if Instant::now() + began.elapsed() >= until {
                break;
            }
        }
        tokio::time::sleep_until(until.into()).await;
        Ok(())
    }

    /// Lets time pass without an event, as a baseline.
    async fn rest(&mut self, until: Instant) {
        let left = until.saturating_duration_since(Instant::now());
        let share = self.random.random_range(0.3..1.0);
        tokio::time::sleep(Duration::from_millis(800).min(left / 4).mul_f64(share)).await;
    }

    async fn settle(&mut self) {
        let settled = self.site.settled(PATIENCE).await;
        self.site.end(settled);
    }

    async fn scale_up(&mut self) -> anyhow::Result<()> {
        // As many pods as there were join; then all of those leave at once, and it begins again.
        if self.site.pods().len() >= 2 * self.pods {
            let extra = self.site.pods().split_off(self.pods);
            self.site.begin("scale-up", &format!("{} leave, to begin again", extra.join(", ")));
            for pod in extra {
                self.site.remove_pod(&pod).await;
            }
            self.settle().await;
            return Ok(());
        }
        let pod = self.site.next_pod();
        self.site.begin("scale-up", &format!("{pod} joins"));
        self.site.add_pod(&pod).await?;
        self.settle().await;
        Ok(())
    }

    async fn scale_down(&mut self) -> anyhow::Result<()> {
        let pods = self.site.pods();
        if pods.len() <= 1 || pods.len() < self.pods {
            let pod = self.site.next_pod();
            self.site.begin("scale-down", &format!("{pod} joins, to begin again"));
            self.site.add_pod(&pod).await?;
        } else {
            let pod = self.any_pod();
            self.leave("scale-down", &pod).await;
            return Ok(());
        }
        self.settle().await;
        Ok(())
    }

    async fn crash(&mut self, until: Instant) -> anyhow::Result<()> {
        if self.site.pods().len() < 2 {
            let pod = self.site.next_pod();
            self.site.begin("crash", &format!("{pod} joins, so that one can crash"));
            self.site.add_pod(&pod).await?;
            self.settle().await;
        }
        let pod = self.any_pod();
        self.site.begin("crash", &format!("{pod} crashes"));
        self.site.crash_pod(&pod).await;
        self.settle().await;
        self.rest(until).await;
        self.site.begin("crash", &format!("{pod} comes back"));
        self.site.add_pod(&pod).await?;
        self.settle().await;
        Ok(())
    }

    async fn rolling(&mut self) -> anyhow::Result<()> {
        let pods = self.site.pods();
        // Another pod has to own the partitions meanwhile.
        let spare = (pods.len() == 1).then(|| self.site.next_pod());
        if let Some(spare) = &spare {
            self.site.begin("rolling", &format!("{spare} joins, as a spare"));
            self.site.add_pod(spare).await?;
            self.settle().await;
        }
        for (number, pod) in pods.iter().enumerate() {
            if number == pods.len() / 2 {
                self.site.begin("rolling", "the leading coordinator resigns");
                self.site.resign_leader().await;
                self.settle().await;
            }
            self.leave("rolling", pod).await;
            self.site.begin("rolling", &format!("{pod} comes back"));
            self.site.add_pod(pod).await?;
            self.settle().await;
        }
        if let Some(spare) = spare {
            self.leave("rolling", &spare).await;
        }
        Ok(())
    }

    async fn leave(&mut self, scenario: &'static str, pod: &str) {
        self.site.begin(scenario, &format!("{pod} hands over and leaves"));
        self.site.remove_pod(pod).await;
        self.settle().await;
    }

    fn any_pod(&mut self) -> String {
        let pods = self.site.pods();
        pods[self.random.random_range(0..pods.len())].clone()
    }
}
