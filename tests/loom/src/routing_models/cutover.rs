//! Requests that arrive while a partition moves: each one waits, gives up, disconnects or passes, and none is
//! forgotten.

use super::*;

pub(super) const MODELS: &[Model] = models![
    "cutover":
    everyone_gets_through_to_one_owner_at_a_time,
    one_after_the_other_gets_through,
    a_cancelled_cutover_opens_again,
    giving_up_at_the_moment_of_the_grant_leaves_nothing_behind,
    hanging_up_at_the_moment_of_the_grant_leaves_nothing_behind,
    nobody_waits_once_the_router_ends,
];

/// Stop, drain, switch, flush, open, with requests of one key from two workers on the way.
fn everyone_gets_through_to_one_owner_at_a_time() -> u64 {
    explore(Some(2), || {
        let mut fixture = Fixture::open(2);
        let workers =
            [0, 1].map(|index| fixture.worker(index, move |client| client.permit(index as u32).served(index as u32)));
        fixture.stop();
        fixture.move_to(2);
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        fixture.assert_at_rest(GateState::Open);
    })
}

/// One worker and the control side alone; the second request finds the state that the first has left.
fn one_after_the_other_gets_through() -> u64 {
    explore(Some(4), || {
        let mut fixture = Fixture::open(1);
        let worker = fixture.worker(0, |client| (1..=2).for_each(|number| client.permit(number).served(number)));
        fixture.stop();
        fixture.move_to(2);
        worker.join().unwrap();
        fixture.assert_at_rest(GateState::Open);
        assert_eq!(fixture.acted(), [1, 2]);
    })
}

/// A handoff that is cancelled while requests are in flight: they stay inside, and the gate opens around them.
fn a_cancelled_cutover_opens_again() -> u64 {
    explore(Some(3), || {
        let mut fixture = Fixture::open(1);
        let worker = fixture.worker(0, |client| (1..=2).for_each(|number| client.permit(number).served(number)));
        fixture.stop();
        fixture.switch(1);
        fixture.until(GateState::Open);
        worker.join().unwrap();
        fixture.assert_at_rest(GateState::Open);
    })
}

/// A request's time is up at the moment of its grant. It passes or is refused, and either way the next of its key
/// starts.
fn giving_up_at_the_moment_of_the_grant_leaves_nothing_behind() -> u64 {
    explore(Some(3), || {
        let mut fixture = Fixture::held(2, Duration::ZERO);
        let workers = [0, 1].map(|index| {
            fixture.worker(index, move |client| {
                let permit = match client.enter(index as u32).unwrap() {
                    Admission::Admitted(permit) => Some(permit),
                    Admission::Queued(queued) => block_on(queued).ok(),
                };
                if let Some(permit) = permit {
                    client.saw(permit).served(index as u32);
                }
            })
        });
        fixture.switch(1);
        fixture.until(GateState::Open);
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        fixture.assert_at_rest(GateState::Open);
    })
}

/// A client disconnects at any moment; the request behind it is admitted all the same.
fn hanging_up_at_the_moment_of_the_grant_leaves_nothing_behind() -> u64 {
    explore(Some(4), || {
        let mut fixture = Fixture::held(1, Duration::from_secs(3600));
        let worker = fixture.worker(0, |client| {
            let first = client.enter(1).unwrap();
            let second = client.enter(2).unwrap();
            drop(first);
            let second = match second {
                Admission::Admitted(permit) => permit,
                Admission::Queued(queued) => block_on(queued).unwrap(),
            };
            client.saw(second).served(2);
        });
        fixture.switch(1);
        fixture.until(GateState::Open);
        worker.join().unwrap();
        fixture.assert_at_rest(GateState::Open);
    })
}

/// The router shuts down while requests wait, arrive and come back: each is admitted or refused, none waits for ever.
fn nobody_waits_once_the_router_ends() -> u64 {
    explore(Some(3), || {
        let fixture = Fixture::open(2);
        let one = fixture.worker(0, |client| {
            if let Ok(Admission::Admitted(permit)) = client.enter(1) {
                assert_eq!(
                    block_on(permit.put_back(Bounce::Unreachable).unwrap()).unwrap_err(),
                    AdmissionError::Shutdown
                );
            }
        });
        let other = fixture.worker(1, |client| match client.enter(2) {
            Ok(Admission::Admitted(permit)) => drop(permit),
            Ok(Admission::Queued(queued)) => assert_eq!(block_on(queued).unwrap_err(), AdmissionError::Shutdown),
            Err(refusal) => assert_eq!(refusal, AdmissionError::Shutdown),
        });
        fixture.table.shut_down();
        one.join().unwrap();
        other.join().unwrap();
        assert_eq!((fixture.table.in_flight(PARTITION), fixture.table.stashed(PARTITION)), (0, (0, 0)));
    })
}
