//! The process of a service that stands behind several pods, one for each keyspace.
//!
//! A process is up, is down and is ended as a whole, while each pod has a registration of its own. Here the pods agree:
//! the process is lent time until the earliest of their leases, and a pod that has to see its work ended ends that of
//! all. The other pods then find their service down. A pod whose work has ended already leaves the process to the others.
//!
//! # Invariants
//!
//! * A pod that gives up its registration while others hand over waits for them, at most as long as it may.
//! * Every pod that the process was up for sees the end of that life, even if the next one begins at once.
//! * A pod's work is settled only when the life of the process in which it was given is over and settled, or when it has
//!   ended or ends by other means.

use std::sync::Arc;

use async_trait::async_trait;
use segue_coordination::pod::Service;
use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, sleep_until};

/// A service whose work ends in all keyspaces at once.
#[derive(Debug)]
pub(super) struct SharedProcess<S> {
    process: S,
    /// Held while the process begins or ends.
    turn: Mutex<()>,
    state: watch::Sender<ProcessState>,
}

/// The part of one pod.
#[derive(Debug)]
pub(super) struct ProcessShare<S> {
    shares: Arc<SharedProcess<S>>,
    number: usize,
}

/// Lives are numbered from 1.
#[derive(Debug, Default)]
struct ProcessState {
    /// The newest life.
    life: u64,
    /// The newest life that is over.
    over: u64,
    /// The newest life of which nothing can take effect any more.
    settled: u64,
    /// Whether the process may run although no life of it has begun.
    is_begun: bool,
    parts: Vec<PodTurn>,
}

#[derive(Debug, Clone, Default)]
struct PodTurn {
    /// The life in which the pod takes requests; 0 for none.
    life: u64,
    /// When the pod's lease ends; `None` as long as the pod has not registered, and so has given the process nothing.
    until: Option<Instant>,
    /// The pod has registered after the end of that life. The next one may have got work from it.
    is_late: bool,
    /// The pod gives nothing to the process any more.
    is_ending: bool,
}

impl ProcessState {
    /// Returns whether another pod has a part in the present life.
    fn others_live(&self, number: usize) -> bool {
        let present = |part: &PodTurn| part.life > self.over && !part.is_ending;
        self.parts.iter().enumerate().any(|(other, part)| other != number && present(part))
    }

    /// Returns whether a pod that has registered has not acted on the end of its life yet.
    fn is_end_unseen(&self) -> bool {
        self.parts.iter().any(|part| part.life > 0 && part.life <= self.over && part.until.is_some())
    }

    /// Begins the next life. Pods that have not registered yet take part in it.
    fn begin(&mut self) {
        self.life += 1;
        let waiting = self.parts.iter_mut().filter(|part| part.life > 0 && part.until.is_none());
        waiting.for_each(|part| part.life = self.life);
    }

    /// Takes the end of a pod's lease. Returns the earliest of all.
    fn lend(&mut self, number: usize, until: Instant) -> Option<Instant> {
        let part = &mut self.parts[number];
        part.until = Some(until);
        if part.life <= self.over {
            part.is_late = true;
            return None;
        }
        self.parts.iter().filter(|part| part.life > self.over).filter_map(|part| part.until).min()
    }
}

impl<S> SharedProcess<S> {
    /// Returns the process itself.
    pub(super) fn process(&self) -> &S {
        &self.process
    }
}

impl<S: Service> SharedProcess<S> {
    /// Returns a process that nobody has a share of.
    pub(super) fn new(process: S) -> Arc<Self> {
        Arc::new(SharedProcess { process, turn: Mutex::default(), state: watch::Sender::default() })
    }

    /// Returns the share of one more pod.
    pub(super) fn share(self: &Arc<Self>) -> ProcessShare<S> {
        let mut number = 0;
        self.state.send_modify(|state| {
            number = state.parts.len();
            state.parts.push(PodTurn::default());
        });
        ProcessShare { shares: self.clone(), number }
    }

    async fn until(&self, holds: impl Fn(&ProcessState) -> bool + Send) {
        // This end holds the sender.
        let _ = self.state.subscribe().wait_for(|state| holds(state)).await;
    }
}

impl<S> ProcessShare<S> {
    /// Returns the process.
    pub(super) fn process(&self) -> &S {
        self.shares.process()
    }

    /// Gives up the pod's part. What ends its work is not the end of the process.
    pub(super) fn leave(&self) {
        self.shares.state.send_modify(|state| state.parts[self.number] = PodTurn::default());
    }

    /// Gives up the part of a pod whose work has ended, if the process goes on for others. Returns whether it does.
    pub(super) fn leave_to_others(&self) -> bool {
        self.shares.state.send_if_modified(|state| {
            let goes_on = state.others_live(self.number);
            if goes_on {
                state.parts[self.number] = PodTurn::default();
            }
            goes_on
        })
    }
}

#[async_trait]
impl<S: Service> Service for ProcessShare<S> {
    async fn up(&self) {
        let ProcessShare { shares, number } = self;
        shares.state.send_modify(|state| state.parts[*number] = PodTurn::default());
        loop {
            // The next life begins once each pod has seen the end of the last.
            shares.until(|state| !state.is_end_unseen()).await;
            let _turn = shares.turn.lock().await;
            if shares.state.borrow().is_end_unseen() {
                continue;
            }
            let is_up = |state: &ProcessState| state.life > state.over;
            if !is_up(&shares.state.borrow()) {
                shares.state.send_modify(|state| state.is_begun = true);
                tokio::select! {
                    biased;
                    // A pod has registered for the last life meanwhile, and needs its turn to give that up.
                    () = shares.until(ProcessState::is_end_unseen) => continue,
                    () = shares.process.up() => {}
                }
                shares.state.send_modify(ProcessState::begin);
            }
            shares.state.send_modify(|state| state.parts[*number].life = state.life);
            return;
        }
    }

    async fn down(&self) {
        let ProcessShare { shares, number } = self;
        let is_over = |state: &ProcessState| state.parts[*number].life <= state.over;
        tokio::select! {
            biased;
            () = shares.until(is_over) => {}
            () = shares.process.down() => shares.state.send_modify(|state| state.over = state.life),
        }
    }

    async fn unhealthy(&self) {
        self.shares.process.unhealthy().await;
    }

    fn is_unhealthy(&self) -> bool {
        self.shares.process.is_unhealthy()
    }

    fn lend(&self, until: Instant) {
        let mut earliest = None;
        self.shares.state.send_if_modified(|state| {
            let was_unseen = state.is_end_unseen();
            earliest = state.lend(self.number, until);
            state.is_end_unseen() != was_unseen
        });
        if let Some(earliest) = earliest {
            self.shares.process.lend(earliest);
        }
    }

    async fn settle(&self, by: Instant) {
        let ProcessShare { shares, number } = self;
        let mut mine = 0;
        shares.state.send_modify(|state| {
            state.parts[*number].is_ending = true;
            mine = state.parts[*number].life;
        });
        tokio::select! {
            () = shares.until(|state| (mine > 0 && mine <= state.over) || !state.others_live(*number)) => {}
            () = sleep_until(by) => {}
        }
        let _turn = shares.turn.lock().await;
        let is_due = |state: &ProcessState| match mine {
            // The pod has given nothing to the process. The last pod ends what may run.
            0 => state.is_begun && !state.others_live(*number),
            _ => mine > state.settled || state.parts[*number].is_late,
        };
        let is_due = is_due(&shares.state.borrow());
        if is_due {
            shares.state.send_modify(|state| state.over = state.life);
            shares.process.settle(by).await;
            shares.state.send_modify(|state| (state.settled, state.is_begun) = (state.life, false));
        }
        shares.state.send_modify(|state| state.parts[*number] = PodTurn::default());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex as StdMutex;
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
    use std::time::Duration;

    use tokio::sync::Notify;

    use super::*;

    /// A process that records what is done to it.
    #[derive(Default)]
    struct Process {
        done: StdMutex<Vec<String>>,
        fails: Notify,
        /// The process does not come up.
        hangs: AtomicBool,
    }

    #[async_trait]
    impl Service for Process {
        async fn up(&self) {
            self.done.lock().unwrap().push("up".to_owned());
            if self.hangs.load(SeqCst) {
                std::future::pending().await
            }
        }

        async fn down(&self) {
            self.fails.notified().await;
        }

        fn lend(&self, until: Instant) {
            self.done.lock().unwrap().push(format!("lent {}", until.duration_since(Instant::now()).as_secs()));
        }

        async fn settle(&self, _: Instant) {
            self.done.lock().unwrap().push("settled".to_owned());
        }
    }

    fn two() -> [ProcessShare<Process>; 2] {
        let process = SharedProcess::new(Process::default());
        [(); 2].map(|()| process.share())
    }

    impl ProcessShare<Process> {
        fn done(&self) -> Vec<String> {
            std::mem::take(&mut *self.process().done.lock().unwrap())
        }

        /// Lets everything that is possible happen. Returns whether `work` ends by that.
        async fn ends<T>(work: &mut (impl Future<Output = T> + Unpin)) -> bool {
            tokio::time::timeout(Duration::from_millis(1), work).await.is_ok()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_process_may_work_until_the_earliest_of_the_leases() {
        let [a, b] = two();
        let after = |seconds| Instant::now() + Duration::from_secs(seconds);
        a.up().await;
        a.lend(after(10));
        b.up().await;
        b.lend(after(7));
        a.lend(after(15));
        b.lend(after(20));
        assert_eq!(a.done(), ["up", "lent 10", "lent 7", "lent 7", "lent 15"]);
        b.settle(Instant::now()).await;
        a.lend(after(30));
        assert_eq!(a.done(), ["settled"], "nothing is lent to a life that is over");
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_that_ends_waits_for_those_that_still_hand_over() {
        let [a, b] = two();
        a.up().await;
        b.up().await;
        let by = Instant::now() + Duration::from_secs(60);
        let mut ends = a.settle(by);
        assert!(!ProcessShare::ends(&mut ends).await && a.done() == ["up"]);
        b.settle(by).await;
        ends.await;
        assert_eq!(a.done(), ["settled"], "once for both");
        assert!(Instant::now() < by);
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_does_not_wait_for_others_longer_than_it_may() {
        let [a, b] = two();
        a.up().await;
        b.up().await;
        a.settle(Instant::now() + Duration::from_secs(60)).await;
        assert_eq!(a.done(), ["up", "settled"]);
        assert!(ProcessShare::ends(&mut b.down()).await, "the other pod's service is down");
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_of_a_life_is_seen_by_all_before_the_next_begins() {
        let [a, b] = two();
        a.up().await;
        b.up().await;
        b.lend(Instant::now());
        a.settle(Instant::now()).await;
        let mut again = a.up();
        assert!(!ProcessShare::ends(&mut again).await, "the other pod still counts on the life that is over");
        assert!(ProcessShare::ends(&mut b.down()).await);
        b.settle(Instant::now()).await;
        again.await;
        assert_eq!(a.done(), ["up", "lent 0", "settled", "up"]);
        assert!(!ProcessShare::ends(&mut a.down()).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_service_that_fails_is_down_for_every_pod_and_comes_up_for_every_pod() {
        let [a, b] = two();
        a.up().await;
        b.up().await;
        for pod in [&a, &b] {
            pod.lend(Instant::now());
        }
        assert_eq!(a.done(), ["up", "lent 0", "lent 0"]);
        a.process().fails.notify_one();
        a.down().await;
        b.down().await;
        // Pods that vouch for nothing do not settle it.
        let (mut first, mut second) = (a.up(), b.up());
        assert!(
            !ProcessShare::ends(&mut first).await
                && ProcessShare::ends(&mut second).await
                && ProcessShare::ends(&mut first).await
        );
        assert_eq!(a.done(), ["up"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_that_cannot_register_keeps_nobody_from_the_next_life_and_takes_part_in_it() {
        let [a, b] = two();
        a.up().await;
        // Waits for the end of an earlier registration of its name.
        b.up().await;
        a.lend(Instant::now());
        a.settle(Instant::now()).await;
        a.up().await;
        b.lend(Instant::now());
        assert!(!ProcessShare::ends(&mut b.down()).await);
        assert_eq!(a.done(), ["up", "lent 0", "settled", "up", "lent 0"]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_work_of_a_pod_that_registered_after_the_end_of_its_life_is_settled_as_well() {
        let [a, b] = two();
        a.up().await;
        b.up().await;
        a.lend(Instant::now());
        a.settle(Instant::now()).await;
        b.lend(Instant::now());
        assert!(ProcessShare::ends(&mut b.down()).await);
        b.settle(Instant::now()).await;
        assert_eq!(a.done(), ["up", "lent 0", "settled", "settled"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_whose_work_has_ended_leaves_the_process_to_the_others() {
        let [a, b] = two();
        a.up().await;
        b.up().await;
        a.lend(Instant::now());
        b.lend(Instant::now());
        assert!(a.leave_to_others());
        assert!(!ProcessShare::ends(&mut b.down()).await, "the process goes on");
        // It comes back to the same process, and leaves again.
        a.up().await;
        a.lend(Instant::now());
        assert!(!ProcessShare::ends(&mut a.down()).await);
        assert!(a.leave_to_others());
        assert!(!b.leave_to_others(), "nobody is left that the process would go on for");
        b.settle(Instant::now() + Duration::from_secs(60)).await;
        assert_eq!(a.done(), ["up", "lent 0", "lent 0", "lent 0", "settled"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_does_not_leave_the_process_to_one_that_waits_for_it_to_end() {
        let [a, b] = two();
        a.up().await;
        b.up().await;
        let by = Instant::now() + Duration::from_secs(60);
        let mut ends = a.settle(by);
        assert!(!ProcessShare::ends(&mut ends).await);
        assert!(!b.leave_to_others());
        b.settle(by).await;
        ends.await;
        assert_eq!(a.done(), ["up", "settled"]);
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_a_pod_whose_work_ends_without_the_process() {
        let [a, b] = two();
        a.up().await;
        b.up().await;
        a.lend(Instant::now());
        b.lend(Instant::now());
        a.process().fails.notify_one();
        a.down().await;
        b.down().await;
        // Waits for the bound of its own keyspace.
        b.leave();
        assert!(ProcessShare::ends(&mut a.up()).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_that_registered_after_the_end_of_its_life_does_not_wait_until_the_next_one_has_begun() {
        let [a, b] = two();
        a.up().await;
        b.up().await;
        a.lend(Instant::now());
        a.settle(Instant::now()).await;
        a.process().hangs.store(true, SeqCst);
        let mut again = a.up();
        assert!(!ProcessShare::ends(&mut again).await);
        b.lend(Instant::now());
        assert!(ProcessShare::ends(&mut b.down()).await);
        let mut ends = b.settle(Instant::now());
        assert!(!ProcessShare::ends(&mut again).await);
        assert!(ProcessShare::ends(&mut ends).await, "nothing keeps its registration");
        a.process().hangs.store(false, SeqCst);
        assert!(ProcessShare::ends(&mut again).await);
        assert_eq!(a.done(), ["up", "lent 0", "settled", "up", "settled", "up"]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_pod_ends_a_process_that_never_came_up() {
        let [a, b] = two();
        a.shares.state.send_modify(|state| state.is_begun = true);
        let by = Instant::now() + Duration::from_secs(60);
        a.settle(by).await;
        b.settle(by).await;
        assert_eq!(a.done(), ["settled"]);
    }
}
