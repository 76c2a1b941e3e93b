//! Requests that come back because their pod refused them, while everything else goes on.

use super::*;

pub(super) const MODELS: &[Model] = models![
    "returning":
    coming_back_and_leaving_at_once,
    refused_requests_keep_their_order,
    coming_back_races_a_cutover,
    coming_back_races_a_cutover_and_a_newcomer,
];

/// Two requests of one key have passed the open gate and come back in reverse order, while the partition moves and a
/// newcomer arrives. They leave in the order in which they arrived, and the newcomer behind them if it had to wait.
fn refused_requests_keep_their_order() -> u64 {
    explore(Some(1), || {
        let mut fixture = Fixture::open(2);
        let one = fixture.worker(0, |client| {
            let (first, second) = (client.permit(1), client.permit(2));
            let second = second.left().put_back(Bounce::Unreachable).unwrap();
            let first = first.left().put_back(Bounce::Unreachable).unwrap();
            // Each has a task of its own; here one thread polls both.
            let (mut first, mut second) = (Some(first), Some(second));
            block_on(std::future::poll_fn(|context| {
                for (number, held) in [(1, &mut first), (2, &mut second)] {
                    if let Some(queued) = held
                        && let Poll::Ready(permit) = std::pin::Pin::new(queued).poll(context)
                    {
                        *held = None;
                        client.saw(permit.unwrap()).served(number);
                    }
                }
                if first.is_none() && second.is_none() { Poll::Ready(()) } else { Poll::Pending }
            }));
        });
        let had_to_wait = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let waits = had_to_wait.clone();
        let other = fixture.worker(1, move |client| {
            let permit = match client.enter(3).unwrap() {
                Admission::Admitted(permit) => permit,
                Admission::Queued(queued) => {
                    waits.store(true, SeqCst);
                    block_on(queued).unwrap()
                }
            };
            client.saw(permit).served(3);
        });
        fixture.keep_open(2, 2);
        one.join().unwrap();
        other.join().unwrap();
        let acted = fixture.acted();
        let position = |of| acted.iter().position(|number| *number == of).unwrap();
        assert!(position(1) < position(2), "{acted:?}");
        if had_to_wait.load(SeqCst) {
            assert_eq!(position(3), acted.len() - 1, "{acted:?}");
        }
    })
}

/// A held request is refused and comes back while the control side stops the partition and leads it elsewhere: it is
/// served once.
fn coming_back_races_a_cutover() -> u64 {
    explore(Some(3), || coming_back(1))
}

/// The same with a newcomer of the same key.
fn coming_back_races_a_cutover_and_a_newcomer() -> u64 {
    explore(Some(1), || coming_back(2))
}

fn coming_back(requests: usize) {
    let mut fixture = Fixture::held(2, Duration::from_secs(3600));
    let workers: Vec<_> = (0..requests)
        .map(|index| {
            fixture.worker(index, move |client| {
                let mut passed = client.permit(index as u32);
                if index == 0 {
                    let refused = passed.left().put_back(Bounce::Unreachable).unwrap();
                    passed = client.saw(block_on(refused).unwrap());
                }
                passed.served(index as u32);
            })
        })
        .collect();
    fixture.switch(1);
    fixture.stop();
    fixture.keep_open(2, requests);
    workers.into_iter().for_each(|worker| worker.join().unwrap());
    fixture.assert_at_rest(GateState::Open);
    let mut acted = fixture.acted();
    acted.sort_unstable();
    assert!(acted.into_iter().eq(0..requests as u32));
}

/// A request that comes back gives up or disconnects at the moment at which it would be admitted again.
fn coming_back_and_leaving_at_once() -> u64 {
    explore(Some(2), || {
        let mut fixture = Fixture::held(2, Duration::from_secs(3600));
        let one = fixture.worker(0, |client| drop(client.permit(1).left().put_back(Bounce::Unreachable).unwrap()));
        let other = fixture.worker(1, |client| client.permit(2).served(2));
        fixture.keep_open(1, 2);
        one.join().unwrap();
        other.join().unwrap();
        fixture.assert_at_rest(GateState::Open);
    })
}
