//! Proves that the demo's five counts of harm are measured: each rises when the protocol is broken in its own way, and
//! none rises otherwise.

mod early_switch;
mod mishap;

use std::sync::Arc;
use std::time::Duration;

use early_switch::EarlySwitch;
use mishap::Mishap;
use segue_coordination::pod::PodHandle;
use segue_coordination::router::DataPlane;
use segue_demo::history::History;
use segue_demo::wiring::{ClusterWiring, PodService, boxed};
use segue_demo::writer::{Writer, WriterService};
use segue_demo::{Options, Report, Scenario, run};
use segue_proxy::routing::table::Table;
use tokio::sync::Mutex;
use tower::Layer as _;

/// One at a time: each is a whole cluster under load.
static TURN: Mutex<()> = Mutex::const_new(());

/// What is broken on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sabotage {
    /// Nothing.
    None,
    /// The first router leads a partition to its new owner as soon as a handoff is planned, while the others still send
    /// to the old one, and pods take whatever comes.
    SwitchesEarly,
    /// As [`SwitchesEarly`](Self::SwitchesEarly), but pods refuse what they do not own: nothing may go wrong then.
    SwitchesEarlyTowardsGuardedPods,
    /// Some writes reach their pod twice.
    SendsTwice,
    /// Pods acknowledge some writes without writing them.
    DropsWrites,
    /// Pods acknowledge some writes first and write them later.
    AnswersFirst,
}

impl ClusterWiring for Sabotage {
    fn data_plane(&self, router: u32, table: Arc<Table>, history: &History) -> Arc<dyn DataPlane> {
        match self {
            Sabotage::SwitchesEarly | Sabotage::SwitchesEarlyTowardsGuardedPods if router == 0 => {
                Arc::new(EarlySwitch::new(table, history.clone()))
            }
            _ => table,
        }
    }

    fn service(&self, pod: &PodHandle, writer: &Writer) -> PodService {
        let service = WriterService::new(writer.clone());
        let guarded = pod.layer().layer(service.clone());
        match self {
            Sabotage::None | Sabotage::SwitchesEarlyTowardsGuardedPods => boxed(guarded),
            Sabotage::SwitchesEarly => boxed(service),
            Sabotage::SendsTwice => Mishap::SendsTwice.before(guarded),
            Sabotage::DropsWrites => Mishap::DropsWrites.before(guarded),
            Sabotage::AnswersFirst => Mishap::AnswersFirst.before(guarded),
        }
    }
}

async fn demo(scenario: Scenario, sabotage: Sabotage) -> Report {
    let options = Options {
        duration: Duration::from_secs(2),
        scenario,
        partitions: 16,
        clients: 16,
        // In debug builds, too, there is time for the protocol.
        rate: 800,
        service_time: Duration::from_millis(4),
        warm_time: Duration::from_millis(50),
        wiring: (sabotage != Sabotage::None).then(|| -> Arc<dyn ClusterWiring> { Arc::new(sabotage) }),
        ..Options::default()
    };
    let _turn = TURN.lock().await;
    let report = run(options).await.unwrap();
    assert!(report.ok > 0, "{report}");
    report
}

fn harm(report: &Report) -> [u64; 5] {
    [report.lost, report.duplicated, report.misrouted, report.reordered, report.dual_writer_overlaps]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sound_run_harms_nothing() {
    let report = demo(Scenario::All, Sabotage::None).await;
    assert_eq!(harm(&report), [0; 5], "{report}");
    assert!(report.sound, "{report}");
    assert!(report.cutovers > 0 && report.failover_pause_us.count > 0, "{report}");
    assert!(report.checked.reads > 0 && report.checked.log_records.unwrap() > 0, "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_router_that_switches_early_misroutes_and_makes_two_writers() {
    let report = demo(Scenario::Rolling, Sabotage::SwitchesEarly).await;
    assert!(report.misrouted > 0 && report.dual_writer_overlaps > 0, "{report}");
    assert!(!report.sound);
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_that_refuse_what_they_do_not_own_make_up_for_a_router_that_switches_early() {
    let report = demo(Scenario::Rolling, Sabotage::SwitchesEarlyTowardsGuardedPods).await;
    let [lost, duplicated, misrouted, _, dual_writers] = harm(&report);
    assert_eq!([lost, duplicated, misrouted, dual_writers], [0; 4], "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_is_sent_twice_is_seen_as_duplicated() {
    let report = demo(Scenario::ScaleUp, Sabotage::SendsTwice).await;
    assert!(report.duplicated > 0, "{report}");
    let [lost, _, misrouted, reordered, dual_writers] = harm(&report);
    assert_eq!([lost, misrouted, reordered, dual_writers], [0; 4], "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acknowledged_write_that_was_dropped_is_seen_as_lost() {
    let report = demo(Scenario::ScaleUp, Sabotage::DropsWrites).await;
    assert!(report.lost > 0, "{report}");
    let [_, duplicated, misrouted, reordered, dual_writers] = harm(&report);
    assert_eq!([duplicated, misrouted, reordered, dual_writers], [0; 4], "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_is_acknowledged_before_it_is_done_is_seen_as_reordered() {
    // On a machine that is slow, a run of two seconds may have no two writes of a key that are near enough.
    for _ in 0..20 {
        let report = demo(Scenario::ScaleUp, Sabotage::AnswersFirst).await;
        assert_eq!(report.duplicated, 0, "{report}");
        if report.reordered > 0 {
            return;
        }
    }
    panic!("20 runs, and nothing was reordered");
}
